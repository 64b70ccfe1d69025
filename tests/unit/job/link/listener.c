/* SPDX-License-Identifier: Apache-2.0 */
/* Links and listeners over loopback: the right secret gets in, whatever else comes does not, and
 * costs neither time nor memory beyond what listener.h says. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <lockstep/runtime.h>

#include "job/link/internal.h"
#include "job/link/listener.h"
#include "meet.h"
#include "says.h"
#include "test.h"

/* The status with which a client of `spec` ends at a listener of `at`. */
static ls_status try(const ls__link_spec *at, const ls__link_spec *spec)
{
    ls__listener *listener = listener_of(at);
    ls__link *client = NULL, *in = NULL;
    CHECK_OK(ls__link_connect(spec, "127.0.0.1", ls__listener_port(listener), NULL, &client));
    const ls_status status = meet(listener, client, &in);
    CHECK((status == LS_OK) == (in != NULL));
    ls__link_close(client);
    ls__link_close(in);
    ls__listener_close(listener);
    return status;
}

TEST(who_knows_the_secret_gets_in_and_bytes_flow_both_ways)
{
    const ls__link_spec spec = spec_of(LS__LINK_PLAIN, right_secret, "data", 7);
    ls__listener *listener = listener_of(&spec);
    ls__link *client = NULL, *in = NULL;
    char got[16] = "";
    CHECK_OK(
        ls__link_connect(&spec, "127.0.0.1", ls__listener_port(listener), "127.0.0.1", &client));
    CHECK_OK(meet(listener, client, &in));
    const ls__env_span spans[2] = {{"abc", 3}, {"defg", 4}};
    CHECK_INT(ls__link_send(client, spans, 2), 7);
    CHECK_INT(ls__link_read(in, got, 7), 7);
    CHECK(memcmp(got, "abcdefg", 7) == 0);
    CHECK_INT(ls__link_read(in, got, 7), -EAGAIN);
    CHECK_INT(ls__link_send(in, spans, 1), 3);
    CHECK_INT(ls__link_read(client, got, 7), 3);
    ls__link_close(client);
    CHECK_INT(ls__link_read(in, got, 7), 0);
    ls__link_close(in);
    ls__listener_close(listener);
}

TEST(another_secret_purpose_or_job_stays_outside)
{
    const ls__link_spec at = spec_of(LS__LINK_PLAIN, right_secret, "data", 7);
    ls__link_spec other = at;
    CHECK_INT(try(&at, &other), LS_OK);
    other = spec_of(LS__LINK_PLAIN, wrong_secret, "data", 7);
    CHECK_INT(try(&at, &other), LS_ERR_PEER); /* the listener says nothing: it closes */
    CHECK_SAYS(ls_error_message(), "connection with %s: %s");
    CHECK_SAYS(
        ls_error_message(),
        "the other side closed it during the handshake (do both sides use the same secret?)");
    other = spec_of(LS__LINK_PLAIN, right_secret, "store", 7);
    CHECK_INT(try(&at, &other), LS_ERR_PEER);
    other = spec_of(LS__LINK_PLAIN, right_secret, "data", 8);
    CHECK_INT(try(&at, &other), LS_ERR_PEER);
}

/* Sends raw bytes as a stranger; returns how many bytes came back within a moment. */
static size_t stranger(ls__listener *listener, const void *bytes, size_t count)
{
    const ls__env *env = ls__env_posix();
    unsigned char back[256];
    size_t got = 0;
    const int fd = env->tcp_connect(env, "127.0.0.1", ls__listener_port(listener), NULL);
    CHECK(fd >= 0);
    while (env->tcp_connected(env, fd) == -EINPROGRESS) {
        env->yield(env);
    }
    CHECK_INT(env->send(env, fd, bytes, count, -1), (long long)count);
    const uint64_t end = env->now_ns(env) + 30000000u;
    while (env->now_ns(env) < end) {
        CHECK(ls__listener_next(listener) == NULL);
        const ssize_t n = env->recv(env, fd, back, sizeof back, NULL);
        got += n > 0 ? (size_t)n : 0;
        env->yield(env);
    }
    env->close(env, fd);
    return got;
}

TEST(garbage_gets_no_answer)
{
    const ls__link_spec spec = spec_of(LS__LINK_PLAIN, right_secret, "data", 7);
    ls__listener *listener = listener_of(&spec);
    unsigned char garbage[200];
    memset(garbage, 0xee, sizeof garbage);
    CHECK_INT(stranger(listener, garbage, sizeof garbage), 0);
    CHECK_INT(stranger(listener, "GET / HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n", 41), 0);
    CHECK_INT(stranger(listener, "x", 1), 0);
    ls__listener_close(listener);
}

/* A client's whole proof, recorded and sent again, meets another nonce. */
TEST(a_recorded_proof_is_worth_nothing)
{
    const ls__link_spec spec = spec_of(LS__LINK_PLAIN, right_secret, "data", 7);
    ls__listener *listener = listener_of(&spec);
    ls__link *client = NULL, *in = NULL;
    unsigned char record[sizeof(ls__proof_hello) + LS__PROOF_MAC];
    CHECK_OK(ls__link_connect(&spec, "127.0.0.1", ls__listener_port(listener), NULL, &client));
    CHECK_OK(meet(listener, client, &in));
    memcpy(record, client->out, sizeof record); /* what it sent */
    CHECK_INT((long long)client->queued, (long long)sizeof record);
    /* It is answered with a hello, as everybody is who greets, and then shut out. */
    CHECK_INT((long long)stranger(listener, record, sizeof record),
              (long long)sizeof(ls__proof_hello));
    ls__link_close(client);
    ls__link_close(in);
    ls__listener_close(listener);
}

/* The listener's own hello, sent back to it as if it were a client's: the side is part of it. */
TEST(what_the_listener_says_is_worth_nothing_when_sent_back)
{
    const ls__link_spec spec = spec_of(LS__LINK_PLAIN, right_secret, "data", 7);
    ls__listener *listener = listener_of(&spec);
    ls__link *client = NULL, *in = NULL;
    unsigned char back[sizeof(ls__proof_hello) + LS__PROOF_MAC];
    CHECK_OK(ls__link_connect(&spec, "127.0.0.1", ls__listener_port(listener), NULL, &client));
    CHECK_OK(meet(listener, client, &in));
    memcpy(back, in->out, sizeof back);
    CHECK_INT((long long)stranger(listener, back, sizeof back), 0);
    ((ls__proof_hello *)(void *)back)->client = 1; /* and neither with the side put right: */
    CHECK_INT((long long)stranger(listener, back, sizeof back), (long long)sizeof(ls__proof_hello));
    ls__link_close(client);
    ls__link_close(in);
    ls__listener_close(listener);
}

/* How a client ends whose "server" sends its own messages back, changed. */
static ls_status meet_a_mirror(void (*change)(ls__proof_hello *hello))
{
    const ls__env *env = ls__env_posix();
    const ls__link_spec spec = spec_of(LS__LINK_PLAIN, right_secret, "data", 7);
    ls__link *client = NULL;
    char own[LS__ADDRESS_MAX];
    unsigned char bytes[256];
    int port = 0, in = -EAGAIN;
    const int fd = env->tcp_listen(env, "127.0.0.1", 0);
    CHECK_INT(env->tcp_name(env, fd, false, own, sizeof own, &port), 0);
    CHECK_OK(ls__link_connect(&spec, "127.0.0.1", port, NULL, &client));
    ls_status status = LS_IN_PROGRESS;
    while (status == LS_IN_PROGRESS) {
        in = in < 0 ? env->tcp_accept(env, fd, NULL, 0) : in;
        const ssize_t got = in >= 0 ? env->recv(env, in, bytes, sizeof bytes, NULL) : 0;
        if (got > 0) {
            change((ls__proof_hello *)(void *)bytes);
            CHECK_INT(env->send(env, in, bytes, (size_t)got, -1), got);
        }
        status = ls__link_handshake(client);
    }
    ls__link_close(client);
    env->close(env, in);
    env->close(env, fd);
    return status;
}

/* Its nonce is taken for the server's; the code that comes back is the client's. */
static void turn_side(ls__proof_hello *hello)
{
    hello->client = 0;
}

static void spoil(ls__proof_hello *hello)
{
    hello->client = 0;
    hello->magic ^= 1;
}

static void renew(ls__proof_hello *hello)
{
    hello->client = 0;
    hello->version++;
}

TEST(a_mirror_is_no_listener)
{
    CHECK_INT(meet_a_mirror(turn_side), LS_ERR_AUTH);
    CHECK_SAYS(ls_error_message(),
               "%s does not know this job's secret: give every node the same --secret-file");
    CHECK_INT(meet_a_mirror(spoil), LS_ERR_AUTH);
    CHECK_SAYS(ls_error_message(), "the data from %s is not a greeting of Lockstep");
    CHECK_INT(meet_a_mirror(renew), LS_ERR_AUTH);
    CHECK_SAYS(ls_error_message(), "%s uses version %d of the handshake, this side version %d: "
                                   "install the same Lockstep on every host");
}

TEST(a_link_to_nobody_says_so_and_stays_failed)
{
    const ls__env *env = ls__env_posix();
    const ls__link_spec spec = spec_of(LS__LINK_PLAIN, right_secret, "data", 7);
    char own[LS__ADDRESS_MAX];
    int port = 0;
    const int fd = env->tcp_listen(env, "127.0.0.1", 0);
    CHECK_INT(env->tcp_name(env, fd, false, own, sizeof own, &port), 0);
    env->close(env, fd); /* now nobody listens there */
    ls__link *client = NULL;
    CHECK_OK(ls__link_connect(&spec, "127.0.0.1", port, NULL, &client));
    ls_status status = LS_IN_PROGRESS;
    while (status == LS_IN_PROGRESS) {
        status = ls__link_handshake(client);
    }
    CHECK_STATUS(status, LS_ERR_PEER);
    CHECK_SAYS(ls_error_message(), "cannot connect to %s: %s");
    CHECK_STATUS(ls__link_handshake(client), LS_ERR_STATE);
    CHECK_SAYS(ls_error_message(), "the connection with %s has failed before");
    ls__link_close(client);
}

static void keep(ls_log_level level, const char *text, void *arg)
{
    (void)level;
    snprintf(arg, 512, "%s", text);
}

TEST(plain_against_tls_is_said_to_the_one_who_came)
{
    if (!has_tls()) {
        SKIP("built without TLS");
    }
    const ls__link_spec plain = spec_of(LS__LINK_PLAIN, right_secret, "data", 7);
    const ls__link_spec tls = spec_of(LS__LINK_TLS, right_secret, "data", 7);
    char warned[512] = "";
    ls_set_log_callback(keep, warned);
    CHECK_INT(try(&plain, &tls), LS_ERR_AUTH);
    CHECK_SAYS(warned, "port %d: a connection was refused: %s");
    ls_set_log_callback(NULL, NULL);
    CHECK_INT(try(&plain, &tls), LS_ERR_AUTH);
    CHECK_CONTAINS(ls_error_message(), "wants no encryption, this side TLS");
    CHECK_SAYS(ls_error_message(), "no encryption");
    CHECK_INT(try(&tls, &plain), LS_ERR_AUTH);
    CHECK_SAYS(ls_error_message(),
               "%s wants %s, this side %s: give every node the same --data-plane");
    const ls__link_spec wrong = spec_of(LS__LINK_TLS, wrong_secret, "data", 7);
    CHECK_INT(try(&tls, &wrong), LS_ERR_PEER);
    CHECK_INT(try(&tls, &tls), LS_OK);
}

/* Every field of the client's hello, changed: whoever it is gets at most a hello back. */
TEST(a_greeting_with_any_byte_changed_lets_nobody_in)
{
    const ls__link_spec spec = spec_of(LS__LINK_PLAIN, right_secret, "data", 7);
    ls__listener *listener = listener_of(&spec);
    ls__link *client = NULL, *in = NULL;
    unsigned char record[sizeof(ls__proof_hello) + LS__PROOF_MAC];
    CHECK_OK(ls__link_connect(&spec, "127.0.0.1", ls__listener_port(listener), NULL, &client));
    CHECK_OK(meet(listener, client, &in));
    memcpy(record, client->out, sizeof record);
    for (size_t i = 0; i < sizeof(ls__proof_hello); i += i < 8 ? 1 : 9) {
        record[i] = (unsigned char)~record[i];
        CHECK(stranger(listener, record, sizeof record) <= sizeof(ls__proof_hello));
        record[i] = (unsigned char)~record[i];
    }
    ls__link_close(client);
    ls__link_close(in);
    ls__listener_close(listener);
}

/* The clock of an env table whose hands the test moves. */
static uint64_t hands;

static uint64_t moved_clock(const ls__env *env)
{
    (void)env;
    return ls__env_posix()->now_ns(ls__env_posix()) + hands;
}

/* Lets `count` strangers connect and say `bytes` each. */
static void crowd(const ls__listener *listener, int *fd, int count, const void *bytes, size_t size)
{
    const ls__env *env = ls__env_posix();
    for (int i = 0; i < count; i++) {
        fd[i] = env->tcp_connect(env, "127.0.0.1", ls__listener_port(listener), NULL);
        CHECK(fd[i] >= 0);
        while (env->tcp_connected(env, fd[i]) == -EINPROGRESS) {
            env->yield(env);
        }
        CHECK_INT(env->send(env, fd[i], bytes, size, -1), (long long)size);
    }
}

static bool is_shut(int fd)
{
    char byte;
    const ls__env *env = ls__env_posix();
    ssize_t got;
    do {
        got = env->recv(env, fd, &byte, 1, NULL);
    } while (got > 0); /* a hello */
    return got != -EAGAIN;
}

TEST(who_stops_half_way_is_shut_out_after_five_seconds)
{
    ls__env env = *ls__env_posix();
    ls__link_spec spec = spec_of(LS__LINK_PLAIN, right_secret, "data", 7);
    ls__proof_hello hello = {.magic = 0x4c534b31u, .version = 2, .client = 1};
    int fd[2];
    env.now_ns = moved_clock;
    spec.env = &env;
    ls__listener *listener = listener_of(&spec);
    CHECK_INT((long long)ls__listener_deadline(listener), (long long)LS__NEVER);
    crowd(listener, &fd[0], 1, "L", 1);
    crowd(listener, &fd[1], 1, &hello, sizeof hello);
    CHECK(ls__listener_next(listener) == NULL);
    const uint64_t deadline = ls__listener_deadline(listener), now = moved_clock(&env);
    CHECK(deadline > now && deadline - now <= (uint64_t)LS__LISTENER_MS * 1000000u);
    CHECK(!is_shut(fd[0]) && !is_shut(fd[1]));
    hands = (uint64_t)LS__LISTENER_MS * 1000000u;
    CHECK(ls__listener_next(listener) == NULL);
    CHECK(is_shut(fd[0]) && is_shut(fd[1]));
    CHECK_INT((long long)ls__listener_deadline(listener), (long long)LS__NEVER);
    ls__listener_close(listener);
}

/* ---- what it costs ------------------------------------------------------------------------- */

static size_t held, held_most;

static void *counted_allocate(const ls__env *env, size_t bytes)
{
    (void)env;
    held += bytes;
    held_most = held > held_most ? held : held_most;
    return ls__env_posix()->allocate(ls__env_posix(), bytes);
}

static void counted_release(const ls__env *env, void *memory, size_t bytes)
{
    (void)env;
    held -= bytes;
    ls__env_posix()->release(ls__env_posix(), memory, bytes);
}

static int open_now, open_most;

static int counted_accept(const ls__env *env, int fd, char *address, size_t bytes)
{
    (void)env;
    const int got = ls__env_posix()->tcp_accept(ls__env_posix(), fd, address, bytes);
    open_now += got >= 0;
    open_most = open_now > open_most ? open_now : open_most;
    return got;
}

static int counted_close(const ls__env *env, int fd)
{
    (void)env;
    open_now--;
    return ls__env_posix()->close(ls__env_posix(), fd);
}

TEST(strangers_cost_64_places_of_a_kibibyte_whatever_their_number)
{
    enum { STRANGERS = 1000 };
    ls__env env = *ls__env_posix();
    static int fd[STRANGERS];
    const ls__proof_hello hello = {.magic = 0x4c534b31u, .version = 2, .client = 1};
    ls__link_spec spec =
        spec_of(has_tls() ? LS__LINK_TLS : LS__LINK_PLAIN, right_secret, "data", 7);
    env.allocate = counted_allocate;
    env.release = counted_release;
    env.tcp_accept = counted_accept;
    env.close = counted_close;
    spec.env = &env;
    ls__listener *listener = listener_of(&spec);
    const size_t alone = held;
    (void)env.allow_descriptors(&env, 2 * STRANGERS + 100);
    held_most = 0;
    for (int i = 0; i < STRANGERS; i++) {
        crowd(listener, &fd[i], 1, &hello, i % 2 ? sizeof hello : 1);
        CHECK(ls__listener_next(listener) == NULL);
    }
    CHECK_INT(open_most, LS__LISTENER_PENDING + 1); /* the one that takes another's place */
    CHECK(held_most > alone &&
          held_most - alone <= (size_t)LS__LISTENER_PENDING * LS__LISTENER_BYTES);
    ls__listener_close(listener);
    CHECK_INT((long long)held, 0);
}

static uint64_t stopped_clock(const ls__env *env)
{
    (void)env;
    return 1000000000u + hands;
}

TEST(who_waits_outside_is_looked_for_once_a_place_may_be_taken)
{
    enum { STRANGERS = LS__LISTENER_PENDING + 5 };
    ls__env env = *ls__env_posix();
    ls__link_spec spec = spec_of(LS__LINK_PLAIN, right_secret, "data", 7);
    int fd[STRANGERS], shut = 0;
    env.now_ns = stopped_clock;
    spec.env = &env;
    ls__listener *listener = listener_of(&spec);
    crowd(listener, fd, STRANGERS, "x", 1);
    CHECK(ls__listener_next(listener) == NULL);
    CHECK_INT((long long)ls__listener_deadline(listener), 1010000000);
    hands = 10000000;
    CHECK(ls__listener_next(listener) == NULL);
    for (int i = 0; i < STRANGERS; i++) {
        shut += is_shut(fd[i]);
    }
    CHECK_INT(shut, 5);
    ls__listener_close(listener);
}

/* Tells the process that has too many descriptors open to close its strangers'. */
static int refusals;

static int refusing_accept(const ls__env *env, int fd, char *address, size_t bytes)
{
    (void)env;
    if (refusals > 0) {
        refusals--;
        return -EMFILE;
    }
    return ls__env_posix()->tcp_accept(ls__env_posix(), fd, address, bytes);
}

TEST(running_out_of_descriptors_costs_strangers_theirs_and_shuts_nobody_out)
{
    ls__env env = *ls__env_posix();
    ls__link_spec spec = spec_of(LS__LINK_PLAIN, right_secret, "data", 7);
    ls__link *client = NULL, *in = NULL;
    int fd;
    env.tcp_accept = refusing_accept;
    spec.env = &env;
    ls__listener *listener = listener_of(&spec);
    crowd(listener, &fd, 1, "x", 1);
    CHECK(ls__listener_next(listener) == NULL && !is_shut(fd));
    refusals = 3;
    CHECK_OK(ls__link_connect(&spec, "127.0.0.1", ls__listener_port(listener), NULL, &client));
    CHECK(ls__listener_next(listener) == NULL && is_shut(fd));
    CHECK(ls__listener_deadline(listener) <=
          env.now_ns(&env) + 20000000u); /* it looks again by itself */
    CHECK_OK(meet(listener, client, &in));
    ls__link_close(client);
    ls__link_close(in);
    ls__listener_close(listener);
}

/* ---- crowds -------------------------------------------------------------------------------- */

/* A process that opens connections as fast as it can, 500 at a time, of four kinds. */
static void flood(int port, int total)
{
    enum { AT_ONCE = 500 };
    static int fd[AT_ONCE];
    static const char *const says[] = {"", "x", "GET / HTTP/1.1\r\n\r\n"};
    const ls__env *env = ls__env_posix();
    const ls__proof_hello hello = {.magic = 0x4c534b31u, .version = 2, .client = 1};
    memset(fd, 0xff, sizeof fd);
    for (int i = 0; i < total; i++) {
        int *at = &fd[i % AT_ONCE];
        if (*at >= 0) {
            env->close(env, *at);
        }
        *at = env->tcp_connect(env, "127.0.0.1", port, NULL);
        const void *bytes = i % 4 == 3 ? (const void *)&hello : says[i % 4];
        if (*at >= 0) {
            (void)env->send(env, *at, bytes, i % 4 == 3 ? sizeof hello : strlen(bytes), -1);
        }
    }
}

/* As friends do: whoever is shut out comes again. */
static int come_in(ls__listener *listener, const ls__link_spec *spec, ls__link **client,
                   ls__link **in)
{
    int tries = 0;
    ls_status status = LS_ERR_PEER;
    while (status == LS_ERR_PEER && tries < 100) {
        CHECK_OK(ls__link_connect(spec, "127.0.0.1", ls__listener_port(listener), NULL, client));
        status = meet(listener, *client, in);
        tries++;
        if (status != LS_OK) {
            ls__link_close(*client);
        }
    }
    CHECK_OK(status);
    return tries;
}

TEST(ten_thousand_connections_keep_no_friend_out)
{
    const ls__link_spec spec =
        spec_of(has_tls() ? LS__LINK_TLS : LS__LINK_PLAIN, right_secret, "data", 7);
    const ls__env *env = spec.env;
    ls__listener *listener = listener_of(&spec);
    const pid_t child = fork();
    if (child == 0) {
        flood(ls__listener_port(listener), 10000);
        _exit(0);
    }
    CHECK(child > 0);
    int status = 0, friends = 0;
    while (waitpid(child, &status, WNOHANG) == 0 || friends == 0) {
        ls__link *client = NULL, *in = NULL;
        (void)come_in(listener, &spec, &client, &in);
        friends++;
        ls__link_close(client);
        ls__link_close(in);
        env->yield(env);
    }
    CHECK_INT(status, 0);
    ls__listener_close(listener);
}

/* As at the start of a large job: they all come at once, more than there are places. */
TEST(three_hundred_friends_at_once_all_get_in)
{
    enum { FRIENDS = 300 };
    const ls__link_spec spec = spec_of(LS__LINK_PLAIN, right_secret, "data", 7);
    static ls__link *client[FRIENDS];
    static bool through[FRIENDS];
    ls__listener *listener = listener_of(&spec);
    int in = 0, out = 0;
    (void)spec.env->allow_descriptors(spec.env, 3 * FRIENDS);
    while (in < FRIENDS || out < FRIENDS) {
        for (int i = 0; i < FRIENDS; i++) {
            if (client[i] == NULL) {
                CHECK_OK(ls__link_connect(&spec, "127.0.0.1", ls__listener_port(listener), NULL,
                                          &client[i]));
            }
            const ls_status status = through[i] ? LS_IN_PROGRESS : ls__link_handshake(client[i]);
            through[i] = through[i] || status == LS_OK;
            out += status == LS_OK;
            if (status == LS_ERR_PEER) {
                ls__link_close(client[i]);
                client[i] = NULL;
            } else {
                CHECK(status >= 0);
            }
        }
        for (ls__link *l = ls__listener_next(listener); l != NULL;
             l = ls__listener_next(listener)) {
            ls__link_close(l);
            in++;
        }
    }
    for (int i = 0; i < FRIENDS; i++) {
        ls__link_close(client[i]);
    }
    ls__listener_close(listener);
}

TEST(a_port_in_use_is_said)
{
    const ls__link_spec spec = spec_of(LS__LINK_PLAIN, right_secret, "data", 7);
    ls__listener *listener = listener_of(&spec), *second = NULL;
    CHECK_STATUS(ls__listener_open(&spec, "127.0.0.1", ls__listener_port(listener), &second),
                 LS_ERR_SYSTEM);
    CHECK_SAYS(ls_error_message(),
               "cannot listen on %s port %d: another process uses the port; choose another one, or "
               "end that process (`ss -ltnp` names it)");
    CHECK_STATUS(ls__listener_open(&spec, "203.0.113.9", 0, &second), LS_ERR_SYSTEM);
    CHECK_SAYS(ls_error_message(),
               "cannot listen on %s port %d: no interface of this host has that address; use an "
               "address of this host, or choose an interface by LOCKSTEP_IFNAME");
    ls__listener_close(listener);
}

TEST_MAIN
