/* SPDX-License-Identifier: Apache-2.0 */
/* Included before everything else in the simulation's build of the library, and only there.
 *
 * The sources are the same; four things mean something else:
 *   - an atomic operation is a possible switch to another thread (so races between ranks that share
 *     memory are seen, not only those between calls of the env table);
 *   - ls__self is that of the simulated thread that runs;
 *   - the environment and malloc are those of the simulated process;
 *   - LS__PLANTED(bug) may be true: faults put into the code on purpose (base/planted.h), which the
 *     simulation must find.
 */
#ifndef LS_SIM_INSTRUMENT_H
#define LS_SIM_INSTRUMENT_H

#include <stdatomic.h>
#include <stdlib.h>

extern int ls__sim_fuel; /* atomic operations until the next switch */
void ls__sim_atomic_point(void);

static inline void ls__sim_tick(void)
{
    if (--ls__sim_fuel < 0) {
        ls__sim_atomic_point();
    }
}

#undef atomic_load
#undef atomic_load_explicit
#undef atomic_store
#undef atomic_store_explicit
#undef atomic_fetch_add
#undef atomic_fetch_add_explicit
#undef atomic_fetch_sub_explicit
#undef atomic_exchange_explicit
#undef atomic_compare_exchange_strong
#undef atomic_compare_exchange_strong_explicit

#if defined(__clang__)
#define LS__SIM_LOAD(p, order) __c11_atomic_load(p, order)
#define LS__SIM_STORE(p, value, order) __c11_atomic_store(p, value, order)
#define LS__SIM_ADD(p, value, order) __c11_atomic_fetch_add(p, value, order)
#define LS__SIM_SUB(p, value, order) __c11_atomic_fetch_sub(p, value, order)
#define LS__SIM_EXCHANGE(p, value, order) __c11_atomic_exchange(p, value, order)
#define LS__SIM_SWAP(p, expected, value, good, bad)                                                \
    __c11_atomic_compare_exchange_strong(p, expected, value, good, bad)
#else
#define LS__SIM_LOAD(p, order) __atomic_load_n(p, order)
#define LS__SIM_STORE(p, value, order) __atomic_store_n(p, value, order)
#define LS__SIM_ADD(p, value, order) __atomic_fetch_add(p, value, order)
#define LS__SIM_SUB(p, value, order) __atomic_fetch_sub(p, value, order)
#define LS__SIM_EXCHANGE(p, value, order) __atomic_exchange_n(p, value, order)
#define LS__SIM_SWAP(p, expected, value, good, bad)                                                \
    __atomic_compare_exchange_n(p, expected, value, 0, good, bad)
#endif

#define atomic_load_explicit(p, order) (ls__sim_tick(), LS__SIM_LOAD(p, order))
#define atomic_store_explicit(p, value, order) (ls__sim_tick(), LS__SIM_STORE(p, value, order))
#define atomic_fetch_add_explicit(p, value, order) (ls__sim_tick(), LS__SIM_ADD(p, value, order))
#define atomic_fetch_sub_explicit(p, value, order) (ls__sim_tick(), LS__SIM_SUB(p, value, order))
#define atomic_exchange_explicit(p, value, order)                                                  \
    (ls__sim_tick(), LS__SIM_EXCHANGE(p, value, order))
#define atomic_compare_exchange_strong_explicit(p, expected, value, good, bad)                     \
    (ls__sim_tick(), LS__SIM_SWAP(p, expected, value, good, bad))
#define atomic_load(p) atomic_load_explicit(p, __ATOMIC_SEQ_CST)
#define atomic_store(p, value) atomic_store_explicit(p, value, __ATOMIC_SEQ_CST)
#define atomic_fetch_add(p, value) atomic_fetch_add_explicit(p, value, __ATOMIC_SEQ_CST)
#define atomic_compare_exchange_strong(p, expected, value)                                         \
    atomic_compare_exchange_strong_explicit(p, expected, value, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)

/* The declaration of ls__self becomes that of a pointer. */
#define ls__self (*ls__sim_self)

extern char **ls__sim_environ;
char *ls__sim_getenv(const char *name);
int ls__sim_setenv(const char *name, const char *value, int overwrite);
#define environ ls__sim_environ
#define getenv ls__sim_getenv
#define setenv ls__sim_setenv

void *ls__sim_malloc(size_t bytes);
void *ls__sim_calloc(size_t count, size_t bytes);
void *ls__sim_realloc(void *memory, size_t bytes);
void ls__sim_free(void *memory);
#define malloc ls__sim_malloc
#define calloc ls__sim_calloc
#define realloc ls__sim_realloc
#define free ls__sim_free

/* Slices so short that operations of the simulation have several. */
#define LS__SLICE_BYTES ((size_t)4 << 10)

extern int ls__sim_planted; /* LS__BUG_…; 0: none */
#define LS__PLANTED(bug) (ls__sim_planted == LS__BUG_##bug)

#endif
