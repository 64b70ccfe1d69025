/* Links and doors over loopback: the right secret gets in, whatever else comes does not, and costs
 * neither time nor memory beyond what door.h says. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "comm/link/door.h"
#include "comm/link/inside.h"
#include "meet.h"
#include "test.h"

/* The status with which a client of `spec` ends at a door of `at`. */
static ls_status try(const ls__link_spec *at, const ls__link_spec *spec)
{
    ls__door *door = door_of(at);
    ls__link *client = NULL, *in = NULL;
    CHECK_OK(ls__link_connect(spec, "127.0.0.1", ls__door_port(door), NULL, &client));
    const ls_status status = meet(door, client, &in);
    CHECK((status == LS_OK) == (in != NULL));
    ls__link_close(client);
    ls__link_close(in);
    ls__door_close(door);
    return status;
}

TEST(who_knows_the_secret_gets_in_and_bytes_flow_both_ways)
{
    const ls__link_spec spec = spec_of(LS__LINK_PLAIN, right_secret, "data", 7);
    ls__door *door = door_of(&spec);
    ls__link *client = NULL, *in = NULL;
    char got[16] = "";
    CHECK_OK(ls__link_connect(&spec, "127.0.0.1", ls__door_port(door), "127.0.0.1", &client));
    CHECK_OK(meet(door, client, &in));
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
    ls__door_close(door);
}

TEST(another_secret_purpose_or_job_stays_outside)
{
    const ls__link_spec at = spec_of(LS__LINK_PLAIN, right_secret, "data", 7);
    ls__link_spec other = at;
    CHECK_INT(try(&at, &other), LS_OK);
    other = spec_of(LS__LINK_PLAIN, wrong_secret, "data", 7);
    CHECK_INT(try(&at, &other), LS_ERR_PEER); /* the door says nothing: it closes */
    CHECK_CONTAINS(ls_error_message(), "is it the same on both sides?");
    other = spec_of(LS__LINK_PLAIN, right_secret, "store", 7);
    CHECK_INT(try(&at, &other), LS_ERR_PEER);
    other = spec_of(LS__LINK_PLAIN, right_secret, "data", 8);
    CHECK_INT(try(&at, &other), LS_ERR_PEER);
}

/* Sends raw bytes as a stranger; returns how many bytes came back within a moment. */
static size_t stranger(ls__door *door, const void *bytes, size_t count)
{
    const ls__env *env = ls__env_posix();
    unsigned char back[256];
    size_t got = 0;
    const int fd = env->tcp_connect(env, "127.0.0.1", ls__door_port(door), NULL);
    CHECK(fd >= 0);
    while (env->tcp_connected(env, fd) == -EINPROGRESS) {
        env->yield(env);
    }
    CHECK_INT(env->send(env, fd, bytes, count, -1), (long long)count);
    const uint64_t end = env->now_ns(env) + 30000000u;
    while (env->now_ns(env) < end) {
        CHECK(ls__door_next(door) == NULL);
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
    ls__door *door = door_of(&spec);
    unsigned char garbage[200];
    memset(garbage, 0xee, sizeof garbage);
    CHECK_INT(stranger(door, garbage, sizeof garbage), 0);
    CHECK_INT(stranger(door, "GET / HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n", 41), 0);
    CHECK_INT(stranger(door, "x", 1), 0);
    ls__door_close(door);
}

/* A client's whole proof, recorded and sent again, meets another nonce. */
TEST(a_recorded_proof_is_worth_nothing)
{
    const ls__link_spec spec = spec_of(LS__LINK_PLAIN, right_secret, "data", 7);
    ls__door *door = door_of(&spec);
    ls__link *client = NULL, *in = NULL;
    unsigned char record[sizeof(ls__proof_hello) + LS__PROOF_MAC];
    CHECK_OK(ls__link_connect(&spec, "127.0.0.1", ls__door_port(door), NULL, &client));
    CHECK_OK(meet(door, client, &in));
    memcpy(record, client->out, sizeof record); /* what it sent */
    CHECK_INT((long long)client->queued, (long long)sizeof record);
    /* It is answered with a hello, as everybody is who greets, and then shut out. */
    CHECK_INT((long long)stranger(door, record, sizeof record), (long long)sizeof(ls__proof_hello));
    ls__link_close(client);
    ls__link_close(in);
    ls__door_close(door);
}

TEST(a_thousand_silent_strangers_keep_nobody_out)
{
    enum { STRANGERS = 1000 };
    const ls__link_spec spec = spec_of(LS__LINK_PLAIN, right_secret, "data", 7);
    const ls__env *env = spec.env;
    ls__door *door = door_of(&spec);
    static int fd[STRANGERS];
    (void)env->allow_descriptors(env, 2 * STRANGERS + 100);
    for (int i = 0; i < STRANGERS; i++) {
        fd[i] = env->tcp_connect(env, "127.0.0.1", ls__door_port(door), NULL);
        CHECK(fd[i] >= 0);
        if (i % 50 == 0) {
            CHECK(ls__door_next(door) == NULL);
        }
    }
    ls__link *client = NULL, *in = NULL;
    CHECK_OK(ls__link_connect(&spec, "127.0.0.1", ls__door_port(door), NULL, &client));
    CHECK_OK(meet(door, client, &in));
    for (int i = 0; i < STRANGERS; i++) {
        env->close(env, fd[i]);
    }
    ls__link_close(client);
    ls__link_close(in);
    ls__door_close(door);
}

TEST(a_port_in_use_is_said)
{
    const ls__link_spec spec = spec_of(LS__LINK_PLAIN, right_secret, "data", 7);
    ls__door *door = door_of(&spec), *second = NULL;
    CHECK_STATUS(ls__door_open(&spec, "127.0.0.1", ls__door_port(door), &second), LS_ERR_SYSTEM);
    CHECK_CONTAINS(ls_error_message(), "the port is in use");
    CHECK_STATUS(ls__door_open(&spec, "203.0.113.9", 0, &second), LS_ERR_SYSTEM);
    CHECK_CONTAINS(ls_error_message(), "no interface of this host has that address");
    ls__door_close(door);
}

TEST_MAIN
