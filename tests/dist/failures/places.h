/* SPDX-License-Identifier: Apache-2.0 */
/* The places of victim.c at which a rank comes to grief, and what reports say of it there. */
#ifndef FAILURES_PLACES_H
#define FAILURES_PLACES_H

#include <stdbool.h>
#include <string.h>

typedef struct place {
    const char *name;
    const char *doing; /* in what a report says of the victim */
    bool with_site;    /* a line of victim.c is known */
} place;

static const place places[] = {{"startup", "ls_init", false},
                               {"rendezvous", "in ls_init", false},
                               {"forward", "in the forward pass", true},
                               {"backward", "in the backward pass", true},
                               {"stage", "in the forward pass", true},
                               {"all_reduce", "all_reduce", true},
                               {"reduce_scatter", "reduce_scatter", true},
                               {"all_gather", "all_gather", true},
                               {"broadcast", "broadcast", true},
                               {"reduce", "reduce", true},
                               {"gather", "gather", true},
                               {"scatter", "scatter", true},
                               {"barrier", "barrier", true},
                               {"send", "send", true},
                               {"recv", "recv", true},
                               {"transfer", "all_reduce", true},
                               {"group", "new group", true},
                               {"between", "", true},
                               {"survived", "", true},
                               {"compute", "", true},
                               {"checkpoint", "checkpoint", true},
                               {"exit", "after ls_finalize", false},
                               {"hook0", "in the backward pass", true},
                               {"hook1", "in the backward pass", true},
                               {"zero_forward", "all_gather", true},
                               {"zero_backward", "in the backward pass", true},
                               {"zero_step", "all_gather", true}};
enum { PLACES = sizeof places / sizeof *places };

static inline bool is_place(const place *p, const char *name)
{
    return strcmp(p->name, name) == 0;
}

/* Nobody waits for a rank that is stopped while all compute, or after ls_finalize. */
static inline bool is_waited_for_at(const place *p)
{
    return !is_place(p, "compute") && !is_place(p, "exit");
}

#endif
