/* SPDX-License-Identifier: Apache-2.0 */
/* Parts: every model cut at every place computes what its forward computes, bit for bit, also when
 * each stage has only its own parameters. */
#include "says.h"
#include "test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/models/alexnet.h>
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

enum { BATCH = 2, TOKENS = 6, VOCAB = 11, STAGES_MAX = 8, PARAMS_MAX = 128, INPUTS_MAX = 3 };

/* ---- models ------------------------------------------------------------------------------- */

static ls_module *make_mlp(void)
{
    return ls_mlp_new(48, 7, 5);
}

static ls_module *make_cnn(void)
{
    return ls_cnn_new(3, 5);
}

static ls_module *make_alexnet(void)
{
    return ls_alexnet_new(5, 0.2);
}

static ls_module *make_resnet(void)
{
    return ls_resnet_new(18, 5, true);
}

static ls_module *make_lstm(void)
{
    return ls_lstm_model_new(
        LS_OPTIONS(ls_lstm_model_options, .dim = 8, .hidden = 8, .vocab = VOCAB, .dropout = 0.2));
}

static ls_module *make_gpt(void)
{
    return ls_gpt_new(LS_OPTIONS(ls_gpt_options, .layers = 4, .heads = 2, .dim = 16,
                                 .context = TOKENS, .vocab = VOCAB, .dropout = 0.2));
}

static ls_module *make_mixtral(void)
{
    return ls_mixtral_new(LS_OPTIONS(ls_mixtral_options, .layers = 4, .heads = 4, .kv_heads = 2,
                                     .dim = 16, .hidden = 8, .experts = 3, .context = TOKENS,
                                     .vocab = VOCAB));
}

static ls_module *make_llama(void)
{
    return ls_llama_new(LS_OPTIONS(ls_llama_options, .layers = 4, .heads = 4, .kv_heads = 2,
                                   .dim = 16, .hidden = 24, .context = TOKENS, .vocab = VOCAB,
                                   .tied = true));
}

static ls_module *make_gpt2(void)
{
    return ls_gpt2_new(LS_OPTIONS(ls_gpt2_options, .layers = 4, .heads = 2, .dim = 16,
                                  .context = TOKENS, .vocab = VOCAB, .dropout = 0.2));
}

static ls_module *make_bert(void)
{
    return ls_bert_new(LS_OPTIONS(ls_bert_options, .layers = 3, .heads = 2, .dim = 16, .wide = 64,
                                  .context = TOKENS, .vocab = VOCAB, .dropout = 0.2));
}

static ls_module *make_vit(void)
{
    return ls_vit_new(LS_OPTIONS(ls_vit_options, .layers = 3, .heads = 2, .dim = 16, .wide = 32,
                                 .image = 8, .patch = 4, .classes = 5, .dropout = 0.2));
}

static ls_module *make_sequence(void)
{
    ls_module *inner[] = {ls_linear_new(9, 9, NULL), ls_relu_new()};
    ls_module *outer[] = {ls_linear_new(48, 9, NULL), ls_sequential_new(inner, 2),
                          ls_linear_new(9, 4, NULL)};
    return ls_sequential_new(outer, 3);
}

/* A U: the first result goes to the last part as well, past the two between. */
typedef struct skipping {
    ls_module base;
    ls_module *down, *low, *up;
} skipping;

static ls_tensor *join(ls_module *m, ls_tensor *const *x)
{
    return ls_forward(((skipping *)m)->up, ls_add(x[0], x[1]));
}

static ls_tensor *skipping_forward(ls_module *m, ls_tensor *x)
{
    skipping *self = (skipping *)m;
    ls_tensor *high = ls_forward(self->down, x);
    return join(m, (ls_tensor *[]){ls_forward(self->low, high), high});
}

static void skipping_parts(ls_module *m, ls_parts *parts)
{
    skipping *self = (skipping *)m;
    const int high = ls_parts_add(parts, &LS_PART(.module = self->down));
    const int low = ls_parts_add(parts, &LS_PART(.module = self->low));
    ls_parts_add(parts, &LS_PART(.name = "join", .run = join, .uses = "up",
                                 .from = (int[]){low, high}, .from_count = 2));
}

static const ls_module_class skipping_class =
    LS_MODULE_CLASS(.name = "skipping", .forward = skipping_forward, .parts = skipping_parts);

static ls_module *make_skipping(void)
{
    skipping *self = ls_module_new(sizeof *self, &skipping_class);
    self->down = ls_module_add(&self->base, "down", ls_linear_new(48, 6, NULL));
    self->low = ls_module_add(&self->base, "low", ls_linear_new(6, 6, NULL));
    self->up = ls_module_add(&self->base, "up", ls_linear_new(6, 4, NULL));
    return &self->base;
}

static ls_tensor *tokens(int which)
{
    int32_t x[BATCH * TOKENS];
    for (int i = 0; i < BATCH * TOKENS; i++) {
        x[i] = which == 0 ? i * 5 % VOCAB : which == 1 ? i % 3 == 0 : i % TOKENS < TOKENS - 1;
    }
    return ls_from_data(x, LS_SHAPE(BATCH, TOKENS), LS_INT32);
}

static ls_tensor *numbers(ls_shape shape, int64_t count)
{
    float *x = malloc((size_t)count * sizeof *x);
    for (int64_t i = 0; i < count; i++) {
        x[i] = (float)(i * 37 % 101) / 50.0F - 1.0F;
    }
    ls_tensor *t = ls_from_data(x, shape, LS_FLOAT32);
    free(x);
    return t;
}

typedef enum input { ROWS, IMAGES8, IMAGES64, WORDS, WORDS3 } input;

static ls_tensor *input_of(input kind, int which)
{
    switch (kind) {
    case ROWS:
        return numbers(LS_SHAPE(BATCH, 48), BATCH * 48);
    case IMAGES8:
        return numbers(LS_SHAPE(BATCH, 3, 8, 8), BATCH * 3 * 64);
    case IMAGES64:
        return numbers(LS_SHAPE(BATCH, 3, 64, 64), BATCH * 3 * 4096);
    default:
        return tokens(which);
    }
}

static const struct model {
    const char *name;
    ls_module *(*make)(void);
    input input;
    int parts;
} models[] = {{"mlp", make_mlp, ROWS, 2},
              {"cnn", make_cnn, IMAGES8, 3},
              {"resnet", make_resnet, IMAGES8, 10},
              {"lstm", make_lstm, WORDS, 3},
              {"gpt", make_gpt, WORDS, 6},
              {"gpt2", make_gpt2, WORDS, 6},
              {"mixtral", make_mixtral, WORDS, 6},
              {"bert", make_bert, WORDS3, 6},
              {"llama", make_llama, WORDS, 6},
              {"vit", make_vit, IMAGES8, 5},
              {"sequence", make_sequence, ROWS, 4},
              {"skipping", make_skipping, ROWS, 3},
              {"alexnet", make_alexnet, IMAGES64, 21}};
enum { MODELS = sizeof models / sizeof models[0] };

/* ---- outcomes ----------------------------------------------------------------------------- */

typedef struct outcome {
    void *output; /* malloc */
    size_t bytes;
    char *name[PARAMS_MAX]; /* malloc */
    void *grad[PARAMS_MAX]; /* malloc */
    int64_t numel[PARAMS_MAX];
    int params;
} outcome;

static void *copy_of(ls_tensor *t, size_t *bytes)
{
    *bytes = (size_t)ls_numel(t) * sizeof(float);
    void *copy = malloc(*bytes);
    memcpy(copy, ls_data(t), *bytes);
    return copy;
}

static void note_grads(outcome *out, ls_module *net)
{
    ls_param params[PARAMS_MAX];
    const int count = ls_module_params(net, params, PARAMS_MAX);
    for (int i = 0; i < count; i++) {
        size_t bytes;
        CHECK(ls_grad(params[i].value) != NULL);
        out->name[out->params] = strdup(params[i].name);
        out->numel[out->params] = ls_numel(params[i].value);
        out->grad[out->params++] = copy_of(ls_grad(params[i].value), &bytes);
    }
}

static void end(outcome *out)
{
    for (int i = 0; i < out->params; i++) {
        free(out->name[i]);
        free(out->grad[i]);
    }
    free(out->output);
}

static void finish(outcome *out, ls_tensor *y)
{
    out->output = copy_of(ls_contiguous(y), &out->bytes);
    CHECK_OK(ls_backward(ls_mean(ls_mul(y, y))));
}

/* The model's own forward and backward. */
static outcome run_whole(const struct model *m)
{
    outcome out = {0};
    ls_module *net = m->make();
    {
        LS_SCOPE;
        ls_tensor *inputs[INPUTS_MAX], *y = NULL;
        for (int i = 0; i < INPUTS_MAX; i++) {
            inputs[i] = input_of(m->input, i);
        }
        ls_step_begin((ls_step_context){.step = 3});
        CHECK_OK(ls_forward_many(net, inputs, m->input == WORDS3 ? 3 : 1, &y, 1));
        finish(&out, y);
    }
    note_grads(&out, net);
    ls_module_free(net);
    return out;
}

/* Runs stages whose first parts are first[stages], each in the module net[s], and passes on what
 * crosses their ends as an executor does: by the number of the part that made it. */
static ls_tensor *run_stages(const struct model *m, ls_module *const *net, const int *first,
                             int stages, int parts)
{
    ls_tensor *made[64] = {NULL}, *y = NULL;
    for (int s = 0; s < stages; s++) {
        ls_stage_edges edges;
        ls_tensor *in[LS_CALL_TENSORS_MAX], *out[LS_CALL_TENSORS_MAX];
        const int count = (s + 1 < stages ? first[s + 1] : parts) - first[s];
        CHECK_OK(ls_module_stage_edges(net[s], first[s], count, &edges));
        for (int i = 0; i < edges.in_count; i++) {
            const int from = edges.in[i];
            in[i] = from >= 0 ? made[from] : input_of(m->input, -1 - from);
        }
        CHECK_OK(
            ls_module_run_stage(net[s], first[s], count, in, edges.in_count, out, edges.out_count));
        for (int i = 0; i < edges.out_count; i++) {
            made[edges.out[i]] = out[i];
            y = out[i];
        }
    }
    return y;
}

/* A tied parameter has a gradient in two stages. Their sum differs from the whole model's by
 * rounding only: there the rows of the embedding are added one by one. */
static void check_tied(const float *a, const float *b, const float *whole, int64_t count)
{
    for (int64_t e = 0; e < count; e++) {
        CHECK(fabsf(a[e] + b[e] - whole[e]) <= 1e-6F * (fabsf(a[e]) + fabsf(b[e])));
    }
}

/* The stages have every parameter of the whole model. */
static void check_equal(const struct model *m, const outcome *whole, const outcome *part)
{
    const float *grad[2] = {NULL};
    CHECK_INT(part->bytes, whole->bytes);
    CHECK(memcmp(part->output, whole->output, whole->bytes) == 0);
    for (int i = 0; i < whole->params; i++) {
        int times = 0;
        for (int k = 0; k < part->params; k++) {
            if (strcmp(part->name[k], whole->name[i]) == 0) {
                CHECK_INT(part->numel[k], whole->numel[i]);
                CHECK(times < 2);
                grad[times++] = part->grad[k];
            }
        }
        if (times == 2) {
            CHECK(m->make == make_gpt2 || m->make == make_bert || m->make == make_llama);
            check_tied(grad[0], grad[1], whole->grad[i], whole->numel[i]);
            continue;
        }
        CHECK_INT(times, 1);
        CHECK(memcmp(grad[0], whole->grad[i], (size_t)whole->numel[i] * sizeof(float)) == 0);
    }
}

/* ---- tests -------------------------------------------------------------------------------- */

static void check_one_model(const struct model *m, const outcome *whole, const int *first,
                            int stages)
{
    outcome out = {0};
    ls_module *net = m->make(), *same[STAGES_MAX];
    for (int s = 0; s < stages; s++) {
        same[s] = net;
    }
    {
        LS_SCOPE;
        ls_step_begin((ls_step_context){.step = 3});
        finish(&out, run_stages(m, same, first, stages, m->parts));
    }
    note_grads(&out, net);
    check_equal(m, whole, &out);
    CHECK_INT(out.params, whole->params);
    ls_module_free(net);
    end(&out);
}

static void check_own_parts(const struct model *m, const outcome *whole, const int *first,
                            int stages)
{
    outcome out = {0};
    ls_module *net[STAGES_MAX] = {NULL};
    for (int s = 0; s < stages; s++) {
        int kept[32], count = 0;
        for (int k = first[s]; k < (s + 1 < stages ? first[s + 1] : m->parts); k++) {
            kept[count++] = k;
        }
        net[s] = m->make();
        CHECK_OK(ls_module_keep_parts(net[s], kept, count));
    }
    {
        LS_SCOPE;
        ls_step_begin((ls_step_context){.step = 3});
        finish(&out, run_stages(m, net, first, stages, m->parts));
    }
    for (int s = stages - 1; s >= 0; s--) {
        note_grads(&out, net[s]);
    }
    check_equal(m, whole, &out);
    for (int s = 0; s < stages; s++) {
        ls_module_free(net[s]);
    }
    end(&out);
}

TEST(every_model_cut_at_every_place_computes_the_same_bits)
{
    CHECK_OK(ls_init(NULL));
    for (int i = 0; i < MODELS; i++) {
        const struct model *m = &models[i];
        outcome whole = run_whole(m);
        ls_module *net = m->make();
        CHECK_INT(ls_module_part_count(net), m->parts);
        ls_module_free(net);
        for (int cut = 1; cut < m->parts; cut += m->input == IMAGES64 ? 6 : 1) {
            check_one_model(m, &whole, (int[]){0, cut}, 2);
            check_own_parts(m, &whole, (int[]){0, cut}, 2);
        }
        if (m->parts >= 3) {
            check_own_parts(m, &whole, (int[]){0, 1, m->parts - 1}, 3);
        }
        end(&whole);
    }
    CHECK_OK(ls_finalize());
}

TEST(a_stage_has_only_its_own_parameters_under_their_names)
{
    CHECK_OK(ls_init(NULL));
    ls_module *net = make_gpt2();
    ls_param params[PARAMS_MAX];
    CHECK_OK(ls_module_keep_parts(net, (int[]){4, 5}, 2)); /* blocks.3 and the head */
    const int count = ls_module_params(net, params, PARAMS_MAX);
    CHECK_INT(count, 12 + 3);
    CHECK(strcmp(params[0].name, "transformer.wte.weight") == 0);
    CHECK(strcmp(params[1].name, "transformer.h.3.ln_1.weight") == 0);
    CHECK(strcmp(params[count - 1].name, "transformer.ln_f.bias") == 0);
    ls_module *blocks = ls_module_child(net, "transformer.h");
    for (int i = 0; i < 3; i++) { /* where the freed ones stood */
        CHECK(ls_module_add(blocks, (char[]){'a' + (char)i, 0}, ls_identity_new()) != NULL);
    }
    for (int i = 0; i < count; i++) {
        CHECK(ls_module_param(net, params[i].name) == params[i].value);
    }
    CHECK(ls_module_child(net, "transformer.h.0") == NULL);
    CHECK_INT(ls_module_part_count(net), 6);
    CHECK(strcmp(ls_module_part_name(net, 0), "embed") == 0);
    CHECK(strcmp(ls_module_part_name(net, 4), "transformer.h.3") == 0);
    {
        LS_SCOPE;
        CHECK_STATUS(ls_tensor_status(ls_forward(net, tokens(0))), LS_ERR_STATE);
        CHECK_CONTAINS(ls_error_message(), "ls_module_keep_parts has freed parts of this gpt2");
        ls_tensor *x = tokens(0), *y = NULL;
        CHECK_STATUS(ls_module_run_stage(net, 3, 3, &x, 1, &y, 1), LS_ERR_STATE);
        CHECK_CONTAINS(ls_error_message(), "part 3 (\"transformer.h.2\") was asked for");
    }
    CHECK_OK(ls_module_keep_parts(net, (int[]){5}, 1)); /* fewer still */
    CHECK_INT(ls_module_params(net, params, PARAMS_MAX), 3);
    ls_module_free(net);
    CHECK_OK(ls_finalize());
}

TEST(edges_name_what_crosses_the_ends)
{
    ls_stage_edges edges;
    int from[LS_PART_FROM_MAX];
    CHECK_OK(ls_init(NULL));
    ls_module *net = make_skipping();
    CHECK_OK(ls_module_stage_edges(net, 1, 1, &edges));
    CHECK_INT(edges.in_count, 1);
    CHECK_INT(edges.in[0], 0);
    CHECK_INT(edges.out_count, 1);
    CHECK_INT(edges.out[0], 1);
    CHECK_OK(ls_module_stage_edges(net, 0, 2, &edges));
    CHECK_INT(edges.in[0], LS_PART_INPUT(0));
    CHECK_INT(edges.out_count, 2);
    CHECK_INT(edges.out[0], 0);
    CHECK_INT(edges.out[1], 1);
    CHECK_INT(ls_module_part_from(net, 2, from), 2);
    CHECK_INT(from[0], 1);
    CHECK_INT(from[1], 0);
    ls_module_free(net);
    net = make_bert(); /* the mask goes to all layers; inputs 0 and 2 to the first stage */
    CHECK_OK(ls_module_stage_edges(net, 0, 1, &edges));
    CHECK_INT(edges.in_count, 2);
    CHECK_INT(edges.in[0], LS_PART_INPUT(0));
    CHECK_INT(edges.in[1], LS_PART_INPUT(2));
    CHECK_OK(ls_module_stage_edges(net, 3, 1, &edges));
    CHECK_INT(edges.in_count, 2);
    CHECK_INT(edges.in[0], 0);
    CHECK_INT(edges.in[1], 2);
    ls_module_free(net);
    CHECK_OK(ls_finalize());
}

TEST(cuts_are_even_or_at_named_parts)
{
    int first = 0, count = 0, firsts[LS_CALL_TENSORS_MAX];
    CHECK_OK(ls_init(NULL));
    ls_module *net = make_resnet(); /* 10 parts */
    for (int stages = 1; stages <= 10; stages++) {
        int next = 0;
        for (int s = 0; s < stages; s++) {
            CHECK_OK(ls_module_cut_evenly(net, stages, s, &first, &count));
            CHECK_INT(first, next);
            CHECK(count == 10 / stages || count == 10 / stages + 1);
            next += count;
        }
        CHECK_INT(next, 10);
    }
    CHECK_INT(ls_module_cut_at(net, "layer2.0, head", firsts), 3);
    CHECK_INT(firsts[1], 3);
    CHECK_INT(firsts[2], 9);
    CHECK_INT(ls_module_cut_at(net, "", firsts), 1);
    CHECK_INT(ls_module_cut_at(net, "layer9", firsts), LS_ERR_INVALID);
    CHECK_INT(ls_module_cut_at(net, "head layer2.0", firsts), LS_ERR_INVALID);
    CHECK_INT(ls_module_cut_at(net, "stem", firsts), LS_ERR_INVALID);
    CHECK_STATUS(ls_module_cut_evenly(net, 11, 0, &first, &count), LS_ERR_INVALID);
    ls_module_free(net);
    CHECK_OK(ls_finalize());
}

/* A list that grows is declared again; a class without parts is one part. */
TEST(parts_follow_the_tree_and_go_through_wrappers)
{
    CHECK_OK(ls_init(NULL));
    ls_module *net = ls_sequential_new(NULL, 0);
    (void)ls_module_add(net, "a", ls_linear_new(3, 3, NULL));
    CHECK_INT(ls_module_part_count(net), 1);
    (void)ls_module_add(net, "b", ls_linear_new(3, 3, NULL));
    CHECK_INT(ls_module_part_count(net), 2);
    ls_module *wrapper = ls_ddp_new(net, ls_world(), NULL);
    CHECK_INT(ls_module_part_count(wrapper), 2);
    CHECK_STATUS(ls_module_keep_parts(wrapper, (int[]){0}, 1), LS_ERR_STATE);
    CHECK_CONTAINS(ls_error_message(), "is wrapped or belongs to a module");
    ls_module_free(wrapper);
    ls_module *layer = ls_linear_new(3, 2, NULL);
    CHECK_INT(ls_module_part_count(layer), 1);
    CHECK_OK(ls_module_keep_parts(layer, (int[]){0}, 1));
    CHECK_INT(ls_module_param_count(layer), 2);
    {
        LS_SCOPE;
        ls_tensor *x = ls_ones(LS_SHAPE(1, 3), LS_FLOAT32), *y = NULL;
        CHECK_STATUS(ls_module_run_stage(layer, 0, 1, &x, 1, &y, 1), LS_OK);
        CHECK_INT(ls_size(y, 1), 2);
    }
    ls_module_free(layer);
    CHECK_OK(ls_finalize());
}

/* ---- parts that are not the steps of forward ------------------------------------------------ */

static enum { RIGHT, UNSCALED, NARROW, SILENT } wrong; /* what part "head" of a crooked does */

static ls_tensor *crooked_body(ls_module *m, ls_tensor *const *x)
{
    return ls_scale(ls_forward(((skipping *)m)->down, x[0]), 1.5);
}

static ls_tensor *crooked_head(ls_module *m, ls_tensor *const *x)
{
    ls_tensor *h = wrong == UNSCALED ? ls_scale(x[0], 1.0 / 1.5) : x[0];
    ls_tensor *y = ls_forward(((skipping *)m)->low, h);
    return wrong == SILENT ? NULL : wrong == NARROW ? ls_slice(y, 1, 0, 3) : y;
}

static ls_tensor *crooked_forward(ls_module *m, ls_tensor *x)
{
    return ls_forward(((skipping *)m)->low, crooked_body(m, &x));
}

static int head_line; /* at which "head" is declared */

static void crooked_parts(ls_module *m, ls_parts *parts)
{
    (void)m;
    ls_parts_add(parts, &LS_PART(.name = "body", .run = crooked_body, .uses = "down"));
    head_line = __LINE__ + 1;
    LS_AT(ls_parts_add(parts, &LS_PART(.name = "head", .run = crooked_head, .uses = "low")));
}

static const ls_module_class crooked_class =
    LS_MODULE_CLASS(.name = "crooked", .forward = crooked_forward, .parts = crooked_parts);

TEST(parts_that_do_not_compute_what_forward_computes_are_found)
{
    CHECK_OK(ls_init(NULL));
    LS_SCOPE;
    for (int i = 0; i < MODELS - 1; i++) { /* but the largest */
        ls_module *net = models[i].make();
        ls_tensor *in[INPUTS_MAX];
        const int count = models[i].input == WORDS3 ? 3 : 1;
        for (int k = 0; k < count; k++) {
            in[k] = input_of(models[i].input, k);
        }
        const uint64_t before = ls_module_hash(net);
        CHECK_OK(ls_module_check_parts(net, in, count));
        CHECK(ls_module_hash(net) == before && net->training); /* running statistics, too */
        ls_module_free(net);
    }
    skipping *self = ls_module_new(sizeof *self, &crooked_class);
    self->down = ls_module_add(&self->base, "down", ls_linear_new(48, 6, NULL));
    self->low = ls_module_add(&self->base, "low", ls_linear_new(6, 6, NULL));
    ls_tensor *x = input_of(ROWS, 0);
    CHECK_OK(ls_module_check_parts(&self->base, &x, 1));
    wrong = UNSCALED;
    CHECK_STATUS(ls_module_check_parts(&self->base, &x, 1), LS_ERR_MISMATCH);
    CHECK_SAYS(ls_error_message(),
               "ls_module_check_parts: forward of the %s and its parts differ in element %lld of "
               "the result %s; a pipeline would train another model: declare the steps of forward "
               "(lockstep/parts.h)");
    wrong = NARROW;
    CHECK_STATUS(ls_module_check_parts(&self->base, &x, 1), LS_ERR_MISMATCH);
    CHECK_SAYS(ls_error_message(),
               "ls_module_check_parts: forward of the %s gives %s %s, its parts %s %s; declare the "
               "steps of forward (lockstep/parts.h)");
    CHECK_CONTAINS(ls_error_message(), "float32 [2,6], its parts float32 [2,3]");
    wrong = SILENT;
    (void)ls_fail(LS_ERR_LIMIT, "an older failure");
    CHECK_STATUS(ls_module_check_parts(&self->base, &x, 1), LS_ERR_INVALID);
    char where[64];
    snprintf(where, sizeof where, "parts.c:%d): it returned NULL", head_line);
    CHECK_CONTAINS(ls_error_message(), "part \"head\" of the crooked (");
    CHECK_CONTAINS(ls_error_message(), where);
    CHECK_SAYS(ls_error_message(), "part \"%s\" of the %s");
    CHECK_SAYS(ls_error_message(), "it returned NULL; give its result, or a poisoned tensor");
    wrong = RIGHT;
    CHECK_STATUS(ls_module_check_parts(&self->base, &x, 0), LS_ERR_INVALID);
    CHECK_OK(ls_module_keep_parts(&self->base, (int[]){1}, 1));
    CHECK_STATUS(ls_module_check_parts(&self->base, &x, 1), LS_ERR_STATE);
    ls_module_free(&self->base);
    CHECK_OK(ls_finalize());
}

/* ---- parts that use what they do not declare ------------------------------------------------ */

typedef struct careless {
    ls_module base;
    ls_module *first, *inner, *second; /* inner: a child of `deep` */
    ls_tensor *bias;
} careless;

static const char *declared; /* by the second part */

static ls_tensor *careless_first(ls_module *m, ls_tensor *const *x)
{
    return ls_forward(((careless *)m)->first, x[0]);
}

static ls_tensor *careless_second(ls_module *m, ls_tensor *const *x)
{
    careless *self = (careless *)m;
    ls_tensor *y = ls_forward(self->second, ls_forward(self->inner, x[0]));
    return self->bias != NULL ? ls_add(y, self->bias) : y;
}

static ls_tensor *careless_forward(ls_module *m, ls_tensor *x)
{
    ls_tensor *y = careless_first(m, &x);
    return careless_second(m, &y);
}

static void careless_parts(ls_module *m, ls_parts *parts)
{
    (void)m;
    ls_parts_add(parts, &LS_PART(.name = "pa", .run = careless_first, .uses = "first"));
    ls_parts_add(parts, &LS_PART(.name = "pb", .run = careless_second, .uses = declared));
}

static const ls_module_class careless_class =
    LS_MODULE_CLASS(.name = "careless", .forward = careless_forward, .parts = careless_parts);

static ls_module *make_careless(const char *uses, bool with_bias)
{
    ls_module *list[] = {ls_linear_new(6, 6, NULL), ls_relu_new()};
    careless *self = ls_module_new(sizeof *self, &careless_class);
    self->first = ls_module_add(&self->base, "first", ls_linear_new(48, 6, NULL));
    self->inner = list[0];
    ls_module_add(&self->base, "deep", ls_sequential_new(list, 2));
    self->second = ls_module_add(&self->base, "second", ls_linear_new(6, 4, NULL));
    if (with_bias) {
        self->bias = ls_module_add_param(&self->base, "bias", ls_ones(LS_SHAPE(4), LS_FLOAT32));
    }
    declared = uses;
    return &self->base;
}

static void check_message(const char *missing)
{
    char want[96];
    snprintf(want, sizeof want, "module \"%s\": ", missing);
    CHECK_SAYS(ls_error_message(),
               "module \"%s\": no part that runs here declares it, and ls_module_keep_parts frees "
               "such modules; add \"%s\" to the uses of the part that calls it");
    CHECK_CONTAINS(ls_error_message(), want);
    CHECK_CONTAINS(ls_error_message(), "part \"pb\" of the careless");
}

static void check_undeclared(const char *uses, const char *missing)
{
    ls_tensor *x = input_of(ROWS, 0), *h = ls_ones(LS_SHAPE(2, 6), LS_FLOAT32), *y = NULL;
    ls_module *net = make_careless(uses, false);
    CHECK_STATUS(ls_module_check_parts(net, &x, 1), LS_ERR_STATE);
    check_message(missing);
    CHECK_OK(ls_tensor_status(ls_forward(net, x))); /* nothing is withheld any more */
    CHECK_OK(ls_module_keep_parts(net, (int[]){1}, 1));
    CHECK_STATUS(ls_module_run_stage(net, 1, 1, &h, 1, &y, 1), LS_ERR_STATE);
    check_message(missing);
    ls_module_free(net);
}

TEST(a_part_that_uses_a_module_it_does_not_declare_is_an_error)
{
    CHECK_OK(ls_init(NULL));
    LS_SCOPE;
    check_undeclared("deep", "second");
    check_undeclared("second", "deep.0");
    ls_tensor *x = input_of(ROWS, 0), *h = ls_ones(LS_SHAPE(2, 6), LS_FLOAT32), *y = NULL;
    ls_module *net = make_careless("deep.0 second", false);
    CHECK_OK(ls_module_check_parts(net, &x, 1));
    CHECK_OK(ls_module_keep_parts(net, (int[]){1}, 1));
    CHECK_OK(ls_module_run_stage(net, 1, 1, &h, 1, &y, 1));
    ls_module_free(net);
    net = make_careless("deep second", true); /* a parameter */
    CHECK_OK(ls_module_keep_parts(net, (int[]){1}, 1));
    CHECK_STATUS(ls_module_run_stage(net, 1, 1, &h, 1, &y, 1), LS_ERR_STALE);
    CHECK_CONTAINS(ls_error_message(), "part \"pb\" of the careless");
    ls_module_free(net);
    CHECK_OK(ls_finalize());
}

TEST_MAIN
