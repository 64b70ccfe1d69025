/* What networks begin with: values that a seed has had since they were written down here, whatever
 * was not drawn on the way, and LS_SKIP_INIT, under which layers draw nothing. */
#include <stdlib.h>
#include <string.h>

#include "test.h"
#include <lockstep/models/bert.h>
#include <lockstep/models/cnn.h>
#include <lockstep/models/gpt.h>
#include <lockstep/models/gpt2.h>
#include <lockstep/models/lstm.h>
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
    {"mlp", mlp, 0x0ac37dda6d81882eu, false},
    {"cnn", cnn, 0xe9242ac36906a5a5u, false},
    {"gpt", gpt, 0x9447a4250a564424u, false},
    {"gpt, init_std 0", gpt_as_in_pytorch, 0x92538d0542173949u, false},
    {"gpt2", gpt2, 0xc01d474145c016d6u, false},
    {"bert", bert, 0xec706d87d5af2650u, false},
    {"lstm", lstm, 0x31ffd1f17b6095cdu, false},
    {"vit", vit, 0x574cef9ff82c337eu, false},
    {"resnet", resnet, 0x7ce45cbc3326e788u, true},
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
