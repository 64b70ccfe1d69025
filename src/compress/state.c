/* SPDX-License-Identifier: Apache-2.0 */
/* Residuals: what was not sent yet. They are kept for each parameter in memory of their own, not in
 * the layout of the buckets, which changes after the first synchronised backward. */
#include "compress/state.h"

#include <string.h>

#include "base/error.h"
#include "base/options.h"
#include "base/runtime.h"
#include "base/text.h"
#include "kernel/reduce/reduce.h"

bool ls__compress_takes(const ls_bucket_param *param)
{
    return param->dtype == LS_FLOAT32;
}

static ls_status make_residual(ls__residuals *to, struct ls__residual *residual,
                               const ls_bucket_param *param)
{
    const size_t bytes = (size_t)param->count * ls_dtype_size(param->dtype) + 1;
    const size_t text = strlen(param->name) + 1;
    residual->count = param->count;
    residual->dtype = param->dtype;
    residual->memory = to->env->allocate(to->env, bytes);
    residual->name = to->env->allocate(to->env, text);
    if (residual->memory == NULL || residual->name == NULL) {
        return ls__fail(LS_ERR_MEMORY, "compression: no memory for the residual of %s, %zu bytes",
                        param->name, bytes);
    }
    memset(residual->memory, 0, bytes);
    memcpy(residual->name, param->name, text);
    return LS_OK;
}

ls_status ls__residuals_open(ls__residuals *to, const ls_bucket_param *params, int count, int rank,
                             int ranks, bool keep,
                             bool (*wanted)(const void *arg, const ls_bucket_param *param),
                             const void *arg)
{
    const ls__env *env = ls__env_posix();
    *to = (ls__residuals){.env = env, .rank = rank, .ranks = ranks};
    if (count == 0) {
        return LS_OK;
    }
    to->params = env->allocate(env, (size_t)count * sizeof *to->params);
    if (to->params == NULL) {
        return ls__fail(LS_ERR_MEMORY, "compression: no memory for %d parameters", count);
    }
    memset(to->params, 0, (size_t)count * sizeof *to->params);
    to->count = count;
    for (int i = 0; i < count && keep; i++) {
        if (wanted(arg, &params[i])) {
            LS_TRY(make_residual(to, &to->params[i], &params[i]));
        }
    }
    return LS_OK;
}

void ls__residuals_close(ls__residuals *of)
{
    for (int i = 0; i < of->count; i++) {
        struct ls__residual *residual = &of->params[i];
        if (residual->memory != NULL) {
            of->env->release(of->env, residual->memory,
                             (size_t)residual->count * ls_dtype_size(residual->dtype) + 1);
        }
        if (residual->name != NULL) {
            of->env->release(of->env, residual->name, strlen(residual->name) + 1);
        }
    }
    if (of->params != NULL) {
        of->env->release(of->env, of->params, (size_t)of->count * sizeof *of->params);
    }
    *of = (ls__residuals){0};
}

ls_status ls__residuals_visit(const ls__residuals *of, const char *prefix,
                              const ls_state_visitor *visitor)
{
    for (int i = 0; i < of->count; i++) {
        const struct ls__residual *residual = &of->params[i];
        char name[512];
        if (residual->memory == NULL) {
            continue;
        }
        LS_TRY(ls__state_name(name, sizeof name, prefix, "residual", residual->name));
        const ls_state_tensor tensor = {.dtype = residual->dtype,
                                        .ndim = 2,
                                        .global = {of->ranks, residual->count},
                                        .start = {of->rank, 0},
                                        .local = {1, residual->count},
                                        .data = residual->memory};
        LS_TRY(visitor->tensor(visitor->self, name, &tensor));
    }
    return LS_OK;
}

ls_status ls__hook_give(const ls_comm_hook *hook, ls_comm_hook *out, const char *caller)
{
    const ls_status status = ls__struct_fill(out, hook, sizeof *hook, "ls_comm_hook", caller);
    if (status < 0 && hook->free != NULL) {
        hook->free(hook->state);
    }
    return status;
}

void ls__residual_add(const ls__residuals *of, const ls_bucket_param *param)
{
    const struct ls__residual *residual = &of->params[param->index];
    if (residual->memory != NULL) {
        ls__reduce_into(param->grad, residual->memory, param->count, param->dtype, LS_SUM);
    }
}

void ls__exchange_whole(ls_bucket *bucket, ls_exchange *out)
{
    out->kind = LS_EXCHANGE_ALL_REDUCE;
    out->input = out->output = ls_bucket_memory(bucket);
    out->count = ls_bucket_numel(bucket);
    out->dtype = ls_bucket_dtype(bucket);
    out->mean = true;
}
