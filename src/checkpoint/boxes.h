/* SPDX-License-Identifier: Apache-2.0 */
/* Whether boxes tile a larger box exactly, in time linear in their number: as the pieces of a
 * tensor in a manifest must (manifest.c), of which a hostile file may list some 350,000.
 *
 * A box [s, e) has the indicator function 1(x) = product over dimensions d of (H(x_d - s_d) -
 * H(x_d - e_d)), where H is the unit step. Multiplied out, it is a signed sum of steps at the box's
 * corners. Steps at different corners are linearly independent, so boxes tile W if and only if
 * their sums of corners add up to that of W: every inner corner cancels.
 *
 * Instead of 2^n corners each box gets a fingerprint: for each dimension and coordinate c a random
 * number h(d, c) modulo the prime 2^61 - 1 stands for the step, and the product of
 * h(d, s_d) - h(d, e_d) for the box. Fingerprints of boxes that tile W add up to that of W. Those
 * of others do so with a probability of at most n / 2^61 (Schwartz 1980, Zippel 1979). The key of h
 * comes from the SHA-256 of the text that lists the boxes, so boxes cannot be chosen for a key.
 */
#ifndef LS_CHECKPOINT_BOXES_H
#define LS_CHECKPOINT_BOXES_H

#include <lockstep/state.h>

#include "base/digest.h"

typedef struct ls__boxes {
    uint32_t key[2];
} ls__boxes;

/* The key from the hash, as 64 hexadecimal digits, of what lists the boxes. */
ls__boxes ls__boxes_of(const char hash[LS__DIGEST_HEX + 1]);
/* The fingerprint of a box; start and dim are not negative, and their sums do not overflow. A box
 * without elements has 0. */
uint64_t ls__box_print(const ls__boxes *boxes, const int64_t *start, const int64_t *dim, int ndim);
uint64_t ls__box_add(uint64_t a, uint64_t b);

typedef struct ls__box {
    int64_t start[LS_DIMS_MAX], dim[LS_DIMS_MAX];
} ls__box;

/* Of `count` boxes that are not empty and do not tile [0, dim): a region of it each of whose
 * elements is in the same boxes, in none or in several. pair: two of these boxes, or -1. Takes time
 * n log n for each dimension. LS_ERR_MEMORY. */
ls_status ls__boxes_explain(const ls__boxes *boxes, const ls__box *list, int count,
                            const int64_t *dim, int ndim, ls__box *region, int pair[2]);

#endif
