/* SPDX-License-Identifier: Apache-2.0 */
/* The runtime's common part, and the one thread-local: which runtime a thread belongs to.
 *
 * Layers hang their own state into `layer[]`, so that a layer needs no global and none above it.
 * comm/runtime/runtime.c makes and destroys runtimes (ls_init, ls_finalize).
 */
#ifndef LS_BASE_RUNTIME_H
#define LS_BASE_RUNTIME_H

#include <lockstep/runtime.h>

#include "base/activity.h"
#include "base/config.h"
#include "base/draws.h"
#include "base/env.h"
#include "base/error.h"
#include "base/list.h"

enum ls__layer {
    LS__LAYER_COMM,
    LS__LAYER_TENSOR,
    LS__LAYER_AUTOGRAD,
    LS__LAYER_NN,
    LS__LAYER_COUNT
};

/* An object of the user's that lives in a runtime and may be freed after it. */
typedef struct ls__runtime_guest {
    ls__list link;
    ls_runtime *runtime; /* NULL once the runtime has ended: nothing of it can be used any more */
    void (*ended)(struct ls__runtime_guest *guest); /* called before it ends; NULL: no need */
} ls__runtime_guest;

struct ls_runtime {
    const ls__env *env;
    ls__list guests;           /* Sync: the lock in runtime.c */
    _Atomic uint32_t attached; /* threads of the user. Sync: release, acquire */
    int pid;                   /* of the process that made it: differs after a fork */
    int rank, world_size, local_rank, local_size;
    int threads;            /* compute threads of this rank */
    int64_t timeout_ms;     /* default deadline of an operation */
    uint64_t seed;          /* owned by the user's thread between steps */
    uint64_t param_streams; /* tensors filled so far that were not parameters (nn/init.c) */
    uint64_t step;          /* of the step context; see ls_step_begin */
    int64_t sample_offset;
    ls__draw_place outside; /* what is drawn outside of all modules */
    uint64_t draw_round;    /* raised where places begin to count anew (Note [Random numbers by
                               path]) */
    uint64_t draw_first;    /* the number from which they count in this round */
    uint64_t calls_in_step; /* above all numbers drawn in this round. Sync: relaxed */
    bool graceful_stop;     /* a wish to stop is answered and does not kill */
    const _Atomic uint32_t *stop; /* the launcher's wish: a signal's number, 0: none. Never NULL */
    _Atomic uint32_t own_stop;    /* where there is no board; stays 0 */
    _Atomic uint32_t stop_agreed; /* by all ranks; see ls_stop_requested. Sync: relaxed; a reader
                                     has waited for the exchange that wrote it */
    _Atomic uint64_t agreement;   /* Note [Agreement]. Sync: relaxed; written between steps */
    ls__config config;            /* must be the same on all ranks */
    ls_log_level log_level;
    ls__activity *activity; /* never NULL; in the job's board when there is one */
    ls__activity own_activity;
    struct ls__axes_in_force *axes; /* of the mesh in force (base/axes.h); NULL: none */
    struct ls__trace *trace; /* of LOCKSTEP_TRACE (base/trace.h); NULL: nothing is recorded */
    struct {
        void *data;
        void (*free)(ls_runtime *runtime,
                     void *data); /* called by ls_finalize, highest layer first */
    } layer[LS__LAYER_COUNT];
};

#define LS__REFUSAL_MAX 512 /* bytes of a reason */

typedef struct ls__thread {
    ls_runtime *runtime; /* NULL: not attached */
    ls_status status;    /* of the last failing call */
    const char *file;    /* call site noted by LS_AT; "" when none */
    int line;
    bool forked;      /* a child made by fork while attached: every call is refused */
    bool background;  /* a thread of the library: it makes no calls that other ranks' users wait for
                       */
    bool in_callback; /* an operation's end has called the user: nothing may wait */
    bool no_grad;     /* autograd's mode of this thread */
    bool autocast;    /* products of float32 are made in bfloat16 */
    bool skip_init;   /* initial values are not drawn (nn.h) */
    struct ls__draw_log *record; /* of the innermost segment whose first run is under way */
    struct ls__draw_log *replay; /* a forward pass runs again for its gradients (ls_recompute): it
                                    draws what it drew then; NULL: none does */
    int modules;                 /* forward passes of modules under way, one within the other */
    uint32_t crossings; /* grows at the border of a module and before a gradient rule: elements that
                           were read before are not read after it without being asked for again */
    ls__draw_place *drawing; /* of the innermost of them; NULL: none */
    char *refusal;           /* while an operator of the user's runs: why it cannot; "": it can */
    uint64_t fails;          /* messages that this thread has set */
    uint64_t exchanges;      /* operations on groups that this thread has begun */
    void *scope;             /* tensor's innermost scope of this thread */
    uint16_t trace_thread;   /* the number of this thread in the trace; 0: none yet */
    void (*on_wait)(void *arg); /* of ls_set_wait_callback; NULL: none */
    void *on_wait_arg;
    struct ls__meter *meter;       /* is told of each operation (tensor/meter.h); NULL: none */
    struct ls__captured *captured; /* the step under way, if it is watched or recorded
                                      (device/captured.h); NULL: none */
    char message[LS__MESSAGE_MAX];
} ls__thread;

extern _Thread_local ls__thread ls__self;

/* Fills the common part with the defaults of a world of one and the environment's settings
 * (LOCKSTEP_TIMEOUT, LOCKSTEP_DEBUG); everything else is zero. */
void ls__runtime_init(ls_runtime *runtime, const ls__env *env);

/* Every place counts its draws from `first` on. Owned by the user's thread between steps. */
void ls__draws_restart(ls_runtime *runtime, uint64_t first);

/* ls_finalize calls `leave` for all guests that are left, so that an object can tell that its
 * runtime has ended, also when another one was made since. */
void ls__runtime_enter(ls_runtime *runtime, ls__runtime_guest *guest);
void ls__runtime_leave(ls__runtime_guest *guest); /* a second call does nothing */
void ls__runtime_dismiss(ls_runtime *runtime);

/* The signal by which this rank alone was asked to stop; 0: none, or it does not answer. */
uint32_t ls__stop_wanted(const ls_runtime *runtime);

/* Note [Agreement]
 * The ranks of a group agree on stop requests and compare their settings if the group is, on each
 * of them, the largest one in which a reducer or ls_stop_agree synchronises. In a smaller one they
 * would stop before ranks that they meet elsewhere, and may well have other samplers than those.
 * Where a rank has two largest groups neither counts. A group's key is its size and a hash of its
 * ranks. */
uint64_t ls__agreement_key(int size, uint64_t hash);
void ls__agreement_join(ls_runtime *runtime, uint64_t key);
void ls__agreement_leave(ls_runtime *runtime); /* the others that still synchronise join again */

/* ls_runtime_attach for a thread of the library, which is not counted as one of the user's. */
void ls__runtime_attach_background(ls_runtime *runtime);

/* The current runtime, or NULL with LS_ERR_STATE ("call ls_init first") or LS_ERR_FORKED set;
 * `what` names the call for the message. */
ls_runtime *ls__runtime_get(const char *what);

#endif
