/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes of any length: broadcast, all_gather, gather and scatter against what each rank is known to
 * give; lengths around the part that travels first, none, and many pieces. */
#include "test.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/comm.h>

#include "base/env.h"
#include "comm/runtime/init.h"

static const size_t lengths[] = {0, 1, 503, 504, 505, 4096, 70001, 3000017};
enum { LENGTHS = sizeof lengths / sizeof *lengths };

static unsigned char byte_of(int rank, int round, size_t i)
{
    return (unsigned char)(17 * rank + 5 * round + (int)(i % 249) + (int)(i / 1021));
}

/* What a rank gives in a round: a length of the table, of its own, and bytes. */
static size_t length_of(int rank, int round)
{
    return lengths[(rank * 3 + round) % LENGTHS];
}

static unsigned char *object_of(int rank, int round)
{
    const size_t length = length_of(rank, round);
    unsigned char *p = malloc(length + 1);
    CHECK(p != NULL);
    for (size_t i = 0; i < length; i++) {
        p[i] = byte_of(rank, round, i);
    }
    return p;
}

static void check_object(const void *bytes, size_t length, int rank, int round)
{
    const unsigned char *p = bytes;
    CHECK(p != NULL);
    CHECK_INT(length, length_of(rank, round));
    for (size_t i = 0; i < length; i++) {
        if (p[i] != byte_of(rank, round, i)) {
            test_fail(__FILE__, __LINE__, "byte %zu of rank %d in round %d", i, rank, round);
        }
    }
}

static void one_round(ls_group *group, int round)
{
    const int size = ls_group_size(group), me = ls_group_rank(group), root = round % size;
    unsigned char *mine = object_of(me, round);
    const size_t length = length_of(me, round);

    void *got = me == root ? mine : NULL;
    size_t got_length = me == root ? length : 99;
    CHECK_OK(ls_broadcast_bytes(group, &got, &got_length, root, NULL));
    check_object(got, got_length, root, round);
    CHECK((got == mine) == (me == root));
    if (me != root) {
        ls_bytes_free(got);
    }

    ls_bytes *list = NULL;
    CHECK_OK(ls_all_gather_bytes(group, mine, length, NULL, &list));
    for (int r = 0; r < size; r++) {
        check_object(list[r].data, list[r].length, r, round);
    }
    ls_bytes_free(list);

    CHECK_OK(ls_gather_bytes(group, mine, length, root, NULL, &list));
    CHECK((list != NULL) == (me == root));
    for (int r = 0; r < size && me == root; r++) {
        check_object(list[r].data, list[r].length, r, round);
    }
    ls_bytes_free(list);

    ls_bytes give[8];
    for (int r = 0; r < size && me == root; r++) {
        give[r] = (ls_bytes){.data = object_of(r, round), .length = length_of(r, round)};
    }
    CHECK_OK(ls_scatter_bytes(group, me == root ? give : NULL, root, NULL, &got, &got_length));
    check_object(got, got_length, me, round);
    ls_bytes_free(got);
    for (int r = 0; r < size && me == root; r++) {
        free(give[r].data);
    }
    free(mine);
}

static void all_rounds(void)
{
    for (int round = 0; round < LENGTHS; round++) {
        one_round(ls_world(), round);
    }
}

DIST_TEST(objects_of_every_length_arrive_1, 1)
{
    all_rounds();
}

DIST_TEST(objects_of_every_length_arrive_2, 2)
{
    all_rounds();
}

DIST_TEST(objects_of_every_length_arrive_3, 3)
{
    all_rounds();
}

DIST_TEST(objects_of_every_length_arrive_8, 8)
{
    for (int round = 0; round < 3; round++) {
        one_round(ls_world(), round + 4);
    }
}

/* Letters of the user with any tag are not mistaken for the library's own. */
DIST_TEST(objects_do_not_take_letters_of_the_user, 2)
{
    int32_t out = 40 + ls_rank(), in = -1;
    ls_work *work[2];
    ls_bytes *list = NULL;
    unsigned char *mine = object_of(7, 5);
    CHECK_OK(ls_recv(ls_world(), &in, 1, LS_INT32, 1 - ls_rank(), 0, NULL, &work[0]));
    CHECK_OK(ls_send(ls_world(), &out, 1, LS_INT32, 1 - ls_rank(), 0, NULL, &work[1]));
    CHECK_OK(ls_gather_bytes(ls_world(), mine, length_of(7, 5), 0, NULL, &list));
    for (int r = 0; list != NULL && r < 2; r++) {
        check_object(list[r].data, list[r].length, 7, 5);
    }
    CHECK_OK(ls_work_wait(work[0]));
    CHECK_OK(ls_work_wait(work[1]));
    CHECK_INT(in, 41 - ls_rank());
    ls_bytes_free(list);
    free(mine);
}

DIST_TEST(different_object_calls_are_told_apart, 2)
{
    ls_group *group = NULL;
    ls_bytes *list = NULL;
    void *bytes = NULL;
    size_t length = 0;
    CHECK_OK(ls_group_new(ls_world(), NULL, 0, "mixed", &group));
    CHECK_STATUS(ls_rank() == 0 ? ls_broadcast_bytes(group, &bytes, &length, 0, NULL)
                                : ls_all_gather_bytes(group, "x", 1, NULL, &list),
                 LS_ERR_MISMATCH);
    CHECK_CONTAINS(ls_error_message(), "ls_broadcast_bytes");
    CHECK_CONTAINS(ls_error_message(), "ls_all_gather_bytes");
    (void)ls_group_free(group);
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
}

DIST_TEST(arguments_are_checked_before_anything_is_sent, 1)
{
    ls_bytes *list = NULL;
    void *bytes = NULL;
    size_t length = 3;
    CHECK_STATUS(ls_broadcast_bytes(ls_world(), &bytes, &length, 0, NULL), LS_ERR_INVALID);
    CHECK_STATUS(ls_broadcast_bytes(ls_world(), &bytes, &length, 5, NULL), LS_ERR_INVALID);
    CHECK_STATUS(ls_all_gather_bytes(ls_world(), NULL, 3, NULL, &list), LS_ERR_INVALID);
    CHECK_STATUS(ls_gather_bytes(NULL, "x", 1, 0, NULL, &list), LS_ERR_INVALID);
    CHECK_STATUS(ls_scatter_bytes(ls_world(), NULL, 0, NULL, &bytes, &length), LS_ERR_INVALID);
    const ls_bytes nothing = {.data = NULL, .length = 3};
    CHECK_STATUS(ls_scatter_bytes(ls_world(), &nothing, 0, NULL, &bytes, &length), LS_ERR_INVALID);
    ls_bytes_free(NULL);
}

static _Atomic int64_t held; /* bytes */

static void *held_allocate(const ls__env *env, size_t bytes)
{
    (void)env;
    atomic_fetch_add(&held, (int64_t)bytes);
    return ls__env_posix()->allocate(ls__env_posix(), bytes);
}

static void held_release(const ls__env *env, void *memory, size_t bytes)
{
    (void)env;
    atomic_fetch_sub(&held, (int64_t)bytes);
    ls__env_posix()->release(ls__env_posix(), memory, bytes);
}

static int alone_main(void *arg)
{
    static ls__env env;
    (void)arg;
    env = *ls__env_posix();
    env.allocate = held_allocate;
    env.release = held_release;
    CHECK_OK(ls__init_with(&env, NULL));
    all_rounds(); /* makes pools */
    const int64_t before = atomic_load(&held);
    CHECK(before > 0);
    all_rounds();
    CHECK_INT(atomic_load(&held), before);
    CHECK_OK(ls_finalize());
    return 0;
}

TEST(an_object_call_gives_its_memory_back)
{
    CHECK_OK(ls_spawn(alone_main, NULL, 1));
}

TEST_MAIN
