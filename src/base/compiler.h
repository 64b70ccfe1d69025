/* Compiler attributes, in one place (STYLE rule 1). */
#ifndef LS_BASE_COMPILER_H
#define LS_BASE_COMPILER_H

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
#if defined(__x86_64__) || defined(__i386__)
#define LS__PAUSE() __builtin_ia32_pause() /* in a spin: leaves the core to its sibling thread */
#else
#define LS__PAUSE() ((void)0)
#endif

#endif
