/* SPDX-License-Identifier: Apache-2.0 */
/* See meet.h. */
#include "meet.h"

#include <errno.h>

#include "test.h"

#define MEET_NS 20000000000u

const uint8_t right_secret[LS__LINK_SECRET] = {1, 2, 3}, wrong_secret[LS__LINK_SECRET] = {1, 2, 4};

/* Not every second call: that could always be the same side's. */
static bool sleepy(void)
{
    static uint32_t state = 1;
    state = state * 1664525u + 1013904223u;
    return (state >> 16) % 3 == 0;
}

static ssize_t narrow_recv(const ls__env *env, int fd, void *out, size_t bytes, int *got_fd)
{
    (void)env;
    const ls__env *real = ls__env_posix();
    return sleepy() ? -EAGAIN : real->recv(real, fd, out, bytes > 0 ? 1 : 0, got_fd);
}

static ssize_t narrow_send(const ls__env *env, int fd, const ls__env_span *spans, int count)
{
    (void)env;
    const ls__env *real = ls__env_posix();
    int i = 0;
    while (i < count - 1 && spans[i].bytes == 0) {
        i++;
    }
    const ls__env_span first = {spans[i].at, spans[i].bytes > 0 ? 1 : 0};
    return sleepy() ? -EAGAIN : real->send_spans(real, fd, &first, 1);
}

const ls__env *narrow_env(void)
{
    static ls__env narrow;
    narrow = *ls__env_posix();
    narrow.recv = narrow_recv;
    narrow.send_spans = narrow_send;
    return &narrow;
}

ls__link_spec spec_of(ls__link_mode mode, const uint8_t *secret, const char *purpose, uint64_t job)
{
    return (ls__link_spec){
        .env = ls__env_posix(), .secret = secret, .mode = mode, .purpose = purpose, .job = job};
}

ls__listener *listener_of(const ls__link_spec *spec)
{
    ls__listener *listener = NULL;
    CHECK_OK(ls__listener_open(spec, "127.0.0.1", 0, &listener));
    return listener;
}

ls_status meet(ls__listener *listener, ls__link *client, ls__link **in)
{
    const ls__env *env = ls__env_posix();
    const uint64_t end = env->now_ns(env) + MEET_NS;
    ls_status status = LS_IN_PROGRESS;
    *in = NULL;
    while ((status == LS_IN_PROGRESS || *in == NULL) && env->now_ns(env) < end) {
        ls__link *came = ls__listener_next(listener);
        *in = came != NULL ? came : *in;
        status = status == LS_IN_PROGRESS ? ls__link_handshake(client) : status;
        if (status < 0) {
            return status;
        }
        env->yield(env);
    }
    return status;
}

void open_pair(const ls__link_spec *spec, ls__link **client, ls__link **in)
{
    ls__listener *listener = listener_of(spec);
    CHECK_OK(ls__link_connect(spec, "127.0.0.1", ls__listener_port(listener), "127.0.0.1", client));
    CHECK_OK(meet(listener, *client, in));
    CHECK(*in != NULL);
    ls__listener_close(listener);
}

bool has_tls(void)
{
    return ls__link_available(LS__LINK_TLS) == LS_OK;
}
