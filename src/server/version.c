/* SPDX-License-Identifier: Apache-2.0 */
/* Versions: which pushes make one.
 *
 *     sync     the push of every worker that has not joined, but for the slowest `backup`; added in
 *              the order of the ranks and divided once, as an all-reduce of the workers does it
 *     async    every push
 *     stale    every push; a worker that is `staleness` steps ahead of the slowest waits
 *
 * Each server decides for its shard. In a synchronous run without backups all come to the same;
 * otherwise the shards of one push may make versions of different numbers. */
#include <string.h>

#include "base/assert.h"
#include "base/options.h"
#include "kernel/reduce/reduce.h"
#include "server/server.h"

/* ---- the log -------------------------------------------------------------------------------- */

ls_status ls__server_log(ls__server *s, const ls__replay_event *event)
{
    if (s->shard == 0) {
        return ls__replay_write(&s->state->log, event);
    }
    ls__server_head *head = s->env->allocate(s->env, s->head_bytes);
    if (head == NULL) {
        return ls__fail(LS_ERR_MEMORY, "server: no memory for a line of the log");
    }
    memset(head, 0, s->head_bytes);
    head->kind = LS__SERVER_EVENT;
    head->event = *event;
    const ls_status status =
        ls_send(s->group, head, (int64_t)s->head_bytes, LS_UINT8, ls__server_rank(s, 0),
                LS__SERVER_TAG_REQUEST, LS_OPTIONS(ls_collective_options, .tag = "log"), NULL);
    s->env->release(s->env, head, s->head_bytes);
    return status;
}

static ls_status log_push(ls__server *s, int worker, int64_t made, bool last)
{
    const ls__server_state *state = s->state;
    const ls__server_head *head = state->clients[worker].head;
    if (s->set.log == NULL) {
        return LS_OK;
    }
    ls__replay_event event = {.kind = LS__REPLAY_PUSH,
                              .worker = worker,
                              .step = head->step,
                              .read = head->read,
                              .made = made,
                              .shard = s->shard,
                              .hashed = last};
    event.hash = last ? ls__server_hash(&s->layout, s->shard, state->stepper.parameters) : 0;
    return ls__server_log(s, &event);
}

/* ---- the norm ------------------------------------------------------------------------------- */

static ls_status exchange_squares(const ls__server *s, int shard, const double *own, double *other,
                                  int *count)
{
    const ls_collective_options options = {.size = sizeof options, .tag = "squares"};
    const int peer = ls__server_rank(s, shard);
    ls_work **works = s->state->exchange;
    LS_TRY(ls_send(s->group, own, s->d->param_count, LS_FLOAT64, peer, LS__SERVER_TAG_SQUARES,
                   &options, &works[*count]));
    ++*count;
    LS_TRY(ls_recv(s->group, other, s->d->param_count, LS_FLOAT64, peer, LS__SERVER_TAG_SQUARES,
                   &options, &works[*count]));
    ++*count;
    return LS_OK;
}

/* All servers make a version of the same pushes, so each waits for the others' squares. */
ls_status ls__server_add_squares(void *server, int shard, double *squares)
{
    const ls__server *s = server;
    const int params = s->d->param_count, servers = s->set.servers;
    ls_status first = LS_OK;
    int count = 0;
    for (int i = 0; i < servers && first == LS_OK; i++) {
        double *at = s->state->squares + (size_t)i * (size_t)params;
        if (i == shard) {
            memcpy(at, squares, (size_t)params * sizeof *at);
        } else {
            first = exchange_squares(s, i, squares, at, &count);
        }
    }
    for (int i = 0; i < count; i++) {
        const ls_status status = ls_work_wait(s->state->exchange[i]);
        first = first < 0 ? first : status;
    }
    for (int p = 0; p < params; p++) {
        squares[p] = 0.0;
        for (int i = 0; i < servers; i++) {
            squares[p] += s->state->squares[(size_t)i * (size_t)params + (size_t)p];
        }
    }
    return first;
}

/* ---- versions ------------------------------------------------------------------------------- */

/* Buffers follow the lowest worker that has data, as in ls_ddp_new. */
static void take_buffers(const ls__server *s, int worker)
{
    ls__server_state *state = s->state;
    int giver = 0;
    while (giver < worker && state->clients[giver].joined && !state->clients[giver].pushed) {
        giver++;
    }
    if (s->shard == 0 && s->buffers_bytes > 0 && giver == worker) {
        ls__elements_copy(state->buffers, state->clients[worker].buffers, s->buffers_bytes);
        state->newest = NULL; /* a push that is dropped makes no version, but its buffers count */
    }
}

static void count_push(ls__server *s, const ls__server_head *head)
{
    ls_server_stats *stats = &s->state->stats;
    const int64_t stale = s->state->version - head->read;
    s->state->stop = head->stop > s->state->stop ? head->stop : s->state->stop;
    stats->applied++;
    stats->staleness_max = stale > stats->staleness_max ? stale : stats->staleness_max;
    s->state->staleness += (double)stale;
}

/* Of the first `count` of state->pushes. */
static ls_status make_version(ls__server *s, int count)
{
    ls__server_state *state = s->state;
    LS_TRY(ls__server_step(&state->stepper, state->pushes, count));
    for (int i = 0; i < count; i++) {
        count_push(s, state->pushes[i].head);
        take_buffers(s, state->pushes[i].worker);
    }
    state->version++;
    state->newest = NULL;
    for (int i = 0; i < count; i++) {
        LS_TRY(log_push(s, state->pushes[i].worker, state->version, i == count - 1));
        state->clients[state->pushes[i].worker].pushed = false;
    }
    return LS_OK;
}

/* ---- when ----------------------------------------------------------------------------------- */

static ls__server_push push_of(const ls__server *s, int worker)
{
    const ls__server_client *c = &s->state->clients[worker];
    return (ls__server_push){worker, c->head, c->gradient};
}

/* Those that a version would wait for. */
static int count_missing(const ls__server *s)
{
    int missing = 0;
    for (int w = 0; w < s->workers; w++) {
        missing += !s->state->clients[w].joined && !s->state->clients[w].pushed;
    }
    return missing;
}

static ls_status step_if_complete(ls__server *s)
{
    int count = 0;
    for (int w = 0; w < s->workers; w++) {
        if (s->state->clients[w].pushed) {
            s->state->pushes[count++] = push_of(s, w);
        }
    }
    return count > 0 && count_missing(s) <= s->set.backup ? make_version(s, count) : LS_OK;
}

static ls_status drop_push(ls__server *s, int worker)
{
    s->state->stats.dropped++;
    take_buffers(s, worker);
    return log_push(s, worker, LS__REPLAY_NONE, false);
}

static ls_status pushed_sync(ls__server *s, int worker)
{
    ls__server_client *c = &s->state->clients[worker];
    if (c->head->read != s->state->version) { /* its step is over */
        LS_ASSERT(s->set.backup > 0 && c->head->read < s->state->version);
        return drop_push(s, worker);
    }
    c->pushed = true;
    return step_if_complete(s);
}

/* A push of weight 0 has no data, and counts as a step of its worker. */
static ls_status pushed_alone(ls__server *s, int worker)
{
    const ls__server_head *head = s->state->clients[worker].head;
    if (head->weighted && head->weight == 0.0) {
        return drop_push(s, worker);
    }
    s->state->pushes[0] = push_of(s, worker);
    return make_version(s, 1);
}

ls_status ls__server_pushed(ls__server *s, int worker)
{
    s->state->clients[worker].clock++;
    return s->set.mode == LS_SERVER_SYNC ? pushed_sync(s, worker) : pushed_alone(s, worker);
}

ls_status ls__server_joined(ls__server *s)
{
    return s->set.mode == LS_SERVER_SYNC ? step_if_complete(s) : LS_OK;
}

static int64_t slowest_clock(const ls__server *s)
{
    int64_t slowest = INT64_MAX;
    for (int w = 0; w < s->workers; w++) {
        const ls__server_client *c = &s->state->clients[w];
        slowest = !c->joined && c->clock < slowest ? c->clock : slowest;
    }
    return slowest;
}

bool ls__server_may_read(const ls__server *s, int worker)
{
    const ls__server_client *c = &s->state->clients[worker];
    switch (s->set.mode) {
    case LS_SERVER_SYNC:
        return !c->pushed;
    case LS_SERVER_STALE:
        return c->clock - slowest_clock(s) <= s->set.staleness;
    case LS_SERVER_ASYNC:
        break;
    }
    return true;
}
