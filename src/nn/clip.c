/* Clipping by the global norm (Pascanu et al. 2013), torch.nn.utils.clip_grad_norm_.
 *
 *     total = sqrt(sum over all gradients of g^2)
 *     g <- g * max_norm / (total + 1e-6)             if that factor is < 1
 *
 * The squares are added in float64, parameter by parameter in order of addition, so every rank of a
 * replicated model computes the same norm and the replicas stay equal. Over a group of ranks with
 * different parameters the ranks' sums are added by an all_reduce, whose bits are the same on all
 * of them; the squares of replicated parameters enter it on rank 0 only.
 */
#include <math.h>
#include <stdio.h>

#include "base/config.h"
#include "base/options.h"
#include "comm/api/control.h"
#include "comm/core/cause.h"
#include "nn/module.h"
#include "tensor/tensor.h"

#define NORM_EPS 1e-6 /* PyTorch's */

typedef struct clipping {
    const ls__kernels *kernels;
    const ls__module_item *items;
    int count;
    ls_clip_grad_norm_options options;
} clipping;

typedef struct gradient {
    ls__real at; /* .at is NULL for a buffer, and for a parameter whose gradient is absent */
    int64_t count;
} gradient;

static gradient gradient_of(const ls__module_item *item)
{
    const bool trained = !item->buffer && ls_requires_grad(item->value);
    ls_tensor *grad = trained ? ls_grad(item->value) : NULL;
    if (grad == NULL) {
        return (gradient){0};
    }
    return (gradient){{ls_data(grad), ls_dtype_of(grad) == LS_BFLOAT16}, ls_numel(grad)};
}

static double squares_of(const clipping *c, const ls__module_item *item)
{
    const gradient g = gradient_of(item);
    if (g.at.at == NULL) {
        return 0.0;
    }
    return g.at.half ? c->kernels->sum_squares_bf16(g.at.at, g.count)
                     : c->kernels->sum_squares(g.at.at, g.count);
}

/* Whether the squares of a parameter enter the group's sum on another rank. */
static bool counts_elsewhere(const clipping *c, const ls__module_item *item)
{
    const ls_clip_grad_norm_options *o = &c->options;
    return o->replicated != NULL && ls_group_rank(o->group) > 0 && !item->buffer &&
           o->replicated(o->arg, item->name, item->value);
}

/* The sum over all parameters of the group. */
static ls_status add_squares(const clipping *c, double *out)
{
    double squares = 0.0;
    for (int i = 0; i < c->count; i++) {
        squares += counts_elsewhere(c, &c->items[i]) ? 0.0 : squares_of(c, &c->items[i]);
    }
    *out = squares;
    return c->options.group == NULL
               ? LS_OK
               : ls__control_all_reduce(
                     c->options.group, out, 1, LS_FLOAT64, LS_SUM,
                     LS_OPTIONS(ls_collective_options, .tag = "norm of the gradients"));
}

/* Finds the first rank of the group with a gradient that is not finite; collective. */
static ls_status find_rank(const clipping *c, bool here, int64_t *rank)
{
    *rank = here ? ls_group_rank(c->options.group) : ls_group_size(c->options.group);
    return ls__control_all_reduce(
        c->options.group, rank, 1, LS_INT64, LS_MIN,
        LS_OPTIONS(ls_collective_options, .tag = "a norm that is not finite"));
}

/* The error for a norm that is not finite: names the first parameter whose gradient made it so, or
 * the rank that has it. The gradients are averages of replicas: if the caller ends, the job's cause
 * is the rank whose own gradient was not finite, if one is known. The sign of NaN says nothing. */
static ls_status fail_norm(const clipping *c, double norm)
{
    const char *first = NULL;
    char where[96] = "";
    int odd = 0;
    int64_t rank = -1;
    for (int i = 0; i < c->count; i++) {
        if (!isfinite(squares_of(c, &c->items[i]))) {
            first = first != NULL ? first : c->items[i].name;
            odd++;
        }
    }
    if (c->options.group != NULL) {
        LS_TRY(find_rank(c, odd > 0, &rank));
        (void)snprintf(where, sizeof where, "rank %lld of the group is the first; here it is ",
                       (long long)rank);
    }
    (void)ls__fail(
        LS_ERR_INVALID,
        "clip_grad_norm: the gradients' norm is %g (%snot finite in %d of the parameters%s%.200s); "
        "look for a division by zero, or lower the learning rate",
        fabs(norm), where, odd, first != NULL ? ", first in " : "", first != NULL ? first : "");
    if (c->options.group != NULL) {
        ls__group_record_norm(c->options.group, rank == ls_group_rank(c->options.group),
                              ls_error_message());
    }
    return LS_ERR_INVALID;
}

static void scale(const clipping *c, float factor)
{
    for (int i = 0; i < c->count; i++) {
        const gradient g = gradient_of(&c->items[i]);
        if (g.at.at != NULL && g.at.half) {
            c->kernels->axpby_bf16(g.at.at, g.at.at, g.count, factor, 0.0f, NULL);
        } else if (g.at.at != NULL) {
            c->kernels->axpby(g.at.at, g.at.at, g.count, factor, 0.0f, NULL);
        }
    }
}

static ls_status check(double max_norm, const ls_clip_grad_norm_options *options)
{
    if (!(max_norm >= 0.0)) {
        return ls__fail(LS_ERR_INVALID, "clip_grad_norm: max_norm is %g; give one >= 0", max_norm);
    }
    if (options->replicated != NULL && options->group == NULL) {
        return ls__fail(LS_ERR_INVALID,
                        "clip_grad_norm: options->replicated is set and options->group is not; "
                        "give the group over which the parameters are replicated");
    }
    if (isfinite(max_norm)) { /* else the caller only wants to know the norm, maybe on one rank */
        ls__config_set("the largest norm of ls_clip_grad_norm", max_norm);
    }
    return LS_OK;
}

/* A norm that is not finite changes nothing, so that the caller may skip the step. */
ls_status ls_clip_grad_norm(ls_module *module, double max_norm,
                            const ls_clip_grad_norm_options *options, double *norm)
{
    LS__OPTIONS(ls_clip_grad_norm_options, given, options);
    const ls__tensors *tensors = ls__tensors_get("clip_grad_norm");
    if (tensors == NULL) {
        return ls__self.status;
    }
    LS_TRY(check(max_norm, &given));
    clipping c = {.kernels = tensors->kernels, .options = given};
    c.items = ls__module_items(module, &c.count);
    if (c.items == NULL) {
        return ls__self.status;
    }
    double squares;
    LS_TRY(add_squares(&c, &squares));
    const double total = sqrt(squares);
    if (norm != NULL) {
        *norm = total;
    }
    if (!isfinite(total)) {
        return fail_norm(&c, total);
    }
    const double factor = max_norm / (total + NORM_EPS);
    if (factor < 1.0) {
        scale(&c, (float)factor);
    }
    return LS_OK;
}
