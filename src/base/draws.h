/* SPDX-License-Identifier: Apache-2.0 */
/* Where random numbers are drawn: a module of a model, or a program outside of all modules.
 *
 * Note [Random numbers by path]
 * The stream of a random operation is made of the dotted path of the innermost module whose forward
 * function runs, of the step, and of the number of the module's draw in this step. That of a
 * parameter's first values is made of its dotted name. So neither depends on the other parts of the
 * model that a rank builds: a pipeline stage draws what one process would. Within a stream, numbers
 * are counted by the index of the element in the whole logical tensor: parts of a tensor, and ranks
 * that hold other samples of a batch, draw what one process would, too.
 *
 * A place counts its draws since the round began, and a round begins where counting restarts
 * (ls_step_begin, ls_manual_seed, a checkpoint). The count and its round share one word, so that
 * nobody needs to visit all modules then, and threads that draw at once get different numbers.
 *
 * When backward runs a forward pass again (ls_recompute), it takes the streams from a log of the
 * first run, because the places have counted on since. */
#ifndef LS_BASE_DRAWS_H
#define LS_BASE_DRAWS_H

#include <stdatomic.h>
#include <stdint.h>

typedef struct ls__draw_place ls__draw_place;
struct ls__draw_place {
    uint64_t (*path)(const ls__draw_place *place); /* ls__path_add of its names; NULL: no name */
    _Atomic uint64_t drawn; /* round, and the number of the next draw. Sync: relaxed */
};

#define LS__DRAW_NUMBER_BITS 40 /* the upper 24 bits of `drawn` tell the round */

#define LS__PATH_NONE UINT64_C(0xcbf29ce484222325)

/* FNV-1a of 64 bits over the names joined by dots. An empty name adds nothing, as in the names of
 * parameters. */
static inline uint64_t ls__path_add(uint64_t path, const char *name)
{
    const uint64_t prime = UINT64_C(0x100000001b3);
    if (path != LS__PATH_NONE && *name != '\0') {
        path = (path ^ '.') * prime;
    }
    for (; *name != '\0'; name++) {
        path = (path ^ (uint8_t)*name) * prime;
    }
    return path;
}

static inline uint64_t ls__place_path(const ls__draw_place *place)
{
    return place->path != NULL ? place->path(place) : LS__PATH_NONE;
}

#endif
