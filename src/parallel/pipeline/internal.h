/* A pipeline: its stages on this rank, and what is under way of each micro-batch.
 *
 *   agree.c    compares what the ranks were given
 *   make.c     cuts the model, finds what crosses between stages, and parameters of several ranks
 *   parts.c    frees the parts of other stages, and checks before that what they compute
 *   values.c   activations and gradients between stages: messages, or handed over on one rank
 *   versions.c stashes of parameters, for schedules that step within their tables
 *   run.c      executes this rank's list of the schedule
 *   evaluate.c forwards alone
 *
 * Note [Values]
 * A value is the result of a part that a later stage takes. Its stage sends it to every rank that
 * has such a stage, as a head of fixed size with its shape, and its elements. The receiver posts
 * both when its list says so, the elements for the shape of the same micro-batch in the step
 * before: the usual case. If the shape is another one, the elements follow in a further message.
 * Both sides keep the shapes of the step before, so they agree on what is posted. Gradients go back
 * the same way; they have the value's shape.
 */
#ifndef LS_PARALLEL_PIPELINE_INTERNAL_H
#define LS_PARALLEL_PIPELINE_INTERNAL_H

#include <lockstep/ops.h>
#include <lockstep/optim.h>
#include <lockstep/pipeline.h>

#include "base/arena.h"
#include "base/env.h"
#include "schedule/schedule.h"

typedef struct ls__value_head { /* the header sent before a value's elements */
    int32_t dtype, ndim;
    bool requires_grad, known; /* known: there was such a head */
    bool channels_last;        /* in memory [N,H,W,C], which `dim` says then */
    int64_t dim[LS_DIMS_MAX];
} ls__value_head;

/* Where one value goes: from the stage that makes it to one that takes it. */
typedef struct ls__route {
    int part;     /* whose result */
    int from, to; /* stages */
    int out, in;  /* the value's places in their edges */
    int other;    /* the one of the two stages that is not the route's own */
    bool own;     /* it is on this rank, too: values are handed over */
} ls__route;

/* Sizes of one message for which memory is prepared, e.g. alternating long and short batches. */
#define LS__SIZES_PREPARED 4

/* What is under way on a route, of one micro-batch. */
typedef struct ls__transit {
    ls__value_head head, before;         /* of this step and the last one */
    ls_tensor *value, *grad;             /* what arrived, of the micro-batch's scope; or NULL */
    ls_work *work[3], *grad_work;        /* head, elements, elements of another shape; gradient */
    bool posted;                         /* receives of the value are */
    size_t prepared[LS__SIZES_PREPARED]; /* bytes of messages that may come early; 0: none yet */
} ls__transit;

/* Gradients on their way back, copied, so that a micro-batch ends with its backward whenever the
 * other rank reads them. Between neighbours the next one waits until the last but one was read. A
 * stage further back reads them much later, with those of the stages between: as many can be on
 * their way as it has micro-batches, and to wait for one would delay the stages between, or never
 * end. */
#define LS__OUTBOX_NEIGHBOUR 2
typedef struct ls__outbox_place {
    void *memory;
    size_t room;
    ls_work *work;
} ls__outbox_place;

typedef struct ls__outbox {
    ls__outbox_place *place; /* [places] */
    int places, next;
} ls__outbox;

typedef struct ls__slot { /* a micro-batch in a stage */
    ls_scope *scope;
    int number;            /* of the micro-batch in its call */
    ls_tensor **in, **out; /* [edges.in_count], [edges.out_count] */
    ls_tensor **leaf;      /* [arriving_count] what arrived, in the order of memory */
    ls_tensor *loss;       /* of the last stage: what backward begins with */
    ls__transit *arriving; /* [stage.arriving_count] */
    ls__transit *leaving;  /* [stage.leaving_count] */
    bool put_off;          /* its weight part has still to run */
    bool computed, sent;   /* all parts of its backward ran; its gradients went out */
    bool sent_early;       /* before the weight part of a step's last backward */
    int handed_over;       /* values that later stages of this rank have taken */
} ls__slot;

typedef struct ls__stage { /* of this rank */
    ls_module *net;
    int number, first, count; /* its parts */
    ls_stage_edges edges;
    ls__route *arriving, *leaving; /* leaving: later stages first, the order of their gradients */
    int arriving_count, leaving_count;
    ls__outbox *outbox;             /* [arriving_count] */
    bool sends_values, sends_grads; /* this rank's list says when; otherwise at once */
    ls__slot *slot;                 /* [slots] */
} ls__stage;

typedef struct ls__tie { /* a parameter that stages of several ranks use */
    ls_tensor *param;
    ls_group *group; /* of these ranks */
    bool adds;       /* this rank's gradient, which is that of all replicas of its stage */
} ls__tie;

#define LS__STASH_FREE (-1)
typedef struct ls__stash { /* a version of the parameters that is not the newest */
    int version;           /* or LS__STASH_FREE */
    ls_tensor **copy;      /* [param_count] */
} ls__stash;

struct ls_pipeline {
    const ls__env *env;
    ls__arena arena; /* everything below but the schedule */
    ls_module *net;
    ls_group *group; /* our own */
    ls_pipeline_options set;
    ls__schedule *schedule;
    int rank, stages;
    bool alike;             /* what fails now fails on all ranks */
    bool parts_aside;       /* those of other stages are not freed yet: parts.c */
    bool settings_compared; /* those that do not change in the run */
    bool weighted; /* stages have replicas: gradients are sums until the wrapper divides them */
    int slots;  /* of each stage: of a step's micro-batches, and behind them those of evaluate.c */
    int *first; /* [stages + 1] parts */
    ls__stage *own;
    int own_count;
    ls__tie *ties;
    int tie_count;
    /* versions.c, of schedules that step within their tables */
    ls_optim *optim;  /* the user's; NULL: the user steps */
    ls_param *params; /* of this rank */
    int param_count;
    ls__stash *stashes; /* [stash_room] */
    int stash_count, stash_room, newest;
    ls__stash *bound; /* NULL: the newest version is */
    /* during a step */
    int at; /* the next action of the list */
    const ls_micro_batch *micro;
    ls_module *wrapped;
    bool warned_of_nan;     /* once */
    int backwards;          /* so far, of this rank's list */
    int backwards_per_step; /* of this rank */
    double *losses;         /* [micro_batches] */
    char *reports;          /* of this rank, and behind it of all: [ls__report_bytes] each */
};

ls__stage *ls__pipeline_stage(ls_pipeline *p, int number);
/* The other rank of a route, for a micro-batch of this number. */
int ls__route_peer(const ls_pipeline *p, const ls__route *route, int number);

/* Micro-batches of an evaluation that a stage has at one time; why: evaluate.c. */
#define LS__EVALUATION_SLOTS(p) ((p)->schedule->ranks + 1)

/* agree.c: collective; LS_ERR_MISMATCH names the rank that differs. */
ls_status ls__pipeline_agree(ls_pipeline *p, int parts);
/* parts.c. Cuts the model to this rank's stages; looks at the whole one with the inputs of the first
 * step, where LOCKSTEP_CHECK=strict asks for it; frees what it kept for that. */
ls_status ls__pipeline_cut(ls_pipeline *p);
ls_status ls__pipeline_check_parts(ls_pipeline *p, const ls_micro_batch *micro);
void ls__pipeline_forget_parts(ls_pipeline *p);

/* run.c */
ls_status ls__stage_run(ls_tensor *const *inputs, int input_count, ls_tensor **outputs,
                        int output_count, void *stage);
ls_status ls__micro_batches_check(const char *call, const ls_micro_batch *micro, int count);
void ls__slot_end(ls__stage *stage, ls__slot *slot);
struct ls__ddp;
/* What a rank says at the end of a call. */
typedef struct ls__report {
    uint64_t settings; /* hash of those that may change in the run; 0: it has nothing to train */
    double losses[];   /* [micro_batches] of those whose last stage it has, else 0 */
} ls__report;
size_t ls__report_bytes(const ls_pipeline *p);
/* All ranks that may wait for this one get its error, which the launcher names as the job's. */
void ls__pipeline_fail(ls_pipeline *p, ls_status status, const char *message);
ls_status ls__pipeline_give_up(ls_pipeline *p, struct ls__ddp *wrapper,
                               ls_status status); /* returns it again */

/* values.c */
ls_status ls__values_expect(ls_pipeline *p, ls__stage *stage, int micro_batch); /* posts */
ls_status ls__values_take(ls_pipeline *p, ls__stage *stage, int micro_batch);   /* into slot.in */
ls_status ls__values_send(ls_pipeline *p, ls__stage *stage, int micro_batch);
ls_status ls__grads_expect(ls_pipeline *p, ls__stage *stage, int micro_batch);
/* The sum of the gradients of value `out` over the stages that take it, NULL if none has one. */
ls_status ls__grads_take(ls_pipeline *p, ls__stage *stage, int micro_batch, int out,
                         ls_tensor **sum);
ls_status ls__grads_send(ls_pipeline *p, ls__stage *stage, int micro_batch);
ls_status ls__values_sent(ls__stage *stage, int micro_batch); /* waits until they were read */
ls_status ls__grads_sent(ls_pipeline *p);                     /* the same of all stages */
void ls__values_unknown(ls__stage *stage,
                        int micro_batch); /* forgets the shapes of the step before */
/* Memory for messages that come before their receives: how many do depends on the ranks' pace. Of
 * heads, when the pipeline is made; of elements, after a call in which their sizes became known. */
void ls__values_prepare_heads(ls_pipeline *p);
void ls__values_prepare(ls_pipeline *p);
void ls__values_forget(ls_pipeline *p); /* after a failure */
void ls__outboxes_free(ls_pipeline *p);

/* versions.c */
ls_status ls__version_stash(ls_pipeline *p, int version);
ls_status ls__version_load(ls_pipeline *p, int version);
ls_status ls__version_step(ls_pipeline *p, int version);
void ls__versions_restart(ls_pipeline *p);
/* The first parameter of this rank whose gradient holds NaN or infinity, and the element; or
 * NULL. */
const ls_param *ls__pipeline_nonfinite(const ls_pipeline *p, int64_t *at);
void ls__versions_free(ls_pipeline *p);

#endif
