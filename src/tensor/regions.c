/* SPDX-License-Identifier: Apache-2.0 */
/* Large blocks cut out of regions; see regions.h for the idea. A free piece is found in the bins
 * by size: bin b holds pieces of 2^b … 2^(b+1) - 1 bytes, the last freed first. Pieces of a
 * region are linked by address, so that neighbours are found when one becomes free; two free
 * pieces never lie side by side.
 *
 * A piece is used (in no bin) or free (in its bin); its header goes to `unused` when it is
 * joined with a neighbour. All of it runs under the lock of the tensors' pools. */
#include "tensor/regions.h"

#include "base/assert.h"
#include "base/size.h"

#define GRANULE 4096 /* pieces begin and end on pages: equal offsets within one do not collide */
#define REGION_MIN ((size_t)2 << 20)
#define REGION_MAX ((size_t)64 << 20) /* but for a single block that is larger */
#define GROWTH 8 /* a new region is an eighth of all regions: little is reserved in vain */
#define HEADERS_A_SLAB 127

struct ls__region {  /* one range from the system */
    ls__list link;   /* in ls__regions.regions */
    ls__list pieces; /* all of it, by address */
    void *memory;
    size_t bytes;
};

struct ls__region_piece_slab {
    struct ls__region_piece_slab *next;
    ls__region_piece piece[HEADERS_A_SLAB];
};

/* Nothing is reserved before the first block is asked for. */
void ls__regions_init(ls__regions *r, const ls__env *env, const ls__env *memory)
{
    *r = (ls__regions){.env = env, .memory = memory};
    ls__list_init(&r->regions);
    ls__list_init(&r->unused);
    for (int b = 0; b < LS__PIECE_BINS; b++) {
        ls__list_init(&r->bin[b]);
    }
}

/* ---- headers ------------------------------------------------------------------------------ */

/* Headers come in slabs and are never given back one by one. */
static ls__region_piece *header_get(ls__regions *r)
{
    if (ls__list_empty(&r->unused)) {
        struct ls__region_piece_slab *slab = r->env->allocate(r->env, sizeof *slab);
        if (slab == NULL) {
            return NULL;
        }
        slab->next = r->slabs;
        r->slabs = slab;
        for (int i = 0; i < HEADERS_A_SLAB; i++) {
            ls__list_push_back(&r->unused, &slab->piece[i].link);
        }
    }
    return LS__LIST_ITEM(ls__list_pop_front(&r->unused), ls__region_piece, link);
}

/* Headers are kept for reuse; their slabs are given back at the end only. */
static void header_put(ls__regions *r, ls__region_piece *piece)
{
    ls__list_push_front(&r->unused, &piece->link);
}

/* ---- free pieces -------------------------------------------------------------------------- */

/* The last bin takes everything larger. */
static int bin_of(size_t bytes)
{
    int log = 63 - __builtin_clzll((unsigned long long)bytes);
    return log < LS__PIECE_BINS ? log : LS__PIECE_BINS - 1;
}

/* To the front: of pieces that fit equally well the one freed last is taken, which is warm. */
static void set_free(ls__regions *r, ls__region_piece *piece)
{
    piece->free = true;
    ls__list_push_front(&r->bin[bin_of(piece->bytes)], &piece->link);
}

/* A bin spans a factor of two, so its pieces are compared one by one. */
static ls__region_piece *tightest_in(ls__list *bin, size_t bytes)
{
    ls__region_piece *best = NULL;
    LS__LIST_EACH (at, bin) {
        ls__region_piece *piece = LS__LIST_ITEM(at, ls__region_piece, link);
        if (piece->bytes >= bytes && (best == NULL || piece->bytes < best->bytes)) {
            best = piece;
        }
    }
    return best;
}

/* The smallest free piece of at least `bytes`, or NULL. The first bin may hold pieces that are
 * too small; every later one fits. */
static ls__region_piece *tightest(ls__regions *r, size_t bytes)
{
    ls__region_piece *best = NULL;
    for (int b = bin_of(bytes); b < LS__PIECE_BINS && best == NULL; b++) {
        best = tightest_in(&r->bin[b], bytes);
    }
    return best;
}

/* Takes `next`, which lies behind `piece`, into it. */
static void join(ls__regions *r, ls__region_piece *piece, ls__region_piece *next)
{
    LS_ASSERT(piece->data + piece->bytes == next->data);
    piece->bytes += next->bytes;
    ls__list_remove(&next->beside);
    header_put(r, next);
}

/* Cuts off the part of `piece` beyond `bytes`. Without memory for its header it stays part of
 * it. */
static void cut(ls__regions *r, ls__region_piece *piece, size_t bytes)
{
    LS_ASSERT(piece->bytes >= bytes && !piece->free);
    ls__region_piece *rest = piece->bytes > bytes ? header_get(r) : NULL;
    if (rest != NULL) {
        *rest = (ls__region_piece){
            .region = piece->region, .data = piece->data + bytes, .bytes = piece->bytes - bytes};
        ls__list_insert_between(&piece->beside, piece->beside.next, &rest->beside);
        piece->bytes = bytes;
        set_free(r, rest);
    }
}

/* ---- regions ------------------------------------------------------------------------------ */

/* Growth in proportion keeps the number of regions small without reserving much in vain. */
static size_t region_bytes(const ls__regions *r, size_t bytes)
{
    size_t growth = ls__round_up((size_t)r->reserved / GROWTH, REGION_MIN);
    growth = growth < REGION_MIN ? REGION_MIN : growth > REGION_MAX ? REGION_MAX : growth;
    return bytes > growth ? bytes : growth;
}

/* A free piece that is a whole new region of `bytes`; NULL, with nothing taken, when the system
 * refuses. */
static ls__region_piece *region_new(ls__regions *r, size_t bytes)
{
    ls__region *region = r->env->allocate(r->env, sizeof *region);
    ls__region_piece *piece = region != NULL ? header_get(r) : NULL;
    void *memory = piece != NULL ? r->memory->allocate(r->memory, bytes) : NULL;
    if (memory == NULL) {
        if (piece != NULL) {
            header_put(r, piece);
        }
        if (region != NULL) {
            r->env->release(r->env, region, sizeof *region);
        }
        return NULL;
    }
    *region = (ls__region){.memory = memory, .bytes = bytes};
    *piece = (ls__region_piece){.region = region, .data = memory, .bytes = bytes};
    ls__list_init(&region->pieces);
    ls__list_push_back(&region->pieces, &piece->beside);
    ls__list_push_back(&r->regions, &region->link);
    set_free(r, piece);
    r->reserved += (int64_t)bytes;
    return piece;
}

/* Only for a region without a used piece. */
static void region_free(ls__regions *r, ls__region *region)
{
    r->reserved -= (int64_t)region->bytes;
    LS_ASSERT(r->reserved >= 0);
    ls__list_remove(&region->link);
    r->memory->release(r->memory, region->memory, region->bytes);
    r->env->release(r->env, region, sizeof *region);
}

/* A region is unused where its first piece is free and as large as it. */
void ls__regions_release_unused(ls__regions *r)
{
    LS__LIST_EACH (at, &r->regions) {
        ls__region *region = LS__LIST_ITEM(at, ls__region, link);
        ls__region_piece *first = LS__LIST_ITEM(region->pieces.next, ls__region_piece, beside);
        if (first->free && first->bytes == region->bytes) {
            ls__list_remove(&first->link);
            header_put(r, first);
            region_free(r, region);
        }
    }
}

/* All pieces are gone with their regions; pointers to them end here. */
void ls__regions_fini(ls__regions *r)
{
    LS__LIST_EACH (at, &r->regions) {
        region_free(r, LS__LIST_ITEM(at, ls__region, link));
    }
    while (r->slabs != NULL) {
        struct ls__region_piece_slab *slab = r->slabs;
        r->slabs = slab->next;
        r->env->release(r->env, slab, sizeof *slab);
    }
}

static void move_all(ls__list *to, ls__list *from)
{
    for (ls__list *link = ls__list_pop_front(from); link != NULL; link = ls__list_pop_front(from)) {
        ls__list_push_back(to, link);
    }
}

/* Pieces know their region, not its list. */
void ls__regions_join(ls__regions *into, ls__regions *from)
{
    move_all(&into->regions, &from->regions);
    for (int b = 0; b < LS__PIECE_BINS; b++) {
        move_all(&into->bin[b], &from->bin[b]);
    }
    move_all(&into->unused, &from->unused);
    struct ls__region_piece_slab **end = &into->slabs;
    while (*end != NULL) {
        end = &(*end)->next;
    }
    *end = from->slabs;
    from->slabs = NULL;
    into->reserved += from->reserved;
    from->reserved = 0;
}

/* ---- pieces ------------------------------------------------------------------------------- */

/* A used piece of at least `bytes`, rounded up to pages; the rest of a larger one stays free.
 * NULL if the system refuses even after unused regions were given back. The lock is the
 * caller's. */
ls__region_piece *ls__region_piece_get(ls__regions *r, size_t bytes)
{
    bytes = ls__round_up(bytes, GRANULE);
    ls__region_piece *piece = tightest(r, bytes);
    if (piece == NULL) {
        piece = region_new(r, region_bytes(r, bytes));
    }
    if (piece == NULL) { /* the system refuses: ask for no more than needed */
        if (!r->keeps) {
            ls__regions_release_unused(r);
        }
        piece = region_new(r, bytes);
    }
    if (piece != NULL) {
        ls__list_remove(&piece->link);
        piece->free = false;
        cut(r, piece, bytes);
    }
    return piece;
}

/* Makes a used piece free. It is joined with both neighbours at once, so two free pieces never
 * lie side by side. */
void ls__region_piece_put(ls__regions *r, ls__region_piece *piece)
{
    const ls__list *end = &piece->region->pieces;
    ls__region_piece *next = LS__LIST_ITEM(piece->beside.next, ls__region_piece, beside);
    ls__region_piece *before = LS__LIST_ITEM(piece->beside.prev, ls__region_piece, beside);
    LS_ASSERT(!piece->free);
    if (piece->beside.next != end && next->free) {
        ls__list_remove(&next->link);
        join(r, piece, next);
    }
    if (piece->beside.prev != end && before->free) {
        ls__list_remove(&before->link);
        join(r, before, piece);
        piece = before;
    }
    set_free(r, piece);
}
