/* SPDX-License-Identifier: Apache-2.0 */
/* Formulas of a GPT (gpt.h). */
#include "cost/gpt.h"

#include <string.h>

bool ls__gpt_find(const char *name, ls__gpt *out)
{
    static const struct {
        const char *name;
        int64_t layers, dim, heads;
    } models[] = {{"gpt2", 12, 768, 12},
                  {"gpt2-medium", 24, 1024, 16},
                  {"gpt2-large", 36, 1280, 20},
                  {"gpt2-xl", 48, 1600, 25}};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        if (strcmp(name, models[i].name) == 0) {
            *out = (ls__gpt){.layers = models[i].layers,
                             .dim = models[i].dim,
                             .heads = models[i].heads,
                             .vocab = 50257,
                             .context = 1024};
            return true;
        }
    }
    return false;
}

/* ---- parameters ------------------------------------------------------------------------------ */

/* Of an MLP. */
static double matrices(const ls__gpt *g)
{
    return g->llama ? 3.0 : 2.0;
}

/* Weights of a layer: of queries and of what attention returns, and of keys and values. */
static double query_weights(const ls__gpt *g)
{
    return 2.0 * (double)g->dim * (double)(g->heads * ls__gpt_head_dim(g));
}

static double key_weights(const ls__gpt *g)
{
    return 2.0 * (double)g->dim * (double)(ls__gpt_kv_heads(g) * ls__gpt_head_dim(g));
}

double ls__gpt_expert_parameters(const ls__gpt *g)
{
    const double h = (double)g->dim, m = (double)ls__gpt_mlp(g);
    return matrices(g) * m * h + (g->llama ? 0.0 : m + h);
}

/* Of attention and both norms. */
static double attention_parameters(const ls__gpt *g)
{
    const double vectors = g->llama ? 2.0 : 8.0;
    return query_weights(g) + key_weights(g) + vectors * (double)g->dim;
}

static double gate_parameters(const ls__gpt *g)
{
    return (double)g->experts * (double)g->dim;
}

double ls__gpt_layer_parameters(const ls__gpt *g)
{
    return attention_parameters(g) + ls__gpt_expert_parameters(g);
}

double ls__gpt_position_parameters(const ls__gpt *g)
{
    const int64_t rows = g->positions > 0 ? g->positions : g->context;
    return g->llama ? 0.0 : (double)rows * (double)g->dim;
}

double ls__gpt_last_norm_parameters(const ls__gpt *g)
{
    return (g->llama ? 1.0 : 2.0) * (double)g->dim;
}

double ls__gpt_parameters(const ls__gpt *g)
{
    const double h = (double)g->dim, mixed = (double)ls__gpt_mixed(g, 0, g->layers);
    return (double)g->layers * attention_parameters(g) +
           ((double)g->layers - mixed) * ls__gpt_expert_parameters(g) +
           mixed * (gate_parameters(g) + (double)g->experts * ls__gpt_expert_parameters(g)) +
           (double)g->vocab * (g->untied ? 2.0 : 1.0) * h + ls__gpt_position_parameters(g) +
           ls__gpt_last_norm_parameters(g);
}

ls__state_bytes ls__state_bytes_of(double count, int width, int stage, int n)
{
    const double part = count / n;
    return (ls__state_bytes){.parameters = width * (stage > 2 ? part : count),
                             .gradients = width * (stage > 1 ? part : count),
                             .optimizer = (width == 4 ? 8.0 : 12.0) * (stage > 0 ? part : count)};
}

double ls__gpt_shared_keys(const ls__gpt_use *u)
{
    const bool shares =
        u->model.kv_heads > 0 && u->model.kv_heads < ls__gpt_ranks(u, LS__GPT_ATTENTION);
    return shares ? key_weights(&u->model) : 0.0;
}

double ls__gpt_layer_share(const ls__gpt_use *u, bool experts)
{
    const ls__gpt *g = &u->model;
    const double shared = ls__gpt_shared_keys(u);
    const double around = attention_parameters(g) - shared + (experts ? gate_parameters(g) : 0.0);
    const double mlp = ls__gpt_expert_parameters(g) / ls__gpt_ranks(u, LS__GPT_MLP);
    return around / ls__gpt_ranks(u, LS__GPT_ATTENTION) + shared + (experts ? 0.0 : mlp);
}

double ls__gpt_table_share(const ls__gpt_use *u, int part)
{
    return (double)u->model.vocab * (double)u->model.dim / ls__gpt_ranks(u, part);
}

/* ---- computation ----------------------------------------------------------------------------- */

static int64_t divided(int64_t size, int ranks)
{
    return (size + ranks - 1) / ranks;
}

static int64_t tokens(const ls__gpt_use *u)
{
    return u->batch * u->model.context / (u->cp > 1 ? u->cp : 1);
}

double ls__gpt_activation(const ls__gpt_use *u)
{
    return (double)tokens(u) * (double)u->model.dim;
}

/* Heads of keys on a rank, of which one at least. */
static double own_keys(const ls__gpt_use *u)
{
    const double own = (double)ls__gpt_kv_heads(&u->model) / ls__gpt_ranks(u, LS__GPT_ATTENTION);
    return u->model.kv_heads > 0 && own < 1.0 ? 1.0 : own;
}

double ls__gpt_keys(const ls__gpt_use *u)
{
    return (double)(tokens(u) * ls__gpt_head_dim(&u->model)) * own_keys(u);
}

/* Ranks that divide the MLP of a layer, or its experts. */
static int mlp_ranks(const ls__gpt_use *u, bool experts)
{
    return ls__gpt_ranks(u, experts ? LS__GPT_EXPERTS : LS__GPT_MLP);
}

/* Of each token on a rank, in dim: what attention reads and returns, queries and result of all its
 * heads, keys and values of fewer. */
static double heads_width(const ls__gpt_use *u)
{
    const ls__gpt *g = &u->model;
    const double queries = (double)g->heads / ls__gpt_ranks(u, LS__GPT_ATTENTION);
    return 2.0 * (queries + own_keys(u)) * (double)ls__gpt_head_dim(g) / (double)g->dim;
}

/* The width of an MLP, or of the experts that a token visits. */
static double mlp_width(const ls__gpt_use *u, bool experts)
{
    const ls__gpt *g = &u->model;
    return (double)ls__gpt_mlp(g) / (double)g->dim * (experts ? (double)g->top_k : 1.0) /
           mlp_ranks(u, experts);
}

/* Norms and sums of residuals read and write 10 elements of each token's dim, the activation
 * function 2 elements of each of the MLP's width; their backwards read the gradients besides. A
 * gate is an activation function and a product; rotary positions are read and written. */
static double pointwise(const ls__gpt_use *u, const ls__processor *d, double between, double within)
{
    const double n = ls__gpt_activation(u) * u->width;
    return ls__processor_bytes(d, n * (between / (u->sequence ? u->tp : 1) + within));
}

static int ring_of(const ls__gpt_use *u)
{
    return u->cp > 1 ? u->cp : 1;
}

/* In a ring each step computes as many scores as those of a rank's queries and its own keys: of
 * other ranks' keys one half is masked (placement/ring_attention.c). */
double ls__gpt_attention_time(const ls__gpt_use *u, const ls__processor *d)
{
    const ls__gpt *g = &u->model;
    const int64_t heads = divided(g->heads, ls__gpt_ranks(u, LS__GPT_ATTENTION));
    const int64_t keys = divided(g->context, ring_of(u));
    return ring_of(u) * ls__processor_attention(d, tokens(u) * heads, keys, ls__gpt_head_dim(g));
}

/* What ring attention reads and writes beside its products, on the last rank, which has most. A
 * step copies the queries, and after the first one the half of the keys and values that they see,
 * and adds its result to that of the steps before. Keys and values are packed before. In backward
 * the halves of their gradients get zeros around them, and are added up. */
static ls__stage_times ring_times(const ls__gpt_use *u, const ls__processor *d)
{
    const double head = (double)(tokens(u) * ls__gpt_head_dim(&u->model)), c = ring_of(u);
    const double queries = head * (double)u->model.heads / ls__gpt_ranks(u, LS__GPT_ATTENTION);
    const double keys = head * own_keys(u), more = c - 1.0;
    const double there = (2.0 * c + 7.0 * more + 3.0) * queries + (4.0 + 2.0 * more) * keys;
    const double back =
        (2.0 * c + 3.0 * more + 4.0) * queries + (16.0 + 7.0 * more + 6.0 * (more - 1.0)) * keys;
    return (ls__stage_times){.forward = ls__processor_bytes(d, u->width * there),
                             .input = ls__processor_bytes(d, u->width * back)};
}

/* Of one expert, or of the MLP, for so many rows. */
static double matrices_time(const ls__gpt_use *u, const ls__processor *d, int64_t rows,
                            int64_t wide)
{
    const double up = ls__processor_matmul(d, rows, wide, u->model.dim);
    return (matrices(&u->model) - 1.0) * up + ls__processor_matmul(d, rows, u->model.dim, wide);
}

/* Matrices of the MLP, or of the gate and of this rank's experts, to which the rows of all ranks of
 * ep have come evenly. */
static double mlp_time(const ls__gpt_use *u, const ls__processor *d, bool experts)
{
    const ls__gpt *g = &u->model;
    const int64_t n = tokens(u), wide = divided(ls__gpt_mlp(g), mlp_ranks(u, experts));
    if (!experts) {
        return matrices_time(u, d, n, wide);
    }
    const int64_t own = divided(g->experts, u->ep > 1 ? u->ep : 1);
    const int64_t rows = divided(n * g->top_k, (int)own);
    return ls__processor_matmul(d, n, g->experts, g->dim) +
           (double)own * matrices_time(u, d, rows, wide);
}

/* Queries, keys and values, in a GPT by one matrix, and what attention returns. */
static double projections_time(const ls__gpt_use *u, const ls__processor *d)
{
    const ls__gpt *g = &u->model;
    const int ranks = ls__gpt_ranks(u, LS__GPT_ATTENTION);
    const int64_t n = tokens(u), h = g->dim, head = ls__gpt_head_dim(g);
    const int64_t own = divided(g->heads, ranks) * head;
    const int64_t keys = divided(ls__gpt_kv_heads(g), ranks) * head;
    const double in =
        g->llama ? ls__processor_matmul(d, n, own, h) + 2.0 * ls__processor_matmul(d, n, keys, h)
                 : ls__processor_matmul(d, n, 3 * own, h);
    return in + ls__processor_matmul(d, n, h, own);
}

/* Of a weight [k, n], a matrix multiplication for the result, one for the input's gradient and one
 * for the weight's. Attention has two for the result and four for its gradients. */
ls__stage_times ls__gpt_layer_times(const ls__gpt_use *u, const ls__processor *d, bool experts)
{
    const double weights = projections_time(u, d) + mlp_time(u, d, experts);
    const double attention = ls__gpt_attention_time(u, d), wide = mlp_width(u, experts);
    const double turned = u->model.llama ? heads_width(u) : 0.0;
    const double there = (u->model.llama ? 5.0 : 2.0) * wide + turned;
    const double back = (u->model.llama ? 8.0 : 3.0) * wide + turned;
    const ls__stage_times ring = u->cp > 1 ? ring_times(u, d) : (ls__stage_times){0};
    ls__stage_times t = {
        .forward = weights + attention + pointwise(u, d, 10.0, there) + ring.forward,
        .input = weights + 2.0 * attention + pointwise(u, d, 12.0, back) + ring.input,
        .weight = weights};
    t.input += u->recompute ? t.forward : 0.0;
    t.backward = t.input + t.weight;
    return t;
}

ls__stage_times ls__gpt_embedding_times(const ls__gpt_use *u, const ls__processor *d)
{
    const double bytes = ls__gpt_activation(u) * u->width;
    ls__stage_times t = {.forward = ls__processor_bytes(d, 2.0 * bytes),
                         .weight = ls__processor_bytes(d, 3.0 * bytes)};
    t.backward = t.weight;
    return t;
}

/* The loss reads and writes the logits some three times. */
ls__stage_times ls__gpt_head_times(const ls__gpt_use *u, const ls__processor *d)
{
    const int64_t n = tokens(u);
    const int64_t vocab = divided(u->model.vocab, ls__gpt_ranks(u, LS__GPT_HEAD));
    const double matmul = ls__processor_matmul(d, n, vocab, u->model.dim);
    const double loss = ls__processor_bytes(d, 3.0 * u->width * (double)n * (double)vocab);
    ls__stage_times t = {.forward = matmul + loss, .input = matmul, .weight = matmul};
    t.backward = t.input + t.weight;
    return t;
}

/* Two for each multiplication and its sum, in forward once and in backward twice: of weights 6 a
 * token, of attention 12 s for each element of its heads. Of a GPT that is the formula of
 * Narayanan et al. 2021, section 5.1, without recomputation: 72 b s l h^2 (1 + s/6h + V/12lh). */
double ls__gpt_flops(const ls__gpt_use *u)
{
    const ls__gpt *g = &u->model;
    const double h = (double)g->dim, l = (double)g->layers, n = (double)(u->batch * g->context);
    const double mixed = (double)ls__gpt_mixed(g, 0, g->layers);
    const double mlp = matrices(g) * (double)ls__gpt_mlp(g) * h;
    const double scores = 2.0 * (double)g->context * (double)(g->heads * ls__gpt_head_dim(g));
    return 6.0 * n *
           (l * (query_weights(g) + key_weights(g) + mlp + scores) + (double)g->vocab * h +
            mlp * mixed * ((double)g->top_k - 1.0));
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Of a width of the MLP: what is before and after the activation function, and of a gated one the
 * product and its other factor. */
static double mlp_kept(const ls__gpt *g)
{
    return g->llama ? 4.0 : 2.0;
}

/* Of each expert of a token its row and its result, and of each further one its MLP. */
static double experts_kept(const ls__gpt_use *u)
{
    const ls__gpt *g = &u->model;
    const double wide = (double)ls__gpt_mlp(g) / (double)g->dim / mlp_ranks(u, true);
    const double further = (double)(g->top_k - 1) * mlp_kept(g) * wide;
    return ls__gpt_activation(u) * u->width * (2.0 * (double)g->top_k + further);
}

/* Of q, k, v and the result of attention, and of the MLP. */
static double layer_kept(const ls__gpt_use *u, bool experts)
{
    const ls__gpt *g = &u->model;
    const double n = (double)tokens(u), sbh = ls__gpt_activation(u), t = u->sequence ? u->tp : 1;
    const double wide = (double)ls__gpt_mlp(g) / (double)g->dim / mlp_ranks(u, experts);
    const double within = heads_width(u) + mlp_kept(g) * wide;
    const double statistics =
        4.0 * (double)g->heads * n / ls__gpt_ranks(u, LS__GPT_ATTENTION); /* of rows of scores */
    const double more = experts ? experts_kept(u) : 0.0;
    if (u->width != 4) {
        const double masks = g->llama ? 0.0 : 2.0; /* of dropout */
        return sbh * ((8.0 + masks) / t + 2.0 * within) + more;
    }
    const double between = u->sequence ? 2.0 + 2.0 / t : 4.0;
    const double norms = g->llama ? 8.0 : 16.0;
    return 4.0 * sbh * (between + within) + statistics + norms * n / t + 512.0 + more;
}

double ls__gpt_layer_kept(const ls__gpt_use *u, bool experts)
{
    return u->recompute ? ls__gpt_activation(u) * u->width / (u->sequence ? u->tp : 1)
                        : layer_kept(u, experts);
}

double ls__gpt_layer_again(const ls__gpt_use *u, bool experts)
{
    return u->recompute ? layer_kept(u, experts) : 0.0;
}

double ls__gpt_head_kept(const ls__gpt_use *u)
{
    return (double)tokens(u) * (double)u->model.vocab / ls__gpt_ranks(u, LS__GPT_HEAD) * 4.0;
}
