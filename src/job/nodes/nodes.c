/* SPDX-License-Identifier: Apache-2.0 */
/* The nodes of a job, as far as both sides share it: life, the owner's loop, heartbeats, failure
 * records, and their form as JSON. The two sides are first_node.c with gather.c (node 0) and
 * other_node.c.
 */
#include "job/nodes/internal.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/error.h"
#include "base/json.h"

/* ---- life ---------------------------------------------------------------------------------- */

/* Copies the specification, so that the caller may free its own after the call. */
static void init_from(ls__nodes *n, const ls__nodes_spec *spec)
{
    LS_ASSERT(spec->ranks >= 1 && spec->ranks <= LS__BOARD_RANKS_MAX && spec->place->count > 0);
    n->env = spec->env;
    n->store = spec->store;
    n->first = spec->first;
    n->wanted = spec->nodes;
    n->node = spec->first ? 0 : spec->node;
    n->ranks = spec->ranks;
    n->given_world = spec->world_size;
    n->place = *spec->place;
    n->timeout_ms = spec->timeout_ms;
    n->deadline_ns =
        spec->deadline_ns != 0 ? spec->deadline_ns : ls__deadline_after(n->env, spec->timeout_ms);
    for (int r = 0; r < spec->ranks && spec->world_rank != NULL; r++) {
        n->world_rank[r] = spec->world_rank[r];
    }
    snprintf(n->id, sizeof n->id, "%s", spec->id);
    snprintf(n->host, sizeof n->host, "%s", spec->host);
    snprintf(n->version, sizeof n->version, "%s", spec->version);
    snprintf(n->world.run_id, sizeof n->world.run_id, "%s", spec->run_id);
    n->world.attempt = spec->attempt;
    n->link_spec =
        (ls__link_spec){.env = n->env, .secret = n->secret, .mode = spec->mode, .purpose = "store"};
    n->has_secret = spec->secret != NULL;
    if (n->has_secret) {
        memcpy(n->secret, spec->secret, sizeof n->secret);
    }
    ls__list_init(&n->peers);
    n->poller = n->exchange_fd = -1;
}

/* Without a secret the kernel identifies the processes of this user, but only those on this
 * host. */
static ls_status check_secret(const ls__nodes *n)
{
    if (n->has_secret || ls__place_is_loopback(&n->place)) {
        /* Report a missing TLS now, not at the first connection. */
        return ls__link_available(n->link_spec.mode);
    }
    return ls__fail(
        LS_ERR_AUTH,
        "%s %s:%d leaves this host, and without a secret anybody there could join: make "
        "one with `lockstep secret FILE`, copy it to every node, and give all of them "
        "--secret-file FILE (LOCKSTEP_SECRET_FILE=FILE)",
        n->place.from, n->place.host, n->place.port);
}

/* The steps of opening, each of which ls__nodes_close undoes. */
static ls_status open_parts(ls__nodes *n)
{
    n->poller = n->env->poller_open(n->env);
    if (n->poller < 0) {
        return ls__fail(LS_ERR_SYSTEM, "a poller for the job's nodes: %s", strerror(-n->poller));
    }
    LS_TRY(check_secret(n));
    LS_TRY(ls__interface_wanted(n->env, &n->has_interface, &n->interface));
    return n->first ? ls__first_open(n) : ls__other_open(n);
}

/* Fails at once if nothing can succeed later: no poller, no secret, no such interface, no
 * listener. */
ls_status ls__nodes_open(const ls__nodes_spec *spec, ls__nodes **out)
{
    const ls__env *env = spec->env;
    ls__nodes *n = env->allocate(env, sizeof *n);
    if (n == NULL) {
        return ls__fail(LS_ERR_MEMORY, "the job's nodes");
    }
    memset(n, 0, sizeof *n);
    init_from(n, spec);
    const ls_status status = open_parts(n);
    if (status < 0) {
        ls__nodes_close(n);
        return status;
    }
    *out = n;
    return LS_OK;
}

/* Serves both sides, as the parts of the other side are empty. The secret is erased. */
void ls__nodes_close(ls__nodes *n)
{
    if (n == NULL) {
        return;
    }
    ls__first_close(n);
    ls__frames_close(&n->frames);
    if (n->poller >= 0) {
        n->env->close(n->env, n->poller);
    }
    explicit_bzero(n->secret, sizeof n->secret);
    n->env->release(n->env, n, sizeof *n);
}

void ls__nodes_fail(ls__nodes *n, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(n->error, sizeof n->error, format, arguments);
    va_end(arguments);
    LS_ASSERT(n->state == LS__NODES_GATHERING || n->state == LS__NODES_FAILED);
    n->state = LS__NODES_FAILED;
}

/* ---- the owner's loop ---------------------------------------------------------------------- */

int ls__nodes_fd(const ls__nodes *n)
{
    return n->poller;
}

uint64_t ls__nodes_deadline(const ls__nodes *n)
{
    return n->first ? ls__first_deadline(n) : ls__other_deadline(n);
}

/* Consumes the poller's events. The turn then visits every link, as there are few. */
static void drain(ls__nodes *n)
{
    ls__env_ready ready[16];
    int received;
    do {
        received = n->env->poller_wait(n->env, n->poller, ready, 16, n->env->now_ns(n->env));
    } while (received == 16);
}

/* Ends with a flush, so that the answers of this turn leave before the owner polls again. */
void ls__nodes_turn(ls__nodes *n)
{
    drain(n);
    uint64_t now = n->env->now_ns(n->env);
    if (n->first) {
        ls__first_turn(n, now);
    } else {
        ls__other_turn(n, now);
    }
    ls__nodes_flush(n);
}

/* The owner calls it before it polls: what its own calls have queued then leaves without delay. */
void ls__nodes_flush(ls__nodes *n)
{
    if (n->first) {
        ls__first_flush(n);
    } else if (n->frames.link != NULL && n->frames.open) {
        ls__frames_write(&n->frames);
    }
}

/* ---- results ------------------------------------------------------------------------------- */

ls__nodes_state ls__nodes_state_of(const ls__nodes *n)
{
    return n->state;
}

const char *ls__nodes_error(const ls__nodes *n)
{
    return n->error;
}

const ls__nodes_world *ls__nodes_world_of(const ls__nodes *n)
{
    return &n->world;
}

const uint8_t *ls__nodes_secret(const ls__nodes *n)
{
    return n->secret;
}

/* All links have the same protection; any of them answers for all. */
const char *ls__nodes_protection(const ls__nodes *n)
{
    LS__LIST_EACH (at, &n->peers) {
        const ls__nodes_peer *p = LS__LIST_ITEM(at, ls__nodes_peer, link);
        if (p->known && p->frames.link != NULL) {
            return ls__link_protection(p->frames.link);
        }
    }
    return n->frames.link != NULL ? ls__link_protection(n->frames.link) : "";
}

/* A later request replaces one that the owner has not taken yet. */
int ls__nodes_take_stop(ls__nodes *n)
{
    int stop = n->stop;
    n->stop = 0;
    return stop;
}

const ls__failure_record *ls__nodes_failure(const ls__nodes *n)
{
    return n->has_failure ? &n->failure : NULL;
}

const ls__failure_record *ls__nodes_cause(const ls__nodes *n)
{
    return n->has_cause ? &n->cause : NULL;
}

const ls__nodes_end *ls__nodes_end_of(const ls__nodes *n)
{
    return n->has_end ? &n->end : NULL;
}

/* ---- heartbeats ---------------------------------------------------------------------------- */

#define NS_PER_MS 1000000ull

/* Any frame shows that this side is alive, hence the time of the last one sent. */
void ls__nodes_heartbeat(ls__frames *f, uint64_t now)
{
    if (now >= f->sent_ns + LS__NODES_HEARTBEAT_MS * NS_PER_MS) {
        (void)ls__frames_send(f, LS__NODE_HEARTBEAT, NULL);
    }
}

/* Anything that arrives counts as a sign of life, so a busy link needs no heartbeats. */
bool ls__nodes_silent(const ls__frames *f, uint64_t now, char *why, size_t bytes)
{
    const uint64_t silent_ns = now > f->received_ns ? now - f->received_ns : 0;
    if (silent_ns <= LS__NODES_SILENT_MS * NS_PER_MS) {
        return false;
    }
    snprintf(why, bytes, "no heartbeat arrived from it for %.1f s", (double)silent_ns * 1e-9);
    return true;
}

/* One millisecond later than the limit, so that the turn at the deadline finds the link silent. */
uint64_t ls__nodes_frames_deadline(const ls__frames *f, bool watched)
{
    const uint64_t send_ns = f->sent_ns + LS__NODES_HEARTBEAT_MS * NS_PER_MS;
    const uint64_t lost_ns = f->received_ns + (LS__NODES_SILENT_MS + 1) * NS_PER_MS;
    return watched && lost_ns < send_ns ? lost_ns : send_ns;
}

/* ---- reporting ----------------------------------------------------------------------------- */

/* The order of the kinds decides (job/failure.h). Of two equal ones the earlier stays. */
void ls__nodes_note(ls__nodes *n, const ls__failure_record *f)
{
    if (!n->has_failure || f->kind < n->failure.kind) {
        n->failure = *f;
        n->has_failure = true;
    }
}

/* From node 0 to all; from another node to node 0, which passes it on. */
void ls__nodes_stop(ls__nodes *n, int signal)
{
    if (n->first) {
        ls__first_send_all(n, NULL, LS__NODE_STOP, json_pack("{s:i}", "signal", signal));
    } else {
        (void)ls__frames_send(&n->frames, LS__NODE_STOP, json_pack("{s:i}", "signal", signal));
    }
}

/* Node 0 keeps its own failure records (root_cause.c), so there the call does nothing. */
void ls__nodes_report(ls__nodes *n, const ls__failure_record *f)
{
    if (!n->first) {
        (void)ls__frames_send(&n->frames, LS__NODE_FAILURE, ls__failure_pack(f));
    }
}

/* Node 0 learns the end of its own ranks without a frame. */
void ls__nodes_done(ls__nodes *n, const char *tail)
{
    if (!n->first) {
        (void)ls__frames_send(&n->frames, LS__NODE_DONE, json_pack("{s:s}", "tail", tail));
    }
}

/* ---- JSON ---------------------------------------------------------------------------------- */

/* WELCOME, the largest, has a value or two for each host and rank of the job. */
static const ls__json_limit frame_limit = {LS__WIRE_PAYLOAD_MAX, (size_t)1 << 18, (size_t)1 << 16,
                                           8};

/* NULL for everything that is not an object: the bytes come from another host. */
json_t *ls__node_parse(const uint8_t *payload, size_t bytes)
{
    json_t *object = NULL;
    (void)ls__json_read("nodes: a frame", (const char *)payload, bytes, 0, &frame_limit, &object);
    if (object != NULL && !json_is_object(object)) {
        json_decref(object);
        return NULL;
    }
    return object;
}

/* Cut at the end of `out`: texts of other hosts have any length. */
void ls__node_text(const json_t *from, const char *key, char *out, size_t bytes)
{
    const char *text = json_string_value(json_object_get(from, key));
    snprintf(out, bytes, "%s", text != NULL ? text : "");
}

/* A text as JSON, which must be UTF-8; the output of a program may be any bytes. */
static json_t *loose_text(const char *text)
{
    json_t *string = json_string(text);
    return string != NULL ? string : json_string("(its text is not UTF-8)");
}

/* The record of a failure as it travels between nodes; ls__failure_unpack reads it. */
json_t *ls__failure_pack(const ls__failure_record *f)
{
    return json_pack("{s:i s:i s:i s:i s:i s:i s:i s:b s:b s:b s:I s:I s:o}", "kind", (int)f->kind,
                     "failed_rank", f->failed_rank, "pid", f->pid, "signal", f->signal, "code",
                     f->code, "job_code", f->job_code, "status", f->status, "final", f->final,
                     "stop", f->stop, "before_init", f->before_init, "step", (json_int_t)f->step,
                     "updates", (json_int_t)f->updates, "text", loose_text(f->text));
}

/* The kind is checked, because it is compared; a record without a text explains nothing. */
bool ls__failure_unpack(const json_t *from, ls__failure_record *out)
{
    int kind = 0, final = 0, stop = 0, before_init = 0;
    json_int_t step = 0, updates = 0;
    memset(out, 0, sizeof *out);
    if (json_unpack((json_t *)(uintptr_t)from, "{s:i s:i s:i s:i s:i s:i s:i s:b s:b s:b s:I s:I}",
                    "kind", &kind, "failed_rank", &out->failed_rank, "pid", &out->pid, "signal",
                    &out->signal, "code", &out->code, "job_code", &out->job_code, "status",
                    &out->status, "final", &final, "stop", &stop, "before_init", &before_init,
                    "step", &step, "updates", &updates) != 0 ||
        kind < 0 || kind >= LS__FAILURE_NONE) {
        return false;
    }
    out->kind = (ls__failure_kind)kind;
    out->final = final != 0;
    out->stop = stop != 0;
    out->before_init = before_init != 0;
    out->step = (uint64_t)step;
    out->updates = (uint64_t)updates;
    ls__node_text(from, "text", out->text, sizeof out->text);
    return out->text[0] != '\0';
}
