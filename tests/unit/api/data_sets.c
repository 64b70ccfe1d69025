/* SPDX-License-Identifier: Apache-2.0 */
/* The struct that data sets of one's own begin with states its size. */
#include <stddef.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "test.h"

static ls_status one_and_two(ls_dataset *self, int64_t index, void *x, void *y)
{
    (void)self;
    *(float *)x = (float)(1 + index);
    *(float *)y = 0.0f;
    return LS_OK;
}

/* Of an older header, which ends before get_in_epoch: garbage behind it is not called. */
TEST(data_sets_state_their_size)
{
    CHECK_OK(ls_init(NULL));
    const size_t older = offsetof(ls_dataset, get_in_epoch), bad[] = {0, 8, older - 8, 4104};
    ls_dataset d =
        LS_DATASET(.count = 2, .x_shape = LS_SHAPE(1), .y_shape = LS_SHAPE(1), .get = one_and_two);
    memset((char *)&d + older, 0xa5, sizeof d - older);
    ls_sampler *sampler = ls_sampler_new(2, NULL);
    for (int i = 0; i < 4; i++) {
        d.size = bad[i];
        CHECK(ls_loader_new(&d, sampler, NULL) == NULL);
        CHECK_CONTAINS(ls_error_message(), "fill an ls_dataset with LS_DATASET");
        CHECK(ls_transform_dataset_new(&d, NULL) == NULL);
        CHECK_CONTAINS(ls_error_message(), "ls_transform_dataset_new: the data set's size is");
    }
    d.size = older;
    ls_loader *loader = ls_loader_new(&d, sampler, NULL);
    ls_batch batch = {.size = sizeof batch};
    CHECK(ls_loader_next(loader, &batch));
    CHECK_NEAR(((const float *)ls_data(batch.x))[0], 1.5, 0.5);
    ls_loader_free(loader);
    ls_sampler_free(sampler);
    CHECK_OK(ls_finalize());
}

TEST_MAIN
