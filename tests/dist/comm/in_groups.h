/* SPDX-License-Identifier: Apache-2.0 */
/* A test body run in groups of 1 to 8 ranks, in another order than the world's, with memory of each
 * kind. */
#ifndef IN_GROUPS_H
#define IN_GROUPS_H

#include <stdlib.h>

#include <lockstep/comm.h>

#include "test.h"

#define ROOM ((size_t)6 << 20)
#define GUARD 64
#define RANKS 8

typedef struct world {
    ls_group *group;
    int n, rank;
    unsigned char *in[2], *out[2]; /* private, registered */
} world;

static inline void take_memory(world *w)
{
    for (int i = 0; i < 2; i++) {
        void *at = NULL;
        CHECK_OK(ls_group_alloc(ls_world(), ROOM, &at));
        *(i == 0 ? &w->in[1] : &w->out[1]) = at;
        *(i == 0 ? &w->in[0] : &w->out[0]) = malloc(ROOM);
    }
    CHECK(w->in[0] != NULL && w->out[0] != NULL);
}

static inline void give_memory(world *w)
{
    free(w->in[0]);
    free(w->out[0]);
    CHECK_OK(ls_group_dealloc(ls_world(), w->in[1]));
    CHECK_OK(ls_group_dealloc(ls_world(), w->out[1]));
}

/* Runs `body` in groups of the ranks n-1, n-2 … 0 for n from 1 to 8. */
static inline void in_every_group(void (*body)(const world *w))
{
    world w = {0};
    take_memory(&w);
    for (int n = 1; n <= RANKS; n++) {
        int ranks[RANKS];
        for (int i = 0; i < n; i++) {
            ranks[i] = n - 1 - i;
        }
        CHECK_OK(ls_group_new(ls_world(), ranks, n, NULL, &w.group));
        if (w.group != NULL) {
            w.n = n;
            w.rank = ls_group_rank(w.group);
            body(&w);
            CHECK_OK(ls_group_free(w.group));
        }
    }
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
    give_memory(&w);
}

#endif
