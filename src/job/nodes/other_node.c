/* SPDX-License-Identifier: Apache-2.0 */
/* A node that is not node 0: connects to the rendezvous, sends HELLO, and then passes the store
 * requests of its ranks on to node 0.
 *
 *     try the addresses in turn, every RETRY_MS ──▶ HELLO ──▶ WELCOME or REFUSED
 *
 * Node 0 may start later, so a refused TCP connection is a reason to try again; a wrong secret is
 * not.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/error.h"
#include "base/log.h"
#include "job/nodes/internal.h"
#include "job/nodes/secret.h"

#define RETRY_MS 200
#define TRY_MS 5000         /* for one address to answer */
#define WARN_MS 5000        /* between two warnings that node 0 is missing */
#define LINGER_MS 5000      /* beyond the deadline, for node 0 to report the missing nodes */
#define FAILED_PROOFS_MAX 3 /* a crowded listener also closes connections, but not that often */

/* ---- connecting ---------------------------------------------------------------------------- */

/* Closes the link, if there is one; gather_turn tries the next address after RETRY_MS. */
static void try_later(ls__nodes *n, const char *why)
{
    snprintf(n->why, sizeof n->why, "%s", why);
    ls__frames_close(&n->frames);
    n->tries++;
    n->retry_ns = ls__deadline_after(n->env, RETRY_MS);
}

/* The address for this try. */
static const char *target(const ls__nodes *n)
{
    return n->place.address[n->tries % n->place.count];
}

/* Whether this node has the secret. Without one from the user, node 0 on this host serves it. */
static bool fetch_secret(ls__nodes *n)
{
    if (n->has_secret) {
        return true;
    }
    /* For each try again: the node 0 of a former attempt, with another secret, may have
     * answered. */
    const ls_status status = ls__secret_exchange_fetch(n->env, n->place.port, n->secret);
    if (status < 0) {
        ls__nodes_fail(n, "%s", ls_error_message());
    } else if (status == LS_IN_PROGRESS) {
        try_later(n, "no node 0 of this user listens yet");
    }
    return status == LS_OK;
}

/* Starts a connection to the next address; link_turn continues it. */
static void try_connect(ls__nodes *n)
{
    char why[512];
    ls__link *link = NULL;
    if (!fetch_secret(n)) {
        return;
    }
    LS_ASSERT(n->state == LS__NODES_GATHERING && n->frames.link == NULL);
    const char *from = n->has_interface ? n->interface.address : NULL;
    ls_status status = ls__link_connect(&n->link_spec, target(n), n->place.port, from, &link);
    if (status == LS_ERR_UNSUPPORTED) {
        ls__nodes_fail(n, "%s", ls_error_message());
        return;
    }
    if (status < 0) {
        snprintf(why, sizeof why, "%s", ls_error_message());
        try_later(n, why);
        return;
    }
    ls__frames_init(&n->frames, n->env, link, n->poller);
    n->retry_ns = ls__deadline_after(n->env, TRY_MS);
    n->hello_sent = n->reached = false;
}

/* Only a failure that no retry can cure is reported here. */
ls_status ls__other_open(ls__nodes *n)
{
    n->warn_ns = ls__deadline_after(n->env, WARN_MS);
    try_connect(n);
    return n->state == LS__NODES_FAILED ? ls__fail(LS_ERR_AUTH, "%s", n->error) : LS_OK;
}

/* The world ranks of this host if another launcher assigned them; else an empty list. */
static json_t *list_of_ranks(const ls__nodes *n)
{
    json_t *list = json_array();
    for (int r = 0; r < n->ranks && n->given_world != 0; r++) {
        json_array_append_new(list, json_integer(n->world_rank[r]));
    }
    return list;
}

/* The address in HELLO is the local one of this connection: the route to node 0 is known to
 * work. */
static void send_hello(ls__nodes *n)
{
    char address[LS__ADDRESS_MAX] = "";
    (void)n->env->tcp_name(n->env, ls__link_fd(n->frames.link), false, address, sizeof address,
                           NULL);
    (void)ls__frames_send(&n->frames, LS__NODE_HELLO,
                          json_pack("{s:i s:s s:s s:i s:i s:i s:i s:o s:s s:s}", "protocol",
                                    LS__NODES_PROTOCOL, "version", n->version, "id", n->id, "nodes",
                                    n->wanted, "node", n->node, "ranks", n->ranks, "world",
                                    n->given_world, "world_rank", list_of_ranks(n), "host", n->host,
                                    "address", address));
    n->hello_sent = true;
}

/* ---- receiving ----------------------------------------------------------------------------- */

/* The store's upstream: a request of a rank of this host. */
static void send_upstream(void *arg, const uint8_t *frame, size_t bytes)
{
    ls__nodes *n = arg;
    if (!n->lost) {
        n->frames.broken = !ls__frames_put(&n->frames, frame, bytes) || n->frames.broken;
    }
}

/* The layout of the world. Its numbers come from another host and index arrays, so they are
 * checked. */
static void take_welcome(ls__nodes *n, const json_t *from)
{
    ls__nodes_world *w = &n->world;
    char job[20];
    if (json_unpack((json_t *)(uintptr_t)from, "{s:i s:i s:i s:i s:i s:i}", "attempt", &w->attempt,
                    "nodes", &w->nodes, "node", &w->node, "first_rank", &w->first_rank,
                    "world_size", &w->world_size, "master_port", &w->master_port) != 0 ||
        w->nodes < 2 || w->node < 1 || w->node >= w->nodes || w->first_rank < 0 ||
        w->world_size <= n->ranks ||
        (n->given_world == 0 && w->first_rank > w->world_size - n->ranks)) {
        ls__nodes_fail(n, "%s %s:%d: the WELCOME of node 0 is not one of this version",
                       n->place.from, n->place.host, n->place.port);
        return;
    }
    ls__node_text(from, "job", job, sizeof job);
    ls__node_text(from, "run_id", w->run_id, sizeof w->run_id);
    ls__node_text(from, "address", w->address, sizeof w->address);
    ls__node_text(from, "master", w->master, sizeof w->master);
    ls__node_text(from, "host", n->first_host, sizeof n->first_host);
    w->job = strtoull(job, NULL, 16);
    n->node = w->node;
    ls__store_server_set_upstream(n->store, send_upstream, n);
    n->state = LS__NODES_RUNNING;
}

/* "again": the job of node 0 is about to restart; this node waits for the next attempt. */
static void take_refusal(ls__nodes *n, const json_t *from)
{
    char text[768];
    ls__node_text(from, "text", text, sizeof text);
    if (json_is_true(json_object_get(from, "again"))) {
        try_later(n, text);
    } else {
        ls__nodes_fail(n, "refused by node 0 at %s:%d: %s", n->place.host, n->place.port, text);
    }
}

/* The job has ended on all hosts; node 0 has decided whether it starts again, and when. */
static void take_end(ls__nodes *n, const json_t *from)
{
    n->end.again = json_is_true(json_object_get(from, "again"));
    n->end.delay_ms = (int64_t)json_integer_value(json_object_get(from, "delay_ms"));
    ls__node_text(from, "text", n->end.text, sizeof n->end.text);
    n->has_end = true;
    n->state = LS__NODES_ENDED;
}

/* A frame of node 0. Unknown types are ignored. */
static void take_control(ls__nodes *n, int type, const json_t *object)
{
    switch (type) {
    case LS__NODE_WELCOME:
        if (n->state == LS__NODES_GATHERING) {
            take_welcome(n, object);
        }
        break;
    case LS__NODE_REFUSED:
        if (n->state == LS__NODES_GATHERING) {
            take_refusal(n, object);
        }
        break;
    case LS__NODE_STOP:
        n->stop = (int)json_integer_value(json_object_get(object, "signal"));
        break;
    case LS__NODE_CAUSE:
        n->has_cause = n->has_cause || ls__failure_unpack(object, &n->cause);
        break;
    case LS__NODE_END:
        take_end(n, object);
        break;
    default:
        break;
    }
}

/* A reply of the store, or a frame of the nodes' own. */
static void take_frame(ls__nodes *n, const ls__wire_header *header, const uint8_t *payload)
{
    if (header->type == LS__NODE_HEARTBEAT) {
        return;
    }
    if (header->type == LS__WIRE_REPLY_TYPE) {
        n->frames.broken = !ls__store_server_answer(n->store, header->id, payload, header->length);
        return;
    }
    json_t *object = ls__node_parse(payload, header->length);
    if (object != NULL) {
        take_control(n, header->type, object);
    }
    json_decref(object);
}

/* ---- losing node 0 ------------------------------------------------------------------------- */

/* The job has failed on this host; its ranks learn that from the board. */
static void lose_node_0(ls__nodes *n, const char *why)
{
    ls__failure_record f = {
        .kind = LS__FAILURE_LOST, .failed_rank = -1, .job_code = LS__NODES_LOST_CODE};
    LS_ASSERT(n->state == LS__NODES_RUNNING && !n->lost);
    n->lost = true;
    ls__frames_close(&n->frames);
    snprintf(
        f.text, sizeof f.text,
        "node 0 (host %s) is lost, seen by node %d (host %s): %s. Its launcher was killed, the "
        "host is down, or the network between the two is cut",
        n->first_host, n->node, n->host, why);
    ls__nodes_note(n, &f);
}

/* While nodes gather, this node tries again, unless the secret is wrong. A peer that rejects a
 * secret only closes the connection, hence the count of connections that ended during the
 * handshake. */
static void link_ended(ls__nodes *n, ls_status status, const char *why)
{
    char text[512];
    snprintf(text, sizeof text, "%s", why);
    if (n->state == LS__NODES_RUNNING) {
        lose_node_0(n, text);
        return;
    }
    n->failed_proofs += n->reached && !n->frames.open;
    if (n->state == LS__NODES_GATHERING &&
        (status == LS_ERR_AUTH || n->failed_proofs >= FAILED_PROOFS_MAX)) {
        ls__nodes_fail(n, "%s %s:%d: %s", n->place.from, n->place.host, n->place.port, text);
    } else if (n->state == LS__NODES_GATHERING) {
        try_later(n, text);
    }
}

/* Drives the link: handshake, HELLO, then frames. A frame may close the link (a refusal, the end),
 * so the link is checked again after each. */
static void link_turn(ls__nodes *n)
{
    ls__wire_header header;
    const uint8_t *payload = NULL;
    ls_status status = ls__frames_turn(&n->frames);
    n->reached = n->reached || (status == LS_IN_PROGRESS &&
                                n->env->tcp_connected(n->env, ls__link_fd(n->frames.link)) == 0);
    bool more = true;
    while (status == LS_OK && more && n->frames.link != NULL) {
        if (!n->hello_sent) {
            send_hello(n);
        }
        more = false;
        while (n->frames.link != NULL && ls__frames_next(&n->frames, &header, &payload)) {
            take_frame(n, &header, payload);
            more = true;
        }
        status = more && n->frames.link != NULL ? ls__frames_turn(&n->frames) : status;
    }
    if (status < 0) {
        link_ended(n, status, ls_error_message());
    }
}

/* ---- time ---------------------------------------------------------------------------------- */

/* Why node 0 has not been joined. No try may have failed yet: then a connection is open, over which
 * nothing has come. */
static const char *why_not_joined(const ls__nodes *n)
{
    if (n->hello_sent && n->frames.link != NULL) {
        return "it waits for other nodes";
    }
    return n->why[0] != '\0' ? n->why
                             : "a program listens there, but has not proved to be node 0 of a job "
                               "(another program may use the port)";
}

/* Ends the gathering at the deadline; connects; gives up an address that does not answer; warns. */
static void gather_turn(ls__nodes *n, uint64_t now)
{
    /* Once HELLO was sent, node 0 reports the missing nodes by name, so this node waits for
     * that. */
    const uint64_t more = n->hello_sent && n->frames.link != NULL ? LINGER_MS * 1000000ull : 0;
    if (now >= n->deadline_ns + more) {
        ls__nodes_fail(n,
                       "%s %s:%d: node 0 could not be joined within %lld s: %s. Start the same "
                       "command on node 0's host, or check whether the port is blocked between the "
                       "two hosts; LOCKSTEP_TIMEOUT gives more time",
                       n->place.from, n->place.host, n->place.port,
                       (long long)(n->timeout_ms / 1000), why_not_joined(n));
    } else if (n->frames.link == NULL && now >= n->retry_ns) {
        try_connect(n);
    } else if (n->frames.link != NULL && !n->hello_sent && now >= n->retry_ns) {
        char why[192];
        snprintf(why, sizeof why, "%s:%d does not answer (no connection within %d s)", target(n),
                 n->place.port, TRY_MS / 1000);
        try_later(n, why);
    }
    if (n->state == LS__NODES_GATHERING && now >= n->warn_ns) {
        LS__WARN("%s %s:%d: waiting for node 0: %s", n->place.from, n->place.host, n->place.port,
                 why_not_joined(n));
        n->warn_ns = ls__deadline_after(n->env, WARN_MS);
    }
}

/* Heartbeats begin with HELLO: node 0 drops a connection without HELLO by itself.
 * Silence of node 0 counts only once the job runs; before, gather_turn has its own deadline. */
void ls__other_turn(ls__nodes *n, uint64_t now)
{
    if (n->frames.link != NULL) {
        link_turn(n);
    }
    if (n->state == LS__NODES_GATHERING) {
        gather_turn(n, now);
    }
    if (n->frames.link == NULL || !n->hello_sent) {
        return;
    }
    ls__nodes_heartbeat(&n->frames, now);
    char why[96];
    if (n->state == LS__NODES_RUNNING && ls__nodes_silent(&n->frames, now, why, sizeof why)) {
        lose_node_0(n, why);
    }
}

/* The earliest time at which ls__other_turn has something to do without an event. */
uint64_t ls__other_deadline(const ls__nodes *n)
{
    uint64_t at = LS__NEVER;
    if (n->state == LS__NODES_GATHERING) {
        at = n->deadline_ns < n->warn_ns ? n->deadline_ns : n->warn_ns;
        at = n->hello_sent && at == n->deadline_ns ? at + LINGER_MS * 1000000ull : at;
        at = !n->hello_sent && n->retry_ns < at ? n->retry_ns : at;
    }
    if (n->frames.link != NULL && n->hello_sent) {
        const uint64_t next = ls__nodes_frames_deadline(&n->frames, n->state == LS__NODES_RUNNING);
        at = next < at ? next : at;
    }
    return at;
}
