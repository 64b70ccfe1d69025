/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a text piece by piece with a cache of keys and values gives the logits of reading it
 * whole, at every position and however it is cut; and what cannot be read is refused in words.
 * The reference is the model itself without a cache, which gpt.c and transformers.c hold against
 * PyTorch. */
#include "test.h"

#include <math.h>
#include <string.h>

#include <lockstep/models/gpt.h>
#include <lockstep/models/gpt2.h>
#include <lockstep/models/llama.h>
#include <lockstep/models/mixtral.h>

enum { BATCH = 2, CONTEXT = 19, VOCAB = 23, LAYERS = 3, HEADS = 2, DIM = 12 };

#define TOLERANCE 1e-5 /* sums in another order, float32; logits are of order 1 */

typedef struct kind {
    ls_module *(*make)(void);
    ls_kv_cache *(*cache)(ls_module *model, int64_t batch);
    ls_status (*read)(ls_module *model, ls_kv_cache *cache, ls_tensor *x, int64_t last,
                      ls_tensor **logits);
} kind;

static ls_module *make_gpt(void)
{
    return ls_gpt_new(LS_OPTIONS(ls_gpt_options, .layers = LAYERS, .heads = HEADS, .dim = DIM,
                                 .context = CONTEXT, .vocab = VOCAB, .dropout = 0.5,
                                 .init_std = 0.5));
}

static ls_module *make_gpt2(void)
{
    return ls_gpt2_new(LS_OPTIONS(ls_gpt2_options, .layers = LAYERS, .heads = HEADS, .dim = DIM,
                                  .context = CONTEXT, .vocab = VOCAB, .dropout = 0.5,
                                  .init_std = 0.3));
}

static ls_module *make_mixtral(void)
{
    return ls_mixtral_new(LS_OPTIONS(ls_mixtral_options, .layers = LAYERS, .heads = HEADS,
                                     .kv_heads = HEADS / 2, .dim = DIM, .hidden = DIM, .experts = 4,
                                     .context = CONTEXT, .vocab = VOCAB, .init_std = 0.3));
}

static ls_module *make_llama(void)
{
    return ls_llama_new(LS_OPTIONS(ls_llama_options, .layers = LAYERS, .heads = HEADS,
                                   .kv_heads = HEADS / 2, .dim = DIM, .hidden = DIM,
                                   .context = CONTEXT, .vocab = VOCAB, .init_std = 0.3));
}

static const kind kinds[] = {{make_gpt, ls_gpt_cache_new, ls_gpt_forward_cached},
                             {make_gpt2, ls_gpt2_cache_new, ls_gpt2_forward_cached},
                             {make_mixtral, ls_mixtral_cache_new, ls_mixtral_forward_cached},
                             {make_llama, ls_llama_cache_new, ls_llama_forward_cached}};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

static ls_module *evaluated(const kind *k)
{
    ls_module *net = k->make();
    CHECK(net != NULL);
    ls_module_train(net, false);
    return net;
}

static void fill(int32_t tokens[BATCH * CONTEXT], int64_t length)
{
    for (int64_t i = 0; i < BATCH * length; i++) {
        tokens[i] = (int32_t)((7 * i + i * i / 3) % VOCAB);
    }
}

/* logits[BATCH,length,VOCAB] of reading all at once. */
static void read_whole(ls_module *net, int32_t *tokens, int64_t length, float *logits)
{
    LS_NO_GRAD;
    LS_SCOPE;
    ls_tensor *y = ls_forward(net, ls_from_memory(tokens, LS_SHAPE(BATCH, length), LS_INT32));
    CHECK_OK(ls_copy_out(ls_cast(y, LS_FLOAT32), logits,
                         (size_t)(BATCH * length * VOCAB) * sizeof *logits));
}

/* Tokens [from, to) of both texts, all their logits compared. */
static void read_piece(const kind *k, ls_module *net, ls_kv_cache *cache, const int32_t *tokens,
                       const float *whole, const int64_t at[3])
{
    const int64_t from = at[0], to = at[1], length = at[2], n = to - from;
    int32_t piece[BATCH * CONTEXT];
    for (int64_t b = 0; b < BATCH; b++) {
        memcpy(piece + b * n, tokens + b * length + from, (size_t)n * sizeof *piece);
    }
    {
        LS_SCOPE;
        static float got[BATCH * CONTEXT * VOCAB];
        ls_tensor *logits = NULL;
        CHECK_OK(
            k->read(net, cache, ls_from_memory(piece, LS_SHAPE(BATCH, n), LS_INT32), n, &logits));
        CHECK_OK(ls_copy_out(logits, got, (size_t)(BATCH * n * VOCAB) * sizeof *got));
        CHECK(!ls_requires_grad(logits));
        for (int64_t i = 0; i < BATCH * n * VOCAB; i++) {
            int64_t b = i / (n * VOCAB), rest = i % (n * VOCAB);
            CHECK_NEAR(got[i], whole[(b * length + from) * VOCAB + rest], TOLERANCE);
        }
    }
    CHECK_INT(ls_kv_cache_length(cache), to);
}

/* A prompt of `first` tokens, then `step` at a time. */
static void read_in_pieces(const kind *k, ls_module *net, int64_t length, int64_t first,
                           int64_t step)
{
    static float whole[BATCH * CONTEXT * VOCAB];
    int32_t tokens[BATCH * CONTEXT];
    fill(tokens, length);
    read_whole(net, tokens, length, whole);
    ls_kv_cache *cache = k->cache(net, BATCH);
    CHECK(cache != NULL);
    for (int64_t from = 0; from < length;) {
        int64_t to = from + (from == 0 ? first : step);
        to = to < length ? to : length;
        read_piece(k, net, cache, tokens, whole, (const int64_t[]){from, to, length});
        from = to;
    }
    ls_kv_cache_free(cache);
}

TEST(a_text_read_with_a_cache_has_the_logits_of_one_read_whole)
{
    CHECK_OK(ls_init(NULL));
    for (int i = 0; i < KINDS; i++) {
        ls_module *net = evaluated(&kinds[i]);
        for (int64_t length = 1; length <= CONTEXT; length += 3) {
            for (int64_t first = 1; first <= length; first += 2) {
                read_in_pieces(&kinds[i], net, length, first, 1);
                read_in_pieces(&kinds[i], net, length, first, 3);
            }
        }
        ls_module_free(net);
    }
    CHECK_OK(ls_finalize());
}

TEST(the_last_logits_alone_are_those_of_all)
{
    CHECK_OK(ls_init(NULL));
    ls_module *net = evaluated(&kinds[1]);
    static float whole[BATCH * CONTEXT * VOCAB], got[BATCH * 2 * VOCAB];
    int32_t tokens[BATCH * CONTEXT];
    fill(tokens, 9);
    read_whole(net, tokens, 9, whole);
    ls_kv_cache *cache = ls_gpt2_cache_new(net, BATCH);
    {
        LS_SCOPE;
        ls_tensor *x = ls_from_memory(tokens, LS_SHAPE(BATCH, 9), LS_INT32), *logits = NULL;
        CHECK_OK(ls_gpt2_forward_cached(net, cache, x, 2, &logits));
        CHECK_OK(ls_copy_out(logits, got, sizeof got));
        for (int i = 0; i < BATCH * 2 * VOCAB; i++) {
            int b = i / (2 * VOCAB), rest = i % (2 * VOCAB);
            CHECK_NEAR(got[i], whole[(b * 9 + 7) * VOCAB + rest], TOLERANCE);
        }
    }
    ls_kv_cache_free(cache);
    ls_module_free(net);
    CHECK_OK(ls_finalize());
}

TEST(a_cache_that_was_cut_reads_on_from_there)
{
    CHECK_OK(ls_init(NULL));
    for (int i = 0; i < KINDS; i++) {
        const kind *k = &kinds[i];
        ls_module *net = evaluated(k);
        static float whole[BATCH * CONTEXT * VOCAB];
        int32_t tokens[BATCH * CONTEXT];
        fill(tokens, CONTEXT);
        read_whole(net, tokens, CONTEXT, whole);
        ls_kv_cache *cache = k->cache(net, BATCH);
        read_piece(k, net, cache, tokens, whole, (const int64_t[]){0, CONTEXT, CONTEXT});
        ls_kv_cache_cut(cache, 5);
        read_piece(k, net, cache, tokens, whole, (const int64_t[]){5, CONTEXT, CONTEXT});
        ls_kv_cache_cut(cache, 0);
        read_piece(k, net, cache, tokens, whole, (const int64_t[]){0, 4, CONTEXT});
        ls_kv_cache_free(cache);
        ls_module_free(net);
    }
    CHECK_OK(ls_finalize());
}

/* Both ways round to 8 bits at the same places but for the order of sums. */
TEST(a_cache_under_autocast_has_the_logits_of_autocast)
{
    CHECK_OK(ls_init(NULL));
    for (int i = 0; i < 2; i++) {
        ls_module *net = evaluated(&kinds[i]);
        static float whole[BATCH * CONTEXT * VOCAB], got[VOCAB];
        int32_t tokens[BATCH * CONTEXT];
        fill(tokens, CONTEXT);
        ls_kv_cache *cache = kinds[i].cache(net, 1);
        {
            LS_AUTOCAST(true);
            read_whole(net, tokens, CONTEXT, whole);
            for (int t = 0; t < CONTEXT; t++) {
                {
                    LS_SCOPE;
                    ls_tensor *x = ls_from_memory(tokens + t, LS_SHAPE(1, 1), LS_INT32), *y = NULL;
                    CHECK_OK(kinds[i].read(net, cache, x, 1, &y));
                    CHECK_OK(ls_copy_out(ls_cast(y, LS_FLOAT32), got, sizeof got));
                }
                for (int v = 0; v < VOCAB; v++) {
                    CHECK_NEAR(got[v], whole[t * VOCAB + v], 0.05);
                }
            }
        }
        ls_kv_cache_free(cache);
        ls_module_free(net);
    }
    CHECK_OK(ls_finalize());
}

TEST(what_does_not_fit_into_a_cache_is_refused_and_changes_nothing)
{
    CHECK_OK(ls_init(NULL));
    ls_module *net = evaluated(&kinds[0]), *other = evaluated(&kinds[1]);
    ls_kv_cache *cache = ls_gpt_cache_new(net, 1);
    int32_t tokens[CONTEXT + 1] = {0}, bad[1] = {VOCAB};
    CHECK(!ls_gpt_cache_new(other, 1));
    CHECK_CONTAINS(ls_error_message(), "the module's class is gpt2");
    CHECK(!ls_gpt_cache_new(net, 0));
    CHECK_CONTAINS(ls_error_message(), "0 texts");
    {
        LS_SCOPE;
        ls_tensor *y = NULL;
        ls_tensor *most = ls_from_memory(tokens, LS_SHAPE(1, CONTEXT - 1), LS_INT32);
        ls_tensor *two = ls_from_memory(tokens, LS_SHAPE(1, 2), LS_INT32);
        ls_tensor *texts = ls_from_memory(tokens, LS_SHAPE(2, 2), LS_INT32);
        CHECK_OK(ls_gpt_forward_cached(net, cache, most, 1, &y));
        CHECK_INT(ls_gpt_forward_cached(net, cache, two, 1, &y), LS_ERR_LIMIT);
        CHECK_CONTAINS(ls_error_message(), "18 tokens are read and 2 more are given");
        CHECK_INT(ls_gpt_forward_cached(net, cache, texts, 1, &y), LS_ERR_INVALID);
        CHECK_INT(ls_gpt_forward_cached(net, cache, two, 3, &y), LS_ERR_INVALID);
        CHECK_CONTAINS(ls_error_message(), "the last 3 logits");
        ls_tensor *outside = ls_from_memory(bad, LS_SHAPE(1, 1), LS_INT32);
        CHECK(ls_gpt_forward_cached(net, cache, outside, 1, &y) < 0);
        CHECK_INT(ls_kv_cache_length(cache), CONTEXT - 1);
        ls_module_train(net, true);
        CHECK_INT(ls_gpt_forward_cached(net, cache, two, 1, &y), LS_ERR_STATE);
        CHECK_CONTAINS(ls_error_message(), "in evaluation");
    }
    ls_kv_cache_free(cache);
    ls_kv_cache_free(NULL);
    ls_module_free(net);
    ls_module_free(other);
    CHECK_OK(ls_finalize());
}

TEST_MAIN
