/* SPDX-License-Identifier: Apache-2.0 */
/* Object collectives: byte strings of any length, as other languages send objects. Each operation
 * exchanges *parts* first: the length and as many bytes as fit beside it, so short objects take one
 * operation. The rest of longer objects follows when all ranks know how much memory they need: as
 * broadcasts where all ranks receive it, as point-to-point messages with the library's own tag
 * where one rank does.
 *
 * A rank without memory for an object fails the group, or the others would wait for it.
 *
 * Objects come from peers, so their lengths are not trusted: an impossible length is treated like
 * one that is too large. The results are memory of the user, freed with ls_bytes_free. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/options.h"
#include "base/size.h"
#include "comm/api/collective.h"
#include "comm/core/collective.h"
#include "comm/core/group.h"
#include "comm/diagnose/fail.h"

#define ALIGN 16

/* The first bytes of an object, as they are exchanged. */
typedef struct part {
    int64_t length; /* of the whole object */
    unsigned char start[504];
} part;

/* The state of one call. */
typedef struct call {
    const char *what;
    ls_group *group;
    ls_collective_options options;
    part *part;     /* [size] */
    ls_work **work; /* [size], NULL where no transfer is in flight */
    size_t bytes;   /* of both */
} call;

/* ---- memory ------------------------------------------------------------------------------- */

/* For ls_bytes_free; not NULL even for no bytes, unless memory is short. */
static void *bytes_new(size_t bytes)
{
    return bytes <= PTRDIFF_MAX ? malloc(bytes > 0 ? bytes : 1) : NULL;
}

/* Fails the group, because the peers would wait for this rank. */
static ls_status no_memory(const call *d)
{
    char text[LS__FAILURE_MAX];
    snprintf(text, sizeof text, "%s on group \"%s\": rank %d has no memory for the bytes", d->what,
             d->group->name, d->group->comm->runtime->rank);
    ls__group_fail(d->group, LS_ERR_MEMORY, text);
    return ls__fail(LS_ERR_MEMORY, "%s", text);
}

/* Reads the options and allocates memory for the parts and handles of one call. */
static ls_status begin_call(call *d, const char *what, ls_group *group,
                            const ls_collective_options *options)
{
    LS_READ_OPTIONS(ls_collective_options, given, options, what, LS_ERR_INVALID);
    const ls__env *env = group->comm->env;
    const size_t size = (size_t)group->size;
    given.tag = given.tag != NULL ? given.tag : what;
    *d = (call){.what = what, .group = group, .options = given};
    d->bytes = size * (sizeof(part) + sizeof(ls_work *));
    d->part = env->allocate(env, d->bytes);
    if (d->part == NULL) {
        return no_memory(d);
    }
    memset(d->part, 0, d->bytes);
    d->work = (ls_work **)(void *)(d->part + size);
    return LS_OK;
}

/* Waits for all transfers in flight, also after an error, since they use memory that the caller
 * releases next. Returns the first error. */
static ls_status settle(const call *d, ls_status status)
{
    for (int r = 0; r < d->group->size; r++) {
        const ls_status ended = d->work[r] != NULL ? ls_work_wait(d->work[r]) : LS_OK;
        if (status == LS_OK) {
            status = ended;
        }
        d->work[r] = NULL;
    }
    return status;
}

/* No transfer is in flight any more. */
static void end(call *d)
{
    LS_ASSERT(d->part != NULL);
    const ls__env *env = d->group->comm->env;
    env->release(env, d->part, d->bytes);
}

/* ---- arguments ---------------------------------------------------------------------------- */

/* Arguments that all these operations have in common. */
static ls_status check(const char *what, const ls_group *group, const void *place)
{
    if (ls__comm_get(what) == NULL) {
        return ls__self.status;
    }
    if (group == NULL || place == NULL) {
        return ls__fail(LS_ERR_INVALID, "%s: %s is NULL; give the group and places for the results",
                        what, group == NULL ? "the group" : "a place for a result");
    }
    return LS_OK;
}

/* Checked here already, because the root's arguments differ from the others'. */
static ls_status check_root(const char *what, const ls_group *group, int root)
{
    if (root < 0 || root >= group->size) {
        return ls__fail(LS_ERR_INVALID,
                        "%s on group \"%s\": root %d is not a rank of this group; use 0 to %d",
                        what, group->name, root, group->size - 1);
    }
    return LS_OK;
}

/* Whether `length` bytes can exist at this address. */
static ls_status check_bytes(const char *what, const ls_group *group, const void *bytes,
                             size_t length)
{
    if (bytes == NULL && length > 0) {
        return ls__fail(
            LS_ERR_INVALID,
            "%s on group \"%s\": bytes is NULL but length is %zu; give memory, or length 0", what,
            group->name, length);
    }
    if (length > INT64_MAX) {
        return ls__fail(
            LS_ERR_INVALID,
            "%s on group \"%s\": %zu bytes do not fit in memory; is the length negative?", what,
            group->name, length);
    }
    return LS_OK;
}

/* ---- parts -------------------------------------------------------------------------------- */

/* How many bytes travel beside the length. */
static size_t in_part(size_t length)
{
    return length < sizeof((part *)0)->start ? length : sizeof((part *)0)->start;
}

/* The caller has cleared the part, so no stray memory is sent. */
static void put_part(part *p, const void *bytes, size_t length)
{
    p->length = (int64_t)length;
    if (length > 0) {
        memcpy(p->start, bytes, in_part(length));
    }
}

/* A peer's length is not trusted: a negative one becomes a size for which there is no memory. */
static size_t length_of(const part *p)
{
    return p->length < 0 ? SIZE_MAX : (size_t)p->length;
}

/* How many bytes did not fit into the part. */
static int64_t rest_of(size_t length)
{
    return (int64_t)(length - in_part(length));
}

/* Starts the transfer of the bytes that did not fit into the part; LS_OK without a transfer if all
 * did. Point-to-point messages carry the library's own tag. */
static ls_status move_rest(const call *d, ls__operation operation, int peer, void *data,
                           size_t length, ls_work **work)
{
    LS_ASSERT(*work == NULL);
    unsigned char *at = (unsigned char *)data + in_part(length);
    if (rest_of(length) == 0) {
        return LS_OK;
    }
    return ls__collective_start(d->group,
                                &(ls__collective){.operation = operation,
                                                  .input = operation == LS__OP_RECV ? NULL : at,
                                                  .output = operation == LS__OP_SEND ? NULL : at,
                                                  .count = rest_of(length),
                                                  .dtype = LS_UINT8,
                                                  .root = peer,
                                                  .own_tag = operation != LS__OP_BROADCAST,
                                                  .options = &d->options},
                                work);
}

/* ---- broadcast ---------------------------------------------------------------------------- */

/* The new memory is the caller's only if everything has arrived. */
static ls_status receive_broadcast(const call *d, int root, void **bytes, size_t *length)
{
    const size_t comes = length_of(d->part);
    void *data = bytes_new(comes);
    if (data == NULL) {
        return no_memory(d);
    }
    memcpy(data, d->part->start, in_part(comes));
    ls_status status = move_rest(d, LS__OP_BROADCAST, root, data, comes, &d->work[0]);
    status = settle(d, status);
    if (status != LS_OK) {
        ls_bytes_free(data);
        return status;
    }
    *bytes = data;
    *length = comes;
    return LS_OK;
}

/* The part first: then all ranks know how much memory they need. */
ls_status ls_broadcast_bytes(ls_group *group, void **bytes, size_t *length, int root,
                             const ls_collective_options *options)
{
    const char *what = "ls_broadcast_bytes";
    LS_TRY(check(what, group, length == NULL ? NULL : bytes));
    LS_TRY(check_root(what, group, root));
    const bool gives = group->rank == root;
    call d;
    if (gives) {
        LS_TRY(check_bytes(what, group, *bytes, *length));
    }
    LS_TRY(begin_call(&d, what, group, options));
    if (gives) {
        put_part(d.part, *bytes, *length);
    }
    ls_status status = ls_broadcast(group, d.part, sizeof(part), LS_UINT8, root, &d.options, NULL);
    if (status == LS_OK && gives) {
        status = move_rest(&d, LS__OP_BROADCAST, root, *bytes, *length, &d.work[0]);
        status = settle(&d, status);
    } else if (status == LS_OK) {
        status = receive_broadcast(&d, root, bytes, length);
    }
    end(&d);
    return status;
}

/* ---- all_gather, gather ------------------------------------------------------------------- */

/* One allocation for the list and all bytes, with the start of each object in place. NULL: no
 * memory, or a length that is too large. */
static ls_bytes *make_list(const call *d)
{
    const size_t size = (size_t)d->group->size;
    size_t all = ls__round_up(size * sizeof(ls_bytes), ALIGN);
    for (size_t r = 0; r < size; r++) {
        const size_t length = length_of(&d->part[r]);
        if (length > SIZE_MAX - ALIGN || !ls__add_size(all, ls__round_up(length, ALIGN), &all)) {
            return NULL;
        }
    }
    ls_bytes *list = bytes_new(all);
    unsigned char *at = (unsigned char *)list + ls__round_up(size * sizeof(ls_bytes), ALIGN);
    for (size_t r = 0; list != NULL && r < size; r++) {
        list[r] = (ls_bytes){.data = at, .length = length_of(&d->part[r])};
        memcpy(at, d->part[r].start, in_part(list[r].length));
        at += ls__round_up(list[r].length, ALIGN);
    }
    return list;
}

/* Moves all rests at the same time; `bytes` are this rank's own. */
static ls_status gather_rests(const call *d, const void *bytes, bool all, ls_bytes *list)
{
    const int rank = d->group->rank;
    ls_status status = LS_OK;
    if (list[rank].length > 0) {
        memcpy(list[rank].data, bytes, list[rank].length);
    }
    for (int r = 0; r < d->group->size && status == LS_OK; r++) {
        if (all || r != rank) {
            status = move_rest(d, all ? LS__OP_BROADCAST : LS__OP_RECV, r, list[r].data,
                               list[r].length, &d->work[r]);
        }
    }
    return settle(d, status);
}

/* The list becomes the caller's only if everything has arrived. */
static ls_status receive_list(const call *d, const void *bytes, bool all, ls_bytes **out)
{
    ls_bytes *list = make_list(d);
    if (list == NULL) {
        return no_memory(d);
    }
    const ls_status status = gather_rests(d, bytes, all, list);
    if (status != LS_OK) {
        ls_bytes_free(list);
        return status;
    }
    *out = list;
    return LS_OK;
}

/* The rest of a long object is broadcast by its owner; all broadcasts run at the same time. */
ls_status ls_all_gather_bytes(ls_group *group, const void *bytes, size_t length,
                              const ls_collective_options *options, ls_bytes **out)
{
    const char *what = "ls_all_gather_bytes";
    part mine = {0};
    call d;
    LS_TRY(check(what, group, out));
    LS_TRY(check_bytes(what, group, bytes, length));
    *out = NULL;
    put_part(&mine, bytes, length);
    LS_TRY(begin_call(&d, what, group, options));
    ls_status status = ls_all_gather(group, &mine, d.part, sizeof mine, LS_UINT8, &d.options, NULL);
    if (status == LS_OK) {
        status = receive_list(&d, bytes, true, out);
    }
    end(&d);
    return status;
}

/* The rest of a long object is sent to the root as a point-to-point message. */
ls_status ls_gather_bytes(ls_group *group, const void *bytes, size_t length, int root,
                          const ls_collective_options *options, ls_bytes **out)
{
    const char *what = "ls_gather_bytes";
    part mine = {0};
    call d;
    LS_TRY(check(what, group, out));
    LS_TRY(check_root(what, group, root));
    LS_TRY(check_bytes(what, group, bytes, length));
    *out = NULL;
    put_part(&mine, bytes, length);
    LS_TRY(begin_call(&d, what, group, options));
    ls_status status =
        ls_gather(group, &mine, d.part, sizeof mine, LS_UINT8, root, &d.options, NULL);
    if (status == LS_OK && group->rank == root) {
        status = receive_list(&d, bytes, false, out);
    } else if (status == LS_OK) {
        status = move_rest(&d, LS__OP_SEND, root, (void *)(uintptr_t)bytes, length, &d.work[0]);
        status = settle(&d, status);
    }
    end(&d);
    return status;
}

/* ---- scatter ------------------------------------------------------------------------------ */

/* The root must give one entry for each rank. */
static ls_status check_list(const char *what, const ls_group *group, const ls_bytes *in)
{
    if (in == NULL) {
        return ls__fail(LS_ERR_INVALID,
                        "%s on group \"%s\": in is NULL on the root; give %d entries", what,
                        group->name, group->size);
    }
    for (int r = 0; r < group->size; r++) {
        LS_TRY(check_bytes(what, group, in[r].data, in[r].length));
    }
    return LS_OK;
}

/* The root sends all rests at the same time. */
static ls_status scatter_rests(const call *d, const ls_bytes *in)
{
    ls_status status = LS_OK;
    for (int r = 0; r < d->group->size && status == LS_OK; r++) {
        if (r != d->group->rank) {
            status = move_rest(d, LS__OP_SEND, r, in[r].data, in[r].length, &d->work[r]);
        }
    }
    return settle(d, status);
}

/* This rank's object; the root copies its own from `in` while it sends the others. */
static ls_status receive_own(const call *d, const part *mine, const ls_bytes *in, int root,
                             void **bytes)
{
    const size_t comes = length_of(mine);
    void *data = bytes_new(comes);
    if (data == NULL) {
        return no_memory(d);
    }
    memcpy(data, mine->start, in_part(comes));
    ls_status status = LS_OK;
    if (d->group->rank == root) {
        if (rest_of(comes) > 0) {
            memcpy((unsigned char *)data + in_part(comes),
                   (const unsigned char *)in[root].data + in_part(comes), (size_t)rest_of(comes));
        }
        status = scatter_rests(d, in);
    } else {
        status = move_rest(d, LS__OP_RECV, root, data, comes, &d->work[0]);
        status = settle(d, status);
    }
    if (status != LS_OK) {
        ls_bytes_free(data);
        return status;
    }
    *bytes = data;
    return LS_OK;
}

/* The parts travel by ls_scatter; every rank then knows the length of its object. */
ls_status ls_scatter_bytes(ls_group *group, const ls_bytes *in, int root,
                           const ls_collective_options *options, void **bytes, size_t *length)
{
    const char *what = "ls_scatter_bytes";
    part mine = {0};
    call d;
    LS_TRY(check(what, group, length == NULL ? NULL : bytes));
    LS_TRY(check_root(what, group, root));
    if (group->rank == root) {
        LS_TRY(check_list(what, group, in));
    }
    LS_TRY(begin_call(&d, what, group, options));
    for (int r = 0; group->rank == root && r < group->size; r++) {
        put_part(&d.part[r], in[r].data, in[r].length);
    }
    ls_status status =
        ls_scatter(group, d.part, &mine, sizeof mine, LS_UINT8, root, &d.options, NULL);
    if (status == LS_OK) {
        status = receive_own(&d, &mine, in, root, bytes);
    }
    if (status == LS_OK) {
        *length = length_of(&mine);
    }
    end(&d);
    return status;
}
