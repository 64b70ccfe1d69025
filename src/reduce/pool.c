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
 * the block with the fewest pages that suffice. A backend may register memory for a group, so each
 * domain has blocks of its own. */
#include "reduce/pool.h"

#include "base/assert.h"
#include "comm/backend/plugin_group.h"
#include "reduce/reducer.h"

#define BLOCKS_OF_BUCKET 2 /* its gradients and its parameters */

static ls__reduce_domain *domain_of(ls_reducer *r, const ls__reduce_bucket *bucket)
{
    return &r->domains[r->plan.regions[bucket->region].key.domain];
}

bool ls__pool_has(const ls_reducer *r, const ls__reduce_bucket *bucket)
{
    return r->domains[r->plan.regions[bucket->region].key.domain].pool.blocks != NULL;
}

static ls_status open_pool(ls_reducer *r, ls__reduce_pool *pool, int buckets)
{
    const size_t max = BLOCKS_OF_BUCKET * (size_t)buckets;
    LS_ASSERT(pool->blocks == NULL);
    pool->blocks = ls__arena_alloc(&r->arena, (max + 1) * sizeof *pool->blocks);
    if (pool->blocks == NULL) {
        return ls__fail(LS_ERR_MEMORY, "reducer \"%s\": no memory for a table of %zu blocks",
                        r->name, max);
    }
    pool->max = (int)max;
    return LS_OK;
}

ls_status ls__pool_open(ls_reducer *r)
{
    if (r->size == 1 || !r->releases) {
        return LS_OK;
    }
    int buckets[LS__DOMAINS_MAX] = {0};
    for (int b = 0; b < r->plan.count; b++) {
        ls__reduce_domain *domain = domain_of(r, &r->plan.buckets[b]);
        const size_t bytes = r->plan.buckets[b].bytes;
        buckets[domain - r->domains]++;
        domain->pool.bytes = bytes > domain->pool.bytes ? bytes : domain->pool.bytes;
    }
    for (int d = 0; d < r->domain_count; d++) {
        ls__reduce_domain *domain = &r->domains[d];
        LS_TRY(domain->size > 1 ? open_pool(r, &domain->pool, buckets[d]) : LS_OK);
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
    ls_group *group = domain_of(r, bucket)->group;
    ls__reduce_pool *pool = &domain_of(r, bucket)->pool;
    LS_ASSERT(pool->blocks != NULL);
    ls__lock_take(&pool->lock, r->runtime->env);
    ls__reduce_block *block = find(pool, bucket->bytes);
    ls__unlock(&pool->lock, r->runtime->env);
    if (block->memory == NULL) {
        void *memory = NULL;
        const ls_status status = ls__group_memory(group, pool->bytes, &memory);
        if (status == LS_OK) { /* the heap has cleared what others have used before */
            ls__group_discard(group, memory, pool->bytes);
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

void ls__pool_give(ls_reducer *r, const ls__reduce_bucket *bucket, const char *memory)
{
    ls__reduce_pool *pool = &domain_of(r, bucket)->pool;
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
    for (int d = 0; d < r->domain_count; d++) {
        ls__reduce_pool *pool = &r->domains[d].pool;
        for (int i = 0; i < pool->count; i++) {
            if (pool->blocks[i].memory != NULL) {
                (void)ls_group_dealloc(r->domains[d].group, pool->blocks[i].memory);
            }
        }
        pool->count = 0;
    }
}

/* ---- for the parameters of buckets ----------------------------------------------------------- */

ls_status ls__reducer_block_take(ls_reducer *r, int bucket, char **out)
{
    const ls__reduce_bucket *of = &r->plan.buckets[bucket];
    *out = NULL;
    return ls__pool_has(r, of) ? ls__pool_take(r, of, out) : LS_OK;
}

void ls__reducer_block_give(ls_reducer *r, int bucket, const char *block)
{
    ls__pool_give(r, &r->plan.buckets[bucket], block);
}
