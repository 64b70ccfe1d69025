/* SPDX-License-Identifier: Apache-2.0 */
/* See turns.h. */
#include "turns.h"

#include <stdio.h>
#include <string.h>

#include "test.h"

#define STEP_MS 2

void prepare(world *s, int count)
{
    char text[64];
    memset(s, 0, sizeof *s);
    s->env = ls__env_posix();
    s->count = count;
    s->port = s->env->free_port(s->env);
    snprintf(text, sizeof text, "127.0.0.1:%d", s->port);
    CHECK_OK(ls__place_parse(text, "--rendezvous", &s->place));
    CHECK_OK(ls__place_resolve(s->env, &s->place, -1, NULL, NULL));
    for (int k = 0; k < count; k++) {
        CHECK_OK(ls__store_server_new(s->env, s->secret, &s->store[k]));
        s->spec[k] = (ls__nodes_spec){.env = s->env,
                                      .store = s->store[k],
                                      .secret = s->secret,
                                      .place = &s->place,
                                      .first = k == 0,
                                      .nodes = count,
                                      .node = k,
                                      .ranks = k + 1,
                                      .id = "",
                                      .run_id = "run",
                                      .host = "h",
                                      .version = "1.0",
                                      .timeout_ms = 3000};
    }
}

void open_all(world *s)
{
    for (int k = 0; k < s->count; k++) {
        CHECK_OK(ls__nodes_open(&s->spec[k], &s->nodes[k]));
    }
}

void turn_all(world *s)
{
    for (int k = 0; k < s->count; k++) {
        if (s->nodes[k] != NULL) {
            ls__nodes_turn(s->nodes[k]);
        }
    }
    s->env->sleep_until(s->env, ls__deadline_after(s->env, STEP_MS));
}

void turn_some(world *s, int turns)
{
    for (int i = 0; i < turns; i++) {
        turn_all(s);
    }
}

void until_failure(world *s, int k)
{
    for (int i = 0; i < TURNS_MAX && ls__nodes_failure(s->nodes[k]) == NULL; i++) {
        turn_all(s);
    }
    CHECK(ls__nodes_failure(s->nodes[k]) != NULL);
}

void until_state(world *s, int k, ls__nodes_state state)
{
    for (int i = 0; i < TURNS_MAX && ls__nodes_state_of(s->nodes[k]) != state; i++) {
        turn_all(s);
    }
    if (ls__nodes_state_of(s->nodes[k]) != state) {
        test_fail(__FILE__, __LINE__, "node %d: state %d, want %d: %s", k,
                  (int)ls__nodes_state_of(s->nodes[k]), (int)state, ls__nodes_error(s->nodes[k]));
    }
}

void gather(world *s)
{
    open_all(s);
    for (int k = 0; k < s->count; k++) {
        until_state(s, k, LS__NODES_RUNNING);
    }
}

void close_all(world *s)
{
    for (int k = s->count - 1; k >= 0; k--) {
        ls__nodes_close(s->nodes[k]);
        ls__store_server_free(s->store[k]);
    }
}
