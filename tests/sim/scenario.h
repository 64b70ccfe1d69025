/* SPDX-License-Identifier: Apache-2.0 */
/* A scenario: a job of some ranks that runs a script of operations while something goes wrong, and
 * the verdict about how it came through. All of it follows from a seed.
 *
 *     draw ──▶ plan: hosts, ranks, groups, operations, faults, pace
 *     play ──▶ the launcher's front, agent and ranks as simulated processes; each rank runs the
 *              script, compares every result with a plain loop, and notes how its run ended
 *     judge ─▶ all well with the right bits, or the same named error on every live rank
 */
#ifndef LS_SIM_SCENARIO_H
#define LS_SIM_SCENARIO_H

#include "comm/program/program.h"
#include "launch/launch.h"
#include "sim/sim.h"

#define LS__PLAN_RANKS_MAX 16
#define LS__PLAN_OPERATIONS_MAX 64
#define LS__PLAN_FAULTS_MAX 3
#define LS__PLAN_GROUPS 3

typedef enum ls__plan_kind {
    LS__PLAN_ALL_REDUCE,
    LS__PLAN_DIVIDED,  /* all_reduce with a divisor */
    LS__PLAN_DOUBLING, /* all_reduce by recursive doubling, in messages */
    LS__PLAN_REDUCE_SCATTER,
    LS__PLAN_ALL_GATHER,
    LS__PLAN_BROADCAST,
    LS__PLAN_BINOMIAL, /* broadcast in messages */
    LS__PLAN_REDUCE,
    LS__PLAN_GATHER,
    LS__PLAN_SCATTER,
    LS__PLAN_BARRIER,
    LS__PLAN_EXCHANGE, /* send and recv around the ring */
    LS__PLAN_REGROUP,  /* frees the second group and makes another */
    LS__PLAN_ALL_TO_ALL,
    LS__PLAN_SCAN,
    LS__PLAN_EXSCAN,
    LS__PLAN_ANY_SOURCE, /* EXCHANGE, received from anybody */
    LS__PLAN_ALL_TO_ALL_V,
    LS__PLAN_ALL_GATHER_V,
    LS__PLAN_REDUCE_SCATTER_V,
    LS__PLAN_GATHER_V,
    LS__PLAN_SCATTER_V,
    LS__PLAN_KINDS
} ls__plan_kind;

typedef struct ls__plan_operation {
    uint64_t id; /* what its values are drawn from */
    ls__plan_kind kind;
    int group;
    int64_t count;
    int root;
    ls_dtype dtype;
    ls_reduce_op op;
    int divisor;           /* of floats; 0: none */
    bool wait;             /* at once, by every rank; otherwise each as its own dice fall */
    bool burst;            /* started at once after the one before, by every rank */
    const char *algorithm; /* by name; NULL: chosen */
} ls__plan_operation;

typedef enum ls__plan_wrong { /* how a rank's call differs */
                              LS__WRONG_COUNT,
                              LS__WRONG_DTYPE,
                              LS__WRONG_OP,
                              LS__WRONG_OPERATION,
                              LS__WRONG_TAG,
                              LS__WRONG_MISSING,
                              LS__WRONG_KINDS
} ls__plan_wrong;

typedef enum ls__fault_kind {
    LS__FAULT_SLOW,   /* a rank gets little of the processor */
    LS__FAULT_STALL,  /* stopped for less than the deadline */
    LS__FAULT_FREEZE, /* stopped for longer */
    LS__FAULT_KILL,   /* SIGKILL */
    LS__FAULT_EXIT,   /* ends without a word */
    LS__FAULT_WRONG,  /* calls something else */
    LS__FAULT_ABORT,  /* ls_group_abort */
    LS__FAULT_MEMORY, /* an allocation fails */
    LS__FAULT_AGENT,  /* the launcher's agent is killed */
    LS__FAULT_FRONT,  /* the launcher itself is */
    /* Of several hosts. */
    LS__FAULT_RESET,   /* a connection between two ranks is reset */
    LS__FAULT_CUT,     /* two hosts do not reach each other, for good */
    LS__FAULT_ONE_WAY, /* one does not reach the other */
    LS__FAULT_GAP,     /* the same as CUT for a moment that nobody may take amiss */
    LS__FAULT_HOST,    /* a host is gone without a word */
    LS__FAULT_FLIP,    /* one bit of a frame between two ranks is another one */
    /* Of jobs that train. */
    LS__FAULT_STOP, /* the user asks the job to stop: no fault */
    /* Of jobs that save checkpoints. */
    LS__FAULT_DISK,  /* a call fails */
    LS__FAULT_POWER, /* all hosts at once; the disk keeps what was brought to it */
    LS__FAULT_KINDS
} ls__fault_kind;

typedef struct ls__fault {
    ls__fault_kind kind;
    int rank;
    int operation;      /* EXIT, WRONG, ABORT: at this one */
    ls__plan_wrong how; /* WRONG */
    int code;           /* EXIT */
    uint64_t call;      /* KILL, STALL, …: at the rank's call of the env table of this number */
    uint64_t for_ns;    /* STALL, FREEZE */
    int host, other;    /* of several hosts */
    ls__sim_flip flip;  /* FLIP */
    bool armed, done;
    uint64_t at_ns; /* done: since when; 0: not known */
} ls__fault;

typedef struct ls__rank_outcome {
    ls__sim_process *process;
    bool began;    /* its main was entered */
    bool reported; /* what follows is said */
    ls_status status;
    char text[LS__MESSAGE_MAX];
    int operation; /* how far it came */
    uint64_t at_ns;
    bool finalized;
    int64_t stopped_at; /* step of training after which a stop was agreed on; 0: none was */
    size_t bytes;       /* allocated at the end */
    int fds;
    uint64_t longest_ns; /* that a call waited */
    uint64_t idlest_ns;  /* the same, of the time in which all threads of the world slept */
    int longest, idlest; /* which operations */
} ls__rank_outcome;

/* When a wait began. */
typedef struct ls__wait_begin {
    uint64_t now_ns, idle_ns;
} ls__wait_begin;

ls__wait_begin ls__wait_begins(void);
void ls__wait_ends(ls__rank_outcome *o, ls__wait_begin begun, int operation);

typedef struct ls__plan {
    uint64_t seed;
    int ranks, hosts;
    int on_host[LS__SIM_HOSTS_MAX]; /* ranks; they follow each other */
    int host_of[LS__PLAN_RANKS_MAX];
    int operations;
    ls__plan_operation operation[LS__PLAN_OPERATIONS_MAX];
    int faults;
    ls__fault fault[LS__PLAN_FAULTS_MAX];
    bool groups; /* others than the world */
    /* Checkpoints. */
    bool saves, save_async;
    int save_every;               /* operations */
    int64_t confirmed, attempted; /* steps; 0: none */
    bool trains;
    int train_every; /* operations */
    bool pipes;
    int pipe_every; /* operations */
    int64_t timeout_ms;
    ls__rank_outcome outcome[LS__PLAN_RANKS_MAX];
    struct ls__plan_node { /* what `lockstep run` is on each host */
        struct ls__plan *plan;
        int host;
        int (*main)(void *arg); /* of its ranks */
        ls__sim_process *front;
        bool ended;
        uint64_t ended_ns;
        ls_status status;
        ls__job_result result;
    } node[LS__SIM_HOSTS_MAX];
} ls__plan;

typedef struct ls__plan_node ls__plan_node;

/* draw.c */
void ls__plan_draw(ls__plan *plan, uint64_t seed, int ranks); /* ranks 0: by the seed, too */
const char *ls__fault_name(ls__fault_kind kind);
const char *ls__plan_kind_name(ls__plan_kind kind);
/* player.c: the main of a rank. */
int ls__player_main(void *plan);
/* saver.c */
#define LS__SAVED_ROWS 5

typedef struct ls__saved {
    float weight[LS__SAVED_ROWS * 3];
    int64_t count;
    double rate;
} ls__saved;

typedef struct ls__saver {
    ls__plan *plan;
    struct ls_checkpoint *checkpoint;
    ls__saved state;
    int64_t pending; /* the last step that was saved */
} ls__saver;

ls_status ls__saver_begin(ls__saver *saver, ls__plan *plan);
ls_status ls__saver_save(ls__saver *saver, int64_t step);
ls_status ls__saver_end(ls__saver *saver);
int ls__resume_main(void *plan); /* the main of a rank of the second job */

/* trainer.c */
#define LS__TRAINED 5

typedef struct ls__trainer {
    ls__plan *plan;
    int rank;
    struct ls_reducer *reducer;
    void *grad[LS__TRAINED];
    int64_t steps;
    ls__sim_random dice;
} ls__trainer;

ls_status ls__trainer_begin(ls__trainer *trainer, ls__plan *plan, int rank);
ls_status ls__trainer_step(ls__trainer *trainer, bool *stop); /* checks every gradient */
ls_status ls__trainer_end(ls__trainer *trainer);

/* stager.c */
typedef struct ls__stager {
    ls__plan *plan;
    int rank;
    ls__rank_outcome *outcome; /* where its waits are noted */
    struct ls_group *group;
    struct ls__staged *staged;
    int64_t calls;
} ls__stager;

ls_status ls__stager_begin(ls__stager *stager, ls__plan *plan, int rank, ls__rank_outcome *outcome);
ls_status ls__stager_call(ls__stager *stager); /* the messages of all micro-batches, compared */
ls_status ls__stager_end(ls__stager *stager);

/* oracle.c */
/* In an id: small whole numbers, any sum or product of which is exact. */
#define LS__ORACLE_WHOLE (1ull << 63)

float ls__oracle_float(uint64_t id, int rank, int64_t i);
/* One element of the operation's dtype: rank's input, and its reduction over ranks 0 to ranks -
 * 1. */
void ls__oracle_value(const ls__plan_operation *o, int rank, int64_t i, void *out);
void ls__oracle_reduced(const ls__plan_operation *o, int64_t i, int ranks, void *out);
double ls__oracle_factor(int rank); /* of PREMUL_SUM */
/* Of the same size and with at least the same operators. */
ls_dtype ls__oracle_other_dtype(ls_dtype dtype);
/* uneven.c: blocks of unequal lengths. */
typedef struct ls__uneven {
    ls__operation operation;
    int rank, size, root;
    int64_t own;   /* length of the block of the side that has one */
    int blocks[2]; /* of INPUT and OUTPUT; 0: not on this rank */
    int64_t count[2][LS__PLAN_RANKS_MAX], offset[2][LS__PLAN_RANKS_MAX];
    const int64_t *offsets[2]; /* NULL: one after the other */
    int64_t end[2];            /* elements of the buffers */
} ls__uneven;

ls__operation ls__uneven_operation(ls__plan_kind kind); /* LS__OP_COUNT: no v-variant */
/* Points into itself: not to be copied. */
void ls__uneven_lay_out(const ls__plan_operation *o, int rank, int size, ls__uneven *u);
void ls__uneven_fill(const ls__plan_operation *o, const ls__uneven *u, void *in);
ls_status ls__uneven_start(const ls__plan_operation *o, const ls__uneven *u, ls_group *g,
                           const void *in, void *out, const ls_collective_options *with,
                           ls_work **work);
/* The first element that is wrong; -1: none is. */
int64_t ls__uneven_wrong(const ls__plan_operation *o, const ls__uneven *u, const void *out);
/* texts.c: whether an error that was told at that time names a fault that had struck by then. */
bool ls__plan_names_cause(const ls__plan *plan, const char *text, uint64_t at_ns);
/* judge.c: NULL: all is as it must be. */
const char *ls__plan_judge(ls__plan *plan);

typedef struct ls__scenario_options {
    int ranks;
    void (*log)(void *arg, const char *line);
    void *log_arg;
    bool log_switches;
} ls__scenario_options;

typedef struct ls__scenario_result {
    bool good;
    char why[LS__SIM_TEXT_MAX];
    char about[256]; /* the plan in a line */
    uint64_t hash, switches, calls, virtual_ns;
} ls__scenario_result;

/* scenario.c */
void ls__scenario_run(uint64_t seed, const ls__scenario_options *options,
                      ls__scenario_result *result);

#endif
