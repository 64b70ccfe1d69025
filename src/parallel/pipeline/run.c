/* SPDX-License-Identifier: Apache-2.0 */
/* Executing a rank's list of the schedule. Each micro-batch in a stage has a scope, which is the
 * innermost one while one of its actions runs, and ends with its backward. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/config.h"
#include "base/error.h"
#include "base/log.h"
#include "base/runtime.h"
#include "comm/api/control.h"
#include "comm/core/cause.h"
#include "comm/core/group.h"
#include "comm/diagnose/fail.h"
#include "ddp/wrapper.h"
#include "dist/agree.h"
#include "nn/losses.h"
#include "parallel/pipeline/internal.h"
#include "placement/redistribute.h"
#include "tensor/tensor.h"

#include <lockstep/autograd.h>
#include <lockstep/ddp.h>

/* ---- computing ---------------------------------------------------------------------------- */

/* Recomputation calls it again in backward, so the stage itself is its argument. In training the
 * losses of its modules are one output more than its edges have. */
ls_status ls__stage_run(ls_tensor *const *inputs, int input_count, ls_tensor **outputs,
                        int output_count, void *stage)
{
    const ls__stage *s = stage;
    const int outs = s->edges.out_count;
    if (output_count == outs) {
        return ls_module_run_stage(s->net, s->first, s->count, inputs, input_count, outputs, outs);
    }
    ls__losses_forget(s->net);
    LS_TRY(ls_module_run_stage(s->net, s->first, s->count, inputs, input_count, outputs, outs));
    outputs[outs] = ls_module_loss(s->net);
    return ls_tensor_status(outputs[outs]);
}

static double weight_of(const ls_pipeline *p, int m)
{
    return p->set.weighted ? p->micro[m].weight / p->weights : 1.0;
}

/* This micro-batch's share of the mean over those of its step; with replicas or weights the pass
 * has a weight. */
static ls_tensor *share_of(const ls_pipeline *p, ls_tensor *loss)
{
    return p->weighted ? loss : ls_scale(loss, 1.0 / p->schedule->per_step);
}

static ls_status compute_loss(ls_pipeline *p, ls__slot *slot, int m)
{
    ls_tensor *output = slot->out[0], *target = p->micro[m].target;
    const ls__user_call user = ls__user_call_begin();
    ls_tensor *loss = p->set.loss != NULL ? p->set.loss(p->set.arg, output, target)
                                          : ls_cross_entropy(output, target, NULL);
    if (loss == NULL) {
        const ls_status own = ls__self.fails != user.fails ? ls__self.status : LS_OK;
        return ls__user_call_end(
            &user, own < 0 ? own : ls__fail(LS_ERR_INVALID, "it returned NULL; give a loss"),
            "the loss of the pipeline");
    }
    LS_TRY(ls_tensor_status(loss));
    if (ls_numel(loss) != 1) {
        return ls__fail(LS_ERR_INVALID,
                        "the loss of the pipeline has %lld elements; give one of exactly one "
                        "(ls_mean and ls_sum make one)",
                        (long long)ls_numel(loss));
    }
    slot->loss = share_of(p, loss);
    p->loss[m] = ls_keep(ls_detach(loss));
    return ls_tensor_status(p->loss[m]);
}

/* Reads the losses, once all micro-batches are computed: a device need not wait for each. */
static ls_status read_losses(ls_pipeline *p)
{
    for (int m = 0; m < p->set.micro_batches; m++) {
        p->losses[m] = 0.0; /* a mean over no targets is not finite */
        LS_TRY(p->loss[m] != NULL && weight_of(p, m) > 0.0 ? ls_item(p->loss[m], &p->losses[m])
                                                           : LS_OK);
    }
    return LS_OK;
}

void ls__pipeline_forget_losses(ls_pipeline *p)
{
    for (int m = 0; p->loss != NULL && m < p->set.micro_batches; m++) {
        ls_free(p->loss[m]);
        p->loss[m] = NULL;
    }
}

/* Takes the values, computes, and sends the results at once where the list has no actions for
 * them. */
static ls_status run_forward(ls_pipeline *p, ls__stage *s, int m)
{
    ls__slot *slot = &s->slot[m];
    LS_ASSERT(slot->loss == NULL && !slot->computed); /* one forward for each backward */
    LS_TRY(ls__values_take(p, s, m));
    ls__stage_log_read(p, m);
    ls_step_begin(p->micro[m].context);
    const int ins = s->edges.in_count, outs = s->edges.out_count + 1;
    LS_TRY(p->set.recompute
               ? ls_recompute_call_many(ls__stage_run, slot->in, ins, slot->out, outs, s)
               : ls__stage_run(slot->in, ins, slot->out, outs, s));
    ls_tensor *more = slot->out[outs - 1];
    slot->more_loss = ls_requires_grad(more) ? share_of(p, more) : NULL;
    if (s->number == p->stages - 1) {
        LS_TRY(compute_loss(p, slot, m));
    }
    return s->sends_values ? LS_OK : ls__values_send(p, s, m);
}

/* The roots of the stage's graph and their gradients: the loss, or values that later stages took,
 * and the losses of its modules. */
static ls_status find_roots(ls_pipeline *p, ls__stage *s, int m, ls_tensor **ys, ls_tensor **dys,
                            int *count)
{
    ls__slot *slot = &s->slot[m];
    *count = 0;
    if (slot->loss != NULL) {
        ys[*count] = slot->loss;
        dys[(*count)++] = NULL;
    }
    for (int i = 0; i < s->edges.out_count && *count < LS_CALL_TENSORS_MAX; i++) {
        ls_tensor *sum = NULL;
        LS_TRY(ls__grads_take(p, s, m, i, &sum));
        if (sum != NULL) {
            ys[*count] = slot->out[i];
            dys[(*count)++] = sum;
        }
    }
    if (slot->more_loss != NULL) {
        ys[*count] = slot->more_loss;
        dys[(*count)++] = NULL;
    }
    return LS_OK;
}

/* Before the last part of a backward. The last one of a step, over all stages of this rank,
 * synchronises with the other replicas. */
static ls_status set_sync(ls_pipeline *p)
{
    p->backwards++;
    const bool last = p->backwards % p->backwards_per_step == 0;
    return p->wrapped != p->net ? ls_ddp_set_sync(p->wrapped, last) : LS_OK;
}

static uint64_t passes_of(const ls_pipeline *p)
{
    const ls__ddp *d = ls__ddp_of(p->wrapped);
    return d != NULL ? d->passes : 0;
}

/* After a backward that the wrapper did not notice because it reached no parameter (the loss is
 * constant, a layer was dropped): the other ranks of the stage wait for the last backward, and all
 * backwards count in the mean. */
static ls_status count_missed_pass(ls_pipeline *p, int m, uint64_t passes)
{
    ls__ddp *d = ls__ddp_of(p->wrapped);
    return d == NULL || d->passes != passes ? LS_OK
                                            : ls__ddp_pass_empty(d, p->weighted, weight_of(p, m));
}

static ls_status send_grads(ls_pipeline *p, ls__stage *s, int m)
{
    const bool early = s->slot[m].sent_early;
    LS_ASSERT(!s->slot[m].sent);
    s->slot[m].sent = true;
    return early ? LS_OK : ls__grads_send(p, s, m);
}

/* With `split` only the gradients of the stage's inputs. */
static ls_status run_backward(ls_pipeline *p, ls__stage *s, int m, bool split)
{
    ls__slot *slot = &s->slot[m];
    ls_tensor *ys[LS_CALL_TENSORS_MAX + 1], *dys[LS_CALL_TENSORS_MAX + 1];
    ls_tensor *leaves[LS_CALL_TENSORS_MAX];
    int count = 0, leaf_count = 0;
    LS_ASSERT(!slot->computed && !slot->put_off);
    LS_TRY(find_roots(p, s, m, ys, dys, &count));
    for (int i = 0; i < s->arriving_count; i++) {
        if (ls_requires_grad(slot->leaf[i])) {
            leaves[leaf_count++] = slot->leaf[i];
        }
    }
    const uint64_t passes = passes_of(p);
    LS_TRY(split ? LS_OK : set_sync(p));
    slot->put_off = split && count > 0; /* 0: nothing here has a gradient */
    if (slot->put_off) {
        LS_TRY(ls_backward_input_part(ys, dys, count,
                                      LS_OPTIONS(ls_backward_part_options, .inputs = leaves,
                                                 .input_count = leaf_count, .weighted = p->weighted,
                                                 .weight = weight_of(p, m))));
    } else if (count > 0) {
        LS_TRY(p->weighted ? ls_backward_from_weighted(ys, dys, count, weight_of(p, m))
                           : ls_backward_from(ys, dys, count));
    }
    LS_TRY(split ? LS_OK : count_missed_pass(p, m, passes));
    slot->computed = !split;
    return s->sends_grads ? LS_OK : send_grads(p, s, m);
}

/* The rest of a split backward: the gradients of the stage's parameters. */
static ls_status weight_part(ls_pipeline *p, ls__stage *s, int m)
{
    LS_ASSERT(!s->slot[m].computed);
    const uint64_t passes = passes_of(p);
    LS_TRY(set_sync(p));
    if (s->slot[m].put_off) {
        LS_TRY(ls_backward_weight_part());
    }
    LS_TRY(count_missed_pass(p, m, passes));
    s->slot[m].put_off = false;
    s->slot[m].computed = true;
    return LS_OK;
}

/* The last backward of a step waits for the other replicas, whose own may come later in the table;
 * the stage before gets its gradients first, as the table says. */
static ls_status backward_in_order(ls_pipeline *p, ls__stage *s, int m)
{
    const bool last = (p->backwards + 1) % p->backwards_per_step == 0;
    if (!p->weighted || !last || !s->sends_grads) {
        return run_backward(p, s, m, false);
    }
    LS_TRY(run_backward(p, s, m, true));
    LS_TRY(ls__grads_send(p, s, m));
    s->slot[m].sent_early = true;
    return weight_part(p, s, m);
}

/* ---- scopes ------------------------------------------------------------------------------- */

/* Whether the earlier stages of this rank have read the gradients that they take from here. */
static bool is_read(ls_pipeline *p, const ls__stage *s, int m)
{
    for (int i = 0; i < s->arriving_count; i++) {
        const ls__stage_edge *e = &s->arriving[i];
        if (e->own && ls__pipeline_stage(p, e->from)->slot[m].scope != NULL &&
            !ls__pipeline_stage(p, e->from)->slot[m].computed) {
            return false;
        }
    }
    return true;
}

void ls__slot_end(ls__stage *s, ls__slot *slot)
{
    if (slot->scope != NULL) {
        ls_scope_leave(slot->scope);
    }
    slot->scope = NULL;
    slot->loss = slot->more_loss = NULL;
    slot->put_off = slot->computed = slot->sent = slot->sent_early = false;
    slot->handed_over = 0;
    for (int i = 0; i < s->arriving_count; i++) {
        slot->arriving[i].value = NULL;
        slot->arriving[i].posted = false;
    }
    for (int i = 0; i < s->leaving_count; i++) {
        slot->leaving[i].grad = NULL;
    }
}

/* Ends the finished micro-batches. Their gradients have arrived, so the other ranks have read their
 * values, and no wait is needed. */
static ls_status end_finished(ls_pipeline *p)
{
    for (int k = 0; k < p->own_count; k++) {
        ls__stage *s = &p->own[k];
        for (int m = 0; m < p->set.micro_batches; m++) {
            if (s->slot[m].computed && s->slot[m].sent && is_read(p, s, m)) {
                LS_TRY(ls__values_sent(s, m));
                ls__slot_end(s, &s->slot[m]);
            }
        }
    }
    return LS_OK;
}

/* ---- the list ----------------------------------------------------------------------------- */

static ls_status run_action(ls_pipeline *p, const ls__action *a, ls__stage *s)
{
    const int m = a->micro_batch;
    switch ((ls__action_kind)a->kind) {
    case LS__FORWARD:
        return run_forward(p, s, m);
    case LS__BACKWARD:
        return backward_in_order(p, s, m);
    case LS__INPUT_PART:
        return run_backward(p, s, m, true);
    case LS__WEIGHT_PART:
        return weight_part(p, s, m);
    case LS__SEND_ACTIVATION:
        return ls__values_send(p, s, m);
    case LS__RECV_ACTIVATION:
        return ls__values_expect(p, s, m);
    case LS__SEND_GRADIENT:
        return send_grads(p, s, m);
    case LS__RECV_GRADIENT:
        return ls__grads_expect(p, s, m);
    default:
        return LS_OK;
    }
}

/* An action of a micro-batch runs in its scope, which the first action opens. */
static ls_status run_in_scope(ls_pipeline *p, const ls__action *a)
{
    ls__stage *s = ls__pipeline_stage(p, a->stage);
    ls__slot *slot = &s->slot[a->micro_batch];
    if (slot->scope == NULL) {
        slot->scope = ls_scope_enter();
        slot->number = a->micro_batch;
    } else {
        LS_TRY(ls_scope_resume(slot->scope));
    }
    const ls_status status = run_action(p, a, s);
    if (status < 0) {
        return status; /* the caller ends all scopes */
    }
    return ls_scope_suspend(slot->scope);
}

/* A recomputation runs within its backward, and the sums over replicas within the last one. */
static bool is_of_micro_batch(const ls__action *a)
{
    return a->kind == LS__FORWARD || a->kind == LS__BACKWARD || a->kind == LS__INPUT_PART ||
           a->kind == LS__WEIGHT_PART || a->kind == LS__SEND_ACTIVATION ||
           a->kind == LS__RECV_ACTIVATION || a->kind == LS__SEND_GRADIENT ||
           a->kind == LS__RECV_GRADIENT;
}

static ls_status run_alone(ls_pipeline *p, const ls__action *a)
{
    switch ((ls__action_kind)a->kind) {
    case LS__STASH:
        return ls__version_stash(p, a->version);
    case LS__LOAD:
        return ls__version_load(p, a->version);
    case LS__STEP:
        return ls__version_step(p, a->version);
    default:
        return LS_OK;
    }
}

static ls_status run_list(ls_pipeline *p)
{
    const ls__actions *list = &p->schedule->rank[p->rank];
    p->backwards = 0;
    ls__versions_restart(p);
    for (int i = 0; i < list->count; i++) {
        p->at = i;
        LS_TRY(run_alone(p, &list->list[i]));
        if (is_of_micro_batch(&list->list[i])) {
            LS_TRY(run_in_scope(p, &list->list[i]));
            LS_TRY(end_finished(p));
        }
    }
    return ls__grads_sent(p);
}

/* Every rank with the parameter ends with the sum, in the order of the stages. Replicas have the
 * same gradient, so only the first one adds it. */
static ls_status sum_tied_gradients(ls_pipeline *p)
{
    for (int i = 0; i < p->tied_count; i++) {
        ls_tensor *grad = ls_grad(p->tied[i].param);
        if (grad == NULL) {
            return ls__fail(LS_ERR_STATE,
                            "ls_pipeline_backward: a parameter that several stages use has no "
                            "gradient on this rank");
        }
        if (!p->tied[i].adds) {
            LS_TRY(ls__tensor_zero(grad));
        }
        ls__numbers x = {.count = ls_numel(grad), .dtype = ls_dtype_of(grad)};
        x.data = ls__tensor_elements(grad, &x.on);
        LS_TRY(x.data != NULL ? ls__numbers_all_reduce(p->tied[i].group, &x, LS_SUM, "tied")
                              : ls__self.status);
    }
    return LS_OK;
}

/* A mismatch was found by all ranks alike. The first error of a group counts. */
void ls__pipeline_fail(ls_pipeline *p, ls_status status, const char *message)
{
    char text[LS__MESSAGE_MAX];
    (void)snprintf(text, sizeof text, "%s", message);
    if (p->group != NULL) {
        if (status != LS_ERR_MISMATCH) {
            ls__group_failure_say(p->group, message, text, sizeof text);
        }
        ls__group_record_failure(p->group, status, message); /* the launcher adds the rank itself */
        ls__group_fail(p->group, status, text);
    }
    for (int i = 0; i < p->tied_count; i++) {
        ls__group_fail(p->tied[i].group, status, text);
    }
    ls__stage_links_fail(p, status, text);
}

/* Tells also the ranks of the wrapper `d` (or NULL). Ends all micro-batches in progress. The
 * parameters are the newest ones again. */
ls_status ls__pipeline_give_up(ls_pipeline *p, ls__ddp *d, ls_status status)
{
    char message[LS__MESSAGE_MAX];
    memcpy(message, ls__self.message, sizeof message);
    ls__pipeline_fail(p, status, message);
    if (d != NULL) {
        (void)ls__fail_again(status, message);
        (void)ls__ddp_give_up(d, status);
    }
    ls__replay_leave(&p->log.writer); /* the log has no end then */
    ls__values_forget(p);
    ls__pipeline_forget_losses(p);
    for (int k = 0; k < p->own_count; k++) {
        ls__stage *s = &p->own[k];
        for (int m = 0; m < p->slots; m++) {
            ls__slot_end(s, &s->slot[m]);
        }
    }
    ls__versions_restart(p);
    return ls__fail_again(status, message);
}

ls_status ls_pipeline_set_optim(ls_pipeline *p, ls_optim *optim)
{
    if (p == NULL) {
        return ls__fail(LS_ERR_INVALID, "ls_pipeline_set_optim: the pipeline is NULL; give one");
    }
    if (p->tied_count > 0 && optim != NULL) {
        return ls__fail(LS_ERR_UNSUPPORTED,
                        "ls_pipeline_set_optim: stages share a tied parameter, whose gradients "
                        "are summed at the end of a step; step after ls_pipeline_backward");
    }
    p->optim = optim;
    return LS_OK;
}

ls_status ls__micro_batches_check(const char *call, const ls_micro_batch *micro, int count)
{
    for (int m = 0; m < count; m++) {
        if (micro[m].size != sizeof micro[m]) {
            return ls__fail(LS_ERR_INVALID,
                            "%s: micro[%d].size is %zu; set it to sizeof(ls_micro_batch)", call, m,
                            micro[m].size);
        }
    }
    return LS_OK;
}

static bool has_gradients(const ls_pipeline *p)
{
    bool any = false;
    for (int i = 0; i < p->param_count; i++) {
        any = any || ls_requires_grad(p->params[i].value);
    }
    return any;
}

/* The gradients of replicas are sums that a wrapper over all of them divides. */
static ls_status check_wrapper(const ls_pipeline *p, ls_module *net)
{
    const ls__ddp *d = ls__ddp_of(net);
    const int stage = p->own[0].number, first = p->schedule->rank_of[stage];
    if (!ls__schedule_has_replicas(p->schedule) || !has_gradients(p)) {
        return LS_OK;
    }
    for (int q = first; q < first + p->schedule->replicas[stage]; q++) {
        if (d == NULL || ls__member_of(d->group, p->group->member[q].world_rank) < 0) {
            return ls__fail(
                LS_ERR_STATE,
                "ls_pipeline_backward: stage %d has %d of the ranks of its pipeline, and was given "
                "%s; "
                "give the wrapper of ls_ddp_new over all ranks whose ls_pipeline_stage is %d",
                stage, p->schedule->replicas[stage],
                d == NULL ? "without a wrapper" : "in a wrapper that leaves a rank of it out",
                stage);
        }
    }
    return LS_OK;
}

/* The sums over stages are of whole averages, and each stage's wrapper has parts of its own. */
static ls_status check_tied(const ls_pipeline *p, ls_module *net)
{
    const bool divided = ls__ddp_of(net) != NULL && ls__ddp_of(net)->zero.stage > 0;
    for (int i = 0; divided && p->tied_count > 0 && i < p->param_count; i++) {
        if (p->params[i].value == p->tied[0].param) {
            return ls__fail(LS_ERR_UNSUPPORTED,
                            "ls_pipeline_backward: several stages use %.200s, so averages of its "
                            "gradient are added over them, and with zero each rank has other parts "
                            "of these; leave zero out, or give each stage a parameter of its own",
                            p->params[i].name);
        }
    }
    return LS_OK;
}

/* Finds p->weights: without a wrapper nothing else divides by the sum. */
static ls_status check_weights(ls_pipeline *p, ls_module *net, const ls_micro_batch *micro)
{
    double sum = 0.0;
    for (int m = 0; m < p->set.micro_batches; m++) {
        const double weight = micro[m].weight;
        if (!p->set.weighted && weight != 0.0) {
            return ls__fail(LS_ERR_INVALID,
                            "ls_pipeline_backward: micro[%d].weight is %g, and the pipeline takes "
                            "plain means; make it with .weighted = true, or leave weights 0",
                            m, weight);
        }
        if (!(weight >= 0.0) || !isfinite(weight)) {
            return ls__fail(LS_ERR_INVALID,
                            "ls_pipeline_backward: micro[%d].weight is %g; give a finite number "
                            ">= 0, as that of its targets",
                            m, weight);
        }
        sum += weight;
    }
    if (p->set.weighted && ls__ddp_of(net) == NULL && sum == 0.0) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_pipeline_backward: all %d micro-batches have weight 0, so there is no "
                        "mean; leave the step out",
                        p->set.micro_batches);
    }
    p->weights = ls__ddp_of(net) == NULL ? sum : 1.0;
    return LS_OK;
}

static ls_status check_backward_call(ls_pipeline *p, ls_module *net, const ls_micro_batch *micro)
{
    if (net == NULL || micro == NULL) {
        return ls__fail(LS_ERR_INVALID, "ls_pipeline_backward: the module or the micro-batches are "
                                        "NULL; give both");
    }
    if (p->optim == NULL && ls__schedule_steps_itself(p->schedule) && has_gradients(p)) {
        return ls__fail(
            LS_ERR_STATE,
            "ls_pipeline_backward: schedule %s steps after every %d micro-batch%s; give "
            "it the optimizer with ls_pipeline_set_optim",
            p->schedule->name, p->schedule->per_step, p->schedule->per_step > 1 ? "es" : "");
    }
    if (ls__ddp_of(net) != NULL && ls__ddp_of(net)->zero.stage > 2) {
        return ls__fail(LS_ERR_UNSUPPORTED,
                        "ls_pipeline_backward: zero 3 would gather the parameters of a stage for "
                        "each of its micro-batches, in an order that differs from rank to rank; "
                        "take zero 2");
    }
    if (p->optim != NULL && ls__ddp_of(net) != NULL && ls__ddp_of(net)->zero.stage > 0) {
        return ls__fail(LS_ERR_UNSUPPORTED,
                        "ls_pipeline_backward: the optimizer steps while micro-batches are in "
                        "flight, with versions of the parameters that lie elsewhere, and zero "
                        "gathers parameters in place; leave zero out, or step after "
                        "ls_pipeline_backward");
    }
    LS_TRY(check_tied(p, net));
    LS_TRY(check_wrapper(p, net));
    LS_TRY(ls__micro_batches_check("ls_pipeline_backward", micro, p->set.micro_batches));
    return check_weights(p, net, micro);
}

/* A reducer names gradients that are not finite; without a reducer they are checked here. */
static void look_at_gradients(ls_pipeline *p)
{
    int64_t at = -1;
    const ls_param *param =
        p->warned_of_nan || ls__ddp_of(p->wrapped) != NULL ? NULL : ls__pipeline_nonfinite(p, &at);
    if (param != NULL) {
        p->warned_of_nan = true;
        LS__WARN(
            "pipeline: the gradient of %.200s is not finite on rank %d (element %lld of %lld), "
            "of stage %d: look for a division by zero or a logarithm of 0, or lower the "
            "learning rate",
            param->name, ls_rank(), (long long)at, (long long)ls_numel(param->value),
            p->own[0].number);
    }
}

/* ---- what all ranks agree on ---------------------------------------------------------------- */

static ls__agree_peers peers_of(const ls_pipeline *p)
{
    ls__agree_peers peers = {.group = p->group, .stages = true, .trains = has_gradients(p)};
    (void)snprintf(peers.who, sizeof peers.who, "pipeline \"%.40s\"", p->schedule->name);
    return peers;
}

/* Before the first micro-batch: schedules that step within their tables have not stepped yet. */
static ls_status compare_settings(ls_pipeline *p)
{
    ls__config_set("autocast", ls__self.autocast);
    if (!p->settings_compared) {
        const ls__agree_peers peers = peers_of(p);
        LS_TRY(ls__agree_settings(&peers));
        p->settings_compared = true;
    }
    return LS_OK;
}

static const ls__report *report_of(const ls_pipeline *p, int rank)
{
    return (const ls__report *)(const void *)(p->reports +
                                              ((size_t)rank + 1) * ls__report_bytes(p));
}

/* Settings that changed before this call, between the steps. */
static ls_status compare_changes(ls_pipeline *p)
{
    uint64_t settings = 0;
    bool differ = false;
    for (int r = 0; r < ls_group_size(p->group); r++) {
        const uint64_t other = report_of(p, r)->settings;
        differ = differ || (settings != 0 && other != 0 && other != settings);
        settings = other != 0 ? other : settings;
    }
    const ls__agree_peers peers = peers_of(p);
    return differ ? ls__agree_changes(&peers) : LS_OK;
}

/* Stages with different weights would compute gradients of different means. */
static ls_status compare_weights(const ls_pipeline *p)
{
    const int count = p->set.weighted ? p->set.micro_batches : 0;
    for (int r = 1; r < ls_group_size(p->group); r++) {
        for (int m = 0; m < count; m++) {
            const double first = report_of(p, 0)->losses[count + m];
            const double other = report_of(p, r)->losses[count + m];
            if (other != first) {
                return ls__fail(LS_ERR_MISMATCH,
                                "ls_pipeline_backward: micro[%d].weight is %g on rank %d of the "
                                "pipeline, and %g on rank 0; give all of its ranks the same",
                                m, other, r, first);
            }
        }
    }
    return LS_OK;
}

/* All ranks get the losses: one rank of the last stage has that of a micro-batch, the others add
 * 0. */
static ls_status share_reports(ls_pipeline *p)
{
    const size_t bytes = ls__report_bytes(p);
    const int count = p->set.micro_batches;
    ls__report *own = (ls__report *)(void *)p->reports;
    own->settings = has_gradients(p) ? ls__config_change_hash() : 0;
    memcpy(own->losses, p->losses, (size_t)count * sizeof *p->losses);
    for (int m = 0; p->set.weighted && m < count; m++) {
        own->losses[count + m] = p->micro[m].weight;
    }
    LS_TRY(ls__control_all_gather(p->group, own, p->reports + bytes, (int64_t)bytes, LS_UINT8,
                                  LS_OPTIONS(ls_collective_options, .tag = "losses")));
    memset(p->losses, 0, (size_t)count * sizeof *p->losses);
    for (int r = 0; r < ls_group_size(p->group); r++) {
        for (int m = 0; m < count; m++) {
            p->losses[m] += report_of(p, r)->losses[m];
        }
    }
    LS_TRY(compare_weights(p));
    LS_TRY(ls__stage_log_write(p));
    return compare_changes(p);
}

static ls_status train_step(ls_pipeline *p, ls_module *net, const ls_micro_batch *micro)
{
    const char *file = ls__self.file; /* of this call; the calls of the stages change the site */
    const int line = ls__self.line;
    LS_TRY(check_backward_call(p, net, micro));
    LS_TRY(compare_settings(p));
    LS_TRY(ls__pipeline_check_parts(p, micro));
    p->micro = micro;
    p->wrapped = net;
    LS_TRY(run_list(p));
    ls_site_set(file, line);
    LS_TRY(read_losses(p));
    ls__pipeline_forget_losses(p);
    LS_TRY(sum_tied_gradients(p));
    look_at_gradients(p);
    return share_reports(p);
}

ls_status ls_pipeline_backward(ls_pipeline *p, ls_module *net, const ls_micro_batch *micro,
                               double *losses)
{
    if (p == NULL) {
        return ls__fail(LS_ERR_INVALID, "ls_pipeline_backward: the pipeline is NULL; give one");
    }
    LS_TRY(ls__pipeline_check_alive(p, "ls_pipeline_backward"));
    const ls_status status = train_step(p, net, micro);
    if (status < 0) {
        return ls__fail_at_site(ls__pipeline_give_up(p, ls__ddp_of(net), status));
    }
    ls__values_prepare(p);
    /* Which forward a rank ran last depends on the schedule; checkpoints need one random state. */
    ls_step_begin(micro[p->set.micro_batches - 1].context);
    if (losses != NULL) {
        memcpy(losses, p->losses, (size_t)p->set.micro_batches * sizeof *losses);
    }
    return LS_OK;
}
