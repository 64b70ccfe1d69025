/* SPDX-License-Identifier: Apache-2.0 */
/* Node 0 while nodes gather: which nodes may join, and the layout of the world.
 *
 * Under `lockstep run` nodes are numbered by --node-rank, or by arrival, and ranks are contiguous
 * from node to node. Under other launchers each process already knows its rank, in any order: then
 * a node lists the ranks that it has, and the world is complete when each rank is listed once.
 *
 * Everything in a HELLO comes from another host and is checked; a node that does not fit is refused
 * with a message that both sides show.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "job/nodes/internal.h"

#define REFUSE_MS 2000 /* for a refused node to read the reason and hang up */

/* ---- refusing ------------------------------------------------------------------------------ */

/* Sends the reason; the peer then hangs up, or is dropped at the deadline. "again" means that the
 * job is about to restart, and that the node should try again. */
static void LS__PRINTF(3, 4) refuse(ls__nodes *n, ls__nodes_peer *p, const char *format, ...)
{
    char text[768];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    LS__WARN("a node was refused: %s", text);
    (void)ls__frames_send(&p->frames, LS__NODE_REFUSED,
                          json_pack("{s:s s:b}", "text", text, "again", n->has_cause));
    p->refused = true;
    p->deadline_ns = ls__deadline_after(n->env, REFUSE_MS);
}

/* ---- hello --------------------------------------------------------------------------------- */

/* The contents of HELLO that are not stored in the peer. world_size is 0 under `lockstep run`. */
typedef struct hello {
    int protocol, nodes, node, ranks, world_size;
    char version[32], id[64];
} hello;

/* False: a field is missing, or the number of ranks is impossible. */
static bool read_hello(const json_t *from, hello *out, ls__nodes_peer *p)
{
    memset(out, 0, sizeof *out);
    if (json_unpack((json_t *)(uintptr_t)from, "{s:i s:i s:i s:i s:i}", "protocol", &out->protocol,
                    "nodes", &out->nodes, "node", &out->node, "ranks", &out->ranks, "world",
                    &out->world_size) != 0) {
        return false;
    }
    ls__node_text(from, "version", out->version, sizeof out->version);
    ls__node_text(from, "id", out->id, sizeof out->id);
    ls__node_text(from, "host", p->host, sizeof p->host);
    ls__node_text(from, "address", p->address, sizeof p->address);
    const json_t *list = json_object_get(from, "world_rank");
    if (out->ranks < 1 || out->ranks > LS__BOARD_RANKS_MAX ||
        (out->world_size != 0 && (int)json_array_size(list) != out->ranks)) {
        return false;
    }
    for (int r = 0; r < out->ranks && out->world_size != 0; r++) {
        p->world_rank[r] = (int)json_integer_value(json_array_get(list, (size_t)r));
    }
    p->ranks = out->ranks;
    return true;
}

/* Whether the node and node 0 belong to the same job and agree on its size; else it is refused. */
static bool same_job(ls__nodes *n, ls__nodes_peer *p, const hello *h)
{
    if (h->protocol != LS__NODES_PROTOCOL || strcmp(h->version, n->version) != 0) {
        refuse(
            n, p,
            "host %s runs lockstep %s, node 0 (host %s) lockstep %s: install the same version on "
            "all hosts",
            p->host, h->version, n->host, n->version);
    } else if (h->world_size != n->given_world) {
        refuse(n, p,
               "host %s expects a world of %d ranks, node 0 (host %s) one of %d (0: given by "
               "`lockstep run`): start all ranks with one launcher and one size",
               p->host, h->world_size, n->host, n->given_world);
    } else if (h->nodes != n->wanted) {
        refuse(n, p,
               "host %s was started with --nnodes %d, node 0 (host %s) with --nnodes %d: give all "
               "nodes the same",
               p->host, h->nodes, n->host, n->wanted);
    } else if (strcmp(h->id, n->id) != 0) {
        refuse(n, p,
               "host %s belongs to the job \"%s\", node 0 (host %s) to \"%s\": another job "
               "uses %s:%d; give each job a port of its own",
               p->host, h->id, n->host, n->id, n->place.host, n->place.port);
    } else {
        return true;
    }
    return false;
}

/* The accepted node of that number; NULL: none. */
static const ls__nodes_peer *find_node(const ls__nodes *n, int node)
{
    LS__LIST_EACH (at, &n->peers) {
        const ls__nodes_peer *p = LS__LIST_ITEM(at, ls__nodes_peer, link);
        if (p->known && p->node == node) {
            return p;
        }
    }
    return NULL;
}

/* Node 0 and the accepted nodes. */
static int nodes_known(const ls__nodes *n)
{
    int count = 1;
    LS__LIST_EACH (at, &n->peers) {
        count += LS__LIST_ITEM(at, ls__nodes_peer, link)->known;
    }
    return count;
}

/* Checks the node's number, -1 for any, which number_nodes replaces later. Else it is refused. */
static bool assign_node(ls__nodes *n, ls__nodes_peer *p, int node)
{
    if (nodes_known(n) >= n->wanted) {
        refuse(n, p,
               "host %s is one node too many: all %d nodes of the job at %s:%d have joined; give "
               "each node its own --node-rank, and each job a port of its own",
               p->host, n->wanted, n->place.host, n->place.port);
        return false;
    }
    if (node >= n->wanted || node < -1) {
        refuse(n, p, "host %s has --node-rank %d, but --nnodes %d allows only 0 to %d", p->host,
               node, n->wanted, n->wanted - 1);
        return false;
    }
    const ls__nodes_peer *same = node > 0 ? find_node(n, node) : NULL;
    if (node == 0 || same != NULL) {
        refuse(n, p, "two nodes have --node-rank %d: host %s and host %s; give each node its own",
               node, node == 0 ? n->host : same->host, p->host);
        return false;
    }
    p->node = node;
    return true;
}

/* The host that has listed this world rank; NULL: none so far. */
static const char *host_of_rank(const ls__nodes *n, int rank)
{
    for (int r = 0; r < n->ranks; r++) {
        if (n->world_rank[r] == rank) {
            return n->host;
        }
    }
    LS__LIST_EACH (at, &n->peers) {
        const ls__nodes_peer *p = LS__LIST_ITEM(at, ls__nodes_peer, link);
        for (int r = 0; p->known && r < p->ranks; r++) {
            if (p->world_rank[r] == rank) {
                return p->host;
            }
        }
    }
    return NULL;
}

/* Checks the ranks that a node listed, under other launchers; number_nodes numbers it once all
 * nodes have joined, because a node that has joined may still leave. */
static bool assign_ranks(ls__nodes *n, ls__nodes_peer *p)
{
    for (int r = 0; r < p->ranks; r++) {
        const int rank = p->world_rank[r];
        const char *host = rank >= 0 && rank < n->given_world ? host_of_rank(n, rank) : NULL;
        if (rank < 0 || rank >= n->given_world) {
            refuse(n, p, "host %s has rank %d, but the world has ranks 0 to %d", p->host, rank,
                   n->given_world - 1);
            return false;
        }
        if (host != NULL) {
            refuse(n, p,
                   "two processes are rank %d: one on host %s and one on host %s; is this the "
                   "port of another job?",
                   rank, host, p->host);
            return false;
        }
    }
    return true;
}

/* A peer that is refused stays until it hangs up or REFUSE_MS has passed, so that the reason
 * reaches it. The world may have become complete; gather_turn looks. */
void ls__gather_hello(ls__nodes *n, ls__nodes_peer *p, const json_t *from)
{
    LS_ASSERT(!p->known && !p->refused);
    hello h;
    if (!read_hello(from, &h, p)) {
        refuse(n, p, "the data from %s is not a HELLO of this version",
               ls__link_peer(p->frames.link));
        return;
    }
    if (n->state != LS__NODES_GATHERING) {
        refuse(n, p, "host %s is too late: the job at %s:%d already runs with all its nodes",
               p->host, n->place.host, n->place.port);
        return;
    }
    p->known = same_job(n, p, &h) &&
               (n->given_world != 0 ? assign_ranks(n, p) : assign_node(n, p, h.node));
}

/* ---- the world ----------------------------------------------------------------------------- */

/* The ranks of this host and of the accepted nodes. assign_ranks keeps them distinct, so the number
 * tells when the world is complete. */
static int ranks_known(const ls__nodes *n)
{
    int count = n->ranks;
    LS__LIST_EACH (at, &n->peers) {
        const ls__nodes_peer *p = LS__LIST_ITEM(at, ls__nodes_peer, link);
        count += p->known ? p->ranks : 0;
    }
    return count;
}

/* Nodes without a number get the free ones, in order of arrival. */
static void number_nodes(ls__nodes *n)
{
    int next = 1;
    LS__LIST_EACH (at, &n->peers) {
        ls__nodes_peer *p = LS__LIST_ITEM(at, ls__nodes_peer, link);
        while (p->known && p->node < 0) {
            p->node = find_node(n, next) == NULL ? next : -1;
            next++;
        }
    }
}

/* Assigns contiguous ranks in the order of the nodes; ranks that another launcher assigned stay. */
static void number_ranks(ls__nodes *n)
{
    int first = n->ranks;
    for (int node = 1; node < n->world.nodes; node++) {
        ls__nodes_peer *p = (ls__nodes_peer *)(uintptr_t)find_node(n, node);
        LS_ASSERT(p != NULL);
        p->first_rank = n->given_world != 0 ? p->world_rank[0] : first;
        first += p->ranks;
    }
    n->world.first_rank = n->given_world != 0 ? n->world_rank[0] : 0;
    n->world.world_size = first;
}

/* The address at which the others reach this host. If node 0 only knows loopback addresses, it is
 * the local address of a connection from another host. */
static void find_own_address(ls__nodes *n)
{
    LS__LIST_EACH (at, &n->peers) {
        const ls__nodes_peer *p = LS__LIST_ITEM(at, ls__nodes_peer, link);
        char text[LS__ADDRESS_MAX];
        if (p->known && !n->has_interface && ls__address_is_loopback(n->own) &&
            n->env->tcp_name(n->env, ls__link_fd(p->frames.link), false, text, sizeof text, NULL) ==
                0 &&
            !ls__address_is_loopback(text)) {
            memcpy(n->own, text, sizeof n->own);
        }
    }
    snprintf(n->world.address, sizeof n->world.address, "%s", n->own);
    snprintf(n->world.master, sizeof n->world.master, "%s", n->own);
    n->world.master_port = ls__free_port_at(n->env, n->own);
}

/* A node whose connection came over the loopback runs on this host and shares its address. */
static void send_welcome(ls__nodes *n, ls__nodes_peer *p)
{
    const ls__nodes_world *w = &n->world;
    char job[20];
    if (p->address[0] == '\0' || ls__address_is_loopback(p->address)) {
        memcpy(p->address, n->own, sizeof p->address);
    }
    snprintf(job, sizeof job, "%016llx", (unsigned long long)w->job);
    (void)ls__frames_send(&p->frames, LS__NODE_WELCOME,
                          json_pack("{s:s s:i s:i s:i s:i s:i s:s s:s s:s s:i s:s}", "job", job,
                                    "attempt", w->attempt, "nodes", w->nodes, "node", p->node,
                                    "first_rank", p->first_rank, "world_size", w->world_size,
                                    "run_id", w->run_id, "address", p->address, "master", w->master,
                                    "master_port", w->master_port, "host", n->host));
}

/* A reply of the store to a rank of that node. */
static void answer(void *arg, uint64_t id, const ls__wire_reply *reply)
{
    ls__nodes_peer *p = arg;
    p->frames.broken = !ls__frames_put_reply(&p->frames, id, reply) || p->frames.broken;
}

/* Whether all nodes have joined; under other launchers, whether all ranks have. */
static bool complete(const ls__nodes *n)
{
    return n->given_world != 0 ? ranks_known(n) == n->given_world : nodes_known(n) == n->wanted;
}

/* All store entries are made before the first WELCOME, so that either all nodes start or none
 * does. */
void ls__gather_try(ls__nodes *n)
{
    if (!complete(n)) {
        return;
    }
    LS_ASSERT(n->state == LS__NODES_GATHERING);
    n->world.nodes = nodes_known(n);
    number_nodes(n);
    number_ranks(n);
    find_own_address(n);
    (void)n->env->random_bytes(n->env, &n->world.job, sizeof n->world.job);
    LS__LIST_EACH (at, &n->peers) {
        ls__nodes_peer *p = LS__LIST_ITEM(at, ls__nodes_peer, link);
        if (p->known && ls__store_server_host(n->store, answer, p, &p->store_peer) < 0) {
            ls__nodes_fail(n, "%s", ls_error_message());
            return;
        }
    }
    LS__LIST_EACH (at, &n->peers) {
        ls__nodes_peer *p = LS__LIST_ITEM(at, ls__nodes_peer, link);
        if (p->known) {
            send_welcome(n, p);
        }
    }
    if (n->has_cause) { /* the job failed before these nodes were known */
        ls__first_send_all(n, NULL, LS__NODE_CAUSE, ls__failure_pack(&n->cause));
    }
    n->state = LS__NODES_RUNNING;
}

/* ---- missing nodes ------------------------------------------------------------------------- */

/* Lists at most 8, under other launchers. */
static void missing_ranks(const ls__nodes *n, ls__text *to)
{
    int count = 0;
    for (int r = 0; r < n->given_world; r++) {
        if (host_of_rank(n, r) == NULL && count++ < 8) {
            ls__text_add(to, "%s%d", count == 1 ? "ranks " : ", ", r);
        }
    }
    if (count > 8) {
        ls__text_add(to, " and %d more", count - 8);
    }
}

/* Lists at most 8. While accepted nodes wait for a number, the numbers of the missing ones are
 * unknown.
 */
static void missing_nodes(const ls__nodes *n, ls__text *to)
{
    int unnumbered = 0, count = 0;
    LS__LIST_EACH (at, &n->peers) {
        const ls__nodes_peer *p = LS__LIST_ITEM(at, ls__nodes_peer, link);
        unnumbered += p->known && p->node < 0;
    }
    const int missing = n->wanted - nodes_known(n);
    if (unnumbered > 0) {
        ls__text_add(to, "%d more node%s of %d", missing, missing == 1 ? "" : "s", n->wanted);
        return;
    }
    for (int node = 1; node < n->wanted; node++) {
        if (find_node(n, node) == NULL && count++ < 8) {
            ls__text_add(to, "%s%d",
                         count > 1      ? ", "
                         : missing == 1 ? "node rank "
                                        : "node ranks ",
                         node);
        }
    }
    ls__text_add(to, count > 8 ? " and more, of %d nodes" : " of %d nodes", n->wanted);
}

void ls__gather_missing(const ls__nodes *n, char *out, size_t bytes)
{
    ls__text to = {out, bytes};
    out[0] = '\0';
    if (n->given_world != 0) {
        missing_ranks(n, &to);
    } else {
        missing_nodes(n, &to);
    }
}
