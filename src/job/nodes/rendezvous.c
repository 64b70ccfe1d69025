/* SPDX-License-Identifier: Apache-2.0 */
/* The rendezvous: parsing and resolving HOST:PORT, choosing a network interface, and finding which
 * of the addresses belong to this host.
 */
#include "job/nodes/rendezvous.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/patient.h"
#include "base/settings.h"
#include "base/text.h"

#define INTERFACES_MAX 64 /* addresses of interfaces; a host with more is searched in part */

/* ---- the place ----------------------------------------------------------------------------- */

/* False for port 0 too: all nodes must know the port. */
static bool parse_port(const char *text, int *port)
{
    char *end = NULL;
    errno = 0;
    const long value = strtol(text, &end, 10);
    *port = (int)value;
    return text[0] >= '0' && text[0] <= '9' && *end == '\0' && errno == 0 && value >= 1 &&
           value <= 65535;
}

/* The message for a rendezvous that cannot be parsed. */
static ls_status not_a_place(const char *text, const char *from)
{
    return ls__fail(LS_ERR_INVALID,
                    "%s %.200s is not of the form HOST:PORT: give node 0's name or address and a "
                    "port that is free there, as in node0:29400 or [fd00::1]:29400",
                    from, text);
}

/* An IPv6 address needs brackets: without them the last colon would be ambiguous. */
ls_status ls__place_parse(const char *text, const char *from, ls__rendezvous_place *out)
{
    memset(out, 0, sizeof *out);
    const char *host = text, *end = strrchr(text, ':');
    if (text[0] == '[') {
        host = text + 1;
        end = strchr(text, ']');
    }
    const size_t bytes = end != NULL ? (size_t)(end - host) : 0;
    const char *port = end == NULL ? "" : text[0] == '[' && end[1] == ':' ? end + 2 : end + 1;
    const bool unambiguous = text[0] == '[' || end == NULL || memchr(host, ':', bytes) == NULL;
    if (bytes == 0 || bytes >= sizeof out->host || !unambiguous || !parse_port(port, &out->port)) {
        return not_a_place(text, from);
    }
    memcpy(out->host, host, bytes);
    snprintf(out->from, sizeof out->from, "%s", from);
    return LS_OK;
}

/* Such a text needs no name server. */
static bool is_numeric(const char *name)
{
    return strchr(name, ':') != NULL || name[strspn(name, "0123456789.")] == '\0';
}

/* The host of a place is a name, an address, or several of them with commas in between. Returns how
 * many addresses there are, or -errno if no part of the list can be resolved. */
static int resolve_list(const ls__env *env, ls__rendezvous_place *place,
                        const ls__resolve_spec *how)
{
    int found = 0, error = -ENOENT;
    const uint64_t deadline = ls__deadline_after(env, how->timeout_ms);
    for (const char *at = place->host; *at != '\0' && error != -ECANCELED;) {
        char name[LS__PLACE_HOST];
        const size_t bytes = strcspn(at, ",");
        const int room = LS__PLACE_ADDRESSES - found;
        snprintf(name, sizeof name, "%.*s", (int)bytes, at);
        ls__resolve_spec one = *how;
        one.name = name;
        one.timeout_ms = ls__time_left_ms(env, deadline);
        const int count = is_numeric(name)
                              ? env->resolve(env, name, place->address + found, room)
                              : ls__resolve_within(env, &one, place->address + found, room);
        found += count > 0 ? count : 0;
        error = count < 0 ? count : error;
        at += bytes + (at[bytes] == ',');
    }
    return found > 0 ? found : error;
}

static const char *reason_of(int error)
{
    return error == -ENOENT || error == 0 ? "no such name" : strerror(-error);
}

/* The resolver of the system decides which addresses come first, and so which one is tried
 * first. */
ls_status ls__place_resolve(const ls__env *env, ls__rendezvous_place *place, int64_t timeout_ms,
                            bool (*stop)(void *arg), void *arg)
{
    const ls__resolve_spec how = {.timeout_ms = timeout_ms, .stop = stop, .stop_arg = arg};
    const int count = resolve_list(env, place, &how);
    if (count == -ETIMEDOUT) {
        return ls__fail(LS_ERR_TIMEOUT,
                        "%s %s:%d: no name server has answered for the name \"%s\" within %.1f s: "
                        "check /etc/resolv.conf and the network, or give a numeric address",
                        place->from, place->host, place->port, place->host,
                        (double)timeout_ms * 1e-3);
    }
    if (count <= 0) {
        return ls__fail(LS_ERR_SYSTEM,
                        "%s %s:%d: the name \"%s\" cannot be resolved on this host (%s): give a "
                        "numeric address, or a name that every node knows",
                        place->from, place->host, place->port, place->host, reason_of(count));
    }
    place->count = count;
    return LS_OK;
}

/* By the text of a numeric address: 127/8, ::1, and 127/8 mapped to IPv6. */
bool ls__address_is_loopback(const char *address)
{
    return strncmp(address, "127.", 4) == 0 || strcmp(address, "::1") == 0 ||
           strncmp(address, "::ffff:127.", 11) == 0;
}

/* False for a place that was not resolved: the caller then assumes a network. */
bool ls__place_is_loopback(const ls__rendezvous_place *place)
{
    for (int i = 0; i < place->count; i++) {
        if (!ls__address_is_loopback(place->address[i])) {
            return false;
        }
    }
    return place->count > 0;
}

/* Not by the resolved addresses: the two ends of a link would choose different modes where a name
 * resolves to the loopback on one of them only. */
ls__link_mode ls__place_mode(const ls__rendezvous_place *place, bool plain)
{
    const bool local =
        strcmp(place->host, "localhost") == 0 || ls__address_is_loopback(place->host);
    return plain || local ? LS__LINK_PLAIN : LS__LINK_TLS;
}

/* ---- interfaces ---------------------------------------------------------------------------- */

/* Whether a name matches one of a comma-separated list of prefixes, or of whole names if
 * `exact`. */
static bool listed(const char *list, const char *name, bool exact)
{
    for (const char *at = list; *at != '\0';) {
        const size_t bytes = strcspn(at, ",");
        if (bytes > 0 && strncmp(at, name, bytes) == 0 && (!exact || name[bytes] == '\0')) {
            return true;
        }
        at += bytes + (at[bytes] == ',');
    }
    return false;
}

/* A link-local address is valid only together with an interface, which HOST:PORT does not name. */
static bool link_local(const char *address)
{
    return strncmp(address, "fe80", 4) == 0;
}

/* The better of two that fit: no loopback, IPv4 (the addresses of one host must be of one kind). */
static int worth(const ls__env_interface *i)
{
    return (i->loopback ? 0 : 4) + (link_local(i->address) ? 0 : 2) +
           (strchr(i->address, ':') == NULL);
}

/* "eth0 (10.0.0.7), lo (127.0.0.1)", for an error message. */
static void list_interfaces(const ls__env_interface *all, int count, char *out, size_t bytes)
{
    ls__text to = {out, bytes};
    out[0] = '\0';
    for (int i = 0; i < count; i++) {
        ls__text_add(&to, "%s%s (%s)", i == 0 ? "" : ", ", all[i].name, all[i].address);
    }
}

/* Of the matching interfaces the one of the highest worth, the first of equals. */
ls_status ls__interface_choose(const char *name, const char *wanted, const ls__env_interface *all,
                               int count, ls__env_interface *out)
{
    const bool exclude = wanted[0] == '^';
    const char *list = wanted + exclude;
    const bool exact = list[0] == '=';
    int best = -1;
    list += exact;
    for (int i = 0; i < count; i++) {
        const bool fits = listed(list, all[i].name, exact) != exclude;
        if (fits && (best < 0 || worth(&all[i]) > worth(&all[best]))) {
            best = i;
        }
    }
    if (best < 0) {
        char there[512];
        list_interfaces(all, count, there, sizeof there);
        return ls__fail(
            LS_ERR_INVALID,
            "%s=%.60s matches no network interface of this host that is up; the interfaces "
            "are: %s",
            name, wanted, count > 0 ? there : "none");
    }
    *out = all[best];
    return LS_OK;
}

/* The variables of gloo and NCCL are honoured too, so that a working cluster setup need not be
 * repeated; the log says when one of them is used. */
ls_status ls__interface_wanted(const ls__env *env, bool *set, ls__env_interface *out)
{
    static const char *const names[] = {"LOCKSTEP_IFNAME", "GLOO_SOCKET_IFNAME",
                                        "NCCL_SOCKET_IFNAME"};
    ls__env_interface all[INTERFACES_MAX];
    *set = false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *wanted = ls__setting_get(names[i]);
        if (wanted == NULL) {
            continue;
        }
        const int count = env->interfaces(env, all, INTERFACES_MAX);
        const ls_status status =
            ls__interface_choose(names[i], wanted, all, count > 0 ? count : 0, out);
        *set = status == LS_OK;
        if (i > 0 && status == LS_OK) {
            LS__INFO("%s=%s selects the interface %s, because LOCKSTEP_IFNAME is not set", names[i],
                     wanted, out->name);
        }
        return status;
    }
    return LS_OK;
}

/* ---- own addresses ------------------------------------------------------------------------- */

/* Whether the list already has the address. */
static bool among(const char *address, char (*all)[LS__ADDRESS_MAX], int count)
{
    for (int i = 0; i < count; i++) {
        if (strcmp(all[i], address) == 0) {
            return true;
        }
    }
    return false;
}

/* Every loopback address of version 4 is: 127.0.1.1, which Debian writes into /etc/hosts for the
 * name of the host, is on no interface. That of version 6 is only where an interface has it:
 * containers without IPv6 often have "::1 localhost" in /etc/hosts. */
static bool is_own(const char *address, const ls__env_interface *all, int count)
{
    const bool version_6 = strcmp(address, "::1") == 0 && count > 0;
    if (ls__address_is_loopback(address) && !version_6) {
        return true;
    }
    for (int i = 0; i < count; i++) {
        if (strcmp(all[i].address, address) == 0) {
            return true;
        }
    }
    return false;
}

/* Whether it is a host name: neither "localhost" nor a numeric address. */
static bool is_name(const char *host)
{
    return strcmp(host, "localhost") != 0 && strspn(host, "0123456789.") != strlen(host) &&
           strchr(host, ':') == NULL;
}

/* First the addresses that the place resolves to. If they are all loopback although the place is a
 * name, other hosts resolve that name to another address of this host, so the others are added. */
int ls__place_own(const ls__env *env, const ls__rendezvous_place *place,
                  char (*out)[LS__ADDRESS_MAX], int room)
{
    ls__env_interface all[INTERFACES_MAX];
    int count = env->interfaces(env, all, INTERFACES_MAX), found = 0;
    for (int i = 0; i < place->count && found < room; i++) {
        const char *address = place->address[i];
        if (is_own(address, all, count > 0 ? count : 0) && !among(address, out, found)) {
            memcpy(out[found++], address, LS__ADDRESS_MAX);
        }
    }
    if (found == 0 || !is_name(place->host) || !ls__place_is_loopback(place)) {
        return found;
    }
    for (int i = 0; i < count && found < room; i++) {
        if (!all[i].loopback && !link_local(all[i].address) && !among(all[i].address, out, found)) {
            memcpy(out[found++], all[i].address, LS__ADDRESS_MAX);
        }
    }
    return found;
}

int ls__free_port_at(const ls__env *env, const char *address)
{
    char text[LS__ADDRESS_MAX];
    int port = 0;
    const int fd = env->tcp_listen(env, address, 0);
    if (fd < 0 || env->tcp_name(env, fd, false, text, sizeof text, &port) < 0) {
        port = 0;
    }
    if (fd >= 0) {
        env->close(env, fd);
    }
    return port;
}
