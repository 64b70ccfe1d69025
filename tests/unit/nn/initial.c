/* SPDX-License-Identifier: Apache-2.0 */
/* What networks begin with: values that a seed has had since they were written down here, whatever
 * was not drawn on the way, and LS_SKIP_INIT, under which layers draw nothing. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "test.h"
#include <lockstep/models/bert.h>
#include <lockstep/models/cnn.h>
#include <lockstep/models/gpt.h>
#include <lockstep/models/gpt2.h>
#include <lockstep/models/llama.h>
#include <lockstep/models/lstm.h>
#include <lockstep/models/mixtral.h>
#include <lockstep/models/mlp.h>
#include <lockstep/models/resnet.h>
#include <lockstep/models/vit.h>

#define SEED 7

static ls_module *mlp(void)
{
    return ls_mlp_new(9, 8, 4);
}

static ls_module *cnn(void)
{
    return ls_cnn_new(3, 10);
}

static ls_module *gpt(void)
{
    return ls_gpt_new(
        LS_OPTIONS(ls_gpt_options, .layers = 2, .heads = 2, .dim = 16, .context = 8, .vocab = 40));
}

static ls_module *gpt_as_in_pytorch(void)
{
    return ls_gpt_new(LS_OPTIONS(ls_gpt_options, .layers = 2, .heads = 2, .dim = 16, .context = 8,
                                 .vocab = 40, .init_std = 0.0));
}

static ls_module *gpt2(void)
{
    return ls_gpt2_new(
        LS_OPTIONS(ls_gpt2_options, .layers = 2, .heads = 2, .dim = 16, .context = 8, .vocab = 40));
}

static ls_module *bert(void)
{
    return ls_bert_new(LS_OPTIONS(ls_bert_options, .layers = 2, .heads = 2, .dim = 16, .wide = 32,
                                  .context = 8, .vocab = 40));
}

static ls_module *lstm(void)
{
    return ls_lstm_model_new(
        LS_OPTIONS(ls_lstm_model_options, .dim = 12, .hidden = 10, .vocab = 40));
}

static ls_module *vit(void)
{
    return ls_vit_new(LS_OPTIONS(ls_vit_options, .layers = 2, .heads = 2, .dim = 16, .wide = 32,
                                 .image = 16, .patch = 4, .classes = 10));
}

static ls_module *mixtral(void)
{
    return ls_mixtral_new(LS_OPTIONS(ls_mixtral_options, .layers = 2, .heads = 4, .kv_heads = 2,
                                     .dim = 16, .hidden = 8, .experts = 4, .context = 8,
                                     .vocab = 40));
}

static ls_module *llama(void)
{
    return ls_llama_new(LS_OPTIONS(ls_llama_options, .layers = 2, .heads = 4, .kv_heads = 2,
                                   .dim = 16, .hidden = 24, .context = 8, .vocab = 40));
}

static ls_module *resnet(void)
{
    return ls_resnet_new(18, 10, true);
}

typedef struct network {
    const char *name;
    ls_module *(*make)(void);
    uint64_t hash; /* of what SEED gives */
    bool large;    /* not made with the plain kernels as well */
} network;

static const network networks[] = {
    {"mlp", mlp, 0xad00904e4fecfec7u, false},
    {"cnn", cnn, 0x1a52a456184b18f6u, false},
    {"gpt", gpt, 0x00ea08a663ce0d3eu, false},
    {"gpt, init_std 0", gpt_as_in_pytorch, 0xfcec09ed9305b9a4u, false},
    {"gpt2", gpt2, 0x013c133b087d0c0cu, false},
    {"bert", bert, 0xf48ffd01dcb8ef8du, false},
    {"lstm", lstm, 0x7e301419eae60655u, false},
    {"vit", vit, 0x5911d5bc7ee19461u, false},
    {"mixtral", mixtral, 0xcfc343430fd96b96u, false},
    {"llama", llama, 0xbea02c39e5477eb6u, false},
    {"resnet", resnet, 0xc63402ea148ec268u, true},
};

static uint64_t hash_of(const network *n)
{
    CHECK_OK(ls_init(LS_OPTIONS(ls_init_options, .seed = SEED)));
    ls_module *net = n->make();
    CHECK(net != NULL && ls_module_status(net) == LS_OK);
    const uint64_t hash = ls_module_hash(net);
    ls_module_free(net);
    CHECK_OK(ls_finalize());
    return hash;
}

TEST(networks_begin_with_the_values_that_their_seed_always_had)
{
    for (size_t i = 0; i < 2 * sizeof networks / sizeof *networks; i++) {
        const network *n = &networks[i / 2];
        const bool plain = i % 2 != 0;
        if (plain && n->large) {
            continue;
        }
        CHECK((plain ? setenv("LOCKSTEP_CPU", "ref", 1) : unsetenv("LOCKSTEP_CPU")) == 0);
        const uint64_t hash = hash_of(n);
        if (hash != n->hash) {
            test_fail(__FILE__, __LINE__, "%s%s: the hash of its values is 0x%016llx", n->name,
                      plain ? " with plain kernels" : "", (unsigned long long)hash);
        }
    }
    CHECK(unsetenv("LOCKSTEP_CPU") == 0);
}

/* Whether the first elements are those of one stream, scaled and shifted: three points on a
 * line. */
static bool of_one_stream(const float *a, const float *b)
{
    const double slope = ((double)a[1] - (double)a[0]) / ((double)b[1] - (double)b[0]);
    for (int i = 2; i < 8; i++) {
        const double want = (double)a[0] + slope * ((double)b[i] - (double)b[0]);
        if (fabs(want - (double)a[i]) > 1e-4 * (1e-3 + fabs((double)a[i]))) {
            return false;
        }
    }
    return true;
}

static bool is_drawn(ls_tensor *t)
{
    const float *x = ls_data(t);
    return ls_numel(t) >= 8 && x[0] != x[1];
}

/* Every layer knows its whole name when it draws. */
TEST(no_two_parameters_of_a_network_share_a_stream)
{
    ls_param p[256];
    CHECK_OK(ls_init(LS_OPTIONS(ls_init_options, .seed = SEED)));
    for (size_t n = 0; n < sizeof networks / sizeof *networks; n++) {
        ls_module *net = networks[n].make();
        const int count = ls_module_params(net, p, 256);
        CHECK(count > 0 && count <= 256);
        for (int i = 0; i < count; i++) {
            for (int k = 0; k < i && is_drawn(p[i].value); k++) {
                if (is_drawn(p[k].value) &&
                    of_one_stream(ls_data(p[i].value), ls_data(p[k].value))) {
                    test_fail(__FILE__, __LINE__, "%s: %s and %s", networks[n].name, p[i].name,
                              p[k].name);
                }
            }
        }
        ls_module_free(net);
    }
    CHECK_OK(ls_finalize());
}

/* ---- LS_SKIP_INIT --------------------------------------------------------------------------- */

enum { COUNT = 1000 };

static ls_tensor *threes(void)
{
    return ls_keep(ls_full(LS_SHAPE(COUNT), LS_FLOAT32, 3.0));
}

static bool is_threes(ls_tensor *t)
{
    const float *x = ls_data(t);
    bool all = true;
    for (int i = 0; i < COUNT; i++) {
        all = all && x[i] == 3.0f;
    }
    return all;
}

static void draw_three(ls_tensor *t[3], bool skip_second)
{
    CHECK_OK(ls_manual_seed(SEED));
    CHECK_OK(ls_fill_normal(t[0], 0.0, 1.0));
    {
        LS_SKIP_INIT(skip_second);
        CHECK_OK(ls_fill_uniform(t[1], 0.0, 1.0));
    }
    CHECK_OK(ls_fill_normal(t[2], 0.0, 1.0));
}

TEST(what_is_skipped_keeps_its_values_and_what_follows_is_as_without)
{
    CHECK_OK(ls_init(NULL));
    ls_tensor *a[3] = {threes(), threes(), threes()}, *b[3] = {threes(), threes(), threes()};
    draw_three(a, false);
    draw_three(b, true);
    CHECK(!is_threes(a[1]) && is_threes(b[1]));
    for (int i = 0; i < 3; i += 2) {
        CHECK(!is_threes(a[i]) && memcmp(ls_data(a[i]), ls_data(b[i]), COUNT * sizeof(float)) == 0);
    }
    for (int i = 0; i < 3; i++) {
        ls_free(a[i]);
        ls_free(b[i]);
    }
    CHECK_OK(ls_finalize());
}

static void draw_unless_skipped(ls_tensor *t)
{
    LS_SKIP_INIT(false);
    CHECK_OK(ls_fill_normal(t, 0.0, 1.0));
}

TEST(scopes_that_skip_nest_and_end_however_they_are_left)
{
    CHECK_OK(ls_init(NULL));
    ls_tensor *t = threes();
    {
        LS_SKIP_INIT(true);
        draw_unless_skipped(t);
        CHECK_OK(ls_fill_normal(t, 0.0, 1.0));
        CHECK(is_threes(t));
        CHECK_STATUS(ls_fill_normal(ls_zeros(LS_SHAPE(2), LS_INT32), 0.0, 1.0),
                     LS_ERR_UNSUPPORTED); /* told all the same */
        CHECK_OK(ls_fill_constant(t, 4.0));
        CHECK(*(float *)ls_data(t) == 4.0f);
    }
    CHECK_OK(ls_fill_normal(t, 0.0, 1.0));
    CHECK(*(float *)ls_data(t) != 4.0f);
    ls_free(t);
    CHECK_OK(ls_finalize());
}

TEST_MAIN
