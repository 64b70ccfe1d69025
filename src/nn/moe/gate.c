/* SPDX-License-Identifier: Apache-2.0 */
/* The gate: scores of all experts for each token, the k that it visits, and their weights.
 *
 *                 compared           weights                       probabilities P
 *     first       softmax(h)         softmax(h) of the chosen      softmax(h)
 *     last        h                  softmax over the chosen h     softmax(h)
 *     sigmoid     sigmoid(h)         sigmoid(h) of the chosen      sigmoid(h) / their sum
 *
 * A bias (DeepSeek-V3) is added to what is compared only. Scores are float32, also under
 * ls_autocast: which expert is the larger one must not depend on eight bits (Switch, section 2.4).
 * The choice is read on the host, which finds out where the rows go (route.c). A recomputed
 * function keeps it: its second run chooses nothing, and asks no other rank. */
#include <math.h>
#include <stdlib.h>

#include <lockstep/ops.h>

#include "base/error.h"
#include "base/options.h"
#include "comm/api/control.h"
#include "nn/moe/moe.h"
#include "tensor/op.h"
#include "tensor/placement.h"
#include "tensor/rng_stream.h"

/* ---- the graph ------------------------------------------------------------------------------ */

static ls_tensor *logits_of(ls__moe *m, ls_tensor *x)
{
    LS_AUTOCAST(false);
    return ls_forward(m->gate, ls_cast(x, LS_FLOAT32));
}

static ls_tensor *scores_of(const ls__moe *m, ls_tensor *logits)
{
    return m->options.gate == LS_MOE_SOFTMAX_FIRST ? ls_softmax(logits, -1)
           : m->options.gate == LS_MOE_SIGMOID     ? ls_sigmoid(logits)
                                                   : logits;
}

/* The scores of the chosen [T,k]; *index [T,k] becomes the experts, again those of kept[T,k] in a
 * second run. */
static ls_tensor *chosen_of(const ls__moe *m, ls_tensor *scores, int64_t *kept, ls_tensor **index)
{
    const int64_t k = m->options.top_k;
    if (ls_recomputing()) {
        ls__draw_log_keep(kept, ls_size(scores, 0) * k);
        *index = ls_from_data(kept, LS_SHAPE(ls_size(scores, 0), k), LS_INT64);
        return ls_gather_dim(scores, 1, *index);
    }
    if (m->bias == NULL) {
        return ls_topk(scores, k, 1, true, index);
    }
    {
        LS_NO_GRAD;
        (void)ls_topk(ls_add(ls_detach(scores), m->bias), k, 1, true, index);
    }
    return ls_gather_dim(scores, 1, *index);
}

/* The sum of sigmoids may be 0 in float32; the constant is DeepSeek's. */
static ls_tensor *weights_of(const ls__moe *m, ls_tensor *chosen)
{
    if (m->options.gate == LS_MOE_SOFTMAX_LAST) {
        return ls_softmax(chosen, -1);
    }
    return m->options.renormalise
               ? ls_div(chosen, ls_add_scalar(ls_sum_dim(chosen, 1, true), 1e-20))
               : chosen;
}

static ls_tensor *probs_of(const ls__moe *m, ls_tensor *logits, ls_tensor *scores)
{
    return m->options.gate == LS_MOE_SOFTMAX_FIRST  ? scores
           : m->options.gate == LS_MOE_SOFTMAX_LAST ? ls_softmax(logits, -1)
                                                    : ls_div(scores, ls_sum_dim(scores, 1, true));
}

/* ---- on the host ---------------------------------------------------------------------------- */

typedef struct host { /* what is read of the choice of T tokens */
    float *scores;    /* [T,k] */
    float *counts;    /* [T]: 0 where masked */
    int64_t tokens;
} host;

static ls_status read_floats(ls_tensor *t, float *to)
{
    ls_tensor *floats = ls_cast(t, LS_FLOAT32);
    LS_TRY(ls_tensor_status(floats));
    return ls_copy_out(floats, to, (size_t)ls_numel(floats) * sizeof *to);
}

static ls_status read(const ls__moe_rules *r, ls_tensor *chosen, ls_tensor *index, ls_tensor *mask,
                      host *h, ls__moe_choice *choice)
{
    LS_NO_GRAD;
    const int64_t pairs = h->tokens * r->top_k;
    if (!ls_recomputing()) {
        LS_TRY(ls_copy_out(index, choice->index, (size_t)pairs * sizeof(int64_t)));
        ls__draw_log_keep(choice->index, pairs);
        LS_TRY(read_floats(chosen, h->scores));
    }
    return mask != NULL ? read_floats(mask, h->counts) : LS_OK;
}

/* Masked tokens choose nothing. */
static void count_choices(const ls__moe_rules *r, const host *h, bool masked, int64_t *index,
                          int64_t *facts)
{
    for (int64_t t = 0; t < h->tokens; t++) {
        const bool counts = !masked || h->counts[t] != 0.0f;
        h->counts[t] = counts ? 1.0f : 0.0f;
        facts[LS__MOE_TOKENS] += counts;
        for (int s = 0; s < r->top_k; s++) {
            int64_t *e = &index[t * r->top_k + s];
            if (!counts) {
                *e = -1;
            } else if (!isfinite(h->scores[t * r->top_k + s])) {
                facts[LS__MOE_ODD] = facts[LS__MOE_ODD] > 0 ? facts[LS__MOE_ODD] : t + 1;
            } else {
                facts[LS__MOE_CHOICES + s * r->experts + *e]++;
            }
        }
    }
}

static ls_status take_choice(const ls__moe_rules *r, ls_tensor *chosen, ls_tensor *index,
                             ls_tensor *mask, ls__moe_choice *choice)
{
    host h = {.tokens = ls_size(chosen, 0)};
    const size_t tokens = (size_t)h.tokens, pairs = tokens * (size_t)r->top_k;
    h.scores = calloc(pairs + tokens + 1, sizeof *h.scores);
    ls_status status = LS_OK;
    if (h.scores == NULL) {
        status = ls__moe_no_memory();
    } else {
        h.counts = h.scores + pairs;
        status = read(r, chosen, index, mask, &h, choice);
    }
    if (status == LS_OK) {
        count_choices(r, &h, mask != NULL, choice->index, choice->facts);
        choice->counts =
            mask != NULL ? ls_from_data(h.counts, LS_SHAPE(h.tokens, 1), LS_FLOAT32) : NULL;
    }
    free(h.scores);
    return status;
}

static ls_status choose(ls__moe *m, ls_tensor *mask, const ls__moe_rules *r, ls__moe_choice *choice)
{
    ls_tensor *index = NULL, *scores = scores_of(m, choice->logits);
    if (choice->index == NULL || choice->facts == NULL) {
        return ls__moe_no_memory();
    }
    ls_tensor *chosen = chosen_of(m, scores, choice->index, &index);
    LS_TRY(ls_tensor_status(chosen));
    choice->weights = weights_of(m, chosen);
    choice->probs = m->options.balance_loss != 0.0 ? probs_of(m, choice->logits, scores) : NULL;
    return take_choice(r, chosen, index, mask, choice);
}

ls_status ls__moe_choose(ls__moe *m, ls_tensor *x, ls_tensor *mask, const ls__moe_rules *r,
                         ls__moe_choice *choice)
{
    *choice = (ls__moe_choice){.logits = logits_of(m, x)};
    LS_TRY(ls_tensor_status(choice->logits));
    choice->index = calloc((size_t)(ls_size(x, 0) * r->top_k) + 1, sizeof *choice->index);
    choice->facts = calloc((size_t)ls__moe_facts(r), sizeof *choice->facts);
    const ls_status status = choose(m, mask, r, choice);
    if (status < 0) {
        free(choice->index);
        free(choice->facts);
        choice->index = choice->facts = NULL;
    }
    return status;
}

/* ---- its losses ----------------------------------------------------------------------------- */

/* Tokens that count: this rank's, or where those of all ranks share the places of an expert their
 * mean, so that the mean of the ranks' losses is that of one process. */
static double tokens_of(const ls__moe_rules *r, const ls__moe_choice *choice, const int64_t *all)
{
    int64_t tokens = 0;
    for (int q = 0; q < r->ranks; q++) {
        tokens += all[q * ls__moe_facts(r) + LS__MOE_TOKENS];
    }
    return r->global ? (double)tokens / r->ranks : (double)choice->facts[LS__MOE_TOKENS];
}

/* The sum over the tokens that count of values [T,..], by their number. */
static ls_tensor *mean_of(ls_tensor *values, const ls__moe_choice *choice, double tokens)
{
    values = choice->counts != NULL ? ls_mul(values, choice->counts) : values;
    return ls_scale(ls_sum_dim(values, 0, false), tokens > 0.0 ? 1.0 / tokens : 0.0);
}

/* Choices of expert e, before drops, among the tokens that share its places. */
static int64_t choices_of(const ls__moe_rules *r, const int64_t *all, int64_t e)
{
    int64_t choices = 0;
    for (int q = 0; q < r->ranks; q++) {
        for (int s = 0; (r->global || q == r->rank) && s < r->top_k; s++) {
            choices += all[q * ls__moe_facts(r) + LS__MOE_CHOICES + s * r->experts + e];
        }
    }
    return choices;
}

/* A mean over parts of sequences of products would not be the product of means, so f is that of the
 * whole sequences; the mean of P over the ranks is the reducer's. */
ls_status ls__moe_count_shares(const ls__moe *m, const ls__moe_rules *r, ls__moe_choice *choice,
                               const int64_t *all, unsigned parts)
{
    const ls__axes_in_force *axes = ls__axes_of(ls__tensors_get("moe"));
    if (m->options.balance_loss == 0.0) {
        return LS_OK;
    }
    choice->counted = calloc((size_t)r->experts, sizeof *choice->counted);
    if (choice->counted == NULL) {
        return ls__moe_no_memory();
    }
    for (int64_t e = 0; e < r->experts; e++) {
        choice->counted[e] = choices_of(r, all, e);
    }
    for (int a = 0; parts >> a != 0 && !ls_recomputing(); a++) {
        if (parts >> a & 1) {
            LS_TRY(ls__control_all_reduce(axes->axis[a].group, choice->counted, r->experts,
                                          LS_INT64, LS_SUM,
                                          LS_OPTIONS(ls_collective_options, .tag = "choices")));
        }
    }
    ls__draw_log_keep(choice->counted, r->experts);
    return LS_OK;
}

/* Shares f_e of the choices: a constant. */
static ls_tensor *shares(const ls__moe_rules *r, const int64_t *counted)
{
    float *share = calloc((size_t)r->experts, sizeof *share);
    double total = 0.0;
    if (share == NULL) {
        (void)ls__moe_no_memory();
        return ls__call_refused();
    }
    for (int64_t e = 0; e < r->experts; e++) {
        total += (double)counted[e];
    }
    for (int64_t e = 0; e < r->experts && total > 0.0; e++) {
        share[e] = (float)((double)counted[e] / total);
    }
    ls_tensor *f = ls_from_data(share, LS_SHAPE(r->experts), LS_FLOAT32);
    free(share);
    return f;
}

/* log sum exp(h): h less its logarithm of the softmax, of any expert. */
static ls_tensor *log_sums(ls_tensor *logits) /* [T,E] -> [T,1] */
{
    return ls_sub(ls_slice(logits, 1, 0, 1), ls_slice(ls_log_softmax(logits, -1), 1, 0, 1));
}

ls_tensor *ls__moe_gate_loss(const ls__moe *m, const ls__moe_rules *r, const ls__moe_choice *choice,
                             const int64_t *all)
{
    ls_tensor *loss = NULL;
    const double tokens = tokens_of(r, choice, all);
    if (choice->probs != NULL) {
        ls_tensor *even =
            ls_sum(ls_mul(mean_of(choice->probs, choice, tokens), shares(r, choice->counted)));
        loss = ls_scale(even, m->options.balance_loss * (double)r->experts);
    }
    if (m->options.z_loss != 0.0) {
        ls_tensor *sums = log_sums(choice->logits);
        ls_tensor *z = ls_sum(mean_of(ls_mul(sums, sums), choice, tokens));
        loss = loss != NULL ? ls_add(loss, ls_scale(z, m->options.z_loss))
                            : ls_scale(z, m->options.z_loss);
    }
    return loss;
}
