/* SPDX-License-Identifier: Apache-2.0 */
/* Channels, and what is neither copied nor touched: payloads that the transport reads where they
 * lie, or writes where they are wanted. Every rank is on a pretended host of its own. */
#include <stdlib.h>
#include <string.h>

#include <lockstep/comm.h>
#include <lockstep/store.h>

#include "comm/core/cause.h"
#include "comm/core/comm.h"
#include "comm/core/message_state.h"
#include "comm/core/progress_lock.h"
#include "comm/core/remote_rank.h"
#include "comm/diagnose/fail.h"
#include "comm/engine/engine.h"
#include "comm/operation/exec.h"
#include "comm/transport/tcp_wire.h"
#include "says.h"
#include "test.h"

__attribute__((constructor)) static void on_hosts_of_their_own(void)
{
    setenv("LOCKSTEP_HOSTS", "64", 1);
}

enum { COUNT = 3000017, LARGE = 48 << 20 };

/* Of every rank other values, and of very different sizes: another order gives another sum. */
static void fill(float *x, int64_t count)
{
    uint32_t h = 1u + (uint32_t)ls_rank();
    for (int64_t i = 0; i < count; i++) {
        h = h * 1664525u + 1013904223u;
        x[i] = (float)(int32_t)h * (h & 64 ? 1e-9f : 1e-3f);
    }
}

DIST_TEST(channels_do_not_change_a_bit, 4)
{
    static float first[COUNT], x[COUNT];
    static const char *const algorithms[] = {NULL, "ring", "recursive_doubling"};
    for (size_t a = 0; a < sizeof algorithms / sizeof *algorithms; a++) {
        for (int channels = 1; channels <= 4; channels++) {
            CHECK_OK(ls_group_set_channels(ls_world(), channels));
            fill(x, COUNT);
            CHECK_OK(ls_all_reduce(ls_world(), x, x, COUNT, LS_FLOAT32, LS_SUM,
                                   LS_OPTIONS(ls_collective_options, .algorithm = algorithms[a]),
                                   NULL));
            if (channels == 1) {
                memcpy(first, x, sizeof x);
            }
            CHECK(memcmp(first, x, sizeof x) == 0);
        }
    }
}

DIST_TEST(slices_of_all_channels_are_under_way_at_once, 2)
{
    static float x[COUNT];
    ls_work *work = NULL;
    CHECK_OK(ls_group_set_channels(ls_world(), 3));
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
    if (ls_rank() == 0) { /* the other does nothing, so none of them can end */
        CHECK_OK(ls_all_reduce(ls_world(), x, x, COUNT, LS_FLOAT32, LS_SUM, NULL, &work));
        ls__comm *comm = ls_world()->comm;
        int active = 0;
        while (active < 3) {
            ls__progress_take(comm);
            (void)ls__engine_turn(comm, true);
            active = 0;
            for (int i = 0; i < LS__RUNS_MAX; i++) {
                active += ls_world()->exec->run[i].active;
            }
            ls__progress_release(comm);
        }
        CHECK_INT(active, 3);
    }
    if (ls_rank() == 0) {
        int64_t unused = 0;
        CHECK_OK(ls_store_add(ls_runtime_store(), "seen", 1, &unused, -1));
        CHECK_OK(ls_work_wait(work));
    } else {
        CHECK_OK(ls_store_wait(ls_runtime_store(), "seen", -1));
        CHECK_OK(ls_all_reduce(ls_world(), x, x, COUNT, LS_FLOAT32, LS_SUM, NULL, NULL));
    }
}

DIST_TEST(ranks_that_give_different_channels_are_told, 3)
{
    CHECK_INT(ls_group_set_channels(ls_world(), ls_rank() == 2 ? 2 : 1), LS_ERR_INVALID);
    CHECK(strstr(ls_error_message(), "must all give the same") != NULL);
    CHECK_INT(ls_group_set_channels(ls_world(), ls_rank() == 0 ? 5 : 1), LS_ERR_INVALID);
    CHECK_OK(ls_group_set_channels(ls_world(), 2));
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
}

static ls__tcp_connection *connection_to(int peer, int index)
{
    return &((ls__tcp *)ls_world()->comm->remote->net)->peer[peer].connection[index];
}

/* Frames to `peer` whose payload is not in their slots. */
static int frames_borrowed(int peer)
{
    const ls__tcp *tcp = (const ls__tcp *)ls_world()->comm->remote->net;
    int borrowed = 0;
    for (int i = 0; i < tcp->connections; i++) {
        const ls__tcp_connection *c = connection_to(peer, i);
        for (uint64_t f = c->sent; f < c->queued; f++) {
            borrowed += c->slot[f % LS__TCP_SLOTS].borrowed != NULL;
        }
    }
    return borrowed;
}

/* Rank 1 does not read while rank 0 sends more than the network takes. */
DIST_TEST(what_was_lent_is_not_read_after_a_failure, 2)
{
    ls_group *part = NULL;
    enum { MANY = 1024 }; /* more than any socket takes */
    static ls_work *work[MANY];
    static unsigned char sent[LS__TCP_PAYLOAD];
    ls__comm *comm = ls_world()->comm;
    CHECK_OK(ls_group_new(ls_world(), NULL, 0, "part", &part));
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
    if (ls_rank() == 1) {
        ls__progress_take(comm); /* so nobody here reads */
        CHECK_OK(ls_store_wait(ls_runtime_store(), "failed", -1));
        ls__progress_release(comm);
    } else {
        int borrowed = 0, made = 0;
        for (; made < MANY && borrowed == 0; made++) {
            ls__progress_take(comm); /* nobody else moves it on while this thread looks */
            CHECK_OK(ls_send(part, sent, sizeof sent, LS_UINT8, 1, 0, NULL, &work[made]));
            (void)ls__engine_turn(comm, true);
            borrowed = frames_borrowed(1);
            ls__progress_release(comm);
        }
        CHECK(borrowed > 0);
        CHECK_OK(ls_group_abort(part, "for the test"));
        for (int i = 0; i < made; i++) {
            CHECK(ls_work_wait(work[i]) < 0);
        }
        ls__progress_take(comm);
        borrowed = frames_borrowed(1);
        ls__progress_release(comm);
        CHECK_INT(borrowed, 0);
        CHECK_INT(part->p2p->borrowed, 0);
        memset(sent, 0xff, sizeof sent); /* a frame read from here now has another checksum */
        int64_t unused = 0;
        CHECK_OK(ls_store_add(ls_runtime_store(), "failed", 1, &unused, -1));
    }
    float x = 1;
    CHECK_OK(ls_all_reduce(ls_world(), &x, &x, 1, LS_FLOAT32, LS_SUM, NULL, NULL));
    CHECK(x == 2);
    (void)ls_group_free(part); /* says again that it failed */
}

/* Whether part of a payload has been put where it is wanted, and the rest not. */
static bool placed_in_part(int peer)
{
    const ls__tcp *tcp = (const ls__tcp *)ls_world()->comm->remote->net;
    bool any = false;
    for (int i = 0; i < tcp->connections; i++) {
        any = any || (connection_to(peer, i)->place != NULL && !connection_to(peer, i)->checked);
    }
    return any;
}

/* Rank 1 has told rank 0 to send, and goes no further until the deadline. */
DIST_TEST(a_message_that_stops_half_way_names_the_other_side, 2)
{
    ls_group *part = NULL;
    ls_work *work = NULL;
    int64_t unused = 0;
    ls__comm *comm = ls_world()->comm;
    unsigned char *x = calloc(1, LARGE);
    CHECK(x != NULL);
    CHECK_OK(ls_group_new(ls_world(), NULL, 0, "part", &part));
    if (ls_rank() == 1) {
        ls__progress_take(comm);
        CHECK_OK(ls_recv(part, x, LARGE, LS_UINT8, 0, 0, NULL, &work));
        while (work->message.stage != LS__RECV_DATA) {
            (void)ls__engine_turn(comm, true);
        }
        (void)ls__engine_turn(comm, true); /* rank 0 learns it */
        CHECK_OK(ls_store_wait(ls_runtime_store(), "late", -1));
        ls__progress_release(comm);
        CHECK(ls_work_wait(work) < 0);
    } else {
        CHECK_STATUS(ls_send(part, x, LARGE, LS_UINT8, 1, 0,
                             LS_OPTIONS(ls_collective_options, .timeout_ms = 1000), NULL),
                     LS_ERR_TIMEOUT);
        CHECK_SAYS(ls_error_message(), "has called its side but not come through");
        CHECK_OK(ls_store_add(ls_runtime_store(), "late", 1, &unused, -1));
    }
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
    (void)ls_group_free(part); /* says again that it failed */
    free(x);
}

DIST_TEST(what_comes_after_a_failure_is_not_placed, 2)
{
    ls_group *part = NULL;
    ls_work *work = NULL;
    ls__comm *comm = ls_world()->comm;
    unsigned char *x = calloc(1, LARGE);
    CHECK(x != NULL);
    CHECK_OK(ls_group_new(ls_world(), NULL, 0, "part", &part));
    CHECK_OK(ls_broadcast(part, x, LARGE, LS_UINT8, 1,
                          LS_OPTIONS(ls_collective_options, .algorithm = "binomial"), &work));
    if (ls_rank() == 0) {   /* decides for itself what has failed first */
        bool found = false; /* most likely; and right in any case */
        while (!found && ls_work_test(work) == LS_IN_PROGRESS) {
            ls__progress_take(comm);
            (void)ls__engine_turn(comm, true);
            found = placed_in_part(1);
            if (found) {
                ls__group_cause(part, LS_ERR_ABORTED, "for the test");
                CHECK(ls__group_failed(part));
                CHECK(!placed_in_part(1));
            }
            ls__progress_release(comm);
        }
    }
    (void)ls_work_wait(work);
    memset(x, 0x5a, LARGE);
    float y = 1;
    CHECK_OK(ls_all_reduce(ls_world(), &y, &y, 1, LS_FLOAT32, LS_SUM, NULL, NULL));
    CHECK(y == 2);
    for (size_t i = 0; i < LARGE; i++) {
        CHECK(x[i] == 0x5a);
    }
    (void)ls_group_free(part); /* says again that it failed */
    free(x);
}

TEST_MAIN
