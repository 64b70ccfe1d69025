/* SPDX-License-Identifier: Apache-2.0 */
/* A list that only grows: entries are used again and never freed, so that the handler can walk it
 * at any moment. The lock is for writers only. */
#include "base/mapped.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TEXT_BYTES 4400
#define PATH_BYTES 4096

typedef struct mapping {
    struct mapping *next;
    _Atomic uintptr_t begin; /* Sync: release by the writer, acquire by the handler; 0: free */
    size_t bytes;
    char path[PATH_BYTES];
} mapping;

static _Atomic(mapping *) first; /* Sync: as begin */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool installed; /* by the lock */

static const mapping *find(uintptr_t address)
{
    mapping *m = atomic_load_explicit(&first, memory_order_acquire);
    for (; m != NULL; m = m->next) {
        const uintptr_t begin = atomic_load_explicit(&m->begin, memory_order_acquire);
        if (begin != 0 && address >= begin && address - begin < m->bytes) {
            return m;
        }
    }
    return NULL;
}

/* Only functions that a handler may call. Returning repeats the access, which then ends the process
 * with the signal's own action. */
static void on_bus_error(int signal_number, siginfo_t *info, void *context)
{
    static char text[TEXT_BYTES];
    static const char before[] = "lockstep: error: \"";
    static const char behind[] = "\" was shortened, or cannot be read any more, while this process "
                                 "has it mapped; write new data "
                                 "to a new file and rename it, and check the disk\n";
    (void)context;
    const mapping *m = find((uintptr_t)info->si_addr);
    if (m != NULL) {
        const size_t length = strlen(m->path);
        memcpy(text, before, sizeof before - 1);
        memcpy(text + sizeof before - 1, m->path, length);
        memcpy(text + sizeof before - 1 + length, behind, sizeof behind - 1);
        const ssize_t put =
            write(STDERR_FILENO, text, sizeof before - 1 + length + sizeof behind - 1);
        (void)put;
    }
    (void)signal(signal_number, SIG_DFL);
}

/* A handler of the program's, or of a sanitizer, stays. */
static void install(void)
{
    struct sigaction now;
    if (sigaction(SIGBUS, NULL, &now) != 0 || (now.sa_flags & SA_SIGINFO) != 0 ||
        now.sa_handler != SIG_DFL) {
        return;
    }
    struct sigaction ours = {.sa_flags = SA_SIGINFO};
    ours.sa_sigaction = on_bus_error;
    (void)sigemptyset(&ours.sa_mask);
    (void)sigaction(SIGBUS, &ours, NULL);
}

static mapping *free_entry(void)
{
    mapping *m = atomic_load_explicit(&first, memory_order_relaxed);
    while (m != NULL && atomic_load_explicit(&m->begin, memory_order_relaxed) != 0) {
        m = m->next;
    }
    if (m == NULL) {
        m = calloc(1, sizeof *m);
        if (m != NULL) {
            m->next = atomic_load_explicit(&first, memory_order_relaxed);
            atomic_store_explicit(&first, m, memory_order_release);
        }
    }
    return m;
}

void ls__mapped_add(const void *memory, size_t bytes, const char *path)
{
    (void)pthread_mutex_lock(&lock);
    if (!installed) {
        installed = true;
        install();
    }
    mapping *m = free_entry();
    if (m != NULL) {
        (void)snprintf(m->path, sizeof m->path, "%s", path);
        m->bytes = bytes;
        atomic_store_explicit(&m->begin, (uintptr_t)memory, memory_order_release);
    }
    (void)pthread_mutex_unlock(&lock);
}

void ls__mapped_remove(const void *memory)
{
    (void)pthread_mutex_lock(&lock);
    mapping *m = atomic_load_explicit(&first, memory_order_relaxed);
    while (m != NULL &&
           atomic_load_explicit(&m->begin, memory_order_relaxed) != (uintptr_t)memory) {
        m = m->next;
    }
    if (m != NULL) {
        atomic_store_explicit(&m->begin, 0, memory_order_release);
    }
    (void)pthread_mutex_unlock(&lock);
}
