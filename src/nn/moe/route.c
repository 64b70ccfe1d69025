/* SPDX-License-Identifier: Apache-2.0 */
/* Which choices are kept, and where their rows lie.
 *
 * The choices of slot 0, all tokens' firsts, come before those of slot 1, and within a slot earlier
 * tokens before later ones, as in GShard (Lepikhin et al. 2020, algorithm 1). So what a rank keeps
 * of (slot, expert) is a prefix of its tokens, whose length follows from everybody's numbers of
 * choices alone:
 *
 *     places left after all earlier slots, and with global capacity after this slot of earlier
 *     ranks, but at most the rank's own choices
 *
 * Rows leave in the order (expert, token), so those of one rank's experts lie together. They arrive
 * as (rank, expert, token) and are computed as (expert, rank, token):
 *
 *     sent by rank 0   e0: t1 t4   e1: t0        arrived at the rank of e0, e1
 *     sent by rank 1   e0: u2      e1: u0 u2     t1 t4 t0 | u2 u0 u2
 *                                                order: t1 t4 u2 | t0 u0 u2
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/error.h"
#include "nn/moe/moe.h"

ls_status ls__moe_no_memory(void)
{
    return ls__fail(LS_ERR_MEMORY, "moe: out of memory; make batches smaller");
}

/* k T factor is often a whole number that floating point misses by a little. No more than T
 * tokens choose an expert, whatever the factor. */
int64_t ls__moe_capacity(const ls__moe_rules *r, int64_t tokens)
{
    const double places = (double)r->top_k * (double)tokens * r->capacity / (double)r->experts;
    return places < (double)tokens ? (int64_t)ceil(places * (1.0 - 1e-12)) : tokens;
}

/* ---- what is kept --------------------------------------------------------------------------- */

static const int64_t *choices_of(const ls__moe_rules *r, const int64_t *facts, int rank, int slot)
{
    return facts + rank * ls__moe_facts(r) + LS__MOE_CHOICES + slot * r->experts;
}

static int64_t tokens_of(const ls__moe_rules *r, const int64_t *facts, int rank)
{
    return facts[rank * ls__moe_facts(r) + LS__MOE_TOKENS];
}

/* Of expert e, for the tokens that share its places with those of `rank`. */
static int64_t places_of(const ls__moe_rules *r, const int64_t *facts, int rank)
{
    int64_t tokens = 0;
    for (int q = 0; q < r->ranks; q++) {
        tokens += r->global || q == rank ? tokens_of(r, facts, q) : 0;
    }
    return r->capacity > 0.0 ? ls__moe_capacity(r, tokens) : INT64_MAX;
}

/* Choices of e in `slot` that come before those of `rank`. */
static int64_t taken_before(const ls__moe_rules *r, const int64_t *facts, int rank, int slot,
                            int64_t e)
{
    int64_t taken = 0;
    for (int s = 0; s <= slot; s++) {
        for (int q = 0; q < r->ranks; q++) {
            const bool shares = r->global || q == rank;
            const bool before = s < slot || q < rank;
            taken += shares && before ? choices_of(r, facts, q, s)[e] : 0;
        }
    }
    return taken;
}

/* Of the choices of e by the tokens of `rank` in `slot`, how many find a place. */
static int64_t kept_in_slot(const ls__moe_rules *r, const int64_t *facts, int rank, int slot,
                            int64_t e)
{
    const int64_t left = places_of(r, facts, rank) - taken_before(r, facts, rank, slot, e);
    const int64_t own = choices_of(r, facts, rank, slot)[e];
    return left < 0 ? 0 : left < own ? left : own;
}

static int64_t kept_of(const ls__moe_rules *r, const int64_t *facts, int rank, int64_t e)
{
    int64_t kept = 0;
    for (int s = 0; s < r->top_k; s++) {
        kept += kept_in_slot(r, facts, rank, s, e);
    }
    return kept;
}

/* Rows that `rank` sends to expert e. */
static int64_t rows_of(const ls__moe_rules *r, const int64_t *facts, int rank, int64_t e)
{
    return r->padded ? places_of(r, facts, rank) : kept_of(r, facts, rank, e);
}

/* ---- this rank's rows ----------------------------------------------------------------------- */

typedef struct filling { /* of the arrays of a route */
    const ls__moe_rules *r;
    const int64_t *facts;
    ls__moe_route *to;
    int64_t *limit; /* [top_k,experts] kept in a slot */
    int64_t *next;  /* [experts] */
} filling;

/* Rows of each expert begin where those of the one before end. */
static void begin_experts(filling *f)
{
    int64_t at = 0;
    for (int64_t e = 0; e < f->r->experts; e++) {
        const int64_t rows = rows_of(f->r, f->facts, f->r->rank, e);
        f->to->kept[e] = kept_of(f->r, f->facts, f->r->rank, e);
        f->next[e] = at;
        for (int64_t i = 0; i < rows; i++) {
            f->to->source[at + i] = f->to->tokens;
        }
        at += rows;
    }
    LS_ASSERT(at == f->to->rows);
}

/* Which choices are kept: place[] 0 or -1 for now. */
static void keep_choices(filling *f, const int64_t *index)
{
    const int k = f->r->top_k;
    for (int s = 0; s < k; s++) {
        for (int64_t e = 0; e < f->r->experts; e++) {
            f->limit[e] = kept_in_slot(f->r, f->facts, f->r->rank, s, e);
        }
        for (int64_t t = 0; t < f->to->tokens; t++) {
            const int64_t e = index[t * k + s];
            const bool kept = e >= 0 && f->limit[e]-- > 0;
            f->to->place[t * k + s] = kept ? 0 : -1;
            f->to->dropped += e >= 0 && !kept;
        }
    }
}

static void place_rows(filling *f, const int64_t *index)
{
    const int k = f->r->top_k;
    begin_experts(f);
    keep_choices(f, index);
    for (int64_t i = 0; i < f->to->tokens * k; i++) {
        const bool kept = f->to->place[i] == 0;
        f->to->place[i] = kept ? f->next[index[i]]++ : f->to->rows;
        if (kept) {
            f->to->source[f->to->place[i]] = i / k;
        }
    }
}

/* ---- the rows of its experts ---------------------------------------------------------------- */

/* next[q]: where the next rows of rank q lie among those that arrive. */
static void order_rows(filling *f)
{
    const ls__moe_rules *r = f->r;
    const int64_t own = r->experts / r->ranks;
    int64_t row = 0, begin = 0;
    for (int q = 0; q < r->ranks; q++) {
        f->next[q] = begin;
        begin += f->to->receive[q];
    }
    for (int64_t e = 0; e < own; e++) {
        for (int q = 0; q < r->ranks; q++) {
            const int64_t rows = rows_of(r, f->facts, q, own * r->rank + e);
            for (int64_t i = 0; i < rows; i++, row++) {
                f->to->order[row] = f->next[q];
                f->to->back[f->next[q]++] = row;
            }
            f->to->count[e] += rows;
        }
    }
    LS_ASSERT(row == f->to->arrive);
}

/* ---- memory --------------------------------------------------------------------------------- */

/* Takes the next `count` numbers; without memory yet, counts them alone. */
static int64_t *take(ls__moe_route *route, int64_t *used, int64_t count)
{
    int64_t *at = route->memory != NULL ? (int64_t *)route->memory + *used : NULL;
    *used += count;
    return at;
}

static int64_t lay_out(ls__moe_route *route, const ls__moe_rules *r, filling *f)
{
    int64_t used = 0;
    route->send = take(route, &used, r->ranks);
    route->receive = take(route, &used, r->ranks);
    route->kept = take(route, &used, r->experts);
    route->count = take(route, &used, r->experts / r->ranks);
    f->limit = take(route, &used, r->experts);
    f->next = take(route, &used, r->experts);
    route->place = take(route, &used, route->tokens * r->top_k);
    route->source = take(route, &used, route->rows);
    route->order = take(route, &used, route->arrive);
    route->back = take(route, &used, route->arrive);
    return used;
}

/* Rows between this rank and rank q. */
static void count_rows(const ls__moe_rules *r, const int64_t *facts, int q, int64_t *to,
                       int64_t *from)
{
    const int64_t own = r->experts / r->ranks;
    *to = *from = 0;
    for (int64_t e = 0; e < own; e++) {
        *to += rows_of(r, facts, r->rank, q * own + e);
        *from += rows_of(r, facts, q, r->rank * own + e);
    }
}

ls_status ls__moe_route_init(ls__moe_route *route, const ls__moe_rules *r, const int64_t *index,
                             int64_t tokens, const int64_t *facts)
{
    filling f = {.r = r, .facts = facts, .to = route};
    *route = (ls__moe_route){.tokens = tokens};
    for (int q = 0; q < r->ranks; q++) {
        int64_t to, from;
        count_rows(r, facts, q, &to, &from);
        route->rows += to;
        route->arrive += from;
    }
    const int64_t numbers = lay_out(route, r, &f);
    route->memory = calloc((size_t)numbers, sizeof(int64_t));
    if (route->memory == NULL) {
        return ls__moe_no_memory();
    }
    (void)lay_out(route, r, &f);
    for (int q = 0; q < r->ranks; q++) {
        count_rows(r, facts, q, &route->send[q], &route->receive[q]);
    }
    place_rows(&f, index);
    order_rows(&f);
    return LS_OK;
}

void ls__moe_route_fini(ls__moe_route *route)
{
    free(route->memory);
    route->memory = NULL;
}
