/* One backward pass: what walk.c finds, engine.c runs, accumulate.c adds up, observers.c reports
 * and recompute.c puts in between. */
#ifndef LS_AUTOGRAD_PASS_H
#define LS_AUTOGRAD_PASS_H

#include "autograd/engine.h"
#include "tensor/graph.h"

typedef struct ls__autograd { /* of one runtime */
    ls__list observers;
    _Atomic uint64_t passes; /* Sync: atomic; threads may run passes of their own at once */
} ls__autograd;

ls__autograd *ls__autograd_get(const char *what); /* NULL with the error set */

typedef struct ls__pile { /* a growing array of nodes; in cached memory, so it costs no call */
    ls__storage *memory;
    ls__tensor_node **at;
    int64_t count, room;
} ls__pile;

ls_status ls__pile_push(ls__pile *pile, ls__tensors *tensors, ls__tensor_node *node);

typedef struct ls__watch { /* an observer's part in this pass */
    ls__observer *observer;
    ls__storage *used; /* uint8_t [param_count] */
    bool begun;
} ls__watch;

#define LS__OBSERVERS_MAX 64 /* in one pass; a pipeline stage has one per replica group */

typedef struct ls__pass {
    const char *name; /* of the public call */
    ls__tensors *tensors;
    ls__autograd *autograd;
    uint64_t number;
    bool weighted;
    double weight;
    ls__edge root;      /* where the loss' own gradient goes */
    ls__pile order;     /* every reached operation, latest first */
    ls__storage *freed; /* what tensors say that were freed on the way; NULL: none is */
    ls__watch watch[LS__OBSERVERS_MAX];
    int watched;
} ls__pass;

/* engine.c: runs the nodes of `order`, whose gradients are there or will be */
ls_status ls__pass_run(ls__pass *pass, const ls__pile *order);
ls_status ls__fail_changed(const ls__pass *pass, const ls__tensor_node *node,
                           const ls__tensor_saved *saved);

/* walk.c */
typedef enum ls__count { /* of the accumulations of leaves: */
                         LS__COUNT_NOT,
                         LS__COUNT_ANEW,
                         LS__COUNT_ON, /* on top of what was counted */
} ls__count;

typedef struct ls__walk {
    const char *name; /* of the public call */
    ls__tensors *tensors;
    uint64_t number; /* marks what it meets; no other walk has it */
    uint64_t border; /* nodes made up to here are outside; 0: only leaves are */
    ls__count count;
    ls__pile order;   /* the operations inside, latest first */
    ls__pile outside; /* leaves and older nodes, each once */
    ls__pile heap;
} ls__walk;

ls_status ls__walk_run(ls__walk *walk, ls__tensor_node *root);
void ls__walk_fini(ls__walk *walk);

/* recompute.c: a node that stands for a piece of graph which is not kept has links, not edges */
typedef struct ls__link {
    ls__tensor_node *node; /* a leaf, holding a reference, or an operation */
    uint32_t version;      /* of a leaf's numbers */
} ls__link;

typedef struct ls__links { /* everything outside that the piece leads to, each once */
    int64_t count;
    ls__link at[];
} ls__links;

extern const ls__op ls__recompute_op;
enum { LS__RECOMPUTE_X, LS__RECOMPUTE_LINKS }; /* what its node saves */

static inline const ls__links *ls__links_of(const ls__tensor_node *node) /* NULL: any other node */
{
    return node->op == &ls__recompute_op ? node->saved[LS__RECOMPUTE_LINKS].storage->data : NULL;
}

/* Makes the piece anew and runs backward through it. */
ls_status ls__recompute_run(ls__pass *pass, ls__tensor_node *node);

/* observers.c */
ls_status ls__observers_reached(ls__pass *pass, ls__leaf *leaf); /* while planning */
ls_status ls__observers_begin(ls__pass *pass);
ls_status ls__observers_ready(ls__pass *pass, ls__leaf *leaf);
ls_status ls__observers_end(ls__pass *pass);
/* Tells every observer that takes part, or was armed, the error of this thread. */
void ls__observers_abort(ls__pass *pass, ls_status status);
void ls__observers_drop(ls__pass *pass);

/* accumulate.c: how a rule's results reach the nodes behind its edges */
typedef struct ls__target { /* of one edge, while its rule runs */
    ls__storage *aside;     /* the rule writes here, close adds it up; NULL: written in place */
} ls__target;

ls_status ls__target_open(ls__pass *pass, const ls__tensor_node *node, int i, ls__tensor_rule *rule,
                          ls__target *out);
/* `dy` is the node's own gradient, for edges that pass it on. Drops what the target holds. */
ls_status ls__target_close(ls__pass *pass, const ls__tensor_node *node, int i,
                           ls__tensor_rule *rule, ls__storage *dy, ls__target *target);
/* Adds `from`, row-major at offset 0, to where `edge` leads; may keep a reference to it. */
ls_status ls__accumulate(ls__pass *pass, const ls__edge *edge, ls__storage *from);
/* Makes an absent gradient of a leaf present and zero. */
ls_status ls__leaf_grad_zero(ls__tensors *tensors, ls__leaf *leaf);
/* One accumulation of a leaf is done (or skipped): calls `ready` after the last. */
ls_status ls__arrived(ls__pass *pass, ls__tensor_node *to);

#endif
