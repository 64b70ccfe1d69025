/* SPDX-License-Identifier: Apache-2.0 */
/* Meshes: their groups against coordinates counted one by one, hosts, and what is refused. */
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/mesh.h>

/* Uneven hosts, so that some groups of an axis cross them and others do not; unless the run asks
 * for other ones. */
#define UNEVEN "0,0,0,1,1,1,1,1"
__attribute__((constructor)) static void on_uneven_hosts(void)
{
    setenv("LOCKSTEP_HOSTS", UNEVEN, 0);
}

static int host_of(int rank)
{
    const char *hosts = getenv("LOCKSTEP_HOSTS");
    return strcmp(hosts, UNEVEN) == 0 ? rank > 2 : rank % atoi(hosts);
}

typedef struct place {
    int at[3];
} place;

/* By counting like an odometer, not by the library's division. */
static place place_of(const int *size, int rank)
{
    place p = {{0}};
    for (int r = 0; r < rank; r++) {
        for (int a = 2; a >= 0 && ++p.at[a] == size[a]; a--) {
            p.at[a] = 0;
        }
    }
    return p;
}

/* Whether ranks r and s differ in the axes of `mask` at most. */
static bool together(const int *size, unsigned mask, int r, int s)
{
    const place p = place_of(size, r), q = place_of(size, s);
    for (int a = 0; a < 3; a++) {
        if ((mask >> a & 1) == 0 && p.at[a] != q.at[a]) {
            return false;
        }
    }
    return true;
}

static void check_group(ls_group *group, const int *size, unsigned mask)
{
    const int32_t me = ls_rank();
    int32_t all[64] = {0};
    int count = 0;
    CHECK(group != NULL);
    CHECK_OK(ls_all_gather(group, &me, all, 1, LS_INT32, NULL, NULL));
    for (int r = 0; r < ls_world_size(); r++) {
        if (together(size, mask, r, me)) {
            CHECK(count < ls_group_size(group));
            CHECK_INT(all[count], r);
            count++;
        }
    }
    CHECK_INT(ls_group_size(group), count);
}

static bool crosses(const int *size, int axis)
{
    for (int r = 0; r < ls_world_size(); r++) {
        for (int s = 0; s < r; s++) {
            if (together(size, 1u << axis, r, s) && host_of(r) != host_of(s)) {
                return true;
            }
        }
    }
    return false;
}

static const char *const names[] = {"pp", "dp", "tp"};

static void check_mesh(int a, int b, int c)
{
    char axes[64];
    const int size[] = {a, b, c};
    ls_mesh *mesh = NULL;
    ls_group *group = NULL;
    snprintf(axes, sizeof axes, "pp=%d,dp=%d,tp=%d", a, b, c);
    CHECK_OK(ls_mesh_new(ls_world(), axes, &mesh));
    for (int i = 0; i < 3; i++) {
        CHECK(ls_mesh_has(mesh, names[i]));
        CHECK_INT(ls_mesh_size(mesh, names[i]), size[i]);
        CHECK_INT(ls_mesh_coordinate(mesh, names[i]), place_of(size, ls_rank()).at[i]);
        CHECK(strcmp(ls_group_name(ls_mesh_group(mesh, names[i])), names[i]) == 0);
        CHECK_INT(ls_mesh_crosses_hosts(mesh, names[i]), crosses(size, i));
        check_group(ls_mesh_group(mesh, names[i]), size, 1u << i);
    }
    CHECK_OK(ls_mesh_group_new(mesh, "dp,pp", &group));
    check_group(group, size, 3u);
    CHECK_OK(ls_group_free(group));
    CHECK_OK(ls_mesh_free(mesh));
}

static void all_meshes(void)
{
    const int size = ls_world_size();
    for (int a = 1; a <= size; a++) {
        for (int b = 1; a * b <= size; b++) {
            if (size % (a * b) == 0) {
                check_mesh(a, b, size / a / b);
            }
        }
    }
}

DIST_TEST(groups_along_all_axes_of_1, 1)
{
    all_meshes();
}
DIST_TEST(groups_along_all_axes_of_4, 4)
{
    all_meshes();
}
DIST_TEST(groups_along_all_axes_of_6, 6)
{
    all_meshes();
}
DIST_TEST(groups_along_all_axes_of_7, 7)
{
    all_meshes();
}
DIST_TEST(groups_along_all_axes_of_8, 8)
{
    all_meshes();
}

DIST_TEST(one_size_may_be_left_to_the_library, 6)
{
    ls_mesh *mesh = NULL;
    CHECK_OK(ls_mesh_new(ls_world(), "dp=*,pp=2", &mesh));
    CHECK_INT(ls_mesh_size(mesh, "dp"), 3);
    CHECK_INT(ls_mesh_coordinate(mesh, "pp"), ls_rank() % 2);
    CHECK_OK(ls_mesh_free(mesh));
}

DIST_TEST(an_axis_that_is_not_there_is_an_error, 2)
{
    ls_mesh *mesh = NULL;
    ls_group *group = NULL;
    CHECK_OK(ls_mesh_new(ls_world(), "dp=2", &mesh));
    CHECK(!ls_mesh_has(mesh, "pp"));
    CHECK(ls_mesh_group(mesh, "pp") == NULL);
    CHECK_CONTAINS(ls_error_message(), "ls_mesh_group: the mesh \"dp=2\" has no axis \"pp\"");
    CHECK_INT(ls_mesh_size(mesh, "d"), 0);
    CHECK_INT(ls_mesh_coordinate(mesh, "dpp"), -1);
    CHECK(!ls_mesh_crosses_hosts(mesh, ""));
    CHECK_STATUS(ls_mesh_group_new(mesh, "dp,", &group), LS_ERR_NOT_FOUND);
    CHECK_STATUS(ls_mesh_group_new(mesh, NULL, &group), LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), "ls_mesh_group_new: the mesh or the axis is NULL");
    CHECK_STATUS(ls_mesh_group_new(mesh, "dp", NULL), LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), "out is NULL; give a place for the group");
    CHECK_OK(ls_mesh_free(mesh));
    CHECK_OK(ls_mesh_free(NULL));
}

static void refused(const char *axes, const char *text)
{
    ls_mesh *mesh = NULL;
    CHECK_STATUS(ls_mesh_new(ls_world(), axes, &mesh), LS_ERR_INVALID);
    CHECK(mesh == NULL);
    CHECK_CONTAINS(ls_error_message(), text);
}

DIST_TEST(bad_axes_are_refused_in_words, 2)
{
    char longest[300];
    memset(longest, 'a', sizeof longest);
    longest[sizeof longest - 1] = '\0';
    refused("", "a name of 1 to 15 letters, digits and underscores is expected at \"\"");
    refused("dp=2,", "is expected at \"\"");
    refused("d-p=2", "= and a size is expected at \"-p=2\"");
    refused("dp=0", "a size of 1 or more, or * for the ranks that remain, is expected at \"0\"");
    refused("dp=99999999999999999999", "a size of 1 or more");
    refused("dp=2;pp=1", "a comma or the end is expected at \";pp=1\"");
    refused("dp=1,dp=2", "two axes are named \"dp\"");
    refused("a=1,b=1,c=1,d=1,e=1,f=1,g=1,h=1,i=2", "it has more than 8 axes");
    refused("dp=*,pp=*", "2 of its sizes are *; give the size of every axis but one");
    refused("dp=3", "its sizes make 3 ranks, and the group has 2");
    refused("dp=3,pp=*", "its sizes make a multiple of 3 ranks, and the group has 2");
    refused("dp=2147483647,pp=2147483647", "its sizes make 2147483647 ranks");
    refused(longest, "its axes take 299 bytes; at most 255 are allowed");
    refused(NULL, "the group, the axes or the place for the mesh are missing");
}

DIST_TEST(ranks_with_other_axes_are_named, 4)
{
    ls_mesh *mesh = NULL;
    const bool other = ls_rank() == 3;
    CHECK_STATUS(ls_mesh_new(ls_world(), other ? "dp=4" : "dp=2,pp=2", &mesh), LS_ERR_MISMATCH);
    CHECK_CONTAINS(ls_error_message(), "rank 3 of group \"world\" gives the axes \"dp=4\", rank 0 "
                                       "\"dp=2,pp=2\"; give the same on all ranks");
}

TEST_MAIN
