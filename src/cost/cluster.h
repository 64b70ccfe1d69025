/* SPDX-License-Identifier: Apache-2.0 */
/* A cluster: levels of links, and where ranks are on them.
 *
 *     8:200gbyte,4:25gbyte@5us    hosts of 8 devices, each with 200 GB/s to those of its host;
 *                                 4 hosts, each with 25 GB/s to the others, which its devices
 *                                 share
 *
 *     2:1gbit@50us/4gbyte         a core moves 4 GB in a second, and computes nothing meanwhile: at
 *                                 1 Gbit/s a rank loses 1/32 of it
 *
 * A level consists of `count` components of the level below (at the lowest, devices). Two ranks use
 * the links of the lowest level on which they are in one component: that of the sender's component
 * out, and that of the receiver's in. Rank r is device r.
 */
#ifndef LS_COST_CLUSTER_H
#define LS_COST_CLUSTER_H

#include "cost/simulate.h"

#define LS__CLUSTER_LEVELS_MAX 4
#define LS__CLUSTER_RANKS_MAX (1 << 16)

typedef struct ls__cluster_level {
    int count;
    double bandwidth; /* of a component of the level below, in each direction, in bytes a second */
    double latency;   /* seconds, of a message */
    double core;      /* bytes a second that a core moves; 0: links move them */
} ls__cluster_level;

typedef struct ls__cluster {
    ls__cluster_level level[LS__CLUSTER_LEVELS_MAX];
    int levels, devices;
} ls__cluster;

/* Levels as in the drawing, the innermost first, with "," or ends of lines between them; "#" begins
 * a comment, which lasts until the end of the line. `what` begins the messages. LS_ERR_FORMAT,
 * LS_ERR_LIMIT. */
ls_status ls__cluster_parse(const char *what, const char *text, size_t bytes, ls__cluster *out);
/* One level, "8:25gbyte@5us" of `length` characters. */
bool ls__cluster_parse_level(const char *text, size_t length, ls__cluster_level *out);

/* Gives the highest level as many components as `ranks` need, if it has fewer. Returns whether it
 * had fewer. */
bool ls__cluster_extend(ls__cluster *c, int ranks);

/* The lowest level on which two different ranks are in one component. */
int ls__cluster_level_of(const ls__cluster *c, int a, int b);
/* Ranks of a component of the level below `level`, each of which has one link there. */
int ls__cluster_component(const ls__cluster *c, int level);

/* ---- links as resources of a simulation ------------------------------------------------------ */

/* All links of `ranks`, both directions. *count is how many; NULL without memory. */
const ls__sim_resource *ls__cluster_links(const ls__cluster *c, int ranks, ls__arena *arena,
                                          int *count);

/* Pairs of ranks that send the same bytes at the same time. */
typedef struct ls__traffic {
    const ls__cluster *cluster;
    int ranks;
    int *sends[LS__CLUSTER_LEVELS_MAX]; /* [components] pairs that leave each */
    int first[LS__CLUSTER_LEVELS_MAX];  /* of the component with most of them: its first pair */
    int to[LS__CLUSTER_LEVELS_MAX];
    int most[LS__CLUSTER_LEVELS_MAX];
} ls__traffic;

/* False: no memory. */
bool ls__traffic_init(ls__traffic *t, const ls__cluster *c, int ranks, ls__arena *arena);
void ls__traffic_clear(ls__traffic *t);
void ls__traffic_add(ls__traffic *t, int from, int to);
/* The links on which the traffic takes longest, with the weight of what shares them. */
ls__sim_route ls__traffic_route(const ls__traffic *t, double bytes, int messages);
/* Seconds that it takes alone: `bytes` of each pair in `messages`. */
double ls__traffic_seconds(const ls__traffic *t, double bytes, int messages);

#endif
