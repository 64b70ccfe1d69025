/* SPDX-License-Identifier: Apache-2.0 */
/* The expected results of operations, and the entry of the checker. */
#include <string.h>

#include "base/error.h"
#include "comm/program/check_run.h"

/* ---- results ------------------------------------------------------------------------------ */

/* The sum of all contributions in the canonical order (D5). */
static ls__value canonical(ls__checker *c, int place)
{
    ls__value leaf[LS__PROGRAM_RANKS_MAX];
    for (int p = 0; p < c->size; p++) {
        leaf[p] = ls__value_leaf(&c->values, p, place);
    }
    return ls__value_tree(&c->values, leaf, c->size);
}

/* Whether every rank's contribution to the chunk occurs exactly once, and no contribution to
 * another chunk. */
static bool check_contributions(ls__checker *c, int r, int chunk, ls__value value, int place)
{
    int times[LS__PROGRAM_RANKS_MAX];
    const int others = ls__value_count(&c->values, value, place, c->size, times);
    for (int p = 0; p < c->size; p++) {
        if (times[p] > 1) {
            return ls__check_fail(c,
                                  "rank %d ends chunk %d with the contribution of rank %d counted "
                                  "%d times",
                                  r, chunk, p, times[p]);
        }
        if (times[p] == 0) {
            return ls__check_fail(c, "rank %d ends chunk %d without the contribution of rank %d%s",
                                  r, chunk, p,
                                  others > 0 ? " (but with one to another chunk)" : "");
        }
    }
    return others == 0 ||
           ls__check_fail(c, "rank %d ends chunk %d with a contribution to another chunk", r,
                          chunk);
}

/* The chunk must be equal on all ranks. For exact programs the expected value is known; otherwise
 * the first rank's value decides. A wrong value is explained as precisely as possible. */
static void check_sum(ls__checker *c, int r, int chunk, ls__value value, int place)
{
    const bool exact = c->programs[r]->exact;
    ls__value *agreed = &c->agreed[place];
    if (exact && *agreed == 0) {
        *agreed = ls__value_round(&c->values, canonical(c, place));
    }
    if (*agreed == value) {
        return;
    }
    if (!check_contributions(c, r, chunk, value, place)) {
        return;
    }
    if (exact && ls__value_unrounded(&c->values, value) == canonical(c, place)) {
        (void)ls__check_fail(c, "rank %d rounds chunk %d more than once on the way", r, chunk);
    } else if (exact) {
        (void)ls__check_fail(c,
                             "rank %d ends chunk %d in another association than the canonical tree "
                             "(operands swapped or grouped otherwise)",
                             r, chunk);
    } else if (*agreed != 0) {
        (void)ls__check_fail(c, "rank %d ends chunk %d in another association than other ranks", r,
                             chunk);
    } else {
        *agreed = value;
    }
}

/* scan and exscan: the canonical tree over the ranks up to this one (without it). */
static void check_prefix(ls__checker *c, int r, int chunk, ls__value value, int place)
{
    const int count = c->operation == LS__OP_SCAN ? r + 1 : r;
    ls__value leaf[LS__PROGRAM_RANKS_MAX];
    for (int p = 0; p < count; p++) {
        leaf[p] = ls__value_leaf(&c->values, p, place);
    }
    const ls__value tree = ls__value_tree(&c->values, leaf, count);
    if (value == ls__value_round(&c->values, tree)) {
        return;
    }
    int times[LS__PROGRAM_RANKS_MAX];
    const int others = ls__value_count(&c->values, value, place, c->size, times);
    for (int p = 0; p < c->size; p++) {
        if (times[p] != (p < count ? 1 : 0)) {
            (void)ls__check_fail(c,
                                 "rank %d ends chunk %d with the contribution of rank %d counted "
                                 "%d times%s",
                                 r, chunk, p, times[p],
                                 others > 0 ? " (and one to another chunk)" : "");
            return;
        }
    }
    if (ls__value_unrounded(&c->values, value) == tree) {
        (void)ls__check_fail(c, "rank %d rounds chunk %d more than once on the way", r, chunk);
        return;
    }
    (void)ls__check_fail(c,
                         "rank %d ends chunk %d in another association than the canonical tree "
                         "over ranks 0 to %d",
                         r, chunk, count - 1);
}

/* Operations that only move data. */
static void check_copy(ls__checker *c, int r, int chunk, ls__value value, int owner, int place)
{
    if (value != ls__value_leaf(&c->values, owner, place)) {
        (void)ls__check_fail(c, "rank %d ends chunk %d without the data of rank %d", r, chunk,
                             owner);
    }
}

/* Compares this chunk of OUTPUT on rank r with the definition of the operation. */
static void check_chunk(ls__checker *c, int r, int chunk)
{
    const ls__ref ref = {LS__BUFFER_OUTPUT, (int16_t)r, chunk};
    if (!ls__check_ref_exists(c, ref)) {
        return;
    }
    const ls__value value = ls__check_cell(c, ref, 0)->value;
    const int place = c->rank[r].slice * c->chunks + chunk;
    if (value == 0) {
        (void)ls__check_fail(c, "rank %d ends with nothing in chunk %d", r, chunk);
    } else if (ls__operation_scans(c->operation)) {
        check_prefix(c, r, chunk, value, place);
    } else if (ls__operation_reduces(c->operation)) {
        check_sum(c, r, chunk, value, place);
    } else if (ls__operation_plain(c->operation) == LS__OP_ALL_TO_ALL) {
        check_copy(c, r, chunk, value, chunk, c->rank[r].slice * c->chunks + r);
    } else if (ls__operation_has_blocks(c->operation, false)) {
        check_copy(c, r, chunk, value, chunk, place);
    } else {
        check_copy(c, r, chunk, value, c->root, place);
    }
}

/* Stops at the first wrong chunk, which is reported. */
void ls__check_result(ls__checker *c, int r)
{
    for (int chunk = 0; chunk < c->chunks && c->status == LS_OK; chunk++) {
        check_chunk(c, r, chunk);
    }
}

/* ---- setting up --------------------------------------------------------------------------- */

/* Zeroed by the arena. Without memory the whole check fails at the end. */
static void *take_memory(ls__checker *c, size_t count, size_t bytes)
{
    void *memory = ls__arena_alloc(&c->arena, (count ? count : 1) * bytes);
    if (memory == NULL) {
        c->model.failed = true;
    }
    return memory;
}

/* The programs must belong to one operation; the error text names the difference. */
static ls_status check_alike(ls__program *const *programs, int size)
{
    const ls__program *first = programs[0];
    for (int r = 0; r < size; r++) {
        const ls__program *p = programs[r];
        if (p->rank != r || p->size != size) {
            return ls__fail(LS_ERR_MISMATCH, "program %d of %d is that of rank %d of %d", r, size,
                            p->rank, p->size);
        }
        if (p->operation != first->operation || p->memory != first->memory ||
            p->chunks != first->chunks || p->exact != first->exact || p->wide != first->wide ||
            p->root != first->root) {
            return ls__fail(LS_ERR_MISMATCH,
                            "rank %d has %s %s of %d chunks, rank 0 has %s %s of %d: one operation "
                            "needs one kind of program",
                            r, p->algorithm, ls__operation_name(p->operation), p->chunks,
                            first->algorithm, ls__operation_name(first->operation), first->chunks);
        }
    }
    return LS_OK;
}

/* Sizes that hold for all ranks: the largest number of lanes, fences and scratch slots. */
static void measure(ls__checker *c)
{
    const ls__program *first = c->programs[0];
    int slots = 0;
    c->lanes = 1;
    for (int r = 0; r < c->size; r++) {
        const ls__program *p = c->programs[r];
        c->lanes = p->lanes > c->lanes ? p->lanes : c->lanes;
        c->fences = p->fences > c->fences ? p->fences : c->fences;
        slots = p->scratch_slots > slots ? p->scratch_slots : slots;
    }
    c->operation = first->operation;
    c->memory = first->memory;
    c->root = first->root;
    c->wide = first->wide;
    c->chunks = first->chunks;
    c->slices = first->memory == LS__MEMORY_STAGED ? LS__CHECK_SLICES_MAX : 1;
    c->threads = c->size * c->lanes;
    c->cells_per_rank = 4 * c->chunks + slots;
}

/* Marks the awaited steps, whose clocks must be kept. */
static void set_up_rank(ls__checker *c, int r)
{
    const ls__program *p = c->programs[r];
    ls__check_rank *rank = &c->rank[r];
    rank->awaited = take_memory(c, (size_t)p->step_count, sizeof *rank->awaited);
    rank->done_clock = take_memory(c, (size_t)p->step_count, sizeof *rank->done_clock);
    for (int s = 0; rank->awaited != NULL && s < p->step_count; s++) {
        if (p->steps[s].wait_lane >= 0) {
            rank->awaited[p->lane_start[p->steps[s].wait_lane] + p->steps[s].wait_step] = true;
        }
    }
    for (int lane = 0; lane < c->lanes; lane++) {
        ls__check_thread *t = &c->thread[r * c->lanes + lane];
        t->rank = r;
        t->lane = lane;
        t->index = r * c->lanes + lane;
        t->count = p->lane_start[lane + 1] - p->lane_start[lane];
        t->clock = take_memory(c, (size_t)c->threads, sizeof *t->clock);
    }
}

/* All memory is taken here, so running allocates only messages, clocks and accesses. */
static void set_up(ls__checker *c)
{
    const size_t size = (size_t)c->size;
    const size_t fences = (size_t)c->slices * (size_t)c->fences;
    c->thread = take_memory(c, (size_t)c->threads, sizeof *c->thread);
    c->rank = take_memory(c, size, sizeof *c->rank);
    c->cells = take_memory(c, size * (size_t)c->cells_per_rank, sizeof *c->cells);
    c->streams = take_memory(c, size * size * (size_t)c->lanes, sizeof *c->streams);
    c->fence = take_memory(c, fences, sizeof *c->fence);
    c->agreed = take_memory(c, (size_t)c->slices * (size_t)c->chunks, sizeof *c->agreed);
    for (size_t f = 0; !c->model.failed && f < fences; f++) {
        c->fence[f].clock = take_memory(c, (size_t)c->threads, sizeof *c->fence[f].clock);
        c->fence[f].reached = take_memory(c, size, sizeof *c->fence[f].reached);
    }
    for (int r = 0; !c->model.failed && r < c->size; r++) {
        set_up_rank(c, r);
    }
    for (int i = 0; !c->model.failed && i < c->size * c->cells_per_rank; i++) {
        c->cells[i].write.thread = -1;
    }
    c->model.arena = &c->arena;
    c->model.threads = c->threads;
}

/* One run, in place or apart. */
static ls_status check_bound(ls__program *const *programs, int size, int capacity, bool in_place)
{
    ls__checker c = {
        .programs = programs, .size = size, .capacity = capacity, .in_place = in_place};
    ls__arena_init(&c.arena, programs[0]->env, (size_t)1 << 18);
    ls__values_init(&c.values, programs[0]->env);
    measure(&c);
    set_up(&c);
    if (c.model.failed) {
        c.status = ls__fail(LS_ERR_MEMORY, "no memory to check a program of %d ranks", size);
    } else {
        ls__check_run(&c);
    }
    ls__values_fini(&c.values);
    ls__arena_fini(&c.arena);
    return c.status;
}

/* Programs that fit only one of the two are bound alike in both runs, so a second run would repeat
 * the first. */
static bool any_fits_both(ls__program *const *programs, int size)
{
    bool any = false;
    for (int r = 0; r < size; r++) {
        any = any || (programs[r]->fits[0] && programs[r]->fits[1]);
    }
    return any;
}

/* Runs out of place first: input and output are distinct there, so errors are clearer. */
ls_status ls__program_check(ls__program *const *programs, int size, int capacity)
{
    if (size < 1 || size > LS__PROGRAM_RANKS_MAX || capacity < 0) {
        return ls__fail(LS_ERR_INVALID, "cannot check %d ranks at capacity %d", size, capacity);
    }
    LS_TRY(check_alike(programs, size));
    LS_TRY(check_bound(programs, size, capacity, false));
    return any_fits_both(programs, size) ? check_bound(programs, size, capacity, true) : LS_OK;
}
