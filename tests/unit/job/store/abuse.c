/* SPDX-License-Identifier: Apache-2.0 */
/* The server against bad, slow and many clients: they are dropped, alone, and a good client's calls
 * go on meanwhile. Its deadlines here are far below what any of them could hold it up for. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "job/store/wire.h"
#include "says.h"
#include "serving.h"
#include "test.h"

#define MS 1000

static void check_served(ls_store *store, const char *key)
{
    char out[16];
    size_t bytes = sizeof out;
    for (int i = 0; i < 50; i++) {
        CHECK_OK(ls_store_set(store, key, "value", 5, MS));
        CHECK_OK(ls_store_get(store, key, out, &bytes, MS));
        bytes = sizeof out;
    }
}

/* The server closes the connection within the time. */
static bool dropped_within(int fd, int timeout_ms)
{
    const ls__env *env = ls__env_posix();
    uint64_t deadline = ls__deadline_after(env, timeout_ms);
    char rest[4096];
    for (;;) {
        ssize_t got = env->recv(env, fd, rest, sizeof rest, NULL);
        if (got == 0 || (got < 0 && got != -EAGAIN)) {
            return true;
        }
        ls__env_poll item = {.fd = fd, .want_read = true};
        if (got < 0 && env->poll(env, &item, 1, deadline) <= 0 && env->now_ns(env) >= deadline) {
            return false;
        }
    }
}

static int stranger(serving *s)
{
    ls_status status;
    int fd = serving_socket(s, &status);
    CHECK_OK(status);
    return fd;
}

static void put(int fd, const void *data, size_t bytes)
{
    CHECK_INT(send(fd, data, bytes, MSG_NOSIGNAL), bytes);
}

static size_t hello(const uint8_t secret[32], uint8_t out[LS__WIRE_HELLO])
{
    ls__wire_header_write(out, (ls__wire_header){LS__WIRE_HELLO_TYPE, 1, LS__STORE_SECRET_BYTES});
    memcpy(out + LS__WIRE_HEADER, secret, LS__STORE_SECRET_BYTES);
    return LS__WIRE_HELLO;
}

/* A connection that has proven the secret and then says whatever it likes. */
static int insider(serving *s)
{
    uint8_t frame[LS__WIRE_HELLO], answer[LS__WIRE_HEADER + LS__WIRE_REPLY];
    int fd = stranger(s);
    put(fd, frame, hello(s->secret, frame));
    for (size_t got = 0; got < sizeof answer;) {
        ssize_t now = recv(fd, answer + got, sizeof answer - got, 0);
        CHECK(now != 0);
        got += now > 0 ? (size_t)now : 0;
        usleep(now < 0 ? 1000 : 0);
    }
    return fd;
}

TEST(a_wrong_secret_is_dropped_at_once)
{
    serving s;
    uint8_t frame[LS__WIRE_HELLO];
    serving_begin(&s);
    ls_store *good = serving_client(&s);
    for (int byte = 0; byte < 32; byte += 31) {
        uint8_t secret[32];
        memcpy(secret, s.secret, sizeof secret);
        secret[byte] ^= 1;
        int fd = stranger(&s);
        put(fd, frame, hello(secret, frame));
        CHECK(dropped_within(fd, 1000));
        close(fd);
        ls_store *store = NULL;
        CHECK_STATUS(ls__store_connect(s.env, stranger(&s), secret, 10000, &store), LS_ERR_AUTH);
        CHECK_SAYS(ls_error_message(), "joining the job's store");
    }
    check_served(good, "k");
    CHECK_INT(serving_count(&s), 1);
    ls__store_close(good);
    serving_end(&s);
}

TEST(garbage_of_every_length_is_dropped)
{
    serving s;
    uint8_t noise[2000];
    serving_begin(&s);
    ls_store *good = serving_client(&s);
    srandom((unsigned)test_seed());
    for (size_t i = 0; i < sizeof noise; i++) {
        noise[i] = (uint8_t)random();
    }
    static const size_t lengths[] = {56, 57, 100, 1023, 2000};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        int fd = stranger(&s);
        put(fd, noise, lengths[i]);
        CHECK(dropped_within(fd, 1000));
        close(fd);
    }
    check_served(good, "k");
    ls__store_close(good);
    serving_end(&s);
}

TEST(one_byte_and_silence_delays_nobody_and_is_dropped_in_time)
{
    serving s;
    serving_begin(&s);
    ls_store *good = serving_client(&s);
    int silent = stranger(&s), one = stranger(&s), half = stranger(&s);
    uint8_t frame[LS__WIRE_HELLO];
    hello(s.secret, frame);
    put(one, frame, 1);
    put(half, frame, 40);
    check_served(good, "k");
    CHECK_INT(serving_count(&s), 4);
    CHECK(dropped_within(silent, LS__STORE_HANDSHAKE_MS + 1000));
    CHECK(dropped_within(one, 1000));
    CHECK(dropped_within(half, 1000));
    CHECK_INT(serving_count(&s), 1);
    check_served(good, "k");
    close(silent);
    close(one);
    close(half);
    ls__store_close(good);
    serving_end(&s);
}

TEST(of_200_strangers_only_64_are_held)
{
    serving s;
    int fds[200], refused = 0;
    serving_begin(&s);
    ls_store *good = serving_client(&s);
    for (int i = 0; i < 200; i++) {
        ls_status status;
        fds[i] = serving_socket(&s, &status);
        refused += status == LS_ERR_LIMIT;
    }
    CHECK_SAYS(ls_error_message(),
               "store: connection refused: %d of %d clients, %d of %d unauthenticated");
    CHECK_INT(refused, 200 - LS__STORE_PENDING_MAX);
    check_served(good, "k");
    CHECK_INT(serving_count(&s), LS__STORE_PENDING_MAX + 1);
    for (int i = 0; i < 200; i++) {
        close(fds[i]);
    }
    for (int i = 0; i < 200 && serving_count(&s) > 1; i++) {
        usleep(5000);
    }
    CHECK_INT(serving_count(&s), 1);
    ls_store *next = serving_client(&s); /* there is room again */
    check_served(next, "k");
    ls__store_close(next);
    ls__store_close(good);
    serving_end(&s);
}

/* Frames of a client with the secret, each wrong in one way. */
static size_t wrong_frame(int way, uint8_t *out)
{
    ls__wire_request request = {
        .type = LS__WIRE_SET, .key = "key", .key_bytes = 3, .first = "v", .first_bytes = 1};
    ls__wire_request_write(out, 7, &request);
    uint8_t *payload = out + LS__WIRE_HEADER;
    switch (way) {
    case 0: /* a length of 4 GiB */
        ls__wire_put(out + 16, 0xffffffffu, 4);
        break;
    case 1: /* just above the limit */
        ls__wire_put(out + 16, LS__WIRE_PAYLOAD_MAX + 1, 4);
        break;
    case 2: /* shorter than its fixed part */
        ls__wire_put(out + 16, 3, 4);
        break;
    case 3: /* a key longer than the frame */
        ls__wire_put(payload + 8, 200, 2);
        break;
    case 4: /* no key */
        ls__wire_put(payload + 8, 0, 2);
        break;
    case 5: /* a first value longer than the frame */
        ls__wire_put(payload + 12, 0xfffffff0u, 4);
        break;
    case 6: /* a key with a zero byte */
        payload[LS__WIRE_REQUEST + 1] = 0;
        break;
    case 7: /* another magic */
        out[0] ^= 1;
        break;
    default: /* another version */
        out[4] ^= 1;
        break;
    }
    return ls__wire_request_bytes(&request);
}

TEST(malformed_frames_drop_their_sender_only)
{
    serving s;
    uint8_t frame[256];
    serving_begin(&s);
    ls_store *good = serving_client(&s);
    for (int way = 0; way <= 8; way++) {
        int fd = insider(&s);
        put(fd, frame, wrong_frame(way, frame));
        if (!dropped_within(fd, 1000)) {
            test_fail(__FILE__, __LINE__, "way %d: not dropped", way);
        }
        close(fd);
        check_served(good, "k");
    }
    CHECK_INT(serving_count(&s), 1);
    ls__store_close(good);
    serving_end(&s);
}

/* What the server answers on this connection next: its status, and its words in `text`. */
static ls_status answer_on(int fd, uint64_t *id, char text[512])
{
    uint8_t frame[LS__WIRE_HEADER + LS__WIRE_REPLY + 512] = {0};
    ssize_t got = -1;
    for (int i = 0; got <= 0 && i < 1000; i++) {
        got = recv(fd, frame, sizeof frame - 1, 0);
        usleep(1000);
    }
    CHECK(got > LS__WIRE_HEADER + LS__WIRE_REPLY);
    snprintf(text, 512, "%s", (const char *)frame + LS__WIRE_HEADER + LS__WIRE_REPLY);
    *id = ls__wire_take(frame + 8, 8);
    return (ls_status)(int32_t)ls__wire_take(frame + LS__WIRE_HEADER, 4);
}

static void ask(int fd, uint64_t id, ls__wire_type type, const char *key)
{
    uint8_t frame[256];
    const ls__wire_request request = {
        .type = type, .number = 60000, .key = key, .key_bytes = strlen(key)};
    ls__wire_request_write(frame, id, &request);
    put(fd, frame, ls__wire_request_bytes(&request));
}

TEST(requests_that_cannot_be_served_are_answered_with_an_error)
{
    serving s;
    uint64_t id;
    char text[512];
    serving_begin(&s);
    int fd = insider(&s);
    ask(fd, 7, (ls__wire_type)99, "key");
    CHECK_INT(answer_on(fd, &id, text), LS_ERR_FORMAT);
    CHECK_INT(id, 7);
    CHECK_SAYS(text, "store: unknown request %d");
    ask(fd, 8, LS__WIRE_PUT_FD, "key");
    CHECK_INT(answer_on(fd, &id, text), LS_ERR_FORMAT);
    CHECK_SAYS(text, "store: no descriptor came with \"%.*s\"");
    close(fd);
    serving_end(&s);
}

/* It asks for much and reads nothing: its replies fill the socket, and then it waits, alone. */
TEST(a_client_that_does_not_read_delays_nobody)
{
    serving s;
    static uint8_t large[LS_STORE_VALUE_MAX];
    serving_begin(&s);
    ls_store *good = serving_client(&s);
    CHECK_OK(ls_store_set(good, "large", large, sizeof large, MS));
    int fd = insider(&s);
    uint8_t frame[256];
    ls__wire_request request = {.type = LS__WIRE_GET, .number = 0, .key = "large", .key_bytes = 5};
    ls__wire_request_write(frame, 7, &request);
    size_t bytes = ls__wire_request_bytes(&request);
    for (int i = 0; i < 500 && send(fd, frame, bytes, MSG_NOSIGNAL) == (ssize_t)bytes; i++) {
    }
    for (int i = 0; i < 10; i++) {
        check_served(good, "k");
    }
    close(fd);
    ls__store_close(good);
    serving_end(&s);
}

TEST(waiters_of_one_client_are_bounded)
{
    serving s;
    serving_begin(&s);
    int fd = insider(&s);
    char key[32], text[512];
    for (int i = 0; i <= LS__STORE_WAITERS_MAX; i++) {
        snprintf(key, sizeof key, "never %d", i);
        ask(fd, (uint64_t)i, LS__WIRE_WAIT, key);
    }
    uint64_t id;
    CHECK_INT(answer_on(fd, &id, text), LS_ERR_LIMIT);
    CHECK_INT(id, LS__STORE_WAITERS_MAX); /* the one too many */
    CHECK_SAYS(text, "store key \"%.*s\": this rank waits for %d keys already");
    close(fd);
    serving_end(&s);
}

/* ---- the end of the job ---------------------------------------------------------------------- */

typedef struct waiting {
    ls_store *store;
    ls_status status;
    char message[256];
} waiting;

static void *wait_for_ever(void *arg)
{
    waiting *w = arg;
    w->status = ls_store_wait(w->store, "never", 60000);
    snprintf(w->message, sizeof w->message, "%s", ls_error_message());
    return NULL;
}

TEST(a_failed_job_answers_every_waiter_with_its_cause)
{
    serving s;
    pthread_t thread;
    serving_begin(&s);
    waiting w = {.store = serving_client(&s)};
    pthread_create(&thread, NULL, wait_for_ever, &w);
    usleep(50000);
    pthread_mutex_lock(&s.mutex);
    ls__store_server_fail(s.server, LS_ERR_PEER, "rank 2 was killed");
    ls__store_server_fail(s.server, LS_ERR_PEER, "a later cause");
    pthread_mutex_unlock(&s.mutex);
    pthread_join(thread, NULL);
    CHECK_INT(w.status, LS_ERR_PEER);
    CHECK_CONTAINS(w.message, "rank 2 was killed");
    CHECK_STATUS(ls_store_set(w.store, "k", "", 0, MS), LS_ERR_PEER);
    CHECK_CONTAINS(ls_error_message(), "rank 2 was killed");
    ls__store_close(w.store);
    serving_end(&s);
}

TEST(the_servers_end_is_an_error_for_its_clients)
{
    serving s;
    pthread_t thread;
    serving_begin(&s);
    waiting w = {.store = serving_client(&s)};
    pthread_create(&thread, NULL, wait_for_ever, &w);
    usleep(50000);
    serving_end(&s);
    pthread_join(thread, NULL);
    CHECK_INT(w.status, LS_ERR_PEER);
    CHECK_STATUS(ls_store_set(w.store, "k", "", 0, MS), LS_ERR_PEER);
    CHECK_SAYS(ls_error_message(),
               "the connection to the job's store is lost: the process that serves it (the "
               "launcher, or local rank 0) has ended or has dropped this rank");
    ls__store_close(w.store);
}

TEST_MAIN
