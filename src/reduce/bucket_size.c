/* SPDX-License-Identifier: Apache-2.0 */
/* How large buckets are where the caller did not say (docs/design.md, D9).
 *
 *     backward   ├──────┬──────┬──────┬──────┤
 *     wire              [α  βn][α  βn][α  βn][α  βn]    the last one begins when backward has ended
 *
 * An all-reduce of n bytes takes α + β n (Note [Model] in comm/tune/tune.h). However long backward
 * takes, two costs depend on n: the last bucket waits for its end, so β n is exposed; and each of
 * the B / n buckets of the model adds α. Their sum
 *
 *     β n + α B / n      is least for      n = √(B α / β)
 *
 * where both are equal. Latency is then at most 1/11 of the time where the model has 100 α / β or
 * more (20 MB in shared memory), and so is the last bucket. The size follows from the link and the
 * model alone: nothing is measured in a step, and all ranks compute the same. Bounds:
 *
 *     at most half of the model   so that something is sent before backward has ended
 *     at least 1 MiB              below, it counts what a bucket costs the processor, which α
 *                                 leaves out; so a model of less than 2 MiB may have a single
 *                                 bucket
 *     at most 25 MiB              PyTorch's cap; there latency is a few percent at 100 Gbit/s
 */
#include "reduce/bucket_size.h"

#include "base/assert.h"
#include "base/log.h"
#include "base/size.h"
#include "comm/core/round_robin.h"
#include "comm/tune/choice.h"
#include "cost/overlap.h"
#include "reduce/internal.h"

/* All operations are rounded exactly, the root as well, so every rank finds the same bits. */
size_t ls__bucket_size(const ls__tune_link *link, size_t bytes)
{
    LS_ASSERT(link->latency_ns >= 0.0 && link->byte_ns >= 0.0);
    const double most = (double)LS__BUCKET_BYTES_MAX, least = (double)LS__BUCKET_BYTES_MIN;
    double size = ls__overlap_bucket(link->latency_ns, link->byte_ns, (double)bytes);
    size = size < most ? size : most;
    size = size < (double)bytes / 2.0 ? size : (double)bytes / 2.0;
    return (size_t)(size > least ? size : least);
}

bool ls__bucket_sizes_are_chosen(const ls_reducer *r)
{
    return r->options.bucket_bytes == LS_BUCKET_BYTES_AUTO &&
           (r->param_count == 0 || r->params[0].map == 0);
}

static size_t gradient_bytes(const ls_reducer *r, int domain)
{
    size_t bytes = 0;
    for (int i = 0; i < r->domains[domain].param_count; i++) {
        bytes += ls__round_up(r->params[r->domains[domain].params[i]].bytes, LS__PARAM_ALIGN);
    }
    return bytes;
}

static ls_status choose_size(const ls_reducer *r, int d, size_t *size)
{
    const ls__reduce_domain *domain = &r->domains[d];
    const size_t bytes = gradient_bytes(r, d);
    ls__tune_link link;
    LS_TRY(ls__tuning_link(ls__round_robin_at(domain->group, 0), &link));
    *size = ls__bucket_size(&link, bytes);
    if (domain->rank == 0) {
        LS__INFO("reducer \"%s\": buckets of at most %.2f MB for %.2f MB of gradients, since an "
                 "all-reduce takes about %.3f ms and %.3f ms a MB",
                 r->name, (double)*size * 1e-6, (double)bytes * 1e-6, link.latency_ns * 1e-6,
                 link.byte_ns);
    }
    return LS_OK;
}

ls_status ls__bucket_sizes_choose(ls_reducer *r)
{
    for (int d = 0; d < r->domain_count; d++) {
        r->domains[d].bucket_bytes = r->options.bucket_bytes;
        if (ls__bucket_sizes_are_chosen(r)) {
            LS_TRY(choose_size(r, d, &r->domains[d].bucket_bytes));
        }
    }
    return LS_OK;
}
