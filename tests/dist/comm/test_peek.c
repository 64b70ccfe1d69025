/* Private buffers that peers read where they lie (comm/peek.h): by itself, asked for, refused,
 * unreadable, and a peer that ends while it is read. */
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <lockstep/comm.h>

#include "comm/group/group.h"
#include "comm/memory/cma.h"
#include "comm/memory/control.h"
#include "comm/memory/heap.h"
#include "test.h"

#define COUNT 1000003 /* 4 MB: what is read by itself with 2 ranks */

static ls__heap_header *own_header(void)
{
    const ls__comm *comm = ls_world()->comm;
    return ls__heap_header_of(&comm->heap, comm->heap.rank);
}

static void find_out(const char *setting)
{
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
    CHECK(setenv("LOCKSTEP_READ_PEERS", setting, 1) == 0);
    ls__cma_find_out(ls_world()->comm);
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
}

static float value_of(int rank, int64_t i)
{
    return (float)((i % 1000) * (rank + 1));
}

/* Returns whether it was staged: then slices were used. */
static bool sums_are_right(float *x)
{
    ls_group *world = ls_world();
    const int n = ls_world_size();
    const uint64_t slices = world->slices;
    for (int64_t i = 0; i < COUNT; i++) {
        x[i] = value_of(ls_rank(), i);
    }
    CHECK_OK(ls_all_reduce(world, x, x, COUNT, LS_FLOAT32, LS_SUM, NULL, NULL));
    for (int64_t i = 0; i < COUNT; i++) {
        CHECK(x[i] == (float)((i % 1000) * n * (n + 1) / 2));
    }
    return world->slices != slices;
}

static float *buffer(void)
{
    float *x = malloc(COUNT * sizeof *x);
    CHECK(x != NULL);
    return x;
}

DIST_TEST(two_ranks_that_want_it_read_each_others_buffers, 2)
{
    float *x = buffer();
    find_out("off");
    CHECK(sums_are_right(x) != ls_world()->has_remote);
    find_out("on");
    CHECK(!sums_are_right(x));
    free(x);
}

/* Returns whether it was staged. */
static bool gathered_right(float *x, int64_t block)
{
    ls_group *world = ls_world();
    const int n = ls_world_size();
    const uint64_t slices = world->slices;
    for (int64_t i = 0; i < block; i++) {
        x[i] = value_of(ls_rank(), i);
    }
    float *all = malloc((size_t)(block * n) * sizeof *all);
    CHECK(all != NULL);
    CHECK_OK(ls_all_gather(world, x, all, block, LS_FLOAT32, NULL, NULL));
    for (int64_t i = 0; i < block * n; i++) {
        CHECK(all[i] == value_of((int)(i / block), i % block));
    }
    free(all);
    return world->slices != slices;
}

DIST_TEST(blocks_are_read_by_themselves_and_sums_when_asked_for, 2)
{
    float *x = buffer();
    find_out("auto");
    CHECK(!gathered_right(x, 32768)); /* 128 KiB of each */
    CHECK(gathered_right(x, 32767) != ls_world()->has_remote);
    CHECK(sums_are_right(x) != ls_world()->has_remote);
    find_out("off");
    CHECK(gathered_right(x, 32768) != ls_world()->has_remote);
    free(x);
}

DIST_TEST(all_stage_where_one_may_not_read_another, 3)
{
    float *x = buffer();
    ls_world()->comm->forced = ls_world()->has_remote ? 0 : LS__WAY_READABLE;
    const int64_t pid = own_header()->pid;
    find_out("on");
    CHECK(!sums_are_right(x));
    if (ls_rank() == 1) { /* that process has no such number there, or may not be looked at */
        own_header()->pid = 1;
    }
    find_out("on");
    CHECK(ls_world()->has_remote || ls_world()->comm->has_cma == (ls_rank() == 1));
    CHECK(sums_are_right(x) != ls_world()->has_remote);
    own_header()->pid = pid;
    ls_world()->comm->forced = 0;
    free(x);
}

DIST_TEST(a_buffer_that_cannot_be_read_is_an_error_on_all_ranks, 3)
{
    float *x = buffer();
    ls_group *group = NULL;
    CHECK_OK(ls_group_new(ls_world(), NULL, 0, "readers", &group));
    find_out("on");
    if (!group->has_remote) {
        ls_world()->comm->forced = LS__WAY_READABLE;
        const int64_t pid = own_header()->pid;
        own_header()->pid = ls_rank() == 1 ? 1 : pid;
        CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
        CHECK_STATUS(ls_all_reduce(group, x, x, COUNT, LS_FLOAT32, LS_SUM, NULL, NULL),
                     LS_ERR_SYSTEM);
        CHECK_CONTAINS(ls_error_message(), "cannot read a buffer of rank 1");
        own_header()->pid = pid;
        ls_world()->comm->forced = 0;
    }
    (void)ls_group_free(group); /* says again why it failed */
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
    free(x);
}

/* The number of a process that has ended: what reading a dead rank answers. */
static pid_t ended(void)
{
    const pid_t child = fork();
    if (child == 0) {
        _exit(0);
    }
    siginfo_t info;
    CHECK(child > 0 && waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT) == 0);
    return child; /* a zombie: nobody else gets the number */
}

typedef struct death { /* shared between ranks */
    _Atomic int begun; /* rank 0 has called the operation */
    bool remote;
    char told[1024]; /* to rank 0 */
} death;

static int dies_while_it_is_read(void *arg)
{
    death *d = arg;
    ls_work *work = NULL;
    CHECK_OK(ls_init(NULL));
    float *x = buffer();
    find_out("on");
    d->remote = ls_world()->has_remote;
    if (ls_rank() == 1 && !d->remote) {
        own_header()->pid = ended();
    }
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
    if (!d->remote) {
        CHECK_OK(ls_all_reduce(ls_world(), x, x, COUNT, LS_FLOAT32, LS_SUM, NULL, &work));
        if (ls_rank() == 1) {
            while (atomic_load(&d->begun) == 0) {
                (void)sched_yield();
            }
            (void)raise(SIGKILL);
        }
        atomic_store(&d->begun, 1);
        CHECK_STATUS(ls_work_wait(work), LS_ERR_PEER);
        (void)snprintf(d->told, sizeof d->told, "%s", ls_error_message());
    }
    free(x);
    return 0;
}

TEST(a_peer_that_dies_while_it_is_read_is_reported_as_dead)
{
    death *d = mmap(NULL, sizeof *d, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(d != MAP_FAILED);
    const ls_status status = ls_spawn(dies_while_it_is_read, d, 2);
    if (!d->remote) {
        CHECK_STATUS(status, LS_ERR_PEER);
        CHECK_CONTAINS(d->told, "rank 1");
        CHECK_CONTAINS(d->told, "SIGKILL");
    }
    CHECK(munmap(d, sizeof *d) == 0);
}

TEST_MAIN
