/* SPDX-License-Identifier: Apache-2.0 */
/* A range of elements as boxes of a tensor: they have each element once, in order, at its place. */
#include <string.h>

#include <lockstep/tensor.h>

#include "local.h"
#include "tensor/part.h"

enum { ELEMENTS_MAX = 64 };

typedef struct seen {
    int64_t count, boxes;
    int64_t value[ELEMENTS_MAX]; /* where in the whole each one is, in the order shown */
} seen;

/* The elements hold their place in the whole. */
static ls_status see(void *self, const char *name, const ls_state_tensor *box)
{
    seen *s = self;
    int64_t at[LS_DIMS_MAX] = {0}, count = 1;
    CHECK(strcmp(name, "x") == 0);
    for (int d = 0; d < box->ndim; d++) {
        count *= box->local[d];
    }
    for (int64_t i = 0; i < count; i++) {
        int64_t place = 0;
        for (int d = 0; d < box->ndim; d++) {
            place = place * box->global[d] + box->start[d] + at[d];
        }
        CHECK_INT(((const int64_t *)box->data)[i], place);
        s->value[s->count++] = place;
        for (int d = box->ndim - 1; d >= 0 && ++at[d] == box->local[d]; d--) {
            at[d] = 0;
        }
    }
    s->boxes += count > 0;
    return LS_OK;
}

/* All ranges of a part that has every element but the first `skip` rows of the whole. */
static void check_ranges(ls_shape whole, int64_t skip)
{
    ls_shape first = {.ndim = whole.ndim}, own = whole;
    int64_t row = 1, numbers[ELEMENTS_MAX];
    for (int d = 1; d < whole.ndim; d++) {
        row *= whole.dim[d];
    }
    first.dim[0] = skip;
    own.dim[0] -= skip;
    const ls__tensor_part part = ls__tensor_part_box(whole, first, own);
    const int64_t count = own.dim[0] * row;
    for (int64_t i = 0; i < count; i++) {
        numbers[i] = skip * row + i;
    }
    for (int64_t from = 0; from <= count; from++) {
        for (int64_t to = from; to <= count; to++) {
            seen s = {0};
            const ls_state_visitor visitor = {.size = sizeof visitor, .self = &s, .tensor = see};
            CHECK_OK(ls__tensor_part_visit_range(&part, LS_INT64, &numbers[from], from, to - from,
                                                 "x", &visitor, NULL));
            CHECK_INT(s.count, to - from);
            CHECK(s.boxes <= 2 * whole.ndim - 1);
            for (int64_t i = 0; i < s.count; i++) {
                CHECK_INT(s.value[i], skip * row + from + i);
            }
        }
    }
}

TEST(a_range_of_a_tensor_is_shown_as_boxes)
{
    const ls_shape shapes[] = {LS_SHAPE(7),       LS_SHAPE(1),          LS_SHAPE(4, 5),
                               LS_SHAPE(1, 6),    LS_SHAPE(6, 1),       LS_SHAPE(3, 4, 5),
                               LS_SHAPE(2, 1, 3), LS_SHAPE(2, 3, 2, 4), LS_SHAPE(3, 0, 2)};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        check_ranges(shapes[i], 0);
        if (shapes[i].dim[0] > 1) {
            check_ranges(shapes[i], 1);
        }
    }
}

TEST_MAIN
