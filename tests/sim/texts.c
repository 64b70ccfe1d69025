/* SPDX-License-Identifier: Apache-2.0 */
/* The words with which an error may name each planted fault, for judge.c. A text names a fault when
 * it holds one of its phrases, some of them together with the rank; and when the fault had struck
 * by then. */
#include <stdio.h>
#include <string.h>

#include "sim/scenario.h"

#define PHRASES_MAX 20

/* Errors of a wait whose other side does not come. */
#define WAITS                                                                                      \
    "did not finish within", "(waited up to", "no connection between rank",                        \
        "could not be joined within", "did not come within", "did not connect to",                 \
        "did not answer", "no heartbeat arrived from it", "has sent no heartbeat",                 \
        "the connection was closed"
/* Errors of a connection that ends, and of the store behind it. */
#define LINKS                                                                                      \
    "Connection reset by peer", "closed by the other side", "Connection refused",                  \
        "the connection to the job's store is lost"

typedef struct words {
    const char *phrase[PHRASES_MAX];  /* enough by themselves */
    const char *of_rank[PHRASES_MAX]; /* together with the rank */
} words;

static const words words_of[LS__FAULT_KINDS] = {
    [LS__FAULT_STALL] = {.phrase = {WAITS, "is stopped"}},
    [LS__FAULT_FREEZE] = {.phrase = {WAITS, "is stopped", "ended while it reported a failure"}},
    [LS__FAULT_KILL] = {.of_rank = {"was killed by signal 9"}},
    [LS__FAULT_EXIT] = {.of_rank = {"exited with code"}},
    [LS__FAULT_WRONG] = {.phrase = {WAITS, "disagree", "deadlock", "without calling it"}},
    [LS__FAULT_ABORT] = {.of_rank = {"was aborted by rank"}},
    [LS__FAULT_MEMORY] = {.phrase = {"no memory", "out of memory", "the program's buffer"},
                          .of_rank = {"exited with code", "has left the job"}},
    [LS__FAULT_AGENT] = {.phrase = {"the launcher's agent", "the launcher was killed", LINKS,
                                    WAITS}},
    [LS__FAULT_FRONT] = {.phrase = {"launcher was killed", "ended before all nodes had joined",
                                    LINKS, WAITS}},
    [LS__FAULT_RESET] = {.phrase = {LINKS, "no connection between rank"}},
    [LS__FAULT_CUT] = {.phrase = {WAITS, LINKS}},
    [LS__FAULT_ONE_WAY] = {.phrase = {WAITS, LINKS}},
    [LS__FAULT_GAP] = {.phrase = {WAITS}},
    [LS__FAULT_HOST] = {.phrase = {WAITS, LINKS}},
    [LS__FAULT_FLIP] = {.phrase = {"damaged"}},
    [LS__FAULT_DISK] = {.phrase = {"No space left on device", "Input/output error",
                                   "exited with code", WAITS, LINKS}},
    [LS__FAULT_POWER] = {.phrase = {"exited with code", LINKS, WAITS}},
};

/* "rank 3 has left", "rank 3: …" */
static bool names_rank(const char *text, int rank)
{
    char name[32];
    const int bytes = snprintf(name, sizeof name, "rank %d", rank);
    for (const char *at = strstr(text, name); at != NULL; at = strstr(at + 1, name)) {
        if (at[bytes] < '0' || at[bytes] > '9') {
            return true;
        }
    }
    return false;
}

static bool holds_any(const char *text, const char *const phrase[PHRASES_MAX])
{
    for (int i = 0; i < PHRASES_MAX && phrase[i] != NULL; i++) {
        if (strstr(text, phrase[i]) != NULL) {
            return true;
        }
    }
    return false;
}

static bool names(const ls__fault *f, const char *text)
{
    const words *w = &words_of[f->kind];
    return holds_any(text, w->phrase) || (holds_any(text, w->of_rank) && names_rank(text, f->rank));
}

bool ls__plan_names_cause(const ls__plan *plan, const char *text, uint64_t at_ns)
{
    for (int i = 0; i < plan->faults; i++) {
        const ls__fault *f = &plan->fault[i];
        if (f->done && f->at_ns <= at_ns && names(f, text)) {
            return true;
        }
    }
    return false;
}
