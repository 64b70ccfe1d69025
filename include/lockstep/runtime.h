/* SPDX-License-Identifier: Apache-2.0 */
/* The runtime: one per process (or per simulated rank), made by ls_init and current on its threads.
 *
 * ls_init detects how the process was started: under `lockstep run` or ls_spawn it joins the world
 * of N ranks through an inherited descriptor, under another launcher (torchrun, mpirun, srun, …) by
 * that launcher's variables (docs/launching.md). A process started by hand is a world of one rank,
 * without a socket. After fork() without exec() every call in the child returns LS_ERR_FORKED.
 */
#ifndef LOCKSTEP_RUNTIME_H
#define LOCKSTEP_RUNTIME_H

#include <stdbool.h>

#include <lockstep/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ls_runtime ls_runtime;

typedef enum ls_log_level {
    LS_LOG_ERROR = 0,
    LS_LOG_WARN = 1,
    LS_LOG_INFO = 2,
    LS_LOG_DEBUG = 3
} ls_log_level;

typedef struct ls_init_options {
    size_t size;
    uint64_t seed;      /* of the random streams (parameters, dropout, samplers); default 0 */
    int64_t timeout_ms; /* deadline of operations that set no other; default LOCKSTEP_TIMEOUT, or
                           300 s */
    int threads; /* compute threads of this rank; 0: OMP_NUM_THREADS, else cores / local ranks.
                    Cores: those of the affinity mask, or fewer by a control group's quota */
    bool graceful_stop; /* the first SIGINT or SIGTERM, to `lockstep run` or to this process, does
                           not end the program but is a stop request, see ls_stop_requested.
                           Existing handlers and ignored signals are kept. Default false */
} ls_init_options;
#define LS_DEFAULTS_ls_init_options
LS_DEFAULTS_FUNCTION(init)

/* Makes the runtime of this process and joins the world (MPI_Init, init_process_group). Collective.
 * Errors: LS_ERR_STATE when it is already initialised, LS_ERR_UNSUPPORTED when the environment
 * describes a world that this build cannot join, LS_ERR_AUTH when the secret is wrong,
 * LS_ERR_TIMEOUT or LS_ERR_PEER when ranks are missing. After ls_finalize a process may call it
 * again, but not under `lockstep run`, where a rank joins its job once: LS_ERR_INVALID. */
LS_API ls_status ls_init(const ls_init_options *options);

/* Leaves the world and frees the runtime (MPI_Finalize). Collective; waits for operations in
 * flight. Free every group, module and kept tensor before; objects that are left are freed here,
 * with a debug log line. */
LS_API ls_status ls_finalize(void);

LS_API int ls_rank(void);             /* 0 … world_size-1; 0 without a runtime */
LS_API int ls_world_size(void);       /* 1 without a runtime */
LS_API int ls_local_rank(void);       /* 0 … local_world_size-1, among the ranks of this host */
LS_API int ls_local_world_size(void); /* number of ranks on this host */

/* Whether the job received a stop request (Ctrl-C, SIGTERM), so that this program should leave its
 * training loop, save and finish; requires .graceful_stop. Ranks agree about the answer in each
 * synchronising backward of a reducer or ls_ddp_new, or in ls_stop_agree, so all of them see the
 * same answer after the same step. Of several groups the largest counts on each rank. Where ranks
 * of different groups depend on each other, as the stages of a pipeline, call ls_stop_agree in each
 * step for a group that has all of them. In a world of one rank the answer can change at any
 * moment, so call it once per step. Local call; costs one load. A second signal ends the job. */
LS_API bool ls_stop_requested(void);

/* Makes `runtime` (of ls_runtime_current on another thread) current on the calling thread; NULL
 * detaches the thread. A thread that the program creates attaches before its first call and
 * detaches before it ends. Attach it before other threads wait for an operation that it starts: if
 * all attached threads of a rank wait, the library assumes that the rank makes no other call, and
 * if the ranks that it waits for also wait for it, this is reported as a deadlock. */
LS_API ls_status ls_runtime_attach(ls_runtime *runtime);
LS_API ls_runtime *ls_runtime_current(void); /* borrowed; NULL without one */

/* Sets the seed of the random streams (torch.manual_seed) for parameters that are filled and random
 * operations that run from now on; random.h says which number each of them draws. Every rank must
 * set the same seed; the first synchronised backward compares them (LS_ERR_MISMATCH). Local
 * call. */
LS_API ls_status ls_manual_seed(uint64_t seed);

/* Seconds of a monotonic clock with an arbitrary zero. */
LS_API double ls_time(void);

/* Writes one log line "[rank R] level: text" to stderr, or to the log callback, when `level` is
 * enabled (LOCKSTEP_DEBUG). `format` is printf's. */
LS_API void ls_log_message(ls_log_level level, const char *format, ...) LS_PRINTF(2, 3);

/* Sends every enabled log line of this process to `fn` instead of stderr; NULL restores stderr.
 * `text` is the message without rank, level and newline, and is valid during the call. Any thread
 * may set the callback at any time, also before ls_init. `fn` is called by any thread that logs, by
 * several at the same time, so it must be thread-safe and short. When this function returns, the
 * previous callback is not running and will not be called again. `fn` may log, but not set the
 * callback. */
typedef void (*ls_log_fn)(ls_log_level level, const char *text, void *arg);
LS_API void ls_set_log_callback(ls_log_fn fn, void *arg);

/* Calls fn(arg) on the calling thread whenever it waits in this library for longer than about 0.1
 * ms: again every 50 to 200 us until the wait ends. For a library that makes progress only when it
 * is called, as MPI is: a peer may need that progress to come to the operation that this thread
 * waits for. `fn` must be short and must not call this library. NULL removes it. Local call; other
 * threads are not affected. */
typedef void (*ls_wait_fn)(void *arg);
LS_API void ls_set_wait_callback(ls_wait_fn fn, void *arg);

/* Frees memory that a function of this library returned to its caller: objects of comm.h, ids and
 * texts of tokenizer.h. NULL is allowed. May be called after ls_finalize. */
LS_API void ls_bytes_free(void *memory);

/* Runs fn(arg) on n ranks of this host, 1 to 256, each in a new process made by fork
 * (torch.multiprocessing.spawn). Call it before ls_init; fn calls ls_init and ls_finalize itself.
 * Blocks until all processes have ended. Returns LS_OK when fn returned 0 on every rank, otherwise
 * LS_ERR_PEER with the report of the root cause. LS_ERR_STATE after ls_init. */
LS_API ls_status ls_spawn(int (*fn)(void *arg), void *arg, int n);

#ifdef __cplusplus
}
#endif
#endif
