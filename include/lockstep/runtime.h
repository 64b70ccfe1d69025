/* The runtime: one per process (or per simulated rank), made by ls_init and current on its threads.
 *
 * ls_init finds out how the process was started: under `lockstep run` or ls_spawn it joins the
 * world of N ranks through the inherited descriptor; started bare it is a world of one, without a
 * socket. After fork() without exec() every call in the child returns LS_ERR_FORKED.
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
    int64_t timeout_ms; /* deadline of an operation that gives none; default LOCKSTEP_TIMEOUT or 300
                           s */
    int threads; /* compute threads of this rank; 0: OMP_NUM_THREADS, else cores / local ranks */
    bool graceful_stop; /* the first SIGINT or SIGTERM, to `lockstep run` or to this process, does
                           not end the program: it is asked to stop, see ls_stop_requested. Handlers
                           of your own and ignored signals stay. Default false */
} ls_init_options;
#define LS_DEFAULTS_ls_init_options
LS_DEFAULTS_FUNCTION(init)

/* Makes the runtime of this process and joins the world (MPI_Init, init_process_group). Collective.
 * Errors: LS_ERR_STATE when already initialised, LS_ERR_UNSUPPORTED when the environment asks for a
 * world this build cannot join, LS_ERR_TIMEOUT or LS_ERR_PEER when ranks are missing. */
LS_API ls_status ls_init(const ls_init_options *options);

/* Leaves the world and frees the runtime (MPI_Finalize). Waits for operations in flight. Every
 * group, module and kept tensor must have been freed; what is left is freed here, with a debug log
 * line. */
LS_API ls_status ls_finalize(void);

LS_API int ls_rank(void);             /* 0 … world_size-1; 0 without a runtime */
LS_API int ls_world_size(void);       /* 1 without a runtime */
LS_API int ls_local_rank(void);       /* rank among those on this host */
LS_API int ls_local_world_size(void); /* ranks on this host */

/* Whether the job was asked to stop (Ctrl-C, SIGTERM) and this program should leave its training
 * loop, save and finish; needs .graceful_stop. It is agreed on: what the last synchronising
 * backward of a reducer or ls_ddp over the whole world exchanged, or ls_stop_agree, so all ranks
 * read the same after the same step. Alone, it is this process' own, and may turn at any moment:
 * ask once a step. Local, costs a load. A second signal does not wait for it. */
LS_API bool ls_stop_requested(void);

/* Makes `runtime` current on the calling thread; NULL detaches. A thread made by the user attaches
 * before its first call and detaches before it ends. Attach it before other threads wait for what
 * it is to call: when all attached threads of a rank wait, the rank is taken to make no other call,
 * and if the ranks it waits for wait for it likewise, that is reported as a deadlock. */
LS_API ls_status ls_runtime_attach(ls_runtime *runtime);
LS_API ls_runtime *ls_runtime_current(void); /* borrowed; NULL without one */

/* Seed of the random streams; every rank must set the same (torch.manual_seed): the first
 * synchronised backward compares them. */
LS_API ls_status ls_manual_seed(uint64_t seed);

/* Seconds of a monotonic clock with an arbitrary zero. */
LS_API double ls_time(void);

/* Prints one log line "[rank R] level: text" to stderr when `level` is enabled (LOCKSTEP_DEBUG). */
LS_API void ls_log_message(ls_log_level level, const char *format, ...) LS_PRINTF(2, 3);

/* From now on every log line of this process that is enabled goes to `fn` instead of stderr:
 * `text` is the message without rank, level and newline, valid during the call. NULL: stderr again.
 * May be called at any time, also before ls_init and by any thread; `fn` is called by whichever
 * thread has something to say, several at a time, so it must be thread-safe, and short. When this
 * returns, the former function is not running and will not be called again. `fn` may log, but not
 * set the callback. */
typedef void (*ls_log_fn)(ls_log_level level, const char *text, void *arg);
LS_API void ls_set_log_callback(ls_log_fn fn, void *arg);

/* Frees memory that a function of this library returned to its caller: objects of comm.h, the ids
 * and texts of tokenizer.h. NULL is allowed; also after ls_finalize. */
LS_API void ls_bytes_free(void *memory);

/* Runs fn(arg) on n ranks, each a new process of this program made by fork (mp.spawn): call it
 * before ls_init; fn calls ls_init and ls_finalize itself. Blocks until all have ended. Returns
 * LS_OK when every rank returned 0, LS_ERR_PEER with the report of the first failure otherwise. */
LS_API ls_status ls_spawn(int (*fn)(void *arg), void *arg, int n);

#ifdef __cplusplus
}
#endif
#endif
