/* SPDX-License-Identifier: Apache-2.0 */
/* Making a wrapper with servers, and queries of its state. The wrapper is one of ls_ddp_new, whose
 * gradients stay local; worker.c takes the place of averaging. */
#include "server/server.h"

#include <stdio.h>
#include <string.h>

#include "autograd/param.h"
#include "base/options.h"
#include "base/size.h"
#include "comm/backend/plugin_group.h"
#include "dist/agree.h"
#include "kernel/reduce/reduce.h"
#include "nn/batch_norm.h"
#include "nn/module.h"
#include "reduce/reducer.h"

/* ---- options -------------------------------------------------------------------------------- */

static const char *const modes[] = {"LS_SERVER_SYNC", "LS_SERVER_ASYNC", "LS_SERVER_STALE"};

static bool is_mode(ls_server_mode mode)
{
    return mode >= LS_SERVER_SYNC && mode <= LS_SERVER_STALE;
}

static ls_status check_ranks(const ls_server_options *o, int size)
{
    const int most = o->colocated ? size : size - 1;
    if (size < 2) {
        return ls__fail(LS_ERR_INVALID,
                        "the group has one rank, and a server needs a worker; start two ranks at "
                        "least");
    }
    if (o->servers < 1 || o->servers > most) {
        return ls__fail(LS_ERR_INVALID, "servers is %d of %d ranks%s; give 1 to %d", o->servers,
                        size, o->colocated ? "" : ", and one worker at least is left", most);
    }
    return LS_OK;
}

static ls_status check_options(const ls_server_options *o, int size)
{
    const int workers = o->colocated ? size : size - o->servers;
    LS_TRY(check_ranks(o, size));
    if (!is_mode(o->mode)) {
        return ls__fail(LS_ERR_INVALID,
                        "mode is %d; give LS_SERVER_SYNC, LS_SERVER_ASYNC or LS_SERVER_STALE",
                        (int)o->mode);
    }
    if (o->backup < 0 || o->backup >= workers || (o->backup > 0 && o->mode != LS_SERVER_SYNC)) {
        return ls__fail(LS_ERR_INVALID,
                        "backup is %d of %d workers with %s; give 0 to %d, and 0 where no step "
                        "waits for all workers",
                        o->backup, workers, modes[o->mode], workers - 1);
    }
    if (!(o->clip_norm >= 0.0) ||
        (o->clip_norm > 0.0 && (o->mode != LS_SERVER_SYNC || o->backup > 0))) {
        return ls__fail(LS_ERR_INVALID,
                        "clip_norm is %g with %s and backup %d; give 0, or a norm above 0 to "
                        "LS_SERVER_SYNC without backup: others have no common gradient to limit",
                        o->clip_norm, modes[o->mode], o->backup);
    }
    if (o->staleness < 0 || (o->staleness > 0 && o->mode != LS_SERVER_STALE)) {
        return ls__fail(LS_ERR_INVALID,
                        "staleness is %d with %s; give 0 or more steps to LS_SERVER_STALE, and 0 "
                        "to the other modes",
                        o->staleness, modes[o->mode]);
    }
    return LS_OK;
}

/* Compared before any of it is refused, so that no rank waits for one with a mistake of its own. */
typedef struct call {
    const ls_server_options *options;
    ls_module *module;
} call;

static bool has_norm_sync(ls_module *module)
{
    return module != NULL && ls__norm_sync_in(module) != NULL;
}

static void list_call(ls__facts *to, const void *arg)
{
    const call *c = arg;
    const ls_server_options *o = c->options;
    const bool part = c->module != NULL && c->module->entries->parent != NULL;
    ls__facts_text(to, "the module",
                   c->module == NULL ? "NULL"
                   : part            ? "a part of another"
                                     : "a whole one",
                   "give every rank its replica");
    ls__facts_text(to, "batch norm", has_norm_sync(c->module) ? "of all ranks" : "of this rank",
                   "convert it on no rank (ls_sync_batch_norm_convert)");
    ls__facts_text(to, "mode", is_mode(o->mode) ? modes[o->mode] : "none of the modes",
                   "give every rank the same");
    ls__facts_number(to, "servers", o->servers, "give every rank the same");
    ls__facts_text(to, "colocated", o->colocated ? "true" : "false", "give every rank the same");
    ls__facts_number(to, "staleness", o->staleness, "give every rank the same");
    ls__facts_number(to, "backup", o->backup, "give every rank the same");
    ls__facts_number(to, "clip_norm", o->clip_norm, "give every rank the same");
    ls__facts_text(to, "log", o->log != NULL ? "a file" : "none",
                   "name one on every rank or on none");
}

/* ---- making --------------------------------------------------------------------------------- */

static ls_status allocate_tables(ls__server *s)
{
    const size_t shards = (size_t)s->set.servers, params = (size_t)s->d->param_count;
    const size_t buckets = (size_t)s->layout.buckets;
    s->pending_max = s->set.servers * (s->layout.buckets + 3);
    s->head_bytes = ls__server_head_bytes(s->d);
    s->table_bytes = (size_t)s->pending_max * sizeof *s->pending + shards * sizeof *s->read +
                     2 * shards * s->head_bytes + params * sizeof *s->optim_param +
                     buckets * sizeof *s->missing;
    char *memory = s->env->allocate(s->env, s->table_bytes);
    if (memory == NULL) {
        return ls__fail(LS_ERR_MEMORY, "server: no memory for its tables");
    }
    memset(memory, 0, s->table_bytes);
    s->heads = memory;
    s->pending = (void *)(s->heads + 2 * shards * s->head_bytes);
    s->read = (void *)(s->pending + s->pending_max);
    s->optim_param = (void *)(s->read + shards);
    s->missing = s->optim_param + params;
    return LS_OK;
}

static ls_status set_up_server(ls__server *s)
{
    void *staging = NULL;
    LS_TRY(ls_group_new(s->d->group, NULL, 0, "server", &s->group));
    LS_TRY(ls__server_layout_init(&s->layout, s->d, s->set.servers));
    LS_TRY(allocate_tables(s));
    LS_TRY(ls__group_memory(s->group, s->layout.all_bytes, &staging));
    s->staging = staging;
    ls__elements_zero(staging, s->layout.all_bytes); /* gaps are hashed as well */
    s->buffers_bytes = s->d->buffers.count > 0 ? s->d->buffers.bytes : 0;
    return s->shard >= 0 ? ls__server_state_new(s) : LS_OK;
}

/* The elements that this rank steps, for the optimizer's state: its shard. */
static void on_owned(ls__observer *self, int index, int64_t *from, int64_t *count)
{
    const ls__ddp *d = LS__LIST_ITEM(self, ls__ddp, observer);
    const ls__server *s = d->server;
    *from = *count = 0;
    for (int p = 0; p < s->layout.part_count; p++) {
        const ls__server_part *part = &s->layout.parts[p];
        if (part->shard == s->shard && part->param == index) {
            *from = part->from;
            *count = part->count;
        }
    }
}

static void on_updated(ls__observer *self, int index)
{
    (void)self, (void)index;
}

static ls_status on_share(ls__observer *self)
{
    (void)self;
    return LS_OK;
}

static void set_observer(ls__server *s)
{
    ls__observer *o = &s->d->observer;
    o->elsewhere = true;
    o->owned = on_owned;
    o->updated = on_updated;
    o->share = on_share;
    o->owners = s->group;
}

static void place_ranks(ls__server *s)
{
    const int first = s->size - s->set.servers;
    s->workers = s->set.colocated ? s->size : first;
    s->works = s->rank < s->workers;
    s->shard = s->rank >= first ? s->rank - first : -1;
}

/* Attaches servers to a wrapper; on failure the wrapper is freed by the caller, with what is
 * there. */
static ls_status attach_servers(ls__ddp *d, const ls_server_options *given)
{
    ls__server *s = d->env->allocate(d->env, sizeof *s);
    if (s == NULL) {
        return ls__fail(LS_ERR_MEMORY, "no memory");
    }
    *s = (ls__server){.d = d, .env = d->env, .set = *given};
    s->size = ls_group_size(d->group);
    s->rank = ls_group_rank(d->group);
    place_ranks(s);
    d->server = s;
    d->remote = &ls__server_worker;
    LS_TRY(set_up_server(s));
    set_observer(s);
    return ls_barrier(s->group, NULL, NULL); /* a rank that has failed is known to all */
}

static ls_status agree_on_call(ls_group *group, const call *c)
{
    ls__agree_peers peers = {.group = group, .trains = true};
    (void)snprintf(peers.who, sizeof peers.who, "ls_server_new");
    return ls__agree(&peers, list_call, c);
}

/* Checks that fail on all ranks alike. */
static ls_status check_new_call(ls_group *group, const call *c)
{
    const ls_status status = check_options(c->options, ls_group_size(group));
    if (status < 0 || !has_norm_sync(c->module)) {
        return status;
    }
    return ls__fail(LS_ERR_UNSUPPORTED, "batch norm takes the statistics of all ranks "
                                        "(ls_sync_batch_norm_convert), and servers have no forward "
                                        "pass; leave one of them out");
}

/* Experts are visited in the forward passes of all ranks, and servers have none; and what is summed
 * over some ranks only has no place on a server. */
static ls_status check_sums(const ls__ddp *d)
{
    for (int i = 0; i < d->param_count; i++) {
        const bool part = ls__reducer_param_domain(d->reducer, i) != 0;
        if (part || ls__param_complete(d->params[i].value) != 0) {
            return ls__fail(LS_ERR_UNSUPPORTED,
                            "ls_server_new: the gradient of %.200s is not summed over all ranks of "
                            "the group (experts, norms under sequence parallelism), and servers "
                            "add those of all workers; use ls_ddp_new",
                            d->params[i].name);
        }
    }
    return LS_OK;
}

/* Its own error stays. */
static ls_module *take_back(ls_module *net, ls_status status)
{
    char message[LS__MESSAGE_MAX];
    memcpy(message, ls_error_message(), sizeof message);
    (void)ls_ddp_unwrap(net);
    (void)ls__fail_again(status, message);
    return NULL;
}

static ls_module *make_wrapper(ls_module *module, ls_group *group, const ls_server_options *given)
{
    const bool native = strcmp(ls_group_backend(group), LS__BACKEND_NATIVE) == 0;
    ls_module *net =
        ls_ddp_new(module, group,
                   LS_OPTIONS(ls_ddp_options, .bucket_bytes = given->bucket_bytes, .check_every = 0,
                              .backend = native ? LS__BACKEND_NATIVE : NULL));
    if (net == NULL) {
        return NULL;
    }
    ls_status status = check_sums(ls__ddp_of(net));
    if (status < 0) { /* on all ranks */
        return take_back(net, ls__fail_at_site(status));
    }
    status = attach_servers(ls__ddp_of(net), given);
    if (status < 0) { /* here, or on another rank: no group is waited for when it is freed */
        const ls__server *s = ls__ddp_of(net)->server;
        char message[LS__MESSAGE_MAX];
        memcpy(message, ls_error_message(), sizeof message);
        (void)ls_group_abort(group, message);
        (void)(s != NULL && s->group != NULL ? ls_group_abort(s->group, message) : LS_OK);
        return take_back(net, ls__ddp_give_up(ls__ddp_of(net), ls__fail_again(status, message)));
    }
    return net;
}

ls_module *ls_server_new(ls_module *module, ls_group *group, const ls_server_options *options)
{
    LS__OPTIONS_OR(NULL, ls_server_options, given, options);
    const call c = {.options = &given, .module = module};
    ls_status status = group != NULL ? agree_on_call(group, &c) : LS_OK;
    if (status == LS_OK && (module == NULL || group == NULL)) { /* says which */
        return ls_ddp_new(module, group, NULL);
    }
    if (status == LS_OK) {
        status = check_new_call(group, &c);
        status = status < 0 ? ls__fail_within(status, "ls_server_new") : LS_OK;
    }
    if (status < 0) {
        (void)ls__fail_at_site(status);
        return NULL;
    }
    return make_wrapper(module, group, &given);
}

/* ---- questions ------------------------------------------------------------------------------ */

bool ls_server_here(const ls_module *net)
{
    const ls__server *s = ls__server_of(net);
    return s != NULL && s->shard >= 0;
}

bool ls_server_works(const ls_module *net)
{
    const ls__server *s = ls__server_of(net);
    return s == NULL || s->works;
}

ls_status ls_server_get_stats(const ls_module *net, ls_server_stats *out)
{
    const ls__server *s = ls__server_of(net);
    if (s == NULL) {
        return ls__fail(LS_ERR_INVALID, "ls_server_get_stats: the module has no servers; give what "
                                        "ls_server_new returned");
    }
    ls_server_stats now = {.version = s->read[0], .applied = s->step};
    if (s->state != NULL) {
        now = s->state->stats;
        now.version = s->state->version;
        now.staleness = now.applied > 0 ? s->state->staleness / (double)now.applied : 0.0;
    }
    return ls__struct_fill(out, &now, sizeof now, "ls_server_stats", "ls_server_get_stats");
}
