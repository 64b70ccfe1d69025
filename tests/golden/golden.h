/* SPDX-License-Identifier: Apache-2.0 */
/* Golden cases: a program provokes errors through the public API and prints what a user reads.
 *
 *     GOLDEN(shapes_that_do_not_fit) { SHOW(ls_item(t, &x)); }     a world of one, ls_init done
 *     GOLDEN_BARE(before_init) { … }                               before ls_init
 *     GOLDEN_RANKS(counts_differ, 2) { … }                         each of 2 ranks of a job
 *     GOLDEN_FAR(the_same_over_tcp, 2) { … }                       each on a host of its own
 *     GOLDEN_LATE(a_rank_does_not_call, 2) { … }                   a deadline passes: it is short
 *
 * test_golden.py runs every case in a process of its own and checks the shape of each message
 * (shape.py); expected/messages.txt pins the wording of those that users meet most. A case's name
 * is what goes wrong.
 */
#ifndef GOLDEN_H
#define GOLDEN_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <lockstep/lockstep.h>

#include "base/env.h"

typedef struct golden_case {
    const char *name;
    void (*body)(void);
    int ranks; /* 0: before ls_init */
    int hosts; /* 64: each rank on a host of its own (LOCKSTEP_HOSTS), so over TCP; 1: none is */
    int deadline_s; /* LOCKSTEP_TIMEOUT: a busy machine must not reach it where none is to pass */
    struct golden_case *next;
} golden_case;

extern golden_case *golden_cases;

/* The call, and its status and message on the next line. */
static inline void golden_show(const char *call, ls_status status)
{
    printf("%s\n    %s: %s\n", call, ls_status_name(status),
           status < 0 ? ls_error_message() : "no error");
    fflush(stdout);
}

static inline ls_status golden_status_of(const void *pointer)
{
    return pointer == NULL ? -1 : 0;
}

/* A folder for the case's files, removed at the end of the program. */
const char *golden_folder(void);
const char *golden_new_folder(void); /* an empty one */
/* FOLDER/name, in static storage, holding `bytes` bytes of `data`. */
const char *golden_file(const char *name, const void *data, size_t bytes);
/* An env table (for ls__init_with) of which the n-th allocation, or call about files, or about
 * shared memory, threads and random numbers, fails; or the n-th malloc, calloc or realloc of the
 * process. */
typedef enum golden_fault {
    GOLDEN_MEMORY,
    GOLDEN_FILES,
    GOLDEN_SYSTEM,
    GOLDEN_MALLOC
} golden_fault;
const ls__env *golden_env(void);
void golden_fail(golden_fault kind, int n); /* from now on; 0: none does */
bool golden_failed(void);
void golden_show_once(ls_status status); /* a text that came before is not shown again */
/* Runs the scenario in a runtime of its own with the first, second … call failing, until none did;
 * shows each text that comes once, in the order they come first. */
void golden_fail_each(golden_fault kind, ls_status (*scenario)(void));

#define SHOW(call) golden_show(#call, LS_STATUS_OF(call))
/* A tensor's first error. */
#define SHOW_TENSOR(call) golden_show(#call, ls_tensor_status(call))
/* What returns NULL on failure. */
#define SHOW_NULL(call)                                                                            \
    do {                                                                                           \
        const void *golden_pointer_ = (call);                                                      \
        printf("%s\n    NULL: %s\n", #call,                                                        \
               golden_pointer_ == NULL ? ls_error_message() : "(not NULL)");                       \
    } while (0)
#define MUST(call)                                                                                 \
    do {                                                                                           \
        if (LS_STATUS_OF(call) < 0) {                                                              \
            printf("%s failed, which is not what this case is about: %s\n", #call,                 \
                   ls_error_message());                                                            \
            exit(3);                                                                               \
        }                                                                                          \
    } while (0)

#define GOLDEN_REGISTER_(name_, ranks_, hosts_, deadline_s_)                                       \
    static void name_(void);                                                                       \
    __attribute__((constructor)) static void register_##name_(void)                                \
    {                                                                                              \
        static golden_case golden_made_ = {#name_, name_, ranks_, hosts_, deadline_s_, NULL};      \
        golden_case **at = &golden_cases;                                                          \
        while (*at != NULL) {                                                                      \
            at = &(*at)->next;                                                                     \
        }                                                                                          \
        *at = &golden_made_;                                                                       \
    }                                                                                              \
    static void name_(void)
#define GOLDEN(name) GOLDEN_REGISTER_(name, 1, 1, 40)
#define GOLDEN_BARE(name) GOLDEN_REGISTER_(name, 0, 1, 40)
#define GOLDEN_RANKS(name, ranks) GOLDEN_REGISTER_(name, ranks, 1, 40)
#define GOLDEN_FAR(name, ranks) GOLDEN_REGISTER_(name, ranks, 64, 40)
#define GOLDEN_LATE(name, ranks) GOLDEN_REGISTER_(name, ranks, 1, 2)

#endif
