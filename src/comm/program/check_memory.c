/* SPDX-License-Identifier: Apache-2.0 */
/* Memory cells with the accesses since the last ordered write. Two accesses race when one of them
 * writes and neither happened before the other. */
#include <stddef.h>

#include "comm/program/check.h"

/* A cell that was never accessed has thread -1. */
static bool happened_before(const ls__access *access, const uint32_t *clock)
{
    return access->thread < 0 || access->clock <= clock[access->thread];
}

/* From the free list, else from the arena, which is released as a whole. NULL: no memory. */
static ls__access *access_new(ls__memory_model *model)
{
    ls__access *access = model->spare;
    if (access != NULL) {
        model->spare = access->next;
        return access;
    }
    access = ls__arena_alloc(model->arena, sizeof *access);
    if (access == NULL) {
        model->failed = true;
    }
    return access;
}

/* Drops the reads that happened before `clock`: everything ordered after the access that takes
 * their place is ordered after them, too. Returns the thread of a concurrent read, or -1. */
static int drop_earlier_reads(ls__memory_model *model, ls__cell *cell, const uint32_t *clock)
{
    int concurrent = -1;
    for (ls__access **at = &cell->reads; *at != NULL;) {
        ls__access *read = *at;
        if (happened_before(read, clock)) {
            *at = read->next;
            read->next = model->spare;
            model->spare = read;
        } else {
            concurrent = read->thread;
            at = &read->next;
        }
    }
    return concurrent;
}

/* Concurrent reads are allowed; only a concurrent write is a race. */
int ls__cell_read(ls__memory_model *model, ls__cell *cell, int thread, const uint32_t *clock)
{
    if (!happened_before(&cell->write, clock)) {
        return cell->write.thread;
    }
    (void)drop_earlier_reads(model, cell, clock);
    ls__access *read = access_new(model);
    if (read != NULL) {
        *read = (ls__access){thread, clock[thread], cell->reads};
        cell->reads = read;
    }
    return -1;
}

/* Races with the last write and with every read since. */
int ls__cell_write(ls__memory_model *model, ls__cell *cell, int thread, const uint32_t *clock)
{
    if (!happened_before(&cell->write, clock)) {
        return cell->write.thread;
    }
    const int reader = drop_earlier_reads(model, cell, clock);
    cell->write = (ls__access){thread, clock[thread], NULL};
    return reader;
}
