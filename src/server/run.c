/* SPDX-License-Identifier: Apache-2.0 */
/* A period of serving: from ls_server_run, which gives servers the parameters of the module, to
 * ls_server_join, which gives all ranks the newest version.
 *
 *     rank 0, worker     run  step step step step join ┐
 *     rank 1, worker     run  step step join ──────────┤ all: parameters, buffers, what the ranks
 *     rank 2, server     run ──────────────────┘ join  ┘ show a checkpoint alike
 *
 * Between two periods no rank serves, and the model is that of ls_ddp_new. */
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/options.h"
#include "base/text.h"
#include "comm/api/control.h"
#include "comm/core/group.h"
#include "dist/agree.h"
#include "kernel/reduce/reduce.h"
#include "reduce/reducer.h"
#include "server/server.h"

/* ---- beginning ------------------------------------------------------------------------------ */

static ls_status check_run(ls__server *s, ls_optim *optim)
{
    if (optim == NULL) {
        return ls__fail(LS_ERR_INVALID, "ls_server_run: the optimizer is NULL; every rank makes "
                                        "one, and servers step theirs");
    }
    if (s->running) {
        return ls__fail(LS_ERR_STATE, "ls_server_run: servers run already; call ls_server_join "
                                      "first");
    }
    return ls__server_find_params(s->d, optim, "ls_server_run", s->optim_param);
}

/* Servers begin with the module's numbers; all workers have them as well. */
static ls_status begin_serving(ls__server *s)
{
    ls__server_state *state = s->state;
    LS_TRY(ls__server_copy_out(&s->layout, s->d, s->staging));
    ls__server_pack(&s->layout, s->shard, state->stepper.parameters, s->staging);
    if (s->shard == 0 && s->buffers_bytes > 0) {
        LS_TRY(ls__buffers_note(&s->d->buffers));
        ls__elements_copy(state->buffers, s->d->buffers.flat, s->buffers_bytes);
    }
    state->stepper.optim = s->optim;
    ls__server_steps_begin(&state->stepper);
    state->newest = NULL;
    state->ended = 0;
    for (int w = 0; w < s->workers; w++) {
        ls__server_client *c = &state->clients[w];
        c->clock = 0;
        c->joined = c->waits = c->pushed = false;
    }
    return LS_OK;
}

static void keep_result(ls__server *s, ls_status status)
{
    s->served = status;
    memcpy(s->served_message, ls_error_message(), sizeof s->served_message);
}

/* The server of a rank that works. */
static void run_server(void *arg)
{
    ls__server *s = arg;
    (void)ls_runtime_attach(s->d->runtime);
    atomic_store_explicit(&s->attached, 1, memory_order_release); /* pairs with start_thread */
    s->env->wake(s->env, &s->attached, 1);
    keep_result(s, ls__server_serve(s));
    (void)ls_runtime_attach(NULL);
}

/* The search for deadlocks counts this thread among the user's (ls_runtime_attach). */
static ls_status start_thread(ls__server *s)
{
    atomic_store_explicit(&s->attached, 0, memory_order_relaxed);
    const int error = s->env->thread_start(s->env, "ls-server", run_server, s, &s->thread);
    if (error < 0) {
        s->thread = NULL;
        return ls__fail(LS_ERR_SYSTEM,
                        "ls_server_run: the thread of the server could not be started: %s; give "
                        "ranks of their own to the servers",
                        strerror(-error));
    }
    while (atomic_load_explicit(&s->attached, memory_order_acquire) == 0) {
        (void)s->env->park(s->env, &s->attached, 0, LS__NEVER);
    }
    return LS_OK;
}

/* Without the learning rate, which comes with each push. */
static void list_optim(ls__facts *to, const ls_optim *o)
{
    static const char remedy[] =
        "give ls_server_run the same optimizer on every rank: servers step "
        "theirs";
    char text[256] = "", name[32];
    ls__text out = {text, sizeof text};
    ls__text_add(&out, "%s", o->cls->name);
    for (int h = 1; h < o->cls->hyper_count; h++) {
        ls__text_add(&out, ", %s %.9g", o->cls->hyper_name[h], o->hyper[h]);
    }
    ls__facts_text(to, "the optimizer", text, remedy);
    for (int g = 0; g < o->group_count; g++) {
        (void)snprintf(name, sizeof name, "optimizer group %d", g + 1);
        (void)snprintf(text, sizeof text, "lr_scale %.9g, weight_decay %.9g", o->groups[g].lr_scale,
                       o->groups[g].weight_decay);
        ls__facts_text(to, name, text, remedy);
    }
    for (int i = 0; i < o->count && o->group_count > 0; i++) {
        (void)snprintf(text, sizeof text, "the optimizer's group of %.200s", o->params[i].name);
        ls__facts_number(to, text, o->params[i].group, remedy);
    }
}

/* Servers begin with theirs, and workers with their own. */
static void list_start(ls__facts *to, const void *arg)
{
    const ls__server *s = arg;
    list_optim(to, s->optim);
    ls__facts_hash(to, "parameters and buffers", ls_module_hash(s->d->inner),
                   "change them on no rank between ls_server_new, ls_server_join and "
                   "ls_server_run, or on all alike");
}

static ls_status agree_on_start(const ls__server *s)
{
    ls__agree_peers peers = {
        .group = s->group, .stages = true, .trains = true, .key = ls__group_agreement(s->group)};
    (void)snprintf(peers.who, sizeof peers.who, "ls_server_run");
    ls__agreement_join(s->d->runtime, peers.key);
    LS_TRY(ls__agree_settings(&peers));
    peers.stages = false;
    return ls__agree(&peers, list_start, s);
}

static ls_status begin_period(ls__server *s, ls_optim *optim)
{
    s->optim = optim;
    LS_TRY(agree_on_start(s));
    LS_TRY(ls__optim_allocate_state(optim));
    if (s->shard >= 0) {
        LS_TRY(begin_serving(s));
    }
    s->running = true;
    s->may_push = true;
    s->fresh = false;
    return s->shard >= 0 && s->works ? start_thread(s) : LS_OK;
}

ls_status ls_server_run(ls_module *net, ls_optim *optim)
{
    ls__server *s = ls__server_of(net);
    if (s == NULL) {
        return LS_OK;
    }
    ls_status status = check_run(s, optim);
    if (status == LS_OK) {
        status = begin_period(s, optim);
    }
    if (status < 0) {
        return ls__fail_at_site(ls__server_give_up(s, status));
    }
    return s->works ? LS_OK : ls__server_serve(s);
}

/* ---- ending --------------------------------------------------------------------------------- */

/* Servers broadcast their ranges. All ranks wait for the last worker here. */
static ls_status broadcast_parameters(ls__server *s)
{
    const ls__server_layout *l = &s->layout;
    const ls_collective_options options = {
        .size = sizeof options, .tag = "newest", .timeout_ms = LS__SERVER_NO_DEADLINE_MS};
    if (s->shard >= 0) {
        ls__server_unpack(l, s->shard, s->state->stepper.parameters, s->staging);
    }
    if (s->shard == 0) {
        ls__elements_copy(s->d->buffers.flat, s->state->buffers, s->buffers_bytes);
    }
    for (int shard = 0; shard < l->shards; shard++) {
        for (int b = 0; b < l->buckets; b++) {
            const ls__server_slice *slice = ls__server_slice_of(l, shard, b);
            LS_TRY(ls_broadcast(s->group, s->staging + ls__server_slice_at(l, slice),
                                (int64_t)slice->bytes, LS_UINT8, ls__server_rank(s, shard),
                                &options, NULL));
        }
    }
    if (s->buffers_bytes > 0) {
        LS_TRY(ls_broadcast(s->group, s->d->buffers.flat, (int64_t)s->buffers_bytes, LS_UINT8,
                            ls__server_rank(s, 0), &options, NULL));
    }
    return ls__server_take(s);
}

/* A server has counted the steps of parameters in its ranges only. */
static ls_status share_steps(const ls__server *s)
{
    ls_optim *o = s->optim;
    if (s->shard >= 0) {
        ls__server_steps_end(&s->state->stepper);
    }
    for (int i = 0; i < o->count; i++) {
        LS_TRY(ls__control_all_reduce(s->group, &o->params[i].steps, 1, LS_INT64, LS_MAX,
                                      LS_OPTIONS(ls_collective_options, .tag = "steps")));
        o->steps_max = o->params[i].steps > o->steps_max ? o->params[i].steps : o->steps_max;
    }
    return LS_OK;
}

static ls_status share_versions(ls__server *s)
{
    for (int shard = 0; shard < s->set.servers; shard++) {
        if (shard == s->shard) {
            s->read[shard] = s->state->version;
        }
    }
    return ls__control_all_reduce(s->group, s->read, s->set.servers, LS_INT64, LS_MAX,
                                  LS_OPTIONS(ls_collective_options, .tag = "versions"));
}

/* State that checkpoints compare: the learning rate and the position in the random numbers, both
 * worker 0's, and whether any rank was asked to stop. */
static ls_status share_rest(const ls__server *s)
{
    ls_runtime *runtime = s->d->runtime;
    uint64_t place[2] = {runtime->step, runtime->calls_in_step};
    uint32_t stop = ls__stop_wanted(runtime);
    LS_TRY(ls__control_broadcast(s->group, place, 2, LS_UINT64, 0,
                                 LS_OPTIONS(ls_collective_options, .tag = "random")));
    runtime->step = place[0];
    runtime->calls_in_step = place[1];
    LS_TRY(ls__control_broadcast(s->group, s->optim->hyper, 1, LS_FLOAT64, 0,
                                 LS_OPTIONS(ls_collective_options, .tag = "rate")));
    LS_TRY(ls__control_all_reduce(s->group, &stop, 1, LS_UINT32, LS_MAX,
                                  LS_OPTIONS(ls_collective_options, .tag = "stop")));
    if (stop != 0) {
        atomic_store_explicit(&runtime->stop_agreed, stop, memory_order_relaxed);
    }
    return LS_OK;
}

static ls_status tell_servers(ls__server *s)
{
    LS_TRY(ls__server_ask(s, &(ls__server_head){.kind = LS__SERVER_JOIN}));
    return ls__server_wait(s);
}

static ls_status end_period(ls__server *s)
{
    if (s->works) {
        LS_TRY(tell_servers(s));
    }
    LS_TRY(ls__server_end_thread(s));
    LS_TRY(broadcast_parameters(s));
    LS_TRY(share_steps(s));
    LS_TRY(share_versions(s));
    return share_rest(s);
}

ls_status ls_server_join(ls_module *net)
{
    ls__server *s = ls__server_of(net);
    if (s == NULL) {
        return LS_OK;
    }
    if (!s->running) {
        return ls__fail_at_site(ls__fail(LS_ERR_STATE, "ls_server_join: servers do not run; call "
                                                       "ls_server_run first"));
    }
    const ls_status status = end_period(s);
    s->running = false;
    return status < 0 ? ls__server_give_up(s, status) : LS_OK;
}
