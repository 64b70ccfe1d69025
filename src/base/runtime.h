/* The runtime's common part, and the one thread-local: which runtime a thread belongs to.
 *
 * Layers hang their own state into `layer[]`, so that a layer needs no global and none above it.
 * comm/engine/runtime.c makes and destroys runtimes (ls_init, ls_finalize).
 */
#ifndef LS_BASE_RUNTIME_H
#define LS_BASE_RUNTIME_H

#include <lockstep/runtime.h>

#include "base/activity.h"
#include "base/config.h"
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
    uint64_t param_streams; /* parameters initialised so far: the stream of the next one's values */
    uint64_t step;          /* of the step context; see ls_step_begin */
    int64_t sample_offset;
    uint64_t calls_in_step; /* random operations since ls_step_begin: the stream of the next one */
    bool graceful_stop;     /* a wish to stop is answered and does not kill */
    const _Atomic uint32_t *stop; /* the launcher's wish: a signal's number, 0: none. Never NULL */
    _Atomic uint32_t own_stop;    /* where there is no board; stays 0 */
    _Atomic uint32_t stop_agreed; /* by all ranks; see ls_stop_requested. Sync: relaxed; a reader
                                     has waited for the exchange that wrote it */
    ls__config config;            /* must be the same on all ranks */
    int optimizers;               /* that have stepped on averaged gradients; names in `config` */
    bool kept; /* ls_finalize does not free it: a thread that hangs in a system call may read it */
    ls_log_level log_level;
    ls__activity *activity; /* never NULL; in the job's board when there is one */
    ls__activity own_activity;
    struct {
        void *data;
        void (*free)(ls_runtime *runtime,
                     void *data); /* called by ls_finalize, highest layer first */
    } layer[LS__LAYER_COUNT];
};

/* Where random operations stand: what ls_step_begin sets, and each operation moves on. */
typedef struct ls__draws {
    uint64_t seed, step;
    int64_t sample_offset;
    uint64_t calls; /* as calls_in_step */
} ls__draws;

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
    ls__draws *replay;  /* a forward pass runs again for its gradients (ls_recompute): it draws what
                          it drew then, and what it counts is counted already; NULL: none does */
    int modules;        /* forward passes of modules under way, one within the other */
    char *refusal;      /* while an operator of the user's runs: why it cannot; "": it can */
    uint64_t exchanges; /* operations on groups that this thread has begun */
    void *scope;        /* tensor's innermost scope of this thread */
    struct ls__meter *meter; /* is told of each operation (tensor/meter.h); NULL: none */
    char message[LS__MESSAGE_MAX];
} ls__thread;

extern _Thread_local ls__thread ls__self;

/* Fills the common part with the defaults of a world of one and the environment's settings
 * (LOCKSTEP_TIMEOUT, LOCKSTEP_DEBUG); everything else is zero. */
void ls__runtime_init(ls_runtime *runtime, const ls__env *env);

/* ls_finalize calls `leave` for all guests that are left, so that an object can tell that its runtime
 * has ended, also when another one was made since. */
void ls__runtime_enter(ls_runtime *runtime, ls__runtime_guest *guest);
void ls__runtime_leave(ls__runtime_guest *guest); /* a second call does nothing */
void ls__runtime_dismiss(ls_runtime *runtime);

/* The signal by which this rank alone was asked to stop; 0: none, or it does not answer. */
uint32_t ls__stop_wanted(const ls_runtime *runtime);

/* ls_runtime_attach for a thread of the library, which is not counted as one of the user's. */
void ls__runtime_attach_background(ls_runtime *runtime);

/* The current runtime, or NULL with LS_ERR_STATE ("call ls_init first") or LS_ERR_FORKED set;
 * `what` names the call for the message. */
ls_runtime *ls__runtime_get(const char *what);

#endif
