/* Names, addresses and interfaces. */
#include "job/nodes/rendezvous.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/settings.h"
#include "base/text.h"

#define INTERFACES_MAX 64

/* ---- the place ----------------------------------------------------------------------------- */

static bool parse_port(const char *text, int *port)
{
    char *end = NULL;
    errno = 0;
    long value = strtol(text, &end, 10);
    *port = (int)value;
    return text[0] >= '0' && text[0] <= '9' && *end == '\0' && errno == 0 && value >= 1 &&
           value <= 65535;
}

static ls_status not_a_place(const char *text, const char *from)
{
    return ls__fail(LS_ERR_INVALID,
                    "%s %.200s is not of the form HOST:PORT: give node 0's name or address and a "
                    "port that is free there, as in node0:29400 or [fd00::1]:29400",
                    from, text);
}

ls_status ls__place_parse(const char *text, const char *from, ls__rendezvous_place *out)
{
    memset(out, 0, sizeof *out);
    const char *host = text, *end = strrchr(text, ':');
    if (text[0] == '[') {
        host = text + 1;
        end = strchr(text, ']');
    }
    size_t bytes = end != NULL ? (size_t)(end - host) : 0;
    const char *port = end == NULL ? "" : text[0] == '[' && end[1] == ':' ? end + 2 : end + 1;
    bool v6 = text[0] == '[' || end == NULL || memchr(host, ':', bytes) == NULL;
    if (bytes == 0 || bytes >= sizeof out->host || !v6 || !parse_port(port, &out->port)) {
        return not_a_place(text, from);
    }
    memcpy(out->host, host, bytes);
    snprintf(out->from, sizeof out->from, "%s", from);
    return LS_OK;
}

ls_status ls__place_resolve(const ls__env *env, ls__rendezvous_place *place)
{
    int count = env->resolve(env, place->host, place->address, LS__PLACE_ADDRESSES);
    if (count <= 0) {
        return ls__fail(LS_ERR_SYSTEM,
                        "%s %s:%d: the name \"%s\" cannot be resolved on this host (%s): give a "
                        "numeric address, or a name that every node knows",
                        place->from, place->host, place->port, place->host,
                        count == -ENOENT || count == 0 ? "no such name" : strerror(-count));
    }
    place->count = count;
    return LS_OK;
}

bool ls__address_is_loopback(const char *address)
{
    return strncmp(address, "127.", 4) == 0 || strcmp(address, "::1") == 0 ||
           strncmp(address, "::ffff:127.", 11) == 0;
}

bool ls__place_is_loopback(const ls__rendezvous_place *place)
{
    for (int i = 0; i < place->count; i++) {
        if (!ls__address_is_loopback(place->address[i])) {
            return false;
        }
    }
    return place->count > 0;
}

ls__link_mode ls__place_mode(const ls__rendezvous_place *place, bool plain)
{
    bool local = strcmp(place->host, "localhost") == 0 || ls__address_is_loopback(place->host);
    return plain || local ? LS__LINK_PLAIN : LS__LINK_TLS;
}

/* ---- interfaces ---------------------------------------------------------------------------- */

/* Whether a name fits one of a comma-separated list of prefixes, or of whole names. */
static bool listed(const char *list, const char *name, bool exact)
{
    for (const char *at = list; *at != '\0';) {
        size_t bytes = strcspn(at, ",");
        if (bytes > 0 && strncmp(at, name, bytes) == 0 && (!exact || name[bytes] == '\0')) {
            return true;
        }
        at += bytes + (at[bytes] == ',');
    }
    return false;
}

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

static void list_interfaces(const ls__env_interface *all, int count, char *out, size_t bytes)
{
    ls__text to = {out, bytes};
    out[0] = '\0';
    for (int i = 0; i < count; i++) {
        ls__text_add(&to, "%s%s (%s)", i == 0 ? "" : ", ", all[i].name, all[i].address);
    }
}

ls_status ls__interface_choose(const char *name, const char *wanted, const ls__env_interface *all,
                               int count, ls__env_interface *out)
{
    bool exclude = wanted[0] == '^';
    const char *list = wanted + exclude;
    bool exact = list[0] == '=';
    int best = -1;
    list += exact;
    for (int i = 0; i < count; i++) {
        bool fits = listed(list, all[i].name, exact) != exclude;
        if (fits && (best < 0 || worth(&all[i]) > worth(&all[best]))) {
            best = i;
        }
    }
    if (best < 0) {
        char there[512];
        list_interfaces(all, count, there, sizeof there);
        return ls__fail(LS_ERR_INVALID,
                        "%s=%.60s fits no network interface of this host that is up; there are: %s",
                        name, wanted, count > 0 ? there : "none");
    }
    *out = all[best];
    return LS_OK;
}

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
        int count = env->interfaces(env, all, INTERFACES_MAX);
        ls_status status = ls__interface_choose(names[i], wanted, all, count > 0 ? count : 0, out);
        *set = status == LS_OK;
        if (i > 0 && status == LS_OK) {
            LS__INFO("%s=%s is honoured: interface %s (LOCKSTEP_IFNAME is not set)", names[i],
                     wanted, out->name);
        }
        return status;
    }
    return LS_OK;
}

/* ---- own addresses ------------------------------------------------------------------------- */

static bool among(const char *address, char (*all)[LS__ADDRESS_MAX], int count)
{
    for (int i = 0; i < count; i++) {
        if (strcmp(all[i], address) == 0) {
            return true;
        }
    }
    return false;
}

/* 127.0.1.1, the /etc/hosts entry that Debian makes for the host's name, is on no interface but
 * still this host's. */
static bool is_own(const char *address, const ls__env_interface *all, int count)
{
    if (ls__address_is_loopback(address)) {
        return true;
    }
    for (int i = 0; i < count; i++) {
        if (strcmp(all[i].address, address) == 0) {
            return true;
        }
    }
    return false;
}

static bool is_name(const char *host)
{
    return strcmp(host, "localhost") != 0 && strspn(host, "0123456789.") != strlen(host) &&
           strchr(host, ':') == NULL;
}

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
