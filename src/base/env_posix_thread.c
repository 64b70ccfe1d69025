/* SPDX-License-Identifier: Apache-2.0 */
/* Clock, random bytes, memory and threads of the real env table.
 *
 * Deadlines are absolute times of CLOCK_MONOTONIC, which is also the clock of a futex with a bit
 * set, so a wait needs no conversion and an interruption does not lengthen it.
 */
#include "base/cgroup.h"
#include "base/env_posix.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/compiler.h"
#include "base/size.h"

#define NS_PER_SECOND 1000000000u
#define ALIGNMENT 64
#define HUGE_PAGE_BYTES ((size_t)2 << 20)
#define HUGE_FROM_BYTES ((size_t)4 << 20) /* below, a huge page wastes more than it saves */
#define CORES_MAX 8192
#define THREAD_NAME_MAX 16 /* the kernel's limit, with the zero */

static uint64_t read_clock(clockid_t clock)
{
    struct timespec t;
    (void)clock_gettime(clock, &t); /* cannot fail for these clocks */
    return (uint64_t)t.tv_sec * NS_PER_SECOND + (uint64_t)t.tv_nsec;
}

/* Of LS__NEVER too, whose value callers do not use. */
static struct timespec to_timespec(uint64_t ns)
{
    return (struct timespec){.tv_sec = (time_t)(ns / NS_PER_SECOND),
                             .tv_nsec = (long)(ns % NS_PER_SECOND)};
}

uint64_t ls__posix_now_ns(const ls__env *env LS__UNUSED)
{
    return read_clock(CLOCK_MONOTONIC);
}

uint64_t ls__posix_wall_ns(const ls__env *env LS__UNUSED)
{
    return read_clock(CLOCK_REALTIME);
}

/* An absolute deadline: repeating after a signal does not lengthen the sleep. */
void ls__posix_sleep_until(const ls__env *env LS__UNUSED, uint64_t deadline_ns)
{
    struct timespec t = to_timespec(deadline_ns);
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR) {
    }
}

/* From the kernel; waits only before its generator is seeded, early at boot. */
int ls__posix_random_bytes(const ls__env *env LS__UNUSED, void *out, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t got = getrandom((char *)out + done, bytes - done, 0);
        if (got < 0 && errno != EINTR) {
            return -errno;
        }
        done += got > 0 ? (size_t)got : 0;
    }
    return 0;
}

/* At least 64-byte aligned and not zeroed. Large blocks ask for huge pages: a tensor of 100 MB then
 * costs 50 page faults, not 25,000. */
void *ls__posix_allocate(const ls__env *env LS__UNUSED, size_t bytes)
{
    size_t alignment = bytes >= HUGE_FROM_BYTES ? HUGE_PAGE_BYTES : ALIGNMENT;
    size_t padded;
    if (!ls__add_size(bytes > 0 ? bytes : 1, ALIGNMENT - 1, &padded)) {
        return NULL;
    }
    void *memory = NULL;
    if (posix_memalign(&memory, alignment, padded / ALIGNMENT * ALIGNMENT) != 0) {
        return NULL;
    }
    if (bytes >= HUGE_FROM_BYTES) {
        (void)madvise(memory, bytes / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES, MADV_HUGEPAGE);
    }
    return memory;
}

void ls__posix_release(const ls__env *env LS__UNUSED, void *memory, size_t bytes LS__UNUSED)
{
    free(memory);
}

/* Allocated by thread_start, freed by thread_join. */
struct ls__env_thread {
    pthread_t thread;
    void (*fn)(void *arg);
    void *arg;
    char name[THREAD_NAME_MAX];
};

/* The name is set by the thread itself, so that it is visible before fn runs. */
static void *thread_main(void *arg)
{
    ls__env_thread *self = arg;
    (void)pthread_setname_np(pthread_self(), self->name);
    self->fn(self->arg);
    return NULL;
}

/* The library's threads block all signals, so that handlers run on the user's threads. */
int ls__posix_thread_start(const ls__env *env LS__UNUSED, const char *name, void (*fn)(void *arg),
                           void *arg, ls__env_thread **out)
{
    ls__env_thread *thread = calloc(1, sizeof *thread);
    if (thread == NULL) {
        return -ENOMEM;
    }
    thread->fn = fn;
    thread->arg = arg;
    memcpy(thread->name, name, strnlen(name, THREAD_NAME_MAX - 1));
    sigset_t all, before;
    sigfillset(&all);
    sigdelset(&all, SIGBUS); /* of this thread's own access; blocked, it kills without a handler */
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&thread->thread, NULL, thread_main, thread);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0) {
        free(thread);
        return -error;
    }
    *out = thread;
    return 0;
}

/* Waits without a deadline: the caller has asked the thread to end. */
void ls__posix_thread_join(const ls__env *env LS__UNUSED, ls__env_thread *thread)
{
    (void)pthread_join(thread->thread, NULL);
    free(thread);
}

/* Returns 0 also without reason (signals, spurious wake-ups): callers check their condition again.
 * -EAGAIN when *word differs from `expected`, -ETIMEDOUT at the deadline. */
int ls__posix_park(const ls__env *env LS__UNUSED, _Atomic uint32_t *word, uint32_t expected,
                   uint64_t deadline_ns)
{
    struct timespec t = to_timespec(deadline_ns);
    long rc = syscall(SYS_futex, word, FUTEX_WAIT_BITSET, expected,
                      deadline_ns == LS__NEVER ? NULL : &t, NULL, FUTEX_BITSET_MATCH_ANY);
    if (rc == 0 || errno == EINTR) {
        return 0;
    }
    return -errno;
}

/* Not an error when no thread waits. The caller changes the word first. */
void ls__posix_wake(const ls__env *env LS__UNUSED, _Atomic uint32_t *word, int count)
{
    (void)syscall(SYS_futex, word, FUTEX_WAKE, count, NULL, NULL, 0);
}

void ls__posix_yield(const ls__env *env LS__UNUSED)
{
    (void)sched_yield();
}

/* cpu_set_t of the C library holds 1024 cores; larger machines need a longer set. */
typedef struct cores {
    unsigned long bits[CORES_MAX / 8 / sizeof(unsigned long)];
} cores;

static cpu_set_t *set_of(cores *c)
{
    return (cpu_set_t *)(void *)c;
}

/* Counts the cores this thread may run on, not those of the machine. A container's quota of
 * processor time leaves all cores to be used, but stops all threads once it is spent: more threads
 * than the quota is worth only wait for each other. */
int ls__posix_cores(const ls__env *env)
{
    cores mine;
    const int count = sched_getaffinity(0, sizeof mine, set_of(&mine)) == 0
                          ? CPU_COUNT_S(sizeof mine, set_of(&mine))
                          : 1;
    const int64_t quota = ls__cgroup_cores(env);
    return quota > 0 && quota < count ? (int)quota : count;
}
