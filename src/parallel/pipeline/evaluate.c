/* SPDX-License-Identifier: Apache-2.0 */
/* Evaluation: forwards of any number of micro-batches through the stages, without gradients.
 *
 * A rank takes micro-batches in groups of as many as there are ranks, and of each group one stage
 * after the other, so that none waits for its own results (two ranks with two stages each):
 *
 *     rank 0   0F0 0F1 2F0 2F1 0F2 0F3 2F2 2F3
 *     rank 1    .  1F0 1F1 3F0 3F1 1F2 1F3 3F2 3F3
 *
 * Receives are posted one forward ahead, and a send is not waited for before its slot is used
 * again, which is by a micro-batch of a later group: there are more slots than micro-batches in a
 * group. In the order of group, stage and micro-batch every input of a forward comes before it, so
 * no forwards wait for each other in a circle.
 *
 * A replica of a stage takes its own micro-batches in ascending order. The next one in a slot may
 * then come from another rank than the last one, so no elements are posted for the shape of that
 * one. The inputs of a forward have a smaller number or belong to an earlier stage. */
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/error.h"
#include "parallel/pipeline/internal.h"

#include <lockstep/autograd.h>

typedef struct pass { /* a forward of this rank */
    ls__stage *stage;
    int number, slot; /* of the micro-batch */
} pass;

/* Which replica of its stage this rank is, of how many. Ranks with several stages have no
 * others. */
static int replica_of(const ls_pipeline *p, int *replicas)
{
    const int stage = p->own[0].number;
    *replicas = p->schedule->replicas[stage];
    return ls__schedule_replica(p->schedule, stage, p->rank);
}

/* Forward number i of this rank, which has `count` micro-batches. */
static pass pass_of(const ls_pipeline *p, int count, int64_t i)
{
    const int ranks = p->schedule->ranks, first = (int)(i / (ranks * p->own_count)) * ranks;
    const int size = count - first < ranks ? count - first : ranks;
    const int within = (int)(i - (int64_t)first * p->own_count);
    int replicas = 1;
    const int replica = replica_of(p, &replicas);
    const int number = replica + (first + within % size) * replicas;
    return (pass){.stage = &p->own[within / size],
                  .number = number,
                  .slot = p->set.micro_batches + number % LS__EVALUATION_SLOTS(p)};
}

static int edges_within_this_rank(const ls__stage *s)
{
    int own = 0;
    for (int i = 0; i < s->leaving_count; i++) {
        own += s->leaving[i].own;
    }
    return own;
}

/* Ends the micro-batch of a slot, if it has one, once its results were read. */
static ls_status end_slot(ls__stage *s, int at)
{
    ls__slot *slot = &s->slot[at];
    LS_ASSERT(slot->scope == NULL ||
              (slot->computed && slot->handed_over == edges_within_this_rank(s)));
    LS_TRY(ls__values_sent(s, at));
    ls__slot_end(s, slot);
    return LS_OK;
}

/* Ends the micro-batches whose results go to stages of this rank only, once these have taken them.
 * The others stay until their slots are needed, so that memory does not depend on the other ranks'
 * pace. */
static void end_those_read(ls_pipeline *p)
{
    for (int k = 0; k < p->own_count; k++) {
        ls__stage *s = &p->own[k];
        for (int at = p->set.micro_batches; at < p->slots; at++) {
            if (s->slot[at].computed && s->slot[at].handed_over == s->leaving_count) {
                ls__slot_end(s, &s->slot[at]);
            }
        }
    }
}

static ls_status end_all_slots(ls_pipeline *p)
{
    for (int k = 0; k < p->own_count; k++) {
        for (int at = p->set.micro_batches; at < p->slots; at++) {
            LS_TRY(end_slot(&p->own[k], at));
        }
    }
    return LS_OK;
}

/* Posts the receives of a pass; a second call does nothing. */
static ls_status post_receives(ls_pipeline *p, const pass *t)
{
    ls__slot *slot = &t->stage->slot[t->slot];
    if (slot->scope != NULL && slot->number == t->number) {
        return LS_OK;
    }
    LS_TRY(end_slot(t->stage, t->slot));
    slot->scope = ls_scope_enter();
    slot->number = t->number;
    if (p->weighted) {
        ls__values_unknown(t->stage, t->slot);
    }
    LS_TRY(ls__values_expect(p, t->stage, t->slot));
    return ls_scope_suspend(slot->scope);
}

/* Intermediate tensors of a stage are freed at once, as by recomputation. */
static ls_status evaluate_stage(ls_pipeline *p, const pass *t)
{
    ls__stage *s = t->stage;
    ls__slot *slot = &s->slot[t->slot];
    LS_TRY(ls_scope_resume(slot->scope));
    LS_TRY(ls__values_take(p, s, t->slot));
    ls_step_begin(p->micro[t->number].context);
    LS_TRY(ls_recompute_call_many(ls__stage_run, slot->in, s->edges.in_count, slot->out,
                                  s->edges.out_count, s));
    LS_TRY(ls__values_send(p, s, t->slot));
    slot->computed = true;
    return ls_scope_suspend(slot->scope);
}

/* Puts the result of the last stage into the caller's scope. */
static ls_status return_outputs(const ls_pipeline *p, const pass *t, ls_tensor **outputs)
{
    if (t->stage->number < p->stages - 1) {
        return LS_OK;
    }
    outputs[t->number] = ls_detach(t->stage->slot[t->slot].out[0]);
    return ls_tensor_status(outputs[t->number]);
}

static ls_status run_passes(ls_pipeline *p, int all, ls_tensor **outputs)
{
    LS_NO_GRAD;
    int replicas = 1;
    const int replica = replica_of(p, &replicas);
    const int count = ls__schedule_share(p->schedule, p->own[0].number, replica, all);
    const int64_t passes = (int64_t)count * p->own_count;
    for (int64_t i = 0; i < passes; i++) {
        const pass now = pass_of(p, count, i);
        LS_TRY(post_receives(p, &now));
        if (i + 1 < passes) {
            const pass next = pass_of(p, count, i + 1);
            LS_TRY(post_receives(p, &next));
        }
        LS_TRY(evaluate_stage(p, &now));
        LS_TRY(return_outputs(p, &now, outputs));
        end_those_read(p);
    }
    return end_all_slots(p);
}

/* Ranks with different counts would wait for micro-batches that no rank sends. The tag of the
 * barrier has the count, so the barrier fails instead. */
static ls_status agree_on_count(ls_pipeline *p, int count)
{
    char tag[64];
    (void)snprintf(tag, sizeof tag, "evaluation of %d micro-batches", count);
    return ls_barrier(p->group, LS_OPTIONS(ls_collective_options, .tag = tag), NULL);
}

static ls_status check_forward_call(const ls_micro_batch *micro, int count, ls_tensor **outputs)
{
    if (micro == NULL || outputs == NULL || count < 1) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_pipeline_forward: the micro-batches or the place for their outputs are "
                        "NULL, or their number is %d; give both, and at least one micro-batch",
                        count);
    }
    return ls__micro_batches_check("ls_pipeline_forward", micro, count);
}

static ls_status evaluate_micro_batches(ls_pipeline *p, const ls_micro_batch *micro, int count,
                                        ls_tensor **outputs)
{
    LS_TRY(check_forward_call(micro, count, outputs));
    LS_ASSERT(p->bound == NULL); /* the newest parameters are in place */
    p->micro = micro;
    memset(outputs, 0, (size_t)count * sizeof *outputs);
    LS_TRY(agree_on_count(p, count));
    LS_TRY(run_passes(p, count, outputs));
    return agree_on_count(p, count);
}

ls_status ls_pipeline_forward(ls_pipeline *p, const ls_micro_batch *micro, int count,
                              ls_tensor **outputs)
{
    if (p == NULL) {
        return ls__fail(LS_ERR_INVALID, "ls_pipeline_forward: the pipeline is NULL; give one");
    }
    LS_TRY(ls__pipeline_check_alive(p, "ls_pipeline_forward"));
    const ls_status status = evaluate_micro_batches(p, micro, count, outputs);
    if (status < 0) {
        return ls__fail_at_site(ls__pipeline_give_up(p, NULL, status));
    }
    ls__values_prepare(p);
    ls_step_begin(micro[count - 1].context); /* equal on all ranks */
    return LS_OK;
}
