/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the number of an element of a list by its hash: linear probing in a power of two of slots,
 * at most half of them in use. The list is the caller's; who adds to it notes the number in the
 * slot that a search for the new element returned. For hashes of what the program itself chooses
 * (siphash.h says when that is not enough). */
#ifndef LS_BASE_SLOTS_H
#define LS_BASE_SLOTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct ls__slots {
    int *slot; /* an element's number + 1; 0: empty */
    size_t count;
} ls__slots;

/* Empty, for at most `most` elements. False without memory; the former ones are then as they
 * were. */
static inline bool ls__slots_renew(ls__slots *s, int most)
{
    size_t count = 8;
    while (count < 2 * (size_t)most) {
        count *= 2;
    }
    int *slot = calloc(count, sizeof *slot);
    if (slot != NULL) {
        free(s->slot);
        *s = (ls__slots){slot, count};
    }
    return slot != NULL;
}

static inline void ls__slots_clear(ls__slots *s)
{
    if (s->count > 0) {
        memset(s->slot, 0, s->count * sizeof *s->slot);
    }
}

/* The slot of the element that `is` accepts, or the empty one where it would be. */
static inline int *ls__slots_find(const ls__slots *s, uint64_t hash,
                                  bool (*is)(const void *key, int number), const void *key)
{
    size_t at = (size_t)(hash ^ hash >> 32) & (s->count - 1);
    while (s->slot[at] != 0 && !is(key, s->slot[at] - 1)) {
        at = (at + 1) & (s->count - 1);
    }
    return &s->slot[at];
}

#endif
