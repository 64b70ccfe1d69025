/* SPDX-License-Identifier: Apache-2.0 */
/* What the store says when the system refuses it memory, descriptors or time. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "job/store/table.h"
#include "job/store/wire.h"
#include "says.h"
#include "serving.h"
#include "test.h"

/* ---- an env table that refuses --------------------------------------------------------------- */

static ls__env broken;
static uint64_t hands;

static void *no_memory(const ls__env *env, size_t bytes)
{
    (void)env;
    (void)bytes;
    return NULL;
}

static int no_sockets(const ls__env *env, int out[2])
{
    (void)env;
    (void)out;
    return -EMFILE;
}

static int unknown_user(const ls__env *env, int fd, uid_t *out)
{
    (void)env;
    (void)fd;
    (void)out;
    return -ENOPROTOOPT;
}

static int other_user(const ls__env *env, int fd, uid_t *out)
{
    (void)env;
    (void)fd;
    *out = 4711;
    return 0;
}

static uint64_t moved_clock(const ls__env *env)
{
    (void)env;
    return ls__env_posix()->now_ns(ls__env_posix()) + hands;
}

/* Nothing happens until the deadline, which comes at once. */
static int idle_poll(const ls__env *env, ls__env_poll *items, int count, uint64_t deadline)
{
    (void)items;
    (void)count;
    const uint64_t now = env->now_ns(env);
    hands += deadline > now ? deadline - now : 0;
    return 0;
}

/* The process is stopped in its first wait, and goes on a minute later. */
static int stopped_poll(const ls__env *env, ls__env_poll *items, int count, uint64_t deadline)
{
    (void)env;
    if (hands == 0) {
        hands = UINT64_C(60000000000);
        return 0;
    }
    return ls__env_posix()->poll(ls__env_posix(), items, count, deadline - hands);
}

static ssize_t full_send(const ls__env *env, int fd, const void *data, size_t bytes, int pass_fd)
{
    (void)env;
    (void)fd;
    (void)data;
    (void)bytes;
    (void)pass_fd;
    return -EAGAIN;
}

static int close_nothing(const ls__env *env, int fd)
{
    (void)env;
    (void)fd;
    return 0;
}

static const ls__env *broken_env(void)
{
    broken = *ls__env_posix();
    return &broken;
}

/* ---- the server ------------------------------------------------------------------------------ */

static const uint8_t secret[32];

TEST(a_server_without_memory_or_sockets_is_not_made)
{
    ls__store_server *server = NULL;
    const ls__env *env = broken_env();
    broken.allocate = no_memory;
    CHECK_STATUS(ls__store_server_new(env, secret, &server), LS_ERR_MEMORY);
    CHECK_SAYS(ls_error_message(), "no memory for the store (%zu bytes)");
    (void)broken_env();
    broken.socket_pair = no_sockets;
    CHECK_STATUS(ls__store_server_new(env, secret, &server), LS_ERR_SYSTEM);
    CHECK_SAYS(ls_error_message(), "cannot open a socket for the store: %s");
}

/* What the server says of a connection, after the env table has changed. */
static const char *adopting(const ls__env *env, ls__store_server *server, ls_status want)
{
    int pair[2];
    CHECK_INT(env->socket_pair(env, pair), 0);
    CHECK_STATUS(ls__store_server_adopt(server, pair[0]), want);
    env->close(env, pair[1]);
    return ls_error_message();
}

TEST(connections_that_cannot_be_taken_are_refused_in_words)
{
    ls__store_server *server = NULL;
    const ls__env *env = broken_env();
    CHECK_OK(ls__store_server_new(env, secret, &server));
    broken.peer_uid = unknown_user;
    CHECK_SAYS(adopting(env, server, LS_ERR_AUTH),
               "store: the user of a connection is unknown: %s");
    broken.peer_uid = other_user;
    CHECK_SAYS(adopting(env, server, LS_ERR_AUTH), "store: a connection of user %ld was refused");
    broken.peer_uid = ls__env_posix()->peer_uid;
    broken.allocate = no_memory;
    CHECK_SAYS(adopting(env, server, LS_ERR_MEMORY), "a store connection");
    ls__store_peer *host = NULL;
    CHECK_STATUS(ls__store_server_host(server, NULL, NULL, &host), LS_ERR_MEMORY);
    CHECK_SAYS(ls_error_message(), "the store's entry for another host");
    CHECK_INT(ls__store_server_clients(server), 0);
    ls__store_server_free(server);
}

static char answered[256];

static void keep_answer(void *arg, uint64_t id, const ls__wire_reply *reply)
{
    *(ls_status *)arg = (ls_status)reply->status;
    CHECK_INT(id, 5);
    CHECK(reply->bytes < sizeof answered);
    memcpy(answered, reply->value, reply->bytes);
    answered[reply->bytes] = '\0';
}

/* The server's answer to a request of another host. */
static ls_status ask(ls__store_peer *host, ls__wire_type type)
{
    uint8_t frame[128];
    const ls__wire_request r = {.type = type, .number = 60000, .key = "key", .key_bytes = 3};
    ls__wire_request_write(frame, 5, &r);
    CHECK(ls__store_peer_request(host, (uint16_t)type, 5, frame + LS__WIRE_HEADER,
                                 ls__wire_request_bytes(&r) - LS__WIRE_HEADER));
    return LS_OK;
}

TEST(another_host_gets_no_descriptors_and_learns_that_memory_is_short)
{
    ls__store_server *server = NULL;
    ls__store_peer *host = NULL;
    ls_status status = LS_OK;
    CHECK_OK(ls__store_server_new(broken_env(), secret, &server));
    CHECK_OK(ls__store_server_host(server, keep_answer, &status, &host));
    CHECK_OK(ask(host, LS__WIRE_PUT_FD));
    CHECK_INT(status, LS_ERR_FORMAT);
    CHECK_SAYS(answered, "store: a descriptor cannot be passed to another host");
    broken.allocate = no_memory;
    CHECK_OK(ask(host, LS__WIRE_WAIT));
    CHECK_INT(status, LS_ERR_MEMORY);
    CHECK_SAYS(answered, "waiting for store key \"%.*s\"");
    CHECK_OK(ask(host, LS__WIRE_SET));
    CHECK_INT(status, LS_ERR_MEMORY);
    CHECK_SAYS(answered, "store key \"%.*s\": no memory for its %zu bytes");
    ls__store_peer_free(host);
    ls__store_server_free(server);
}

TEST(a_table_holds_so_many_descriptors_and_no_more)
{
    ls__store_table *table = NULL;
    char key[16];
    CHECK_OK(ls__store_table_new(broken_env(), &table));
    broken.close = close_nothing; /* the numbers below are of no files */
    for (int i = 0; i < LS__STORE_FDS_MAX; i++) {
        const int length = snprintf(key, sizeof key, "%d", i);
        CHECK_OK(ls__store_table_put_fd(table, (ls__store_key){key, (size_t)length}, 100000 + i));
    }
    CHECK_STATUS(ls__store_table_put_fd(table, (ls__store_key){"more", 4}, 100000), LS_ERR_LIMIT);
    CHECK_SAYS(ls_error_message(), "descriptor \"%.*s\": the store already holds %d descriptors");
    CHECK_OK(ls__store_table_put_fd(table, (ls__store_key){"7", 1}, 100000)); /* in its place */
    ls__store_table_free(table);
}

/* ---- the client ------------------------------------------------------------------------------ */

TEST(a_server_that_neither_reads_nor_answers_is_said)
{
    serving s;
    ls_status status;
    ls_store *store = NULL;
    static uint8_t large[LS_STORE_VALUE_MAX];
    serving_begin(&s);
    const int fd = serving_socket(&s, &status);
    CHECK_OK(ls__store_connect(broken_env(), fd, s.secret, 10000, &store));
    broken.now_ns = moved_clock;
    broken.poll = idle_poll;
    CHECK_STATUS(ls_store_set(store, "k", "v", 1, 1000), LS_ERR_TIMEOUT);
    CHECK_SAYS(ls_error_message(), "the job's store did not answer");
    broken.send = full_send;
    CHECK_STATUS(ls_store_set(store, "k", "v", 1, 1000), LS_ERR_TIMEOUT);
    CHECK_SAYS(ls_error_message(), "the job's store did not accept the request");
    broken.allocate = no_memory;
    CHECK_STATUS(ls_store_set(store, "k", large, sizeof large, 1000), LS_ERR_MEMORY);
    CHECK_SAYS(ls_error_message(), "a request of %zu bytes");
    ls__store_close(store);
    serving_end(&s);
}

/* Ctrl-Z stops the launcher, too, so its answer can come only after both go on. */
TEST(the_time_in_which_a_rank_was_stopped_does_not_count)
{
    serving s;
    ls_status status;
    ls_store *store = NULL;
    serving_begin(&s);
    const int fd = serving_socket(&s, &status);
    CHECK_OK(status);
    (void)broken_env();
    hands = 0;
    broken.now_ns = moved_clock;
    broken.poll = stopped_poll;
    CHECK_OK(ls__store_connect(&broken, fd, s.secret, 1000, &store));
    hands = 0;
    CHECK_OK(ls_store_set(store, "k", "v", 1, 1000));
    ls__store_close(store);
    serving_end(&s);
}

TEST(calls_without_a_store_are_named)
{
    int fd = -1;
    CHECK_STATUS(ls__store_put_fd(NULL, "k", 0, 0), LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(), "store put_fd");
    CHECK_STATUS(ls__store_get_fd(NULL, "k", &fd, 0), LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(), "store get_fd");
}

TEST_MAIN
