/* SPDX-License-Identifier: Apache-2.0 */
/* The proof of the secret, over an env table whose wire is the fuzzer's bytes. */
#include <errno.h>
#include <string.h>

#include "base/assert.h"
#include "job/link/internal.h"
#include "targets.h"

#define SENT_MAX (sizeof(ls__proof_hello) + LS__PROOF_MAC)

typedef struct wire {
    ls__env env; /* first: an env table is a wire */
    const uint8_t *data;
    size_t left, cut, sent;
    bool ended;
} wire;

static int fixed_random(const ls__env *env, void *out, size_t bytes)
{
    (void)env;
    memset(out, 0x5a, bytes);
    return 0;
}

static ssize_t wire_recv(const ls__env *env, int fd, void *out, size_t bytes, int *got_fd)
{
    wire *w = (wire *)(uintptr_t)env;
    (void)fd;
    (void)got_fd;
    size_t most = bytes < w->cut ? bytes : w->cut;
    most = most < w->left ? most : w->left;
    if (most > 0) {
        memcpy(out, w->data, most);
    }
    w->data += most;
    w->left -= most;
    w->ended = w->ended || most == 0;
    return (ssize_t)most;
}

static ssize_t wire_send(const ls__env *env, int fd, const ls__env_span *spans, int count)
{
    wire *w = (wire *)(uintptr_t)env;
    (void)fd;
    LS_ASSERT(count == 1 && spans[0].bytes > 0);
    w->sent += spans[0].bytes;
    LS_ASSERT(w->sent <= SENT_MAX);
    return (ssize_t)spans[0].bytes;
}

static int wire_name(const ls__env *env, int fd, bool peer, char *out, size_t bytes, int *port)
{
    (void)env;
    (void)fd;
    (void)peer;
    LS_ASSERT(bytes > 4);
    memcpy(out, "far", 4);
    *port = 1;
    return 0;
}

static int nothing(const ls__env *env, int fd)
{
    (void)env;
    (void)fd;
    return 0;
}

static int wire_connect(const ls__env *env, const char *address, int port, const char *from)
{
    (void)env;
    (void)address;
    (void)port;
    (void)from;
    return 3;
}

bool fuzz_handshake(const uint8_t *data, size_t bytes)
{
    static const uint8_t secret[LS__LINK_SECRET] = {1, 2, 3};
    if (bytes == 0) {
        return false;
    }
    wire w = {.env = *ls__env_posix(), .data = data + 1, .left = bytes - 1, .cut = 1 + data[0] / 2};
    w.env.random_bytes = fixed_random;
    w.env.recv = wire_recv;
    w.env.send_spans = wire_send;
    w.env.tcp_name = wire_name;
    w.env.tcp_connect = wire_connect;
    w.env.tcp_connected = nothing;
    w.env.close = nothing;
    const ls__link_spec spec = {.env = &w.env, .secret = secret, .purpose = "data", .job = 7};
    ls__link *link = NULL;
    const ls_status made = data[0] % 2 != 0 ? ls__link_connect(&spec, "1.2.3.4", 5, NULL, &link)
                                            : ls__link_accept(&spec, 3, &link);
    LS_ASSERT(made == LS_OK);
    const ls_status status = ls__link_handshake(link);
    LS_ASSERT(status == LS_OK || status < 0);
    /* Nothing behind the proof is read before it is over, and all of it is needed. */
    LS_ASSERT(status != LS_OK || (w.left == bytes - 1 - SENT_MAX && w.sent == SENT_MAX));
    ls__link_close(link);
    return status == LS_OK;
}
