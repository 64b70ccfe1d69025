/* SPDX-License-Identifier: Apache-2.0 */
/* Node 0: its listeners, the other nodes, and the failures that they report.
 *
 *     connect ──secret──▶ peer ──HELLO──▶ known ──all joined──▶ WELCOME … DONE ──▶ END
 *                            └─ no HELLO in 5 s, or refused ─▶ freed
 *
 * A peer that is lost while nodes gather is freed and may connect again; later its loss is a
 * failure of the job.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/error.h"
#include "base/log.h"
#include "job/name_folder.h"
#include "job/nodes/internal.h"
#include "job/nodes/secret.h"

#define HELLO_MS 5000  /* for a peer's HELLO after its connection */
#define FINISH_MS 2000 /* for the others to receive END and hang up */
#define WARN_MS 5000   /* between two warnings about missing nodes */

/* ---- opening ------------------------------------------------------------------------------- */

/* The rendezvous is an address of another host. The message lists the addresses it resolves to. */
static ls_status not_this_host(const ls__nodes *n)
{
    char addresses[256] = "";
    size_t used = 0;
    for (int i = 0; i < n->place.count && used < sizeof addresses; i++) {
        const int length = snprintf(addresses + used, sizeof addresses - used, "%s%s",
                                    i > 0 ? ", " : "", n->place.address[i]);
        used += length > 0 ? (size_t)length : 0;
    }
    return ls__fail(LS_ERR_INVALID,
                    "%s %s:%d is %s, which is not an address of this host (%s), and node 0 listens "
                    "there: run node 0 on that host, or give an address of this one",
                    n->place.from, n->place.host, n->place.port, addresses, n->host);
}

static ls_status open_listener(ls__nodes *n, const char *address)
{
    ls__listener *listener = NULL;
    LS_TRY(ls__listener_open(&n->link_spec, address, n->place.port, &listener));
    n->listener[n->listeners++] = listener;
    (void)n->env->poller_add(n->env, n->poller, ls__listener_fd(listener), 0);
    return LS_OK;
}

/* Without a secret from the user, node 0 makes one and serves it to processes of this user. The
 * socket is named by the port, so a second job with this port is detected here. */
static ls_status open_exchange(ls__nodes *n)
{
    int error = n->env->random_bytes(n->env, n->secret, sizeof n->secret);
    n->exchange_fd = error < 0 ? error : ls__secret_exchange_open(n->env, n->place.port);
    if (n->exchange_fd == -EPERM) {
        return ls__name_folder_fail(n->env, "the job's secret");
    }
    if (n->exchange_fd < 0) {
        char owner[64];
        ls__secret_exchange_owner(n->env, n->place.port, owner, sizeof owner);
        return ls__fail(
            LS_ERR_SYSTEM,
            "%s %s:%d: another job of this user uses this port%s (%s): give each job a port of "
            "its own",
            n->place.from, n->place.host, n->place.port, owner, strerror(-n->exchange_fd));
    }
    (void)n->env->poller_add(n->env, n->poller, n->exchange_fd, 0);
    return LS_OK;
}

/* Listens on the addresses of the rendezvous that belong to this host; a name may resolve to
 * several. Without a secret from the user only the loopback is safe, and other addresses are left
 * out. */
ls_status ls__first_open(ls__nodes *n)
{
    char own[LS__NODES_LISTENERS][LS__ADDRESS_MAX];
    int count = ls__place_own(n->env, &n->place, own, LS__NODES_LISTENERS);
    if (count == 0) {
        return not_this_host(n);
    }
    if (!n->has_secret) {
        LS_TRY(open_exchange(n));
    }
    for (int i = 0; i < count; i++) {
        if (!n->has_secret && !ls__address_is_loopback(own[i])) {
            continue;
        }
        const ls_status status = open_listener(n, own[i]);
        if (status < 0) {
            return ls__fail_within(status, "%s %s:%d", n->place.from, n->place.host, n->place.port);
        }
        if (n->own[0] == '\0' || ls__address_is_loopback(n->own)) {
            memcpy(n->own, own[i], sizeof n->own);
        }
    }
    if (n->has_interface) {
        snprintf(n->own, sizeof n->own, "%s", n->interface.address);
    }
    n->warn_ns = ls__deadline_after(n->env, WARN_MS);
    ls__gather_try(n);
    return LS_OK;
}

/* Removes a peer; requests of its ranks that wait in the store end with it. */
static void peer_free(ls__nodes *n, ls__nodes_peer *p)
{
    ls__list_remove(&p->link);
    ls__store_peer_free(p->store_peer);
    ls__frames_close(&p->frames);
    n->env->release(n->env, p, sizeof *p);
}

/* Refuses the nodes that have joined, when gathering ends without success: they would otherwise
 * wait until their own deadlines. */
static void dismiss_all(ls__nodes *n)
{
    const char *why = n->error[0] != '\0' ? n->error : "node 0 ended before all nodes had joined";
    ls__first_send_all(n, NULL, LS__NODE_REFUSED, json_pack("{s:s s:b}", "text", why, "again", 0));
    ls__first_flush(n);
}

/* Also called for a node that is not node 0, whose lists are empty. Lost nodes are freed here. */
void ls__first_close(ls__nodes *n)
{
    if (n->state == LS__NODES_GATHERING || n->state == LS__NODES_FAILED) {
        dismiss_all(n);
    }
    LS__LIST_EACH (at, &n->peers) {
        peer_free(n, LS__LIST_ITEM(at, ls__nodes_peer, link));
    }
    for (int i = 0; i < n->listeners; i++) {
        (void)n->env->poller_remove(n->env, n->poller, ls__listener_fd(n->listener[i]));
        ls__listener_close(n->listener[i]);
    }
    n->listeners = 0;
    if (n->exchange_fd >= 0) {
        ls__secret_exchange_close(n->env, n->exchange_fd, n->place.port);
        n->exchange_fd = -1;
    }
}

/* ---- sending ------------------------------------------------------------------------------- */

/* A frame that does not fit is dropped; the peer has stopped reading and is lost soon. */
void ls__first_send_all(ls__nodes *n, const ls__nodes_peer *except, ls__node_type type,
                        json_t *object)
{
    LS__LIST_EACH (at, &n->peers) {
        ls__nodes_peer *p = LS__LIST_ITEM(at, ls__nodes_peer, link);
        if (p->known && !p->lost && p != except) {
            (void)ls__frames_send(&p->frames, type, json_incref(object));
        }
    }
    json_decref(object);
}

/* Later failures are consequences, so the first announcement stays. */
void ls__nodes_announce_cause(ls__nodes *n, const ls__failure_record *cause)
{
    if (n->first && !n->has_cause) {
        n->cause = *cause;
        n->has_cause = true;
        ls__first_send_all(n, NULL, LS__NODE_CAUSE, ls__failure_pack(cause));
    }
}

/* A lost node counts as done: its ranks cannot report any more, and the job must end. */
bool ls__nodes_all_done(const ls__nodes *n, const char **tail)
{
    LS__LIST_EACH (at, &n->peers) {
        const ls__nodes_peer *p = LS__LIST_ITEM(at, ls__nodes_peer, link);
        if (p->known && !p->done && !p->lost) {
            return false;
        }
    }
    *tail = n->tail;
    return true;
}

/* After END: the other nodes hang up when they have received it. */
static void finish_turn(ls__nodes *n, uint64_t now)
{
    bool left = true;
    LS__LIST_EACH (at, &n->peers) {
        const ls__nodes_peer *p = LS__LIST_ITEM(at, ls__nodes_peer, link);
        left = left && (p->lost || !p->known);
    }
    LS_ASSERT(n->finishing && n->state != LS__NODES_GATHERING);
    if (left || now >= n->finish_ns) {
        n->state = LS__NODES_ENDED;
    }
}

/* Waits up to FINISH_MS for the others, so that END is not lost with this process's sockets. */
void ls__nodes_finish(ls__nodes *n, const ls__nodes_end *end)
{
    if (n->finishing) {
        return;
    }
    n->finishing = true;
    n->finish_ns = ls__deadline_after(n->env, FINISH_MS);
    ls__first_send_all(n, NULL, LS__NODE_END,
                       json_pack("{s:b s:I s:s}", "again", end->again, "delay_ms",
                                 (json_int_t)end->delay_ms, "text", end->text));
    finish_turn(n, n->env->now_ns(n->env)); /* no node may be left, and then no event follows */
}

/* ---- receiving ----------------------------------------------------------------------------- */

/* Passes a stop request on to all nodes but its sender. The number comes from another host. */
static void take_stop(ls__nodes *n, ls__nodes_peer *p, const json_t *object)
{
    int signal = (int)json_integer_value(json_object_get(object, "signal"));
    if (signal > 0 && signal < 65) {
        n->stop = signal;
        ls__first_send_all(n, p, LS__NODE_STOP, json_pack("{s:i}", "signal", signal));
    }
}

/* A frame of an accepted node. Unknown types are ignored. */
static void take_control(ls__nodes *n, ls__nodes_peer *p, int type, const json_t *object)
{
    ls__failure_record f;
    switch (type) {
    case LS__NODE_STOP:
        take_stop(n, p, object);
        break;
    case LS__NODE_FAILURE:
        if (ls__failure_unpack(object, &f)) {
            ls__nodes_note(n, &f);
        }
        break;
    case LS__NODE_DONE:
        p->done = true;
        if (n->tail[0] == '\0') {
            ls__node_text(object, "tail", n->tail, sizeof n->tail);
        }
        break;
    default:
        break;
    }
}

/* Requests to the store are valid from WELCOME on, when the peer has its entry in the store. */
static void take_frame(ls__nodes *n, ls__nodes_peer *p, const ls__wire_header *header,
                       const uint8_t *payload)
{
    if (header->type == LS__NODE_HEARTBEAT || p->refused) {
        return;
    }
    if (header->type < LS__NODE_FIRST) {
        p->frames.broken =
            p->store_peer == NULL || !ls__store_peer_request(p->store_peer, header->type,
                                                             header->id, payload, header->length);
        return;
    }
    json_t *object = ls__node_parse(payload, header->length);
    if (object == NULL) {
        p->frames.broken = true;
    } else if (header->type == LS__NODE_HELLO && !p->known) {
        ls__gather_hello(n, p, object);
    } else if (p->known) {
        take_control(n, p, header->type, object);
    }
    json_decref(object);
}

/* The link is closed, and the peer stays in the list as lost. Its loss is a failure of the job,
 * unless the node had finished. */
static void note_lost(ls__nodes *n, ls__nodes_peer *p, const char *why)
{
    ls__failure_record f = {
        .kind = LS__FAILURE_LOST, .failed_rank = -1, .job_code = LS__NODES_LOST_CODE};
    LS_ASSERT(p->known && !p->lost);
    p->lost = true;
    ls__frames_close(&p->frames);
    ls__store_peer_free(p->store_peer);
    p->store_peer = NULL;
    if (n->state == LS__NODES_GATHERING || p->done || n->finishing) {
        return;
    }
    snprintf(
        f.text, sizeof f.text,
        "node %d (host %s, %d rank%s, the first is rank %d) is lost: %s. Its launcher was killed, "
        "the host is down, or the network between it and node 0 (host %s) is cut",
        p->node, p->host, p->ranks, p->ranks == 1 ? "" : "s", p->first_rank, why, n->host);
    ls__nodes_note(n, &f);
}

/* The link of a peer has ended. While nodes gather, the node may connect again, so it is
 * forgotten. */
static void drop(ls__nodes *n, ls__nodes_peer *p, const char *why)
{
    if (!p->known || n->state == LS__NODES_GATHERING) {
        if (p->known) {
            LS__WARN("node %d (host %s) left before all nodes had joined: %s", p->node, p->host,
                     why);
        }
        peer_free(n, p);
        return;
    }
    note_lost(n, p, why);
}

/* Serves everything that has arrived, then checks the time. Frames that arrived before the end of
 * the link are served first. */
static void peer_turn(ls__nodes *n, ls__nodes_peer *p, uint64_t now)
{
    ls__wire_header header;
    const uint8_t *payload = NULL;
    ls_status status = ls__frames_turn(&p->frames);
    bool more = true;
    while (status == LS_OK && more) {
        more = false;
        while (ls__frames_next(&p->frames, &header, &payload)) {
            take_frame(n, p, &header, payload);
            more = true;
        }
        status = more ? ls__frames_turn(&p->frames) : status;
    }
    char why[96];
    if (status < 0) {
        drop(n, p, ls_error_message());
    } else if (p->known && ls__nodes_silent(&p->frames, now, why, sizeof why)) {
        drop(n, p, why);
    } else if (!p->known && now >= p->deadline_ns) { /* no HELLO, or it was refused and stays */
        drop(n, p, "");
    }
}

/* A connection whose handshake has begun; out of memory, it is closed and its node tries again. */
static void accept_peer(ls__nodes *n, ls__link *link)
{
    ls__nodes_peer *p = n->env->allocate(n->env, sizeof *p);
    if (p == NULL) {
        ls__link_close(link);
        return;
    }
    memset(p, 0, sizeof *p);
    p->nodes = n;
    p->node = -1;
    p->deadline_ns = ls__deadline_after(n->env, HELLO_MS);
    ls__frames_init(&p->frames, n->env, link, n->poller);
    ls__list_push_back(&n->peers, &p->link);
}

/* ---- time ---------------------------------------------------------------------------------- */

/* To every accepted node that has received nothing else for a while. */
static void send_heartbeats(ls__nodes *n, uint64_t now)
{
    LS__LIST_EACH (at, &n->peers) {
        ls__nodes_peer *p = LS__LIST_ITEM(at, ls__nodes_peer, link);
        if (p->known && !p->lost) {
            ls__nodes_heartbeat(&p->frames, now);
        }
    }
}

/* Ends the gathering when all nodes have joined or the time is over; warns from time to time. */
static void gather_turn(ls__nodes *n, uint64_t now)
{
    char missing[256];
    ls__gather_try(n);
    if (n->state != LS__NODES_GATHERING) {
        return;
    }
    if (now >= n->deadline_ns) {
        ls__gather_missing(n, missing, sizeof missing);
        ls__nodes_fail(
            n,
            "%s did not connect to %s:%d within %lld s: start the same command on all hosts, "
            "each with its own --node-rank; LOCKSTEP_TIMEOUT gives more time",
            missing, n->place.host, n->place.port, (long long)(n->timeout_ms / 1000));
    } else if (now >= n->warn_ns) {
        ls__gather_missing(n, missing, sizeof missing);
        LS__WARN("%s %s:%d: waiting for %s", n->place.from, n->place.host, n->place.port, missing);
        n->warn_ns = ls__deadline_after(n->env, WARN_MS);
    }
}

/* peer_turn may free its peer, which LS__LIST_EACH allows. */
void ls__first_turn(ls__nodes *n, uint64_t now)
{
    if (n->exchange_fd >= 0) {
        ls__secret_exchange_turn(n->env, n->exchange_fd, n->secret);
    }
    for (int i = 0; i < n->listeners; i++) {
        for (ls__link *l = ls__listener_next(n->listener[i]); l != NULL;
             l = ls__listener_next(n->listener[i])) {
            accept_peer(n, l);
        }
    }
    LS__LIST_EACH (at, &n->peers) {
        ls__nodes_peer *p = LS__LIST_ITEM(at, ls__nodes_peer, link);
        if (!p->lost) {
            peer_turn(n, p, now);
        }
    }
    if (n->state == LS__NODES_GATHERING) {
        gather_turn(n, now);
    }
    if (n->finishing) {
        finish_turn(n, now);
    }
    send_heartbeats(n, now);
}

/* Peers whose handshake is not complete have nothing to write yet. */
void ls__first_flush(ls__nodes *n)
{
    LS__LIST_EACH (at, &n->peers) {
        ls__nodes_peer *p = LS__LIST_ITEM(at, ls__nodes_peer, link);
        if (!p->lost && p->frames.open) {
            ls__frames_write(&p->frames); /* the next turn reports an error */
        }
    }
}

/* The earlier of two times; LS__NEVER is the largest. */
static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* The earliest time at which ls__first_turn has something to do without an event. */
uint64_t ls__first_deadline(const ls__nodes *n)
{
    uint64_t at = n->finishing ? n->finish_ns : LS__NEVER;
    if (n->state == LS__NODES_GATHERING) {
        at = least(at, least(n->deadline_ns, n->warn_ns));
    }
    for (int i = 0; i < n->listeners; i++) {
        at = least(at, ls__listener_deadline(n->listener[i]));
    }
    LS__LIST_EACH (each, &n->peers) {
        const ls__nodes_peer *p = LS__LIST_ITEM(each, ls__nodes_peer, link);
        if (p->known && !p->lost) {
            at = least(at, ls__nodes_frames_deadline(&p->frames, true));
        } else if (!p->known) {
            at = least(at, p->deadline_ns);
        }
    }
    return at;
}
