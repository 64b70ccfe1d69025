/* SPDX-License-Identifier: Apache-2.0 */
/* Rows to the experts and back.
 *
 *     x [T,C] --select--> rows by (expert, token) --exchange--> by (rank, expert, token)
 *       --order--> by (expert, rank, token) --experts--> --back, exchange--> as they left
 *       --select--> [T,k,C] --weighted sum over k--> y [T,C]
 *
 * Every step is a selection or an exchange of whole rows, whose gradient is another one; sums are
 * taken over the k choices of a token in their order, so bits do not depend on the ranks. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/ops.h>

#include "base/error.h"
#include "base/options.h"
#include "comm/api/control.h"
#include "dist/agree.h"
#include "nn/moe/moe.h"
#include "tensor/op.h"
#include "tensor/placement.h"
#include "tensor/rng_stream.h"

/* ---- what the ranks tell each other --------------------------------------------------------- */

static const ls__axis_in_force *axis_of(const ls__moe *m)
{
    ls__axes_in_force *axes;
    const int a = m->ranks > 1 ? ls__axis_find(m->axis, "moe", &axes) : -1;
    return a >= 0 ? &axes->axis[a] : NULL;
}

static void list_settings(ls__facts *to, const void *arg)
{
    const ls__moe *m = arg;
    const ls_moe_options *o = &m->options;
    const struct {
        const char *name;
        double value;
    } settings[] = {{"experts", (double)o->experts},
                    {"top_k", o->top_k},
                    {"capacity", o->capacity},
                    {"gate", o->gate},
                    {"renormalise", o->renormalise},
                    {"tokens", o->tokens},
                    {"padded", o->padded},
                    {"gated", o->gated},
                    {"balance_loss", o->balance_loss},
                    {"z_loss", o->z_loss},
                    {"balance_bias", o->balance_bias},
                    {"activation", o->activation},
                    {"dim", (double)ls_size(m->w1, 2)},
                    {"hidden", (double)ls_size(m->w1, 1)}};
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        ls__facts_number(to, settings[i].name, settings[i].value,
                         "give ls_moe_new the same on every rank of the axis");
    }
}

/* Before the first exchange, which ranks with other settings would not complete. */
static ls_status compare_settings(ls__moe *m, ls_group *group)
{
    ls__agree_peers peers = {.group = group};
    if (m->compared) {
        return LS_OK;
    }
    (void)snprintf(peers.who, sizeof peers.who, "moe along axis %s", m->axis);
    m->compared = true;
    return ls__agree(&peers, list_settings, m);
}

static ls_status check_finite(const ls__moe *m, const ls__moe_rules *r, const int64_t *all)
{
    for (int q = 0; q < r->ranks; q++) {
        const int64_t odd = all[q * ls__moe_facts(r) + LS__MOE_ODD];
        if (odd > 0) {
            return ls__fail(LS_ERR_INVALID,
                            "moe: the gate's score of token %lld on rank %d of axis %s is not "
                            "finite; look for NaN in the input, or lower the learning rate",
                            (long long)odd - 1, q, m->axis);
        }
    }
    return LS_OK;
}

ls_status ls__moe_gather(ls__moe *m, const ls__moe_rules *r, const int64_t *facts, int64_t *all)
{
    if (r->ranks == 1) {
        memcpy(all, facts, (size_t)ls__moe_facts(r) * sizeof *all);
        return check_finite(m, r, all);
    }
    const ls__axis_in_force *axis = axis_of(m);
    if (axis == NULL) {
        return ls__self.status;
    }
    if (!ls_recomputing()) {
        LS_TRY(compare_settings(m, axis->group));
        LS_TRY(ls__control_all_gather(axis->group, facts, all, ls__moe_facts(r), LS_INT64,
                                      LS_OPTIONS(ls_collective_options, .tag = "choices")));
    }
    ls__draw_log_keep(all, r->ranks * ls__moe_facts(r));
    return check_finite(m, r, all);
}

/* ---- rows ----------------------------------------------------------------------------------- */

/* `to`, made of `from`, which no gradient needs and which is freed before backward. */
static ls_tensor *instead_of(ls_tensor *from, ls_tensor *to)
{
    if (from != to) {
        ls_free(from);
    }
    return to;
}

/* rows[index[i]]; their number stands for a row of zeros. */
static ls_tensor *picked(ls_tensor *rows, const int64_t *index, int64_t count)
{
    const int64_t n = ls_size(rows, 0);
    bool zeros = false;
    for (int64_t i = 0; i < count; i++) {
        zeros |= index[i] == n;
    }
    if (zeros) {
        ls_tensor *zero = ls_zeros(LS_SHAPE(1, ls_size(rows, 1)), ls_dtype_of(rows));
        rows = ls_concat((ls_tensor *[]){rows, zero}, 2, 0);
    }
    return ls_index_select(rows, 0, ls_from_data(index, LS_SHAPE(count), LS_INT64));
}

/* ---- experts -------------------------------------------------------------------------------- */

/* Expert e's part of a parameter [E,..], as it is for the rows that came to it: whatever the other
 * ranks have. */
static ls_tensor *of_expert(const ls__moe *m, ls_tensor *param, int64_t e)
{
    if (param == NULL) {
        return NULL;
    }
    ls_shape shape = ls_shape_of(param);
    shape.ndim--;
    memmove(shape.dim, shape.dim + 1, (size_t)shape.ndim * sizeof shape.dim[0]);
    ls_tensor *one = ls_reshape(ls_slice(param, 0, e, e + 1), shape);
    ls__axes_in_force *axes;
    const int a = m->ranks > 1 ? ls__axis_find(m->axis, "moe", &axes) : -1;
    ls__record *record = a >= 0 ? ls__record_sound(ls__tensors_get("moe"), one, "moe") : NULL;
    if (record != NULL) {
        record->place = ls__place_with(record->place, a, LS__PLACED_VARYING);
    }
    return one;
}

static ls_tensor *run_expert(const ls__moe *m, ls_tensor *rows, int64_t e)
{
    ls_tensor *w1 = of_expert(m, m->w1, e), *w2 = of_expert(m, m->w2, e);
    if (m->options.gated) {
        ls_tensor *gate = ls_linear_activation(rows, w1, NULL, LS_ACTIVATION_SILU);
        return ls_linear(ls_mul(gate, ls_linear(rows, of_expert(m, m->w3, e), NULL)), w2, NULL);
    }
    ls_tensor *wide = ls_linear_activation(rows, w1, of_expert(m, m->b1, e), m->options.activation);
    return ls_linear(wide, w2, of_expert(m, m->b2, e));
}

/* All experts of this rank, those without rows as well: their gradients are zeros, as those of
 * their copies may not be. Rows of one expert come after those of the one before. */
static ls_tensor *run_experts(const ls__moe *m, ls_tensor *rows, const ls__moe_route *route)
{
    const int64_t own = m->options.experts / m->ranks;
    ls_tensor **part = calloc((size_t)own, sizeof(ls_tensor *)), *joined = NULL;
    int64_t at = 0;
    for (int64_t e = 0; part != NULL && e < own; e++) {
        part[e] = run_expert(m, ls_slice(rows, 0, at, at + route->count[e]), e);
        at += route->count[e];
    }
    if (part == NULL) {
        (void)ls__moe_no_memory();
        return ls__call_refused();
    }
    joined = own > 1 ? ls_concat(part, (int)own, 0) : part[0];
    for (int64_t e = 0; e < own && own > 1; e++) {
        ls_free(part[e]);
    }
    free(part);
    return joined;
}

static ls_tensor *sent(const ls__moe *m, ls_tensor *rows, const int64_t *to, const int64_t *from)
{
    return m->ranks > 1 ? ls_redistribute_rows(rows, m->axis, to, from) : rows;
}

/* Kept until backward are the rows that the experts read, and those that the weights scale. */
ls_tensor *ls__moe_experts(ls__moe *m, ls_tensor *x, ls_tensor *weights, const ls__moe_route *route)
{
    const int64_t k = m->options.top_k;
    ls_tensor *rows = picked(x, route->source, route->rows);
    rows = instead_of(rows, sent(m, rows, route->send, route->receive));
    if (m->ranks > 1) {
        rows = instead_of(rows, picked(rows, route->order, route->arrive));
    }
    rows = instead_of(rows, run_experts(m, rows, route));
    if (m->ranks > 1) {
        rows = instead_of(rows, picked(rows, route->back, route->arrive));
    }
    rows = instead_of(rows, sent(m, rows, route->receive, route->send));
    rows = instead_of(rows, picked(rows, route->place, route->tokens * k));
    ls_tensor *chosen = ls_reshape(rows, LS_SHAPE(route->tokens, k, ls_size(x, 1)));
    ls_tensor *scaled = ls_mul(chosen, ls_reshape(weights, LS_SHAPE(route->tokens, k, 1)));
    return instead_of(scaled, ls_sum_dim(scaled, 1, false));
}
