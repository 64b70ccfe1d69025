/* SPDX-License-Identifier: Apache-2.0 */
/* Replaying the log of a pipeline that steps within its table: one process computes micro-batch
 * after micro-batch with the whole model, each stage of it with the version that the log says.
 *
 *     micro-batch 5 on two stages    stage step=5 read=4 made=6 shard=0 hash=…
 *                                    stage step=5 read=5 made=6 shard=1 hash=…
 *
 * A stage keeps as many versions as its largest lag in the log. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/param.h"
#include "base/error.h"
#include "base/options.h"
#include "base/runtime.h"
#include "kernel/reduce/reduce.h"
#include "nn/parts.h"
#include "parallel/pipeline/internal.h"
#include "tensor/tensor.h"

typedef struct stage {
    int64_t slots; /* versions kept at a time; version v is in slot v mod slots */
    size_t bytes;  /* of a version */
    char *memory;  /* [slots][bytes] */
    int64_t bound; /* the version that the parameters have now */
} stage;

typedef struct replay {
    ls_module *net;
    ls_optim *optim;
    ls_pipeline_replay_options set;
    ls__replay_log log;
    int parts, stages, per_step; /* per_step: micro-batches of a version */
    stage *stage;                /* [stages] */
    ls_param *params;
    int param_count;
    int *stage_of; /* [param_count] */
    size_t *at;    /* [param_count] in a version of its stage */
    int64_t version;
    ls_stage_edges edges;  /* of all parts together */
    char **grads;          /* [copies][param_count] of several copies */
    const void **operands; /* [copies] */
} replay;

static ls_status no_memory(void)
{
    return ls__fail(LS_ERR_MEMORY, "ls_pipeline_replay: no memory");
}

static size_t bytes_of(const ls_tensor *t)
{
    return (size_t)ls_numel(t) * ls_dtype_size(ls_dtype_of(t));
}

/* ---- versions -------------------------------------------------------------------------------- */

static char *version_of(const replay *r, int s, int64_t version)
{
    const stage *to = &r->stage[s];
    return to->memory + (size_t)(version % to->slots) * to->bytes;
}

/* Copies parameter i out of a version of its stage, or into it. */
static ls_status copy_param(replay *r, int i, int64_t version, bool back)
{
    ls__host_view view;
    ls_tensor *param = r->params[i].value;
    char *kept = version_of(r, r->stage_of[i], version) + r->at[i];
    LS_TRY(ls__host_view_of(param, &view));
    ls__elements_copy(back ? view.data : kept, back ? kept : view.data, view.bytes);
    ls__host_view_close(&view, back);
    if (back) {
        ls__tensor_changed(param);
    }
    return LS_OK;
}

/* Gives a stage a version that it keeps. */
static ls_status bind_version(replay *r, int s, int64_t version)
{
    for (int i = 0; i < r->param_count && r->stage[s].bound != version; i++) {
        LS_TRY(r->stage_of[i] == s ? copy_param(r, i, version, true) : LS_OK);
    }
    r->stage[s].bound = version;
    return LS_OK;
}

static ls_status bind_newest(replay *r)
{
    for (int s = 0; s < r->stages; s++) {
        LS_TRY(bind_version(r, s, r->version));
    }
    return LS_OK;
}

static ls_status keep_newest(replay *r)
{
    for (int i = 0; i < r->param_count; i++) {
        LS_TRY(copy_param(r, i, r->version, false));
    }
    for (int s = 0; s < r->stages; s++) {
        r->stage[s].bound = r->version;
    }
    return LS_OK;
}

/* ---- a micro-batch --------------------------------------------------------------------------- */

/* Its lines, one of each stage. */
static const ls__replay_event *lines_of(const replay *r, int64_t micro)
{
    return &r->log.events[micro * r->stages];
}

static ls_status get_micro(replay *r, int copy, int64_t number, ls_micro_batch *out)
{
    *out = (ls_micro_batch){.size = sizeof *out};
    const ls__user_call user = ls__user_call_begin();
    const ls_status status = r->set.micro(r->set.arg, copy, number, out);
    LS_TRY(ls__user_call_check(&user, status, "micro-batch %lld of the replay", (long long)number));
    return ls__micro_batches_check("ls_pipeline_replay", out, 1);
}

static ls_status find_loss(replay *r, const ls_micro_batch *micro, ls_tensor **loss)
{
    ls_tensor *inputs[LS_CALL_TENSORS_MAX], *output = NULL;
    for (int i = 0; i < r->edges.in_count; i++) {
        const int number = -1 - r->edges.in[i]; /* LS_PART_INPUT */
        inputs[i] = number < LS_PART_FROM_MAX ? micro->inputs[number] : NULL;
    }
    LS_TRY(ls_module_run_stage(r->net, 0, r->parts, inputs, r->edges.in_count, &output, 1));
    *loss = r->set.loss != NULL ? r->set.loss(r->set.loss_arg, output, micro->target)
                                : ls_cross_entropy(output, micro->target, NULL);
    return ls_tensor_status(*loss);
}

static ls_status compute_micro_batch(replay *r, int copy, int64_t micro)
{
    LS_SCOPE;
    ls_micro_batch given;
    ls_tensor *loss = NULL;
    const ls__replay_event *lines = lines_of(r, micro);
    LS_TRY(get_micro(r, copy, lines[0].step, &given));
    for (int s = 0; s < r->stages; s++) {
        LS_TRY(bind_version(r, s, lines[s].read));
    }
    ls_step_begin(given.context);
    LS_TRY(find_loss(r, &given, &loss));
    LS_TRY(ls_backward(ls_scale(loss, 1.0 / r->per_step)));
    return bind_newest(r);
}

/* ---- several copies -------------------------------------------------------------------------- */

/* An absent gradient counts as zeros, unless that of the last copy is absent. */
static ls_status keep_grads(replay *r, int copy)
{
    for (int i = 0; i < r->param_count; i++) {
        ls_tensor *grad = ls_grad(r->params[i].value);
        char **to = &r->grads[copy * r->param_count + i];
        free(*to);
        *to = calloc(1, bytes_of(r->params[i].value) + 1);
        if (*to == NULL) {
            return no_memory();
        }
        if (grad != NULL) {
            ls__host_view view;
            LS_TRY(ls__host_view_of(grad, &view));
            ls__elements_copy(*to, view.data, view.bytes);
            ls__host_view_close(&view, false);
        }
    }
    return LS_OK;
}

static ls_status average_grad(replay *r, int i, ls_tensor *grad)
{
    ls__host_view view;
    LS_TRY(ls__host_view_of(grad, &view));
    for (int c = 0; c < r->set.copies; c++) {
        r->operands[c] = r->grads[c * r->param_count + i];
    }
    ls__reduce(&(ls__reduce_args){.dst = &view.data,
                                  .dst_count = 1,
                                  .src = r->operands,
                                  .src_count = r->set.copies,
                                  .count = ls_numel(grad),
                                  .dtype = ls_dtype_of(grad),
                                  .op = LS_SUM,
                                  .averages = true,
                                  .divisor = r->set.copies});
    ls__host_view_close(&view, true);
    return LS_OK;
}

/* As the wrapper does, in the order of the copies. */
static ls_status average_grads(replay *r)
{
    for (int i = 0; i < r->param_count; i++) {
        ls_tensor *grad = ls_grad(r->params[i].value);
        LS_TRY(grad != NULL ? average_grad(r, i, grad) : LS_OK);
    }
    return LS_OK;
}

/* ---- a version ------------------------------------------------------------------------------- */

static ls_status find_gradients(replay *r, int64_t first)
{
    for (int c = 0; c < r->set.copies; c++) {
        ls_optim_zero_grad(r->optim);
        for (int m = 0; m < r->per_step; m++) {
            LS_TRY(compute_micro_batch(r, c, first + m));
        }
        LS_TRY(r->set.copies > 1 ? keep_grads(r, c) : LS_OK);
    }
    return r->set.copies > 1 ? average_grads(r) : LS_OK;
}

static ls_status compare_hash(const replay *r, int s, const ls__replay_event *e)
{
    uint64_t hash = 0;
    for (int i = 0; i < r->param_count; i++) {
        LS_TRY(r->stage_of[i] == s ? ls__stage_hash(r->params[i].value, &hash) : LS_OK);
    }
    *r->set.versions += 1;
    return hash == e->hash
               ? LS_OK
               : ls__fail(LS_ERR_MISMATCH,
                          "ls_pipeline_replay: %s, line %lld: version %lld of stage %d has hash "
                          "%016llx there, and %016llx here; a line was moved or changed, or the "
                          "run had other data, settings or code",
                          r->set.log, (long long)e->line, (long long)e->made, s,
                          (unsigned long long)e->hash, (unsigned long long)hash);
}

static ls_status make_version(replay *r, int64_t first)
{
    const ls__replay_event *last = lines_of(r, first + r->per_step - 1);
    LS_TRY(find_gradients(r, first));
    ls__self.exchanges++; /* as in the run, in which the stages exchange: ls_optim_step asks */
    LS_TRY(ls_optim_step(r->optim));
    ls_optim_zero_grad(r->optim);
    r->version++;
    LS_TRY(keep_newest(r));
    for (int s = 0; s < r->stages; s++) {
        LS_TRY(compare_hash(r, s, &last[s]));
    }
    return LS_OK;
}

/* ---- the log --------------------------------------------------------------------------------- */

/* Lines come by micro-batch, then by stage; the last micro-batch of a version has its hash. */
static ls_status check_event(const replay *r, int64_t index)
{
    const ls__replay_event *e = &r->log.events[index];
    const int64_t micro = index / r->stages, version = micro / r->per_step;
    const int s = (int)(index % r->stages);
    const bool last = (micro + 1) % r->per_step == 0;
    return e->kind == LS__REPLAY_STAGE && e->step == micro && e->shard == s &&
                   e->made == version + 1 && e->read <= version && e->hashed == last
               ? LS_OK
               : ls__fail(
                     LS_ERR_MISMATCH,
                     "ls_pipeline_replay: %s, line %lld: micro-batch %lld of stage %d comes "
                     "next, reads version %lld at most and makes %lld; the log was changed, or "
                     "lines are missing",
                     r->set.log, (long long)e->line, (long long)micro, s, (long long)version,
                     (long long)(version + 1));
}

/* Checks the log up to a version and makes it. Lines of a call that did not end are not there, so
 * the last version is whole. */
static ls_status replay_versions(replay *r)
{
    const int64_t lines = (int64_t)r->per_step * r->stages;
    for (int64_t i = 0; i < r->log.count; i++) {
        LS_TRY(check_event(r, i));
        if ((i + 1) % lines == 0) {
            LS_TRY(make_version(r, (i + 1 - lines) / r->stages));
        }
    }
    return LS_OK;
}

static void read_shape(replay *r)
{
    int64_t first = 0; /* line with a hash */
    r->stages = r->log.shards;
    while (first < r->log.count && !r->log.events[first].hashed) {
        first++;
    }
    r->per_step = (int)(first / r->stages) + 1;
    for (int64_t i = 0; i < r->log.count; i++) {
        const ls__replay_event *e = &r->log.events[i];
        const int64_t lag =
            e->made <= r->log.count ? e->made - e->read : 0; /* else it is refused */
        stage *s = &r->stage[e->shard];
        s->slots = lag > s->slots ? lag : s->slots;
    }
}

/* ---- the model ------------------------------------------------------------------------------- */

static ls_status find_cut(const replay *r, int *first)
{
    if (r->set.cut == NULL) {
        int count = 0;
        for (int s = 0; s < r->stages; s++) {
            LS_TRY(ls_module_cut_evenly(r->net, r->stages, s, &first[s], &count));
        }
        return LS_OK;
    }
    const int stages = ls_module_cut_at(r->net, r->set.cut, first);
    LS_TRY(stages < 0 ? (ls_status)stages : LS_OK);
    return stages == r->stages
               ? LS_OK
               : ls__fail(LS_ERR_MISMATCH,
                          "ls_pipeline_replay: the cut \"%.200s\" makes %d stages, and %s has %d; "
                          "give the cut of the run",
                          r->set.cut, stages, r->set.log, r->stages);
}

/* Which stage a parameter belongs to, and where in it. */
static ls_status assign_param(replay *r, const int *first, bool *uses)
{
    for (int part = 0, s = 0; part < r->parts; part++) {
        s += s + 1 < r->stages && part >= first[s + 1];
        LS_TRY(ls__part_uses(r->net, part, r->params, r->param_count, uses));
        for (int i = 0; i < r->param_count; i++) {
            r->stage_of[i] = uses[i] ? s : r->stage_of[i];
        }
    }
    for (int i = 0; i < r->param_count; i++) {
        r->at[i] = r->stage[r->stage_of[i]].bytes;
        r->stage[r->stage_of[i]].bytes += bytes_of(r->params[i].value);
    }
    return LS_OK;
}

static ls_status find_stages(replay *r, int *first, bool *uses)
{
    LS_TRY(first != NULL && uses != NULL ? LS_OK : no_memory());
    LS_TRY(find_cut(r, first));
    return assign_param(r, first, uses);
}

static ls_status cut_stages(replay *r)
{
    int *first = calloc((size_t)r->stages + LS_CALL_TENSORS_MAX, sizeof *first);
    bool *uses = calloc((size_t)r->param_count + 1, sizeof *uses);
    const ls_status status = find_stages(r, first, uses);
    free(first);
    free(uses);
    return status;
}

static ls_status allocate_params(replay *r)
{
    const size_t params = (size_t)r->param_count + 1, copies = (size_t)r->set.copies;
    r->params = calloc(params, sizeof *r->params);
    r->stage_of = calloc(params, sizeof *r->stage_of);
    r->at = calloc(params, sizeof *r->at);
    r->grads = calloc(params * copies, sizeof *r->grads);
    r->operands = calloc(copies, sizeof *r->operands);
    r->stage = calloc((size_t)r->log.shards, sizeof *r->stage);
    return r->params != NULL && r->stage_of != NULL && r->at != NULL && r->grads != NULL &&
                   r->operands != NULL && r->stage != NULL
               ? LS_OK
               : no_memory();
}

static ls_status allocate_versions(replay *r)
{
    for (int s = 0; s < r->stages; s++) {
        stage *to = &r->stage[s];
        to->slots = to->slots > 0 ? to->slots : 1;
        to->memory = calloc((size_t)to->slots, to->bytes + 1);
        LS_TRY(to->memory != NULL ? LS_OK : no_memory());
    }
    return LS_OK;
}

static void release_replay(replay *r)
{
    for (int s = 0; r->stage != NULL && s < r->stages; s++) {
        free(r->stage[s].memory);
    }
    for (int i = 0; r->grads != NULL && i < r->param_count * r->set.copies; i++) {
        free(r->grads[i]);
    }
    free(r->stage);
    free(r->params);
    free(r->stage_of);
    free(r->at);
    free((void *)r->grads);
    free((void *)(uintptr_t)r->operands);
    ls__replay_release(&r->log);
}

static ls_status read_and_run(replay *r)
{
    *r->set.versions = 0;
    LS_TRY(ls__replay_read(ls__self.runtime->env, r->set.log, &r->log));
    r->param_count = ls_module_param_count(r->net);
    r->parts = ls_module_part_count(r->net);
    LS_TRY(r->parts < 0 ? (ls_status)r->parts : LS_OK);
    LS_TRY(allocate_params(r));
    (void)ls_module_params(r->net, r->params, r->param_count);
    read_shape(r);
    LS_TRY(cut_stages(r));
    LS_TRY(ls_module_stage_edges(r->net, 0, r->parts, &r->edges));
    LS_TRY(allocate_versions(r));
    LS_TRY(keep_newest(r));
    return replay_versions(r);
}

ls_status ls_pipeline_replay(ls_module *net, ls_optim *optim,
                             const ls_pipeline_replay_options *options)
{
    LS__OPTIONS(ls_pipeline_replay_options, given, options);
    int64_t versions = 0;
    if (ls__runtime_get("ls_pipeline_replay") == NULL) {
        return ls__self.status;
    }
    if (net == NULL || optim == NULL || given.log == NULL || given.micro == NULL ||
        given.copies < 1) {
        return ls__fail_at_site(
            ls__fail(LS_ERR_INVALID, "ls_pipeline_replay: give the whole model, its optimizer, a "
                                     "log, a function for the micro-batches, and one copy at "
                                     "least"));
    }
    replay r = {.net = net, .optim = optim, .set = given};
    r.set.versions = given.versions != NULL ? given.versions : &versions;
    const ls_status status = read_and_run(&r);
    if (status == LS_OK && given.ended != NULL) {
        *given.ended = r.log.ended;
    }
    release_replay(&r);
    return status < 0 ? ls__fail_at_site(status) : LS_OK;
}
