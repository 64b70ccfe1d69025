/* The proof of the secret on a plain link: challenge and response, both ways.
 *
 *     client                                  server
 *     hello(nonce c)             ──▶
 *                                ◀──          hello(nonce s)
 *     HMAC("client", c, s, …)    ──▶          verified first: an unauthenticated peer learns nothing
 *                                ◀──          HMAC("server", c, s, …)
 *
 * The codes cover both hellos (nonces, versions, modes), the side, the purpose and the job, so a
 * recorded proof, one sent back to its sender, and one of another port or job are all worthless,
 * and nobody on the way can talk the two out of TLS. Messages have fixed sizes;
 * nothing else is read before the end.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/digest.h"
#include "base/error.h"
#include "job/link/internal.h"

#define PROOF_MAGIC 0x4c534b31u /* "LSK1" */
#define PROOF_VERSION 2

_Static_assert(sizeof(ls__proof_hello) == 40, "no padding");

/* HMAC(secret, "lockstep link LABEL PURPOSE\0" job hello-of-the-client hello-of-the-server) */
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

static const char *label_of(bool client)
{
    return client ? "client" : "server";
}

ls_status ls__proof_key(const ls__link *link, uint8_t out[LS__PROOF_MAC])
{
    return code_of(link, "key", out);
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

/* Both build and mode are said in words on both sides, where it is Lockstep that speaks. */
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
                          "%s speaks version %d of the proof, this side version %d: install the "
                          "same Lockstep on every host",
                          link->peer, other->version, own->version)
               : ls__fail(LS_ERR_AUTH,
                          "%s wants %s, this side %s: give every node the same --data-plane",
                          link->peer, other->mode == LS__LINK_TLS ? "TLS" : "no encryption",
                          own->mode == LS__LINK_TLS ? "TLS" : "no encryption");
}

static ls_status take_hello(ls__link *link)
{
    const ls_status status = receive(link, sizeof link->other);
    if (status != LS_OK) {
        return status;
    }
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

static ls_status take_code(ls__link *link)
{
    uint8_t want[LS__PROOF_MAC];
    const ls_status status = receive(link, sizeof want);
    if (status != LS_OK) {
        return status;
    }
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

ls_status ls__proof_begin(ls__link *link)
{
    link->own = (ls__proof_hello){.magic = PROOF_MAGIC,
                                  .version = PROOF_VERSION,
                                  .client = link->client,
                                  .mode = (uint8_t)link->spec.mode};
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
    return status;
}
