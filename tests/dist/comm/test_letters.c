/* SPDX-License-Identifier: Apache-2.0 */
/* send and recv: any order, any number, any size; matched in order for each peer and tag. */
#include "test.h"

#include <stdlib.h>
#include <string.h>

#include <lockstep/comm.h>
#include <lockstep/store.h>

#include "comm/core/group.h"
#include "comm/core/message_state.h"
#include "comm/core/progress_lock.h"
#include "comm/engine/engine.h"
#include "comm/p2p/p2p.h"

static void fill(unsigned char *p, size_t bytes, unsigned seed)
{
    for (size_t i = 0; i < bytes; i++) {
        p[i] = (unsigned char)(seed + i * 7 + i / 251);
    }
}

static bool filled(const unsigned char *p, size_t bytes, unsigned seed)
{
    for (size_t i = 0; i < bytes; i++) {
        if (p[i] != (unsigned char)(seed + i * 7 + i / 251)) {
            return false;
        }
    }
    return true;
}

/* Sizes around the transports' slots, nothing, and many slots. */
static const int64_t sizes[] = {0,     1,     17,     1023,   32000,  32767,
                                32768, 40000, 262143, 262144, 262145, 1000003};
enum { SIZES = sizeof sizes / sizeof *sizes };

static unsigned char *memory_of(size_t bytes)
{
    unsigned char *p = malloc(bytes + 1);
    CHECK(p != NULL);
    return p;
}

DIST_TEST(messages_of_every_size_arrive, 2)
{
    for (int i = 0; i < SIZES; i++) {
        unsigned char *p = memory_of((size_t)sizes[i]);
        if (ls_rank() == 0) {
            fill(p, (size_t)sizes[i], (unsigned)i);
            CHECK_OK(ls_send(ls_world(), p, sizes[i], LS_UINT8, 1, i, NULL, NULL));
        } else {
            CHECK_OK(ls_recv(ls_world(), p, sizes[i], LS_UINT8, 0, i, NULL, NULL));
            CHECK(filled(p, (size_t)sizes[i], (unsigned)i));
        }
        free(p);
    }
}

DIST_TEST(receives_may_be_posted_in_any_order, 3)
{
    unsigned char *p[3][SIZES];
    ls_work *work[3][SIZES];
    const int me = ls_rank();
    for (int peer = 0; peer < 3; peer++) { /* every rank sends every size to the others */
        for (int i = 0; i < SIZES && peer != me; i++) {
            p[peer][i] = memory_of((size_t)sizes[i]);
            fill(p[peer][i], (size_t)sizes[i], (unsigned)(100 * me + i));
            CHECK_OK(
                ls_send(ls_world(), p[peer][i], sizes[i], LS_UINT8, peer, i, NULL, &work[peer][i]));
        }
    }
    for (int i = SIZES - 1; i >= 0; i--) { /* and takes them the other way round */
        for (int peer = 2; peer >= 0; peer--) {
            if (peer != me) {
                unsigned char *q = memory_of((size_t)sizes[i]);
                CHECK_OK(ls_recv(ls_world(), q, sizes[i], LS_UINT8, peer, i, NULL, NULL));
                CHECK(filled(q, (size_t)sizes[i], (unsigned)(100 * peer + i)));
                free(q);
            }
        }
    }
    for (int peer = 0; peer < 3; peer++) {
        for (int i = 0; i < SIZES && peer != me; i++) {
            CHECK_OK(ls_work_wait(work[peer][i]));
            free(p[peer][i]);
        }
    }
}

DIST_TEST(equal_tags_match_in_order, 2)
{
    enum { N = 4000 }; /* many more than the transport holds */
    static int32_t x[N];
    static ls_work *work[N];
    for (int i = 0; i < N; i++) {
        x[i] = ls_rank() == 0 ? i : -1;
        CHECK_OK(ls_rank() == 0
                     ? ls_send(ls_world(), &x[i], 1, LS_INT32, 1, i % 2, NULL, &work[i])
                     : ls_recv(ls_world(), &x[i], 1, LS_INT32, 0, i % 2, NULL, &work[i]));
    }
    for (int i = N - 1; i >= 0; i--) {
        CHECK_OK(ls_work_wait(work[i]));
        CHECK_INT(x[i], i);
    }
}

DIST_TEST(a_rank_may_send_to_itself, 1)
{
    int32_t x = 42, y = 0;
    ls_work *work = NULL;
    CHECK_OK(ls_send(ls_world(), &x, 1, LS_INT32, 0, 3, NULL, &work));
    CHECK_OK(ls_recv(ls_world(), &y, 1, LS_INT32, 0, 3, NULL, NULL));
    CHECK_OK(ls_work_wait(work));
    CHECK_INT(y, 42);
}

DIST_TEST(both_directions_of_a_ring_flow_at_once, 5)
{
    enum { COUNT = 300000 };
    static unsigned char out[2][COUNT], in[2][COUNT];
    const int n = ls_world_size(), me = ls_rank(), right = (me + 1) % n, left = (me + n - 1) % n;
    for (unsigned round = 0; round < 3; round++) {
        ls_work *work[4];
        fill(out[0], COUNT, (unsigned)me + round);
        fill(out[1], COUNT, (unsigned)me + round + 50);
        CHECK_OK(ls_send(ls_world(), out[0], COUNT, LS_UINT8, right, 0, NULL, &work[0]));
        CHECK_OK(ls_send(ls_world(), out[1], COUNT, LS_UINT8, left, 1, NULL, &work[1]));
        CHECK_OK(ls_recv(ls_world(), in[0], COUNT, LS_UINT8, left, 0, NULL, &work[2]));
        CHECK_OK(ls_recv(ls_world(), in[1], COUNT, LS_UINT8, right, 1, NULL, &work[3]));
        for (int i = 0; i < 4; i++) {
            CHECK_OK(ls_work_wait(work[i]));
        }
        CHECK(filled(in[0], COUNT, (unsigned)left + round));
        CHECK(filled(in[1], COUNT, (unsigned)right + round + 50));
    }
}

DIST_TEST(letters_and_collectives_interleave, 4)
{
    float x[100];
    for (int round = 0; round < 20; round++) {
        ls_work *work[2];
        int32_t sent = 1000 * ls_rank() + round, got = -1;
        const int to = (ls_rank() + 1) % 4, from = (ls_rank() + 3) % 4;
        CHECK_OK(ls_recv(ls_world(), &got, 1, LS_INT32, from, 0, NULL, &work[0]));
        CHECK_OK(ls_send(ls_world(), &sent, 1, LS_INT32, to, 0, NULL, &work[1]));
        for (int i = 0; i < 100; i++) {
            x[i] = 1;
        }
        CHECK_OK(ls_all_reduce(ls_world(), x, x, 100, LS_FLOAT32, LS_SUM, NULL, NULL));
        CHECK(x[99] == 4);
        CHECK_OK(ls_work_wait(work[0]));
        CHECK_OK(ls_work_wait(work[1]));
        CHECK_INT(got, 1000 * from + round);
    }
}

static int notes_kept(const ls_group *group)
{
    int count = 0;
    const ls__program_stream *streams = group->p2p->streams;
    for (size_t i = 0; streams != NULL && i < ls__stream_count(group); i++) {
        LS__LIST_EACH (at, &streams[i].early) {
            count++;
        }
    }
    return count;
}

/* Rank 1 is late: what it keeps meanwhile is bounded by the credit, not by the message. */
DIST_TEST(a_late_receiver_keeps_only_what_it_gave_credit_for, 2)
{
    enum { COUNT = 2000000 };
    static unsigned char x[COUNT];
    int64_t unused = 0;
    ls_group *world = ls_world();
    ls_work *work = NULL;
    world->comm->forced = LS__MEMORY_MESSAGES;
    fill(x, COUNT, ls_rank() == 0 ? 5 : 0);
    if (ls_rank() == 0) {
        CHECK_OK(ls_broadcast(world, x, COUNT, LS_UINT8, 0, NULL, &work));
        CHECK_INT(ls_work_test(work), LS_IN_PROGRESS);
        CHECK_OK(ls_store_add(ls_runtime_store(), "sent", 1, &unused, -1));
        CHECK_OK(ls_work_wait(work));
    } else {
        CHECK_OK(ls_store_wait(ls_runtime_store(), "sent", -1));
        int most = 0;
        /* rank 0's engine sends when it gets to it; from then on all that comes comes soon */
        for (int i = 0, after = 0; i < 10000000 && after<200; i++, after += most> 0) {
            ls__progress_take(world->comm);
            (void)ls__engine_turn(world->comm, true);
            most = notes_kept(world) > most ? notes_kept(world) : most;
            ls__progress_release(world->comm);
        }
        CHECK(most >= 1 && most <= LS__STREAM_CREDIT);
        CHECK_OK(ls_broadcast(world, x, COUNT, LS_UINT8, 0, NULL, NULL));
        CHECK(filled(x, COUNT, 5));
    }
    world->comm->forced = 0;
}

/* A peer may use a group before this rank has finished making it. */
DIST_TEST(a_message_may_come_before_its_group, 2)
{
    for (int i = 0; i < 30; i++) {
        ls_group *group = NULL;
        int32_t x = i;
        ls_work *work = NULL;
        CHECK_OK(ls_group_new(ls_world(), NULL, 0, NULL, &group));
        CHECK_OK(ls_rank() == i % 2
                     ? ls_send(group, &x, 1, LS_INT32, 1 - ls_rank(), 0, NULL, &work)
                     : ls_recv(group, &x, 1, LS_INT32, 1 - ls_rank(), 0, NULL, &work));
        CHECK_OK(ls_work_wait(work));
        CHECK_INT(x, i);
        CHECK_OK(ls_group_free(group));
    }
}

TEST_MAIN
