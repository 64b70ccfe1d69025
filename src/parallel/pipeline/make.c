/* SPDX-License-Identifier: Apache-2.0 */
/* Making a pipeline: the schedule, the cut, the edges between stages, and tied parameters: those
 * that stages of several ranks use. Everything follows from the model and the options, so all ranks
 * compute the same. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/param.h"
#include "base/error.h"
#include "base/options.h"
#include "base/runtime.h"
#include "comm/core/cause.h"
#include "dist/mesh.h"
#include "parallel/pipeline/internal.h"
#include "tensor/tensor.h"

static ls_status no_memory(void)
{
    return ls__fail(LS_ERR_MEMORY, "ls_pipeline_new: no memory");
}

static void *take_memory(ls_pipeline *p, size_t count, size_t bytes)
{
    return ls__arena_alloc(&p->arena, (count + 1) * bytes); /* zeroed; never of no bytes */
}

ls__stage *ls__pipeline_stage(ls_pipeline *p, int number)
{
    for (int k = 0; k < p->own_count; k++) {
        if (p->own[k].number == number) {
            return &p->own[k];
        }
    }
    return NULL;
}

int ls__stage_edge_peer(const ls_pipeline *p, const ls__stage_edge *edge, int number)
{
    return ls__schedule_rank(p->schedule, edge->other, number);
}

int ls_pipeline_stage(const ls_pipeline *p)
{
    return p != NULL
               ? p->own[0].number
               : ls__fail(LS_ERR_INVALID, "ls_pipeline_stage: the pipeline is NULL; give one");
}

/* ---- stages ------------------------------------------------------------------------------- */

static ls_status make_schedule(ls_pipeline *p)
{
    const ls__schedule_spec spec = {.ranks = ls_group_size(p->group),
                                    .micro_batches = p->set.micro_batches,
                                    .chunks = p->set.chunks,
                                    .replicas = p->set.replicas,
                                    .recompute = p->set.recompute,
                                    .vertical_sync = p->set.vertical_sync,
                                    .warm_up = p->set.warm_up};
    LS_TRY(ls__schedule_new(p->env, p->set.schedule, &spec, &p->schedule));
    p->stages = p->schedule->stages;
    if (p->set.weighted && p->schedule->per_step != p->schedule->micro_batches) {
        return ls__fail(LS_ERR_UNSUPPORTED,
                        "ls_pipeline_new: schedule %s steps after every %d micro-batch%s, so there "
                        "is no mean over the weights of a call; leave .weighted out, or take 1f1b",
                        p->schedule->name, p->schedule->per_step,
                        p->schedule->per_step > 1 ? "es" : "");
    }
    p->weighted = ls__schedule_has_replicas(p->schedule) || p->set.weighted;
    p->slots = p->set.micro_batches + LS__EVALUATION_SLOTS(p);
    return LS_OK;
}

static ls_status cut_evenly(ls_pipeline *p, int parts)
{
    int count = 0;
    for (int s = 0; s < p->stages; s++) {
        LS_TRY(ls_module_cut_evenly(p->net, p->stages, s, &p->first[s], &count));
    }
    p->first[p->stages] = parts;
    return LS_OK;
}

static ls_status cut_at_names(ls_pipeline *p, int parts)
{
    int first[LS_CALL_TENSORS_MAX];
    const int stages = ls_module_cut_at(p->net, p->set.cut, first);
    if (stages < 0) {
        return (ls_status)stages;
    }
    if (stages != p->stages) {
        return ls__fail(
            LS_ERR_INVALID,
            "ls_pipeline_new: the cut \"%.200s\" makes %d stages, and schedule %s on %d "
            "ranks has %d",
            p->set.cut, stages, p->set.schedule, p->schedule->ranks, p->stages);
    }
    memcpy(p->first, first, (size_t)stages * sizeof *first);
    p->first[stages] = parts;
    return LS_OK;
}

static int stage_of(const ls_pipeline *p, int part)
{
    int s = 0;
    while (p->first[s + 1] <= part) {
        s++;
    }
    return s;
}

static ls_status edges_of(const ls_pipeline *p, int stage, ls_stage_edges *out)
{
    return ls_module_stage_edges(p->net, p->first[stage], p->first[stage + 1] - p->first[stage],
                                 out);
}

static int index_in(const int *list, int count, int value)
{
    int i = 0;
    while (i < count && list[i] != value) {
        i++;
    }
    return i;
}

/* Whether this rank has the stage, or one of its replicas. */
static bool has_stage(const ls_pipeline *p, int stage)
{
    const int replica = ls__schedule_replica(p->schedule, stage, p->rank);
    return replica >= 0 && replica < p->schedule->replicas[stage];
}

/* Values that this stage takes. */
static ls_status find_arriving(ls_pipeline *p, ls__stage *s)
{
    s->arriving = take_memory(p, (size_t)s->edges.in_count, sizeof *s->arriving);
    if (s->arriving == NULL) {
        return no_memory();
    }
    for (int i = 0; i < s->edges.in_count; i++) {
        if (s->edges.in[i] >= 0) {
            ls_stage_edges edges;
            const int from = stage_of(p, s->edges.in[i]);
            LS_TRY(edges_of(p, from, &edges));
            s->arriving[s->arriving_count++] =
                (ls__stage_edge){.part = s->edges.in[i],
                                 .from = from,
                                 .to = s->number,
                                 .out = index_in(edges.out, edges.out_count, s->edges.in[i]),
                                 .in = i,
                                 .other = from,
                                 .own = has_stage(p, from)};
        }
    }
    return LS_OK;
}

/* Values that later stages take, the latest first. */
static ls_status find_leaving(ls_pipeline *p, ls__stage *s)
{
    s->leaving = take_memory(p, (size_t)s->edges.out_count * (size_t)p->stages, sizeof *s->leaving);
    if (s->leaving == NULL) {
        return no_memory();
    }
    for (int to = p->stages - 1; to > s->number; to--) {
        ls_stage_edges edges;
        LS_TRY(edges_of(p, to, &edges));
        for (int i = 0; i < edges.in_count; i++) {
            const int out = index_in(s->edges.out, s->edges.out_count, edges.in[i]);
            if (edges.in[i] >= s->first && edges.in[i] < s->first + s->count) {
                s->leaving[s->leaving_count++] = (ls__stage_edge){.part = edges.in[i],
                                                                  .from = s->number,
                                                                  .to = to,
                                                                  .out = out,
                                                                  .in = i,
                                                                  .other = to,
                                                                  .own = has_stage(p, to)};
            }
        }
    }
    return LS_OK;
}

static ls_status make_slots(ls_pipeline *p, ls__stage *s)
{
    const int count = p->slots;
    s->slot = take_memory(p, (size_t)count, sizeof *s->slot);
    for (int m = 0; s->slot != NULL && m < count; m++) {
        ls__slot *slot = &s->slot[m];
        slot->in = take_memory(p, (size_t)s->edges.in_count, sizeof *slot->in);
        slot->out = take_memory(p, (size_t)s->edges.out_count + 1, sizeof *slot->out);
        slot->leaf = take_memory(p, (size_t)s->arriving_count, sizeof *slot->leaf);
        slot->arriving = take_memory(p, (size_t)s->arriving_count, sizeof *slot->arriving);
        slot->leaving = take_memory(p, (size_t)s->leaving_count, sizeof *slot->leaving);
        if (slot->in == NULL || slot->out == NULL || slot->leaf == NULL || slot->arriving == NULL ||
            slot->leaving == NULL) {
            return no_memory();
        }
    }
    return s->slot != NULL ? LS_OK : no_memory();
}

static void find_sends(const ls_pipeline *p, ls__stage *s)
{
    const ls__actions *list = &p->schedule->rank[p->rank];
    for (int i = 0; i < list->count; i++) {
        const ls__action *a = &list->list[i];
        s->sends_values |= a->kind == LS__SEND_ACTIVATION && a->stage == s->number;
        s->sends_grads |= a->kind == LS__SEND_GRADIENT && a->stage == s->number;
    }
}

static void count_backwards(ls_pipeline *p)
{
    const ls__actions *list = &p->schedule->rank[p->rank];
    int all = 0;
    for (int i = 0; i < list->count; i++) {
        all += ls__action_form_of(list->list[i].kind)->adds;
    }
    p->backwards_per_step = all / ls__schedule_steps(p->schedule);
}

/* The most micro-batches that a stage holds between forward and backward, over all its ranks. */
static int kept_by(const ls__schedule *schedule, int stage)
{
    int most = 0;
    for (int r = 0; r < schedule->ranks; r++) {
        int now = 0, peak = 0;
        for (int i = 0; i < schedule->rank[r].count; i++) {
            const ls__action *a = &schedule->rank[r].list[i];
            if (a->stage == stage) {
                now += a->kind == LS__FORWARD;
                now -= a->kind == LS__BACKWARD || a->kind == LS__INPUT_PART;
                peak = now > peak ? now : peak;
            }
        }
        most += peak;
    }
    return most;
}

static ls_status make_send_queues(ls_pipeline *p, ls__stage *s)
{
    s->send_queue = take_memory(p, (size_t)s->arriving_count, sizeof *s->send_queue);
    for (int i = 0; s->send_queue != NULL && i < s->arriving_count; i++) {
        ls__send_queue *queue = &s->send_queue[i];
        const int from = s->arriving[i].from;
        const int count =
            from == s->number - 1 ? LS__SEND_QUEUE_NEIGHBOUR : kept_by(p->schedule, from);
        queue->buffer = take_memory(p, (size_t)count, sizeof *queue->buffer);
        if (queue->buffer == NULL) {
            return no_memory();
        }
        queue->count = count;
    }
    return s->send_queue != NULL ? LS_OK : no_memory();
}

static ls_status make_stage(ls_pipeline *p, int number)
{
    ls__stage *s = &p->own[p->own_count++];
    s->net = p->net;
    s->number = number;
    s->first = p->first[number];
    s->count = p->first[number + 1] - s->first;
    LS_TRY(edges_of(p, number, &s->edges));
    LS_TRY(find_arriving(p, s));
    LS_TRY(find_leaving(p, s));
    find_sends(p, s);
    LS_TRY(make_send_queues(p, s));
    return make_slots(p, s);
}

/* Stages are made before the cut, which needs the whole list of parts. */
static ls_status make_stages(ls_pipeline *p, int parts)
{
    p->first = take_memory(p, (size_t)p->stages + 1, sizeof *p->first);
    p->own = take_memory(p, (size_t)p->stages, sizeof *p->own);
    p->loss = take_memory(p, (size_t)p->set.micro_batches, sizeof *p->loss);
    p->losses = take_memory(p, (size_t)p->set.micro_batches, sizeof *p->losses);
    p->reports = take_memory(p, ((size_t)ls_group_size(p->group) + 1), ls__report_bytes(p));
    ls_status status = LS_OK;
    if (p->first == NULL || p->own == NULL || p->loss == NULL || p->losses == NULL ||
        p->reports == NULL) {
        status = no_memory();
    }
    if (status == LS_OK) {
        status = p->set.cut != NULL ? cut_at_names(p, parts) : cut_evenly(p, parts);
    }
    p->alike = status < 0;
    for (int s = 0; s < p->stages && status == LS_OK; s++) {
        status = has_stage(p, s) ? make_stage(p, s) : LS_OK;
    }
    return status == LS_OK ? ls__pipeline_cut(p) : status;
}

/* ---- tied parameters ---------------------------------------------------------------------- */

/* The names of this rank's parameters, each with its NUL, and an empty one at the end. */
static char *names_of(ls_module *net, size_t *bytes)
{
    const int count = ls_module_param_count(net);
    ls_param *params = malloc(((size_t)count + 1) * sizeof *params);
    char *names = NULL, *at;
    *bytes = 1;
    if (params != NULL) {
        (void)ls_module_params(net, params, count);
        for (int i = 0; i < count; i++) {
            *bytes += strlen(params[i].name) + 1;
        }
        names = malloc(*bytes);
    }
    at = names;
    for (int i = 0; names != NULL && i < count; i++) {
        at = stpcpy(at, params[i].name) + 1;
    }
    if (names != NULL) {
        *at = '\0';
    }
    free(params);
    return names;
}

static bool has_name(const ls_bytes *names, const char *name)
{
    for (const char *at = names->data; *at != '\0'; at += strlen(at) + 1) {
        if (strcmp(at, name) == 0) {
            return true;
        }
    }
    return false;
}

/* Stores the ranks that have the parameter in ranks[] and returns their number; 0 if one of them is
 * below `rank`, because the name has been handled with that rank. */
static int holders_of(const ls_bytes *all, int size, int rank, const char *name, int *ranks)
{
    int count = 0;
    for (int r = 0; r < size; r++) {
        if (has_name(&all[r], name)) {
            if (r < rank) {
                return 0;
            }
            ranks[count++] = r;
        }
    }
    return count;
}

/* The first stage of a rank. */
static int stage_of_rank(const ls__schedule *s, int rank)
{
    int stage = 0;
    while (rank < s->rank_of[stage] || rank >= s->rank_of[stage] + s->replicas[stage]) {
        stage++;
    }
    return stage;
}

/* Whether these ranks, in ascending order, belong to more than one stage. */
static bool are_of_several_stages(const ls__schedule *s, const int *ranks, int count)
{
    return count > 1 && stage_of_rank(s, ranks[0]) != stage_of_rank(s, ranks[count - 1]);
}

/* Collective: all ranks come here with the same name and holders. */
static ls_status add_tied_param(ls_pipeline *p, const char *name, const int *ranks, int count)
{
    ls_group *group = NULL;
    LS_TRY(ls_group_new(p->group, ranks, count, "tied", &group));
    if (group == NULL) {
        return LS_OK;
    }
    p->tied[p->tied_count++] =
        (ls__tied_param){.param = ls_module_param(p->net, name),
                         .group = group,
                         .adds = ls__schedule_replica(p->schedule, p->own[0].number, p->rank) == 0};
    return LS_OK;
}

static ls_status find_tied_params(ls_pipeline *p, const ls_bytes *all, int size)
{
    p->tied = take_memory(p, (size_t)ls_module_param_count(p->net), sizeof *p->tied);
    int *ranks = take_memory(p, (size_t)size, sizeof *ranks);
    if (p->tied == NULL || ranks == NULL) {
        return no_memory();
    }
    for (int r = 0; r < size; r++) {
        for (const char *at = all[r].data; *at != '\0'; at += strlen(at) + 1) {
            const int count = holders_of(all, size, r, at, ranks);
            if (are_of_several_stages(p->schedule, ranks, count)) {
                LS_TRY(add_tied_param(p, at, ranks, count));
            }
        }
    }
    return LS_OK;
}

static ls_status make_tied_params(ls_pipeline *p)
{
    size_t bytes = 0;
    ls_bytes *all = NULL;
    char *names = names_of(p->net, &bytes);
    if (names == NULL) {
        return no_memory();
    }
    ls_status status = ls_all_gather_bytes(
        p->group, names, bytes, LS_OPTIONS(ls_collective_options, .tag = "ls_pipeline_new"), &all);
    free(names);
    if (status == LS_OK) {
        status = find_tied_params(p, all, ls_group_size(p->group));
    }
    ls_bytes_free(all);
    return status;
}

/* ---- the object --------------------------------------------------------------------------- */

static ls_status check_new_call(ls_module *net, const ls_group *group, ls_pipeline **out)
{
    return net != NULL && group != NULL && out != NULL
               ? LS_OK
               : ls__fail(LS_ERR_INVALID,
                          "ls_pipeline_new: the module, the group or the place for the pipeline is "
                          "NULL; give all three");
}

/* Parameters of this rank, and room for as many stashes as the schedule has at one time. */
static ls_status make_versions(ls_pipeline *p)
{
    p->param_count = ls_module_param_count(p->net);
    p->params = take_memory(p, (size_t)p->param_count, sizeof *p->params);
    ls__schedule_peak *peaks = take_memory(p, (size_t)p->schedule->ranks, sizeof *peaks);
    if (p->params == NULL || peaks == NULL) {
        return no_memory();
    }
    (void)ls_module_params(p->net, p->params, p->param_count);
    const ls_mesh *mesh = ls_mesh_in_force();
    const int axes = mesh != NULL ? ls__mesh_axes_of(mesh, p->group) : 0;
    const unsigned along = axes < 0 ? ~0u : (unsigned)axes; /* else any may be */
    for (int i = 0; i < p->param_count; i++) {
        ls__param_set_staged(p->params[i].value, along); /* a frozen one, too: it may be thawed */
    }
    LS_TRY(ls__schedule_peaks(p->schedule, NULL, peaks));
    p->stash_room = (int)peaks[p->rank].stashed;
    p->stashes = take_memory(p, (size_t)p->stash_room, sizeof *p->stashes);
    for (int i = 0; p->stashes != NULL && i < p->stash_room; i++) {
        p->stashes[i].copy = take_memory(p, (size_t)p->param_count, sizeof *p->stashes[i].copy);
        if (p->stashes[i].copy == NULL) {
            return no_memory();
        }
    }
    return p->stashes != NULL ? LS_OK : no_memory();
}

static ls_status check_log(const ls_pipeline *p)
{
    return p->set.log == NULL || strncmp(p->schedule->name, "pipedream", 9) == 0
               ? LS_OK
               : ls__fail(
                     LS_ERR_INVALID,
                     "ls_pipeline_new: log \"%.200s\": a replay log is of versions that a call "
                     "makes, and schedule %s steps after it; leave log out, or take pipedream",
                     p->set.log, p->set.schedule);
}

static ls_status make_pipeline(ls_pipeline *p)
{
    const int parts = ls_module_part_count(p->net);
    LS_TRY(parts < 0 ? (ls_status)parts : LS_OK);
    LS_TRY(ls__pipeline_agree(p, parts));
    p->alike = true; /* the schedule and the cut follow from what is the same on all ranks */
    LS_TRY(make_schedule(p));
    LS_TRY(check_log(p));
    count_backwards(p);
    LS_TRY(make_stages(p, parts));
    LS_TRY(make_versions(p));
    ls__values_prepare_heads(p);
    LS_TRY(make_tied_params(p));
    LS_TRY(ls__stage_links_open(p));
    p->alike = false; /* the file is rank 0's */
    return ls__stage_log_begin(p);
}

static const char *backend_here(void)
{
    const ls__tensors *tensors = ls__tensors_get("ls_pipeline_new");
    return tensors != NULL ? tensors->made->device->backend : NULL;
}

ls_status ls__pipeline_check_alive(const ls_pipeline *p, const char *what)
{
    return p->guest.runtime != NULL
               ? LS_OK
               : ls__fail(LS_ERR_STATE,
                          "%s: this pipeline was made before ls_finalize; make a new module and a "
                          "new pipeline after ls_init",
                          what);
}

static void release_pipeline(ls_pipeline *p)
{
    const ls__env *env = p->env;
    (void)ls__replay_close(&p->log.writer);
    ls__send_queues_free(p);
    ls__runtime_leave(&p->guest);
    ls__schedule_free(p->schedule);
    ls__arena_fini(&p->arena);
    env->release(env, p, sizeof *p);
}

ls_status ls_pipeline_free(ls_pipeline *p)
{
    if (p == NULL) {
        return LS_OK;
    }
    if (p->guest.runtime == NULL) { /* ls_finalize has freed the groups and the copies */
        release_pipeline(p);
        return LS_OK;
    }
    ls_status status = ls__stage_links_close(p);
    for (int i = p->tied_count - 1; i >= 0; i--) {
        const ls_status freed = ls_group_free(p->tied[i].group);
        status = status < 0 ? status : freed;
    }
    ls__pipeline_forget_parts(p);
    ls__versions_free(p);
    const ls_status freed = ls_group_free(p->group);
    release_pipeline(p);
    return status < 0 ? status : freed;
}

ls_status ls_pipeline_new(ls_module *net, ls_group *group, const ls_pipeline_options *options,
                          ls_pipeline **out)
{
    LS__OPTIONS(ls_pipeline_options, given, options);
    ls_runtime *runtime = ls__runtime_get("ls_pipeline_new");
    if (runtime == NULL) {
        return ls__self.status;
    }
    LS_TRY(check_new_call(net, group, out));
    *out = NULL;
    const ls__env *env = runtime->env;
    ls_pipeline *p = env->allocate(env, sizeof *p);
    if (p == NULL) {
        (void)ls_group_abort(group, "ls_pipeline_new: no memory");
        return no_memory();
    }
    *p = (ls_pipeline){.env = env,
                       .net = net,
                       .set = given,
                       .rank = ls_group_rank(group),
                       .backend = backend_here()};
    ls__arena_init(&p->arena, env, (size_t)64 << 10);
    ls__runtime_enter(runtime, &p->guest);
    ls_status status = ls_group_new(group, NULL, 0, "pipeline", &p->group);
    if (status == LS_OK) {
        status = make_pipeline(p);
    }
    if (status < 0) {
        char message[LS__MESSAGE_MAX];
        memcpy(message, ls__self.message, sizeof message);
        if (p->alike && status != LS_ERR_MEMORY) {
            ls__group_record_failure(p->group, status, message);
        } else {
            ls__pipeline_fail(p, status, message);
        }
        (void)ls_pipeline_free(p);
        return ls__fail_again(status, message);
    }
    *out = p;
    return LS_OK;
}
