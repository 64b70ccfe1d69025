/* SPDX-License-Identifier: Apache-2.0 */
/* Adds up operations; see profile.h. Work is counted from shapes, not by the kernels: what an
 * operation has to do, not what it happens to do. */
#include "profile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/runtime.h"
#include "tensor/op.h"

#define NODES_MAX (1 << 20)

/* ---- work --------------------------------------------------------------------------------- */

static double numel(const ls__record *record)
{
    return record != NULL ? (double)record->numel : 0.0;
}

static int64_t last_dim(const ls__record *record, int from_end)
{
    return record->ndim >= from_end ? record->dim[record->ndim - from_end] : 0;
}

static double filter_numel(const ls__record *weight) /* of one output channel */
{
    return weight->dim[0] > 0 ? numel(weight) / (double)weight->dim[0] : 0.0;
}

static double product_flops(const ls__call *call, const ls__record *out)
{
    if (strcmp(call->name, "matmul") == 0 || strncmp(call->name, "linear", 6) == 0) {
        return 2.0 * numel(out) * (double)last_dim(call->in[0], 1);
    }
    if (strncmp(call->name, "conv2d", 6) == 0) {
        return 2.0 * numel(out) * filter_numel(call->in[1]);
    }
    if (strcmp(call->name, "lstm") == 0) { /* gates [..,4n] each from h [..,n] */
        return 2.0 * numel(call->in[0]) * (double)last_dim(call->in[1], 1);
    }
    if (strncmp(call->name, "attention", 9) == 0) { /* [T,D] x [D,S] and [T,S] x [S,D] */
        return 4.0 * numel(call->in[0]) * (double)last_dim(call->in[1], 2);
    }
    return 0.0;
}

/* How many products as large as the forward pass's. Attention makes its scores again. */
static double backward_factor(const ls__tensor_node *node)
{
    if (strncmp(node->op->name, "attention", 9) == 0) {
        return 2.5;
    }
    if (strcmp(node->op->name, "lstm") == 0) {
        return 2.0;
    }
    return (node->edge[0].to != NULL ? 1.0 : 0.0) + (node->edge[1].to != NULL ? 1.0 : 0.0);
}

static double record_bytes(const ls__record *record)
{
    return record != NULL ? numel(record) * (double)ls_dtype_size((ls_dtype)record->dtype) : 0.0;
}

static double forward_bytes(const ls__call *call, const ls__record *out)
{
    double bytes = record_bytes(out);
    for (int i = 0; i < call->count; i++) {
        if (call->in[i] != NULL && call->in[i]->storage == out->storage) {
            return 0.0; /* a view */
        }
        bytes += record_bytes(call->in[i]) / (call->halves >> i & 1 ? 2.0 : 1.0);
    }
    return bytes;
}

static double backward_bytes(const ls__tensor_node *node)
{
    double bytes = (double)node->numel * (double)ls_dtype_size((ls_dtype)node->dtype);
    for (int i = 0; i < LS__SAVED_MAX; i++) {
        const ls__tensor_saved *saved = &node->saved[i];
        const ls__storage *storage =
            saved->leaf != NULL ? ls__leaf_of(saved->leaf)->value : saved->storage;
        bytes += storage != NULL ? (double)storage->bytes : 0.0;
    }
    for (int i = 0; i < LS__EDGES_MAX; i++) {
        const ls__edge *edge = &node->edge[i];
        if (edge->to != NULL) {
            const int64_t of = edge->geometry != NULL ? edge->geometry->numel : edge->to->numel;
            bytes += (double)of * (double)ls_dtype_size((ls_dtype)edge->to->dtype);
        }
    }
    return bytes;
}

/* ---- rows --------------------------------------------------------------------------------- */

static ls__bench_profile_row *row_of(ls__bench_profile *profile, const char *operation,
                                     const char *pass)
{
    char name[sizeof profile->row->operation];
    snprintf(name, sizeof name, "%s", operation);
    for (int i = 0; i < profile->rows; i++) {
        ls__bench_profile_row *row = &profile->row[i];
        if (strcmp(row->operation, name) == 0 && strcmp(row->pass, pass) == 0) {
            return row;
        }
    }
    if (profile->rows == LS__PROFILE_ROWS_MAX) {
        return &profile->row[LS__PROFILE_ROWS_MAX - 1];
    }
    ls__bench_profile_row *row = &profile->row[profile->rows++];
    *row = (ls__bench_profile_row){.pass = pass};
    memcpy(row->operation, name, sizeof name);
    return row;
}

void ls__bench_profile_add(ls__bench_profile *profile, const char *operation, const char *pass,
                           uint64_t ns, double flops, double bytes)
{
    ls__bench_profile_row *row = row_of(profile, operation, pass);
    row->calls++;
    row->ns += ns;
    row->flops += flops;
    row->bytes += bytes;
    profile->ns += ns;
}

static void forward(ls__meter *meter, const ls__call *call, const ls__record *out, uint64_t ns)
{
    ls__bench_profile *profile = (ls__bench_profile *)(void *)meter;
    const double flops = product_flops(call, out);
    if (call->node != 0) {
        profile->first_node = profile->first_node == 0 ? call->node : profile->first_node;
        const uint64_t at = call->node - profile->first_node;
        if (flops > 0.0 && at < NODES_MAX) {
            profile->flops_of_node[at] = flops;
            profile->nodes = (int64_t)at + 1;
        }
    }
    ls__bench_profile_add(profile, call->name, "forward", ns, flops, forward_bytes(call, out));
}

static void backward(ls__meter *meter, const ls__tensor_node *node, uint64_t ns)
{
    ls__bench_profile *profile = (ls__bench_profile *)(void *)meter;
    const uint64_t at = node->number - profile->first_node;
    const double flops = at < (uint64_t)profile->nodes ? profile->flops_of_node[at] : 0.0;
    ls__bench_profile_add(profile, node->op->name, "backward", ns,
                          flops > 0.0 ? flops * backward_factor(node) : 0.0, backward_bytes(node));
}

bool ls__bench_profile_start(ls__bench_profile *profile, const ls__env *env)
{
    memset(profile, 0, sizeof *profile);
    profile->flops_of_node = calloc(NODES_MAX, sizeof *profile->flops_of_node);
    if (profile->flops_of_node == NULL) {
        return false;
    }
    profile->meter = (ls__meter){.forward = forward, .backward = backward, .env = env};
    ls__self.meter = &profile->meter;
    return true;
}

void ls__bench_profile_stop(ls__bench_profile *profile)
{
    ls__self.meter = NULL;
    free(profile->flops_of_node);
    profile->flops_of_node = NULL;
}

void ls__bench_profile_step(ls__bench_profile *profile)
{
    memset(profile->flops_of_node, 0, (size_t)profile->nodes * sizeof *profile->flops_of_node);
    profile->nodes = 0;
    profile->first_node = 0;
}

static int longer(const void *a, const void *b)
{
    const ls__bench_profile_row *x = a, *y = b;
    return x->ns < y->ns ? 1 : x->ns > y->ns ? -1 : 0;
}

void ls__bench_profile_sort(ls__bench_profile *profile)
{
    qsort(profile->row, (size_t)profile->rows, sizeof *profile->row, longer);
}
