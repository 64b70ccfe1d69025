/* SPDX-License-Identifier: Apache-2.0 */
/* Memory for buckets that are whole only for a while: gradients with zero 2 and 3, parameters with
 * zero 3.
 *
 *     own memory   [ ████████ · ······· · ······· ]     this rank's part stays there; no other page
 *     block        [ ████████ ████████ ████████ ]       while the whole bucket is in use
 *
 * The system clears a page that was given back when it is touched anew, and maps it again in each
 * rank of the host. So a bucket that is no longer needed whole does not give its pages back: it
 * leaves its block to the next bucket, and in the steady state no page is touched for the first
 * time. There are as many blocks as buckets were whole at the same moment. Blocks are as large as
 * the largest bucket, but have pages only as far as buckets have written them: a small bucket takes
 * the block with the fewest pages that suffice. */
#include "reduce/pool.h"

#include "base/assert.h"
#include "comm/backend/plugin_group.h"
#include "reduce/reducer.h"

#define BLOCKS_OF_BUCKET 2 /* its gradients and its parameters */

/* Buckets of several domains keep their own memory: a backend may register memory for a group. */
ls_status ls__pool_open(ls_reducer *r)
{
    ls__reduce_pool *pool = &r->pool;
    LS_ASSERT(pool->blocks == NULL);
    if (r->size == 1 || r->domain_count > 1 || !r->releases) {
        return LS_OK;
    }
    const size_t max = BLOCKS_OF_BUCKET * (size_t)r->plan.count;
    pool->blocks = ls__arena_alloc(&r->arena, (max + 1) * sizeof *pool->blocks);
    if (pool->blocks == NULL) {
        return ls__fail(LS_ERR_MEMORY, "reducer \"%s\": no memory for a table of %zu blocks",
                        r->name, max);
    }
    pool->max = (int)max;
    for (int b = 0; b < r->plan.count; b++) {
        const size_t bytes = r->plan.buckets[b].bytes;
        pool->bytes = bytes > pool->bytes ? bytes : pool->bytes;
    }
    return LS_OK;
}

/* Whether `a` is the better one for so many bytes. */
static bool fits_better(const ls__reduce_block *a, const ls__reduce_block *b, size_t bytes)
{
    const bool enough = a->touched >= bytes;
    if (b == NULL || enough != (b->touched >= bytes)) {
        return b == NULL || enough;
    }
    return enough ? a->touched < b->touched : a->touched > b->touched;
}

/* Under the lock. A new block has no memory yet. */
static ls__reduce_block *find(ls__reduce_pool *pool, size_t bytes)
{
    ls__reduce_block *best = NULL;
    for (int i = 0; i < pool->count; i++) {
        ls__reduce_block *block = &pool->blocks[i];
        if (!block->taken && fits_better(block, best, bytes)) {
            best = block;
        }
    }
    if (best == NULL) {
        LS_ASSERT(pool->count < pool->max);
        best = &pool->blocks[pool->count++];
        *best = (ls__reduce_block){0};
    }
    best->taken = true;
    best->touched = best->touched > bytes ? best->touched : bytes;
    return best;
}

ls_status ls__pool_take(ls_reducer *r, const ls__reduce_bucket *bucket, char **out)
{
    ls__reduce_pool *pool = &r->pool;
    LS_ASSERT(pool->blocks != NULL);
    ls__lock_take(&pool->lock, r->runtime->env);
    ls__reduce_block *block = find(pool, bucket->bytes);
    ls__unlock(&pool->lock, r->runtime->env);
    if (block->memory == NULL) {
        void *memory = NULL;
        const ls_status status = ls__group_memory(r->domains[0].group, pool->bytes, &memory);
        if (status == LS_OK) { /* the heap has cleared what others have used before */
            ls__group_discard(r->domains[0].group, memory, pool->bytes);
        }
        ls__lock_take(&pool->lock, r->runtime->env);
        block->memory = memory;
        block->taken = status == LS_OK;
        ls__unlock(&pool->lock, r->runtime->env);
        LS_TRY(status);
    }
    *out = block->memory;
    return LS_OK;
}

void ls__pool_give(ls_reducer *r, const char *memory)
{
    ls__reduce_pool *pool = &r->pool;
    ls__lock_take(&pool->lock, r->runtime->env);
    int i = 0;
    while (i < pool->count && pool->blocks[i].memory != memory) {
        i++;
    }
    LS_ASSERT(i < pool->count && pool->blocks[i].taken);
    pool->blocks[i].taken = false;
    ls__unlock(&pool->lock, r->runtime->env);
}

void ls__pool_free(ls_reducer *r)
{
    for (int i = 0; i < r->pool.count; i++) {
        if (r->pool.blocks[i].memory != NULL) {
            (void)ls_group_dealloc(r->domains[0].group, r->pool.blocks[i].memory);
        }
    }
    r->pool.count = 0;
}

/* ---- for the parameters of buckets ----------------------------------------------------------- */

ls_status ls__reducer_block_take(ls_reducer *r, int bucket, char **out)
{
    *out = NULL;
    return r->pool.blocks != NULL ? ls__pool_take(r, &r->plan.buckets[bucket], out) : LS_OK;
}

void ls__reducer_block_give(ls_reducer *r, const char *block)
{
    ls__pool_give(r, block);
}
