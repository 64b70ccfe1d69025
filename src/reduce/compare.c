/* Whether the ranks of each domain register the same gradients. Each rank sends a hash first; only
 * when the hashes differ are the tables themselves exchanged, to name the first difference on both
 * sides. */
#include "reduce/compare.h"
#include "comm/api/control.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/hash.h"
#include "reduce/domain.h"

#define AUTOMATIC (-1)  /* as bucket_bytes: Lockstep chooses */
#define ENTRY_BYTES 128 /* "name float32[10,256]", cut when longer */

/* One rank's registration; sent as it is. */
typedef struct summary {
    uint64_t hash; /* of the whole texts */
    int64_t count;
    int64_t bucket_bytes[2]; /* and of the first bucket */
    int64_t wire;            /* ls_dtype */
} summary;

/* The text that error messages show; it is cut at ENTRY_BYTES, while hashes cover the whole of
 * it. */
static void describe(const ls_reducer *r, const ls__reduce_param *param, char *out, size_t bytes)
{
    char count[32], more[96] = "";
    (void)snprintf(count, sizeof count, "[%lld]", (long long)param->count);
    const int batch = r->batches[param->key.batch].size;
    if (param->key.divisor != 0) {
        (void)snprintf(more, sizeof more, ", divided by %g", param->key.divisor);
    } else if (batch != r->size) {
        (void)snprintf(more, sizeof more, ", divided by %d ranks", batch);
    }
    if (param->rows > 0) {
        const size_t used = strlen(more);
        (void)snprintf(more + used, sizeof more - used, ", %lld rows", (long long)param->rows);
    }
    if (param->map > 0) {
        const size_t used = strlen(more);
        (void)snprintf(more + used, sizeof more - used, ", in bucket %d", param->map);
    }
    (void)snprintf(out, bytes, "%s %s%s%s", param->name, ls_dtype_name(param->key.dtype),
                   param->shape != NULL ? param->shape : count, more);
}

/* Terminating zeros are hashed too, so that "ab","c" and "a","bc" differ. */
static uint64_t hash_params(const ls_reducer *r, const ls__reduce_domain *domain)
{
    uint64_t hash = LS__HASH_START;
    for (int i = 0; i < domain->param_count; i++) {
        const ls__reduce_param *p = &r->params[domain->params[i]];
        const char *shape = p->shape ? p->shape : "";
        hash = ls__hash_bytes(hash, p->name, strlen(p->name) + 1);
        hash = ls__hash_bytes(hash, shape, strlen(shape) + 1);
        hash = ls__hash_bytes(hash, &p->count, sizeof p->count);
        hash = ls__hash_bytes(hash, &p->key.dtype, sizeof p->key.dtype);
        hash = ls__hash_bytes(hash, &p->key.divisor, sizeof p->key.divisor);
        hash = ls__hash_bytes(hash, &r->batches[p->key.batch].size, sizeof(int));
        hash = ls__hash_bytes(hash, &p->map, sizeof p->map);
        hash = ls__hash_bytes(hash, &p->rows, sizeof p->rows);
    }
    return hash;
}

/* Entry i of a rank's table, or a text that says that the rank has fewer parameters. */
static const char *entry_of(const char *tables, const summary *all, int64_t longest, int rank,
                            int64_t i)
{
    return i < all[rank].count ? tables + ((size_t)rank * (size_t)longest + (size_t)i) * ENTRY_BYTES
                               : "no such parameter";
}

/* Every rank runs this on the same tables and finds the same first difference, so all of them
 * return one message. */
static ls_status name_difference(const ls_reducer *r, const ls__reduce_domain *domain,
                                 const char *tables, const summary *all, int64_t longest)
{
    for (int rank = 1; rank < domain->size; rank++) {
        for (int64_t i = 0; all[rank].hash != all[0].hash && i < longest; i++) {
            const char *ours = entry_of(tables, all, longest, 0, i);
            const char *theirs = entry_of(tables, all, longest, rank, i);
            if (strncmp(ours, theirs, ENTRY_BYTES) != 0) {
                return ls__fail(
                    LS_ERR_MISMATCH,
                    "reducer \"%s\": the models differ at parameter %lld: rank %d has %s"
                    " (%lld parameters in all), rank %d has %s (%lld in all); build the"
                    " same model on every rank",
                    r->name, (long long)i, ls__domain_rank(domain, 0), ours,
                    (long long)all[0].count, ls__domain_rank(domain, rank), theirs,
                    (long long)all[rank].count);
            }
        }
    }
    return ls__fail(LS_ERR_MISMATCH,
                    "reducer \"%s\": the models differ in a name or shape beyond its first %d "
                    "characters; build the same model on every rank",
                    r->name, ENTRY_BYTES);
}

/* "4096", or that Lockstep chooses. */
static const char *put_bytes(int64_t bytes, char out[32])
{
    (void)snprintf(out, 32, bytes == AUTOMATIC ? "LS_BUCKET_BYTES_AUTO" : "%lld", (long long)bytes);
    return out;
}

/* Different bucket sizes give different layouts, and the ranks would add up unrelated
 * parameters. */
static ls_status compare_options(const ls_reducer *r, const ls__reduce_domain *domain,
                                 const summary *all, int rank)
{
    const int64_t *ours = all[0].bucket_bytes, *theirs = all[rank].bucket_bytes;
    if (all[rank].wire != all[0].wire) {
        return ls__fail(
            LS_ERR_MISMATCH,
            "reducer \"%s\": rank %d has wire_dtype %s and rank %d has %s; give every rank "
            "the same",
            r->name, ls__domain_rank(domain, 0), ls_dtype_name((ls_dtype)all[0].wire),
            ls__domain_rank(domain, rank), ls_dtype_name((ls_dtype)all[rank].wire));
    }
    if (ours[0] == theirs[0] && ours[1] == theirs[1]) {
        return LS_OK;
    }
    char own[32], other[32];
    return ls__fail(LS_ERR_MISMATCH,
                    "reducer \"%s\": rank %d has bucket_bytes %s (the first bucket's %lld), rank "
                    "%d has %s (%lld); give every rank the same",
                    r->name, ls__domain_rank(domain, 0), put_bytes(ours[0], own),
                    (long long)ours[1], ls__domain_rank(domain, rank), put_bytes(theirs[0], other),
                    (long long)theirs[1]);
}

/* Collective; only called when hashes differ, so its cost does not matter to programs that work.
 * Tables are padded to the longest one, because all_gather wants equal parts. */
static ls_status exchange_tables(const ls_reducer *r, const ls__reduce_domain *domain,
                                 const summary *all)
{
    const ls__env *env = r->runtime->env;
    int64_t longest = 1;
    for (int rank = 0; rank < domain->size; rank++) {
        longest = all[rank].count > longest ? all[rank].count : longest;
    }
    LS_ASSERT(longest <= INT_MAX); /* each rank's count was an int */
    const size_t own_bytes = (size_t)longest * ENTRY_BYTES;
    const size_t all_bytes = own_bytes * ((size_t)domain->size + 1);
    char *own = env->allocate(env, all_bytes);
    if (own == NULL) {
        return ls__fail(LS_ERR_MEMORY, "reducer \"%s\": no memory to compare models", r->name);
    }
    memset(own, 0, all_bytes);
    for (int i = 0; i < domain->param_count; i++) {
        describe(r, &r->params[domain->params[i]], own + (size_t)i * ENTRY_BYTES, ENTRY_BYTES);
    }
    char *tables = own + own_bytes;
    ls_status status =
        ls__control_all_gather(domain->group, own, tables, (int64_t)own_bytes, LS_UINT8, NULL);
    if (status == LS_OK) {
        status = name_difference(r, domain, tables, all, longest);
    }
    env->release(env, own, all_bytes);
    return status;
}

/* The result lies in the arena: it is small, and is freed with the reducer. */
ls_status ls__reducer_compare(ls_reducer *r, const ls__reduce_domain *domain)
{
    summary own = {.hash = hash_params(r, domain),
                   .count = domain->param_count,
                   .bucket_bytes = {r->options.bucket_bytes == LS_BUCKET_BYTES_AUTO
                                        ? AUTOMATIC
                                        : (int64_t)r->options.bucket_bytes,
                                    (int64_t)r->options.first_bucket_bytes},
                   .wire = r->options.wire_dtype};
    summary *all = ls__arena_alloc(&r->arena, (size_t)domain->size * sizeof *all);
    if (all == NULL) {
        return ls__fail(LS_ERR_MEMORY, "reducer \"%s\": no memory to compare models", r->name);
    }
    LS_TRY(ls__control_all_gather(domain->group, &own, all, sizeof own, LS_UINT8, NULL));
    for (int rank = 1; rank < domain->size; rank++) {
        if (all[rank].hash != all[0].hash) {
            return exchange_tables(r, domain, all);
        }
        LS_TRY(compare_options(r, domain, all, rank));
    }
    return LS_OK;
}
