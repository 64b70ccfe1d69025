/* SPDX-License-Identifier: Apache-2.0 */
/* A pipeline: its stages on this rank, and the values in flight of each micro-batch.
 *
 *   agree.c    compares the options and the model of the ranks
 *   make.c     cuts the model, finds the edges between stages and the tied parameters
 *   parts.c    frees the parts of other stages, and checks before that what they compute
 *   values.c   activations and gradients between stages: messages, or handed over on one rank
 *   links.c    … in memory of a device, where its backend moves them
 *   versions.c stashes of parameters, for schedules that step within their tables
 *   run.c      executes this rank's list of the schedule
 *   evaluate.c forwards alone
 *   log.c      the replay log of a schedule that steps within its table; replay.c makes it again
 *
 * Note [Values]
 * A value is the result of a part that a later stage takes. Its stage sends it to every rank that
 * has such a stage, as a head of fixed size with its shape, and its elements. The receiver posts
 * receives for both when its list says so, with the shape that this micro-batch had in the last
 * step, which is the usual case. If the shape has changed, the elements follow in a further
 * message. Both sides keep the shapes of the last step, so they agree on the sizes. Gradients go
 * back the same way; they have the value's shape.
 */
#ifndef LS_PARALLEL_PIPELINE_INTERNAL_H
#define LS_PARALLEL_PIPELINE_INTERNAL_H

#include <lockstep/ops.h>
#include <lockstep/optim.h>
#include <lockstep/pipeline.h>

#include "base/arena.h"
#include "base/env.h"
#include "base/runtime.h"
#include "schedule/schedule.h"
#include "trace/replay_log.h"

typedef struct ls__value_head { /* the header sent before a value's elements */
    int32_t dtype, ndim;
    bool requires_grad, known; /* known: a header was sent or received */
    bool channels_last;        /* in memory [N,H,W,C]; `dim` has this order then */
    bool linked;               /* the elements, and their gradient, go by links.c */
    uint32_t place;            /* on the axes of the mesh in force (tensor/placement.h) */
    int64_t dim[LS_DIMS_MAX];
} ls__value_head;

/* Where one value goes: from the stage that makes it to one that takes it. */
typedef struct ls__stage_edge {
    int part;     /* whose result */
    int from, to; /* stages */
    int out, in;  /* index of the value in `out` and `in` of their ls_stage_edges */
    int other;    /* the stage at the other end of the edge */
    bool own;     /* both stages are on this rank: values are handed over */
} ls__stage_edge;

/* Sizes of one message for which memory is prepared, e.g. alternating long and short batches. */
#define LS__SIZES_PREPARED 4

/* The value of one micro-batch that crosses an edge, and its gradient on the way back. */
typedef struct ls__in_flight_value {
    ls__value_head head, before;         /* of this step and the last one */
    ls_tensor *value, *grad;             /* received, in the micro-batch's scope; or NULL */
    ls_work *work[3], *grad_work;        /* head, elements, elements of another shape; gradient */
    bool posted;                         /* the receives of the value */
    size_t prepared[LS__SIZES_PREPARED]; /* bytes of messages that may come early; 0: none yet */
} ls__in_flight_value;

/* Gradients are sent from copies, so a micro-batch can end with its backward before the other rank
 * has read them. Between neighbouring stages there are two copies: a send waits until the last send
 * but one was read. An earlier stage reads its gradients much later, after those of the stages
 * between. It has as many copies as micro-batches: waiting for one would delay the stages between,
 * or never end. */
#define LS__SEND_QUEUE_NEIGHBOUR 2
typedef struct ls__send_buffer {
    void *memory;
    size_t room;
    struct ls__storage *linked; /* instead, on the device; NULL: never used */
    ls_work *work;
} ls__send_buffer;

typedef struct ls__send_queue {
    ls__send_buffer *buffer; /* [count] */
    int count, next;
} ls__send_queue;

typedef struct ls__slot { /* a micro-batch in a stage */
    ls_scope *scope;
    int number;                    /* of the micro-batch in its call */
    ls_tensor **in, **out;         /* [edges.in_count], [edges.out_count] */
    ls_tensor **leaf;              /* [arriving_count] received values, in the order of memory */
    ls_tensor *loss;               /* of the last stage: backward begins with it, */
    ls_tensor *more_loss;          /* and with those that modules in the stage have set; or NULL */
    ls__in_flight_value *arriving; /* [stage.arriving_count] */
    ls__in_flight_value *leaving;  /* [stage.leaving_count] */
    bool put_off;                  /* its weight part has still to run */
    bool computed, sent;           /* all parts of its backward ran; its gradients went out */
    bool sent_early;               /* before the weight part of a step's last backward */
    int handed_over;               /* values that later stages of this rank have taken */
} ls__slot;

typedef struct ls__stage { /* of this rank */
    ls_module *net;
    int number, first, count; /* its parts */
    ls_stage_edges edges;
    ls__stage_edge *arriving, *leaving; /* leaving: in the order of gradients, later stages first */
    int arriving_count, leaving_count;
    ls__send_queue *send_queue;     /* [arriving_count] */
    bool sends_values, sends_grads; /* this rank's list says when; otherwise at once */
    ls__slot *slot;                 /* [slots] */
} ls__stage;

typedef struct ls__tied_param { /* used by stages of several ranks */
    ls_tensor *param;
    ls_group *group; /* of these ranks */
    bool adds;       /* this rank contributes the gradient, for all replicas of its stage */
} ls__tied_param;

#define LS__STASH_FREE (-1)
typedef struct ls__stash { /* a version of the parameters that is not the newest */
    int version;           /* or LS__STASH_FREE */
    ls_tensor **copy;      /* [param_count] */
} ls__stash;

/* A micro-batch of a call in this rank's stage. Versions are counted from the call's begin. */
typedef struct ls__stage_note {
    int64_t read, made;
    uint64_t hash, hashed; /* hashed: it is the last of its step */
} ls__stage_note;

typedef struct ls__stage_log {
    ls__replay_writer writer; /* rank 0's */
    ls__stage_note *notes;    /* [micro_batches] in this rank's report; NULL: nothing is logged */
    int noted;                /* micro-batches of this call that have made a version */
    int64_t versions, micro_batches; /* before this call */
} ls__stage_log;

/* Groups for memory of a device: to another rank, and from it; NULL: nothing goes there. */
typedef struct ls__stage_link {
    ls_group *out, *in;
} ls__stage_link;

struct ls_pipeline {
    const ls__env *env;
    ls__arena arena; /* everything below but the schedule */
    ls_module *net;
    ls__runtime_guest guest; /* tells that the runtime, and with it the groups, has ended */
    ls_group *group;         /* our own */
    const char *backend;     /* of the device where tensors are made; NULL: it has none */
    ls__stage_link *links;   /* [ranks]; NULL: messages are memory of the host */
    ls_pipeline_options set;
    ls__schedule *schedule;
    int rank, stages;
    bool alike;             /* an error now is the same on all ranks */
    bool parts_aside;       /* those of other stages are not freed yet: parts.c */
    bool settings_compared; /* those that do not change in the run */
    bool weighted;  /* stages have replicas, or micro-batches weights: gradients are sums until the
                      wrapper divides them */
    double weights; /* of a call without a wrapper: their sum, by which its passes divide */
    int slots;      /* of each stage: of a step's micro-batches, then those of evaluate.c */
    int *first;     /* [stages + 1] parts */
    ls__stage *own;
    int own_count;
    ls__tied_param *tied;
    int tied_count;
    /* versions.c, of schedules that step within their tables */
    ls_optim *optim;  /* the user's; NULL: the user steps */
    ls_param *params; /* of this rank */
    int param_count;
    ls__stash *stashes; /* [stash_room] */
    int stash_count, stash_room, newest;
    ls__stash *bound; /* NULL: the newest version is */
    ls__stage_log log;
    /* during a step */
    int at; /* the next action of the list */
    const ls_micro_batch *micro;
    ls_module *wrapped;
    bool warned_of_nan;     /* once */
    int backwards;          /* so far, of this rank's list */
    int backwards_per_step; /* of this rank */
    ls_tensor **loss;       /* [micro_batches] of the last stage, kept until the step ends */
    double *losses;         /* [micro_batches] what they were */
    char *reports;          /* of this rank, then of all: [ls__report_bytes] each */
};

ls__stage *ls__pipeline_stage(ls_pipeline *p, int number);
/* The rank at the other end of an edge, for a micro-batch of this number. */
int ls__stage_edge_peer(const ls_pipeline *p, const ls__stage_edge *edge, int number);

/* Micro-batches of an evaluation that a stage has at one time; why: evaluate.c. */
#define LS__EVALUATION_SLOTS(p) ((p)->schedule->ranks + 1)

/* make.c: LS_ERR_STATE after ls_finalize, which frees the groups. */
ls_status ls__pipeline_check_alive(const ls_pipeline *p, const char *what);

/* agree.c: collective; LS_ERR_MISMATCH names the rank that differs. */
ls_status ls__pipeline_agree(ls_pipeline *p, int parts);
/* parts.c. Cuts the model to this rank's stages; looks at the whole one with the inputs of the
 * first step, where LOCKSTEP_CHECK=strict asks for it; frees what it kept for that. */
ls_status ls__pipeline_cut(ls_pipeline *p);
ls_status ls__pipeline_check_parts(ls_pipeline *p, const ls_micro_batch *micro);
void ls__pipeline_forget_parts(ls_pipeline *p);

/* run.c */
ls_status ls__stage_run(ls_tensor *const *inputs, int input_count, ls_tensor **outputs,
                        int output_count, void *stage);
ls_status ls__micro_batches_check(const char *call, const ls_micro_batch *micro, int count);
void ls__slot_end(ls__stage *stage, ls__slot *slot);
void ls__pipeline_forget_losses(ls_pipeline *p);
struct ls__ddp;
/* Exchanged by all ranks at the end of a call. */
typedef struct ls__report {
    uint64_t settings; /* hash of those that may change in the run; 0: it has nothing to train */
    double losses[];   /* [micro_batches] of those whose last stage it has, else 0; then their
                          weights, where they have some; then notes */
} ls__report;
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
void ls__send_queues_free(ls_pipeline *p);

/* links.c */
ls_status ls__stage_links_open(ls_pipeline *p); /* collective, as close */
ls_status ls__stage_links_close(ls_pipeline *p);
void ls__stage_links_fail(ls_pipeline *p, ls_status status, const char *text);
/* Whether the value is sent to this rank of the pipeline by a link. */
bool ls__stage_link_carries(const ls_pipeline *p, int peer, ls_tensor *value);
struct ls__pool;
typedef struct ls__stage_link_message {
    int peer, tag; /* a rank of the pipeline */
    int64_t count;
    ls_dtype dtype;
    const struct ls__pool *on; /* where the elements lie */
    const char *what;          /* "activations" */
} ls__stage_link_message;
ls_status ls__stage_link_send(const ls_pipeline *p, const ls__stage_link_message *m,
                              const void *elements, ls_work **work);
ls_status ls__stage_link_receive(const ls_pipeline *p, const ls__stage_link_message *m,
                                 void *elements, ls_work **work);

/* versions.c */
ls_status ls__version_stash(ls_pipeline *p, int version);
ls_status ls__version_load(ls_pipeline *p, int version);
ls_status ls__version_step(ls_pipeline *p, int version);
void ls__versions_restart(ls_pipeline *p);
/* The first parameter of this rank whose gradient holds NaN or infinity, and the element; or
 * NULL. */
const ls_param *ls__pipeline_nonfinite(const ls_pipeline *p, int64_t *at);
void ls__versions_free(ls_pipeline *p);

/* log.c */
size_t ls__report_bytes(const ls_pipeline *p);
ls_status ls__stage_log_begin(ls_pipeline *p);
void ls__stage_log_read(ls_pipeline *p, int micro_batch); /* its forward begins */
ls_status ls__stage_log_made(ls_pipeline *p);             /* the optimizer has stepped */
ls_status ls__stage_log_write(ls_pipeline *p);            /* after the reports were exchanged */
/* Goes on with a hash over the elements of a parameter. */
ls_status ls__stage_hash(ls_tensor *param, uint64_t *hash);

#endif
