/* SPDX-License-Identifier: Apache-2.0 */
/* Clipping by the global norm (Pascanu et al. 2013), torch.nn.utils.clip_grad_norm_.
 *
 *     total = sqrt(sum over all gradients of g^2)
 *     g <- g * max_norm / (total + 1e-6)             if that factor is < 1
 *
 * The squares are added in float64, parameter by parameter in order of addition, so every rank of a
 * replicated model computes the same norm and the replicas stay equal. Over a group of ranks with
 * different parameters the ranks' sums are added by an all_reduce, whose bits are the same on all
 * of them; the squares of replicated parameters enter it on rank 0 only.
 *
 * Parameters that are sharded along axes of the mesh have a sum for each set of axes (clip_axes.h),
 * so each element counts once.
 *
 * Averages that a wrapper divides among its ranks (zero) are squared where they are. The ranks'
 * sums of each parameter are gathered and added in the order of the ranks, before parameters are:
 * a parameter that lies on one rank has the bits of its sum there, one that lies on several is
 * added in as many parts, which may differ in the last place of float64.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/param.h"
#include "base/config.h"
#include "base/options.h"
#include "comm/api/control.h"
#include "comm/core/cause.h"
#include "comm/core/group.h"
#include "comm/core/round_robin.h"
#include "device/captured.h"
#include "nn/clip_axes.h"
#include "nn/module.h"
#include "tensor/placement.h"
#include "tensor/tensor.h"

typedef struct clipping {
    const ls__module_item *items;
    int count;
    double *squares; /* [count]: of each gradient, summed; 0 where it is absent */
    size_t bytes;    /* of squares */
    ls_clip_grad_norm_options options;
    ls__norm_axes axes;
} clipping;

typedef struct gradient {
    ls__real at; /* .at is NULL for a buffer, and for a parameter whose gradient is absent */
    int64_t count;
    ls__pool *on;
} gradient;

/* The elements that are this rank's. */
static gradient gradient_of(const ls__module_item *item)
{
    const bool trained = !item->buffer && ls_requires_grad(item->value);
    ls_tensor *grad = trained ? ls_grad(item->value) : NULL;
    if (grad == NULL) {
        return (gradient){0};
    }
    gradient g = {0};
    int64_t from;
    ls__param_owned(item->value, &from, &g.count);
    const bool half = ls_dtype_of(grad) == LS_BFLOAT16;
    char *at = ls__tensor_elements(grad, &g.on);
    g.at = (ls__real){at + (size_t)from * (half ? sizeof(ls__bfloat16) : sizeof(float)), half};
    return g;
}

/* All kernels are started before the first result is read. */
static ls_status start_squares(const clipping *c, ls__pool *on, ls__storage *sums)
{
    on->k->zero(sums->data, c->bytes, on->stream);
    for (int i = 0; i < c->count; i++) {
        const gradient g = gradient_of(&c->items[i]);
        double *out = (double *)sums->data + i;
        if (g.at.at == NULL) {
            continue;
        }
        if (g.on != on) {
            return ls__fail(LS_ERR_UNSUPPORTED,
                            "clip_grad_norm: %.200s is on device \"%s\", and a parameter before it "
                            "on device \"%s\"; keep a module on one device",
                            c->items[i].name, g.on->device->name, on->device->name);
        }
        if (g.at.half) {
            on->k->sum_squares_bf16(out, g.at.at, g.count, on->stream);
        } else {
            on->k->sum_squares(out, g.at.at, g.count, on->stream);
        }
    }
    return LS_OK;
}

/* Where the gradients are; NULL: there are none. */
static ls__pool *pool_of(const clipping *c)
{
    ls__pool *on = NULL;
    for (int i = 0; on == NULL && i < c->count; i++) {
        on = gradient_of(&c->items[i]).on;
    }
    return on;
}

/* Fills c->squares. A captured step finds the norm without them. */
static ls_status find_squares(clipping *c)
{
    ls__pool *on = pool_of(c);
    if (on == NULL) {
        return LS_OK;
    }
    ls__storage *sums = ls__storage_new(on, c->bytes);
    if (sums == NULL) {
        return ls__self.status;
    }
    const ls_status status = start_squares(c, on, sums);
    ls__captured *watching = ls__captured_pause();
    ls__device_read(on->device, c->squares, sums->data, c->bytes);
    ls__captured_resume(watching);
    ls__storage_unref(sums);
    return status;
}

/* Who divides the averages of a parameter among ranks; NULL: every rank has all of them. */
static ls__observer *divider_of(const ls__module_item *item)
{
    ls__observer *observer =
        !item->buffer && ls_requires_grad(item->value) ? ls__param_observer(item->value) : NULL;
    return observer != NULL && observer->owners != NULL ? observer : NULL;
}

/* Adds the squares of the ranks' parts of the parameters that `divider` divides. Collective. */
static ls_status gather_squares(clipping *c, const ls__observer *divider, ls__pool *host)
{
    const size_t ranks = (size_t)ls_group_size(divider->owners);
    const ls_group *owners = ls__round_robin_at(divider->owners, 0);
    ls__storage *all = ls__storage_new(host, ranks * c->bytes);
    if (all == NULL) {
        return ls__self.status;
    }
    const ls_status status =
        ls__control_all_gather(divider->owners, c->squares, all->data, c->count, LS_FLOAT64,
                               LS_OPTIONS(ls_collective_options, .tag = "norm of the gradients"));
    for (int i = 0; status == LS_OK && i < c->count; i++) {
        if (divider_of(&c->items[i]) == divider) {
            c->squares[i] = 0.0;
            for (size_t r = 0; r < ranks; r++) {
                const double own = ((const double *)all->data)[r * (size_t)c->count + (size_t)i];
                const int rank = owners->member[r].world_rank;
                c->squares[i] += ls__param_divided_with(c->items[i].value, rank) ? own : 0.0;
            }
        }
    }
    ls__storage_unref(all);
    return status;
}

/* This rank's part of gradients that were not averaged would be one of its own samples alone. */
static ls_status check_divider(ls__observer *divider)
{
    if (divider != NULL && divider->elsewhere) {
        return ls__fail(LS_ERR_UNSUPPORTED,
                        "clip_grad_norm: servers step the parameters (ls_server_new), and the "
                        "gradients are sent in backward; leave it out, and give "
                        "ls_server_options.clip_norm");
    }
    const ls_status status = divider != NULL ? divider->usable(divider) : LS_OK;
    return status < 0 ? ls__fail_within(status, "clip_grad_norm") : LS_OK;
}

/* Once for each wrapper that divides; a parameter's earlier ones have been asked for. */
static ls_status join_squares(clipping *c, ls__pool *host)
{
    for (int i = 0; i < c->count; i++) {
        ls__observer *divider = divider_of(&c->items[i]);
        LS_TRY(check_divider(divider));
        bool known = divider == NULL;
        for (int k = 0; !known && k < i; k++) {
            known = divider_of(&c->items[k]) == divider;
        }
        if (!known) {
            LS_TRY(gather_squares(c, divider, host));
        }
    }
    return LS_OK;
}

/* Whether the squares of a parameter enter the group's sum on another rank. */
static bool counts_elsewhere(const clipping *c, const ls__module_item *item)
{
    const ls_clip_grad_norm_options *o = &c->options;
    return o->replicated != NULL && ls_group_rank(o->group) > 0 && !item->buffer &&
           o->replicated(o->arg, item->name, item->value);
}

/* Without a group the sums over parts are those over the axes of the mesh in force. */
static ls_status check_mesh(const clipping *c, const ls__module_item *item)
{
    const uint8_t layout = ls__param_layout(item->value);
    const uint8_t now = c->axes.axes != NULL ? c->axes.axes->layout : 0;
    return layout == 0 || layout == now || c->options.group != NULL
               ? LS_OK
               : ls__fail(
                     LS_ERR_STATE,
                     "clip_grad_norm: parameter %.200s is a part along the axes of a mesh, and "
                     "%s; put that mesh in force (ls_mesh_use)",
                     item->name, now != 0 ? "another one is in force" : "none is in force");
}

/* The sum over all parameters of the axes along which they are sharded, and of the group. */
static ls_status add_squares(clipping *c, double *out)
{
    ls__norm_axes_init(&c->axes, c->options.group);
    for (int i = 0; i < c->count; i++) {
        const ls__module_item *item = &c->items[i];
        if (!item->buffer) {
            LS_TRY(check_mesh(c, item));
            ls__norm_axes_add(&c->axes, item->value,
                              counts_elsewhere(c, item) ? 0.0 : c->squares[i]);
        }
    }
    LS_TRY(ls__norm_axes_sum(&c->axes, out));
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
        if (!isfinite(c->squares[i])) {
            first = first != NULL ? first : c->items[i].name;
            odd++;
        }
    }
    if (c->options.group != NULL) {
        LS_TRY(find_rank(c, odd > 0, &rank));
        (void)snprintf(where, sizeof where, "rank %lld of the group is the first; here it is ",
                       (long long)rank);
    } else if (c->axes.odd != NULL) {
        (void)snprintf(where, sizeof where, "rank %d of axis %s is the first; here it is ",
                       c->axes.odd_rank, c->axes.odd->name);
    }
    (void)ls__fail(
        LS_ERR_INVALID,
        "clip_grad_norm: the gradients' norm is %g (%snot finite in %d of the parameters%s%.200s); "
        "look for a division by zero, or lower the learning rate",
        fabs(norm), where, odd, first != NULL ? ", first in " : "", first != NULL ? first : "");
    if (c->options.group != NULL) {
        ls__group_record_norm(c->options.group, rank == ls_group_rank(c->options.group),
                              ls_error_message());
    } else if (c->axes.odd != NULL) {
        ls__group_record_norm(c->axes.odd->group, c->axes.odd_rank == c->axes.odd->coordinate,
                              ls_error_message());
    }
    return LS_ERR_INVALID;
}

static void scale(const clipping *c, float factor)
{
    for (int i = 0; i < c->count; i++) {
        const gradient g = gradient_of(&c->items[i]);
        if (g.at.at != NULL && g.at.half) {
            g.on->k->axpby_bf16(g.at.at, g.at.at, g.count, factor, 0.0f, g.on->stream);
        } else if (g.at.at != NULL) {
            g.on->k->axpby(g.at.at, g.at.at, g.count, factor, 0.0f, g.on->stream);
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
    return LS_OK;
}

bool ls__param_is_shared(const ls_tensor *param)
{
    const ls__axes_in_force *axes = ls__self.runtime != NULL ? ls__self.runtime->axes : NULL;
    const ls__observer *observer = ls_requires_grad(param) ? ls__param_observer(param) : NULL;
    return (observer != NULL && ls_group_size(observer->group) > 1) || ls__param_is_staged(param) ||
           (axes != NULL && ls__place_parts(axes, ls__param_placed(param)) != 0);
}

/* For the comparison of the ranks, unless the module is this rank's alone, or the caller only wants
 * to know the norm, maybe on one rank. */
static void show_norm(const clipping *c, double max_norm)
{
    bool shared = false;
    for (int i = 0; i < c->count && !shared; i++) {
        shared = !c->items[i].buffer && ls__param_is_shared(c->items[i].value);
    }
    if (shared && (isfinite(max_norm) || c->options.group != NULL)) {
        ls__config_set("the largest norm of ls_clip_grad_norm", max_norm);
    }
}

/* With c->squares found. A norm that is not finite changes nothing, so that the caller may skip the
 * step. */
static ls_status clip(clipping *c, double max_norm, double *norm)
{
    double squares;
    LS_TRY(add_squares(c, &squares));
    const double total = sqrt(squares);
    if (norm != NULL) {
        *norm = total;
    }
    if (!isfinite(total)) {
        return fail_norm(c, total);
    }
    const double factor = max_norm / (total + LS__CLIP_EPS);
    if (factor < 1.0) {
        scale(c, (float)factor);
    }
    return LS_OK;
}

/* ---- captured steps -------------------------------------------------------------------------- */

/* For the time after the step. */
typedef struct late_norm {
    ls_module *module;
    ls_clip_grad_norm_options options;
    double *norm;         /* the caller's; NULL: not wanted */
    ls__storage *squares; /* on the device */
} late_norm;

static void drop_norm(void *of)
{
    late_norm *late = of;
    ls__storage_unref(late->squares);
    free(late);
}

/* The step was not made where the norm is not finite, and the squares say whose it is. */
static ls_status take_norm(const ls__captured_result *r, const void *slot)
{
    const late_norm *late = r->of;
    double values[2];
    memcpy(values, slot, sizeof values);
    if (late->norm != NULL) {
        *late->norm = values[1];
    }
    if (isfinite(values[1])) {
        return LS_OK;
    }
    clipping c = {.options = late->options};
    c.items = ls__module_items(late->module, &c.count);
    double *squares = calloc((size_t)c.count + 1, sizeof *squares);
    if (c.items == NULL || squares == NULL) {
        free(squares);
        return ls__fail(LS_ERR_INVALID, "clip_grad_norm: the gradients' norm is %g", values[1]);
    }
    c.squares = squares;
    ls__device_read(late->squares->pool->device, squares, late->squares->data,
                    (size_t)c.count * sizeof *squares);
    const ls_status status = fail_norm(&c, values[1]);
    free(squares);
    return status;
}

/* The factor is computed by the device, and gradients are multiplied by it also where it is 1. */
static ls_status clip_captured(const clipping *c, ls_module *module, double max_norm, double *norm)
{
    ls__pool *on = pool_of(c);
    late_norm *late = calloc(1, sizeof *late);
    if (late == NULL || on == NULL) {
        free(late);
        return on == NULL ? LS_OK : ls__fail(LS_ERR_MEMORY, "a captured step: no memory");
    }
    *late = (late_norm){module, c->options, norm, ls__storage_new(on, c->bytes)};
    if (late->squares == NULL || start_squares(c, on, late->squares) < 0) {
        drop_norm(late);
        return ls__self.status;
    }
    const float *slot =
        ls__captured_gate(&(ls__captured_result){.take = take_norm, .drop = drop_norm, .of = late},
                          (ls__step_gate){.squares = late->squares->data,
                                          .count = c->count,
                                          .max_norm = max_norm,
                                          .eps = LS__CLIP_EPS});
    const ls__factor factor = {slot + LS__STEP_GATE_FACTOR, 1.0, 1.0};
    for (int i = 0; i < c->count; i++) {
        const gradient g = gradient_of(&c->items[i]);
        if (g.at.at != NULL && g.at.half) {
            on->k->axpby_bf16_by(g.at.at, g.at.at, g.count, factor, 0.0f, on->stream);
        } else if (g.at.at != NULL) {
            on->k->axpby_by(g.at.at, g.at.at, g.count, factor, 0.0f, on->stream);
        }
    }
    return LS_OK;
}

/* Whether the step under way leaves the norm to the device; the run that watches counts it. */
static bool leaves_to_device(const clipping *c, const ls__tensors *tensors)
{
    if (ls__self.captured == NULL) {
        return false;
    }
    if (c->options.group != NULL || ls__axes_of(tensors) != NULL) {
        ls__captured_refuse("ls_clip_grad_norm over several ranks");
    }
    if (!ls__captured_records() && pool_of(c) != NULL) {
        (void)ls__captured_gate(&(ls__captured_result){0}, (ls__step_gate){0});
    }
    return ls__captured_records();
}

/* ---- on the host ----------------------------------------------------------------------------- */

ls_status ls_clip_grad_norm(ls_module *module, double max_norm,
                            const ls_clip_grad_norm_options *options, double *norm)
{
    LS__OPTIONS(ls_clip_grad_norm_options, given, options);
    ls__tensors *tensors = ls__tensors_get("clip_grad_norm");
    if (tensors == NULL) {
        return ls__self.status;
    }
    LS_TRY(check(max_norm, &given));
    clipping c = {.options = given};
    c.items = ls__module_items(module, &c.count);
    if (c.items == NULL) {
        return ls__self.status;
    }
    show_norm(&c, max_norm);
    c.bytes = (size_t)c.count * sizeof *c.squares;
    if (LS__UNLIKELY(leaves_to_device(&c, tensors))) {
        return clip_captured(&c, module, max_norm, norm);
    }
    ls__storage *squares = ls__storage_new(&tensors->host, c.bytes);
    if (squares == NULL) {
        return ls__self.status;
    }
    c.squares = squares->data;
    tensors->host.k->zero(c.squares, c.bytes, NULL);
    ls_status status = find_squares(&c);
    status = status < 0 ? status : join_squares(&c, &tensors->host);
    if (status == LS_OK) {
        status = clip(&c, max_norm, norm);
    }
    ls__storage_unref(squares);
    return status;
}
