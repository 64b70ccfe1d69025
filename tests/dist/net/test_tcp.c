/* SPDX-License-Identifier: Apache-2.0 */
/* Between hosts: what wires do. Every rank is on a pretended host of its own. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <lockstep/comm.h>
#include <lockstep/store.h>

#include "comm/core/comm.h"
#include "comm/core/progress_lock.h"
#include "comm/core/remote_rank.h"
#include "comm/core/wake.h"
#include "comm/remote/remote.h"
#include "comm/transport/tcp_wire.h"
#include "job/link/internal.h"
#include "says.h"
#include "test.h"

__attribute__((constructor)) static void on_hosts_of_their_own(void)
{
    setenv("LOCKSTEP_HOSTS", "64", 1);
}

static ls__comm *comm_now(void)
{
    return ls_world()->comm;
}

static ls__tcp_connection *connection_to(int peer, int index)
{
    return &((ls__tcp *)comm_now()->remote->net)->peer[peer].connection[index];
}

static void sum_is_right(int64_t count)
{
    float *x = malloc((size_t)count * sizeof *x + 1);
    const int n = ls_world_size();
    CHECK(x != NULL);
    for (int64_t i = 0; i < count; i++) {
        x[i] = (float)(i % 1000 + ls_rank());
    }
    CHECK_OK(ls_all_reduce(ls_world(), x, x, count, LS_FLOAT32, LS_SUM, NULL, NULL));
    for (int64_t i = 0; i < count; i++) {
        CHECK(x[i] == (float)(i % 1000 * n + n * (n - 1) / 2));
    }
    free(x);
}

static void sums_over_connections(void)
{
    static const int64_t counts[] = {0, 1, 17, 1023, 70001, 3000017};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        sum_is_right(counts[i]);
    }
}

/* A rank joins once, so the number is set for the whole process that runs the test. */
static int sums(void *arg)
{
    setenv("LOCKSTEP_TCP_CONNECTIONS", arg, 1);
    CHECK_OK(ls_init(NULL));
    sums_over_connections();
    CHECK_INT(((ls__tcp *)comm_now()->remote->net)->connections, atoi(arg));
    CHECK_OK(ls_finalize());
    return 0;
}

TEST(frames_keep_their_order_over_1_3_and_8_connections)
{
    CHECK_OK(ls_spawn(sums, (void *)(uintptr_t) "1", 3));
    CHECK_OK(ls_spawn(sums, (void *)(uintptr_t) "3", 3));
    CHECK_OK(ls_spawn(sums, (void *)(uintptr_t) "8", 2));
}

/* Both ends name the same pair, within the second that a launcher is given to know better. */
static void check_named(double begin, const char *why)
{
    CHECK_WITHIN(ls_time() - begin, 3);
    CHECK_SAYS(ls_error_message(),
               "the connection between rank %d (host %.63s) and rank %d broke (%s), and no "
               "launcher has reported why: %s; check that host and the network between "
               "(unconfirmed)");
    CHECK_CONTAINS(ls_error_message(), why);
}

DIST_TEST(a_connection_that_is_reset_is_named_by_all, 3)
{
    float x = 1;
    ls_group *group = NULL;
    CHECK_OK(ls_group_new(ls_world(), NULL, 0, "trio", &group));
    const double begin = ls_time();
    ls_status status = ls_barrier(ls_world(), NULL, NULL); /* the cut may find rank 2 in it */
    if (ls_rank() == 1) {
        CHECK_OK(status);
        ls__progress_take(comm_now());
        (void)shutdown(ls__link_fd(connection_to(2, 0)->link), SHUT_RDWR);
        ls__progress_release(comm_now());
    }
    while (status == LS_OK) {
        status = ls_all_reduce(group, &x, &x, 1, LS_FLOAT32, LS_MAX, NULL, NULL);
    }
    CHECK_STATUS(status, LS_ERR_PEER);
    check_named(begin, "broke");
    static char texts[3][LS__FAILURE_MAX];
    char key[8] = {'t', (char)('0' + ls_rank()), '\0'};
    const char *mine = ls_error_message();
    CHECK_OK(ls_store_set(ls_runtime_store(), key, mine, strlen(mine) + 1, -1));
    for (int r = 0; r < 3; r++) {
        size_t bytes = sizeof texts[r];
        key[1] = (char)('0' + r);
        CHECK_OK(ls_store_get(ls_runtime_store(), key, texts[r], &bytes, -1));
    }
    CHECK(strcmp(texts[0], texts[1]) == 0 && strcmp(texts[1], texts[2]) == 0);
}

/* Rank 1 does nothing more until rank 0 has told it. */
DIST_TEST(a_connection_that_the_other_side_closes_is_told, 2)
{
    float x = 1;
    int64_t unused = 0;
    ls_status status = ls_barrier(ls_world(), NULL, NULL); /* the end may find rank 0 in it */
    if (ls_rank() == 1) {
        CHECK_OK(status);
        ls__progress_take(comm_now());
        (void)shutdown(ls__link_fd(connection_to(0, 0)->link), SHUT_RDWR);
        CHECK_OK(ls_store_wait(ls_runtime_store(), "told", -1));
        ls__progress_release(comm_now());
        return;
    }
    if (status == LS_OK) {
        status = ls_all_reduce(ls_world(), &x, &x, 1, LS_FLOAT32, LS_SUM, NULL, NULL);
    }
    CHECK_STATUS(status, LS_ERR_PEER);
    CHECK_SAYS(ls_error_message(), "closed by the other side");
    CHECK_OK(ls_store_add(ls_runtime_store(), "told", 1, &unused, -1));
}

/* Its activity is known by its heartbeats, two a second. */
DIST_TEST(a_rank_of_another_host_that_computes_is_said_to_be_in_its_own_code, 2)
{
    float x = 1;
    const ls__env *env = comm_now()->env;
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
    CHECK_OK(ls_barrier(ls_world(), LS_OPTIONS(ls_collective_options, .tag = "second"), NULL));
    if (ls_rank() == 1) {
        env->sleep_until(env, env->now_ns(env) + 3000000000u);
        return;
    }
    CHECK_STATUS(ls_all_reduce(ls_world(), &x, &x, 1, LS_FLOAT32, LS_SUM,
                               LS_OPTIONS(ls_collective_options, .timeout_ms = 2000), NULL),
                 LS_ERR_TIMEOUT);
    CHECK_CONTAINS(ls_error_message(), "rank 1 (host ");
    CHECK_CONTAINS(ls_error_message(), "in its own code for ");
    CHECK_CONTAINS(ls_error_message(), "last operation: barrier #2 \"second\" of group \"world\"");
}

/* Bytes that no frame is made of: rank 1 writes into the stream to rank 0. */
DIST_TEST(what_is_no_frame_ends_the_connection_with_words, 2)
{
    float x = 1;
    const double begin = ls_time();
    ls_status status = ls_barrier(ls_world(), NULL, NULL); /* rank 0 may see the bytes in it */
    if (ls_rank() == 1) {
        ls__progress_take(comm_now());
        CHECK_INT(send(ls__link_fd(connection_to(0, 0)->link),
                       "0123456789abcdef0123456789abcdef0123456789abcdef", 48, 0),
                  48);
        ls__progress_release(comm_now());
    }
    while (status == LS_OK) {
        status = ls_all_reduce(ls_world(), &x, &x, 1, LS_FLOAT32, LS_MAX, NULL, NULL);
    }
    CHECK_STATUS(status, LS_ERR_PEER);
    CHECK_WITHIN(ls_time() - begin, 1);
    CHECK_SAYS(ls_error_message(), "data from rank %d arrived damaged at rank %d (%s)");
    CHECK_SAYS(ls_error_message(), "the data is not a frame (damaged, or not sent by a rank)");
}

/* By both ends: the one that sent it must not read that the other has closed the connection. */
static void check_damage_named(void)
{
    CHECK_SAYS(ls_error_message(), "data from rank %d arrived damaged at rank %d (%s)");
    CHECK_SAYS(ls_error_message(),
               "a frame arrived damaged (CRC-32C); look for bad memory or a bad "
               "network card on either host");
}

/* One bit of a sound frame's payload is flipped on its way. */
DIST_TEST(a_flipped_bit_is_seen, 2)
{
    ls__comm *comm = comm_now();
    float x = 1;
    /* of two connections the damaged frame may come first: rank 0 is then still in the barrier */
    ls_status status = ls_barrier(ls_world(), NULL, NULL);
    if (ls_rank() == 1) {
        CHECK_OK(status);
        ls__progress_take(comm);
        ls__transport *t = comm->transport;
        ls__message *message = t->reserve(t, 0);
        CHECK(message != NULL);
        *message = (ls__message){.kind = LS__MESSAGE_FINISHED, .bytes = 100};
        memset(message->payload, 1, 100);
        ls__tcp_connection *c = connection_to(0, ((ls__tcp *)comm->remote->net)->peer[0].reserved);
        atomic_store(&c->ready, 0);
        c->can_write = false; /* keeps it here */
        t->commit(t, 0);
        message->payload[50] ^= 4;
        c->can_write = true;
        ls__progress_release(comm);
    }
    while (status == LS_OK) {
        status = ls_all_reduce(ls_world(), &x, &x, 1, LS_FLOAT32, LS_MAX, NULL, NULL);
    }
    CHECK_STATUS(status, LS_ERR_PEER);
    check_damage_named();
}

/* ---- long payloads, which are received straight into their places ------------------------- */

static unsigned char *struck; /* the byte that is changed on its way, in the sender's payload */

/* Sends as the real table does, but a bit of the struck byte is flipped. */
static ssize_t send_damaged(const ls__env *env, int fd, const ls__env_span *spans, int count)
{
    const ls__env *real = ls__env_posix();
    bool hit = false;
    (void)env;
    for (int i = 0; i < count; i++) {
        hit = hit || (uintptr_t)struck - (uintptr_t)spans[i].at < spans[i].bytes;
    }
    *struck ^= hit ? 4 : 0;
    const ssize_t put = real->send_spans(real, fd, spans, count);
    *struck ^= hit ? 4 : 0;
    return put;
}

/* From now on this rank's frames to `peer` are damaged, after their checksums were computed. */
static void damage_frames_to(int peer)
{
    static ls__env damaging;
    damaging = *ls__env_posix();
    damaging.send_spans = send_damaged;
    ls__progress_take(comm_now());
    for (int i = 0; i < ((ls__tcp *)comm_now()->remote->net)->connections; i++) {
        connection_to(peer, i)->link->env = &damaging;
    }
    ls__progress_release(comm_now());
}

/* The connections go on sending, so the payload may be freed only after this. */
static void damage_no_more(void)
{
    static unsigned char unsent;
    ls__progress_take(comm_now());
    struck = &unsent;
    ls__progress_release(comm_now());
}

/* Whether the payload of a frame from `peer` was being received into its place. */
static bool received_in_place(int peer)
{
    bool apart = false;
    ls__progress_take(comm_now());
    for (int i = 0; i < ((ls__tcp *)comm_now()->remote->net)->connections; i++) {
        apart = apart || connection_to(peer, i)->apart;
    }
    ls__progress_release(comm_now());
    return apart;
}

typedef ls_status transfer(unsigned char *x, int64_t bytes, ls_work **work); /* from rank 1 */

static ls_status broadcast(unsigned char *x, int64_t bytes, ls_work **work)
{
    return ls_broadcast(ls_world(), x, bytes, LS_UINT8, 1, NULL, work);
}

static ls_status message(unsigned char *x, int64_t bytes, ls_work **work)
{
    return ls_rank() == 0 ? ls_recv(ls_world(), x, bytes, LS_UINT8, 1, 0, NULL, work)
                          : ls_send(ls_world(), x, bytes, LS_UINT8, 0, 0, NULL, work);
}

/* A frame of a broadcast may overtake, on another connection, those before it. Its place is not
 * known then, so it waits behind its head. That of a message is. */
static bool can_overtake(transfer *start, int64_t bytes)
{
    return start == broadcast && bytes > (int64_t)LS__TCP_PAYLOAD;
}

/* Byte `at` of rank 1's data arrives damaged, so rank 0's operation must fail. The store says that
 * rank 0 has called it, so that the place is known. */
static void check_damaged(transfer *start, int64_t bytes, int64_t at)
{
    unsigned char *x = calloc(1, (size_t)bytes);
    ls_work *work = NULL;
    CHECK(x != NULL);
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
    if (ls_rank() == 0) {
        CHECK_OK(start(x, bytes, &work));
        CHECK_OK(ls_store_set(ls_runtime_store(), "waits", "", 1, -1));
        CHECK_STATUS(ls_work_wait(work), LS_ERR_PEER);
        check_damage_named();
        CHECK(received_in_place(1) || can_overtake(start, bytes));
    } else {
        struck = x + at;
        damage_frames_to(0);
        CHECK_OK(ls_store_wait(ls_runtime_store(), "waits", -1));
        ls_status status = start(x, bytes, NULL);
        while (status == LS_OK) {
            status = ls_barrier(ls_world(), NULL, NULL);
        }
        CHECK_STATUS(status, LS_ERR_PEER);
        check_damage_named();
        damage_no_more();
    }
    free(x);
}

/* The sender sees a connection that the receiver has closed; the job's root cause is the damage,
 * not that. */
static int ends_by_damage(void *arg)
{
    static unsigned char x[50000];
    const int sender = *(const int *)arg;
    CHECK_OK(ls_init(NULL));
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
    if (ls_rank() == sender) {
        struck = x + 20000;
        damage_frames_to(1 - sender);
    }
    ls_status status = LS_OK;
    while (status == LS_OK) {
        status = ls_broadcast(ls_world(), x, sizeof x, LS_UINT8, sender, NULL, NULL);
    }
    return 1;
}

TEST(damaged_data_is_the_root_cause_of_the_job)
{
    for (int sender = 0; sender < 2; sender++) {
        CHECK_STATUS(ls_spawn(ends_by_damage, &sender, 2), LS_ERR_PEER);
        CHECK_CONTAINS(ls_error_message(), "arrived damaged at rank");
        CHECK_CONTAINS(ls_error_message(), "a frame arrived damaged (CRC-32C)");
        CHECK(!test_contains(ls_error_message(), "closed by the other side"));
    }
}

/* The shortest payload that has a place, its last byte, some within a frame, the end of a full one,
 * and the end of many frames over all connections. Messages have a place beyond one frame. */
#define DAMAGED(transfer, bytes, at)                                                               \
    DIST_TEST(a_flipped_bit_is_seen_in_a_##transfer##_of_##bytes##_bytes, 2)                       \
    {                                                                                              \
        check_damaged(transfer, bytes, at);                                                        \
    }
DAMAGED(broadcast, 16384, 0)
DAMAGED(broadcast, 16387, 16386)
DAMAGED(broadcast, 70001, 35000)
DAMAGED(broadcast, 262144, 262143)
DAMAGED(broadcast, 3000017, 3000016)
DAMAGED(message, 300000, 262144)
DAMAGED(message, 3000017, 1500000)

DIST_TEST(a_rank_that_leaves_has_delivered_everything, 3)
{
    enum { COUNT = 100000 };
    static int32_t x[COUNT];
    ls_work *work[3] = {NULL};
    if (ls_rank() != 0) {
        for (int i = 0; i < COUNT; i++) {
            x[i] = i + ls_rank();
        }
        CHECK_OK(ls_send(ls_world(), x, COUNT, LS_INT32, 0, 3, NULL, NULL));
        return; /* and leaves, while rank 0 sleeps */
    }
    const ls__env *env = comm_now()->env;
    for (int r = 1; r < 3; r++) {
        static int32_t got[3][COUNT];
        CHECK_OK(ls_recv(ls_world(), got[r], COUNT, LS_INT32, r, 3, NULL, &work[r]));
        env->sleep_until(env, env->now_ns(env) + 100000000u);
        CHECK_OK(ls_work_wait(work[r]));
        for (int i = 0; i < COUNT; i++) {
            CHECK_INT(got[r][i], i + r);
        }
    }
}

/* What waits to be sent, and what peers send ahead, is moved by the engine's thread while the user
 * computes; a driver that leaves calls it back. */
DIST_TEST(the_thread_comes_back_when_a_driver_has_left, 2)
{
    ls__comm *comm = comm_now();
    const ls__env *env = comm->env;
    int soon = 0;
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
    for (int i = 0; i < 100 && soon < 3; i++) { /* a busy machine may be late many times */
        ls__progress_take(comm);
        while (atomic_load(&comm->drive.thread_away) == 0) {
            ls__remote_ring(comm, ls_rank());
            env->sleep_until(env, env->now_ns(env) + 1000000u);
        }
        env->sleep_until(env, env->now_ns(env) + 25000000u);
        ls__progress_release(comm);
        const double begin = ls_time();
        while (atomic_load(&comm->drive.thread_away) != 0) {
            env->sleep_until(env, env->now_ns(env) + 1000000u);
        }
        soon += ls_time() - begin < 0.05;
    }
    CHECK(soon >= 3); /* without a call it is a tenth of a second each time */
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
}

static void stop_for(unsigned seconds)
{
    const pid_t self = getpid();
    const pid_t helper = fork();
    CHECK(helper >= 0);
    if (helper == 0) {
        (void)sleep(seconds);
        (void)kill(self, SIGCONT);
        _exit(0);
    }
    CHECK(raise(SIGSTOP) == 0);
    CHECK(waitpid(helper, NULL, 0) == helper);
}

static char heartbeats[2000]; /* what was warned of */

static void keep_heartbeats(ls_log_level level, const char *text, void *arg)
{
    const size_t used = strlen(heartbeats);
    (void)level;
    (void)arg;
    if (strstr(text, "heartbeat") != NULL) {
        snprintf(heartbeats + used, sizeof heartbeats - used, "%s\n", text);
    }
}

/* Each rank waits for the other. Rank 1 does nothing for a while, as if it was stopped, and then
 * looks for silent ranks before it has read what came meanwhile. */
DIST_TEST(a_rank_that_stands_still_is_warned_of_and_blames_nobody, 2)
{
    ls_work *work = NULL;
    float x = 1, y = 0;
    const int other = 1 - ls_rank();
    const ls__env *env = comm_now()->env;
    ls_set_log_callback(keep_heartbeats, NULL);
    CHECK_OK(ls_recv(ls_world(), &y, 1, LS_FLOAT32, other, 0, NULL, &work));
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
    if (ls_rank() == 1) {
        ls__progress_take(comm_now());
        env->sleep_until(env, env->now_ns(env) + 4000000000u);
        ls__remote_check(comm_now(), env->now_ns(env));
        ls__progress_release(comm_now());
        env->sleep_until(env, env->now_ns(env) + 500000000u); /* for some checks */
    }
    const double begin = ls_time();
    while (ls_rank() == 0 && strstr(heartbeats, "again") == NULL && ls_time() - begin < 30) {
        env->sleep_until(env, env->now_ns(env) + 10000000u);
    }
    CHECK_OK(ls_send(ls_world(), &x, 1, LS_FLOAT32, other, 0, NULL, NULL));
    CHECK_OK(ls_work_wait(work));
    ls_set_log_callback(NULL, NULL);
    if (ls_rank() == 1) {
        CHECK_STR(heartbeats, "");
        return;
    }
    CHECK_SAYS(heartbeats, "has sent no heartbeat for %.1f s (stopped, or cut off),");
    CHECK_SAYS(heartbeats, "rank %d sends heartbeats again");
}

/* Sends what nobody needs until frames wait that the network does not take. */
static void fill_connections(ls__comm *comm, int peer)
{
    ls__tcp *tcp = (ls__tcp *)comm->remote->net;
    uint64_t waiting = 0;
    ls__progress_take(comm);
    while (waiting < LS__TCP_SLOTS) {
        ls__message *message = comm->transport->reserve(comm->transport, peer);
        CHECK(message != NULL);
        *message = (ls__message){.kind = LS__MESSAGE_FINISHED, .bytes = LS__TCP_PAYLOAD};
        comm->transport->commit(comm->transport, peer);
        comm->transport->turn(comm->transport);
        waiting = 0;
        for (int i = 0; i < tcp->connections; i++) {
            const ls__tcp_connection *c = connection_to(peer, i);
            waiting += c->queued - c->sent;
        }
    }
    ls__progress_release(comm);
}

DIST_TEST(a_rank_that_leaves_waits_for_one_that_is_stopped_and_lacks_data, 2)
{
    const ls__env *env = comm_now()->env;
    float x = ls_rank() == 0 ? 7 : 0;
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
    if (ls_rank() == 1) {
        stop_for(3);
    } else {
        env->sleep_until(env, env->now_ns(env) + 300000000u);
        fill_connections(comm_now(), 1);
    }
    CHECK_OK(ls_broadcast(ls_world(), &x, 1, LS_FLOAT32, 0,
                          LS_OPTIONS(ls_collective_options, .algorithm = "binomial"), NULL));
    CHECK(x == 7);
}

TEST_MAIN
