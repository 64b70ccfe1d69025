/* SPDX-License-Identifier: Apache-2.0 */
/* Replaying a log: one process makes every version again and compares it.
 *
 *     log of shard 0    w0 t0 reads 0, makes 1    w1 t0 reads 0, makes 2    w0 t1 reads 1, …
 *     log of shard 1    w1 t0 reads 0, makes 1    w0 t0 reads 0, …
 *
 * A gradient is of one worker and step, and its push has an event in every shard; it is computed
 * with the versions that these read, once all of them exist, and kept until the last shard has
 * taken it. Shards advance in turns as far as their next event can; in a log of a run one always
 * can. A version is kept as long as a gradient that reads it is to be computed. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/server.h>

#include "autograd/param.h"
#include "base/assert.h"
#include "base/options.h"
#include "base/size.h"
#include "kernel/reduce/reduce.h"
#include "reduce/reducer.h"
#include "server/step.h"

/* The push of one worker's step. */
typedef struct gradient {
    int worker;
    int64_t step;
    int64_t *event; /* [shards] its events; -1: none */
    int needed;     /* shards in which it makes a version and has not yet */
    char *memory;   /* head with bitmap, then all shards packed; NULL: not computed */
} gradient;

/* A version that a gradient will read. */
typedef struct kept {
    int64_t version;
    int readers; /* gradients that are not computed yet */
    char *memory;
} kept;

typedef struct shard {
    int64_t *events; /* [count] in their order */
    int64_t count, next;
    int64_t version;
    kept *kept; /* [count + 1] of version v: kept[v]; versions are numbered from 0 on */
    ls__server_stepper stepper;
    ls__server_push *pushes; /* of the version that is being made */
    int pushed;
} shard;

typedef struct replay {
    ls__ddp *d;
    const ls__env *env;
    ls_server_replay_options set;
    ls__replay_log log;
    ls__server_layout layout;
    ls_optim *optim;
    int *optim_param;
    gradient *gradients;
    int64_t gradient_count;
    int64_t *gradient_of; /* [log.count] */
    shard *shards;
    size_t *shard_at; /* [shards] in a gradient's memory */
    size_t gradient_bytes;
    char *staging; /* all regions */
    gradient *computing;
    int64_t compared;
} replay;

static ls_status no_memory(void)
{
    return ls__fail(LS_ERR_MEMORY, "ls_server_replay: no memory");
}

static const char *path_of(const replay *r)
{
    return r->set.log;
}

/* ---- sorting the log ------------------------------------------------------------------------- */

static ls_status fail_event(const replay *r, const ls__replay_event *e, const char *what)
{
    return ls__fail(LS_ERR_MISMATCH,
                    "ls_server_replay: %s, line %lld (shard %d, worker %d, step %lld): %s; the log "
                    "was changed, or lines are missing",
                    path_of(r), (long long)e->line, e->shard, e->worker, (long long)e->step, what);
}

/* For sorting events by worker, step and shard. */
static int by_push(const void *a, const void *b)
{
    const ls__replay_event *x = *(const ls__replay_event *const *)a;
    const ls__replay_event *y = *(const ls__replay_event *const *)b;
    if (x->worker != y->worker) {
        return x->worker < y->worker ? -1 : 1;
    }
    if (x->step != y->step) {
        return x->step < y->step ? -1 : 1;
    }
    return (x->line > y->line) - (x->line < y->line);
}

/* Makes r->gradients of the events in the order of workers and steps. */
static ls_status group_events(replay *r, const ls__replay_event **sorted)
{
    const int shards = r->log.shards;
    gradient *g = NULL;
    for (int64_t i = 0; i < r->log.count; i++) {
        const ls__replay_event *e = sorted[i];
        if (g == NULL || g->worker != e->worker || g->step != e->step) {
            g = &r->gradients[r->gradient_count];
            *g = (gradient){
                .worker = e->worker,
                .step = e->step,
                .event = &r->gradient_of[r->log.count + r->gradient_count * (int64_t)shards]};
            r->gradient_count++;
            for (int s = 0; s < shards; s++) {
                g->event[s] = -1;
            }
        }
        if (g->event[e->shard] >= 0) {
            return fail_event(r, e, "its push is in the log twice");
        }
        g->event[e->shard] = e - r->log.events;
        g->needed += e->made != LS__REPLAY_NONE;
        r->gradient_of[e - r->log.events] = g - r->gradients;
    }
    return LS_OK;
}

static ls_status sort_events(replay *r)
{
    const size_t count = (size_t)r->log.count, shards = (size_t)r->log.shards;
    const ls__replay_event **sorted = calloc(count + 1, sizeof *sorted);
    r->gradients = calloc(count + 1, sizeof *r->gradients);
    r->gradient_of = calloc(count + count * shards + 1, sizeof *r->gradient_of);
    if (sorted == NULL || r->gradients == NULL || r->gradient_of == NULL) {
        free(sorted);
        return no_memory();
    }
    for (size_t i = 0; i < count; i++) {
        sorted[i] = &r->log.events[i];
    }
    qsort(sorted, count, sizeof *sorted, by_push);
    const ls_status status = group_events(r, sorted);
    free(sorted);
    return status;
}

/* Events of a shard, in their order; and how many gradients read each of its versions. */
static ls_status fill_shard(replay *r, int index)
{
    shard *s = &r->shards[index];
    const size_t count = (size_t)r->log.count + 1;
    s->events = calloc(count, sizeof *s->events);
    s->kept = calloc(count, sizeof *s->kept);
    s->pushes = calloc(count, sizeof *s->pushes);
    if (s->events == NULL || s->kept == NULL || s->pushes == NULL) {
        return no_memory();
    }
    for (int64_t i = 0; i < r->log.count; i++) {
        const ls__replay_event *e = &r->log.events[i];
        if (e->kind != LS__REPLAY_PUSH) {
            return fail_event(r, e, "it is no push of a worker to a server");
        }
        if (e->shard != index) {
            continue;
        }
        s->events[s->count++] = i;
        if (e->read > r->log.count) {
            return fail_event(r, e, "it reads a version that no event makes");
        }
        s->kept[e->read].readers += r->gradients[r->gradient_of[i]].needed > 0;
    }
    return LS_OK;
}

/* ---- the norm -------------------------------------------------------------------------------- */

/* The other shards make the version of the same pushes, before or after. `pushes` are those of
 * shard `by`, and become the ranges of `index`. */
static const double *find_squares(replay *r, int index, int by, ls__server_push *pushes)
{
    const shard *of = &r->shards[by];
    for (int i = 0; i < of->pushed; i++) {
        pushes[i] = of->pushes[i];
        pushes[i].gradient = (const char *)pushes[i].head + r->shard_at[index];
    }
    ls__server_mean(&r->shards[index].stepper, pushes, of->pushed);
    return r->shards[index].stepper.squares;
}

static ls_status add_squares(void *arg, int by, double *squares)
{
    replay *r = arg;
    const size_t params = (size_t)r->d->param_count, pushed = (size_t)r->shards[by].pushed;
    double *sums = calloc(params, sizeof *sums);
    ls__server_push *pushes = calloc(pushed, sizeof *pushes);
    for (int s = 0; s < r->log.shards && sums != NULL && pushes != NULL; s++) {
        const double *own = s == by ? squares : find_squares(r, s, by, pushes);
        for (size_t p = 0; p < params; p++) {
            sums[p] += own[p];
        }
    }
    const bool made = sums != NULL && pushes != NULL;
    if (made) {
        memcpy(squares, sums, params * sizeof *sums);
    }
    free(sums);
    free(pushes);
    return made ? LS_OK : no_memory();
}

/* ---- memory ---------------------------------------------------------------------------------- */

static ls_status fill_stepper(replay *r, int index)
{
    ls__server_stepper *to = &r->shards[index].stepper;
    const size_t bytes = r->layout.shard_bytes[index] + LS__CACHE_LINE;
    *to =
        (ls__server_stepper){.layout = &r->layout,
                             .shard = index,
                             .optim = r->optim,
                             .optim_param = r->optim_param,
                             .parameters = calloc(1, bytes),
                             .gradient = calloc(1, bytes),
                             .operands = calloc((size_t)r->log.count + 1, sizeof *to->operands),
                             .places = calloc((size_t)r->layout.part_count + 1, sizeof *to->places),
                             .clip_norm = r->set.clip_norm,
                             .params = r->d->param_count,
                             .squares = calloc((size_t)r->d->param_count, sizeof *to->squares),
                             .add_squares = add_squares,
                             .arg = r};
    to->steps = calloc((size_t)r->layout.part_count + 1, sizeof *to->steps);
    if (to->parameters == NULL || to->gradient == NULL || to->operands == NULL ||
        to->places == NULL || to->steps == NULL || to->squares == NULL) {
        return no_memory();
    }
    ls__server_steps_begin(to);
    ls__server_pack(&r->layout, index, to->parameters, r->staging);
    return LS_OK;
}

static ls_status allocate_replay(replay *r)
{
    const size_t shards = (size_t)r->log.shards;
    r->shards = calloc(shards, sizeof *r->shards);
    r->shard_at = calloc(shards, sizeof *r->shard_at);
    r->optim_param = calloc((size_t)r->d->param_count, sizeof *r->optim_param);
    r->staging = calloc(1, r->layout.all_bytes + 1);
    if (r->shards == NULL || r->shard_at == NULL || r->optim_param == NULL || r->staging == NULL) {
        return no_memory();
    }
    r->gradient_bytes = ls__server_head_bytes(r->d);
    for (size_t s = 0; s < shards; s++) {
        r->shard_at[s] = r->gradient_bytes;
        r->gradient_bytes += r->layout.shard_bytes[s];
    }
    return LS_OK;
}

static void release_replay(replay *r)
{
    for (int64_t i = 0; r->gradients != NULL && i < r->gradient_count; i++) {
        free(r->gradients[i].memory);
    }
    for (int i = 0; r->shards != NULL && i < r->log.shards; i++) {
        shard *s = &r->shards[i];
        for (int64_t v = 0; s->kept != NULL && v <= r->log.count; v++) {
            free(s->kept[v].memory);
        }
        free(s->events);
        free(s->kept);
        free(s->pushes);
        free(s->stepper.parameters);
        free(s->stepper.gradient);
        free(s->stepper.operands);
        free(s->stepper.places);
        free(s->stepper.steps);
        free(s->stepper.squares);
    }
    free(r->gradients);
    free(r->gradient_of);
    free(r->shards);
    free(r->shard_at);
    free(r->optim_param);
    free(r->staging);
    ls__server_layout_fini(&r->layout);
    ls__replay_release(&r->log);
}

/* ---- versions -------------------------------------------------------------------------------- */

/* Keeps the newest version of a shard if a gradient will read it. */
static ls_status keep_version(const replay *r, int index)
{
    shard *s = &r->shards[index];
    kept *k = &s->kept[s->version];
    if (k->readers == 0) {
        return LS_OK;
    }
    k->memory = malloc(r->layout.shard_bytes[index] + 1);
    if (k->memory == NULL) {
        return no_memory();
    }
    memcpy(k->memory, s->stepper.parameters, r->layout.shard_bytes[index]);
    return LS_OK;
}

static const ls__replay_event *event_at(const replay *r, int64_t index)
{
    return &r->log.events[index];
}

/* Whether all versions that the gradient reads have been made. */
static bool can_compute(const replay *r, const gradient *g)
{
    for (int s = 0; s < r->log.shards; s++) {
        if (g->event[s] < 0 || event_at(r, g->event[s])->read > r->shards[s].version) {
            return false;
        }
    }
    return true;
}

/* ---- gradients ------------------------------------------------------------------------------- */

static replay *replay_of(ls__ddp *d)
{
    return d->server;
}

/* Parameters are those of the gradient that is computed. */
static ls_status on_pull(ls__ddp *d)
{
    (void)d;
    return LS_OK;
}

/* A gradient is kept when all of it is there. */
static ls_status on_begin(ls__ddp *d, const uint8_t *used)
{
    (void)d, (void)used;
    return LS_OK;
}

static ls_status on_ready(ls__ddp *d, int index)
{
    (void)d, (void)index;
    return LS_OK;
}

/* Keeps the gradient in place of sending it. */
static ls_status on_push(ls__ddp *d)
{
    replay *r = replay_of(d);
    gradient *g = r->computing;
    const ls__server_layout *l = &r->layout;
    ls__server_head *head = (void *)g->memory;
    const bool twice = head->kind != 0;
    *head = (ls__server_head){.kind = 1,
                              .weighted = d->weighted,
                              .weight = d->weighted ? ls__reducer_weights(d->reducer) : 1.0,
                              .step = g->step,
                              .lr = ls_optim_lr(r->optim)};
    ls__server_mark(d, head);
    ls__server_zero_absent(d, LS__SERVER_ALL_BUCKETS);
    for (int s = 0; s < l->shards; s++) {
        for (int b = 0; b < l->buckets; b++) {
            const ls__server_slice *slice = ls__server_slice_of(l, s, b);
            ls__elements_copy(g->memory + r->shard_at[s] + slice->at,
                              ls__server_grads(d, slice->region) + slice->from, slice->bytes);
        }
    }
    for (int i = 0; i < d->param_count; i++) {
        LS_TRY(ls__param_set_grad_present(d->params[i].value, false));
    }
    d->grads = GRADS_USABLE;
    return twice ? ls__fail(LS_ERR_STATE, "ls_server_replay: the step function has run two "
                                          "synchronising backwards; it computes one step")
                 : LS_OK;
}

static void on_abort(ls__ddp *d, const char *message)
{
    (void)d, (void)message;
}

static void on_free(ls__ddp *d)
{
    (void)d;
}

static const ls__ddp_remote recorder = {.pull = on_pull,
                                        .begin = on_begin,
                                        .ready = on_ready,
                                        .push = on_push,
                                        .abort = on_abort,
                                        .free = on_free};

/* The versions that it reads become the module's parameters. */
static ls_status load_versions(replay *r, const gradient *g)
{
    for (int s = 0; s < r->log.shards; s++) {
        kept *k = &r->shards[s].kept[event_at(r, g->event[s])->read];
        LS_ASSERT(k->memory != NULL && k->readers > 0);
        ls__server_unpack(&r->layout, s, k->memory, r->staging);
        if (--k->readers == 0) {
            free(k->memory);
            k->memory = NULL;
        }
    }
    return ls__server_copy_in(&r->layout, r->d, r->staging);
}

static ls_status compute_gradient(replay *r, gradient *g)
{
    LS_TRY(load_versions(r, g));
    g->memory = calloc(1, r->gradient_bytes);
    if (g->memory == NULL) {
        return no_memory();
    }
    r->computing = g;
    LS_TRY(r->set.step(r->set.arg, &r->d->base, g->worker, g->step));
    return ((ls__server_head *)(void *)g->memory)->kind != 0
               ? LS_OK
               : ls__fail(LS_ERR_STATE, "ls_server_replay: the step function has run no "
                                        "synchronising backward; it computes one step of a worker");
}

/* ---- events ---------------------------------------------------------------------------------- */

static ls_status compare_hash(replay *r, const shard *s, const ls__replay_event *e)
{
    const uint64_t hash = ls__server_hash(&r->layout, s->stepper.shard, s->stepper.parameters);
    r->compared++;
    return hash == e->hash
               ? LS_OK
               : ls__fail(LS_ERR_MISMATCH,
                          "ls_server_replay: %s, line %lld: version %lld of shard %d, made by the "
                          "push of worker %d in step %lld, has hash %016" PRIx64
                          ", and the log says %016" PRIx64
                          "; a line was moved or changed, or command, data or build are others "
                          "than in the run",
                          path_of(r), (long long)e->line, (long long)e->made, e->shard, e->worker,
                          (long long)e->step, hash, e->hash);
}

/* The last event of a version has its hash. */
static ls_status end_version(replay *r, shard *s, const ls__replay_event *e)
{
    LS_TRY(ls__server_step(&s->stepper, s->pushes, s->pushed));
    s->version = e->made;
    LS_TRY(compare_hash(r, s, e));
    LS_TRY(keep_version(r, e->shard));
    s->pushed = 0;
    return LS_OK;
}

static ls_status check_made(const replay *r, const shard *s, const ls__replay_event *e)
{
    if (e->read > s->version) {
        return fail_event(r, e, "it reads a version that is made after it");
    }
    if (s->pushed > 0 && e->worker <= s->pushes[s->pushed - 1].worker) {
        return fail_event(r, e, "pushes of one version stand in the order of their workers");
    }
    return e->made == s->version + 1
               ? LS_OK
               : fail_event(r, e, "it does not make the version that follows");
}

/* Takes the shard's next event; *moved: it could. */
static ls_status take_event(replay *r, shard *s, bool *moved)
{
    const int64_t index = s->events[s->next];
    const ls__replay_event *e = event_at(r, index);
    gradient *g = &r->gradients[r->gradient_of[index]];
    *moved = true;
    if (e->made == LS__REPLAY_NONE) {
        s->next++;
        return LS_OK;
    }
    LS_TRY(check_made(r, s, e));
    if (g->memory == NULL) {
        *moved = can_compute(r, g);
        if (!*moved) {
            return LS_OK;
        }
        LS_TRY(compute_gradient(r, g));
    }
    s->pushes[s->pushed++] =
        (ls__server_push){e->worker, (const void *)g->memory, g->memory + r->shard_at[e->shard]};
    if (e->hashed) {
        LS_TRY(end_version(r, s, e));
    }
    s->next++;
    return LS_OK;
}

/* Gradients of a version are taken by all of its events; those that no shard needs any more go. */
static void forget_taken(replay *r, const shard *s, int64_t from)
{
    for (int64_t i = from; i < s->next; i++) {
        gradient *g = &r->gradients[r->gradient_of[s->events[i]]];
        if (event_at(r, s->events[i])->made != LS__REPLAY_NONE && --g->needed == 0) {
            free(g->memory);
            g->memory = NULL;
        }
    }
}

/* As far as it can; *moved: at all. */
static ls_status advance_shard(replay *r, shard *s, bool *moved)
{
    int64_t begun = s->next; /* the first event of the version that is being made */
    bool more = true;
    begun -= s->pushed;
    while (more && s->next < s->count) {
        LS_TRY(take_event(r, s, &more));
        *moved = *moved || more;
        if (s->pushed == 0) {
            forget_taken(r, s, begun);
            begun = s->next;
        }
    }
    return LS_OK;
}

static ls_status replay_shards(replay *r)
{
    bool moved = true, left = true;
    while (left && moved) {
        moved = left = false;
        for (int s = 0; s < r->log.shards; s++) {
            LS_TRY(advance_shard(r, &r->shards[s], &moved));
            left = left || r->shards[s].next < r->shards[s].count;
        }
    }
    for (int i = 0; r->log.ended && i < r->log.shards; i++) { /* else a push may lack events */
        const shard *s = &r->shards[i];
        if (s->next < s->count) {
            return fail_event(r, event_at(r, s->events[s->next]),
                              "not all versions that its worker had read are made, or its push is "
                              "in some shards only");
        }
        if (s->pushed > 0) {
            return fail_event(r, event_at(r, s->events[s->count - 1]),
                              "the version that it makes has no hash");
        }
    }
    return LS_OK;
}

/* The newest version of all shards becomes the module's. */
static ls_status store_newest(replay *r)
{
    for (int s = 0; s < r->log.shards; s++) {
        ls__server_unpack(&r->layout, s, r->shards[s].stepper.parameters, r->staging);
        ls__server_steps_end(&r->shards[s].stepper);
    }
    return ls__server_copy_in(&r->layout, r->d, r->staging);
}

static ls_status replay_all(replay *r)
{
    LS_TRY(ls__server_layout_init(&r->layout, r->d, r->log.shards));
    LS_TRY(allocate_replay(r));
    LS_TRY(ls__server_find_params(r->d, r->optim, "ls_server_replay", r->optim_param));
    LS_TRY(ls__optim_begin(r->optim));
    LS_TRY(sort_events(r));
    LS_TRY(ls__server_copy_out(&r->layout, r->d, r->staging));
    for (int s = 0; s < r->log.shards; s++) {
        LS_TRY(fill_shard(r, s));
        LS_TRY(fill_stepper(r, s));
        LS_TRY(keep_version(r, s));
    }
    LS_TRY(replay_shards(r));
    return store_newest(r);
}

static ls_status check_replay_call(const ls_module *net, const ls_optim *optim,
                                   const ls_server_replay_options *given)
{
    if (optim == NULL || given->log == NULL || given->step == NULL) {
        return ls__fail(LS_ERR_INVALID, "ls_server_replay: the %s is NULL; give one",
                        optim == NULL         ? "optimizer"
                        : given->step == NULL ? "step function"
                                              : "log");
    }
    const bool wrapped = net != NULL && net->cls == &ls__ddp_class;
    const ls__ddp *d = wrapped ? (const ls__ddp *)net : NULL;
    if (d == NULL || ls_group_size(d->group) != 1 || d->remote != NULL) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_server_replay: the module is not a wrapper of one rank; give what "
                        "ls_ddp_new returned for a group of one, with the bucket_bytes that "
                        "ls_server_new had");
    }
    return LS_OK;
}

ls_status ls_server_replay(ls_module *net, ls_optim *optim, const ls_server_replay_options *options)
{
    LS__OPTIONS(ls_server_replay_options, given, options);
    ls_status status = check_replay_call(net, optim, &given);
    if (status < 0) {
        return ls__fail_at_site(status);
    }
    replay r = {.d = ls__ddp_of(net), .set = given, .optim = optim};
    r.env = r.d->env;
    LS_TRY(ls__replay_read(r.env, given.log, &r.log));
    r.d->remote = &recorder;
    r.d->server = &r;
    r.d->observer.elsewhere = true;
    status = replay_all(&r);
    r.d->remote = NULL;
    r.d->server = NULL;
    r.d->observer.elsewhere = false;
    if (status == LS_OK && given.versions != NULL) {
        *given.versions = r.compared;
    }
    if (status == LS_OK && given.ended != NULL) {
        *given.ended = r.log.ended;
    }
    release_replay(&r);
    return status;
}
