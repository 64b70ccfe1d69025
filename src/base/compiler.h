/* SPDX-License-Identifier: Apache-2.0 */
/* What depends on the compiler and the processor, in one place (STYLE rule 1). */
#ifndef LS_BASE_COMPILER_H
#define LS_BASE_COMPILER_H

/* Files, frames between hosts and memory shared by ranks hold little-endian values as they lie in
 * memory; sizes, addresses and futexes beside 64-bit counters assume 8-byte pointers. */
#if !defined(__linux__)
#error "Lockstep runs on Linux only: it needs memfd, futex, pidfd and epoll"
#elif !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "Lockstep runs on little-endian processors only (x86-64, aarch64): its files and frames are"
#elif __SIZEOF_POINTER__ != 8
#error "Lockstep runs on 64-bit systems only: build with a compiler for x86-64 or aarch64"
#endif

#define LS__UNUSED __attribute__((unused))
#define LS__CONSTRUCTOR __attribute__((constructor))
#define LS__NORETURN __attribute__((noreturn))
#define LS__PRINTF(text, first) __attribute__((format(printf, text, first)))
#define LS__ALIGNED(bytes) __attribute__((aligned(bytes)))
#define LS__LIKELY(x) __builtin_expect(!!(x), 1)
#define LS__UNLIKELY(x) __builtin_expect(!!(x), 0)
#define LS__CACHE_LINE 64
#define LS__PREFETCH(p) __builtin_prefetch(p)
#define LS__PREFETCH_WRITE(p) __builtin_prefetch(p, 1)
/* In a spin: leaves the core to its sibling thread, and the cache line to its writer. aarch64's
 * `yield` does nothing on processors without sibling threads; `isb` waits some cycles on all. */
#if defined(__x86_64__)
#define LS__PAUSE() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define LS__PAUSE() __asm__ volatile("isb" ::: "memory")
#else
#define LS__PAUSE() ((void)0)
#endif

#endif
