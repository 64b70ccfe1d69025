/* SPDX-License-Identifier: Apache-2.0 */
/* The operations of `lockstep bench`: the call, the shape of its buffers, and the right result. The
 * root is rank 0. Bus factors are those of nccl-tests (doc/PERFORMANCE.md): what one link would
 * carry of the larger buffer. */
#include <stdio.h>
#include <string.h>

#include "bench.h"

static double twice_the_others(int n)
{
    return 2.0 * (n - 1) / n;
}

static double the_others(int n)
{
    return (double)(n - 1) / n;
}

static double once(int n)
{
    (void)n;
    return 1.0;
}

static ls_status all_reduce(const ls__bench_call *c)
{
    return ls_all_reduce(c->group, c->out, c->out, c->count, c->dtype, c->op, c->options, NULL);
}

static ls_status reduce_scatter(const ls__bench_call *c)
{
    return ls_reduce_scatter(c->group, c->in, c->out, c->count, c->dtype, c->op, c->options, NULL);
}

static ls_status all_gather(const ls__bench_call *c)
{
    return ls_all_gather(c->group, c->in, c->out, c->count, c->dtype, c->options, NULL);
}

static ls_status broadcast(const ls__bench_call *c)
{
    return ls_broadcast(c->group, c->out, c->count, c->dtype, 0, c->options, NULL);
}

static ls_status reduce(const ls__bench_call *c)
{
    return ls_reduce(c->group, c->in, c->out, c->count, c->dtype, c->op, 0, c->options, NULL);
}

static ls_status gather(const ls__bench_call *c)
{
    return ls_gather(c->group, c->in, c->out, c->count, c->dtype, 0, c->options, NULL);
}

static ls_status scatter(const ls__bench_call *c)
{
    return ls_scatter(c->group, c->in, c->out, c->count, c->dtype, 0, c->options, NULL);
}

static ls_status all_to_all(const ls__bench_call *c)
{
    return ls_all_to_all(c->group, c->in, c->out, c->count, c->dtype, c->options, NULL);
}

/* To the next rank, from the one before. */
static ls_status sendrecv(const ls__bench_call *c)
{
    const int n = ls_group_size(c->group), rank = ls_group_rank(c->group);
    ls_work *sent = NULL, *received = NULL;
    LS_TRY(ls_send(c->group, c->in, c->count, c->dtype, (rank + 1) % n, 0, c->options, &sent));
    const ls_status status =
        ls_recv(c->group, c->out, c->count, c->dtype, (rank + n - 1) % n, 0, c->options, &received);
    const ls_status sending = ls_work_wait(sent);
    LS_TRY(status);
    LS_TRY(ls_work_wait(received));
    return sending;
}

static ls_status barrier(const ls__bench_call *c)
{
    return ls_barrier(c->group, c->options, NULL);
}

static ls_status all_gather_v(const ls__bench_call *c)
{
    return ls_all_gather_v(c->group, c->in, c->count, c->out, c->blocks.counts, c->blocks.offsets,
                           c->dtype, c->options, NULL);
}

static ls_status reduce_scatter_v(const ls__bench_call *c)
{
    return ls_reduce_scatter_v(c->group, c->in, c->blocks.counts, c->blocks.offsets, c->out,
                               c->dtype, c->op, c->options, NULL);
}

static ls_status gather_v(const ls__bench_call *c)
{
    return ls_gather_v(c->group, c->in, c->count, c->out, c->blocks.counts, c->blocks.offsets,
                       c->dtype, 0, c->options, NULL);
}

static ls_status scatter_v(const ls__bench_call *c)
{
    return ls_scatter_v(c->group, c->in, c->blocks.counts, c->blocks.offsets, c->out, c->count,
                        c->dtype, 0, c->options, NULL);
}

static ls_status all_to_all_v(const ls__bench_call *c)
{
    const ls__bench_blocks *blocks = &c->blocks; /* what goes to a rank is as long as what comes */
    return ls_all_to_all_v(c->group, c->in, blocks->counts, blocks->offsets, c->out, blocks->counts,
                           blocks->offsets, c->dtype, c->options, NULL);
}

static const ls__bench_operation table[] = {
    {"all-reduce", LS__OP_ALL_REDUCE, LS__BENCH_NONE, LS__BENCH_COUNT, LS__BENCH_SUM, true, false,
     false, twice_the_others, all_reduce},
    {"all-gather", LS__OP_ALL_GATHER, LS__BENCH_COUNT, LS__BENCH_BLOCKS, LS__BENCH_ALL, false,
     false, false, the_others, all_gather},
    {"reduce-scatter", LS__OP_REDUCE_SCATTER, LS__BENCH_BLOCKS, LS__BENCH_COUNT,
     LS__BENCH_SUM_BLOCK, true, false, false, the_others, reduce_scatter},
    {"broadcast", LS__OP_BROADCAST, LS__BENCH_NONE, LS__BENCH_COUNT, LS__BENCH_ROOT, false, false,
     false, once, broadcast},
    {"all-to-all", LS__OP_ALL_TO_ALL, LS__BENCH_BLOCKS, LS__BENCH_BLOCKS, LS__BENCH_TRANSPOSED,
     false, false, false, the_others, all_to_all},
    {"sendrecv", LS__OP_SEND, LS__BENCH_COUNT, LS__BENCH_COUNT, LS__BENCH_LEFT, false, false, false,
     once, sendrecv},
    {"reduce", LS__OP_REDUCE, LS__BENCH_COUNT, LS__BENCH_COUNT, LS__BENCH_SUM, true, true, false,
     once, reduce},
    {"gather", LS__OP_GATHER, LS__BENCH_COUNT, LS__BENCH_BLOCKS, LS__BENCH_ALL, false, true, false,
     the_others, gather},
    {"scatter", LS__OP_SCATTER, LS__BENCH_BLOCKS, LS__BENCH_COUNT, LS__BENCH_ROOT_BLOCK, false,
     false, false, the_others, scatter},
    {"barrier", LS__OP_BARRIER, LS__BENCH_NONE, LS__BENCH_NONE, LS__BENCH_NOTHING, false, false,
     false, once, barrier},
    {"all-gather-v", LS__OP_ALL_GATHER_V, LS__BENCH_COUNT, LS__BENCH_BLOCKS, LS__BENCH_ALL, false,
     false, true, the_others, all_gather_v},
    {"reduce-scatter-v", LS__OP_REDUCE_SCATTER_V, LS__BENCH_BLOCKS, LS__BENCH_COUNT,
     LS__BENCH_SUM_BLOCK, true, false, true, the_others, reduce_scatter_v},
    {"gather-v", LS__OP_GATHER_V, LS__BENCH_COUNT, LS__BENCH_BLOCKS, LS__BENCH_ALL, false, true,
     true, the_others, gather_v},
    {"scatter-v", LS__OP_SCATTER_V, LS__BENCH_BLOCKS, LS__BENCH_COUNT, LS__BENCH_ROOT_BLOCK, false,
     false, true, the_others, scatter_v},
    {"all-to-all-v", LS__OP_ALL_TO_ALL_V, LS__BENCH_BLOCKS, LS__BENCH_BLOCKS, LS__BENCH_TRANSPOSED,
     false, false, true, the_others, all_to_all_v},
};
enum { OPERATIONS = sizeof table / sizeof *table };

static bool same_name(const char *a, const char *b)
{
    while (*a != '\0' && (*a == *b || (*a == '-' && *b == '_'))) {
        a++;
        b++;
    }
    return *a == *b;
}

const ls__bench_operation *ls__bench_operation_find(const char *name)
{
    for (int i = 0; i < OPERATIONS; i++) {
        if (same_name(table[i].name, name)) {
            return &table[i];
        }
    }
    return NULL;
}

void ls__bench_operation_names(char *out, size_t bytes)
{
    size_t used = 0;
    for (int i = 0; i < OPERATIONS && used < bytes; i++) {
        const int length =
            snprintf(out + used, bytes - used, "%s%s", i > 0 ? ", " : "", table[i].name);
        used += length > 0 ? (size_t)length : 0;
    }
}

int64_t ls__bench_count(const ls__bench_options *options, int64_t bytes)
{
    const ls__bench_operation *o = options->operation;
    if (o->out == LS__BENCH_NONE) {
        return 0;
    }
    const bool even = (o->in == LS__BENCH_BLOCKS || o->out == LS__BENCH_BLOCKS) && !o->uneven;
    return bytes / (int64_t)ls_dtype_size(options->dtype) / (even ? options->ranks : 1);
}

bool ls__bench_has_floor(const ls__bench_options *options)
{
    const bool shared =
        !options->joins && (options->transport == NULL || strcmp(options->transport, "shm") == 0);
    return options->operation->operation == LS__OP_ALL_REDUCE && options->dtype == LS_FLOAT32 &&
           options->op == LS_SUM && shared;
}
