/* SPDX-License-Identifier: Apache-2.0 */
/* The proof of the secret on a plain link: challenge and response, both ways.
 *
 *     client                             server
 *     hello(nonce c)             ──▶
 *                                ◀──     hello(nonce s)
 *     HMAC("client", c, s, …)    ──▶     verified first: an unauthenticated peer learns nothing
 *                                ◀──     HMAC("server", c, s, …)
 *
 * The codes cover both hellos (nonces, versions, modes), the side, the purpose and the job.
 * Therefore a recorded proof, a reflected one (sent back to its sender) and one of another port or
 * job are all worthless, and nobody between the two can downgrade them from TLS to plain. Messages
 * have fixed sizes; nothing else is read before the end.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/digest.h"
#include "base/error.h"
#include "job/link/internal.h"

#define PROOF_MAGIC 0x4c534b31u /* "LSK1" */
#define PROOF_VERSION 2

_Static_assert(sizeof(ls__proof_hello) == 40, "no padding");

/* The code of one side: HMAC(secret, "lockstep link LABEL PURPOSE\0" · job · hello of the client
 * · hello of the server). Both sides compute it over the same bytes, in the same order. */
static ls_status code_of(const ls__link *link, const char *label, uint8_t out[LS__PROOF_MAC])
{
    const ls__proof_hello *c = link->client ? &link->own : &link->other;
    const ls__proof_hello *s = link->client ? &link->other : &link->own;
    uint8_t text[96 + sizeof link->spec.job + 2 * sizeof *c] = {0};
    size_t used =
        (size_t)snprintf((char *)text, 96, "lockstep link %s %.48s", label, link->spec.purpose) + 1;
    memcpy(text + used, &link->spec.job, sizeof link->spec.job);
    used += sizeof link->spec.job;
    memcpy(text + used, c, sizeof *c);
    memcpy(text + used + sizeof *c, s, sizeof *s);
    return ls__mac(link->secret, LS__LINK_SECRET, text, used + sizeof *c + sizeof *s, out);
}

/* The labels make the codes of the two sides differ, so neither can be reflected. */
static const char *label_of(bool client)
{
    return client ? "client" : "server";
}

/* Both hellos are known by now. The key depends on both nonces, so every link has its own. */
ls_status ls__proof_key(const ls__link *link, uint8_t out[LS__PROOF_MAC])
{
    return code_of(link, "key", out);
}

/* Appends to the bytes to be sent; `out` has room for all that one proof sends. */
static void queue(ls__link *link, const void *bytes, size_t count)
{
    LS_ASSERT(count <= sizeof link->out - link->queued);
    memcpy(link->out + link->queued, bytes, count);
    link->queued += count;
}

/* `error` is 0 if the peer closed the connection, else -errno. A server closes it without a word
 * when the code is wrong, so the secret is the first suspicion. */
static ls_status connection_failed(const ls__link *link, ssize_t error)
{
    return ls__fail(LS_ERR_PEER, "connection with %s: %s", link->peer,
                    error == 0 ? "the other side closed it during the handshake (do both sides use "
                                 "the same secret?)"
                               : strerror((int)-error));
}

/* LS_OK: nothing is left to be sent; LS_IN_PROGRESS: the socket is full. */
static ls_status flush(ls__link *link)
{
    while (link->put < link->queued) {
        const ls__env_span span = {.at = link->out + link->put, .bytes = link->queued - link->put};
        const ssize_t put = link->env->send_spans(link->env, link->fd, &span, 1);
        if (put == -EAGAIN) {
            return LS_IN_PROGRESS;
        }
        if (put < 0) {
            return connection_failed(link, put);
        }
        link->put += (size_t)put;
    }
    return LS_OK;
}

/* Reads `count` bytes into link->in, and not one more: the bytes behind them may be TLS records,
 * which libssl must read. */
static ls_status receive(ls__link *link, size_t count)
{
    LS_ASSERT(count <= sizeof link->in);
    while (link->got < count) {
        const ssize_t got =
            link->env->recv(link->env, link->fd, link->in + link->got, count - link->got, NULL);
        if (got == -EAGAIN) {
            return LS_IN_PROGRESS;
        }
        if (got <= 0) {
            return connection_failed(link, got);
        }
        link->got += (size_t)got;
    }
    link->got = 0;
    return LS_OK;
}

/* A difference in version or mode is explained on both sides. So the server answers with its own
 * hello before it fails, and the client can compare; other data gets no answer. */
static ls_status compare_hellos(ls__link *link)
{
    const ls__proof_hello *other = &link->other, *own = &link->own;
    if (other->magic != PROOF_MAGIC || other->client == own->client) {
        return ls__fail(LS_ERR_AUTH, "the data from %s is not a greeting of Lockstep", link->peer);
    }
    if (other->version == own->version && other->mode == own->mode) {
        return LS_OK;
    }
    if (!link->client) {
        queue(link, own, sizeof *own);
        (void)flush(link);
    }
    return other->version != own->version
               ? ls__fail(LS_ERR_AUTH,
                          "%s uses version %d of the handshake, this side version %d: install the "
                          "same Lockstep on every host",
                          link->peer, other->version, own->version)
               : ls__fail(LS_ERR_AUTH,
                          "%s wants %s, this side %s: give every node the same --data-plane",
                          link->peer, other->mode == LS__LINK_TLS ? "TLS" : "no encryption",
                          own->mode == LS__LINK_TLS ? "TLS" : "no encryption");
}

/* The client answers the server's hello with its code; the server answers the client's with its
 * own hello, and learns first whether the client knows the secret. */
static ls_status take_hello(ls__link *link)
{
    const ls_status status = receive(link, sizeof link->other);
    if (status != LS_OK) {
        return status;
    }
    LS_ASSERT(link->state == LS__LINK_HELLO);
    memcpy(&link->other, link->in, sizeof link->other);
    LS_TRY(compare_hellos(link));
    if (link->client) {
        uint8_t code[LS__PROOF_MAC];
        LS_TRY(code_of(link, label_of(true), code));
        queue(link, code, sizeof code);
    } else {
        queue(link, &link->own, sizeof link->own);
    }
    link->state = LS__LINK_MAC;
    return LS_OK;
}

/* Verifies the code of the other side, in constant time. The server sends its own only after
 * that: an unauthenticated peer receives nothing that depends on the secret. */
static ls_status take_code(ls__link *link)
{
    uint8_t want[LS__PROOF_MAC];
    const ls_status status = receive(link, sizeof want);
    if (status != LS_OK) {
        return status;
    }
    LS_ASSERT(link->state == LS__LINK_MAC);
    LS_TRY(code_of(link, label_of(!link->client), want));
    if (!ls__mac_equal(want, link->in)) {
        return ls__fail(
            LS_ERR_AUTH,
            "%s does not know this job's secret: give every node the same --secret-file",
            link->peer);
    }
    if (!link->client) {
        LS_TRY(code_of(link, label_of(false), want));
        queue(link, want, sizeof want);
    }
    link->state = LS__LINK_LAST;
    return LS_OK;
}

/* Draws the nonce of this side. The client also queues its hello: it speaks first. */
ls_status ls__proof_begin(ls__link *link)
{
    LS_ASSERT(link->state == (link->client ? LS__LINK_CONNECTING : LS__LINK_HELLO));
    link->own = (ls__proof_hello){.magic = PROOF_MAGIC,
                                  .version = PROOF_VERSION,
                                  .client = link->client,
                                  .mode = (uint8_t)link->spec.mode};
    if (link->env->random_bytes(link->env, link->own.nonce, sizeof link->own.nonce) != 0) {
        return ls__fail(LS_ERR_SYSTEM,
                        "cannot draw random numbers for the proof of the job's secret");
    }
    if (link->client) {
        queue(link, &link->own, sizeof link->own);
    }
    link->state = LS__LINK_HELLO;
    return LS_OK;
}

/* Sends what is queued and takes the messages that have arrived. A failure is reported at once,
 * although bytes may still be queued. */
ls_status ls__proof_advance(ls__link *link)
{
    for (;;) {
        const ls_status sent = flush(link);
        if (sent != LS_OK || link->state == LS__LINK_LAST) {
            return sent;
        }
        const ls_status taken = link->state == LS__LINK_HELLO ? take_hello(link) : take_code(link);
        if (taken != LS_OK) {
            return taken;
        }
    }
}
