/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor parallelism of layers and models: losses, gradients and bytes on any number of ranks
 * against one process. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/lockstep.h>
#include <lockstep/models/bert.h>
#include <lockstep/models/gpt2.h>
#include <lockstep/models/llama.h>
#include <lockstep/models/mixtral.h>
#include <lockstep/models/mlp.h>
#include <lockstep/models/vit.h>

#include "elements.h"
#include "nn/parallel.h"
#include "says.h"
#include "test.h"
#include "train.h"

static ls_tensor *input(ls_shape shape, double step)
{
    ls_tensor *x = ls_empty(shape, LS_FLOAT32);
    float *at = edit_elements(x);
    for (int64_t i = 0; i < ls_numel(x); i++) {
        at[i] = (float)sin(0.37 * (double)i + step);
    }
    put_elements(x, at);
    return x;
}

/* What was cut is put together again. */
static void check_wholes(const trial *t, const ls_tensor_parallel_options *how)
{
    enum { PARAMS_MAX = 80 };
    ls_module *net = made(t), *twin = made(t);
    ls_param cut[PARAMS_MAX], want[PARAMS_MAX];
    CHECK_OK(ls_tensor_parallel(net, how));
    const int count = ls_module_params(net, cut, PARAMS_MAX);
    CHECK(count <= PARAMS_MAX && ls_module_params(twin, want, PARAMS_MAX) == count);
    for (int i = 0; i < count; i++) {
        LS_SCOPE;
        ls_tensor *whole = ls_tensor_whole(cut[i].value);
        CHECK_OK(ls_tensor_status(whole));
        CHECK(ls_numel(whole) == ls_numel(want[i].value));
        CHECK(memcmp(elements_of(whole), elements_of(want[i].value),
                     (size_t)ls_numel(whole) * sizeof(float)) == 0);
    }
    ls_module_free(net);
    ls_module_free(twin);
}

/* On all ranks of the axis tp as in one process, and twice with the same bits. */
static void check_trial(const trial *t, const ls_tensor_parallel_options *how)
{
    const int steps = step_count();
    double whole[STEPS_MAX], own[STEPS_MAX], again[STEPS_MAX];
    ls_mesh *mesh = NULL;
    train(t, NULL, steps, whole);
    CHECK_OK(ls_mesh_new(ls_world(), "tp=*", &mesh));
    check_wholes(t, how);
    train(t, how, steps, own);
    train(t, how, steps, again);
    CHECK_OK(ls_mesh_free(mesh));
    CHECK(memcmp(own, again, (size_t)steps * sizeof *own) == 0);
    if (!(worst(whole, own, steps) <= 1e-5)) {
        test_fail(__FILE__, __LINE__,
                  "losses differ by %g; the first is %g, want %g, the last "
                  "%g, want %g",
                  worst(whole, own, steps), own[0], whole[0], own[steps - 1], whole[steps - 1]);
    }
}

#define WHOLE LS_OPTIONS(ls_tensor_parallel_options, .sequence = false)
#define SEQUENCE LS_OPTIONS(ls_tensor_parallel_options, .sequence = true)
#define AGAIN LS_OPTIONS(ls_tensor_parallel_options, .sequence = true, .keep_gathered = false)

/* ---- two layers --------------------------------------------------------------------------- */

static ls_module *mlp(void)
{
    return ls_mlp_new(16, 32, 8);
}

static ls_tensor *mlp_loss(ls_module *net, int step)
{
    return ls_mse_loss(ls_forward(net, input(LS_SHAPE(4, 16), step)),
                       input(LS_SHAPE(4, 8), 0.5 * step));
}

DIST_TESTS(two_layers_over_, _ranks, 1, 2, 4)
{
    check_trial(&(trial){mlp, mlp_loss}, WHOLE);
}

/* ---- gpt ---------------------------------------------------------------------------------- */

DIST_TESTS(gpt_with_sequence_parallelism_over_, _ranks, 2, 4)
{
    check_trial(&(trial){gpt, gpt_loss}, SEQUENCE);
}

DIST_TESTS(gpt_that_gathers_again_over_, _ranks, 2, 4)
{
    check_trial(&(trial){gpt, gpt_loss}, AGAIN);
}

static ls_tensor *mixed_loss(ls_module *net, int step)
{
    LS_AUTOCAST(true);
    return gpt_loss(net, step);
}

/* The products round to bfloat16, of a gathered input that is kept or not. Roundings add up: after
 * 100 steps the losses differ by 1e-3. */
DIST_TEST(gpt_in_mixed_precision_gathers_again, 2)
{
    const trial t = {gpt, mixed_loss};
    double kept[STEPS_MAX], again[STEPS_MAX];
    const int steps = step_count() < 8 ? step_count() : 8;
    ls_mesh *mesh = NULL;
    CHECK_OK(ls_mesh_new(ls_world(), "tp=2", &mesh));
    train(&t, SEQUENCE, steps, kept);
    train(&t, AGAIN, steps, again);
    CHECK_OK(ls_mesh_free(mesh));
    CHECK_NEAR(worst(kept, again, steps), 0.0, 5e-4);
}

/* ---- the other models --------------------------------------------------------------------- */

static ls_module *gpt2(void)
{
    return ls_gpt2_new(LS_OPTIONS(ls_gpt2_options, .layers = 2, .heads = 4, .dim = 32,
                                  .context = 16, .vocab = 64, .dropout = 0.1));
}

static ls_tensor *gpt2_loss(ls_module *net, int step)
{
    ls_tensor *logits = ls_forward(net, tokens(2, 16, 64, step));
    return ls_tensor_parallel_cross_entropy(logits, tokens(2, 16, 64, step + 1), NULL);
}

static ls_module *bert(void)
{
    return ls_bert_new(LS_OPTIONS(ls_bert_options, .layers = 2, .heads = 4, .dim = 32, .wide = 64,
                                  .context = 16, .vocab = 64, .dropout = 0.1));
}

/* Of 4 ranks two share a head of keys and values. */
static ls_module *llama(void)
{
    return ls_llama_new(LS_OPTIONS(ls_llama_options, .layers = 2, .heads = 4, .kv_heads = 2,
                                   .dim = 32, .hidden = 48, .context = 16, .vocab = 64,
                                   .init_std = 0.3));
}

static ls_module *tied_llama(void)
{
    return ls_llama_new(LS_OPTIONS(ls_llama_options, .layers = 2, .heads = 4, .kv_heads = 2,
                                   .dim = 32, .hidden = 48, .context = 16, .vocab = 64,
                                   .tied = true));
}

static ls_module *mixtral(void)
{
    return ls_mixtral_new(LS_OPTIONS(ls_mixtral_options, .layers = 2, .heads = 4, .kv_heads = 2,
                                     .dim = 32, .hidden = 48, .experts = 4, .context = 16,
                                     .vocab = 64, .balance_loss = 0.1, .init_std = 0.3));
}

static ls_tensor *mixtral_loss(ls_module *net, int step)
{
    ls_tensor *loss = gpt2_loss(net, step);
    return ls_add(loss, ls_moe_loss(net));
}

/* The last tokens of each text are padding. */
static ls_tensor *bert_loss(ls_module *net, int step)
{
    ls_tensor *seen = ls_empty(LS_SHAPE(2, 16), LS_INT64), *y = NULL;
    int64_t *at = edit_elements(seen);
    for (int64_t i = 0; i < 32; i++) {
        at[i] = i % 16 < 12 + i / 16;
    }
    put_elements(seen, at);
    ls_tensor *inputs[] = {tokens(2, 16, 64, step), tokens(2, 16, 2, step), seen};
    (void)ls_forward_many(net, inputs, 3, &y, 1);
    return ls_bert_loss(y, tokens(2, 16, 64, step + 1));
}

/* 10 positions with the class token. */
static ls_module *vit(void)
{
    return ls_vit_new(LS_OPTIONS(ls_vit_options, .layers = 2, .heads = 4, .dim = 32, .wide = 64,
                                 .image = 12, .patch = 4, .classes = 8, .dropout = 0.1));
}

static ls_tensor *vit_loss(ls_module *net, int step)
{
    ls_tensor *logits = ls_forward(net, input(LS_SHAPE(2, 3, 12, 12), step));
    return ls_tensor_parallel_cross_entropy(logits, ls_reshape(tokens(2, 1, 8, step), LS_SHAPE(2)),
                                            NULL);
}

static void check_models(const ls_tensor_parallel_options *how)
{
    check_trial(&(trial){gpt2, gpt2_loss}, how);
    check_trial(&(trial){bert, bert_loss}, how);
    check_trial(&(trial){llama, gpt2_loss}, how);
    check_trial(&(trial){tied_llama, gpt2_loss}, how);
    check_trial(&(trial){mixtral, mixtral_loss}, how);
    if (!how->sequence || ls_world_size() == 2) {
        check_trial(&(trial){vit, vit_loss}, how);
    }
}

DIST_TESTS(gpt2_bert_llama_mixtral_and_vit_over_, _ranks, 2, 4)
{
    check_models(WHOLE);
}

DIST_TESTS(gpt2_bert_llama_mixtral_and_vit_with_sequence_parallelism_over_, _ranks, 2, 4)
{
    check_models(SEQUENCE);
    check_models(AGAIN);
}

/* ---- generation --------------------------------------------------------------------------- */

enum { TEXTS = 2, LENGTH = 12, WORDS = 64 };

typedef struct cached {
    ls_module *(*make)(void);
    ls_kv_cache *(*cache)(ls_module *model, int64_t batch);
    ls_status (*read)(ls_module *model, ls_kv_cache *cache, ls_tensor *x, int64_t last,
                      ls_tensor **logits);
} cached;

static ls_module *gpt_of_words(void)
{
    return ls_gpt_new(LS_OPTIONS(ls_gpt_options, .layers = 2, .heads = 4, .dim = 32, .context = 16,
                                 .vocab = WORDS, .init_std = 0.3));
}

static ls_module *gpt_of_experts(void)
{
    return ls_gpt_new(LS_OPTIONS(ls_gpt_options, .layers = 2, .heads = 4, .dim = 32, .context = 16,
                                 .vocab = WORDS, .init_std = 0.3,
                                 .moe = LS_OPTIONS(ls_moe_options, .experts = 4)));
}

static const cached decoders[] = {{gpt_of_words, ls_gpt_cache_new, ls_gpt_forward_cached},
                                  {gpt2, ls_gpt2_cache_new, ls_gpt2_forward_cached},
                                  {llama, ls_llama_cache_new, ls_llama_forward_cached},
                                  {mixtral, ls_mixtral_cache_new, ls_mixtral_forward_cached}};
static const cached experts = {gpt_of_experts, ls_gpt_cache_new, ls_gpt_forward_cached};

static ls_module *evaluated(const cached *d)
{
    ls_module *net = made(&(trial){.make = d->make});
    ls_module_train(net, false);
    return net;
}

/* Tokens [from, to) of both texts; all their logits are compared. */
static void read_piece(const cached *d, ls_module *net, ls_kv_cache *cache, int64_t from,
                       int64_t to, const float *want)
{
    LS_SCOPE;
    ls_tensor *logits = NULL, *x = tokens(TEXTS, LENGTH, WORDS, 0);
    const int64_t n = to - from;
    CHECK_OK(d->read(net, cache, ls_slice(x, 1, from, to), n, &logits));
    CHECK(ls_size(logits, 1) == n && ls_size(logits, 2) == WORDS);
    const float *got = elements_of(logits);
    for (int64_t i = 0; i < TEXTS * n * WORDS; i++) {
        const int64_t text = i / (n * WORDS), rest = i % (n * WORDS);
        CHECK_NEAR(got[i], want[(text * LENGTH + from) * WORDS + rest], 1e-5);
    }
}

/* The cache has the keys of this rank's heads, and the logits are those of all words. */
static void check_generation(const cached *d, const char *axes)
{
    static const int64_t at[] = {0, 5, 6, 7, 10, LENGTH};
    static float want[TEXTS * LENGTH * WORDS];
    ls_mesh *mesh = NULL;
    ls_module *net = evaluated(d);
    {
        LS_SCOPE;
        LS_NO_GRAD;
        CHECK_OK(ls_copy_out(ls_forward(net, tokens(TEXTS, LENGTH, WORDS, 0)), want, sizeof want));
    }
    ls_module_free(net);
    CHECK_OK(ls_mesh_new(ls_world(), axes, &mesh));
    net = evaluated(d);
    CHECK_OK(ls_mesh_has(mesh, "tp") ? ls_tensor_parallel(net, NULL) : LS_OK);
    ls_kv_cache *cache = d->cache(net, TEXTS);
    CHECK(cache != NULL);
    for (int i = 0; i < 5; i++) {
        read_piece(d, net, cache, at[i], at[i + 1], want);
    }
    ls_kv_cache_free(cache);
    ls_module_free(net);
    CHECK_OK(ls_mesh_free(mesh));
}

DIST_TESTS(texts_are_read_with_a_cache_over_, _ranks, 1, 2, 4)
{
    check_generation(&decoders[0], "tp=*");
    check_generation(&decoders[1], "tp=*");
    check_generation(&decoders[2], "tp=*");
    check_generation(&decoders[3], "tp=*");
    check_generation(&decoders[3], ls_world_size() == 4 ? "ep=2,tp=2" : "ep=*");
    check_generation(&experts, "ep=*");
    check_generation(&experts, ls_world_size() == 4 ? "ep=2,tp=2" : "tp=*");
}

DIST_TEST(a_cache_is_not_for_sequence_parallelism, 2)
{
    ls_mesh *mesh = NULL;
    ls_tensor *logits = NULL;
    CHECK_OK(ls_mesh_new(ls_world(), "tp=2", &mesh));
    for (int i = 0; i < 2; i++) {
        ls_module *net = evaluated(&decoders[i]);
        CHECK_OK(ls_tensor_parallel(net, SEQUENCE));
        ls_kv_cache *cache = decoders[i].cache(net, 1);
        CHECK_STATUS(decoders[i].read(net, cache, tokens(1, 4, WORDS, 0), 1, &logits),
                     LS_ERR_UNSUPPORTED);
        CHECK_SAYS(ls_error_message(),
                   "%s: a cache reads one token after another, and the model was cut with "
                   ".sequence, which divides them; load its checkpoint into a model without it");
        ls_kv_cache_free(cache);
        ls_module_free(net);
    }
    CHECK_OK(ls_mesh_free(mesh));
}

/* ---- heads that ranks share --------------------------------------------------------------- */

enum { HEADS = 4, HEAD_DIM = 8, WIDTH = HEADS * HEAD_DIM, KEY_HEADS = 2 };

typedef struct grouped {
    ls_module base;
    ls_module *norm, *query, *key, *value, *out;
} grouped;

static ls_tensor *grouped_forward(ls_module *m, ls_tensor *x)
{
    const grouped *g = (grouped *)m;
    ls_tensor *in = ls_tensor_parallel_input(m, ls_forward(g->norm, x));
    ls_tensor *q = ls_tensor_parallel_heads(ls_forward(g->query, in), 0, 1, HEAD_DIM);
    ls_tensor *k = ls_tensor_parallel_heads(ls_forward(g->key, in), 0, 1, HEAD_DIM);
    ls_tensor *v = ls_tensor_parallel_heads(ls_forward(g->value, in), 0, 1, HEAD_DIM);
    ls_tensor *seen = ls_transpose(ls_attention(q, k, v, NULL), 1, 2);
    return ls_forward(g->out, ls_reshape(seen, LS_SHAPE(ls_size(x, 0), ls_size(seen, 1), -1)));
}

static const ls_module_class grouped_class =
    LS_MODULE_CLASS(.name = "grouped", .forward = grouped_forward,
                    .plan = "query=column key=column(heads=2) value=column(heads=2) out=row");

static ls_module *grouped_new(void)
{
    grouped *g = ls_module_new(sizeof *g, &grouped_class);
    g->norm = ls_module_add(&g->base, "norm", ls_layer_norm_new(WIDTH, NULL));
    g->query = ls_module_add(&g->base, "query", ls_linear_new(WIDTH, WIDTH, NULL));
    g->key = ls_module_add(&g->base, "key", ls_linear_new(WIDTH, KEY_HEADS * HEAD_DIM, NULL));
    g->value = ls_module_add(&g->base, "value", ls_linear_new(WIDTH, KEY_HEADS * HEAD_DIM, NULL));
    g->out = ls_module_add(&g->base, "out", ls_linear_new(WIDTH, WIDTH, NULL));
    return &g->base;
}

static ls_tensor *grouped_loss(ls_module *net, int step)
{
    ls_tensor *x = input(LS_SHAPE(2, 8, WIDTH), step);
    return ls_mse_loss(ls_forward(net, x), input(LS_SHAPE(2, 8, WIDTH), 0.5 * step));
}

DIST_TESTS(two_key_heads_over_, _ranks, 2, 4)
{
    check_trial(&(trial){grouped_new, grouped_loss}, WHOLE);
}

/* ---- what is sent ------------------------------------------------------------------------- */

static ls_redistribute_stats sent(void)
{
    ls_redistribute_stats s = {.size = sizeof s};
    CHECK_OK(ls_redistribute_get_stats("tp", &s));
    return s;
}

static ls_module *prepared(const trial *t, const ls_tensor_parallel_options *how)
{
    ls_module *net = made(t);
    CHECK_OK(ls_tensor_parallel(net, how));
    return how->sequence ? ls_ddp_new(net, ls_world(), LS_OPTIONS(ls_ddp_options, .batch_axes = ""))
                         : net;
}

static void step_of(const trial *t, ls_module *net)
{
    LS_SCOPE;
    CHECK_OK(ls_backward(t->loss(net, 0)));
}

/* Of a micro-batch: 131,072 bytes of [2,128,128] in each layer twice forward and twice backward,
 * after the embedding, and before the head in backward; 3 numbers a token in the loss. */
static void check_bytes(const ls_tensor_parallel_options *how, ls_redistribute_stats want)
{
    const trial t = {gpt, gpt_loss};
    ls_mesh *mesh = NULL;
    CHECK_OK(ls_mesh_new(ls_world(), "tp=*", &mesh));
    ls_module *net = prepared(&t, how);
    step_of(&t, net);
    const ls_redistribute_stats got = sent();
    if (got.bytes != want.bytes || got.all_reduces != want.all_reduces ||
        got.all_gathers != want.all_gathers || got.reduce_scatters != want.reduce_scatters) {
        test_fail(__FILE__, __LINE__, "%llu bytes, %llu + %llu + %llu calls",
                  (unsigned long long)got.bytes, (unsigned long long)got.all_reduces,
                  (unsigned long long)got.all_gathers, (unsigned long long)got.reduce_scatters);
    }
    ls_module_free(net);
    CHECK_OK(ls_mesh_free(mesh));
}

DIST_TEST(bytes_of_a_micro_batch_on_2_ranks, 2)
{
    check_bytes(WHOLE, (ls_redistribute_stats){.all_reduces = 20, .bytes = 2362368});
    check_bytes(SEQUENCE,
                (ls_redistribute_stats){
                    .all_reduces = 2, .all_gathers = 18, .reduce_scatters = 18, .bytes = 2362368});
    check_bytes(AGAIN, (ls_redistribute_stats){.all_reduces = 2,
                                               .all_gathers = 27,
                                               .reduce_scatters = 18,
                                               .bytes = 2362368 + 9 * 65536});
}

DIST_TEST(bytes_of_a_micro_batch_on_4_ranks, 4)
{
    check_bytes(WHOLE, (ls_redistribute_stats){.all_reduces = 20, .bytes = 3543552});
}

/* ---- what is kept ------------------------------------------------------------------------- */

static int64_t allocated(void)
{
    ls_memory_stats s = {.size = sizeof s};
    CHECK_OK(ls_memory_get_stats(&s));
    return (int64_t)s.allocated;
}

/* From the forward of a block until its backward, as in a profile. */
static int64_t kept_of_block(ls_module *net, bool sequence)
{
    LS_SCOPE;
    const int64_t time = sequence ? TIME / ls_world_size() : TIME;
    ls_tensor *x = ls_set_requires_grad(input(LS_SHAPE(BATCH, time, 128), 0), true), *y = NULL;
    CHECK_OK(ls_place(x, "tp", sequence ? LS_SHARDED(1) : LS_INVARIANT));
    const int64_t before = allocated();
    CHECK_OK(ls_module_run_stage(net, 1, 1, &x, 1, &y, 1));
    return allocated() - before;
}

static void check_kept(const ls_tensor_parallel_options *how, int64_t want)
{
    const trial t = {gpt, gpt_loss};
    ls_mesh *mesh = NULL;
    CHECK_OK(ls_mesh_new(ls_world(), "tp=*", &mesh));
    ls_module *net = prepared(&t, how);
    step_of(&t, net);
    const int64_t got = kept_of_block(net, how->sequence);
    if (got < want - 1024 || got > want + 1024) {
        test_fail(__FILE__, __LINE__, "a block keeps %lld bytes, want %lld", (long long)got,
                  (long long)want);
    }
    ls_module_free(net);
    CHECK_OK(ls_mesh_free(mesh));
}

DIST_TEST(bytes_that_a_block_keeps_on_1_rank, 1)
{
    check_kept(WHOLE, 2105856);
}

DIST_TEST(bytes_that_a_block_keeps_on_2_ranks, 2)
{
    check_kept(WHOLE, 1317376);
    check_kept(SEQUENCE, 1184256);
    check_kept(AGAIN, 1053184);
}

DIST_TEST(bytes_that_a_block_keeps_on_4_ranks, 4)
{
    check_kept(WHOLE, 923136);
}

/* ---- refusals ----------------------------------------------------------------------------- */

static void check_refused(ls_module *net, const char *plan, const char *text)
{
    CHECK(ls_tensor_parallel(net, LS_OPTIONS(ls_tensor_parallel_options, .plan = plan)) ==
          LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(), text);
}

DIST_TEST(plans_that_do_not_fit_are_refused, 4)
{
    ls_mesh *mesh = NULL;
    ls_module *net = ls_mlp_new(6, 8, 3);
    CHECK(ls_tensor_parallel(net, NULL) == LS_ERR_STATE); /* no mesh */
    CHECK_OK(ls_mesh_new(ls_world(), "tp=4", &mesh));
    check_refused(net, "fc1=columns",
                  SAYS("give PATH=ROLE, with a role of column, column(N), column(heads=N), row, "
                       "shard(D), shard(D,N), vocab or sequence"));
    check_refused(net, "fc1=columns", SAYS("tensor_parallel: \"%.*s\" in the plan of %s: %s"));
    check_refused(net, "fc1",
                  SAYS("give PATH=ROLE, with a role of column, column(N), column(heads=N), row, "
                       "shard(D), shard(D,N), vocab or sequence"));
    check_refused(net, "fc1=column fc3=row",
                  SAYS("its path names no parameter of the model; the first of them is %.100s"));
    CHECK_CONTAINS(ls_error_message(), "the first of them is fc1.weight");
    check_refused(net, "",
                  SAYS("tensor_parallel: the plan is empty; give words PATH=ROLE, or NULL "
                       "for the plans of the classes"));
    check_refused(net, " \n", "the plan is empty");
    check_refused(net, "fc1=column fc1.bias=column",
                  SAYS("parameter %.100s is cut by a word before it; name it once"));
    check_refused(net, "*=column",
                  SAYS("dimension %d of parameter %.100s is %lld, and axis %s has %d ranks; give "
                       "sizes that %lld divides"));
    check_refused(net, "fc1.bias=shard(1)", SAYS("parameter %.100s has %d dimensions"));
    check_refused(net, "fc1=column(heads=3)",
                  SAYS("parameter %.100s has %lld rows for %d heads and axis %s %d ranks; one must "
                       "divide the other"));
    ls_module *trained = ls_linear_new(8, 8, NULL);
    {
        LS_SCOPE;
        CHECK_OK(ls_backward(ls_mean(ls_forward(trained, ls_ones(LS_SHAPE(2, 8), LS_FLOAT32)))));
        ls_tensor *x = ls_ones(LS_SHAPE(1, 2, 6), LS_FLOAT32);
        CHECK_STATUS(ls_tensor_status(ls_tensor_parallel_heads(x, 3, 3, 2)), LS_ERR_INVALID);
        CHECK_SAYS(ls_error_message(),
                   "tensor_parallel_heads: part %d of %d in heads of %lld, of a tensor of %d "
                   "dimensions; give x [B,T,C], a part from 0 to parts - 1, and a size of heads");
        CHECK_STATUS(ls_tensor_status(ls_tensor_parallel_heads(x, 0, 0, 2)), LS_ERR_INVALID);
        CHECK_STATUS(ls_tensor_status(ls_tensor_parallel_heads(x, 0, 1, 0)), LS_ERR_INVALID);
        CHECK_STATUS(ls_tensor_status(ls_tensor_parallel_heads(NULL, 0, 1, 2)), LS_ERR_INVALID);
        CHECK_STATUS(ls_tensor_status(ls_tensor_parallel_heads(x, 0, 4, 1)), LS_ERR_INVALID);
        CHECK_STATUS(ls_tensor_status(ls_tensor_parallel_heads(x, 0, 1, 4)), LS_ERR_INVALID);
        CHECK_SAYS(ls_error_message(),
                   "tensor_parallel_heads: %lld features of this rank in %d parts are no "
                   "whole heads of %lld; "
                   "give a number of heads that the size of the axis divides");
    }
    CHECK_STATUS(ls_tensor_parallel(
                     trained, LS_OPTIONS(ls_tensor_parallel_options, .plan = "weight=column")),
                 LS_ERR_STATE);
    CHECK_SAYS(
        ls_error_message(),
        "tensor_parallel: parameter %.100s %s; cut the model before ls_ddp_new and the first step");
    ls_module_free(trained);
    ls_module *plain = ls_linear_new(8, 8, NULL);
    check_refused(plain, NULL,
                  SAYS("tensor_parallel: the class %s carries no plan; give one in the options"));
    ls_module_free(plain);
    CHECK(ls_size(ls_module_param(net, "fc1.weight"), 0) == 8); /* nothing is cut */
    CHECK_OK(ls_tensor_parallel(net, NULL));
    CHECK(ls_size(ls_module_param(net, "fc1.weight"), 0) == 2);
    CHECK(ls_tensor_parallel(net, NULL) == LS_ERR_STATE);
    CHECK_SAYS(ls_error_message(), "tensor_parallel: the model is cut already, along axis %s");
    ls_module_free(net);
    CHECK_OK(ls_mesh_free(mesh));
}

DIST_TEST(models_in_use_and_parts_of_heads_are_refused, 2)
{
    ls_mesh *mesh = NULL;
    CHECK_OK(ls_mesh_new(ls_world(), "tp=2", &mesh));
    ls_module *net = mlp();
    {
        LS_SCOPE;
        CHECK_OK(ls_backward(ls_mean(ls_forward(net, input(LS_SHAPE(4, 16), 0)))));
        CHECK(ls_tensor_parallel(net, NULL) == LS_ERR_STATE);
        CHECK_SAYS(ls_error_message(), "tensor_parallel: parameter %s %s; cut the model before "
                                       "ls_ddp_new and the first step");
        ls_tensor *x = ls_tensor_parallel_heads(input(LS_SHAPE(1, 2, 12), 0), 0, 1, 8);
        CHECK(ls_tensor_status(x) == LS_ERR_INVALID);
        CHECK_SAYS(ls_error_message(),
                   "tensor_parallel_heads: %s features of this rank in %d parts are no "
                   "whole heads of %s; give a number of heads that the size "
                   "of the axis divides");
    }
    ls_module_free(net);
    CHECK_OK(ls_mesh_free(mesh));
}

/* The first half of q would be taken for half of the heads of q, k and v. */
DIST_TEST(a_fused_projection_is_cut_by_its_parts, 2)
{
    ls_mesh *mesh = NULL;
    CHECK_OK(ls_mesh_new(ls_world(), "tp=2", &mesh));
    for (int parts = 1; parts <= 3; parts += 2) {
        LS_SCOPE;
        char plan[32];
        (void)snprintf(plan, sizeof plan, "*=column(%d)", parts);
        ls_module *qkv = ls_linear_new(16, 48, NULL);
        CHECK_OK(ls_tensor_parallel(qkv, LS_OPTIONS(ls_tensor_parallel_options, .plan = plan)));
        ls_tensor *y = ls_forward(qkv, input(LS_SHAPE(1, 2, 16), 0));
        CHECK_STATUS(ls_tensor_status(ls_tensor_parallel_heads(y, 0, 3, 8)),
                     parts == 3 ? LS_OK : LS_ERR_PLACEMENT);
        if (parts == 1) {
            CHECK_SAYS(ls_error_message(), "tensor_parallel_heads: %d parts of a layer that "
                                           "is cut in %d; give it the role column(%d) in the plan");
        }
        CHECK_OK(ls_tensor_status(ls_tensor_parallel_heads(y, 0, 1, 8)));
        ls_module_free(qkv);
    }
    CHECK_OK(ls_mesh_free(mesh));
}

/* One layer of a pair: the other gets the wrong features. */
static void check_half(const char *plan, const char *says, const char *layer)
{
    LS_SCOPE;
    ls_module *net =
        ls_sequential_new((ls_module *[]){ls_linear_new(8, 8, NULL), ls_mlp_new(8, 8, 4)}, 2);
    CHECK_OK(ls_tensor_parallel(net, LS_OPTIONS(ls_tensor_parallel_options, .plan = plan)));
    CHECK_STATUS(ls_tensor_status(ls_forward(net, input(LS_SHAPE(3, 8), 0))), LS_ERR_PLACEMENT);
    CHECK_SAYS(ls_error_message(), says);
    CHECK_CONTAINS(ls_error_message(), layer);
    ls_module_free(net);
}

DIST_TEST(a_plan_with_one_layer_of_a_pair_names_the_other_and_its_role, 2)
{
    const char *divided =
        SAYS("tensor_parallel: layer %s got an input %s whose features are divided along axis %s, "
             "because the layer before it has the role column; add %s=row to the plan "
             "(--tensor-plan), or leave column out before it");
    const char *whole =
        SAYS("tensor_parallel: layer %s has the role row along axis %s, and its input %s is whole; "
             "give the layer before it the role column in the plan (--tensor-plan), or leave "
             "%s=row out");
    ls_mesh *mesh = NULL;
    CHECK_OK(ls_mesh_new(ls_world(), "tp=2", &mesh));
    check_half("1.fc1=column", divided, "layer 1.fc2 got an input [3,4]");
    check_half("1.fc1=column 1.fc2=column", divided, "add 1.fc2=row to the plan");
    check_half("0=column", divided, "add 1.fc1=row to the plan");
    check_half("1.fc2=row", whole, "layer 1.fc2 has the role row");
    CHECK_OK(ls_mesh_free(mesh));
}

/* Half of a model: an optimizer has it, and the first parameters of the plan come before it. */
DIST_TEST(a_plan_cuts_all_or_nothing, 2)
{
    ls_mesh *mesh = NULL;
    CHECK_OK(ls_mesh_new(ls_world(), "tp=2", &mesh));
    ls_module *net = ls_mlp_new(8, 8, 4);
    ls_optim *optim = ls_sgd_new(ls_module_child(net, "fc2"), NULL);
    CHECK(optim != NULL);
    CHECK_STATUS(ls_tensor_parallel(net, NULL), LS_ERR_STATE);
    CHECK_CONTAINS(ls_error_message(), "an optimizer was made over it");
    CHECK(ls_size(ls_module_param(net, "fc1.weight"), 0) == 8);
    ls_optim_free(optim);
    ls_module_free(net);
    CHECK_OK(ls_mesh_free(mesh));
}

/* Their sums would be of different samples, and no other check sees it without a wrapper. */
DIST_TEST(ranks_of_an_axis_must_have_the_same_inputs, 2)
{
    ls_mesh *mesh = NULL;
    CHECK_OK(ls_mesh_new(ls_world(), "tp=2", &mesh));
    ls_module *net = mlp();
    CHECK_OK(ls_tensor_parallel(net, NULL));
    {
        LS_SCOPE;
        CHECK_STATUS(ls_tensor_status(ls_forward(net, input(LS_SHAPE(4, 16), ls_rank()))),
                     LS_ERR_MISMATCH);
        CHECK_SAYS(ls_error_message(),
                   "%s: the inputs of rank %d of axis %s are not those of rank 0, and the ranks of "
                   "this axis work on the same samples; let them read the part of the data that "
                   "their coordinates in the axes of batches say, or ls_place what differs");
        CHECK_CONTAINS(ls_error_message(), "tensor_parallel: the inputs of rank 1 of axis tp");
    }
    ls_module_free(net);
    CHECK_OK(ls_mesh_free(mesh));
}

/* Its parts would be taken for whole: a loss without the other ranks' terms, and no error. */
DIST_TEST(a_model_runs_under_its_own_mesh_only, 2)
{
    ls_mesh *mesh = NULL, *other = NULL;
    CHECK_OK(ls_mesh_new(ls_world(), "tp=2", &mesh));
    CHECK_OK(ls_mesh_new(ls_world(), "dp=1,tp=2", &other));
    ls_module *net = mlp(), *table = ls_embedding_new(8, 4);
    CHECK_OK(ls_tensor_parallel(net, NULL));
    CHECK_OK(
        ls_tensor_parallel(table, LS_OPTIONS(ls_tensor_parallel_options, .plan = "weight=vocab")));
    for (int i = 0; i < 2; i++) {
        LS_SCOPE;
        CHECK_OK(ls_mesh_use(i == 0 ? NULL : other));
        CHECK_STATUS(ls_tensor_status(ls_forward(net, input(LS_SHAPE(4, 16), 0))), LS_ERR_STATE);
        CHECK_SAYS(
            ls_error_message(),
            "tensor_parallel: the model is cut along axis %s of a mesh that is not in force; "
            "put it in force with ls_mesh_use");
        CHECK_STATUS(ls_tensor_status(ls_forward(table, tokens(1, 2, 4, 0))), LS_ERR_STATE);
        ls_tensor *x = input(LS_SHAPE(1, 2, 4), 0);
        CHECK_STATUS(ls_tensor_status(ls_tensor_parallel_input(net, x)), LS_ERR_STATE);
        CHECK_STATUS(ls_tensor_status(ls_tensor_parallel_between(net, x, 1)), LS_ERR_STATE);
        CHECK_STATUS(ls_tensor_status(ls_tensor_parallel_whole(net, x, 1)), LS_ERR_STATE);
        CHECK_STATUS(ls_tensor_status(ls_tensor_parallel_input(NULL, x)), LS_ERR_INVALID);
        CHECK_SAYS(ls_error_message(),
                   "tensor_parallel: the module is NULL; give the one whose forward runs");
    }
    CHECK_OK(ls_mesh_use(mesh));
    {
        LS_SCOPE;
        CHECK_OK(ls_tensor_status(ls_forward(net, input(LS_SHAPE(4, 16), 0))));
    }
    ls_module_free(net);
    ls_module_free(table);
    CHECK_OK(ls_mesh_free(other));
    CHECK_OK(ls_mesh_free(mesh));
}

/* ---- mutants ------------------------------------------------------------------------------ */

/* Each conversion of a model in turn is left out, made twice, or made to the other of replicated
 * and invariant. Every such program must be refused, or train otherwise. */
typedef enum mutation { LEFT_OUT, TWICE, OTHER, MUTATIONS } mutation;

static struct {
    ls__converter *convert;
    int made, at; /* conversions; the one that is changed, -1: none */
    mutation kind;
    bool changed;
} mutant;

static ls_tensor *convert_mutated(ls_tensor *x, const char *axis, ls_placement from,
                                  ls_placement to)
{
    const bool recorded = ls_set_grad_mode(true);
    const ls_placement other = to == LS_REPLICATED && recorded  ? LS_INVARIANT
                               : to == LS_INVARIANT && recorded ? LS_REPLICATED
                                                                : to; /* they are one */
    (void)ls_set_grad_mode(recorded);
    if (mutant.made++ != mutant.at || (mutant.kind == OTHER && other == to)) {
        return mutant.convert(x, axis, from, to);
    }
    mutant.changed = true;
    if (mutant.kind == LEFT_OUT) {
        return x;
    }
    return mutant.kind == OTHER ? mutant.convert(x, axis, from, other)
                                : mutant.convert(mutant.convert(x, axis, from, to), axis, from, to);
}

/* The losses of two steps; false: one of them was refused. */
static bool two_steps(const trial *t, const ls_tensor_parallel_options *how, double *losses)
{
    ls_module *net = prepared(t, how);
    ls_optim *optim = ls_sgd_new(net, LS_OPTIONS(ls_sgd_options, .lr = 0.1));
    bool done = true;
    mutant.made = 0;
    mutant.changed = false;
    for (int s = 0; s < 2 && done; s++) {
        LS_SCOPE;
        ls_step_begin((ls_step_context){.step = (uint64_t)s});
        ls_tensor *loss = t->loss(net, s);
        done = ls_tensor_status(loss) == LS_OK && ls_backward(loss) == LS_OK;
        done = done && ls_item(loss, &losses[s]) == LS_OK && ls_optim_step(optim) == LS_OK;
        ls_optim_zero_grad(optim);
    }
    ls_optim_free(optim);
    ls_module_free(net);
    return done;
}

static bool is_killed(const trial *t, const ls_tensor_parallel_options *how, const double *want)
{
    double got[2];
    return !two_steps(t, how, got) || memcmp(got, want, sizeof got) != 0;
}

/* Returns the number of mutants. */
static int check_mutants_of(const char *name, const trial *t, const ls_tensor_parallel_options *how)
{
    double want[2];
    int count = 0;
    mutant.at = -1;
    CHECK(two_steps(t, how, want));
    const int conversions = mutant.made / 2; /* of the first step */
    for (int i = 0; i < conversions * MUTATIONS; i++) {
        mutant.at = i / MUTATIONS;
        mutant.kind = (mutation)(i % MUTATIONS);
        const bool killed = is_killed(t, how, want);
        /* One that several layers share: each of them makes it when it is left out. */
        const bool changed = mutant.changed && mutant.made <= 2 * conversions;
        count += changed;
        if (changed && !killed) {
            test_fail(__FILE__, __LINE__, "%s: conversion %d, mutation %d: it survives", name,
                      mutant.at, (int)mutant.kind);
        }
    }
    return count;
}

static ls_module *small_gpt(void)
{
    return ls_gpt_new(LS_OPTIONS(ls_gpt_options, .layers = 2, .heads = 4, .dim = 32, .context = 16,
                                 .vocab = 64, .dropout = 0.1));
}

DIST_TEST(every_conversion_of_a_model_matters, 2)
{
    ls_mesh *mesh = NULL;
    const trial gpts = {small_gpt, gpt2_loss}, gpt2s = {gpt2, gpt2_loss}, berts = {bert, bert_loss};
    const trial vits = {vit, vit_loss}, llamas = {llama, gpt2_loss};
    CHECK_OK(ls_mesh_new(ls_world(), "tp=2", &mesh));
    mutant.convert = ls__parallel_use_converter(convert_mutated);
    int count = check_mutants_of("gpt", &gpts, WHOLE);
    count += check_mutants_of("gpt, sequence", &gpts, SEQUENCE);
    count += check_mutants_of("gpt, again", &gpts, AGAIN);
    count += check_mutants_of("gpt2", &gpt2s, WHOLE);
    count += check_mutants_of("llama", &llamas, WHOLE);
    count += check_mutants_of("llama, sequence", &llamas, SEQUENCE);
    count += check_mutants_of("bert", &berts, WHOLE);
    count += check_mutants_of("bert, sequence", &berts, SEQUENCE);
    count += check_mutants_of("vit", &vits, WHOLE);
    count += check_mutants_of("vit, sequence", &vits, SEQUENCE);
    (void)ls__parallel_use_converter(mutant.convert);
    CHECK_OK(ls_mesh_free(mesh));
    CHECK(count >= 40);
    printf("%d mutants\n", count);
}

DIST_TEST(every_conversion_of_shared_key_heads_matters, 4)
{
    ls_mesh *mesh = NULL;
    const trial t = {grouped_new, grouped_loss};
    CHECK_OK(ls_mesh_new(ls_world(), "tp=4", &mesh));
    mutant.convert = ls__parallel_use_converter(convert_mutated);
    (void)check_mutants_of("grouped", &t, WHOLE);
    (void)ls__parallel_use_converter(mutant.convert);
    CHECK_OK(ls_mesh_free(mesh));
}

TEST_MAIN
