/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of a table picked by index, and those of the identity (one-hot): weight [V,C], index of
 * any shape S -> [S,C]. The gradient of the weight is dense, [V,C]; rows named several times sum
 * their gradients in order of the index, so the sum is reproducible. Indices come from the user
 * and are checked here, before a kernel follows them. */

#include <lockstep/ops.h>

#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "device/captured.h"
#include "tensor/indices.h"
#include "tensor/shape.h"

enum { SAVED_INDEX };
enum { EDGE_W, EDGE_INDEX };

typedef struct embedding_context {
    ls__lookup at; /* but its index, which is saved */
    int64_t whole; /* rows of the table on all ranks together */
} embedding_context;

static ls__lookup lookup_of(const embedding_context *c, const void *index)
{
    ls__lookup at = c->at;
    at.index = index;
    return at;
}

/* Index i of int32 or int64 elements. */
static int64_t index_at(const void *index, size_t bytes, int64_t i)
{
    return bytes == sizeof(int64_t) ? ((const int64_t *)index)[i] : ((const int32_t *)index)[i];
}

/* ---- the check ------------------------------------------------------------------------------ */

/* What a captured step needs to say which index was outside. */
typedef struct late_words {
    ls__index_words *words;
    const char *name, *file;
    int line, i;
    ls__shape_text shape;
    ls__index_check check;
} late_words;

static ls_status take_outside(const ls__captured_result *r, const void *slot)
{
    const late_words *late = r->of;
    int64_t at[2];
    memcpy(at, slot, sizeof at);
    if (at[0] < 0) {
        return LS_OK;
    }
    ls__call call = {.name = late->name, .tensors = ls__tensors_get(late->name)};
    ls__self.file = late->file;
    ls__self.line = late->line;
    late->words(&call, late->i, late->shape.text, &late->check, at);
    return ls__self.status;
}

/* Its result is read after the step. */
static bool check_later(ls__call *call, int i, ls__index_check *check, ls__index_words *words)
{
    late_words *late = calloc(1, sizeof *late);
    if (late == NULL) {
        (void)ls__call_fail(call, LS_ERR_MEMORY, "out of memory for a check of its indices");
        return false;
    }
    *late = (late_words){.words = words,
                         .name = call->name,
                         .file = ls__self.file,
                         .line = ls__self.line,
                         .i = i,
                         .shape = ls__record_print(call->in[i]),
                         .check = *check};
    check->first = ls__captured_result_add(
        &(ls__captured_result){.take = take_outside, .drop = free, .of = late});
    call->k->outside(check, call->stream);
    return true;
}

static bool check_now(ls__call *call, int i, ls__index_check *check, bool guarded,
                      ls__index_words *words)
{
    int64_t at[2] = {-1, 0};
    const bool host = call->on->device->host;
    ls__dense first = host ? (ls__dense){.data = at} : ls__call_memory(call, 2 * sizeof *at);
    if (first.data == NULL) {
        return false;
    }
    check->first = first.data;
    call->k->outside(check, call->stream);
    if (!host) {
        if (guarded) {
            (void)ls__captured_result_add(&(ls__captured_result){0});
        }
        ls__captured *watching = guarded ? ls__captured_pause() : ls__self.captured;
        ls__device_read(call->on->device, at, first.data, 2 * sizeof *at);
        ls__captured_resume(watching);
        ls__dense_drop(&first);
    }
    if (at[0] >= 0) {
        words(call, i, ls__record_print(call->in[i]).text, check, at);
    }
    return at[0] < 0;
}

bool ls__call_inside(ls__call *call, int i, const ls__dense *index, ls__index_check *check,
                     bool guarded, ls__index_words *words)
{
    if (call->failed != NULL) {
        return false;
    }
    if (index->data == NULL) {
        return true;
    }
    check->index = index->data;
    check->index_bytes = ls_dtype_size((ls_dtype)call->in[i]->dtype);
    check->count = call->in[i]->numel;
    return guarded && ls__captured_records() ? check_later(call, i, check, words)
                                             : check_now(call, i, check, guarded, words);
}

static void say_outside(ls__call *call, int i, const char *shape, const ls__index_check *check,
                        const int64_t at[2])
{
    (void)ls__call_fail(call, LS_ERR_INVALID,
                        "element %lld of argument %d %s is %lld; give values in [0,%lld)",
                        (long long)at[0], i + 1, shape, (long long)at[1], (long long)check->n);
}

/* Checks all of an index in one pass before any kernel runs, because a kernel would read outside
 * the table. The first bad one is named. False with call->failed set. */
bool ls__call_indices(ls__call *call, int i, const ls__dense *index, int64_t limit, bool guarded)
{
    ls__index_check check = {.n = limit};
    return ls__call_inside(call, i, index, &check, guarded, say_outside);
}

/* ---- rows ----------------------------------------------------------------------------------- */

/* dW [V,C]: rows that no index names get zeros unless the gradient accumulates; rows named twice
 * get the sum, in order of the index. */
static ls_status embedding_backward(ls__tensor_rule *r)
{
    const embedding_context *c = r->node->context;
    ls__gradient *dw = &r->in[EDGE_W];
    if (dw->beta == 0.0f) {
        r->k->zero(dw->data, (size_t)(c->at.vocab * c->at.dim) * sizeof(float), r->stream);
    }
    const ls__lookup at = lookup_of(c, r->saved[SAVED_INDEX]);
    r->k->embedding_backward(dw->data, r->dy, &at, r->stream);
    return LS_OK;
}

static void embedding_rows(const ls__tensor_node *node, ls__rows *rows)
{
    const embedding_context *c = node->context;
    const ls__tensor_saved *index = &node->saved[SAVED_INDEX];
    const size_t bytes = c->at.index_bytes;
    ls__host_view view;
    LS_ASSERT(rows->count == c->at.vocab);
    if (ls__host_view_open(index->storage->pool, (char *)index->storage->data + index->offset,
                           (size_t)c->at.count * bytes, &view) < 0) {
        rows->some = false;
        return;
    }
    for (int64_t i = 0; rows->some && i < c->at.count; i++) {
        const int64_t id = index_at(view.data, bytes, i), row = id - c->at.first;
        if (id < 0 || id >= c->whole) { /* changed since: backward will say so */
            rows->some = false;
        } else if (row >= 0 && row < rows->count) {
            rows->reached[row] = 1;
        }
    }
    ls__host_view_close(&view, false);
}

static const ls__op embedding_op = {.name = "embedding",
                                    .backward = embedding_backward,
                                    .accumulates = true,
                                    .rows = embedding_rows};

/* The rows [..,C] of the table. The indices are checked against the vocabulary here, because the
 * kernel trusts them. NULL after a failure. */
static ls__record *lookup(ls__call *call, const embedding_context *c, const ls__dense *weight,
                          const ls__dense *index)
{
    ls_shape shape = ls__record_shape(call->in[EDGE_INDEX]);
    if (!ls__call_indices(call, EDGE_INDEX, index, c->whole, true)) {
        return NULL;
    }
    shape.dim[shape.ndim++] = c->at.dim;
    ls__record *out = ls__call_output(call, shape, LS_FLOAT32);
    if (out != NULL && out->numel > 0) {
        const ls__lookup at = lookup_of(c, index->data);
        call->k->embedding(ls__record_floats(out), weight->data, &at, call->stream);
    }
    return out;
}

/* Whether the result, with one dimension more than the index, has not too many. False with
 * call->failed set. */
static bool takes_dim(ls__call *call, const ls__record *index)
{
    if (index->ndim == LS_DIMS_MAX) {
        (void)ls__call_fail(call, LS_ERR_INVALID,
                            "index %s: the result has one dimension more, and %d is the most",
                            ls__record_print(index).text, LS_DIMS_MAX);
    }
    return index->ndim < LS_DIMS_MAX;
}

/* False with call->failed set. */
static bool table_fits(ls__call *call)
{
    const ls__record *w = call->in[EDGE_W], *ids = call->in[EDGE_INDEX];
    if (!takes_dim(call, ids)) {
        return false;
    }
    if (w->dtype != LS_FLOAT32 || w->ndim != 2) {
        (void)ls__call_fail(call, LS_ERR_INVALID,
                            "weight %s of %s with index %s; the weight must be float32 or bfloat16 "
                            "[V,C]",
                            ls__record_print(w).text, ls_dtype_name((ls_dtype)w->dtype),
                            ls__record_print(ids).text);
    }
    return call->failed == NULL;
}

ls_tensor *ls__call_embed(ls__call *call, int part, int parts)
{
    if (!ls__call_floats(call, 1u << EDGE_W) || !ls__call_index(call, EDGE_INDEX) ||
        !table_fits(call)) {
        return call->failed;
    }
    const ls__record *w = call->in[EDGE_W], *ids = call->in[EDGE_INDEX];
    const embedding_context c = {.at = {.count = ids->numel,
                                        .dim = w->dim[1],
                                        .first = part * w->dim[0],
                                        .vocab = w->dim[0],
                                        .index_bytes = ls_dtype_size((ls_dtype)ids->dtype)},
                                 .whole = parts * w->dim[0]};
    ls__dense table = ls__call_dense(call, EDGE_W), picked = ls__call_dense(call, EDGE_INDEX);
    ls__record *out = lookup(call, &c, &table, &picked);
    ls__tensor_node *node = ls__call_record(call, &embedding_op, out, sizeof c);
    if (node != NULL) {
        *(embedding_context *)node->context = c;
        ls__node_save(node, SAVED_INDEX, &picked);
    }
    ls__dense_drop(&table);
    ls__dense_drop(&picked);
    call->follows = LS__CONTRACTS(EMBEDS);
    return ls__call_finish(call, out);
}

/* As torch.nn.functional.embedding: weight [V,C], index of any shape. bfloat16 weights go
 * through a float32 copy. */
ls_tensor *ls_embedding(ls_tensor *weight, ls_tensor *index)
{
    ls__call call;
    return ls__call_begin(&call, "embedding", 2, (ls_tensor *[]){weight, index})
               ? ls__call_embed(&call, 0, 1)
               : call.failed;
}

/* ---- one-hot ------------------------------------------------------------------------------ */

static void one_hot(int64_t *row, const void *index, size_t index_bytes, int64_t count,
                    int64_t classes)
{
    for (int64_t i = 0; i < count; i++, row += classes) {
        for (int64_t c = 0; c < classes; c++) {
            row[c] = c == index_at(index, index_bytes, i);
        }
    }
}

/* int64 rows with a 1 at the index and 0 elsewhere. Indices carry no gradient, so nothing is
 * recorded. */
ls_tensor *ls_one_hot(ls_tensor *index, int64_t classes)
{
    ls__call call;
    if (!ls__call_begin(&call, "one_hot", 1, &index) || !ls__call_index(&call, 0) ||
        !takes_dim(&call, call.in[0])) {
        return call.failed;
    }
    const ls__record *in = call.in[0];
    if (classes < 1) {
        return ls__call_fail(&call, LS_ERR_INVALID, "%lld classes; give at least 1",
                             (long long)classes);
    }
    const size_t index_bytes = ls_dtype_size((ls_dtype)in->dtype);
    ls_shape shape = ls__record_shape(in);
    shape.dim[shape.ndim++] = classes;
    ls__dense at = ls__call_dense(&call, 0);
    ls__record *out = ls__call_indices(&call, 0, &at, classes, false)
                          ? ls__call_output(&call, shape, LS_INT64)
                          : NULL;
    if (out != NULL) {
        ls__dense stage = ls__call_stage(&call, out);
        ls__host_view view = {0};
        if (stage.data != NULL &&
            ls__host_view_open(call.on, at.data, (size_t)in->numel * index_bytes, &view) == LS_OK) {
            one_hot(stage.data, view.data, index_bytes, in->numel, classes);
        }
        ls__host_view_close(&view, false);
        ls__call_staged(&call, out, &stage);
    }
    ls__dense_drop(&at);
    call.follows = LS__ROWS(0, NOT);
    return ls__call_finish(&call, out);
}
