/* SPDX-License-Identifier: Apache-2.0 */
/* Pipeline schedules as tables (docs/design.md, D14).
 *
 * A network is cut into stages. A schedule lists, for each rank, the small actions that the rank
 * executes in order: forward and backward of one micro-batch through one stage, messages to
 * neighbours, reductions, optimizer steps, and what happens to versions of the weights. Short
 * generators make the tables, one verifier accepts or refuses them, src/cost times them. There are
 * no tensors and no network here.
 *
 *     ls__schedule_spec spec = {.ranks = 4, .micro_batches = 8};
 *     LS_TRY(ls__schedule_new(env, "1f1b", &spec, &schedule));
 *     puts(ls__schedule_print(schedule));
 *     ls__schedule_free(schedule);
 *
 * Note [Meaning of a table]
 * What an executor does, and the verifier and the tests assume. A stage belongs to one rank, or to
 * several, its replicas (PipeDream's 1F1B-RR: Narayanan et al., SOSP 2019, section 3.2):
 * micro-batch m of a stage with r replicas is on replica m mod r, forward and backward. A stage,
 * and each replica, has its weights, which begin as version 0; exactly one version is *bound*, that
 * is, read by the actions that compute.
 *
 *     2F3          forward of micro-batch 3 through stage 2. Reads the bound weights and the
 *                  activations of stage 1, which were received, or made on the same rank.
 *     2R3          forward once more: makes again the activations that the backward needs. Only in
 *                  schedules with `recompute`, where a forward keeps its input and nothing else.
 *     2B3          backward: the gradient of the input, and the weight gradient is added to the
 *                  stage's sum. Reads the bound weights and the gradient that stage 3 made.
 *     2I3, 2W3     the two parts of a backward: the input's gradient; the addition to the sum. W
 *                  reads what I left, and no weights.
 *     2SEND_F3>1   sends the activations of stage 2 to rank 1, which has stage 3;
 *     3RECV_F3<0   receives them there, from rank 0, as the input of stage 3.
 *     3SEND_B3>0   sends the gradient of the input of stage 3 to rank 0, which has stage 2;
 *     2RECV_B3<1   receives it there.
 *     2REDUCE      sums the stage's gradient over its replicas, before a step: waits until all of
 *                  them are there.
 *     2STASH@4     copies version 4, the newest one, because the next step will overwrite it while
 *                  it is still needed. The copy is kept until its last reader.
 *     2STEP@5      the optimizer makes version 5 from version 4 and the sum; version 5 is bound,
 *                  and the sum is empty.
 *     2LOAD@4      binds version 4, the newest or a stashed one.
 *
 * Messages from one rank to another form one channel; they arrive in the order in which they were
 * sent. A verified table does not deadlock if a send waits while its channel holds one message. An
 * executor should nevertheless post a receive and wait for it at its first use only, which is what
 * src/cost/simulate.c assumes.
 *
 * Micro-batch m must find version max(0, m / per_step - delay) at stage s (integer division), in
 * its forward and in its backward. With delay 0 and one step this is gradient accumulation; other
 * rules are the staleness of an asynchronous schedule. The sequential twin of a table follows from
 * this alone: step k of a stage sums the gradients of micro-batches (k-1) * per_step to k *
 * per_step - 1, in ascending order, each at its version; with replicas, those of each replica, and
 * then their sums. Tables with replicas have one step.
 */
#ifndef LS_SCHEDULE_SCHEDULE_H
#define LS_SCHEDULE_SCHEDULE_H

#include <lockstep/status.h>

#include "base/arena.h"

/* Limits: tables of clusters are smaller, and what a file says is bounded. */
#define LS__SCHEDULE_RANKS_MAX 256
#define LS__SCHEDULE_STAGES_MAX 4096
#define LS__SCHEDULE_MICRO_BATCHES_MAX 32768
#define LS__SCHEDULE_CELLS_MAX (1 << 20) /* stages x micro-batches */
#define LS__SCHEDULE_NAME_BYTES 32
#define LS__DELAY_BY_STAGE (-1) /* stage s: stages - 1 - s */

/* ---- the table ------------------------------------------------------------------------------- */

typedef enum ls__action_kind {
    LS__FORWARD,
    LS__RECOMPUTE,
    LS__BACKWARD,
    LS__INPUT_PART,
    LS__WEIGHT_PART,
    LS__SEND_ACTIVATION,
    LS__RECV_ACTIVATION,
    LS__SEND_GRADIENT,
    LS__RECV_GRADIENT,
    LS__REDUCE,
    LS__STASH,
    LS__LOAD,
    LS__STEP,
    LS__ACTION_KINDS
} ls__action_kind;

/* Fields that the kind does not use have no meaning. */
typedef struct ls__action {
    uint8_t kind;
    uint16_t stage;
    uint16_t micro_batch; /* of computations and messages */
    uint16_t peer;        /* of messages: the other rank */
    uint16_t version;     /* of STASH, LOAD and STEP */
} ls__action;

typedef struct ls__actions {
    ls__action *list;
    int count, room;
} ls__actions;

typedef struct ls__schedule {
    ls__arena arena; /* owns all of it */
    char name[LS__SCHEDULE_NAME_BYTES];
    int ranks, stages, micro_batches;
    int per_step; /* micro-batches whose gradients a step sums; divides micro_batches */
    int delay;    /* steps by which the weights are older; or LS__DELAY_BY_STAGE */
    bool recompute;
    int warm_up;        /* of 1f1b: forwards that a stage runs ahead, for each rank behind it */
    int *rank_of;       /* [stages] of its first replica; the ranks behind it have the others */
    int *replicas;      /* [stages] how many */
    int *first_replica; /* [stages] replicas of the stages before it */
    int replica_count;  /* of all stages */
    ls__actions *rank;  /* [ranks] */
    bool no_memory;     /* an action could not be added */
} ls__schedule;

/* ---- making tables --------------------------------------------------------------------------- */

/* Fields that are 0 take their defaults. */
typedef struct ls__schedule_spec {
    int ranks;            /* P; needed without `replicas` */
    int micro_batches;    /* M; needed */
    int chunks;           /* V, stages per rank; interleaved: default 2, others have 1 */
    int per_step;         /* pipedream-2bw: micro-batches of a version, at least P; default P */
    bool recompute;       /* keep a stage's input only, and run its forward again (GPipe, 2.3) */
    bool vertical_sync;   /* pipedream: all stages take the version of the first one (3.3) */
    int warm_up;          /* 1f1b: forwards ahead for each rank behind a stage; default 1 */
    const char *replicas; /* gpipe, 1f1b: ranks of each stage, "2,1,1"; the first stage has the
                             first ones. Default: one each */
} ls__schedule_spec;

/* A new schedule, verified; *out is NULL on an error. LS_ERR_NOT_FOUND: there is no such name;
 * LS_ERR_INVALID: the spec makes no such schedule, with the reason; LS_ERR_LIMIT, LS_ERR_MEMORY.
 *
 *     naive          one micro-batch at a time goes forward and backward through all ranks
 *     gpipe          all forwards, all backwards (Huang et al., NeurIPS 2019, section 2.2), the
 *                    backwards in ascending order so that the sums are those of all others
 *     1f1b           P-1-r forwards, then one forward and one backward in turns (PipeDream-Flush:
 *                    Narayanan et al., ICML 2021, section 3.2; Megatron-LM, SC 2021, section
 *                    2.2.1). With warm_up w it begins with w(P-1-r) forwards: with 2 it hides the
 *                    latency between ranks, at the memory of w(P-1-r)+1 micro-batches
 *                    (one_f_one_b.c); each replica takes its own micro-batches in this way
 *     interleaved    1f1b with V stages on each rank (SC 2021, section 2.2.2); M a multiple of P
 *     zb-h1          1f1b with weight parts that are delayed by r (Qi et al., ICLR 2024, section 2)
 *     pipedream      1f1b with a step after each backward and stashed weights (Narayanan et al.,
 *                    SOSP 2019, sections 3.2 and 3.3)
 *     pipedream-2bw  the same with a step after `per_step` backwards and two versions of the
 *                    weights (ICML 2021, section 3.1) */
ls_status ls__schedule_new(const ls__env *env, const char *name, const ls__schedule_spec *spec,
                           ls__schedule **out);
void ls__schedule_free(ls__schedule *schedule); /* NULL is allowed */

/* The names, in the order above, and what each is for in a few words; returns how many. */
int ls__schedule_names(const char *const **names, const char *const **abouts);

/* Reads the text form, which is not verified. `what` begins the messages and names the file; they
 * name the line. LS_ERR_FORMAT, LS_ERR_LIMIT, LS_ERR_MEMORY. Memory is in proportion to the text.
 *
 *     schedule 1f1b              a name of letters, digits, - and _
 *     ranks 2
 *     stages 2
 *     micro-batches 4
 *     per-step 4                 default: micro-batches
 *     delay 0                    default: 0; or by-stage
 *     recompute no               default: no
 *     warm-up 1                  of 1f1b; default: 1
 *     replicas 2,1               default: 1 for each stage; their sum is the number of ranks
 *     placement 0 1              the first rank of each stage; default: in their order, from rank 0
 *                                again when all ranks have one
 *     rank 0: 0F0 0SEND_F0>1     any number of lines for each rank, which are joined
 *
 * "#" begins a comment, which lasts until the end of the line. */
ls_status ls__schedule_parse(const ls__env *env, const char *what, const char *text, size_t bytes,
                             ls__schedule **out);

/* The text form. It belongs to the schedule; NULL: LS_ERR_MEMORY. */
const char *ls__schedule_print(ls__schedule *schedule);

/* ---- proving and measuring them -------------------------------------------------------------- */

/* LS_OK: the table is executed to its end, also when channels hold one message, and its gradients
 * are those of the sequential twin. LS_ERR_INVALID names the first action at which that fails, and
 * why; LS_ERR_MEMORY. Time and memory are in proportion to actions + stages x micro-batches. */
ls_status ls__schedule_verify(const ls__schedule *schedule);

/* Bytes of each stage, or any other unit. */
typedef struct ls__stage_sizes {
    int64_t activations; /* that a backward needs, of one micro-batch */
    int64_t input;       /* that a forward keeps in a schedule with `recompute` */
    int64_t weights;     /* of one version */
} ls__stage_sizes;

/* The highest sums over the stages of a rank at one time. */
typedef struct ls__schedule_peak {
    int64_t activations; /* from the forward (or recomputation) to the backward or its weight
                            part */
    int64_t inputs;      /* from the forward to the backward; only with `recompute` */
    int64_t received;    /* inputs of stages between receiving them and their forward */
    int64_t stashed;     /* weights, besides the newest version, from STASH to their last reader */
} ls__schedule_peak;

/* Of a verified schedule: peaks[ranks]. sizes[stages]; NULL: everything has size 1, so activations
 * are counted in micro-batches of a stage and stashes in versions. LS_ERR_MEMORY. */
ls_status ls__schedule_peaks(const ls__schedule *schedule, const ls__stage_sizes *sizes,
                             ls__schedule_peak *peaks);

/* Of a stage and one micro-batch, in any unit of time. */
typedef struct ls__stage_times {
    double forward; /* and recomputation */
    double backward;
    double input, weight; /* the parts of a backward */
} ls__stage_times;

/* What the formulas of the papers say about a schedule made by its generator, whose stages all take
 * `times`; a negative time: no formula holds. Texts are static. */
typedef struct ls__closed_form {
    double makespan, bubble;
    const char *bubble_text; /* "(P-1)(F+B)"; where no formula holds: why */
    const char *activations_text, *stashed_text;
} ls__closed_form;

void ls__schedule_closed_form(const ls__schedule *schedule, const ls__stage_times *times,
                              double latency, ls__closed_form *out);
/* The peaks of a rank by the formulas, in micro-batches of a stage and in versions. */
void ls__schedule_closed_peak(const ls__schedule *schedule, int rank, ls__schedule_peak *out);

/* ---- details --------------------------------------------------------------------------------- */

#define LS__ACTION_BYTES 48 /* of an action's text, at most */
/* "2SEND_F3>1" in out[LS__ACTION_BYTES]; returns out. */
const char *ls__action_print(const ls__action *action, char *out);

/* Which fields a kind uses, and its token ("SEND_F"). */
typedef struct ls__action_form {
    const char *token;
    bool micro_batch, version;
    char arrow;    /* '>' or '<' before the peer; 0: none */
    bool reads;    /* the bound weights */
    bool adds;     /* to the sum of the weight gradients */
    bool backward; /* makes the gradient of the input */
} ls__action_form;
const ls__action_form *ls__action_form_of(int kind);

/* The version that the rule gives a micro-batch at a stage. */
int ls__schedule_version(const ls__schedule *schedule, int stage, int micro_batch);
int ls__schedule_steps(const ls__schedule *schedule);
/* Whether it steps the optimizer: pipedream and pipedream-2bw, also where a call has one step. */
bool ls__schedule_steps_itself(const ls__schedule *schedule);

/* The rank that has micro-batch m of a stage. */
int ls__schedule_rank(const ls__schedule *schedule, int stage, int micro_batch);
/* Which replica of the stage a rank has, from 0; negative, or too large: none. */
int ls__schedule_replica(const ls__schedule *schedule, int stage, int rank);
/* How many of the first `count` micro-batches are on a replica. */
int ls__schedule_share(const ls__schedule *schedule, int stage, int replica, int count);
bool ls__schedule_has_replicas(const ls__schedule *schedule); /* a stage has several */

/* Replicas as text, "2,1,1" of `length` characters, into counts[LS__SCHEDULE_RANKS_MAX]; returns
 * the number of stages, or LS_ERR_INVALID in the name of `what`. */
int ls__schedule_parse_replicas(const char *what, const char *text, size_t length, int *counts);

/* An empty table of these sizes, its stages placed one after the other; replicas[stages] or NULL.
 * *out is NULL on an error: LS_ERR_INVALID, LS_ERR_LIMIT in the name of `what`, LS_ERR_MEMORY. */
ls_status ls__schedule_empty(const ls__env *env, const char *what, const char *name, int ranks,
                             int64_t stages, int micro_batches, const int *replicas,
                             ls__schedule **out);
/* Adds an action to the end of a rank's list, or sets no_memory. */
void ls__schedule_push(ls__schedule *schedule, int rank, ls__action action);

/* For generators. */

/* Adds a computation to the rank of the stage; before a backward its recomputation, if there is
 * one. table.c */
void ls__generate(ls__schedule *s, ls__action_kind kind, int stage, int micro_batch);

/* lower.c: adds LOAD, REDUCE, STASH and STEP around the computations of each rank. */
ls_status ls__lower_versions(ls__schedule *s);
/* lower.c: adds sends and receives. */
ls_status ls__lower_messages(ls__schedule *s);

#endif
