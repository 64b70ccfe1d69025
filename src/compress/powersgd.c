/* SPDX-License-Identifier: Apache-2.0 */
/* PowerSGD (Vogels et al., NeurIPS 2019, algorithm 1), as torch's powerSGD_hook has it.
 *
 *   M = gradient + residual        [rows, columns] of each matrix of the bucket
 *   P = M Q            ──all_reduce, with vectors and small tensors──▶ mean, made orthonormal
 *   Q = M' P           ──all_reduce──▶ mean
 *   average = P Q',  residual = M - average
 *
 * Q stays for the next step, and is the same on all ranks. The residual of a rank is its M minus
 * the average, so the mean of the residuals is the error of the average.
 *
 * A gradient that is not finite makes P, Q and the average so, on all ranks alike: the residual is
 * dropped then, and Q drawn anew, so a step that is skipped leaves no trace. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <lockstep/random.h>

#include "base/error.h"
#include "base/nonfinite.h"
#include "base/options.h"
#include "base/text.h"
#include "compress/state.h"
#include "kernel/reduce/reduce.h"

#define RANK_MAX 128
#define DRAWS 8 /* of a random direction; the first is nearly always one */

#define REAL float
#define NAME(x) x##_float
#define ROOT sqrtf
#define TINY 1e-10f
#include "compress/matrix.h"
#undef REAL
#undef NAME
#undef ROOT
#undef TINY
#define REAL double
#define NAME(x) x##_double
#define ROOT sqrt
#define TINY 1e-24
#include "compress/matrix.h"

enum { SLOT_P, SLOT_Q };

typedef struct factor { /* of a parameter that is compressed */
    char *name;
    int64_t rows, columns;
    int rank; /* 0: the parameter is sent whole */
    ls_dtype dtype;
    void *q; /* [rank][columns] */
} factor;

typedef struct powersgd {
    ls_powersgd_options options;
    char about[128];
    ls__residuals residuals;
    factor *factors; /* [count] */
    int count;
} powersgd;

/* ---- a matrix, of either type ---------------------------------------------------------------- */

static void make_p(const factor *f, const void *m, void *p)
{
    if (f->dtype == LS_FLOAT32) {
        times_float(m, f->rows, f->columns, f->q, f->rank, p);
    } else {
        times_double(m, f->rows, f->columns, f->q, f->rank, p);
    }
}

static void make_q(const factor *f, const void *m, const void *p, void *q)
{
    if (f->dtype == LS_FLOAT32) {
        transposed_times_float(m, f->rows, f->columns, p, f->rank, q);
    } else {
        transposed_times_double(m, f->rows, f->columns, p, f->rank, q);
    }
}

static void orthonormalize(const factor *f, void *p, int64_t rows)
{
    if (f->dtype == LS_FLOAT32) {
        orthonormalize_float(p, rows, f->rank);
    } else {
        orthonormalize_double(p, rows, f->rank);
    }
}

static void approximate(const factor *f, void *m, const void *p, void *left)
{
    if (f->dtype == LS_FLOAT32) {
        approximate_float(m, f->rows, f->columns, p, f->q, f->rank, left);
    } else {
        approximate_double(m, f->rows, f->columns, p, f->q, f->rank, left);
    }
}

/* The same on all ranks; the k-th draw of a parameter. */
static void draw_q(const powersgd *s, int index, uint64_t draw)
{
    const factor *f = &s->factors[index];
    const uint64_t stream = ((uint64_t)index << 32) + draw;
    for (int64_t i = 0; i < f->rank * f->columns; i++) {
        const float x = ls_random_normal(s->options.seed, stream, (uint64_t)i);
        if (f->dtype == LS_FLOAT32) {
            ((float *)f->q)[i] = x;
        } else {
            ((double *)f->q)[i] = x;
        }
    }
    orthonormalize(f, f->q, f->columns);
}

/* ---- a bucket -------------------------------------------------------------------------------- */

static bool is_whole(const powersgd *s, const ls_bucket *bucket)
{
    const ls_dtype dtype = ls_bucket_dtype(bucket);
    return (dtype != LS_FLOAT32 && dtype != LS_FLOAT64) ||
           ls_bucket_step(bucket) < (uint64_t)s->options.start_step;
}

/* Where the parts of a bucket's parameters lie in the two messages. */
typedef struct place {
    ls_bucket_param param;
    const factor *factor;
    char *p; /* P of a matrix; else the gradient */
    char *q; /* of a matrix */
} place;

typedef struct layout {
    int64_t p_count, q_count; /* elements of the messages */
    size_t element;
    char *p, *q;
} layout;

/* A parameter that no rank uses sends nothing. */
static void add_param(const powersgd *s, const ls_bucket *bucket, int i, layout *at, place *out)
{
    out->param = (ls_bucket_param){.size = sizeof out->param};
    (void)ls_bucket_get_param(bucket, i, &out->param);
    out->factor = &s->factors[out->param.index];
    out->p = at->p != NULL ? at->p + (size_t)at->p_count * at->element : NULL;
    out->q = at->q != NULL ? at->q + (size_t)at->q_count * at->element : NULL;
    if (out->param.used) {
        const factor *f = out->factor;
        at->p_count += f->rank > 0 ? f->rank * f->rows : out->param.count;
        at->q_count += f->rank * f->columns;
    }
}

/* The messages of the whole bucket; memory NULL without any. */
static layout measure_layout(const powersgd *s, ls_bucket *bucket)
{
    layout at = {.element = ls_dtype_size(ls_bucket_dtype(bucket))};
    place unused;
    for (int i = 0; i < ls_bucket_params(bucket); i++) {
        add_param(s, bucket, i, &at, &unused);
    }
    at.p = ls_bucket_scratch(bucket, SLOT_P, (size_t)(at.p_count + 1) * at.element);
    at.q = ls_bucket_scratch(bucket, SLOT_Q, (size_t)(at.q_count + 1) * at.element);
    return at;
}

/* Calls `each` for every parameter that some rank uses. */
static void for_each(powersgd *s, ls_bucket *bucket, const layout *all,
                     void (*each)(powersgd *s, const ls_bucket *bucket, const place *at))
{
    layout at = {.element = all->element, .p = all->p, .q = all->q};
    for (int i = 0; i < ls_bucket_params(bucket); i++) {
        place here;
        add_param(s, bucket, i, &at, &here);
        if (here.param.used) {
            each(s, bucket, &here);
        }
    }
}

static size_t bytes_of(const place *at)
{
    return (size_t)at->param.count * ls_dtype_size(at->param.dtype);
}

static void send_p(powersgd *s, const ls_bucket *bucket, const place *at)
{
    if (at->factor->rank == 0) {
        memcpy(at->p, at->param.grad, bytes_of(at));
        return;
    }
    ls__residual_add(&s->residuals, &at->param);
    if (!s->options.warm_start) {
        draw_q(s, at->param.index, ls_bucket_step(bucket));
    } else {
        orthonormalize(at->factor, at->factor->q, at->factor->columns);
    }
    make_p(at->factor, at->param.grad, at->p);
}

static void send_q(powersgd *s LS__UNUSED, const ls_bucket *bucket LS__UNUSED, const place *at)
{
    if (at->factor->rank == 0) {
        memcpy(at->param.grad, at->p, bytes_of(at));
    } else {
        orthonormalize(at->factor, at->p, at->factor->rows);
        make_q(at->factor, at->param.grad, at->p, at->q);
    }
}

static void put_average(powersgd *s, const ls_bucket *bucket, const place *at)
{
    const factor *f = at->factor;
    if (f->rank == 0) {
        return;
    }
    char *left = s->residuals.params[at->param.index].memory;
    memcpy(f->q, at->q, (size_t)(f->rank * f->columns) * ls_dtype_size(f->dtype));
    approximate(f, at->param.grad, at->p, left);
    if (ls__nonfinite_find(f->q, f->dtype, 0, f->rank * f->columns) >= 0 ||
        ls__nonfinite_find(at->p, f->dtype, 0, f->rank * f->rows) >= 0) {
        draw_q(s, at->param.index, ls_bucket_step(bucket) + 1);
        if (left != NULL) {
            memset(left, 0, bytes_of(at));
        }
    }
}

static ls_status powersgd_before(void *state, ls_bucket *bucket, int phase, ls_exchange *out,
                                 ls_stream *stream LS__UNUSED)
{
    powersgd *s = state;
    if (is_whole(s, bucket)) {
        if (phase == 0) {
            ls__exchange_whole(bucket, out);
        }
        return LS_OK;
    }
    const layout all = measure_layout(s, bucket);
    if (all.p == NULL || all.q == NULL) {
        return ls_error_status();
    }
    for_each(s, bucket, &all, phase == 0 ? send_p : send_q);
    const int64_t count = phase == 0 ? all.p_count : all.q_count;
    char *memory = phase == 0 ? all.p : all.q;
    *out = (ls_exchange){.size = sizeof *out,
                         .kind = count > 0 ? LS_EXCHANGE_ALL_REDUCE : LS_EXCHANGE_NONE,
                         .input = memory,
                         .output = memory,
                         .count = count,
                         .dtype = ls_bucket_dtype(bucket),
                         .mean = true};
    return LS_OK;
}

static ls_status powersgd_after(void *state, ls_bucket *bucket, int phase,
                                ls_stream *stream LS__UNUSED)
{
    powersgd *s = state;
    if (phase == 1 && !is_whole(s, bucket)) {
        const layout all = measure_layout(s, bucket);
        for_each(s, bucket, &all, put_average);
    }
    return LS_OK;
}

/* ---- the hook -------------------------------------------------------------------------------- */

/* The shape of the parameter's factors; its rank is 0 if it is sent whole. */
static factor factor_of(const powersgd *s, const ls_bucket_param *param)
{
    factor f = {.dtype = param->dtype, .rows = param->shape[0]};
    const bool matrix = param->ndim > 1 && param->count > 0 &&
                        (param->dtype == LS_FLOAT32 || param->dtype == LS_FLOAT64);
    f.columns = matrix ? param->count / f.rows : 0;
    const int64_t least = f.rows < f.columns ? f.rows : f.columns;
    const int64_t rank = s->options.rank < least ? s->options.rank : least;
    const double factors = (double)(rank * (f.rows + f.columns));
    f.rank = matrix && (double)param->count > s->options.min_compression * factors ? (int)rank : 0;
    return f;
}

static bool wanted(const void *arg, const ls_bucket_param *param)
{
    return factor_of(arg, param).rank > 0;
}

static ls_status open_factor(powersgd *s, const ls_bucket_param *param)
{
    const ls__env *env = ls__env_posix();
    factor *f = &s->factors[param->index];
    const size_t text = strlen(param->name) + 1;
    *f = factor_of(s, param);
    if (f->rank == 0) {
        return LS_OK;
    }
    f->name = env->allocate(env, text);
    f->q = env->allocate(env, (size_t)(f->rank * f->columns) * ls_dtype_size(f->dtype));
    if (f->name == NULL || f->q == NULL) {
        return ls__fail(LS_ERR_MEMORY, "powersgd: no memory for a factor of %s", param->name);
    }
    memcpy(f->name, param->name, text);
    draw_q(s, param->index, 0);
    return LS_OK;
}

static ls_status powersgd_open(void *state, const ls_bucket_param *params, int count, int rank,
                               int ranks)
{
    powersgd *s = state;
    const ls__env *env = ls__env_posix();
    const size_t bytes = ((size_t)count + 1) * sizeof *s->factors;
    s->factors = env->allocate(env, bytes);
    if (s->factors == NULL) {
        return ls__fail(LS_ERR_MEMORY, "powersgd: no memory for %d parameters", count);
    }
    memset(s->factors, 0, bytes);
    s->count = count;
    for (int i = 0; i < count; i++) {
        LS_TRY(open_factor(s, &params[i]));
    }
    return ls__residuals_open(&s->residuals, params, count, rank, ranks, s->options.error_feedback,
                              wanted, s);
}

static ls_status powersgd_visit(void *state, const char *prefix, const ls_state_visitor *visitor)
{
    const powersgd *s = state;
    for (int i = 0; i < s->count; i++) {
        const factor *f = &s->factors[i];
        char name[512];
        if (f->rank == 0) {
            continue;
        }
        LS_TRY(ls__state_name(name, sizeof name, prefix, "q", f->name));
        const ls_state_tensor tensor = {.dtype = f->dtype,
                                        .ndim = 2,
                                        .global = {f->rank, f->columns},
                                        .local = {f->rank, f->columns},
                                        .data = f->q};
        LS_TRY(visitor->tensor(visitor->self, name, &tensor));
    }
    return ls__residuals_visit(&s->residuals, prefix, visitor);
}

static void powersgd_free(void *state)
{
    powersgd *s = state;
    const ls__env *env = ls__env_posix();
    for (int i = 0; i < s->count; i++) {
        factor *f = &s->factors[i];
        if (f->name != NULL) {
            env->release(env, f->name, strlen(f->name) + 1);
        }
        if (f->q != NULL) {
            env->release(env, f->q, (size_t)(f->rank * f->columns) * ls_dtype_size(f->dtype));
        }
    }
    if (s->factors != NULL) {
        env->release(env, s->factors, ((size_t)s->count + 1) * sizeof *s->factors);
    }
    ls__residuals_close(&s->residuals);
    env->release(env, s, sizeof *s);
}

ls_status ls_powersgd_new(const ls_powersgd_options *options, ls_comm_hook *out)
{
    LS__OPTIONS(ls_powersgd_options, given, options);
    if (out == NULL || given.rank < 1 || given.rank > RANK_MAX || given.start_step < 0 ||
        !(given.min_compression >= 0.0)) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_powersgd_new: rank %d, start_step %lld, min_compression %g, out %p; "
                        "give a rank from 1 to %d, a step >= 0, a factor >= 0, and a place for the "
                        "hook",
                        given.rank, (long long)given.start_step, given.min_compression, (void *)out,
                        RANK_MAX);
    }
    const ls__env *env = ls__env_posix();
    powersgd *s = env->allocate(env, sizeof *s);
    if (s == NULL) {
        return ls__fail(LS_ERR_MEMORY, "ls_powersgd_new: no memory");
    }
    *s = (powersgd){.options = given};
    (void)snprintf(s->about, sizeof s->about,
                   "rank=%d, start=%lld, min=%.9g, feedback=%d, warm=%d, seed=%llu", given.rank,
                   (long long)given.start_step, given.min_compression, given.error_feedback,
                   given.warm_start, (unsigned long long)given.seed);
    const ls_comm_hook hook =
        *LS_OPTIONS(ls_comm_hook, .name = "powersgd", .about = s->about, .phases = 2, .state = s,
                    .open = powersgd_open, .before = powersgd_before, .after = powersgd_after,
                    .visit = powersgd_visit, .free = powersgd_free);
    return ls__hook_give(&hook, out, "ls_powersgd_new");
}
