/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes in one thread: node 0 and others, turned by turns, with stores of their own. */
#ifndef TEST_TURNS_H
#define TEST_TURNS_H

#include "job/nodes/nodes.h"

#define NODES_MAX 3
#define TURNS_MAX 2000

typedef struct world {
    const ls__env *env;
    int port, count;
    uint8_t secret[32];
    ls__rendezvous_place place;
    ls__nodes_spec spec[NODES_MAX]; /* may be changed between prepare and open_all */
    int world_rank[NODES_MAX][4];
    ls__store_server *store[NODES_MAX];
    ls__nodes *nodes[NODES_MAX];
} world;

void prepare(world *s, int count);
void open_all(world *s);
void turn_all(world *s);
void turn_some(world *s, int turns);
void until_state(world *s, int k, ls__nodes_state state);
/* Until this node has a failure record. */
void until_failure(world *s, int k);
void gather(world *s);
void close_all(world *s);

#endif
