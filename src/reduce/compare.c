/* Whether all ranks register the same gradients. Each rank sends a hash first; only when the hashes
 * differ are the tables themselves exchanged, to name the first difference on both sides. */
#include "reduce/compare.h"

#include <stdio.h>
#include <string.h>

#include "base/size.h"

#define ENTRY_BYTES 128 /* "name float32[10,256]", cut when longer */

/* One rank's registration; sent as it is. */
typedef struct summary {
    uint64_t hash; /* of the whole texts */
    int64_t count;
    int64_t bucket_bytes[2]; /* and of the first bucket */
} summary;

/* FNV-1a, 64 bit (Fowler, Noll & Vo). */
static uint64_t hash_bytes(uint64_t hash, const void *data, size_t bytes)
{
    const unsigned char *p = data;
    for (size_t i = 0; i < bytes; i++) {
        hash = (hash ^ p[i]) * UINT64_C(0x100000001b3);
    }
    return hash;
}

/* The text that error messages show; it is cut at ENTRY_BYTES, while hashes cover the whole of
 * it. */
static void describe(const ls__reduce_param *param, char *out, size_t bytes)
{
    if (param->shape != NULL) {
        (void)snprintf(out, bytes, "%s %s%s", param->name, ls_dtype_name(param->dtype),
                       param->shape);
    } else {
        (void)snprintf(out, bytes, "%s %s[%lld]", param->name, ls_dtype_name(param->dtype),
                       (long long)param->count);
    }
}

/* Terminating zeros are hashed too, so that "ab","c" and "a","bc" differ. */
static uint64_t hash_params(const ls_reducer *r)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (int i = 0; i < r->param_count; i++) {
        const ls__reduce_param *p = &r->params[i];
        const char *shape = p->shape ? p->shape : "";
        hash = hash_bytes(hash, p->name, strlen(p->name) + 1);
        hash = hash_bytes(hash, shape, strlen(shape) + 1);
        hash = hash_bytes(hash, &p->count, sizeof p->count);
        hash = hash_bytes(hash, &p->dtype, sizeof p->dtype);
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
static ls_status name_difference(const ls_reducer *r, const char *tables, const summary *all,
                                 int64_t longest)
{
    for (int rank = 1; rank < r->size; rank++) {
        for (int64_t i = 0; all[rank].hash != all[0].hash && i < longest; i++) {
            const char *ours = entry_of(tables, all, longest, 0, i);
            const char *theirs = entry_of(tables, all, longest, rank, i);
            if (strncmp(ours, theirs, ENTRY_BYTES) != 0) {
                return ls__fail(LS_ERR_MISMATCH,
                                "reducer \"%s\": the models differ at parameter %lld: rank 0 has %s"
                                " (%lld parameters in all), rank %d has %s (%lld in all); build the"
                                " same model on every rank",
                                r->name, (long long)i, ours, (long long)all[0].count, rank, theirs,
                                (long long)all[rank].count);
            }
        }
    }
    return ls__fail(LS_ERR_MISMATCH,
                    "reducer \"%s\": the models differ in a name or shape beyond its first %d "
                    "characters; build the same model on every rank",
                    r->name, ENTRY_BYTES);
}

/* Different bucket sizes give different layouts, and the ranks would add up unrelated
 * parameters. */
static ls_status compare_buckets(const ls_reducer *r, const summary *all, int rank)
{
    const int64_t *ours = all[0].bucket_bytes, *theirs = all[rank].bucket_bytes;
    if (ours[0] == theirs[0] && ours[1] == theirs[1]) {
        return LS_OK;
    }
    return ls__fail(LS_ERR_MISMATCH,
                    "reducer \"%s\": rank 0 has bucket_bytes %lld (the first bucket's %lld), rank "
                    "%d has %lld (%lld); give every rank the same",
                    r->name, (long long)ours[0], (long long)ours[1], rank, (long long)theirs[0],
                    (long long)theirs[1]);
}

/* Collective; only called when hashes differ, so its cost does not matter to programs that work.
 * Tables are padded to the longest one, because all_gather wants equal parts. */
static ls_status exchange_tables(const ls_reducer *r, const summary *all)
{
    const ls__env *env = r->runtime->env;
    int64_t longest = 1;
    for (int rank = 0; rank < r->size; rank++) {
        longest = all[rank].count > longest ? all[rank].count : longest;
    }
    size_t own_bytes = 0, all_bytes = 0;
    if (!ls__bytes_of(longest, ENTRY_BYTES, &own_bytes) ||
        !ls__mul_size(own_bytes, (size_t)r->size + 1, &all_bytes)) {
        return ls__fail(LS_ERR_LIMIT, "reducer \"%s\": too many parameters to compare", r->name);
    }
    char *own = env->allocate(env, all_bytes);
    if (own == NULL) {
        return ls__fail(LS_ERR_MEMORY, "reducer \"%s\": no memory to compare models", r->name);
    }
    memset(own, 0, all_bytes);
    for (int i = 0; i < r->param_count; i++) {
        describe(&r->params[i], own + (size_t)i * ENTRY_BYTES, ENTRY_BYTES);
    }
    char *tables = own + own_bytes;
    ls_status status =
        ls_all_gather(r->group, own, tables, (int64_t)own_bytes, LS_UINT8, NULL, NULL);
    if (status == LS_OK) {
        status = name_difference(r, tables, all, longest);
    }
    env->release(env, own, all_bytes);
    return status;
}

/* The result lies in the arena: it is small, and is freed with the reducer. */
ls_status ls__reducer_compare(ls_reducer *r)
{
    summary own = {
        .hash = hash_params(r),
        .count = r->param_count,
        .bucket_bytes = {(int64_t)r->options.bucket_bytes, (int64_t)r->options.first_bucket_bytes}};
    summary *all = ls__arena_alloc(&r->arena, (size_t)r->size * sizeof *all);
    if (all == NULL) {
        return ls__fail(LS_ERR_MEMORY, "reducer \"%s\": no memory to compare models", r->name);
    }
    LS_TRY(ls_all_gather(r->group, &own, all, sizeof own, LS_UINT8, NULL, NULL));
    for (int rank = 1; rank < r->size; rank++) {
        if (all[rank].hash != all[0].hash) {
            return exchange_tables(r, all);
        }
        LS_TRY(compare_buckets(r, all, rank));
    }
    return LS_OK;
}
