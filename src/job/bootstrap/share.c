/* SPDX-License-Identifier: Apache-2.0 */
/* Sharing address, port and secret through the launcher. The shared value is one line:
 *
 *     v1/PORT/SECRET/ADDRESS,ADDRESS,…        SECRET: 64 hexadecimal digits
 *
 * All addresses of rank 0's host are in it, because only the other hosts can find out by which of
 * them they reach it: they try one after the other. */
#include "job/bootstrap/share.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/settings.h"
#include "base/text.h"
#include "job/nodes/rendezvous.h"
#include "job/nodes/secret.h"

#define INTERFACES_MAX 64
#define HOST_MAX 250 /* the list of addresses is the host of a rendezvous, which is not longer */

typedef bool (*broadcast)(const ls__env *env, int rank, char value[LS__PMI_VALUE],
                          uint64_t deadline_ns, char reason[LS__PMI_REASON]);

/* How this launcher's ranks share a value; NULL: they cannot. Variables that were set by hand
 * describe a world of which the process manager, if there is one, has not heard. */
static broadcast way_of(const ls__detected *d, const char **name)
{
    const bool by_hand =
        strcmp(d->launcher, "environment") == 0 || strcmp(d->launcher, "torchrun") == 0;
    *name = by_hand ? NULL : ls__pmi_name();
    if (*name != NULL) {
        return ls__pmi_broadcast;
    }
    *name = "a file in the home folder";
    return strcmp(d->launcher, "slurm") == 0 ? ls__share_file_broadcast : NULL;
}

/* ---- at rank 0 ------------------------------------------------------------------------------ */

/* The addresses by which other hosts may reach this one; the loopback only if there is no other. */
static ls_status list_addresses(const ls__env *env, char *out, size_t bytes)
{
    ls__env_interface all[INTERFACES_MAX];
    bool set = false;
    LS_TRY(ls__interface_wanted(env, &set, &all[0]));
    const int count = set ? 1 : env->interfaces(env, all, INTERFACES_MAX);
    ls__text to = {out, bytes};
    int listed = 0;
    out[0] = '\0';
    for (int loopback = 0; loopback < 2 && listed == 0; loopback++) {
        for (int i = 0; i < count && listed < LS__PLACE_ADDRESSES; i++) {
            const bool local = strncmp(all[i].address, "fe80", 4) == 0;
            if ((set || all[i].loopback == (loopback == 1)) && !local &&
                strlen(out) + strlen(all[i].address) + 1 < bytes) {
                ls__text_add(&to, "%s%s", listed++ > 0 ? "," : "", all[i].address);
            }
        }
    }
    return listed > 0 ? LS_OK
                      : ls__fail(LS_ERR_SYSTEM, "ls_init: this host has no network address: set "
                                                "LOCKSTEP_RENDEZVOUS=HOST:PORT for all ranks");
}

static ls_status compose(const ls__env *env, char value[LS__PMI_VALUE])
{
    char addresses[HOST_MAX], first[LS__ADDRESS_MAX], secret[2 * LS__SECRET_FILE_BYTES + 1];
    LS_TRY(list_addresses(env, addresses, sizeof addresses));
    snprintf(first, sizeof first, "%.*s", (int)strcspn(addresses, ","), addresses);
    LS_TRY(ls__secret_draw(env, secret));
    snprintf(value, LS__PMI_VALUE, "v1/%d/%s/%s", ls__free_port_at(env, first), secret, addresses);
    explicit_bzero(secret, sizeof secret);
    return LS_OK;
}

/* ---- at every rank -------------------------------------------------------------------------- */

/* Takes from the shared value what the user has not set. */
static bool apply(const char *value, const char *way, ls__detected *d)
{
    int port = 0, end = 0;
    char secret[2 * LS__SECRET_FILE_BYTES + 1] = "";
    if (sscanf(value, "v1/%d/%64[0-9a-f]/%n", &port, secret, &end) != 2 || end == 0 ||
        !ls__secret_parse(secret, strlen(secret), d->secret)) {
        return false; /* what it holds is no secret of a job */
    }
    explicit_bzero(secret, sizeof secret);
    d->has_secret = true;
    if (ls__setting_get("LOCKSTEP_RENDEZVOUS") == NULL) {
        const char *hosts = value + end;
        snprintf(d->rendezvous, sizeof d->rendezvous,
                 strchr(hosts, ':') != NULL ? "[%.250s]:%d" : "%.250s:%d", hosts, port);
        snprintf(d->rendezvous_from, sizeof d->rendezvous_from, "rank 0 (by %s)", way);
    }
    return true;
}

static ls_status fail_sharing(const ls__detected *d, const char *way, const char *reason)
{
    return ls__fail(
        LS_ERR_SYSTEM,
        "ls_init: %s, but the address of rank 0 and the secret of the job could not be "
        "shared by %s (%s): set LOCKSTEP_RENDEZVOUS=HOST:PORT (rank 0's host and a free "
        "port there) and LOCKSTEP_SECRET_FILE=FILE (made by `lockstep secret FILE`) for "
        "all ranks",
        d->why, way, reason);
}

const char *ls__share_way(const ls__detected *d)
{
    const char *way = NULL;
    const broadcast share = way_of(d, &way);
    const bool secret = ls__setting_get("LOCKSTEP_SECRET_FILE") != NULL;
    const bool place = ls__setting_get("LOCKSTEP_RENDEZVOUS") != NULL;
    /* A file is for the secret: the place follows from Slurm's variables. */
    const bool needed = !secret || (!place && share == ls__pmi_broadcast);
    return d->local_size < d->size && share != NULL && needed ? way : NULL;
}

ls_status ls__share_rendezvous(const ls__env *env, uint64_t deadline_ns, ls__detected *d)
{
    char value[LS__PMI_VALUE] = "", reason[LS__PMI_REASON] = "";
    const char *way = ls__share_way(d);
    if (way == NULL) {
        return LS_OK;
    }
    const broadcast share = way_of(d, &way);
    if (d->rank == 0) {
        LS_TRY(compose(env, value));
    }
    const bool shared = share(env, d->rank, value, deadline_ns, reason);
    const bool sound = shared && apply(value, way, d);
    explicit_bzero(value, sizeof value);
    if (!shared) {
        return fail_sharing(d, way, reason);
    }
    if (!sound) {
        return fail_sharing(d, way, "rank 0 uses another version of Lockstep");
    }
    LS__INFO("ls_init: rank 0's address and the job's secret were shared by %s", way);
    return LS_OK;
}

void ls__share_end(const ls__env *env, const ls__detected *d)
{
    const char *way = NULL;
    if (d->rank == 0 && d->has_secret && way_of(d, &way) == ls__share_file_broadcast) {
        ls__share_file_remove(env);
    }
}
