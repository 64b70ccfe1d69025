/* Making the connections of the TCP transport, all at once, in ls_init.
 *
 * Every rank opens a door, publishes where it is, and reads where all far ranks are: when a rank
 * has read that, all doors are open. It then connects to the lower ones and lets the higher ones
 * in. Behind the proof of the link comes one HELLO that says which connection this is.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "comm/transport/tcp_wire.h"
#include "job/link/listener.h"

#define HELLO_MAGIC 0x4c534845u /* "LSHE" */
#define CARD_MAX 512
#define AGAIN_NS 50000000u
#define LOOK_NS 50000000u    /* between two looks at what nobody wakes us for */
#define GRACE_NS 1000000000u /* for the verdict about a connection that failed */
#define GRACE_LOOK_NS 5000000u
#define READY_ROOM 16

typedef struct hello {
    uint32_t magic;
    int32_t from, to, index;
    uint32_t generation, connections;
    uint64_t job;
} hello;

typedef struct knock { /* a link on its way to be a connection */
    ls__link *link;
    int peer, index; /* of one that is made here; -1: one that was let in */
    bool proven;
    size_t got; /* bytes of `said` */
    hello said;
    char address[LS__ADDRESS_MAX]; /* of one that is made here: it may have to come again */
    int port;
    uint64_t again_ns; /* when, while there is no link */
} knock;

typedef struct joining {
    ls__tcp *tcp;
    const ls__tcp_spec *spec;
    const ls__env *env;
    ls__listener *door;
    int poller;
    knock *knock; /* [room] */
    int room, count;
    int missing; /* connections that are not there yet */
    uint64_t deadline_ns;
    char refused[256]; /* why a connection had to be made again, the last time */
} joining;

/* ---- cards: who is where ------------------------------------------------------------------ */

typedef struct card {
    char address[LS__ADDRESS_MAX];
    int port;
    const char *about, *config; /* in the text */
} card;

static ls_status publish(const joining *j)
{
    char key[32], text[CARD_MAX];
    snprintf(key, sizeof key, "net/%d", j->spec->rank);
    const int bytes = snprintf(text, sizeof text, "%s\n%d\n%s\n%s", j->spec->address,
                               ls__listener_port(j->door), j->spec->about, j->spec->config);
    return ls_store_set(j->spec->store, key, text, (size_t)bytes, j->spec->timeout_ms);
}

/* The text up to the line's end, which becomes its end. */
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

static ls_status read_card(const joining *j, int peer, char text[CARD_MAX], card *out)
{
    char key[32];
    size_t bytes = CARD_MAX - 1;
    snprintf(key, sizeof key, "net/%d", peer);
    ls_status status = ls_store_get(j->spec->store, key, text, &bytes, j->spec->timeout_ms);
    if (status != LS_OK) {
        return ls__fail_within(status, "ls_init: waiting for rank %d", peer);
    }
    text[bytes] = '\0';
    char *at = text;
    const char *address = next_line(&at), *port = next_line(&at);
    out->about = next_line(&at);
    out->config = at;
    if (at == NULL || sscanf(port, "%d", &out->port) != 1) {
        return ls__fail(LS_ERR_PEER,
                        "ls_init: what rank %d published is no address; do all ranks run the same "
                        "build?",
                        peer);
    }
    snprintf(out->address, sizeof out->address, "%s", address);
    if (strcmp(out->config, j->spec->config) != 0) {
        return ls__fail(LS_ERR_MISMATCH,
                        "ls_init: ranks are set up differently: rank %d has \"%s\", rank %d has "
                        "\"%s\"; start all ranks with the same build and LOCKSTEP_* settings",
                        j->spec->rank, j->spec->config, peer, out->config);
    }
    return LS_OK;
}

/* ---- connecting --------------------------------------------------------------------------- */

static void drop(joining *j, knock *k)
{
    if (k->link != NULL) {
        (void)j->env->poller_remove(j->env, j->poller, ls__link_fd(k->link));
        ls__link_close(k->link);
        k->link = NULL;
    }
}

static ls_status watch(const joining *j, int fd)
{
    const int error = j->env->poller_add(j->env, j->poller, fd, 0);
    return error == 0
               ? LS_OK
               : ls__fail(LS_ERR_SYSTEM, "ls_init: watching a connection: %s", strerror(-error));
}

static ls_status connect_to(const joining *j, knock *k)
{
    const char *from = strcmp(j->spec->address, k->address) == 0 ? NULL : j->spec->address;
    LS_TRY(ls__link_connect(&j->spec->link, k->address, k->port, from, &k->link));
    return watch(j, ls__link_fd(k->link));
}

static ls_status dial(joining *j, int peer, const card *c)
{
    for (int i = 0; i < j->tcp->connections; i++) {
        knock *k = &j->knock[j->count++];
        *k = (knock){.peer = peer, .index = i, .port = c->port};
        memcpy(k->address, c->address, sizeof k->address);
        LS_TRY(connect_to(j, k));
    }
    return LS_OK;
}

/* A door full of strangers shuts out friends, too (door.h): they come again. */
static void come_again(joining *j, knock *k)
{
    snprintf(j->refused, sizeof j->refused, "%s", ls_error_message());
    drop(j, k);
    k->again_ns = j->env->now_ns(j->env) + AGAIN_NS;
}

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

static ls_status take_in(joining *j, knock *k, int peer, int index)
{
    (void)j->env->poller_remove(j->env, j->poller, ls__link_fd(k->link));
    ls__link *link = k->link;
    k->link = NULL;
    j->missing--;
    return ls__tcp_adopt(j->tcp, peer, index, link);
}

static ls_status say_hello(joining *j, knock *k)
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
        return ls__fail(LS_ERR_PEER, "ls_init: greeting rank %d: %s", k->peer,
                        put < 0 ? strerror((int)-put) : "no room");
    }
    (void)ls__link_flush(k->link);
    return take_in(j, k, k->peer, k->index);
}

static bool is_welcome(const joining *j, const hello *h)
{
    return h->magic == HELLO_MAGIC && h->to == j->spec->rank && h->from > j->spec->rank &&
           h->from < j->spec->size && j->spec->remote[h->from] && h->index >= 0 &&
           h->index < j->tcp->connections && h->connections == (uint32_t)j->tcp->connections &&
           h->generation == j->spec->generation && h->job == j->spec->link.job &&
           j->tcp->peer[h->from].connection[h->index].link == NULL;
}

static ls_status hear_hello(joining *j, knock *k)
{
    while (k->got < sizeof k->said) {
        const ssize_t got =
            ls__link_read(k->link, (unsigned char *)&k->said + k->got, sizeof k->said - k->got);
        if (got == -EAGAIN) {
            return LS_OK;
        }
        if (got <= 0) {
            drop(j, k); /* whoever it was comes again, or is reported as missing */
            return LS_OK;
        }
        k->got += (size_t)got;
    }
    if (!is_welcome(j, &k->said)) {
        return ls__fail(LS_ERR_PEER,
                        "ls_init: a connection from %s says that it is number %d of rank %d to "
                        "rank %d, generation %u, which is not expected here; do all ranks run the "
                        "same build and settings?",
                        ls__link_peer(k->link), (int)k->said.index, (int)k->said.from,
                        (int)k->said.to, k->said.generation);
    }
    return take_in(j, k, k->said.from, k->said.index);
}

static ls_status advance(joining *j, knock *k)
{
    if (!k->proven) {
        const ls_status status = ls__link_handshake(k->link);
        if (status == LS_IN_PROGRESS) {
            return LS_OK;
        }
        if (status == LS_ERR_PEER && k->index >= 0) {
            come_again(j, k);
            return LS_OK;
        }
        if (status != LS_OK) {
            return ls__fail_within(status, "ls_init: connecting to rank %d", k->peer);
        }
        k->proven = true;
    }
    return k->index >= 0 ? say_hello(j, k) : hear_hello(j, k);
}

static ls_status let_in(joining *j)
{
    for (ls__link *link = ls__listener_next(j->door); link != NULL;
         link = ls__listener_next(j->door)) {
        int at = 0;
        while (at < j->count && (j->knock[at].link != NULL || j->knock[at].again_ns != 0)) {
            at++;
        }
        if (at == j->room) {
            ls__link_close(link); /* more than can be: not one of ours */
            continue;
        }
        j->count = at == j->count ? at + 1 : j->count;
        j->knock[at] = (knock){.link = link, .peer = -1, .index = -1, .proven = true};
        LS_TRY(watch(j, ls__link_fd(link)));
    }
    return LS_OK;
}

/* ---- all of it ---------------------------------------------------------------------------- */

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
                                j->spec->address, ls__listener_port(j->door),
                                j->refused[0] != '\0' ? " The last refusal: " : "", j->refused);
            }
        }
    }
    return LS_OK;
}

/* Makes the connections anew whose time has come; *look is not later than the next one's. */
static ls_status knock_again(joining *j, uint64_t now, uint64_t *look)
{
    for (int i = 0; i < j->count; i++) {
        knock *k = &j->knock[i];
        if (k->again_ns != 0 && now >= k->again_ns) {
            k->again_ns = 0;
            LS_TRY(connect_to(j, k));
        }
        *look = k->again_ns != 0 && k->again_ns < *look ? k->again_ns : *look;
    }
    return LS_OK;
}

static bool has_verdict(const joining *j)
{
    const ls__board *board = j->spec->board;
    return board != NULL && atomic_load_explicit(&board->verdict, memory_order_acquire) != 0;
}

static ls_status fail_by_verdict(const joining *j)
{
    return ls__fail(LS_ERR_PEER, "ls_init: %.1000s", j->spec->board->verdict_text);
}

/* A connection that fails is most often the trace of a rank that died, about which the launcher's
 * verdict says more: it is waited for. */
static ls_status explain(const joining *j, ls_status status)
{
    char own[LS__MESSAGE_MAX];
    const uint64_t deadline = j->env->now_ns(j->env) + GRACE_NS;
    if (status == LS_OK || status == LS_ERR_TIMEOUT || status == LS_ERR_MISMATCH ||
        j->spec->board == NULL || j->spec->board->launcher_pid == 0) {
        return status;
    }
    snprintf(own, sizeof own, "%s", ls_error_message());
    for (uint64_t now = 0; !has_verdict(j) && now < deadline; now = j->env->now_ns(j->env)) {
        j->env->sleep_until(j->env, j->env->now_ns(j->env) + GRACE_LOOK_NS);
    }
    return has_verdict(j) ? fail_by_verdict(j) : ls__fail_again(status, own);
}

static ls_status run(joining *j)
{
    ls__env_ready ready[READY_ROOM];
    while (j->missing > 0) {
        if (has_verdict(j)) {
            return fail_by_verdict(j);
        }
        LS_TRY(let_in(j));
        for (int i = 0; i < j->count; i++) {
            if (j->knock[i].link != NULL) {
                LS_TRY(advance(j, &j->knock[i]));
            }
        }
        const uint64_t now = j->env->now_ns(j->env);
        const uint64_t door = ls__listener_deadline(j->door);
        uint64_t look = now + LOOK_NS < door ? now + LOOK_NS : door;
        LS_TRY(knock_again(j, now, &look));
        if (j->missing > 0 && now >= j->deadline_ns) {
            return fail_missing(j);
        }
        if (j->missing > 0) {
            (void)j->env->poller_wait(j->env, j->poller, ready, READY_ROOM, look);
        }
    }
    return LS_OK;
}

static ls_status open_door(joining *j)
{
    LS_TRY(ls__listener_open(&j->spec->link, j->spec->address, 0, &j->door));
    return watch(j, ls__listener_fd(j->door));
}

ls_status ls__tcp_join(ls__tcp *tcp, const ls__tcp_spec *spec,
                       void (*known)(void *arg, int peer, const char *about), void *arg)
{
    const ls__env *env = spec->link.env;
    joining j = {.tcp = tcp, .spec = spec, .env = env};
    j.room = spec->size * tcp->connections;
    j.deadline_ns = ls__deadline_after(env, spec->timeout_ms);
    const size_t bytes = (size_t)j.room * sizeof *j.knock;
    j.poller = env->poller_open(env);
    j.knock = env->allocate(env, bytes);
    ls_status status = LS_OK;
    if (j.poller < 0 || j.knock == NULL) {
        status = ls__fail(LS_ERR_SYSTEM, "ls_init: a poller and memory for %d ranks: %s",
                          spec->size, j.poller < 0 ? strerror(-j.poller) : "no memory");
    }
    status = status == LS_OK ? open_door(&j) : status;
    status = status == LS_OK ? publish(&j) : status;
    status = status == LS_OK ? dial_all(&j, known, arg) : status;
    status = explain(&j, status == LS_OK ? run(&j) : status);
    for (int i = 0; i < j.count; i++) {
        drop(&j, &j.knock[i]);
    }
    ls__listener_close(j.door);
    if (j.poller >= 0) {
        env->close(env, j.poller);
    }
    if (j.knock != NULL) {
        env->release(env, j.knock, bytes);
    }
    return status;
}
