/* SPDX-License-Identifier: Apache-2.0 */
/* Reading clusters, and which of their links some traffic needs (cluster.h). */
#include "cost/cluster.h"

#include <math.h>
#include <string.h>

#include "base/error.h"
#include "cost/units.h"

/* ---- reading --------------------------------------------------------------------------------- */

bool ls__cluster_parse_level(const char *text, size_t length, ls__cluster_level *out)
{
    const char *colon = memchr(text, ':', length), *end = text + length;
    int64_t count = 0;
    for (const char *at = text; colon != NULL && at < colon; at++) {
        if (*at < '0' || *at > '9' || count > LS__CLUSTER_RANKS_MAX) {
            return false;
        }
        count = 10 * count + (*at - '0');
    }
    if (count < 1 || count > LS__CLUSTER_RANKS_MAX) {
        return false;
    }
    const char *rate = colon + 1, *core = memchr(rate, '/', (size_t)(end - rate));
    const char *times = core != NULL ? core : end;
    const char *at = memchr(rate, '@', (size_t)(times - rate));
    const size_t rate_length = (size_t)((at != NULL ? at : times) - rate);
    *out = (ls__cluster_level){.count = (int)count,
                               .bandwidth = ls__amount_parse(rate, rate_length, true)};
    if (at != NULL) {
        out->latency = ls__seconds_parse(at + 1, (size_t)(times - at - 1));
    }
    if (core != NULL) {
        out->core = ls__amount_parse(core + 1, (size_t)(end - core - 1), true);
    }
    return out->bandwidth > 0.0 && out->latency >= 0.0 && out->latency <= 1e3 &&
           (core == NULL || out->core > 0.0);
}

static ls_status add_level(const char *what, const char *text, size_t length, ls__cluster *out)
{
    ls__cluster_level level;
    if (!ls__cluster_parse_level(text, length, &level)) {
        return ls__fail(
            LS_ERR_FORMAT,
            "%s: \"%.*s\" is not a level; give count:bandwidth with a bandwidth in gbit "
            "or gbyte a second and, if there are, @latency and /bytes a second of a core, such as "
            "8:25gbyte@5us or 2:1gbit@50us/4gbyte",
            what, (int)(length < 60 ? length : 60), text);
    }
    if (out->levels == LS__CLUSTER_LEVELS_MAX ||
        level.count > LS__CLUSTER_RANKS_MAX / out->devices) {
        return ls__fail(LS_ERR_LIMIT,
                        "%s: at most %d levels and %d devices in all are possible; leave some out",
                        what, LS__CLUSTER_LEVELS_MAX, LS__CLUSTER_RANKS_MAX);
    }
    out->level[out->levels++] = level;
    out->devices *= level.count;
    return LS_OK;
}

ls_status ls__cluster_parse(const char *what, const char *text, size_t bytes, ls__cluster *out)
{
    ls__items items = {.text = text, .bytes = bytes};
    const char *item;
    size_t length;
    *out = (ls__cluster){.devices = 1};
    while (ls__items_next(&items, &item, &length)) {
        LS_TRY(add_level(what, item, length, out));
    }
    return out->levels > 0
               ? LS_OK
               : ls__fail(LS_ERR_FORMAT, "%s: it has no level; give one or more, such as 8:25gbyte",
                          what);
}

bool ls__cluster_extend(ls__cluster *c, int ranks)
{
    const int below = c->devices / c->level[c->levels - 1].count;
    if (ranks <= c->devices) {
        return false;
    }
    c->level[c->levels - 1].count = (ranks + below - 1) / below;
    c->devices = below * c->level[c->levels - 1].count;
    return true;
}

/* ---- links ----------------------------------------------------------------------------------- */

int ls__cluster_component(const ls__cluster *c, int level)
{
    int ranks = 1;
    for (int k = 0; k < level; k++) {
        ranks *= c->level[k].count;
    }
    return ranks;
}

int ls__cluster_level_of(const ls__cluster *c, int a, int b)
{
    int level = 0;
    while (level + 1 < c->levels &&
           a / ls__cluster_component(c, level + 1) != b / ls__cluster_component(c, level + 1)) {
        level++;
    }
    return level;
}

static int component_count(const ls__cluster *c, int level, int ranks)
{
    const int size = ls__cluster_component(c, level);
    return (ranks + size - 1) / size;
}

/* Links of a level follow those of the levels below, both directions of one after the other. */
static int link_of(const ls__cluster *c, int level, int ranks, int rank)
{
    int first = 0;
    for (int k = 0; k < level; k++) {
        first += 2 * component_count(c, k, ranks);
    }
    return first + 2 * (rank / ls__cluster_component(c, level));
}

const ls__sim_resource *ls__cluster_links(const ls__cluster *c, int ranks, ls__arena *arena,
                                          int *count)
{
    *count = link_of(c, c->levels, ranks, 0);
    ls__sim_resource *links = ls__arena_alloc(arena, (size_t)*count * sizeof *links);
    for (int k = 0, i = 0; links != NULL && k < c->levels; k++) {
        for (int last = i + 2 * component_count(c, k, ranks); i < last; i++) {
            links[i] = (ls__sim_resource){c->level[k].bandwidth, INFINITY};
        }
    }
    return links;
}

/* ---- traffic --------------------------------------------------------------------------------- */

bool ls__traffic_init(ls__traffic *t, const ls__cluster *c, int ranks, ls__arena *arena)
{
    *t = (ls__traffic){.cluster = c, .ranks = ranks};
    for (int k = 0; k < c->levels; k++) {
        t->sends[k] = ls__arena_alloc(arena, (size_t)component_count(c, k, ranks) * sizeof(int));
        if (t->sends[k] == NULL) {
            return false;
        }
    }
    return true;
}

void ls__traffic_clear(ls__traffic *t)
{
    for (int k = 0; k < t->cluster->levels; k++) {
        memset(t->sends[k], 0, (size_t)component_count(t->cluster, k, t->ranks) * sizeof(int));
        t->most[k] = 0;
    }
}

void ls__traffic_add(ls__traffic *t, int from, int to)
{
    if (from == to) {
        return;
    }
    const int level = ls__cluster_level_of(t->cluster, from, to);
    const int sends = ++t->sends[level][from / ls__cluster_component(t->cluster, level)];
    if (sends > t->most[level]) {
        t->most[level] = sends;
        t->first[level] = from;
        t->to[level] = to;
    }
}

/* The level on which the traffic takes longest; -1: there is none. */
static int slowest_level(const ls__traffic *t, double bytes, int messages, double *seconds)
{
    int found = -1;
    *seconds = 0.0;
    for (int k = 0; k < t->cluster->levels; k++) {
        const ls__cluster_level *level = &t->cluster->level[k];
        const double core = level->core > 0.0 ? bytes / level->core : 0.0;
        const double here =
            fmax(t->most[k] * bytes / level->bandwidth, core) + messages * level->latency;
        if (t->most[k] > 0 && (found < 0 || here > *seconds)) {
            found = k;
            *seconds = here;
        }
    }
    return found;
}

ls__sim_route ls__traffic_route(const ls__traffic *t, double bytes, int messages)
{
    double seconds;
    const int k = slowest_level(t, bytes, messages, &seconds);
    if (k < 0) {
        return (ls__sim_route){.resource = {LS__SIM_NONE, LS__SIM_NONE}, .weight = 1.0};
    }
    const ls__cluster_level *level = &t->cluster->level[k];
    const double rate = level->bandwidth / t->most[k];
    return (ls__sim_route){.resource = {link_of(t->cluster, k, t->ranks, t->first[k]),
                                        link_of(t->cluster, k, t->ranks, t->to[k]) + 1},
                           .bytes = bytes,
                           .weight = t->most[k],
                           .latency = messages * level->latency,
                           .cores = level->core > 0.0 ? fmin(1.0, rate / level->core) : 0.0,
                           .moved = fmin(rate, level->core)};
}

double ls__traffic_seconds(const ls__traffic *t, double bytes, int messages)
{
    double seconds;
    (void)slowest_level(t, bytes, messages, &seconds);
    return seconds;
}
