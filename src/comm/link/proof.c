/* The proof of the secret on a plain link: challenge and response, both ways.
 *
 *     client                                  server
 *     hello(nonce c)             ──▶
 *                                ◀──          hello(nonce s)
 *     HMAC("client", c, s, …)    ──▶          verified first: strangers get nothing to work with
 *                                ◀──          HMAC("server", c, s, …)
 *
 * The codes cover both nonces, the side, the purpose and the job, so a recorded proof, one sent
 * back to its sender, and one of another port or job are all worthless. Messages have fixed sizes;
 * nothing else is read before the end.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/digest.h"
#include "base/error.h"
#include "comm/link/inside.h"

#define PROOF_MAGIC 0x4c534b31u /* "LSK1" */
#define PROOF_VERSION 1
#define LABEL "lockstep link"

_Static_assert(sizeof(ls__proof_hello) == 40, "no padding");

static ls_status code_of(const ls__link *link, bool client, uint8_t out[LS__PROOF_MAC])
{
    const ls__proof_hello *c = link->client ? &link->own : &link->other;
    const ls__proof_hello *s = link->client ? &link->other : &link->own;
    uint8_t text[256] = {0};
    size_t used = (size_t)snprintf((char *)text, 96, "%s %s %.48s", LABEL,
                                   client ? "client" : "server", link->spec.purpose) +
                  1;
    memcpy(text + used, &link->spec.job, sizeof link->spec.job);
    used += sizeof link->spec.job;
    memcpy(text + used, c->nonce, LS__PROOF_NONCE);
    memcpy(text + used + LS__PROOF_NONCE, s->nonce, LS__PROOF_NONCE);
    used += 2 * (size_t)LS__PROOF_NONCE;
    return ls__mac(link->secret, LS__LINK_SECRET, text, used, out);
}

static void queue(ls__link *link, const void *bytes, size_t count)
{
    memcpy(link->out + link->queued, bytes, count);
    link->queued += count;
}

static ls_status broken(const ls__link *link, ssize_t error)
{
    return ls__fail(LS_ERR_PEER, "connection with %s: %s", link->peer,
                    error == 0 ? "it was closed before the job's secret was proven (is it the same "
                                 "on both sides?)"
                               : strerror((int)-error));
}

/* LS_OK: nothing is left to be sent. */
static ls_status flush(ls__link *link)
{
    while (link->put < link->queued) {
        const ls__env_span span = {.at = link->out + link->put, .bytes = link->queued - link->put};
        const ssize_t put = link->env->send_spans(link->env, link->fd, &span, 1);
        if (put == -EAGAIN) {
            return LS_IN_PROGRESS;
        }
        if (put < 0) {
            return broken(link, put);
        }
        link->put += (size_t)put;
    }
    return LS_OK;
}

/* Until `count` bytes are there, and not one more. */
static ls_status receive(ls__link *link, size_t count)
{
    while (link->got < count) {
        const ssize_t got =
            link->env->recv(link->env, link->fd, link->in + link->got, count - link->got, NULL);
        if (got == -EAGAIN) {
            return LS_IN_PROGRESS;
        }
        if (got <= 0) {
            return broken(link, got);
        }
        link->got += (size_t)got;
    }
    link->got = 0;
    return LS_OK;
}

static ls_status take_hello(ls__link *link)
{
    const ls_status status = receive(link, sizeof link->other);
    if (status != LS_OK) {
        return status;
    }
    memcpy(&link->other, link->in, sizeof link->other);
    if (link->other.magic != PROOF_MAGIC || link->other.version != PROOF_VERSION ||
        link->other.client == link->own.client) {
        return ls__fail(
            LS_ERR_AUTH,
            "what %s sent is no greeting of this version (a stranger, another build, or "
            "one side speaks TLS and the other plain)",
            link->peer);
    }
    if (link->client) {
        uint8_t code[LS__PROOF_MAC];
        LS_TRY(code_of(link, true, code));
        queue(link, code, sizeof code);
    } else {
        queue(link, &link->own, sizeof link->own);
    }
    link->state = LS__LINK_MAC;
    return LS_OK;
}

static ls_status take_code(ls__link *link)
{
    uint8_t want[LS__PROOF_MAC];
    const ls_status status = receive(link, sizeof want);
    if (status != LS_OK) {
        return status;
    }
    LS_TRY(code_of(link, !link->client, want));
    if (!ls__mac_equal(want, link->in)) {
        return ls__fail(
            LS_ERR_AUTH,
            "%s does not know this job's secret: give every node the same --secret-file",
            link->peer);
    }
    if (!link->client) {
        LS_TRY(code_of(link, false, want));
        queue(link, want, sizeof want);
    }
    link->state = LS__LINK_LAST;
    return LS_OK;
}

ls_status ls__proof_begin(ls__link *link)
{
    link->own =
        (ls__proof_hello){.magic = PROOF_MAGIC, .version = PROOF_VERSION, .client = link->client};
    if (link->env->random_bytes(link->env, link->own.nonce, sizeof link->own.nonce) != 0) {
        return ls__fail(LS_ERR_SYSTEM, "no random numbers for the proof of the job's secret");
    }
    if (link->client) {
        queue(link, &link->own, sizeof link->own);
    }
    link->state = LS__LINK_HELLO;
    return LS_OK;
}

ls_status ls__proof_advance(ls__link *link)
{
    ls_status status = flush(link);
    while (status == LS_OK && link->state != LS__LINK_LAST) {
        status = link->state == LS__LINK_HELLO ? take_hello(link) : take_code(link);
        status = status == LS_OK ? flush(link) : status;
    }
    if (status == LS_OK) {
        link->state = LS__LINK_OPEN;
    }
    return status;
}
