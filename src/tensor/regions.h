/* SPDX-License-Identifier: Apache-2.0 */
/* Large blocks: pieces of regions.
 *
 * A region is one range from the system. It is cut into pieces, free or in use, that lie side by
 * side; a free piece next to one that becomes free is joined with it. So gradients, which do not
 * exist between ls_optim_zero_grad and backward, and activations, which go as backward passes, take
 * turns in the same memory though they are of different sizes. The tightest free piece is taken,
 * of equals the one freed last: a loop of equal steps finds everything where it was in the step
 * before and asks the system for nothing.
 *
 * With size classes of their own, gradients and activations lay side by side. Taking turns lowered
 * the peak of GPT-2 small (T 512) from 2691 MB by 344 MB; another 207 MB came from models that free
 * what no gradient rule reads (`added` in models/gpt2.c), since a scope holds it until backward. */
#ifndef LS_TENSOR_REGIONS_H
#define LS_TENSOR_REGIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/env.h"
#include "base/list.h"

#define LS__LARGE_BYTES ((size_t)128 << 10) /* from here on blocks are pieces */
#define LS__PIECE_BINS 48

typedef struct ls__region ls__region;

typedef struct ls__region_piece {
    ls__list beside; /* in its region, by address */
    ls__list link;   /* in a bin, while it is free; among the unused headers */
    ls__region *region;
    char *data;
    size_t bytes;
    bool free;
} ls__region_piece;

typedef struct ls__regions {
    const ls__env *env;    /* gives headers */
    const ls__env *memory; /* gives regions: memory of the device, which only its kernels touch */
    ls__list regions;
    ls__list bin[LS__PIECE_BINS]; /* free pieces of 2^b … 2^(b+1) - 1 bytes, the last freed first */
    ls__list unused;              /* headers of pieces */
    struct ls__region_piece_slab *slabs;
    int64_t reserved; /* bytes of all regions */
    bool keeps;       /* gives no region back */
} ls__regions;

void ls__regions_init(ls__regions *r, const ls__env *env, const ls__env *memory);
void ls__regions_fini(ls__regions *r); /* whatever is still in use */
/* All regions of `from` become those of `into`, with what is in use in them; `from` ends. */
void ls__regions_join(ls__regions *into, ls__regions *from);
/* At least `bytes`, uninitialised, beginning on a cache line. NULL: memory is out. */
ls__region_piece *ls__region_piece_get(ls__regions *r, size_t bytes);
void ls__region_piece_put(ls__regions *r, ls__region_piece *piece);
/* Gives regions back in which nothing is in use. */
void ls__regions_release_unused(ls__regions *r);

#endif
