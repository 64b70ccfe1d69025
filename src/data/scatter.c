/* SPDX-License-Identifier: Apache-2.0 */
/* Rank 0 reads for all; see scatter.h. Blocks are bytes, so that one path serves every dtype; the
 * ranks have compared shapes and dtypes when the loader was made. */
#include "data/scatter.h"
#include "comm/api/control.h"

#include <lockstep/comm.h>

#include <stdlib.h>
#include <string.h>

#include "base/runtime.h"
#include "comm/backend/plugin_group.h"
#include "comm/core/cause.h"
#include "data/dataset.h"
#include "data/sample.h"
#include "data/sampler.h"
#include "tensor/shape.h"

/* `failed` is sticky: after any failure the group is aborted instead of being freed
 * collectively. */
struct ls__scatter {
    ls_group *group;
    const ls_sampler *sampler;
    int rank, ranks;
    bool failed;
    size_t x_bytes, y_bytes;   /* of one sample */
    int64_t *counts, *offsets; /* [ranks] of bytes */
};

/* The properties that must be the same on all ranks. The struct travels as bytes between processes
 * of one build, so it needs no fixed layout. */
typedef struct description {
    int64_t count, batch;
    ls_shape x_shape, y_shape;
    int32_t x_dtype, y_dtype;
} description;

/* The struct is cleared first, padding and unused dimensions included, because descriptions are
 * compared as bytes. */
static void describe(const ls_dataset *d, int64_t batch, description *out)
{
    memset(out, 0, sizeof *out);
    out->count = d->count;
    out->batch = batch;
    out->x_shape.ndim = d->x_shape.ndim;
    out->y_shape.ndim = d->y_shape.ndim;
    memcpy(out->x_shape.dim, d->x_shape.dim, (size_t)d->x_shape.ndim * sizeof d->x_shape.dim[0]);
    memcpy(out->y_shape.dim, d->y_shape.dim, (size_t)d->y_shape.ndim * sizeof d->y_shape.dim[0]);
    out->x_dtype = (int32_t)d->x_dtype;
    out->y_dtype = (int32_t)d->y_dtype;
}

/* Every rank builds the same text, since all have the same descriptions. */
static ls_status fail_differs(int rank, const description *other, const description *root)
{
    return ls__fail(LS_ERR_MISMATCH,
                    "loader: rank %d expects %lld samples in batches of %lld, x %s %s and y %s %s; "
                    "rank 0 scatters %lld in batches of %lld, x %s %s and y %s %s: give all ranks "
                    "the same, or share rank 0's with ls_dataset_share",
                    rank, (long long)other->count, (long long)other->batch,
                    ls_dtype_name((ls_dtype)other->x_dtype), ls__shape_print(other->x_shape).text,
                    ls_dtype_name((ls_dtype)other->y_dtype), ls__shape_print(other->y_shape).text,
                    (long long)root->count, (long long)root->batch,
                    ls_dtype_name((ls_dtype)root->x_dtype), ls__shape_print(root->x_shape).text,
                    ls_dtype_name((ls_dtype)root->y_dtype), ls__shape_print(root->y_shape).text);
}

/* Collective. All ranks see all descriptions, so all find the same mismatch and no second
 * exchange is needed. */
static ls_status compare(ls__scatter *s, const ls_dataset *dataset)
{
    description mine, *all = calloc((size_t)s->ranks, sizeof *all);
    if (all == NULL) {
        return ls__fail(LS_ERR_MEMORY, "loader: no memory to compare %d ranks", s->ranks);
    }
    describe(dataset, ls__sampler_batch(s->sampler), &mine);
    ls_status status = ls__control_all_gather(s->group, &mine, all, (int64_t)sizeof mine, LS_UINT8,
                                              LS_OPTIONS(ls_collective_options, .tag = "loader"));
    for (int r = 1; status == LS_OK && r < s->ranks; r++) {
        if (memcmp(&all[r], &all[0], sizeof all[0]) != 0) {
            status = fail_differs(r, &all[r], &all[0]);
            ls__group_record_failure(s->group, status, ls_error_message());
        }
    }
    free(all);
    return status;
}

/* Local, and called before the first collective. */
static ls_status check_sampler(const ls_sampler *sampler)
{
    if (ls__sampler_ranks(sampler) != ls_world_size() || ls__sampler_rank(sampler) != ls_rank()) {
        return ls__fail(LS_ERR_INVALID,
                        "loader: rank 0 scatters over this job, where this is rank %d of %d, but "
                        "the sampler is for rank %d of %d; leave both out of its options",
                        ls_rank(), ls_world_size(), ls__sampler_rank(sampler),
                        ls__sampler_ranks(sampler));
    }
    return LS_OK;
}

/* Bytes of one sample; the loader has checked that the product fits. */
static size_t bytes_of(ls_shape shape, ls_dtype dtype)
{
    int64_t count = 1;
    return ls__shape_numel(shape, &count) ? (size_t)count * ls_dtype_size(dtype) : 0;
}

/* Counts and offsets share one allocation. A mismatch is common to all ranks, so the group is
 * freed normally; after other failures it is aborted, since the others may be inside a
 * collective. */
ls_status ls__scatter_new(const ls_dataset *dataset, const ls_sampler *sampler, ls__scatter **out)
{
    LS_TRY(check_sampler(sampler));
    ls__scatter *s = calloc(1, sizeof *s);
    if (s == NULL) {
        return ls__fail(LS_ERR_MEMORY, "loader: no memory");
    }
    s->sampler = sampler;
    s->rank = ls_rank();
    s->ranks = ls_world_size();
    s->x_bytes = bytes_of(dataset->x_shape, dataset->x_dtype);
    s->y_bytes = bytes_of(dataset->y_shape, dataset->y_dtype);
    s->counts = calloc(2 * (size_t)s->ranks, sizeof *s->counts);
    ls_status status = s->counts
                           ? ls_group_new(ls_world(), NULL, 0, "loader", &s->group)
                           : ls__fail(LS_ERR_MEMORY, "loader: no memory for %d ranks", s->ranks);
    if (status == LS_OK) {
        s->offsets = s->counts + s->ranks;
        status = compare(s, dataset);
        s->failed = status < 0 && status != LS_ERR_MISMATCH; /* which all ranks have */
    }
    if (status < 0) {
        char message[LS__MESSAGE_MAX];
        memcpy(message, ls__self.message, sizeof message);
        ls__scatter_free(s);
        return ls__fail_again(status, message);
    }
    *out = s;
    return LS_OK;
}

/* Collective only if nothing failed: freeing a group waits for the other ranks. */
void ls__scatter_free(ls__scatter *s)
{
    if (s == NULL) {
        return;
    }
    if (s->failed) { /* others may not come to free it */
        (void)ls_group_abort(s->group, "its loader has failed");
    }
    (void)ls_group_free(s->group);
    free(s->counts);
    free(s);
}

/* Rank 0 of the world is the root of every scatter. */
bool ls__scatter_root(const ls__scatter *s)
{
    return s->rank == 0;
}

/* Group memory, which ranks of the same host read without a copy through a buffer. */
ls_status ls__scatter_alloc(ls__scatter *s, size_t bytes, uint8_t **out)
{
    void *memory = NULL;
    LS_TRY(ls__group_memory(s->group, bytes, &memory));
    *out = memory;
    return LS_OK;
}

/* Local. NULL is allowed; the status is dropped, because callers only use it while freeing. */
void ls__scatter_dealloc(ls__scatter *s, uint8_t *memory)
{
    (void)ls_group_dealloc(s->group, memory);
}

/* Collective. All ranks compute the same counts; only the root's arrays are used, and every
 * other rank needs its own count alone. Rank 0's block begins at offset 0, so it receives in
 * place. */
static ls_status scatter(ls__scatter *s, int64_t position, size_t sample_bytes, const char *tag,
                         uint8_t *memory)
{
    for (int r = 0; r < s->ranks; r++) {
        const ls__sampler_span span = ls__sampler_span_of(s->sampler, position, r);
        s->counts[r] = span.count * (int64_t)sample_bytes;
        s->offsets[r] = span.offset * (int64_t)sample_bytes;
    }
    const bool root = ls__scatter_root(s);
    return ls_scatter_v(s->group, root ? memory : NULL, root ? s->counts : NULL,
                        root ? s->offsets : NULL, memory, s->counts[s->rank], LS_UINT8, 0,
                        LS_OPTIONS(ls_collective_options, .tag = tag), NULL);
}

/* Two collectives, always in this order. A failure is remembered for ls__scatter_free. */
ls_status ls__scatter_run(ls__scatter *s, int64_t position, uint8_t *x, uint8_t *y)
{
    ls_status status = scatter(s, position, s->x_bytes, "loader: x", x);
    if (status == LS_OK) {
        status = scatter(s, position, s->y_bytes, "loader: y", y);
    }
    s->failed = s->failed || status < 0;
    return status;
}

/* The others return from their scatter with `why`. The group cannot be used afterwards. */
void ls__scatter_abort(ls__scatter *s, const char *why)
{
    s->failed = true;
    (void)ls_group_abort(s->group, why);
}

/* ---- a data set that another rank has ------------------------------------------------------- */

/* Reached if a loader without LS_FEED_SCATTER reads the shared data set. */
static ls_status absent_get(ls_dataset *self, int64_t index, void *x, void *y)
{
    (void)self;
    (void)x;
    (void)y;
    return ls__fail(LS_ERR_STATE,
                    "shared data set: sample %lld cannot be read here, because rank 0 has all "
                    "samples; make the loader with .feed = LS_FEED_SCATTER on all ranks",
                    (long long)index);
}

/* Owns nothing but itself. */
static void absent_free(ls_dataset *self)
{
    free(self);
}

/* A data set with rank 0's shapes and no samples; it exists so that every rank's loader can size
 * its slots. */
static ls_status make_absent(const description *d, ls_dataset **out)
{
    *out = calloc(1, sizeof **out);
    if (*out == NULL) {
        return ls__fail(LS_ERR_MEMORY, "loader: no memory");
    }
    **out = (ls_dataset){.size = sizeof **out,
                         .count = d->count,
                         .x_shape = d->x_shape,
                         .y_shape = d->y_shape,
                         .x_dtype = (ls_dtype)d->x_dtype,
                         .y_dtype = (ls_dtype)d->y_dtype,
                         .get = absent_get,
                         .free = absent_free};
    return LS_OK;
}

/* Collective over the world. Rank 0 broadcasts even if its data set is missing (count -1),
 * because the others already wait. */
static ls_status share(ls_dataset *mine, ls_dataset **out)
{
    if (ls__runtime_get("ls_dataset_share") == NULL) {
        return ls__self.status;
    }
    description d;
    int64_t numel = 0;
    memset(&d, 0, sizeof d);
    d.count = -1;
    if (ls_rank() == 0 && mine != NULL &&
        ls__dataset_check_size(mine, "ls_dataset_share") == LS_OK &&
        !ls__dataset_has_arrays(mine) && ls__shape_numel(mine->x_shape, &numel) &&
        ls__shape_numel(mine->y_shape, &numel)) {
        describe(mine, 0, &d);
    }
    LS_TRY(ls__control_broadcast(ls_world(), &d, (int64_t)sizeof d, LS_UINT8, 0,
                                 LS_OPTIONS(ls_collective_options, .tag = "shared data set")));
    if (d.count < 0) {
        return ls__fail(LS_ERR_INVALID,
                        "shared data set: rank 0 has no data set to share; check what its "
                        "constructor returned there (one with get_sample is not shared)");
    }
    if (ls_rank() == 0) {
        *out = mine;
        return LS_OK;
    }
    return make_absent(&d, out);
}

/* Rank 0 gets its own data set back, the others one without samples. */
ls_dataset *ls_dataset_share(ls_dataset *dataset)
{
    ls_dataset *shared = NULL;
    return share(dataset, &shared) == LS_OK ? shared : NULL;
}
