/* SPDX-License-Identifier: Apache-2.0 */
/* Formulas of a GPT (gpt.h). */
#include "cost/gpt.h"

#include <string.h>

bool ls__gpt_find(const char *name, ls__gpt *out)
{
    static const struct {
        const char *name;
        ls__gpt sizes;
    } models[] = {{"gpt2", {12, 768, 12, 50257, 1024, 0, 0, false, 0}},
                  {"gpt2-medium", {24, 1024, 16, 50257, 1024, 0, 0, false, 0}},
                  {"gpt2-large", {36, 1280, 20, 50257, 1024, 0, 0, false, 0}},
                  {"gpt2-xl", {48, 1600, 25, 50257, 1024, 0, 0, false, 0}}};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        if (strcmp(name, models[i].name) == 0) {
            *out = models[i].sizes;
            return true;
        }
    }
    return false;
}

/* ---- parameters ------------------------------------------------------------------------------ */

static int64_t mlp_of(const ls__gpt *g)
{
    return g->mlp > 0 ? g->mlp : 4;
}

double ls__gpt_layer_parameters(const ls__gpt *g)
{
    const double h = (double)g->dim;
    return 4.0 * h * h + 8.0 * h + ls__gpt_expert_parameters(g);
}

double ls__gpt_expert_parameters(const ls__gpt *g)
{
    const double h = (double)g->dim, m = (double)mlp_of(g);
    return 2.0 * m * h * h + (m + 1.0) * h;
}

double ls__gpt_around_experts(const ls__gpt *g)
{
    return ls__gpt_layer_parameters(g) - ls__gpt_expert_parameters(g) +
           (double)g->experts * (double)g->dim;
}

double ls__gpt_parameters(const ls__gpt *g)
{
    const double h = (double)g->dim, mixed = g->experts > 0 ? (double)(g->layers / 2) : 0.0;
    return ((double)g->layers - mixed) * ls__gpt_layer_parameters(g) +
           mixed * (ls__gpt_around_experts(g) + (double)g->experts * ls__gpt_expert_parameters(g)) +
           (double)(g->vocab * (g->untied ? 2 : 1) + g->context) * h + 2.0 * h;
}

ls__state_bytes ls__state_bytes_of(double count, int width, int stage, int n)
{
    const double part = count / n;
    return (ls__state_bytes){.parameters = width * (stage > 2 ? part : count),
                             .gradients = width * (stage > 1 ? part : count),
                             .optimizer = (width == 4 ? 8.0 : 12.0) * (stage > 0 ? part : count)};
}

double ls__gpt_layer_share(const ls__gpt_use *u)
{
    const double mlp = ls__gpt_expert_parameters(&u->model);
    return (ls__gpt_layer_parameters(&u->model) - mlp) / ls__gpt_ranks(u, LS__GPT_ATTENTION) +
           mlp / ls__gpt_ranks(u, LS__GPT_MLP);
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

/* Ranks that divide the MLP of a layer, or its experts. */
static int mlp_ranks(const ls__gpt_use *u, bool experts)
{
    return ls__gpt_ranks(u, experts ? LS__GPT_EXPERTS : LS__GPT_MLP);
}

/* Norms and sums of residuals read and write 10 elements of each token's dim, the activation
 * function 2 elements of each of the MLP's width; their backwards read the gradients besides. */
static double pointwise(const ls__gpt_use *u, const ls__processor *d, double between, double within)
{
    const double n = ls__gpt_activation(u) * u->width;
    return ls__processor_bytes(d, n * (between / (u->sequence ? u->tp : 1) + within));
}

double ls__gpt_attention_time(const ls__gpt_use *u, const ls__processor *d)
{
    const ls__gpt *g = &u->model;
    const int64_t heads = divided(g->heads, ls__gpt_ranks(u, LS__GPT_ATTENTION));
    return ls__processor_attention(d, tokens(u) * heads, g->context, g->dim / g->heads);
}

/* Matrices of the MLP, or of the gate and of this rank's experts, to which the rows of all ranks of
 * ep have come evenly. */
static double mlp_time(const ls__gpt_use *u, const ls__processor *d, bool experts)
{
    const ls__gpt *g = &u->model;
    const int64_t n = tokens(u), h = g->dim, wide = divided(mlp_of(g) * h, mlp_ranks(u, experts));
    if (!experts) {
        return ls__processor_matmul(d, n, wide, h) + ls__processor_matmul(d, n, h, wide);
    }
    const int64_t own = divided(g->experts, u->ep > 1 ? u->ep : 1);
    const int64_t rows = divided(n * g->top_k, (int)own);
    return ls__processor_matmul(d, n, g->experts, h) +
           (double)own *
               (ls__processor_matmul(d, rows, wide, h) + ls__processor_matmul(d, rows, h, wide));
}

/* Of a weight [k, n], a matrix multiplication for the result, one for the input's gradient and one
 * for the weight's. Attention has two for the result and four for its gradients. */
ls__stage_times ls__gpt_layer_times(const ls__gpt_use *u, const ls__processor *d, bool experts)
{
    const ls__gpt *g = &u->model;
    const int64_t n = tokens(u), h = g->dim;
    const int64_t own = divided(g->heads, ls__gpt_ranks(u, LS__GPT_ATTENTION)) * (h / g->heads);
    const double weights = ls__processor_matmul(d, n, 3 * own, h) +
                           ls__processor_matmul(d, n, h, own) + mlp_time(u, d, experts);
    const double attention = ls__gpt_attention_time(u, d);
    const double wide =
        (double)mlp_of(g) * (experts ? (double)g->top_k : 1.0) / mlp_ranks(u, experts);
    ls__stage_times t = {.forward = weights + attention + pointwise(u, d, 10.0, 2.0 * wide),
                         .input = weights + 2.0 * attention + pointwise(u, d, 12.0, 3.0 * wide),
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

/* Narayanan et al. 2021, section 5.1, without recomputation: 72 b s l h^2 (1 + s/6h + V/12lh), of
 * which 48 are the MLP's, and those once more for each further expert that a token visits. */
double ls__gpt_flops(const ls__gpt_use *u)
{
    const ls__gpt *g = &u->model;
    const double h = (double)g->dim, l = (double)g->layers, n = (double)(u->batch * g->context);
    const double mixed = g->experts > 0 ? (double)(g->layers / 2) : 0.0;
    const double mlp = 12.0 * (double)mlp_of(g), layer = 24.0 + mlp;
    return n * l * h * h *
               (layer + 12.0 * (double)g->context / h + 6.0 * (double)g->vocab / (l * h)) +
           mlp * n * h * h * mixed * ((double)g->top_k - 1.0);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Of each further expert of a token: its row and its result, and the MLP's width before and after
 * the activation function. */
static double experts_kept(const ls__gpt_use *u)
{
    return (double)(u->model.top_k - 1) * ls__gpt_activation(u) * u->width *
           (2.0 + 2.0 * (double)mlp_of(&u->model) / mlp_ranks(u, true));
}

/* Of q, k, v and the result of attention, and of what is before and after the activation function.
 */
static double layer_kept(const ls__gpt_use *u, bool experts)
{
    const double n = (double)tokens(u), sbh = ls__gpt_activation(u), t = u->sequence ? u->tp : 1;
    const double heads = ls__gpt_ranks(u, LS__GPT_ATTENTION);
    const double within = 1.0 / heads + (double)mlp_of(&u->model) / 2.0 / mlp_ranks(u, experts);
    const double statistics = 4.0 * (double)u->model.heads * n / heads; /* of the rows of scores */
    const double more = experts ? experts_kept(u) : 0.0;
    if (u->width != 4) {
        return sbh * (10.0 / t + 8.0 * within) + more;
    }
    const double between = u->sequence ? 2.0 + 2.0 / t : 4.0;
    return 4.0 * sbh * (between + 4.0 * within) + statistics + 16.0 * n / t + 512.0 + more;
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
