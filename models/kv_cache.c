/* SPDX-License-Identifier: Apache-2.0 */
/* See kv_cache.h. A layer's keys are one tensor [B,context,dim], filled from the front:
 *
 *     text b:  |k0 k1 … k(length-1)|k(length) … new|           |      attention reads a view;
 *               ---------------- the view ---------              nothing is ever moved
 */
#include <lockstep/models/kv_cache.h>

#include <stdlib.h>
#include <string.h>

typedef struct pair {
    ls_tensor *keys, *values; /* kept; [B,context,dim] */
} pair;

struct ls_kv_cache {
    int layers;
    int64_t batch, context, dim;
    int64_t length;   /* tokens read */
    int64_t reading;  /* tokens of the forward pass that has begun */
    int layer;        /* the next layer of that pass */
    ls_status status; /* of that pass */
    pair of[];
};

/* `layers` counts what was made, so that ls_kv_cache_free also serves after a failure. */
ls_kv_cache *ls_kv_cache_new(int layers, int64_t batch, int64_t context, int64_t dim)
{
    if (layers < 1 || batch < 1 || context < 1 || dim < 1) {
        (void)ls_fail(
            LS_ERR_INVALID,
            "ls_kv_cache: %d layers, %lld texts, context %lld, dim %lld; there must be one "
            "of each",
            layers, (long long)batch, (long long)context, (long long)dim);
        return NULL;
    }
    ls_kv_cache *c = calloc(1, sizeof *c + (size_t)layers * sizeof c->of[0]);
    if (c == NULL) {
        (void)ls_fail(LS_ERR_MEMORY, "ls_kv_cache: no memory for %d layers", layers);
        return NULL;
    }
    c->batch = batch;
    c->context = context;
    c->dim = dim;
    for (; c->layers < layers; c->layers++) {
        pair *p = &c->of[c->layers];
        p->keys = ls_keep(ls_empty(LS_SHAPE(batch, context, dim), LS_FLOAT32));
        p->values = ls_keep(ls_empty(LS_SHAPE(batch, context, dim), LS_FLOAT32));
        if (ls_tensor_status(p->keys) < 0 || ls_tensor_status(p->values) < 0) {
            c->layers++;
            ls_kv_cache_free(c);
            return NULL;
        }
    }
    return c;
}

void ls_kv_cache_free(ls_kv_cache *c)
{
    for (int i = 0; c != NULL && i < c->layers; i++) {
        ls_free(c->of[i].keys);
        ls_free(c->of[i].values);
    }
    free(c);
}

int64_t ls_kv_cache_length(const ls_kv_cache *c)
{
    return c->length;
}

void ls_kv_cache_cut(ls_kv_cache *c, int64_t length)
{
    c->length = length < 0 ? 0 : length < c->length ? length : c->length;
}

ls_status ls_kv_cache_check(const ls_module *model, ls_tensor *x, int64_t last)
{
    LS_TRY(ls_tensor_status(x));
    if (ls_ndim(x) != 2 || last < 1 || last > ls_size(x, 1)) {
        return ls_fail(LS_ERR_INVALID,
                       "%s: the last %lld logits of tokens of %d dimensions are asked for; give "
                       "[B,T] and a number in 1…T",
                       model->cls->name, (long long)last, ls_ndim(x));
    }
    if (model->training) {
        return ls_fail(LS_ERR_STATE,
                       "%s: a cache is for a model in evaluation; call ls_module_train(model, "
                       "false)",
                       model->cls->name);
    }
    if (ls_tensor_parallel_sequence(model)) {
        return ls_fail(LS_ERR_UNSUPPORTED,
                       "%s: a cache reads one token after another, and the model was cut with "
                       ".sequence, which divides them; load its checkpoint into a model without it",
                       model->cls->name);
    }
    return LS_OK;
}

/* Only ls_kv_cache_commit changes `length`, so a pass that fails leaves the cache as it was. */
ls_status ls_kv_cache_begin(ls_kv_cache *c, int64_t batch, int64_t tokens)
{
    if (batch != c->batch) {
        return ls_fail(LS_ERR_INVALID, "ls_kv_cache: %lld texts are given, the cache is for %lld",
                       (long long)batch, (long long)c->batch);
    }
    if (tokens < 1 || tokens > c->context - c->length) {
        return ls_fail(LS_ERR_LIMIT,
                       "ls_kv_cache: %lld tokens are read and %lld more are given; the context is "
                       "%lld: cut the cache and read again what shall be remembered",
                       (long long)c->length, (long long)tokens, (long long)c->context);
    }
    c->reading = tokens;
    c->layer = 0;
    c->status = LS_OK;
    return LS_OK;
}

static ls_status copy_rows(const ls_kv_cache *c, ls_tensor *room, ls_tensor *rows)
{
    ls_tensor *here = ls_to(ls_contiguous(rows), "cpu");
    LS_TRY(ls_tensor_status(here));
    return ls_copy_in(ls_slice(room, 1, c->length, c->length + c->reading), ls_data(here),
                      (size_t)(c->batch * c->reading * c->dim) * sizeof(float));
}

/* Copies the new rows [B,T,dim] after those in `room` and returns a view of all of them. */
static ls_tensor *append(ls_kv_cache *c, ls_tensor *room, ls_tensor *rows)
{
    if (ls_dtype_of(rows) == LS_BFLOAT16) { /* under autocast; attention rounds it again */
        rows = ls_cast(rows, LS_FLOAT32);
    }
    c->status = c->status < 0 ? c->status : copy_rows(c, room, rows);
    return ls_slice(room, 1, 0, c->length + c->reading);
}

/* An error is kept until ls_kv_cache_commit, because attention cannot return one. */
void ls_kv_cache_extend(ls_kv_cache *c, ls_tensor **keys, ls_tensor **values)
{
    pair *p = &c->of[c->layer++];
    *keys = append(c, p->keys, *keys);
    *values = append(c, p->values, *values);
}

ls_status ls_kv_cache_commit(ls_kv_cache *c)
{
    LS_TRY(c->status);
    c->length += c->reading;
    c->reading = 0;
    return LS_OK;
}
