/* SPDX-License-Identifier: Apache-2.0 */
/* What flows over an open link, plain and TLS: the same bytes in the same order, however the
 * system cuts them; damage, truncation and the wrong key are errors and never bytes. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "job/link/internal.h"
#include "meet.h"
#include "says.h"
#include "test.h"

#define NEED_TLS                                                                                   \
    if (!has_tls()) {                                                                              \
        SKIP("built without TLS");                                                                 \
    }

static uint8_t byte_at(size_t i)
{
    return (uint8_t)(i * 2654435761u >> 13);
}

static ls_status patient(const ls__link_spec *spec)
{
    ls__link *client = NULL, *in = NULL;
    open_pair(spec, &client, &in);
    ls__link_close(client);
    ls__link_close(in);
    return LS_OK;
}

/* Sends `total` bytes in pieces of three spans from one end to the other and compares them. */
static void stream(ls__link *from, ls__link *to, size_t total, size_t most)
{
    uint8_t *all = malloc(total), *got = malloc(most);
    size_t sent = 0, read = 0;
    CHECK(all && got);
    for (size_t i = 0; i < total; i++) {
        all[i] = byte_at(i);
    }
    while (read < total) {
        const size_t left = total - sent, piece = left < most ? left : most;
        const ls__env_span spans[3] = {{all + sent, piece / 3},
                                       {all + sent + piece / 3, 0},
                                       {all + sent + piece / 3, piece - piece / 3}};
        ssize_t n = piece > 0 ? ls__link_send(from, spans, 3) : ls__link_flush(from);
        CHECK(n >= 0 || n == -EAGAIN);
        sent += n > 0 && piece > 0 ? (size_t)n : 0;
        n = ls__link_read(to, got, most);
        CHECK(n > 0 || n == -EAGAIN);
        if (n > 0) {
            CHECK((size_t)n <= total - read && memcmp(got, all + read, (size_t)n) == 0);
            read += (size_t)n;
        }
    }
    CHECK_INT(ls__link_read(to, got, most), -EAGAIN);
    while (ls__link_flush(from) == -EAGAIN) {
    }
    CHECK(!ls__link_wants_write(from));
    free(all);
    free(got);
}

static void both_ways(ls__link_spec spec, size_t total, size_t most)
{
    ls__link *client = NULL, *in = NULL;
    uint8_t byte;
    open_pair(&spec, &client, &in);
    stream(client, in, total, most);
    stream(in, client, total, most);
    ls__link_close(client);
    ssize_t end;
    do {
        end = ls__link_read(in, &byte, 1);
    } while (end == -EAGAIN);
    /* A goodbye is an end, not an error; a system that takes one byte does not let it through. */
    const bool cut = spec.env != ls__env_posix() && spec.mode == LS__LINK_TLS;
    CHECK_INT(end, cut ? -ECONNRESET : 0);
    ls__link_close(in);
}

TEST(plain_bytes_arrive_as_they_are_sent)
{
    both_ways(spec_of(LS__LINK_PLAIN, right_secret, "data", 7), 5000000, 300001);
}

TEST(encrypted_bytes_arrive_as_they_are_sent)
{
    NEED_TLS
    both_ways(spec_of(LS__LINK_TLS, right_secret, "data", 7), 5000000, 300001);
    both_ways(spec_of(LS__LINK_TLS, right_secret, "data", 7), 100000, 70);
}

TEST(a_system_that_moves_one_byte_at_a_time_changes_nothing)
{
    ls__link_spec spec = spec_of(LS__LINK_PLAIN, right_secret, "data", 7);
    spec.env = narrow_env();
    both_ways(spec, 5000, 1000);
    NEED_TLS
    spec.mode = LS__LINK_TLS;
    both_ways(spec, 5000, 1000);
}

TEST(the_next_key_is_taken_in_the_middle_of_the_stream)
{
    NEED_TLS
    const ls__link_spec spec = spec_of(LS__LINK_TLS, right_secret, "data", 7);
    ls__link *client = NULL, *in = NULL;
    open_pair(&spec, &client, &in);
    ls__tls_update_after(client->tls, 3);
    ls__tls_update_after(in->tls, 1);
    stream(client, in, 1000000, 100000);
    stream(in, client, 1000000, 100000);
    ls__link_close(client);
    ls__link_close(in);
}

/* What a listener on the wire sees: recorded by the env table's send_spans. */
static uint8_t wire[65536];
static size_t wire_bytes;

static ssize_t recording_send(const ls__env *env, int fd, const ls__env_span *spans, int count)
{
    const ls__env *real = ls__env_posix();
    (void)env;
    const ssize_t put = real->send_spans(real, fd, spans, count);
    for (ssize_t i = 0, at = 0, s = 0; i < put && wire_bytes < sizeof wire; i++, at++) {
        while (at == (ssize_t)spans[s].bytes) {
            s++;
            at = 0;
        }
        wire[wire_bytes++] = ((const uint8_t *)spans[s].at)[at];
    }
    return put;
}

static bool on_the_wire(ls__link_mode mode)
{
    static const char words[] = "the gradient of layer4.0.conv1.weight";
    ls__env env = *ls__env_posix();
    ls__link_spec spec = spec_of(mode, right_secret, "data", 7);
    ls__link *client = NULL, *in = NULL;
    bool seen = false;
    char got[sizeof words];
    env.send_spans = recording_send;
    spec.env = &env;
    wire_bytes = 0;
    open_pair(&spec, &client, &in);
    const ls__env_span span = {words, sizeof words};
    CHECK_INT(ls__link_send(client, &span, 1), (long long)sizeof words);
    CHECK_INT(ls__link_read(in, got, sizeof got), (long long)sizeof words);
    CHECK(memcmp(got, words, sizeof words) == 0);
    for (size_t i = 0; i + sizeof words <= wire_bytes; i++) {
        seen = seen || memcmp(wire + i, words, sizeof words) == 0;
    }
    for (size_t i = 0; i + LS__LINK_SECRET <= wire_bytes; i++) {
        CHECK(memcmp(wire + i, right_secret, LS__LINK_SECRET) != 0);
    }
    ls__link_close(client);
    ls__link_close(in);
    return seen;
}

TEST(tls_hides_what_plain_shows_and_neither_shows_the_secret)
{
    CHECK(on_the_wire(LS__LINK_PLAIN));
    NEED_TLS
    CHECK(!on_the_wire(LS__LINK_TLS));
}

TEST(an_end_without_goodbye_is_an_error_of_an_encrypted_link)
{
    NEED_TLS
    const ls__link_spec spec = spec_of(LS__LINK_TLS, right_secret, "data", 7);
    ls__link *client = NULL, *in = NULL;
    uint8_t byte;
    open_pair(&spec, &client, &in);
    CHECK_INT(shutdown(ls__link_fd(client), SHUT_WR), 0);
    CHECK_INT(ls__link_read(in, &byte, 1), -ECONNRESET);
    CHECK_INT(ls__link_read(in, &byte, 1), -ECONNRESET); /* and stays one */
    ls__link_close(client);
    ls__link_close(in);
}

/* Bytes that did not come from the peer, in the middle of the stream. */
TEST(a_byte_put_in_by_somebody_else_ends_an_encrypted_link)
{
    NEED_TLS
    const ls__link_spec spec = spec_of(LS__LINK_TLS, right_secret, "data", 7);
    for (int kind = 0; kind < 2; kind++) {
        /* A record of the right form, and something else. */
        static const uint8_t record[40] = {23, 3, 3, 0, 35, 1, 2, 3}, junk[40] = {0xff, 0xee};
        ls__link *client = NULL, *in = NULL;
        uint8_t byte;
        open_pair(&spec, &client, &in);
        CHECK_INT(send(ls__link_fd(client), kind == 0 ? record : junk, 40, MSG_NOSIGNAL), 40);
        CHECK_INT(ls__link_read(in, &byte, 1), kind == 0 ? -EBADMSG : -EPROTO);
        CHECK_INT(ls__link_read(client, &byte, 1), kind == 0 ? -EREMOTEIO : -EPROTO);
        const ls__env_span span = {"x", 1};
        CHECK(ls__link_send(in, &span, 1) < 0);
        ls__link_close(client);
        ls__link_close(in);
    }
}

TEST(writing_to_a_peer_that_is_gone_is_an_error_and_no_signal)
{
    for (int mode = LS__LINK_PLAIN; mode <= (has_tls() ? LS__LINK_TLS : LS__LINK_PLAIN); mode++) {
        const ls__link_spec spec = spec_of((ls__link_mode)mode, right_secret, "data", 7);
        ls__link *client = NULL, *in = NULL;
        open_pair(&spec, &client, &in);
        ls__link_close(client);
        ssize_t put = 1;
        static const uint8_t zeros[65536];
        const ls__env_span span = {zeros, sizeof zeros};
        for (int i = 0; i < 10000 && (put > 0 || put == -EAGAIN); i++) {
            put = ls__link_send(in, &span, 1);
        }
        CHECK(put == -EPIPE || put == -ECONNRESET);
        ls__link_close(in);
    }
}

/* The status of the side that came, when the other begins TLS anew behind its proof, with a key
 * that covers a nonce with `flip` in it. */
static ls_status with_key_changed(uint8_t flip)
{
    const ls__link_spec spec = spec_of(LS__LINK_TLS, right_secret, "data", 7);
    const ls__env *env = spec.env;
    ls__link *client = NULL, *server = NULL;
    char own[LS__ADDRESS_MAX];
    int port = 0;
    const int listener = env->tcp_listen(env, "127.0.0.1", 0);
    CHECK_INT(env->tcp_name(env, listener, false, own, sizeof own, &port), 0);
    CHECK_OK(ls__link_connect(&spec, "127.0.0.1", port, NULL, &client));
    ls_status came = LS_IN_PROGRESS, let = LS_IN_PROGRESS;
    while (came == LS_IN_PROGRESS || (came == LS_OK && let == LS_IN_PROGRESS)) {
        const int fd = server == NULL ? env->tcp_accept(env, listener, NULL, 0) : -1;
        if (fd >= 0) {
            CHECK_OK(ls__link_accept(&spec, fd, &server));
        }
        const bool before = server != NULL && server->state != LS__LINK_SEALING;
        let = server != NULL && let == LS_IN_PROGRESS ? ls__link_handshake(server) : let;
        if (before && server->state == LS__LINK_SEALING) {
            ls__tls_end(server->tls); /* it has only waited so far */
            server->own.nonce[3] ^= flip;
            CHECK_OK(ls__tls_begin(server));
        }
        came = came == LS_IN_PROGRESS ? ls__link_handshake(client) : came;
    }
    CHECK((came == LS_OK) == (let == LS_OK));
    ls__link_close(client);
    ls__link_close(server);
    env->close(env, listener);
    return came;
}

/* Though the proof was right (somebody has passed it on), TLS needs the key of just this proof. */
TEST(a_key_of_another_proof_does_not_open_tls)
{
    NEED_TLS
    CHECK_OK(with_key_changed(0));
    CHECK_STATUS(with_key_changed(1), LS_ERR_AUTH);
    CHECK_SAYS(ls_error_message(), "encrypting the connection with %s failed: %s");
}

/* libssl's, as long as the test says nothing else. */
static bool not_resumed;
int SSL_session_reused(const void *ssl);

__attribute__((visibility("default"))) int SSL_session_reused(const void *ssl)
{
    (void)ssl;
    return !not_resumed;
}

/* A handshake that succeeds without the pre-shared key would prove nothing. */
TEST(tls_without_the_key_of_this_job_is_refused)
{
    NEED_TLS
    const ls__link_spec spec = spec_of(LS__LINK_TLS, right_secret, "data", 7);
    ls__listener *listener = listener_of(&spec);
    ls__link *client = NULL, *in = NULL;
    not_resumed = true;
    CHECK_OK(ls__link_connect(&spec, "127.0.0.1", ls__listener_port(listener), NULL, &client));
    CHECK_STATUS(meet(listener, client, &in), LS_ERR_AUTH);
    CHECK_SAYS(ls_error_message(), "%s did not use this job's key for TLS");
    CHECK(in == NULL);
    ls__link_close(client);
    ls__listener_close(listener);
}

static bool hung_up; /* the other side, as read here */

static ssize_t recv_or_end(const ls__env *env, int fd, void *out, size_t bytes, int *got_fd)
{
    (void)env;
    return hung_up ? 0 : ls__env_posix()->recv(ls__env_posix(), fd, out, bytes, got_fd);
}

TEST(a_peer_that_leaves_in_the_middle_of_encrypting_is_told)
{
    NEED_TLS
    ls__env env = *ls__env_posix();
    const ls__link_spec spec = spec_of(LS__LINK_TLS, right_secret, "data", 7);
    ls__link_spec hearing = spec;
    ls__listener *listener = listener_of(&spec);
    ls__link *client = NULL;
    env.recv = recv_or_end;
    hearing.env = &env;
    CHECK_OK(ls__link_connect(&hearing, "127.0.0.1", ls__listener_port(listener), NULL, &client));
    ls_status status = LS_IN_PROGRESS;
    while (status == LS_IN_PROGRESS) {
        hung_up = client->state == LS__LINK_SEALING;
        CHECK(ls__listener_next(listener) == NULL);
        status = ls__link_handshake(client);
    }
    CHECK_INT(status, LS_ERR_PEER);
    CHECK_SAYS(ls_error_message(), "it was closed");
    ls__link_close(client);
    ls__listener_close(listener);
}

TEST(what_protects_a_link_is_said)
{
    ls__link_spec spec = spec_of(LS__LINK_PLAIN, right_secret, "data", 7);
    for (int mode = LS__LINK_PLAIN; mode <= (has_tls() ? LS__LINK_TLS : LS__LINK_PLAIN); mode++) {
        ls__link *client = NULL, *in = NULL;
        spec.mode = (ls__link_mode)mode;
        open_pair(&spec, &client, &in);
        if (mode == LS__LINK_TLS) {
            CHECK_CONTAINS(ls__link_protection(in), "TLS 1.3");
            CHECK_SAYS(ls__link_protection(in), ", the secret as pre-shared key");
        } else {
            CHECK_SAYS(ls__link_protection(in),
                       "plain: the secret is proven, data is not encrypted");
        }
        CHECK_CONTAINS(ls__link_peer(in), "127.0.0.1:");
        ls__link_close(client);
        ls__link_close(in);
    }
}

TEST(tls_works_or_is_refused_with_what_to_do)
{
    const ls__link_spec spec = spec_of(LS__LINK_TLS, right_secret, "data", 7);
    if (has_tls()) {
        CHECK_OK(patient(&spec));
        return;
    }
    ls__link *link = NULL;
    ls__listener *listener = NULL;
    CHECK_STATUS(ls__link_connect(&spec, "127.0.0.1", 9, NULL, &link), LS_ERR_UNSUPPORTED);
    CHECK_STATUS(ls__listener_open(&spec, "127.0.0.1", 0, &listener), LS_ERR_UNSUPPORTED);
    CHECK_SAYS(
        ls_error_message(),
        "cannot encrypt the connections that leave the host: this build has no TLS because "
        "OpenSSL 3 was missing; install libssl-dev and build again, or use --data-plane plain "
        "if everybody on the network may read and change the data");
}

TEST_MAIN
