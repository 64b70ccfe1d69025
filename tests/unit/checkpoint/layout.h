/* SPDX-License-Identifier: Apache-2.0 */
/* Random tensors and scalars, cut into random boxes that random ranks show: what a mesh of pipeline
 * stages, shards and replicas may be, and more. Every value follows from its name and place. */
#ifndef CHECKPOINT_LAYOUT_H
#define CHECKPOINT_LAYOUT_H

#include <stdio.h>
#include <string.h>

#include <lockstep/state.h>

#include "test.h"

enum { NAMES = 12, BOXES_MAX = 24, SIDE = 6, SLABS_MAX = NAMES * (BOXES_MAX + 1) };

typedef struct slab {
    int name;
    int64_t start[3], dim[3];
    uint32_t ranks; /* that show it */
} slab;

typedef struct layout {
    slab slabs[SLABS_MAX];
    int count;
    int64_t global[NAMES][3];
    int ndim[NAMES];
    uint32_t scalars[NAMES]; /* ranks that show the scalar of that number */
    uint32_t random;
} layout;

typedef struct viewer { /* the object whose state is what a rank shows */
    const layout *all;
    int rank;
    uint8_t (*data)[SIDE * SIDE * SIDE * 8]; /* [SLABS_MAX] */
    int64_t count[NAMES];
    double rate[NAMES];
} viewer;

static inline uint32_t draw(layout *l, uint32_t below)
{
    l->random = l->random * 1664525u + 1013904223u;
    return (l->random >> 8) % below;
}

/* Some are what the second and third piece of another could be called: "t1#1". */
static inline const char *name_of(int i, char out[32])
{
    if (i % 3 == 2) {
        (void)snprintf(out, 32, "t%d#%d", i - 1, 1 + i / 6);
    } else {
        (void)snprintf(out, 32, "t%d", i);
    }
    return out;
}

static inline ls_dtype dtype_of(int name)
{
    static const ls_dtype dtypes[] = {LS_UINT8, LS_FLOAT32, LS_INT16, LS_FLOAT64};
    return dtypes[name % 4];
}

static inline void draw_shapes(layout *l)
{
    for (int n = 0; n < NAMES; n++) {
        l->ndim[n] = (int)draw(l, 4);
        for (int d = 0; d < 3; d++) {
            l->global[n][d] = d >= l->ndim[n] ? 1 : draw(l, 16) == 0 ? 0 : 1 + draw(l, SIDE);
        }
    }
}

/* Cuts boxes of each tensor in two, at random, and gives each to some of the ranks. */
static inline void draw_boxes(layout *l, int size)
{
    l->count = 0;
    for (int n = 0; n < NAMES; n++) {
        const int first = l->count;
        l->slabs[l->count++] =
            (slab){.name = n, .dim = {l->global[n][0], l->global[n][1], l->global[n][2]}};
        for (uint32_t cuts = l->ndim[n] > 0 ? draw(l, BOXES_MAX) : 0; cuts > 0; cuts--) {
            slab *b = &l->slabs[first + (int)draw(l, (uint32_t)(l->count - first))];
            const uint32_t d = draw(l, (uint32_t)l->ndim[n]);
            const int64_t left = b->dim[d] > 1 ? 1 + draw(l, (uint32_t)b->dim[d] - 1) : 0;
            if (left > 0) {
                slab *right = &l->slabs[l->count++];
                *right = *b;
                right->start[d] += left;
                right->dim[d] -= left;
                b->dim[d] = left;
            }
        }
        for (int i = first; i < l->count; i++) {
            l->slabs[i].ranks = 1 + draw(l, (1u << size) - 1);
        }
        l->scalars[n] = 1 + draw(l, (1u << size) - 1);
    }
}

/* The state function of a viewer. What lies behind ndim is nobody's business. */
static inline ls_status show_layout(void *object, const char *prefix, const ls_state_visitor *v)
{
    viewer *w = object;
    char name[32];
    (void)prefix;
    for (int i = 0; i < w->all->count; i++) {
        const slab *b = &w->all->slabs[i];
        ls_state_tensor t = {.dtype = dtype_of(b->name), .ndim = w->all->ndim[b->name]};
        if (b->ranks >> w->rank & 1) {
            memset(t.global, 7, sizeof t.global);
            memset(t.start, 7, sizeof t.start);
            memcpy(t.global, w->all->global[b->name], (size_t)t.ndim * sizeof t.global[0]);
            memcpy(t.start, b->start, (size_t)t.ndim * sizeof t.global[0]);
            memcpy(t.local, b->dim, (size_t)t.ndim * sizeof t.global[0]);
            t.data = w->data != NULL ? w->data[i] : NULL;
            LS_TRY(v->tensor(v->self, name_of(b->name, name), &t));
        }
    }
    for (int n = 0; n < NAMES; n++) {
        if (w->all->scalars[n] >> w->rank & 1) {
            (void)snprintf(name, sizeof name, "step.t%d", n);
            LS_TRY(n % 2 == 0 ? v->int64(v->self, name, &w->count[n])
                              : v->float64(v->self, name, &w->rate[n]));
        }
    }
    return LS_OK;
}

#endif
