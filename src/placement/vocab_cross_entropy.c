/* SPDX-License-Identifier: Apache-2.0 */
/* Cross-entropy of logits whose classes the ranks of an axis share (Shoeybi et al. 2019, section
 * 3). Per row three numbers go over the network, four with smoothing, instead of all logits:
 *
 *     m = max x ─▸ all-reduce (max) ─▸ sum exp(x - m), x_target - m, … ─▸ all-reduce (sum) ─▸ loss
 *
 * The gradient is of this rank's classes alone, from the same numbers; backward exchanges
 * nothing. */
#include <stdio.h>

#include <lockstep/sharded.h>

#include "autograd/function_call.h"
#include "base/options.h"
#include "placement/redistribute.h"
#include "placement/sharded.h"
#include "tensor/class_loss.h"

enum { SAVED_LOGITS, SAVED_TARGET, SAVED_ROWS };
enum { EDGE_LOGITS, EDGE_TARGET };

/* `max` and `sums` are one piece of memory. */
static int64_t row_numbers(const ls__vocab_loss *a)
{
    return (a->smoothing > 0.0 ? 4 : 3) * a->rows;
}

static void point_to(ls__vocab_loss *a, const void *logits, const void *target, const float *rows)
{
    a->logits.at = (void *)(uintptr_t)logits;
    a->target = target;
    a->max = (float *)(uintptr_t)rows;
    a->sums = a->max + a->rows;
}

static ls_status sharded_backward(ls__tensor_rule *r)
{
    ls__vocab_loss args = *(const ls__vocab_loss *)r->node->context;
    const size_t element = args.logits.half ? sizeof(ls__bfloat16) : sizeof(float);
    point_to(&args, r->saved[SAVED_LOGITS], r->saved[SAVED_TARGET], r->saved[SAVED_ROWS]);
    r->in[0].give = ls__storage_new(r->on, (size_t)(args.rows * args.n) * element);
    if (r->in[0].give == NULL) {
        return ls__self.status;
    }
    r->k->vocab_loss_backward(r->in[0].give->data, &args, r->dy, r->stream);
    return LS_OK;
}

static const ls__op sharded_op = {
    .name = "sharded_cross_entropy", .backward = sharded_backward, .gives = true};

/* False with call->failed set. The tag has the number of classes, so that ranks with parts of
 * different sizes are found out. */
static bool combine(ls__call *call, ls__axis_in_force *axis, float *data, int64_t numel,
                    ls_reduce_op op, int64_t n)
{
    char tag[96];
    (void)snprintf(tag, sizeof tag, "%s of %lld classes a rank", call->name, (long long)n);
    if (axis->size > 1 && ls__axis_all_reduce(axis, call->on, data, numel, op, tag) < 0) {
        call->failed = ls__call_refused();
    }
    return call->failed == NULL;
}

/* The passes of forward. NULL with call->failed set. */
static ls__record *run(ls__call *call, ls__axis_in_force *axis, const ls__vocab_loss *args)
{
    ls__function_collective_begun(false);
    call->k->vocab_max(args, call->stream);
    if (!combine(call, axis, args->max, args->rows, LS_MAX, args->n)) {
        return NULL;
    }
    call->k->vocab_sums(args, call->stream);
    if (!combine(call, axis, args->sums, row_numbers(args) - args->rows, LS_SUM, args->n)) {
        return NULL;
    }
    ls__record *out = ls__call_output(call, (ls_shape){0}, LS_FLOAT32);
    if (out != NULL) {
        call->k->vocab_loss(ls__record_floats(out), args, call->stream);
    }
    return out;
}

static ls_tensor *loss_of(ls__call *call, ls__axis_in_force *axis,
                          const ls_cross_entropy_options *given)
{
    const ls__record *in = call->in[EDGE_LOGITS], *wanted = call->in[EDGE_TARGET];
    const int64_t n = in->dim[in->ndim - 1];
    ls__vocab_loss args = {.logits = {.half = in->dtype == LS_BFLOAT16},
                           .index_bytes = ls_dtype_size((ls_dtype)wanted->dtype),
                           .rows = wanted->numel,
                           .n = n,
                           .first = axis->coordinate * n,
                           .classes = axis->size * n,
                           .smoothing = given->label_smoothing,
                           .z_loss = given->z_loss,
                           .ignore = given->ignore_index};
    ls__dense x = ls__call_dense(call, EDGE_LOGITS), y = ls__call_dense(call, EDGE_TARGET);
    ls__dense rows = ls__call_memory(call, (size_t)row_numbers(&args) * sizeof(float));
    ls__record *out = NULL;
    call->narrow = false; /* a loss is float32 whatever it is made of */
    if (ls__class_targets(call, &y, args.classes, args.ignore)) {
        point_to(&args, x.data, y.data, rows.data);
        out = run(call, axis, &args);
    }
    ls__tensor_node *node = ls__call_record(call, &sharded_op, out, sizeof args);
    if (node != NULL) {
        *(ls__vocab_loss *)node->context = args;
        ls__node_save(node, SAVED_LOGITS, &x);
        ls__node_save(node, SAVED_TARGET, &y);
        ls__node_save(node, SAVED_ROWS, &rows);
    }
    ls__dense_drop(&x);
    ls__dense_drop(&y);
    ls__dense_drop(&rows);
    call->follows = (ls__follows){.how = LS__FOLLOW_CLASSES};
    return ls__call_finish(call, out);
}

ls_tensor *ls_sharded_cross_entropy(ls_tensor *logits, ls_tensor *target, const char *axis,
                                    const ls_cross_entropy_options *options)
{
    ls__call call;
    LS__OPTIONS_OR(ls__call_refused(), ls_cross_entropy_options, given, options);
    if (!ls__call_begin(&call, sharded_op.name, 2, (ls_tensor *[]){logits, target}) ||
        !ls__class_loss_check(&call, INT64_MAX) || !ls__class_loss_options(&call, &given)) {
        return call.failed;
    }
    if (given.weight != NULL) {
        return ls__call_fail(&call, LS_ERR_UNSUPPORTED,
                             "weights of classes, which this loss does not take; gather the logits "
                             "(ls_redistribute) and call ls_cross_entropy");
    }
    ls__axis_in_force *along =
        ls__sharded_begin(&call, axis, call.in[EDGE_LOGITS]->ndim - 1, LS__PLACED_INVARIANT,
                          "gathered logits go to ls_cross_entropy");
    return along != NULL ? loss_of(&call, along, &given) : call.failed;
}
