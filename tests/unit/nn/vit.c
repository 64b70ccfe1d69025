/* SPDX-License-Identifier: Apache-2.0 */
/* The vision transformer of models/ against torchvision's: vit.safetensors holds its weights under
 * its names, vit_logits.safetensors what it computes (tests/reference/transformers/make_vit.py). */
#include "test.h"

#include <math.h>

#include <lockstep/models/vit.h>

enum { BATCH = 2, EDGE = 8, CLASSES = 5 };

#define TOLERANCE 1e-5 /* float32 on both sides, logits of a few units */

typedef struct expected {
    float images[BATCH * 3 * EDGE * EDGE], logits[BATCH * CLASSES];
} expected;

static ls_status show(void *object, const char *prefix, const ls_state_visitor *v)
{
    expected *e = object;
    const ls_state_tensor images = {.dtype = LS_FLOAT32,
                                    .ndim = 4,
                                    .global = {BATCH, 3, EDGE, EDGE},
                                    .local = {BATCH, 3, EDGE, EDGE},
                                    .data = e->images};
    const ls_state_tensor logits = {.dtype = LS_FLOAT32,
                                    .ndim = 2,
                                    .global = {BATCH, CLASSES},
                                    .local = {BATCH, CLASSES},
                                    .data = e->logits};
    (void)prefix;
    LS_TRY(v->tensor(v->self, "images", &images));
    return v->tensor(v->self, "logits", &logits);
}

static ls_module *small_vit(void)
{
    return ls_vit_new(LS_OPTIONS(ls_vit_options, .layers = 2, .heads = 2, .dim = 8, .wide = 20,
                                 .image = EDGE, .patch = 4, .classes = CLASSES));
}

TEST(vit_has_the_logits_of_torchvision)
{
    static expected want;
    float got[BATCH * CLASSES];
    CHECK_OK(ls_init(NULL));
    ls_module *net = small_vit();
    CHECK(net != NULL);
    CHECK_OK(ls_module_load_safetensors(
        net, test_source_path("tests/reference/transformers/vit.safetensors"), NULL));
    CHECK_OK(ls_safetensors_load(
        test_source_path("tests/reference/transformers/vit_logits.safetensors"),
        &(const ls_checkpoint_item){
            .size = sizeof(ls_checkpoint_item), .prefix = "", .object = &want, .state = show},
        1, NULL));
    {
        LS_SCOPE;
        ls_tensor *x = ls_from_memory(want.images, LS_SHAPE(BATCH, 3, EDGE, EDGE), LS_FLOAT32);
        ls_tensor *logits = ls_forward(net, x);
        CHECK_OK(ls_copy_out(logits, got, sizeof got));
        for (int i = 0; i < BATCH * CLASSES; i++) {
            CHECK_NEAR(got[i], want.logits[i], TOLERANCE * (1.0 + fabs((double)want.logits[i])));
        }
        CHECK_OK(ls_backward(ls_sum(logits)));
    }
    ls_param params[64];
    int count = ls_module_params(net, params, 64);
    CHECK_INT(count, 2 * 12 + 8);
    for (int i = 0; i < count; i++) { /* the forward reaches them all */
        CHECK(ls_grad(params[i].value) != NULL);
    }
    ls_module_free(net);
    CHECK_OK(ls_finalize());
}

TEST(an_image_of_broken_patches_is_refused)
{
    CHECK_OK(ls_init(NULL));
    CHECK(!ls_vit_new(LS_OPTIONS(ls_vit_options, .image = 225)));
    CHECK_CONTAINS(ls_error_message(), "225");
    CHECK_OK(ls_finalize());
}

TEST_MAIN
