/* SPDX-License-Identifier: Apache-2.0 */
/* Notes which blocks of the library a test runs: a byte each, in a file that its processes share.
 *
 * The compiler calls this at the beginning of every block (-fsanitize-coverage=trace-pc, in a build
 * with -Dmutate=true). With MUTATE_RECORD=PREFIX a process maps PREFIX.TEST, so that what it notes
 * is kept however it ends; the harness gives TEST_NAME. tests/mutate/coverage.py finds the
 * lines. */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define FILE_BYTES (8u << 20) /* a place is a quarter of an address: no two calls are closer */

extern const unsigned char __ehdr_start[] __attribute__((visibility("hidden"))); /* the linker's */
void __sanitizer_cov_trace_pc(void);

static unsigned char nowhere[1];
static _Atomic(unsigned char *)
    noted; /* Sync: atomic; NULL: not looked for, `nowhere`: not asked for */

static void look_again(void)
{
    atomic_store_explicit(&noted, NULL, memory_order_relaxed);
}

__attribute__((no_sanitize_coverage)) static unsigned char *map_file(void)
{
    const char *prefix = getenv("MUTATE_RECORD"), *test = getenv("TEST_NAME");
    char path[512];
    if (prefix == NULL || test == NULL) {
        return nowhere;
    }
    snprintf(path, sizeof path, "%s.%s", prefix, test);
    const int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate(file, FILE_BYTES) != 0) {
        return nowhere;
    }
    unsigned char *map = mmap(NULL, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return map == MAP_FAILED ? nowhere : map;
}

/* A child of the harness is another test, so it looks for a file of its own. */
__attribute__((constructor)) static void begin(void)
{
    pthread_atfork(NULL, NULL, look_again);
}

__attribute__((no_sanitize_coverage)) void __sanitizer_cov_trace_pc(void)
{
    const uintptr_t at = (uintptr_t)__builtin_return_address(0) - (uintptr_t)__ehdr_start;
    unsigned char *to = atomic_load_explicit(&noted, memory_order_relaxed);
    if (to == NULL) {
        to = map_file();
        atomic_store_explicit(&noted, to, memory_order_relaxed);
    }
    if (to != nowhere && at / 4 < FILE_BYTES) {
        to[at / 4] = 1;
    }
}
