/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a mixture of experts, between its files: choice of experts (gate.c), which choices
 * are kept and where their rows lie (route.c), rows to the experts and back (dispatch.c). */
#ifndef LS_NN_MOE_MOE_H
#define LS_NN_MOE_MOE_H

#include <lockstep/moe.h>

#include "base/axes.h"
#include "nn/module.h"

/* ---- route.c: numbers alone ------------------------------------------------------------------ */

typedef struct ls__moe_rules {
    int ranks, rank; /* of the axis; 1 and 0 without one */
    int64_t experts;
    int top_k;
    double capacity; /* 0: dropless */
    bool global, padded;
} ls__moe_rules;

/* What the ranks tell each other, numbers of 8 bytes: */
enum {
    LS__MOE_TOKENS,  /* those that are not masked */
    LS__MOE_ODD,     /* 1 + the first token whose scores are not finite; 0: there is none */
    LS__MOE_CHOICES, /* [top_k,experts] */
};
static inline int64_t ls__moe_facts(const ls__moe_rules *r)
{
    return LS__MOE_CHOICES + r->top_k * r->experts;
}

typedef struct ls__moe_route {
    int64_t tokens, rows;    /* of this rank; rows leave it, those of padding included */
    int64_t arrive;          /* rows that come to its experts */
    int64_t dropped;         /* of its choices */
    int64_t *place;          /* [tokens,top_k]: which of the rows; `rows`: dropped or masked */
    int64_t *source;         /* [rows]: which token; `tokens`: padding */
    int64_t *send, *receive; /* [ranks] rows */
    int64_t *kept;           /* [experts] rows of this rank's tokens */
    int64_t *count;          /* [own experts] rows of all ranks' tokens */
    int64_t *order, *back;   /* [arrive]: rows by (expert, rank, token), and the inverse */
    void *memory;
} ls__moe_route;

/* The places of an expert for so many tokens. */
int64_t ls__moe_capacity(const ls__moe_rules *r, int64_t tokens);
/* From the choices index[tokens,top_k] of this rank (-1: masked), and the facts of all ranks.
 * LS_ERR_MEMORY. */
ls_status ls__moe_route_init(ls__moe_route *route, const ls__moe_rules *r, const int64_t *index,
                             int64_t tokens, const int64_t *facts);
void ls__moe_route_fini(ls__moe_route *route);
ls_status ls__moe_no_memory(void); /* LS_ERR_MEMORY */

/* ---- the layer ------------------------------------------------------------------------------- */

typedef struct ls__moe {
    ls_module base;
    ls_moe_options options;
    char axis[LS__AXIS_NAME_BYTES];
    ls_module *gate, *shared; /* `shared` NULL: none */
    ls_tensor *w1, *w2, *w3, *b1, *b2, *bias;
    int ranks, rank; /* along the axis, of the mesh under which it was made */
    bool compared;   /* the ranks' settings */
    ls_tensor *loss; /* of the last forward; of its scope, or its caller's */
    bool ran;
    int64_t dropped;
    int64_t *kept;   /* [experts] of the last forward */
    int64_t *chosen; /* [experts] since the last ls_moe_balance, before drops */
} ls__moe;

/* What the gate makes of x [T,C]. */
typedef struct ls__moe_choice {
    ls_tensor *weights; /* [T,k], in the graph */
    ls_tensor *probs;   /* [T,E]: for the balance loss; NULL: not wanted */
    ls_tensor *logits;  /* [T,E] */
    ls_tensor *counts;  /* [T,1]: 0 where masked, else 1; NULL: no mask */
    int64_t *index;     /* [T,k], -1 where masked; free() */
    int64_t *facts;     /* of this rank */
    int64_t *counted;   /* [E] choices that the balance loss counts; NULL: not wanted */
} ls__moe_choice;

/* `mask` NULL: all tokens count. After an error choice->index and facts are NULL. */
ls_status ls__moe_choose(ls__moe *m, ls_tensor *x, ls_tensor *mask, const ls__moe_rules *r,
                         ls__moe_choice *choice);
/* Before the losses, where there is a balance loss: choices of all tokens that it counts, from the
 * facts of all ranks; and of those along the axes `parts` (bits), whose ranks have other parts of
 * the same sequences. Collective along these. */
ls_status ls__moe_count_shares(const ls__moe *m, const ls__moe_rules *r, ls__moe_choice *choice,
                               const int64_t *all, unsigned parts);
/* The losses of the gate; NULL: it has no coefficients. */
ls_tensor *ls__moe_gate_loss(const ls__moe *m, const ls__moe_rules *r, const ls__moe_choice *choice,
                             const int64_t *all);

/* The facts of all ranks, `all` [ranks,facts]. Collective. LS_ERR_INVALID on all ranks where one
 * has scores that are not finite. */
ls_status ls__moe_gather(ls__moe *m, const ls__moe_rules *r, const int64_t *facts, int64_t *all);
/* x [T,C] -> what the experts make of it, [T,C], in the order of the choices. */
ls_tensor *ls__moe_experts(ls__moe *m, ls_tensor *x, ls_tensor *weights,
                           const ls__moe_route *route);

#endif
