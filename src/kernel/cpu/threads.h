/* SPDX-License-Identifier: Apache-2.0 */
/* Threads within a rank: OpenMP where the build has it, else one.
 *
 * Work is cut by shape alone, never by the number of threads, wherever the cut shows in the result.
 * A loop becomes parallel from LS__PARALLEL_MIN elements on: below, waking a thread costs more.
 */
#ifndef LS_KERNEL_CPU_THREADS_H
#define LS_KERNEL_CPU_THREADS_H

#define LS__PARALLEL_MIN 65536

/* for (init; test; next) body, shared among threads where `parallel` holds and there are several.
 * Twice in the code, because a parallel region costs 0.2 us even on one thread. */
#define LS__PARALLEL_FOR(parallel, init, test, next, ...)                                          \
    if ((parallel) && ls__threads_own() > 1) {                                                     \
        _Pragma("omp parallel for schedule(static)") for (init; test; next) __VA_ARGS__            \
    } else {                                                                                       \
        for (init; test; next)                                                                     \
            __VA_ARGS__                                                                            \
    }

#ifdef _OPENMP
#include <omp.h>
static inline int ls__threads_own(void) /* the calling thread may use */
{
    return omp_get_max_threads();
}
static inline int ls__thread_index(void)
{
    return omp_get_thread_num();
}
static inline void ls__threads_set(int threads)
{
    omp_set_num_threads(threads); /* OpenMP keeps it per calling thread */
}
#else
static inline int ls__threads_own(void)
{
    return 1;
}
static inline int ls__thread_index(void)
{
    return 0;
}
static inline void ls__threads_set(int threads)
{
    (void)threads;
}
#endif

#endif
