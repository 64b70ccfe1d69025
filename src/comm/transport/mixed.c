/* SPDX-License-Identifier: Apache-2.0 */
/* Two transports as one: every call looks up in a table which of them reaches the peer. */
#include "comm/transport/transport.h"

#include <string.h>

typedef struct mixed {
    ls__transport base;
    const ls__env *env;
    ls__transport *host, *net;
    int size;
    bool remote[]; /* [size] */
} mixed;

/* The transport that reaches this peer. All functions below only forward the call to it. */
static ls__transport *to(ls__transport *t, int peer)
{
    mixed *self = (mixed *)t;
    return self->remote[peer] ? self->net : self->host;
}

static size_t mixed_payload_max(ls__transport *t, int peer)
{
    ls__transport *via = to(t, peer);
    return via->payload_max(via, peer);
}

static ls__message *mixed_reserve(ls__transport *t, int peer)
{
    ls__transport *via = to(t, peer);
    return via->reserve(via, peer);
}

static void mixed_commit(ls__transport *t, int peer)
{
    ls__transport *via = to(t, peer);
    via->commit(via, peer);
}

static void mixed_commit_borrowed(ls__transport *t, int peer, const void *payload, uint32_t *in_use)
{
    ls__transport *via = to(t, peer);
    via->commit_borrowed(via, peer, payload, in_use);
}

static const ls__message *mixed_peek(ls__transport *t, int peer, const void **payload)
{
    ls__transport *via = to(t, peer);
    return via->peek(via, peer, payload);
}

/* Shared memory never keeps a pointer to a buffer, so only TCP has anything to release. */
static void mixed_return_buffers(ls__transport *t, uint32_t group)
{
    mixed *self = (mixed *)t;
    self->net->return_buffers(self->net, group);
}

static void mixed_release(ls__transport *t, int peer)
{
    ls__transport *via = to(t, peer);
    via->release(via, peer);
}

/* Shared memory has no work of its own between calls. */
static bool mixed_turn(ls__transport *t)
{
    mixed *self = (mixed *)t;
    return self->net->turn(self->net);
}

/* A transport without this function never loses a peer by itself: on one host the launcher reports
 * a death. */
static const char *mixed_broken(ls__transport *t, int peer)
{
    ls__transport *via = to(t, peer);
    return via->broken != NULL ? via->broken(via, peer) : NULL;
}

/* Closes both; ls__mixed_transport_new has taken them over. */
static void mixed_close(ls__transport *t)
{
    mixed *self = (mixed *)t;
    self->host->close(self->host);
    self->net->close(self->net);
    self->env->release(self->env, self, sizeof *self + (size_t)self->size);
}

ls_status ls__mixed_transport_new(const ls__env *env, ls__transport *host, ls__transport *net,
                                  const bool *remote, int size, ls__transport **out)
{
    mixed *self = env->allocate(env, sizeof *self + (size_t)size);
    if (self == NULL) {
        return ls__fail(LS_ERR_MEMORY, "ls_init: no memory for the transports");
    }
    *self = (mixed){.base = {.payload_max = mixed_payload_max,
                             .reserve = mixed_reserve,
                             .commit = mixed_commit,
                             .commit_borrowed = mixed_commit_borrowed,
                             .peek = mixed_peek,
                             .release = mixed_release,
                             .return_buffers = mixed_return_buffers,
                             .turn = mixed_turn,
                             .broken = mixed_broken,
                             .close = mixed_close},
                    .env = env,
                    .host = host,
                    .net = net,
                    .size = size};
    memcpy(self->remote, remote, (size_t)size * sizeof *remote);
    *out = &self->base;
    return LS_OK;
}
