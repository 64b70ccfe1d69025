/* SPDX-License-Identifier: Apache-2.0 */
/* DIST_TEST: the body of a test on N ranks, each a process started by ls_spawn; or, with
 * TEST_MPI=openmpi or mpich, by that MPI's mpirun, with their data over it. With TEST_DEVICE
 * tensors are made on that device; with TEST_BITS each rank adds a line to that file, which tells
 * what elements it has read, so that two runs can be compared. */
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <lockstep/lockstep.h>

#include "base/crc32c.h"
#include "comm/core/comm.h"
#include "comm/core/group.h"
#include "comm/core/progress_lock.h"
#include "comm/core/remote_rank.h"
#include "comm/transport/mpi.h"
#include "elements.h"
#include "harness.h"

static uint32_t read_crc; /* of all elements that this rank's test has read */
static uint64_t read_bytes;

void test_note_elements(const void *at, size_t bytes)
{
    read_crc = ls__crc32c(read_crc, at, bytes);
    read_bytes += bytes;
}

static void tell_bits(const test_case *test)
{
    const char *path = getenv("TEST_BITS");
    char line[256];
    const int length = snprintf(line, sizeof line, "%s rank %d: %llu bytes, crc %08x\n", test->name,
                                ls_rank(), (unsigned long long)read_bytes, (unsigned)read_crc);
    const int file = path != NULL ? open(path, O_WRONLY | O_APPEND | O_CREAT, 0644) : -1;
    CHECK(path == NULL || write(file, line, (size_t)length) == length);
    CHECK(path == NULL || close(file) == 0);
}

/* Where each rank has a pretended host of its own under mpirun, the bytes of its collectives left
 * it over MPI, not over TCP or shared memory. */
static void check_bytes_over_mpi(void)
{
    const ls_group *world = ls_world();
    ls_counters counters = {.size = sizeof counters};
    if (getenv("TEST_RANK_OF") != NULL && getenv("LOCKSTEP_HOSTS") != NULL) {
        CHECK_OK(ls_group_get_counters(world, &counters));
        ls__progress_take(world->comm);
        const uint64_t sent = ls__mpi_bytes_sent(world->comm->remote->mpi);
        ls__progress_release(world->comm);
        const uint64_t ranks =
            (uint64_t)ls_world_size(); /* of which a test may write to itself, too */
        CHECK(sent * ranks >= counters.bytes_sent * (ranks - 1));
    }
}

static int rank_main(void *arg)
{
    const test_case *test = arg;
    CHECK_OK(ls_init(NULL));
    CHECK_INT(ls_world_size(), test->ranks);
    const char *device = getenv("TEST_DEVICE");
    CHECK_OK(device != NULL ? ls_device_use(device) : LS_OK);
    test->body();
    tell_bits(test);
    check_bytes_over_mpi();
    CHECK_OK(ls_finalize());
    return 0;
}

int test_rank(const test_case *test)
{
    return rank_main((void *)(uintptr_t)test);
}

/* mpirun starts this program again, once a rank, with TEST_RANK_OF instead of TEST_MPI. Does not
 * return. */
static void run_under_mpirun(const test_case *test, const char *mpi)
{
    char command[2048];
    const bool open = strcmp(mpi, "openmpi") == 0;
    snprintf(command, sizeof command,
             "unset TEST_MPI; export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
             "OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_orte_execute_quiet=1 LOCKSTEP_DATA_PLANE=mpi "
             "TEST_RANK_OF=%s "
             "LOCKSTEP_MPI=%s; exec mpirun.%s %s -n %d /proc/%d/exe",
             test->name,
             test_build_path(open ? "src/comm/mpi/ls_backend_mpi_openmpi.so"
                                  : "src/comm/mpi/ls_backend_mpi_mpich.so"),
             mpi, open ? "--oversubscribe" : "", test->ranks, (int)getppid());
    (void)execl("/bin/sh", "sh", "-c", command, NULL);
    _exit(127);
}

int test_run_ranks(const test_case *test)
{
    const char *mpi = getenv("TEST_MPI");
    if (mpi != NULL) {
        run_under_mpirun(test, mpi);
    }
    ls_status status = ls_spawn(rank_main, (void *)(uintptr_t)test, test->ranks);
    if (test_skips() == test->ranks) { /* of some alone: another failed, and that counts */
        return TEST_EXIT_SKIPPED;
    }
    if (status != LS_OK) {
        printf("%s: %s\n", ls_status_name(status), ls_error_message());
    }
    return status == LS_OK ? 0 : 1;
}
