/* SPDX-License-Identifier: Apache-2.0 */
/* A server takes the requests of its workers in the order in which they arrive, and answers pulls
 * as soon as their worker may read.
 *
 * Note [Copies of a version]
 * The newest version is stepped in place. A pull is answered from a copy, made when the first
 * worker asks for that version, and free again when all that receive it have it; so a version is
 * sent whole while the next is made. A worker receives one copy at a time, so one more than there
 * are workers suffice. */
#include <string.h>

#include "base/assert.h"
#include "base/options.h"
#include "comm/api/control.h"
#include "kernel/reduce/reduce.h"
#include "server/server.h"

/* ---- answers -------------------------------------------------------------------------------- */

static ls_status keep_work(ls__server_client *c, ls_status status)
{
    c->work_count += status < 0 ? 0 : 1;
    return status;
}

static ls_status send_to(ls__server *s, int worker, const void *from, size_t bytes, int tag,
                         const char *what)
{
    ls__server_client *c = &s->state->clients[worker];
    return keep_work(c, ls_send(s->group, from, (int64_t)bytes, LS_UINT8, worker, tag,
                                LS_OPTIONS(ls_collective_options, .tag = what),
                                &c->works[c->work_count]));
}

/* Waits for what the worker was receiving, or was sending. It has asked for something since, so all
 * of that was begun on its side. */
static ls_status end_works(ls__server_client *c)
{
    ls_status first = LS_OK;
    for (int i = 0; i < c->work_count; i++) {
        const ls_status status = ls_work_wait(c->works[i]);
        first = first < 0 ? first : status;
    }
    c->work_count = 0;
    if (c->copy != NULL) {
        c->copy->readers--;
        c->copy = NULL;
    }
    return first;
}

/* Note [Copies of a version] */
static ls__server_copy *copy_newest(const ls__server *s)
{
    ls__server_state *state = s->state;
    if (state->newest != NULL) {
        return state->newest;
    }
    int free = 0;
    while (state->copies[free].readers > 0) {
        free++;
        LS_ASSERT(free <= s->workers);
    }
    ls__server_copy *copy = &state->copies[free];
    ls__elements_copy(copy->parameters, state->stepper.parameters, s->layout.shard_bytes[s->shard]);
    if (s->shard == 0) {
        ls__elements_copy(copy->buffers, state->buffers, s->buffers_bytes);
    }
    copy->version = state->version;
    state->newest = copy;
    return copy;
}

static ls_status answer_pull(ls__server *s, int worker)
{
    ls__server_state *state = s->state;
    ls__server_client *c = &state->clients[worker];
    LS_ASSERT(c->copy == NULL && c->work_count == 0);
    c->waits = false;
    c->copy = copy_newest(s);
    c->copy->readers++;
    c->answer = (ls__server_version){.version = c->copy->version, .stop = state->stop};
    LS_TRY(send_to(s, worker, &c->answer, sizeof c->answer, LS__SERVER_TAG_VERSION, "version"));
    for (int b = 0; b < s->layout.buckets; b++) {
        const ls__server_slice *slice = ls__server_slice_of(&s->layout, s->shard, b);
        LS_TRY(send_to(s, worker, c->copy->parameters + slice->at, slice->bytes,
                       LS__SERVER_TAG_PARAMETERS, "parameters"));
    }
    return s->shard == 0 && s->buffers_bytes > 0
               ? send_to(s, worker, c->copy->buffers, s->buffers_bytes, LS__SERVER_TAG_PARAMETERS,
                         "buffers")
               : LS_OK;
}

static ls_status answer_pulls(ls__server *s)
{
    for (int w = 0; w < s->workers; w++) {
        if (s->state->clients[w].waits && ls__server_may_read(s, w)) {
            LS_TRY(answer_pull(s, w));
        }
    }
    return LS_OK;
}

/* ---- requests ------------------------------------------------------------------------------- */

static ls_status receive_from(ls__server *s, int worker, void *to, size_t bytes, const char *what)
{
    ls__server_client *c = &s->state->clients[worker];
    const ls_collective_options options = {
        .size = sizeof options, .tag = what, .timeout_ms = LS__SERVER_NO_DEADLINE_MS};
    return keep_work(c, ls__serve_recv(s->group, to, bytes, worker, LS__SERVER_TAG_GRADIENT,
                                       &options, &c->works[c->work_count]));
}

/* Begins to receive what follows a push: the worker sends each bucket when it is full. */
static ls_status receive_push(ls__server *s, int worker)
{
    const ls__server_client *c = &s->state->clients[worker];
    for (int b = 0; b < s->layout.buckets; b++) {
        const ls__server_slice *slice = ls__server_slice_of(&s->layout, s->shard, b);
        LS_TRY(receive_from(s, worker, c->gradient + slice->at, slice->bytes, "gradient"));
    }
    return s->shard == 0 && s->buffers_bytes > 0
               ? receive_from(s, worker, c->buffers, s->buffers_bytes, "buffers")
               : LS_OK;
}

static ls_status take_request(ls__server *s, const ls__server_head *head, int from)
{
    ls__server_state *state = s->state;
    if (head->kind == LS__SERVER_EVENT) {
        return ls__server_log(s, &head->event);
    }
    if (head->kind == LS__SERVER_ENDED) {
        state->ended++;
        return LS_OK;
    }
    ls__server_client *c = &state->clients[from];
    LS_TRY(end_works(c));
    switch (head->kind) {
    case LS__SERVER_PULL:
        c->waits = true;
        break;
    case LS__SERVER_PUSH:
        LS_ASSERT(!c->pushed); /* it pulls in between, and waits */
        return receive_push(s, from);
    case LS__SERVER_PUSHED:
        memcpy(c->head, head, s->head_bytes);
        LS_TRY(ls__server_pushed(s, from));
        break;
    default:
        LS_ASSERT(head->kind == LS__SERVER_JOIN && !c->joined);
        c->joined = true;
        LS_TRY(ls__server_joined(s));
        break;
    }
    return answer_pulls(s);
}

/* ---- the loop ------------------------------------------------------------------------------- */

/* Lines of other servers come to the one that writes the log. */
static bool is_over(const ls__server *s)
{
    int joined = 0;
    for (int w = 0; w < s->workers; w++) {
        joined += s->state->clients[w].joined;
    }
    const bool writes = s->shard == 0 && s->set.log != NULL;
    return joined == s->workers && (!writes || s->state->ended == s->set.servers - 1);
}

static ls_status serve_requests(ls__server *s, ls__server_head *head)
{
    while (!is_over(s)) {
        int from = 0;
        LS_TRY(ls__serve_recv_any(s->group, head, s->head_bytes, LS__SERVER_TAG_REQUEST,
                                  LS_OPTIONS(ls_collective_options, .tag = "request"), &from));
        LS_TRY(take_request(s, head, from));
    }
    if (s->shard > 0 && s->set.log != NULL) {
        *head = (ls__server_head){.kind = LS__SERVER_ENDED};
        return ls_send(s->group, head, (int64_t)s->head_bytes, LS_UINT8, ls__server_rank(s, 0),
                       LS__SERVER_TAG_REQUEST, LS_OPTIONS(ls_collective_options, .tag = "log"),
                       NULL);
    }
    return LS_OK;
}

/* Every send and receive has ended when it returns. */
ls_status ls__server_serve(ls__server *s)
{
    ls__server_head *head = s->env->allocate(s->env, s->head_bytes);
    if (head == NULL) {
        return ls__server_give_up(s, ls__fail(LS_ERR_MEMORY, "server: no memory for a request"));
    }
    ls_status status = serve_requests(s, head);
    s->env->release(s->env, head, s->head_bytes);
    if (status < 0) {
        char message[LS__MESSAGE_MAX];
        memcpy(message, ls_error_message(), sizeof message);
        (void)ls_group_abort(s->group, message);
        ls__replay_leave(&s->state->log);
        for (int w = 0; w < s->workers; w++) {
            (void)end_works(&s->state->clients[w]);
        }
        status = ls__fail_again(status, message);
    }
    return status;
}
