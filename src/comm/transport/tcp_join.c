/* SPDX-License-Identifier: Apache-2.0 */
/* Making the connections of the TCP transport, all at once, in ls_init.
 *
 * Every rank opens a listener, publishes its address, and reads the addresses of all remote ranks:
 * a rank that has read them knows that all listeners are open. It then connects to the lower ranks
 * and accepts the higher ones. After the handshake, which proves that the peer knows the job's
 * secret, one HELLO says which connection this is, and one byte answers it. A connection that is
 * reset before the answer has come is made again, and takes the place of the one whose answer was
 * lost. If the other side has left ls_init by then, this rank gives up a second after the loss.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/error.h"
#include "comm/join/arrival.h"
#include "comm/transport/tcp_wire.h"
#include "job/link/listener.h"

#define HELLO_MAGIC 0x4c534846u /* "LSHF"; "LSHE" was not answered */
#define WELCOME 'W'
#define CARD_MAX 512
#define RETRY_NS 50000000u
#define LOOK_NS 50000000u    /* between two looks at the board, which wakes no poller */
#define GRACE_NS 1000000000u /* wait for the root cause of a failed connection */
#define GRACE_LOOK_NS 5000000u
#define READY_ROOM 16

/* The first message on a connection, from the side that connects. */
typedef struct hello {
    uint32_t magic;
    int32_t from, to, index;
    uint32_t generation, connections;
    uint64_t job;
} hello;

typedef struct attempt { /* a link that is to become a connection */
    ls__link *link;      /* NULL: to be made again, or taken over by the transport */
    int peer, index;     /* of a link that this rank makes; -1: accepted */
    bool proven;         /* the handshake is complete */
    bool greeted;        /* this rank's HELLO is sent, and not answered yet */
    uint64_t lost_ns;    /* when a connection on which it was sent broke; 0: none did */
    size_t got;          /* bytes of `greeting` */
    hello greeting;
    char address[LS__ADDRESS_MAX]; /* of a link that this rank makes, for another attempt */
    int port;
    uint64_t retry_ns; /* time of the next attempt while `link` is NULL; 0: no further one */
} attempt;

/* The state of the procedure. */
typedef struct joining {
    ls__tcp *tcp;
    const ls__tcp_spec *spec;
    const ls__env *env;
    ls__listener *listener;
    int poller;
    attempt *attempt; /* [room] */
    int room, count;
    int missing; /* connections that are not made yet */
    uint64_t begin_ns;
    char refused[256]; /* the reason of the last connection that had to be made again */
} joining;

/* ---- addresses in the store --------------------------------------------------------------- */

/* A rank's entry in the store, taken apart. */
typedef struct card {
    char address[LS__ADDRESS_MAX];
    int port;
    const char *about, *config; /* in the text */
} card;

/* The entry in the store says where this rank listens, who it is and how it is set up. */
static ls_status publish(const joining *j)
{
    char key[32], text[CARD_MAX];
    snprintf(key, sizeof key, "net/%d", j->spec->rank);
    const int bytes = snprintf(text, sizeof text, "%s\n%d\n%s\n%s", j->spec->address,
                               ls__listener_port(j->listener), j->spec->about, j->spec->config);
    return ls_store_set(j->spec->store, key, text, (size_t)bytes, j->spec->timeout_ms);
}

/* Cuts the next line off the text and returns it; NULL behind the last one. */
static char *next_line(char **at)
{
    char *line = *at;
    char *end = line != NULL ? strchr(line, '\n') : NULL;
    if (end != NULL) {
        *end = '\0';
    }
    *at = end != NULL ? end + 1 : NULL;
    return line;
}

/* Waits until the peer has published its entry. The returned strings lie in `text`. */
static ls_status read_card(const joining *j, int peer, char text[CARD_MAX], card *out)
{
    char key[32];
    size_t bytes = CARD_MAX - 1;
    snprintf(key, sizeof key, "net/%d", peer);
    ls_status status;
    do {
        status =
            ls_store_get(j->spec->store, key, text, &bytes, ls__arrival_slice_ms(j->spec->arrival));
    } while (ls__arrival_goes_on(j->spec->arrival, status, peer));
    if (status == LS_ERR_TIMEOUT || status == LS_ERR_MISMATCH) {
        return status;
    }
    if (status != LS_OK) {
        return ls__fail_within(status, "ls_init: waiting for rank %d", peer);
    }
    text[bytes] = '\0';
    char *at = text;
    const char *address = next_line(&at), *port = next_line(&at);
    out->about = next_line(&at);
    out->config = at;
    if (at == NULL || sscanf(port, "%d", &out->port) != 1) {
        return ls__fail(
            LS_ERR_PEER,
            "ls_init: the text that rank %d published is not an address; do all ranks run the same "
            "build?",
            peer);
    }
    snprintf(out->address, sizeof out->address, "%s", address);
    if (strcmp(out->config, j->spec->config) != 0) {
        return ls__settings_differ((ls__settings_side){j->spec->rank, j->spec->config},
                                   (ls__settings_side){peer, out->config});
    }
    return LS_OK;
}

/* ---- connecting --------------------------------------------------------------------------- */

/* Closes a link that has not become a connection. */
static void drop(joining *j, attempt *k)
{
    if (k->link != NULL) {
        (void)j->env->poller_remove(j->env, j->poller, ls__link_fd(k->link));
        ls__link_close(k->link);
        k->link = NULL;
    }
}

/* Readiness of any watched descriptor only wakes the loop, which looks at all of them. */
static ls_status watch(const joining *j, int fd)
{
    const int error = j->env->poller_add(j->env, j->poller, fd, 0);
    return error == 0 ? LS_OK
                      : ls__fail(LS_ERR_SYSTEM, "ls_init: cannot watch a connection: %s",
                                 strerror(-error));
}

/* Starts a connection from the address that this rank publishes, so that firewalls see the same one
 * in both directions. */
static ls_status connect_to(const joining *j, attempt *k)
{
    const char *from = strcmp(j->spec->address, k->address) == 0 ? NULL : j->spec->address;
    LS_TRY(ls__link_connect(&j->spec->link, k->address, k->port, from, &k->link));
    return watch(j, ls__link_fd(k->link));
}

/* All connections to one lower rank. */
static ls_status dial(joining *j, int peer, const card *c)
{
    for (int i = 0; i < j->tcp->connections; i++) {
        attempt *k = &j->attempt[j->count++];
        *k = (attempt){.peer = peer, .index = i, .port = c->port};
        memcpy(k->address, c->address, sizeof k->address);
        LS_TRY(connect_to(j, k));
    }
    return LS_OK;
}

/* A listener that is busy with unauthenticated peers turns away ranks as well (listener.h), so a
 * refused connection is made again later. */
static ls_status retry_later(joining *j, attempt *k)
{
    const uint64_t now = j->env->now_ns(j->env);
    snprintf(j->refused, sizeof j->refused, "%s", ls_error_message());
    drop(j, k);
    k->lost_ns = k->lost_ns == 0 && k->greeted ? now : k->lost_ns;
    k->proven = k->greeted = false;
    k->retry_ns = now + RETRY_NS;
    return k->lost_ns == 0 || now - k->lost_ns < GRACE_NS
               ? LS_OK
               : ls__fail(LS_ERR_PEER,
                          "ls_init: the connection to rank %d broke while it was made, and could "
                          "not be made again (%s)",
                          k->peer, j->refused);
}

/* Reads the entries of all remote ranks, which proves that all listen, and connects to the lower
 * ones. The configurations are compared before the first connection. */
static ls_status dial_all(joining *j, void (*known)(void *arg, int peer, const char *about),
                          void *arg)
{
    char text[CARD_MAX];
    card c;
    for (int r = 0; r < j->spec->size; r++) {
        if (j->spec->remote[r]) {
            LS_TRY(read_card(j, r, text, &c));
            known(arg, r, c.about);
            j->missing += j->tcp->connections;
        }
    }
    for (int r = 0; r < j->spec->rank; r++) {
        if (j->spec->remote[r]) {
            LS_TRY(read_card(j, r, text, &c));
            ls_status status = dial(j, r, &c);
            if (status != LS_OK) {
                return ls__fail_within(status, "ls_init: connecting to rank %d (%s)", r, c.about);
            }
        }
    }
    return LS_OK;
}

/* ---- hellos ------------------------------------------------------------------------------- */

/* The link is authenticated and known by its number: the transport owns it from here on. */
static ls_status take_in(joining *j, attempt *k, int peer, int index)
{
    LS_ASSERT(k->link != NULL);
    (void)j->env->poller_remove(j->env, j->poller, ls__link_fd(k->link));
    ls__link *link = k->link;
    k->link = NULL;
    j->missing -= j->tcp->peer[peer].connection[index].link == NULL;
    return ls__tcp_adopt(j->tcp, peer, index, link);
}

/* `error` is negative, or 0: the peer closed the connection. */
static ls_status greet_later(joining *j, attempt *k, ssize_t error)
{
    (void)ls__fail(LS_ERR_PEER, "ls_init: greeting rank %d: %s", k->peer,
                   error < 0 ? strerror((int)-error) : "closed by the other side");
    return retry_later(j, k);
}

/* Only the connecting side says which connection this is. */
static ls_status send_hello(joining *j, attempt *k)
{
    const hello h = {.magic = HELLO_MAGIC,
                     .from = j->spec->rank,
                     .to = k->peer,
                     .index = k->index,
                     .generation = j->spec->generation,
                     .connections = (uint32_t)j->tcp->connections,
                     .job = j->spec->link.job};
    const ls__env_span span = {.at = &h, .bytes = sizeof h};
    const ssize_t put = ls__link_send(k->link, &span, 1); /* an empty socket has room for it */
    if (put != (ssize_t)sizeof h) {
        return greet_later(j, k, put < 0 ? put : -ENOBUFS);
    }
    (void)ls__link_flush(k->link);
    k->greeted = true;
    return LS_OK;
}

static ls_status read_welcome(joining *j, attempt *k)
{
    unsigned char word;
    const ssize_t got = ls__link_read(k->link, &word, 1);
    if (got == -EAGAIN) {
        return LS_OK;
    }
    return got <= 0 ? greet_later(j, k, got) : take_in(j, k, k->peer, k->index);
}

/* The answer to a HELLO. If the connection is lost now, its first use finds that. */
static void send_welcome(attempt *k)
{
    const unsigned char word = WELCOME;
    const ls__env_span span = {.at = &word, .bytes = 1};
    (void)ls__link_send(k->link, &span, 1); /* an empty socket has room for it */
    (void)ls__link_flush(k->link);
}

/* Whether this HELLO is one that this rank still waits for. */
static bool is_welcome(const joining *j, const hello *h)
{
    return h->magic == HELLO_MAGIC && h->to == j->spec->rank && h->from > j->spec->rank &&
           h->from < j->spec->size && j->spec->remote[h->from] && h->index >= 0 &&
           h->index < j->tcp->connections && h->connections == (uint32_t)j->tcp->connections &&
           h->generation == j->spec->generation && h->job == j->spec->link.job;
}

/* Reads as much of the HELLO as has arrived. LS_OK does not mean that it is complete. A peer that
 * disconnects is not an error: it tries again, or is reported as missing. */
static ls_status read_hello(joining *j, attempt *k)
{
    while (k->got < sizeof k->greeting) {
        const ssize_t got = ls__link_read(k->link, (unsigned char *)&k->greeting + k->got,
                                          sizeof k->greeting - k->got);
        if (got == -EAGAIN) {
            return LS_OK;
        }
        if (got <= 0) {
            drop(j, k);
            return LS_OK;
        }
        k->got += (size_t)got;
    }
    if (!is_welcome(j, &k->greeting)) {
        return ls__fail(LS_ERR_PEER,
                        "ls_init: a connection from %s says that it is number %d of rank %d to "
                        "rank %d, generation %u, which is not expected here; do all ranks run the "
                        "same build and settings?",
                        ls__link_peer(k->link), (int)k->greeting.index, (int)k->greeting.from,
                        (int)k->greeting.to, k->greeting.generation);
    }
    send_welcome(k);
    return take_in(j, k, k->greeting.from, k->greeting.index);
}

/* Moves one link on: handshake first, then HELLO. LS_OK also while it has to wait. */
static ls_status advance(joining *j, attempt *k)
{
    if (!k->proven) {
        const ls_status status = ls__link_handshake(k->link);
        if (status == LS_IN_PROGRESS) {
            return LS_OK;
        }
        if (status == LS_ERR_PEER && k->index >= 0) {
            return retry_later(j, k);
        }
        if (status != LS_OK) {
            return ls__fail_within(status, "ls_init: connecting to rank %d", k->peer);
        }
        k->proven = true;
    }
    if (k->index < 0) {
        return read_hello(j, k);
    }
    return k->greeted ? read_welcome(j, k) : send_hello(j, k);
}

/* Takes authenticated links from the listener. More links than there are missing connections cannot
 * come from ranks of this job. */
static ls_status accept_all(joining *j)
{
    for (ls__link *link = ls__listener_next(j->listener); link != NULL;
         link = ls__listener_next(j->listener)) {
        int at = 0;
        while (at < j->count && (j->attempt[at].link != NULL || j->attempt[at].retry_ns != 0)) {
            at++;
        }
        if (at == j->room) {
            ls__link_close(link);
            continue;
        }
        j->count = at == j->count ? at + 1 : j->count;
        j->attempt[at] = (attempt){.link = link, .peer = -1, .index = -1, .proven = true};
        LS_TRY(watch(j, ls__link_fd(link)));
    }
    return LS_OK;
}

/* ---- all of it ---------------------------------------------------------------------------- */

/* Names one pair without a connection and the likely reasons. */
static ls_status fail_missing(const joining *j)
{
    for (int r = 0; r < j->spec->size; r++) {
        for (int i = 0; j->spec->remote[r] && i < j->tcp->connections; i++) {
            if (j->tcp->peer[r].connection[i].link == NULL) {
                return ls__fail(LS_ERR_TIMEOUT,
                                "ls_init: no connection between rank %d and rank %d within %.1f s: "
                                "this rank listens on %s port %d; is that address reachable from "
                                "the other host (firewall, LOCKSTEP_IFNAME)?%s%s",
                                j->spec->rank, r, (double)j->spec->timeout_ms * 1e-3,
                                j->spec->address, ls__listener_port(j->listener),
                                j->refused[0] != '\0' ? " The last refusal: " : "", j->refused);
            }
        }
    }
    return LS_OK;
}

/* Makes those connections again whose time has come, and lowers *look to the next such time. */
static ls_status retry(joining *j, uint64_t now, uint64_t *look)
{
    for (int i = 0; i < j->count; i++) {
        attempt *k = &j->attempt[i];
        if (k->retry_ns != 0 && now >= k->retry_ns) {
            k->retry_ns = 0;
            LS_TRY(connect_to(j, k));
        }
        *look = k->retry_ns != 0 && k->retry_ns < *look ? k->retry_ns : *look;
    }
    return LS_OK;
}

static bool has_root_cause(const joining *j)
{
    return j->spec->board != NULL && ls__board_has_cause(j->spec->board);
}

static ls_status fail_by_root_cause(const joining *j)
{
    return ls__fail(LS_ERR_PEER, "ls_init: %.1000s", j->spec->board->root_cause_text);
}

/* A connection that fails is most often the trace of a rank that has died, and the launcher's root
 * cause says more about it: a short wait for that, then this rank's own text. */
static ls_status explain(const joining *j, ls_status status)
{
    char own[LS__MESSAGE_MAX];
    const uint64_t deadline = j->env->now_ns(j->env) + GRACE_NS;
    if (status == LS_OK || status == LS_ERR_TIMEOUT || status == LS_ERR_MISMATCH ||
        j->spec->board == NULL || j->spec->board->launcher_pid == 0) {
        return status;
    }
    snprintf(own, sizeof own, "%s", ls_error_message());
    for (uint64_t now = 0; !has_root_cause(j) && now < deadline; now = j->env->now_ns(j->env)) {
        j->env->sleep_until(j->env, j->env->now_ns(j->env) + GRACE_LOOK_NS);
    }
    return has_root_cause(j) ? fail_by_root_cause(j) : ls__fail_again(status, own);
}

/* Turns until all connections are made, the root cause of a failure is known, or time is up. */
static ls_status run_joining(joining *j)
{
    ls__env_ready ready[READY_ROOM];
    while (j->missing > 0) {
        if (has_root_cause(j)) {
            return fail_by_root_cause(j);
        }
        LS_TRY(accept_all(j));
        for (int i = 0; i < j->count; i++) {
            if (j->attempt[i].link != NULL) {
                LS_TRY(advance(j, &j->attempt[i]));
            }
        }
        const uint64_t now = j->env->now_ns(j->env);
        const uint64_t listener = ls__listener_deadline(j->listener);
        uint64_t look = now + LOOK_NS < listener ? now + LOOK_NS : listener;
        LS_TRY(retry(j, now, &look));
        if (j->missing > 0 && now >= ls__arrival_deadline(j->spec->arrival, j->begin_ns)) {
            return fail_missing(j);
        }
        if (j->missing > 0) {
            (void)j->env->poller_wait(j->env, j->poller, ready, READY_ROOM, look);
        }
    }
    return LS_OK;
}

static ls_status open_listener(joining *j)
{
    LS_TRY(ls__listener_open(&j->spec->link, j->spec->address, 0, &j->listener));
    return watch(j, ls__listener_fd(j->listener));
}

/* The whole procedure except the release of its memory. */
static ls_status make_connections(joining *j, void (*known)(void *arg, int peer, const char *about),
                                  void *arg)
{
    if (j->poller < 0 || j->attempt == NULL) {
        return ls__fail(LS_ERR_SYSTEM, "ls_init: cannot get a poller and memory for %d ranks: %s",
                        j->spec->size, j->poller < 0 ? strerror(-j->poller) : "no memory");
    }
    LS_TRY(open_listener(j));
    LS_TRY(publish(j));
    LS_TRY(dial_all(j, known, arg));
    return run_joining(j);
}

/* Collective over all ranks of the job that have remote peers. Links that did not become
 * connections are closed in any case. */
ls_status ls__tcp_join(ls__tcp *tcp, const ls__tcp_spec *spec,
                       void (*known)(void *arg, int peer, const char *about), void *arg)
{
    const ls__env *env = spec->link.env;
    joining j = {.tcp = tcp, .spec = spec, .env = env, .begin_ns = env->now_ns(env)};
    j.room = spec->size * tcp->connections;
    const size_t bytes = (size_t)j.room * sizeof *j.attempt;
    j.poller = env->poller_open(env);
    j.attempt = env->allocate(env, bytes);
    const ls_status status = explain(&j, make_connections(&j, known, arg));
    for (int i = 0; i < j.count; i++) {
        drop(&j, &j.attempt[i]);
    }
    ls__listener_close(j.listener);
    if (j.poller >= 0) {
        env->close(env, j.poller);
    }
    if (j.attempt != NULL) {
        env->release(env, j.attempt, bytes);
    }
    return status;
}
