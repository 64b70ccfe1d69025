/* SPDX-License-Identifier: Apache-2.0 */
/* Fingerprints of boxes: products of random numbers modulo a Mersenne prime. */
#include "checkpoint/boxes.h"

#include <stdlib.h>
#include <string.h>

#include <lockstep/random.h>

#include "base/assert.h"
#include "base/error.h"

#define PRIME (((uint64_t)1 << 61) - 1)

/* Both below PRIME, as is the result. */
uint64_t ls__box_add(uint64_t a, uint64_t b)
{
    LS_ASSERT(a < PRIME && b < PRIME);
    return a + b >= PRIME ? a + b - PRIME : a + b;
}

static uint64_t subtract(uint64_t a, uint64_t b)
{
    return ls__box_add(a, b == 0 ? 0 : PRIME - b);
}

/* 2^61 is 1 modulo PRIME, so the bits from the 61st on are added to those below. */
static uint64_t multiply(uint64_t a, uint64_t b)
{
    __extension__ const unsigned __int128 product = (unsigned __int128)a * b;
    return ls__box_add((uint64_t)product & PRIME, (uint64_t)(product >> 61));
}

/* h(dimension, coordinate), which looks random to everybody who did not know the key. */
static uint64_t number_of(const ls__boxes *boxes, int dimension, int64_t coordinate)
{
    const uint32_t counter[4] = {(uint32_t)coordinate, (uint32_t)((uint64_t)coordinate >> 32),
                                 (uint32_t)dimension, 0};
    uint32_t block[4];
    ls_philox4x32(counter, boxes->key, block);
    const uint64_t number = ((uint64_t)block[0] << 32 | block[1]) & PRIME;
    return number == PRIME ? 0 : number;
}

ls__boxes ls__boxes_of(const char hash[LS__DIGEST_HEX + 1])
{
    ls__boxes boxes;
    char word[9] = {0};
    for (int i = 0; i < 2; i++) {
        memcpy(word, hash + 8 * i, 8);
        boxes.key[i] = (uint32_t)strtoul(word, NULL, 16);
    }
    return boxes;
}

/* A scalar is a box without dimensions: the empty product. */
uint64_t ls__box_print(const ls__boxes *boxes, const int64_t *start, const int64_t *dim, int ndim)
{
    uint64_t print = 1;
    for (int d = 0; d < ndim; d++) {
        LS_ASSERT(start[d] >= 0 && dim[d] >= 0 && start[d] <= INT64_MAX - dim[d]);
        print = multiply(
            print, subtract(number_of(boxes, d, start[d]), number_of(boxes, d, start[d] + dim[d])));
    }
    return print;
}

/* ---- explaining ----------------------------------------------------------------------------- */

typedef struct edge { /* where a box begins or ends in the dimension that is swept */
    int64_t at;
    int box;
    bool ends;
} edge;

static int by_place(const void *a, const void *b)
{
    const edge *x = a, *y = b;
    return x->at < y->at ? -1 : x->at > y->at;
}

/* A slab [*from, *to) of dimension d in which the active boxes do not tile the dimensions behind d.
 * There is one if they do not tile those from d on. */
static void find_slab(const ls__boxes *boxes, const ls__box *list, const edge *edges, int count,
                      int d, const int64_t *dim, int ndim, int64_t *from, int64_t *to)
{
    static const int64_t origin[LS_DIMS_MAX];
    const int behind = ndim - d - 1;
    const uint64_t whole = ls__box_print(boxes, origin, dim + d + 1, behind);
    uint64_t sum = 0;
    *from = 0;
    for (int i = 0; i < count; i++) {
        const ls__box *b = &list[edges[i].box];
        const uint64_t print = ls__box_print(boxes, b->start + d + 1, b->dim + d + 1, behind);
        if (edges[i].at > *from && sum != whole) {
            *to = edges[i].at;
            return;
        }
        *from = edges[i].at;
        sum = edges[i].ends ? subtract(sum, print) : ls__box_add(sum, print);
    }
    *to = dim[d];
}

/* Dimension by dimension, keeps a slab and the boxes that hold it. Boxes begin and end only at the
 * edges of slabs, so each holds a slab whole or not at all. */
static void narrow(const ls__boxes *boxes, const ls__box *list, edge *edges, int *active, int count,
                   const int64_t *dim, int ndim, ls__box *region, int pair[2])
{
    for (int d = 0; d < ndim; d++) {
        int64_t from, to;
        int kept = 0;
        for (int i = 0; i < count; i++) {
            const ls__box *b = &list[active[i]];
            edges[2 * i] = (edge){b->start[d], active[i], false};
            edges[2 * i + 1] = (edge){b->start[d] + b->dim[d], active[i], true};
        }
        qsort(edges, 2 * (size_t)count, sizeof *edges, by_place);
        find_slab(boxes, list, edges, 2 * count, d, dim, ndim, &from, &to);
        for (int i = 0; i < count; i++) {
            const ls__box *b = &list[active[i]];
            if (b->start[d] <= from && b->start[d] + b->dim[d] >= to) {
                active[kept++] = active[i];
            }
        }
        count = kept;
        region->start[d] = from;
        region->dim[d] = to - from;
    }
    pair[0] = count > 1 ? active[0] : -1;
    pair[1] = count > 1 ? active[1] : -1;
}

ls_status ls__boxes_explain(const ls__boxes *boxes, const ls__box *list, int count,
                            const int64_t *dim, int ndim, ls__box *region, int pair[2])
{
    edge *edges = malloc((2 * (size_t)count + 1) * sizeof *edges);
    int *active = malloc(((size_t)count + 1) * sizeof *active);
    ls_status status = LS_OK;
    if (edges != NULL && active != NULL) {
        for (int i = 0; i < count; i++) {
            active[i] = i;
        }
        narrow(boxes, list, edges, active, count, dim, ndim, region, pair);
    } else {
        status = ls__fail(LS_ERR_MEMORY, "checkpoint: no memory to compare slices");
    }
    free(edges);
    free(active);
    return status;
}
