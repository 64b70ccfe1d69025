/* SPDX-License-Identifier: Apache-2.0 */
/* GPT-2, BERT, Mixtral and Llama of models/ against Hugging Face's transformers: the files of
 * tests/reference/transformers hold small models with random weights as it saves them, and what it
 * computes with them (make.py there wrote both). */
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "checkpoint/safetensors.h"
#include "says.h"
#include <lockstep/models/bert.h>
#include <lockstep/models/gpt2.h>
#include <lockstep/models/llama.h>
#include <lockstep/models/mixtral.h>
#include <lockstep/models/rotary_attention.h>

enum { BATCH = 2, TOKENS = 7, VOCAB = 13, DIM = 8, PLANES_MAX = 3 };

#define TOLERANCE 1e-5 /* float32 on both sides, logits of a few units */

/* What a *_logits file holds. */
typedef struct expected {
    int planes; /* of the inputs; 1: they have no such dimension */
    int64_t input_ids[BATCH * PLANES_MAX * TOKENS], labels[BATCH * TOKENS];
    float logits[BATCH * TOKENS * VOCAB], loss, word_grad[VOCAB * DIM];
} expected;

static ls_status visit(const ls_state_visitor *v, const char *name, ls_dtype dtype, ls_shape shape,
                       void *data)
{
    ls_state_tensor t = {.dtype = dtype, .ndim = shape.ndim, .data = data};
    memcpy(t.global, shape.dim, sizeof t.global);
    memcpy(t.local, shape.dim, sizeof t.local);
    return v->tensor(v->self, name, &t);
}

static ls_shape input_shape(int planes)
{
    return planes > 1 ? LS_SHAPE(BATCH, planes, TOKENS) : LS_SHAPE(BATCH, TOKENS);
}

static ls_status show(void *object, const char *prefix, const ls_state_visitor *v)
{
    expected *e = object;
    (void)prefix;
    LS_TRY(visit(v, "input_ids", LS_INT64, input_shape(e->planes), e->input_ids));
    LS_TRY(visit(v, "labels", LS_INT64, LS_SHAPE(BATCH, TOKENS), e->labels));
    LS_TRY(visit(v, "logits", LS_FLOAT32, LS_SHAPE(BATCH, TOKENS, VOCAB), e->logits));
    LS_TRY(visit(v, "loss", LS_FLOAT32, LS_SCALAR, &e->loss));
    return visit(v, "word_grad", LS_FLOAT32, LS_SHAPE(VOCAB, DIM), e->word_grad);
}

static const char *file_of(const char *name)
{
    static char paths[2][64];
    static int next;
    char *path = paths[next++ % 2];
    (void)snprintf(path, sizeof paths[0], "tests/reference/transformers/%s.safetensors", name);
    return test_source_path(path);
}

static void check_near(ls_tensor *t, const float *want, int count)
{
    static float got[BATCH * TOKENS * VOCAB];
    CHECK_OK(ls_tensor_status(t));
    CHECK_INT(ls_numel(t), count);
    CHECK_OK(ls_copy_out(t, got, (size_t)count * sizeof *got));
    for (int i = 0; i < count; i++) {
        CHECK_NEAR(got[i], want[i], TOLERANCE * (1.0 + fabs((double)want[i])));
    }
}

/* The planes of [BATCH,planes,TOKENS] as the inputs they are. */
static ls_tensor *logits_of(ls_module *net, ls_tensor *ids, int planes)
{
    ls_tensor *inputs[PLANES_MAX] = {ids}, *logits = NULL;
    for (int i = 0; i < planes && planes > 1; i++) {
        inputs[i] = ls_reshape(ls_slice(ids, 1, i, i + 1), LS_SHAPE(ls_size(ids, 0), TOKENS));
    }
    CHECK_OK(ls_forward_many(net, inputs, planes, &logits, 1));
    return logits;
}

/* Logits, loss, and the gradient of the word embedding, which is the head of GPT-2 and BERT as
 * well. */
static void check_results(ls_module *net, const char *name, int planes, const char *embedding)
{
    static expected want;
    static ls_param params[64];
    want.planes = planes;
    CHECK_OK(ls_safetensors_load(
        file_of(name),
        &(const ls_checkpoint_item){
            .size = sizeof(ls_checkpoint_item), .prefix = "", .object = &want, .state = show},
        1, NULL));
    {
        LS_SCOPE;
        ls_tensor *ids = ls_from_memory(want.input_ids, input_shape(planes), LS_INT64);
        ls_tensor *labels = ls_from_memory(want.labels, LS_SHAPE(BATCH, TOKENS), LS_INT64);
        ls_tensor *logits = logits_of(net, ids, planes);
        check_near(logits, want.logits, BATCH * TOKENS * VOCAB);
        ls_tensor *loss = ls_bert_loss(logits, labels); /* cross-entropy but for -100 */
        check_near(loss, &want.loss, 1);
        CHECK_OK(ls_backward(loss));
    }
    int count = ls_module_params(net, params, 64), found = 0;
    for (int i = 0; i < count; i++) {
        if (strcmp(params[i].name, embedding) == 0) {
            found++;
            check_near(ls_grad(params[i].value), want.word_grad, VOCAB * DIM);
        }
    }
    CHECK_INT(found, 1);
}

#define GPT2_WORDS "transformer.wte.weight"
#define BERT_WORDS "bert.embeddings.word_embeddings.weight"

/* ---- the reverse: bytes and names are those of the file ------------------------------------- */

typedef struct parsed {
    ls__arena arena;
    void *bytes;
    size_t size;
    ls__safetensors file;
} parsed;

static void parse(const char *path, parsed *p)
{
    const ls__env *env = ls__env_posix();
    ls__arena_init(&p->arena, env, 1 << 16);
    CHECK_INT(env->map_file(env, path, &p->bytes, &p->size), 0);
    CHECK_OK(ls__safetensors_parse(p->bytes, p->size, path, &p->arena, &p->file));
}

static void release(parsed *p)
{
    p->arena.env->unmap_file(p->arena.env, p->bytes, p->size);
    ls__arena_fini(&p->arena);
}

static ls_status save_plain(ls_module *net, const char *path)
{
    return ls_module_save_safetensors(net, path, NULL);
}

static void check_saved(ls_module *net, const char *original,
                        ls_status (*save)(ls_module *net, const char *path))
{
    char path[] = "/tmp/lockstep-transformers-XXXXXX";
    int fd = mkstemp(path);
    CHECK(fd >= 0 && close(fd) == 0);
    CHECK_OK(save(net, path));
    parsed ours, theirs;
    parse(path, &ours);
    parse(original, &theirs);
    CHECK_INT(ours.file.count, theirs.file.count);
    for (int i = 0; i < ours.file.count; i++) {
        const ls__safetensor *a = &ours.file.list[i], *b = &theirs.file.list[i];
        CHECK_STR(a->name, b->name);
        CHECK(a->dtype == b->dtype && a->ndim == b->ndim);
        CHECK(memcmp(a->dim, b->dim, sizeof a->dim) == 0);
        CHECK(memcmp((const char *)ours.bytes + a->begin, (const char *)theirs.bytes + b->begin,
                     a->end - a->begin) == 0);
    }
    release(&ours);
    release(&theirs);
    CHECK(unlink(path) == 0);
}

static ls_module *small_gpt2(void)
{
    return ls_gpt2_new(LS_OPTIONS(ls_gpt2_options, .layers = 2, .heads = 2, .dim = 8,
                                  .context = TOKENS, .vocab = VOCAB));
}

static ls_module *small_bert(void)
{
    return ls_bert_new(LS_OPTIONS(ls_bert_options, .layers = 2, .heads = 2, .dim = 8, .wide = 20,
                                  .context = TOKENS, .vocab = VOCAB));
}

TEST(gpt2_computes_what_transformers_computes_and_saves_what_it_saved)
{
    CHECK_OK(ls_init(NULL));
    ls_module *net = small_gpt2();
    CHECK(net != NULL);
    CHECK_OK(ls_gpt2_load(net, file_of("gpt2")));
    check_results(net, "gpt2_logits", 1, GPT2_WORDS);
    check_saved(net, file_of("gpt2"), save_plain);
    ls_module_free(net);
    CHECK_OK(ls_finalize());
}

TEST(bert_computes_what_transformers_computes_and_saves_what_it_saved)
{
    CHECK_OK(ls_init(NULL));
    ls_module *net = small_bert();
    CHECK(net != NULL);
    CHECK_OK(ls_bert_load(net, file_of("bert")));
    check_results(net, "bert_logits", 2, BERT_WORDS);
    check_saved(net, file_of("bert"), save_plain);
    ls_module_free(net);
    CHECK_OK(ls_finalize());
}

static ls_module *small_mixtral(void)
{
    return ls_mixtral_new(LS_OPTIONS(ls_mixtral_options, .layers = 2, .heads = 2, .kv_heads = 1,
                                     .dim = DIM, .hidden = 12, .experts = 4, .rope_base = 100.0,
                                     .context = TOKENS, .vocab = VOCAB));
}

TEST(mixtral_computes_what_transformers_computes_and_saves_what_it_saved)
{
    CHECK_OK(ls_init(NULL));
    ls_module *net = small_mixtral();
    CHECK(net != NULL);
    CHECK_OK(ls_mixtral_load(net, file_of("mixtral")));
    check_results(net, "mixtral_logits", 1, "model.embed_tokens.weight");
    check_saved(net, file_of("mixtral"), ls_mixtral_save);
    CHECK_OK(ls_module_load_safetensors(net, file_of("mixtral"),
                                        LS_OPTIONS(ls_safetensors_options, .strict = false)));
    ls_module_free(net);
    CHECK(!ls_mixtral_new(LS_OPTIONS(ls_mixtral_options, .layers = 0)));
    CHECK_SAYS(ls_error_message(),
               "mixtral: %d layers, a context of %lld; give at least one of each");
    CHECK(!ls_mixtral_new(LS_OPTIONS(ls_mixtral_options, .layers = 1, .dim = 100)));
    CHECK_CONTAINS(ls_error_message(), "rotary_attention: a head's dimension is 0");
    CHECK_OK(ls_finalize());
}

static ls_module *small_llama(bool tied)
{
    return ls_llama_new(LS_OPTIONS(ls_llama_options, .layers = 2, .heads = 4, .kv_heads = 2,
                                   .dim = DIM, .hidden = 12, .rope_base = 100.0, .eps = 1e-6,
                                   .context = TOKENS, .vocab = VOCAB, .tied = tied));
}

TEST(llama_computes_what_transformers_computes_and_saves_what_it_saved)
{
    CHECK_OK(ls_init(NULL));
    for (int tied = 0; tied < 2; tied++) {
        const char *name = tied ? "llama_tied" : "llama";
        ls_module *net = small_llama(tied);
        CHECK(net != NULL);
        CHECK_OK(ls_llama_load(net, file_of(name)));
        check_results(net, tied ? "llama_tied_logits" : "llama_logits", 1,
                      "model.embed_tokens.weight");
        check_saved(net, file_of(name), save_plain);
        ls_module_free(net);
    }
    ls_module *other = small_llama(true);
    CHECK_OK(ls_llama_load(other, file_of("llama"))); /* its head is not read */
    ls_module_free(other);
    CHECK(!ls_llama_new(LS_OPTIONS(ls_llama_options, .context = 0)));
    CHECK_SAYS(ls_error_message(),
               "llama: %d layers, a context of %lld; give at least one of each");
    CHECK_OK(ls_finalize());
}

TEST(attention_with_rotary_positions_refuses_heads_that_do_not_fit)
{
    CHECK_OK(ls_init(NULL));
    CHECK(!ls_rotary_attention_new(
        LS_OPTIONS(ls_rotary_attention_options, .heads = 6, .kv_heads = 4, .dim = 24)));
    CHECK_SAYS(ls_error_message(),
               "rotary_attention: %d heads, %d kv_heads; there must be one of each, and heads a "
               "multiple of kv_heads");
    CHECK(!ls_rotary_attention_new(LS_OPTIONS(ls_rotary_attention_options, .heads = 4, .dim = 10)));
    CHECK_SAYS(ls_error_message(),
               "rotary_attention: a head's dimension is %lld; give an even head_dim, or a dim of "
               "which heads is a divisor");
    CHECK_OK(ls_finalize());
}

TEST(a_cache_of_a_llama_or_a_mixtral_is_for_the_plain_model)
{
    CHECK_OK(ls_init(NULL));
    ls_module *other = small_gpt2();
    CHECK(!ls_mixtral_cache_new(other, 1));
    CHECK_SAYS(
        ls_error_message(),
        "mixtral: the module's class is %s; a cache is for the plain model of ls_mixtral_new");
    CHECK(!ls_llama_cache_new(other, 1));
    CHECK_SAYS(ls_error_message(),
               "llama: the module's class is %s; a cache is for the plain model of ls_llama_new");
    ls_module_free(other);
    CHECK_OK(ls_finalize());
}

TEST(padding_is_not_seen_and_only_masked_tokens_count)
{
    CHECK_OK(ls_init(NULL));
    ls_module *net = small_bert();
    CHECK_OK(ls_bert_load(net, file_of("bert")));
    check_results(net, "bert_masked_logits", 3, BERT_WORDS);
    ls_module_free(net);
    CHECK_OK(ls_finalize());
}

/* With dropout a training forward differs from one in evaluation, and that from none not at all. */
TEST(dropout_is_for_training)
{
    const int64_t ids[TOKENS] = {3, 1, 4, 1, 5, 9, 2};
    static float results[3][TOKENS * VOCAB];
    CHECK_OK(ls_init(NULL));
    for (int i = 0; i < 3; i++) {
        CHECK_OK(ls_manual_seed(5));
        ls_module *net = ls_gpt2_new(LS_OPTIONS(ls_gpt2_options, .layers = 2, .heads = 2,
                                                .dim = DIM, .context = TOKENS, .vocab = VOCAB,
                                                .dropout = i == 2 ? 0.0 : 0.5));
        ls_module_train(net, i == 0);
        {
            LS_SCOPE;
            ls_tensor *x = ls_from_data(ids, LS_SHAPE(1, TOKENS), LS_INT64);
            CHECK_OK(ls_copy_out(ls_forward(net, x), results[i], sizeof results[i]));
        }
        ls_module_free(net);
    }
    CHECK(memcmp(results[0], results[1], sizeof results[0]) != 0);
    CHECK(memcmp(results[1], results[2], sizeof results[1]) == 0);
    CHECK_OK(ls_finalize());
}

TEST(a_bert_that_is_given_tokens_alone_takes_them_as_the_first_sentence)
{
    int64_t ids[2 * TOKENS] = {3, 1, 4, 1, 5, 9, 2};
    CHECK_OK(ls_init(NULL));
    ls_module *net = small_bert();
    {
        LS_SCOPE;
        float alone[TOKENS * VOCAB], typed[TOKENS * VOCAB];
        ls_tensor *x = ls_from_memory(ids, LS_SHAPE(1, TOKENS), LS_INT64);
        ls_tensor *planes = ls_from_memory(ids, LS_SHAPE(1, 2, TOKENS), LS_INT64);
        CHECK_OK(ls_copy_out(ls_forward(net, x), alone, sizeof alone));
        CHECK_OK(ls_copy_out(logits_of(net, planes, 2), typed, sizeof typed));
        CHECK(memcmp(alone, typed, sizeof alone) == 0);
    }
    ls_module_free(net);
    CHECK_OK(ls_finalize());
}

/* ---- the hub's names ------------------------------------------------------------------------ */

/* A copy of a file in which every `from` of the header is `to` (as long, spaces allowed). */
static const char *renamed(const char *path, const char *from, const char *to)
{
    static char out[64];
    static char bytes[1 << 16];
    (void)snprintf(out, sizeof out, "/tmp/lockstep-renamed-%d", (int)getpid());
    FILE *in = fopen(path, "rb");
    CHECK(in != NULL);
    size_t size = fread(bytes, 1, sizeof bytes, in);
    (void)fclose(in);
    uint64_t length;
    memcpy(&length, bytes, 8);
    for (size_t i = 8; i + strlen(from) <= 8 + length; i++) {
        if (memcmp(bytes + i, from, strlen(from)) == 0) {
            memset(bytes + i, ' ', strlen(from));
            memcpy(bytes + i, to, strlen(to));
        }
    }
    FILE *file = fopen(out, "wb");
    CHECK(file != NULL && fwrite(bytes, 1, size, file) == size && fclose(file) == 0);
    return out;
}

TEST(names_as_on_the_hub_are_found)
{
    CHECK_OK(ls_init(NULL));
    ls_module *gpt2 = small_gpt2(), *bert = small_bert();
    const char *path = renamed(file_of("gpt2"), "\"transformer.", "            \"");
    CHECK_OK(ls_gpt2_load(gpt2, path));
    check_results(gpt2, "gpt2_logits", 1, GPT2_WORDS);
    path = renamed(file_of("bert"), "LayerNorm.weight\"", "LayerNorm.gamma\"");
    CHECK_OK(ls_bert_load(bert, path));
    check_results(bert, "bert_logits", 2, BERT_WORDS);
    CHECK(unlink(path) == 0);
    ls_module_free(gpt2);
    ls_module_free(bert);
    CHECK_OK(ls_finalize());
}

/* ---- shapes and sums ------------------------------------------------------------------------ */

/* Parameters that the model cards of the hub name (124M, 355M, 774M, 1.5B), to the last one. */
TEST(the_published_sizes_have_their_numbers_of_parameters)
{
    static const struct {
        const char *variant;
        long long parameters;
    } want[] = {{"gpt2", 124439808},
                {"gpt2-medium", 354823168},
                {"gpt2-large", 774030080},
                {"gpt2-xl", 1557611200}};
    for (int i = 0; i < 4; i++) {
        ls_gpt2_memory sum =
            ls_gpt2_memory_of(LS_OPTIONS(ls_gpt2_options, .variant = want[i].variant), 1, 1024);
        CHECK_INT(sum.parameters, want[i].parameters);
        CHECK_INT(sum.parameter_bytes, 4 * want[i].parameters);
    }
}

TEST(the_sum_is_that_of_the_model_that_is_made)
{
    CHECK_OK(ls_init(NULL));
    ls_module *net = small_gpt2();
    ls_gpt2_memory sum = ls_gpt2_memory_of(LS_OPTIONS(ls_gpt2_options, .layers = 2, .heads = 2,
                                                      .dim = 8, .context = TOKENS, .vocab = VOCAB),
                                           1, 1);
    CHECK_INT(sum.parameters, ls_module_numel(net));
    ls_module_free(net);
    CHECK(!ls_gpt2_new(LS_OPTIONS(ls_gpt2_options, .variant = "gpt3")));
    CHECK_CONTAINS(ls_error_message(), "\"gpt3\"");
    CHECK(!ls_gpt2_new(LS_OPTIONS(ls_gpt2_options, .dim = 100)));
    CHECK_CONTAINS(ls_error_message(), "100");
    CHECK(!ls_bert_new(LS_OPTIONS(ls_bert_options, .heads = 7)));
    CHECK_CONTAINS(ls_error_message(), "7 heads");
    CHECK_OK(ls_finalize());
}

TEST_MAIN
