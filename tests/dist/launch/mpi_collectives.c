/* SPDX-License-Identifier: Apache-2.0 */
/* MPI's own collectives as the backend of a group (LOCKSTEP_BACKEND=mpi) under mpirun of Open MPI
 * and MPICH: every function, dtype and operator gives the native results, on 1 to 4 ranks. */
#include "test.h"

#include <limits.h>
#include <stdio.h>

#include "../comm/promises.h"
#include "says.h"

#define PLUGIN "src/comm/mpi/ls_backend_mpi"
#define SECONDS 100

static ls_group *mpi_group(ls_group *parent, const char *name)
{
    ls_group *group = NULL;
    const ls_group_options *options = LS_OPTIONS(ls_group_options, .name = name, .backend = "mpi");
    CHECK_OK(ls_group_create(parent, options, &group));
    CHECK(strcmp(ls_group_backend(group), "mpi") == 0);
    return group;
}

/* ---- run under mpirun ----------------------------------------------------------------------- */

static void all_results(void)
{
    ls_group *mpi = mpi_group(ls_world(), "mpi");
    every_promise_is_kept(ls_world(), mpi);
    CHECK_OK(ls_group_free(mpi));
}

DIST_TEST(helper_1_rank, 1)
{
    all_results();
}

DIST_TEST(helper_2_ranks, 2)
{
    all_results();
}

DIST_TEST(helper_3_ranks, 3)
{
    all_results();
}

DIST_TEST(helper_4_ranks, 4)
{
    all_results();
}

/* Large enough for MPI's protocol with a handshake. */
DIST_TEST(helper_world, 3)
{
    enum { COUNT = 300000, MESSAGES = 6 };
    static float x[COUNT], out[MESSAGES][COUNT], in[MESSAGES][COUNT];
    ls_work *send[MESSAGES], *recv[MESSAGES];
    const int me = ls_rank();
    CHECK(strcmp(ls_group_backend(ls_world()), "mpi") == 0);
    for (int i = 0; i < COUNT; i++) {
        x[i] = (float)(i % 11 + me);
        out[0][i] = out[1][i] = (float)(i + me);
    }
    CHECK_OK(ls_all_reduce(ls_world(), x, x, COUNT, LS_FLOAT32, LS_AVG, NULL, NULL));
    for (int m = 0; m < MESSAGES; m++) {
        CHECK_OK(
            ls_send(ls_world(), out[m % 2], COUNT, LS_FLOAT32, (me + 1) % 3, m, NULL, &send[m]));
    }
    for (int m = MESSAGES - 1; m >= 0; m--) {
        CHECK_OK(ls_recv(ls_world(), in[m], COUNT, LS_FLOAT32, (me + 2) % 3, m, NULL, &recv[m]));
    }
    for (int m = 0; m < MESSAGES; m++) {
        CHECK_OK(ls_work_wait(send[m]));
        CHECK_OK(ls_work_wait(recv[m]));
    }
    for (int i = 0; i < COUNT; i++) {
        CHECK(x[i] == (float)(i % 11 + 1) && in[5][i] == (float)(i + (me + 2) % 3));
    }
    static const int two[] = {0, 2}; /* a group of some, now that MPI is there */
    ls_group *some = NULL;
    int64_t y = me + 1;
    CHECK_OK(ls_group_new(ls_world(), two, 2, "some", &some));
    if (some != NULL) {
        CHECK_OK(ls_all_reduce(some, &y, &y, 1, LS_INT64, LS_SUM, NULL, NULL));
        CHECK_INT(y, 4);
        CHECK_OK(ls_group_free(some));
    }
}

enum { IN_PLACE_RANKS = 3, IN_PLACE = 37, IN_PLACE_ALL = 4 * IN_PLACE };

/* Every operation in place; x [IN_PLACE_ALL]. */
static void call_in_place(ls_group *g, int which, float *x)
{
    const int me = ls_rank(), root = IN_PLACE_RANKS - 1;
    int64_t counts[IN_PLACE_RANKS], offsets[IN_PLACE_RANKS];
    for (int r = 0; r < IN_PLACE_RANKS; r++) {
        counts[r] = which == 7 ? 4 : 3 + r;
        offsets[r] = 9 * r;
    }
    float *own = x + me * IN_PLACE, *own_v = x + offsets[me], *at_root = me == root ? own : x;
    const int64_t n = IN_PLACE;
    ls_status status = LS_OK;
    switch (which) {
    case 0:
        status = ls_reduce_scatter(g, x, own, n, LS_FLOAT32, LS_SUM, NULL, NULL);
        memmove(x, own, IN_PLACE * sizeof *x); /* the rest is undefined */
        memset(x + IN_PLACE, 0, (IN_PLACE_ALL - IN_PLACE) * sizeof *x);
        break;
    case 1:
        status = ls_all_gather(g, own, x, n, LS_FLOAT32, NULL, NULL);
        break;
    case 2:
        status = ls_all_gather_v(g, own_v, counts[me], x, counts, offsets, LS_FLOAT32, NULL, NULL);
        break;
    case 3:
        status = ls_scan(g, x, x, n, LS_FLOAT32, LS_SUM, NULL, NULL);
        break;
    case 4:
        status = ls_exscan(g, x, x, n, LS_FLOAT32, LS_SUM, NULL, NULL);
        break;
    case 5:
        status = ls_gather(g, at_root, x, n, LS_FLOAT32, root, NULL, NULL);
        break;
    case 6:
        status = ls_scatter(g, x, at_root, n, LS_FLOAT32, root, NULL, NULL);
        break;
    default:
        status = ls_all_to_all_v(g, x, counts, offsets, x, counts, offsets, LS_FLOAT32, NULL, NULL);
    }
    CHECK_INT(status, LS_OK);
}

DIST_TEST(helper_in_place, IN_PLACE_RANKS)
{
    ls_group *mpi = mpi_group(ls_world(), "in place");
    for (int which = 0; which < 8; which++) {
        float want[IN_PLACE_ALL], got[IN_PLACE_ALL];
        for (int i = 0; i < IN_PLACE_ALL; i++) {
            want[i] = got[i] = (float)((i * 7 + ls_rank() * 3) % 5);
        }
        call_in_place(ls_world(), which, want);
        call_in_place(mpi, which, got);
        CHECK(memcmp(want, got, sizeof want) == 0);
    }
    CHECK_OK(ls_group_free(mpi));
}

DIST_TEST(helper_refusals, 2)
{
    float x = 1;
    ls_group *one = NULL, *mpi = NULL;
    CHECK_OK(ls_group_split(ls_world(), ls_rank(), 0, "one", &one));
    CHECK_STATUS(ls_group_create(one, LS_OPTIONS(ls_group_options, .backend = "mpi"), &mpi),
                 LS_ERR_STATE);
    CHECK_SAYS(ls_error_message(),
               "MPI is initialised by all ranks of the job together, and this group has %d of %d; "
               "set LOCKSTEP_BACKEND=mpi, or make a group of all ranks with this backend first");
    mpi = mpi_group(ls_world(), "all");
    CHECK_STATUS(ls_all_reduce(mpi, &x, &x, (int64_t)INT_MAX + 1, LS_FLOAT32, LS_SUM, NULL, NULL),
                 LS_ERR_UNSUPPORTED);
    CHECK_SAYS(ls_error_message(),
               "%s on group \"%s\": backend \"%s\" moves at most %lld elements of a buffer at a "
               "time, and this one has %lld; split it");
    const int64_t block = (int64_t)INT_MAX / 2 + 1; /* in place; refused before memory is read */
    CHECK_STATUS(
        ls_reduce_scatter(mpi, &x, &x + block * ls_rank(), block, LS_FLOAT32, LS_SUM, NULL, NULL),
        LS_ERR_UNSUPPORTED);
    CHECK_OK(ls_all_reduce(mpi, &x, &x, 1, LS_FLOAT32, LS_SUM, NULL, NULL));
    CHECK(x == 2);
    CHECK_OK(ls_group_free(mpi));
    CHECK_OK(ls_group_free(one));
}

/* ---- the tests ------------------------------------------------------------------------------ */

static void run(const char *mpi, const char *variables, const char *helper)
{
    char command[1024], plugin[512];
    snprintf(plugin, sizeof plugin, "%s_%s.so", test_build_path(PLUGIN), mpi);
    snprintf(command, sizeof command, "command -v mpirun.%s >/dev/null && test -e %s", mpi, plugin);
    test_output there = test_run(command, SECONDS);
    free(there.text);
    if (there.status != 0) {
        SKIP("no mpirun of this MPI, or no plug-in (apt-get install libopenmpi-dev libmpich-dev "
             "mpich, then build)");
    }
    snprintf(command, sizeof command, "TEST_MPI=%s %s %s %s", mpi, variables,
             test_build_path("tests/dist/launch/launch_mpi_collectives"), helper);
    test_output got = test_run(command, SECONDS);
    if (got.status != 0) {
        test_fail(__FILE__, __LINE__, "%s", got.text);
    }
    free(got.text);
}

static void check_mpi(const char *mpi)
{
    run(mpi, "", "helper_1_rank");
    run(mpi, "", "helper_2_ranks");
    run(mpi, "LOCKSTEP_HOSTS=2",
        "helper_3_ranks"); /* control over TCP, the transport over MPI, too */
    run(mpi, "", "helper_4_ranks");
    run(mpi, "LOCKSTEP_BACKEND=mpi", "helper_world");
    run(mpi, "", "helper_in_place");
    run(mpi, "", "helper_refusals");
}

TEST(the_collectives_of_open_mpi_give_the_native_results)
{
    check_mpi("openmpi");
}

TEST(the_collectives_of_mpich_give_the_native_results)
{
    check_mpi("mpich");
}

TEST_MAIN
