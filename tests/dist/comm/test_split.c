/* SPDX-License-Identifier: Apache-2.0 */
/* Splitting groups by colour and key, duplicates, and groups of groups. */
#include "test.h"

#include <stdio.h>

#include <lockstep/comm.h>

/* The rank a member of `color` must get: how many of its color come before it. */
static int place_of(const int *color, const int *key, int size, int rank)
{
    int place = 0;
    for (int r = 0; r < size; r++) {
        place +=
            color[r] == color[rank] && (key[r] < key[rank] || (key[r] == key[rank] && r < rank));
    }
    return place;
}

static int members_of(const int *color, int size, int which)
{
    int count = 0;
    for (int r = 0; r < size; r++) {
        count += color[r] == which;
    }
    return count;
}

/* Every member's world rank, gathered over the new group, stands where its key says. */
static void check_part(ls_group *part, const int *color, const int *key, int size)
{
    int32_t me = ls_rank(), all[16] = {0};
    const int count = members_of(color, size, color[me]);
    int64_t sum = 0, want = 0;
    CHECK(part != NULL);
    CHECK_INT(ls_group_size(part), count);
    CHECK_INT(ls_group_rank(part), place_of(color, key, size, me));
    CHECK_OK(ls_all_gather(part, &me, all, 1, LS_INT32, NULL, NULL));
    for (int i = 0; i < count; i++) {
        CHECK_INT(color[all[i]], color[me]);
        CHECK_INT(place_of(color, key, size, all[i]), i);
        want += all[i];
    }
    sum = me;
    CHECK_OK(ls_all_reduce(part, &sum, &sum, 1, LS_INT64, LS_SUM, NULL, NULL));
    CHECK_INT(sum, want);
}

/* Colors and keys from small tables, all ranks the same: none, equal, reversed, sparse. */
static void fill(int pattern, int size, int *color, int *key)
{
    for (int r = 0; r < size; r++) {
        switch (pattern) {
        case 0:
            color[r] = 0;
            key[r] = -r; /* reversed */
            break;
        case 1:
            color[r] = r % 2;
            key[r] = 7; /* equal keys: by rank */
            break;
        case 2:
            color[r] = r % 3 == 1 ? LS_NO_COLOR : 1000000 * (r % 3);
            key[r] = (r * 5) % 4;
            break;
        default:
            color[r] = r; /* everybody alone */
            key[r] = INT32_MIN + r;
            break;
        }
    }
}

static void split_all_patterns(void)
{
    const int size = ls_world_size(), me = ls_rank();
    for (int pattern = 0; pattern < 4; pattern++) {
        int color[16], key[16];
        ls_group *part = NULL;
        fill(pattern, size, color, key);
        CHECK_OK(ls_group_split(ls_world(), color[me], key[me], NULL, &part));
        CHECK((part == NULL) == (color[me] == LS_NO_COLOR));
        if (part != NULL) {
            check_part(part, color, key, size);
        }
        CHECK_OK(ls_group_free(part));
    }
}

DIST_TEST(colors_and_keys_make_the_groups_of_mpi_1, 1)
{
    split_all_patterns();
}

DIST_TEST(colors_and_keys_make_the_groups_of_mpi_2, 2)
{
    split_all_patterns();
}

DIST_TEST(colors_and_keys_make_the_groups_of_mpi_5, 5)
{
    split_all_patterns();
}

DIST_TEST(colors_and_keys_make_the_groups_of_mpi_8, 8)
{
    split_all_patterns();
}

/* Rows and columns of a 2 x 3 mesh, used at the same time. */
DIST_TEST(rows_and_columns_of_a_mesh_work_beside_each_other, 6)
{
    const int row = ls_rank() / 3, column = ls_rank() % 3;
    ls_group *rows = NULL, *columns = NULL;
    char name[32];
    (void)snprintf(name, sizeof name, "row %d", row);
    CHECK_OK(ls_group_split(ls_world(), row, 0, name, &rows));
    CHECK_STR(ls_group_name(rows), name);
    CHECK_OK(ls_group_split(ls_world(), column, 0, NULL, &columns));
    for (int i = 0; i < 30; i++) {
        int32_t x = ls_rank(), y = ls_rank(), z = -1;
        const int32_t letter = 100 * ls_rank() + i;
        ls_work *work[4];
        CHECK_OK(ls_all_reduce(rows, &x, &x, 1, LS_INT32, LS_SUM, NULL, &work[0]));
        CHECK_OK(ls_all_reduce(columns, &y, &y, 1, LS_INT32, LS_SUM, NULL, &work[1]));
        CHECK_OK(ls_send(columns, &letter, 1, LS_INT32, 1 - row, 5, NULL, &work[2]));
        CHECK_OK(ls_recv(columns, &z, 1, LS_INT32, 1 - row, 5, NULL, &work[3]));
        for (int w = 3; w >= 0; w--) {
            CHECK_OK(ls_work_wait(work[w]));
        }
        CHECK_INT(x, 9 * row + 3);
        CHECK_INT(y, 2 * column + 3);
        CHECK_INT(z, 100 * ((ls_rank() + 3) % 6) + i);
    }
    CHECK_OK(ls_group_free(columns));
    CHECK_OK(ls_group_free(rows));
}

DIST_TEST(a_part_can_be_split_again_and_the_halves_end_in_any_order, 8)
{
    ls_group *group = NULL, *next = NULL, *made[4] = {NULL};
    int depth = 0;
    CHECK_OK(ls_group_new(ls_world(), NULL, 0, "tree", &group));
    for (made[0] = group; ls_group_size(group) > 1; group = next) {
        const int half = ls_group_rank(group) >= ls_group_size(group) / 2;
        CHECK_OK(ls_group_split(group, half, 0, NULL, &next));
        CHECK_INT(ls_group_size(next), ls_group_size(group) / 2);
        made[++depth] = next;
    }
    CHECK_INT(depth, 3);
    for (int d = 0; d <= depth; d++) {
        int32_t x = 1;
        CHECK_OK(ls_all_reduce(made[d], &x, &x, 1, LS_INT32, LS_SUM, NULL, NULL));
        CHECK_INT(x, 8 >> d);
    }
    for (int d = 0; d <= depth; d++) {
        CHECK_OK(ls_group_free(made[d]));
    }
}

/* Groups of one split share a number: a failure of one is none of the others. */
DIST_TEST(a_failure_of_one_part_leaves_the_other_alone, 4)
{
    ls_group *part = NULL;
    int32_t x = 1;
    const int color = ls_rank() % 2;
    CHECK_OK(ls_group_split(ls_world(), color, 0, "half", &part));
    if (ls_rank() == 1) {
        CHECK_OK(ls_group_abort(part, "on purpose"));
    }
    if (color == 1) {
        CHECK_STATUS(ls_barrier(part, NULL, NULL), LS_ERR_ABORTED);
    }
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
    if (color == 0) {
        CHECK_OK(ls_all_reduce(part, &x, &x, 1, LS_INT32, LS_SUM, NULL, NULL));
        CHECK_INT(x, 2);
    }
    (void)ls_group_free(part);
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
}

DIST_TEST(three_hundred_splits_give_their_memory_back, 4)
{
    for (int i = 0; i < 300; i++) {
        ls_group *part = NULL;
        int32_t x = 1;
        CHECK_OK(ls_group_split(ls_world(), (ls_rank() + i) % 2, i, NULL, &part));
        CHECK_OK(ls_all_reduce(part, &x, &x, 1, LS_INT32, LS_SUM, NULL, NULL));
        CHECK_INT(x, 2);
        CHECK_OK(ls_group_free(part));
    }
}

DIST_TEST(names_of_one_color_must_agree, 3)
{
    ls_group *part = NULL;
    const char *name = ls_rank() == 2 ? "b" : "a";
    CHECK_STATUS(ls_group_split(ls_world(), 0, 0, name, &part), LS_ERR_MISMATCH);
    CHECK_CONTAINS(ls_error_message(), "of color 0 rank 0 names the group \"a\", rank 2 \"b\"");
    CHECK(part == NULL);
    CHECK_OK(ls_group_split(ls_world(), ls_rank() == 2, 0, name, &part));
    CHECK_OK(ls_group_free(part));
}

/* Ranks 0 and 2 make a group while rank 1 never calls; then two pairs at once, then everybody, in
 * an order of its own. Numbers that pairs were given apart must not meet in the last group. */
DIST_TEST(members_alone_make_groups_while_others_do_not_call, 4)
{
    const int me = ls_rank(), place[] = {2, 1, 3, 0};
    ls_group *outer = NULL, *pair = NULL, *all = NULL;
    if (me == 0 || me == 2) {
        CHECK_OK(ls_group_new_among(ls_world(), (const int[]){2, 0}, 2, "outer", &outer));
        CHECK(ls_group_rank(outer) == (me == 2 ? 0 : 1));
        CHECK(ls_group_size(outer) == 2);
    }
    for (int round = 0; round < 3; round++) {
        const int first = me / 2 * 2, ranks[] = {first, first + 1};
        int32_t sum = me;
        CHECK_OK(ls_group_new_among(ls_world(), ranks, 2, NULL, &pair));
        CHECK_OK(ls_all_reduce(pair, &sum, &sum, 1, LS_INT32, LS_SUM, NULL, NULL));
        CHECK(sum == 2 * first + 1);
        CHECK_OK(ls_group_free(pair));
    }
    int32_t sum = 1;
    CHECK_OK(ls_group_new_among(ls_world(), (const int[]){3, 1, 0, 2}, 4, "all", &all));
    CHECK_OK(ls_all_reduce(all, &sum, &sum, 1, LS_INT32, LS_SUM, NULL, NULL));
    CHECK(sum == 4);
    CHECK(ls_group_rank(all) == place[me]);
    if (outer != NULL) {
        sum = me;
        CHECK_OK(ls_all_reduce(outer, &sum, &sum, 1, LS_INT32, LS_SUM, NULL, NULL));
        CHECK(sum == 2);
    }
    CHECK_OK(ls_group_free(all));
    CHECK_OK(ls_group_free(outer));
}

DIST_TEST(who_asks_for_other_members_is_told, 2)
{
    ls_group *group = NULL;
    const char *name = ls_rank() == 0 ? "left" : "right";
    CHECK_STATUS(ls_group_new_among(ls_world(), (const int[]){0, 1}, 2, name, &group),
                 LS_ERR_MISMATCH);
    CHECK(group == NULL);
}

TEST_MAIN
