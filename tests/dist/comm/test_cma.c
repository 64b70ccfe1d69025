/* Private buffers that peers copy from and to where they lie (memory/cma.h): chosen by measured
 * times, refused, not mapped, after a rank has given up, and while one dies. That results are the
 * same: test_collectives. */
#include "says.h"
#include "test.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <lockstep/comm.h>

#include "comm/engine/exec.h"
#include "comm/engine/progress_lock.h"
#include "comm/group/group.h"
#include "comm/memory/cma.h"

#define COUNT 1000003 /* 4 MB, and no whole number of lines */
#define BYTES (COUNT * sizeof(float))

static ls__comm *comm(void)
{
    return ls_world()->comm;
}

static ls__heap_header *own_header(void)
{
    return ls__heap_header_of(&comm()->heap, comm()->heap.rank);
}

/* Whether all ranks of the world share memory and this one may copy. */
static bool is_possible(void)
{
    return !ls_world()->has_remote && comm()->can_cma;
}

static void force(ls__memory way)
{
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
    comm()->forced = ls_world()->has_remote ? LS__MEMORY_UNDECIDED : (int)way;
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
}

static float *mapped(void)
{
    float *x = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(x != MAP_FAILED);
    return x;
}

static float value_of(int rank, int64_t i)
{
    return (float)(i % 1000 * (rank + 1));
}

/* Checks a broadcast from this root; returns whether it was staged. */
static bool broadcast_stages(float *x, int root)
{
    const uint64_t slices = ls_world()->slices;
    for (int64_t i = 0; i < COUNT; i++) {
        x[i] = value_of(ls_rank(), i);
    }
    CHECK_OK(ls_broadcast(ls_world(), x, COUNT, LS_FLOAT32, root, NULL, NULL));
    for (int64_t i = 0; i < COUNT; i++) {
        CHECK(x[i] == value_of(root, i));
    }
    return ls_world()->slices != slices;
}

DIST_TEST(what_is_copied_by_the_kernel_takes_no_stage, 5)
{
    float *x = mapped();
    for (int root = 0; root < 5; root++) {
        force(LS__MEMORY_STAGED);
        CHECK(broadcast_stages(x, root) != ls_world()->has_remote);
        force(LS__MEMORY_CMA);
        CHECK(broadcast_stages(x, root) == (!ls_world()->has_remote && !comm()->can_cma));
    }
    force(LS__MEMORY_UNDECIDED);
}

DIST_TEST(both_ways_are_tried_and_then_the_faster_one_is_taken_by_all, 3)
{
    float *x = mapped();
    int by_cma = 0;
    for (int k = 0; k < 20; k++) {
        by_cma += !broadcast_stages(x, k % 3);
    }
    if (is_possible()) {
        const ls__two_ways *ways = &ls_world()->exec->ways[0][21]; /* 2^21 to 2^22 bytes */
        CHECK(by_cma >= 3 && by_cma <= 17);
        CHECK(atomic_load(&ways->trials[0]) == 3 && atomic_load(&ways->trials[1]) == 3);
        CHECK(atomic_load(&ways->ns[0]) > 1 && atomic_load(&ways->ns[1]) > 1);
    }
    int64_t most = by_cma, least = by_cma;
    CHECK_OK(ls_all_reduce(ls_world(), &most, &most, 1, LS_INT64, LS_MAX, NULL, NULL));
    CHECK_OK(ls_all_reduce(ls_world(), &least, &least, 1, LS_INT64, LS_MIN, NULL, NULL));
    CHECK(most == least);
}

/* What all have measured decides: here one rank only finds stages slow. */
DIST_TEST(the_slowest_rank_of_each_way_decides, 3)
{
    float *x = mapped();
    for (int k = 0; k < 6; k++) {
        (void)broadcast_stages(x, 0);
    }
    int right = 0; /* one operation in 128 explores */
    for (int k = 0; k < 12 && is_possible(); k++) {
        ls__two_ways *ways = &ls_world()->exec->ways[0][21];
        const bool slow = k % 2 == 0 && ls_rank() == 1;
        CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
        atomic_store(&ways->ns[0], slow ? 3000000u : 1000000u);
        atomic_store(&ways->ns[1], 2000000u);
        CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
        right += broadcast_stages(x, 0) == (k % 2 == 1);
    }
    CHECK(!is_possible() || right >= 11);
}

DIST_TEST(all_stage_where_one_rank_may_not_copy, 3)
{
    float *x = mapped();
    comm()->can_cma = comm()->can_cma && ls_rank() != 1;
    force(LS__MEMORY_CMA);
    CHECK(broadcast_stages(x, 0) != ls_world()->has_remote);
    force(LS__MEMORY_UNDECIDED);
}

static char logged[1024];

static void keep(ls_log_level level LS__UNUSED, const char *text, void *arg LS__UNUSED)
{
    (void)snprintf(logged, sizeof logged, "%s", text);
}

DIST_TEST(a_process_that_cannot_prove_to_be_the_peer_is_not_touched, 3)
{
    const int64_t pid = own_header()->pid;
    const bool could = is_possible();
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
    if (ls_rank() == 1) { /* as in a container of its own: that number is another process here */
        own_header()->pid = getppid();
    }
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
    ls_set_log_callback(keep, NULL);
    comm()->runtime->log_level = LS_LOG_INFO;
    ls__cma_find_out(comm());
    ls_set_log_callback(NULL, NULL);
    CHECK(!could || comm()->can_cma == (ls_rank() == 1));
    if (could && ls_rank() != 1) {
        CHECK_SAYS(logged,
                   "private buffers are staged: this process may not read and write the memory "
                   "of rank %d");
    }
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
    own_header()->pid = pid;
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
    ls__cma_find_out(comm());
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL)); /* nobody ends while another one looks */
    CHECK(is_possible() == could);
    CHECK(setenv("LOCKSTEP_CMA", "off", 1) == 0);
    ls__cma_find_out(comm());
    CHECK(!comm()->can_cma);
}

/* The second half of the root's buffer, or the first one of the peer's, is not mapped. */
static void broadcast_fails(bool of_root)
{
    const long page = sysconf(_SC_PAGESIZE);
    const size_t half = BYTES / 2 / (size_t)page * (size_t)page;
    float *x = mapped();
    ls_group *group = NULL;
    CHECK_OK(ls_group_new(ls_world(), NULL, 0, "copies", &group));
    force(LS__MEMORY_CMA);
    if (is_possible() && ls_rank() == (of_root ? 0 : 1)) {
        CHECK(munmap((char *)x + (of_root ? half : 0), half) == 0);
    }
    if (is_possible()) {
        CHECK_STATUS(ls_broadcast(group, x, COUNT, LS_FLOAT32, 0, NULL, NULL), LS_ERR_SYSTEM);
        CHECK_SAYS(
            ls_error_message(),
            "rank %d cannot %s a private buffer of %s: %s; was a buffer freed during the "
            "operation, or is it shorter than the count says? LOCKSTEP_CMA=off stages private "
            "buffers instead");
        CHECK_CONTAINS(ls_error_message(), of_root ? "read a private buffer of rank 0"
                                                   : "write a private buffer of rank 1");
    }
    force(LS__MEMORY_UNDECIDED);
    (void)ls_group_free(group); /* says again why it failed */
}

/* clang-format off */
DIST_TEST(a_source_that_is_not_mapped_is_an_error_on_all_ranks, 2) { broadcast_fails(true); }
DIST_TEST(a_destination_that_is_not_mapped_is_an_error_on_all_ranks, 2) { broadcast_fails(false); }
/* clang-format on */

/* Rank 0 writes to rank 1, whose lease is closed, open for another operation, open, and closed. */
DIST_TEST(nobody_writes_without_an_open_lease, 2)
{
    static float x[1000], from[1000] = {7};
    uint64_t at = (uint64_t)(uintptr_t)x;
    CHECK_OK(ls_broadcast(ls_world(), &at, 1, LS_UINT64, 1, NULL, NULL));
    static const struct {
        uint64_t open, wanted;
        bool written;
    } rows[] = {{0, 5, false}, {4, 5, false}, {5, 5, true}, {0, 5, false}};
    for (size_t k = 0; k < sizeof rows / sizeof *rows && is_possible(); k++) {
        x[0] = 0;
        if (ls_rank() == 1 && rows[k].open != 0) {
            ls__cma_open(ls_world(), rows[k].open);
        }
        CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
        if (ls_rank() == 0) {
            const ls__cma_result result =
                ls__cma_write(ls_world(), 1, at, from, sizeof from, rows[k].wanted);
            CHECK(result == (rows[k].written ? LS__CMA_DONE : LS__CMA_LATER));
        }
        CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
        ls__cma_close(ls_world(), 0);
        CHECK(ls_rank() == 0 || x[0] == (rows[k].written ? 7.0f : 0.0f));
        CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
    }
}

/* ---- deaths ------------------------------------------------------------------------------- */

typedef struct death { /* shared between ranks */
    bool possible;
    int victim;
    char told[2][1024];
} death;

static void *kill_soon(void *arg)
{
    (void)usleep((useconds_t)(uintptr_t)arg);
    (void)raise(SIGKILL);
    return NULL;
}

static int dies_in_a_copy(void *arg)
{
    death *d = arg;
    CHECK_OK(ls_init(NULL));
    float *x = mapped();
    d->possible = is_possible();
    force(LS__MEMORY_CMA);
    pthread_t thread;
    if (ls_rank() == d->victim) {
        CHECK(pthread_create(&thread, NULL, kill_soon, (void *)(uintptr_t)20000) == 0);
    }
    ls_status status = LS_OK;
    while (status == LS_OK) {
        status = ls_broadcast(ls_world(), x, COUNT, LS_FLOAT32, 0, NULL, NULL);
    }
    CHECK_STATUS(status, LS_ERR_PEER);
    (void)snprintf(d->told[ls_rank()], sizeof d->told[0], "%s", ls_error_message());
    return 0;
}

TEST(a_rank_that_dies_while_it_copies_or_is_copied_is_reported_as_dead)
{
    death *d = mmap(NULL, sizeof *d, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(d != MAP_FAILED);
    for (int k = 0; k < 6; k++) {
        d->victim = k % 2;
        CHECK_STATUS(ls_spawn(dies_in_a_copy, d, 2), LS_ERR_PEER);
        CHECK_CONTAINS(d->told[1 - d->victim], d->victim == 0 ? "rank 0" : "rank 1");
        CHECK_CONTAINS(d->told[1 - d->victim], "SIGKILL");
    }
    CHECK(munmap(d, sizeof *d) == 0);
}

/* The root is stopped somewhere in a copy; rank 1 gives up, uses its buffer again, and lets it go
 * on. */
typedef struct stop { /* shared between ranks */
    pid_t root;
    bool possible, untouched;
} stop;

static int root_is_stopped(void *arg)
{
    stop *s = arg;
    CHECK_OK(ls_init(NULL));
    float *x = mapped();
    force(LS__MEMORY_CMA);
    s->possible = is_possible();
    if (ls_rank() == 0) {
        s->root = getpid();
    }
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
    if (ls_rank() == 1 && fork() == 0) {
        (void)usleep(20000);
        _exit(kill(s->root, SIGSTOP));
    }
    ls_status status = LS_OK;
    while (status == LS_OK) {
        status = ls_broadcast(ls_world(), x, COUNT, LS_FLOAT32, 0,
                              LS_OPTIONS(ls_collective_options, .timeout_ms = 500), NULL);
    }
    if (ls_rank() == 1) {
        CHECK_STATUS(status, LS_ERR_TIMEOUT);
        memset(x, 0xa5, BYTES);
        CHECK(kill(s->root, SIGCONT) == 0);
        (void)usleep(200000);
        const unsigned char *byte = (const unsigned char *)x;
        s->untouched = true;
        for (size_t i = 0; i < BYTES; i++) {
            s->untouched = s->untouched && byte[i] == 0xa5;
        }
    }
    return 0;
}

TEST(a_root_that_goes_on_late_does_not_write_to_a_rank_that_has_given_up)
{
    stop *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(s != MAP_FAILED);
    for (int k = 0; k < 3; k++) {
        s->untouched = false;
        (void)ls_spawn(root_is_stopped, s, 2);
        CHECK(s->untouched);
    }
    CHECK(munmap(s, sizeof *s) == 0);
}

/* ---- waiting for a lease --------------------------------------------------------------------- */

#define HOLD_US 20000
static _Atomic bool holds;

/* Keeps this rank from opening its lease for a while. */
static void *hold_progress(void *of)
{
    ls__progress_take(of);
    atomic_store(&holds, true);
    usleep(HOLD_US);
    ls__progress_release(of);
    return NULL;
}

static double late_broadcast(float *x)
{
    pthread_t thread;
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
    const double begun = ls_time();
    if (ls_rank() == 1) {
        atomic_store(&holds, false);
        CHECK(pthread_create(&thread, NULL, hold_progress, comm()) == 0);
        while (!atomic_load(&holds)) {
            usleep(100);
        }
    }
    CHECK_OK(ls_broadcast(ls_world(), x, COUNT, LS_FLOAT32, 0, NULL, NULL));
    if (ls_rank() == 1) {
        CHECK(pthread_join(thread, NULL) == 0);
    }
    return ls_time() - begun;
}

/* The shortest of several counts: a root that nobody wakes sleeps for LS__CHECK_NS each time. */
DIST_TEST(a_root_that_sleeps_is_woken_by_the_peer_that_opens_its_lease, 2)
{
    float *x = mapped();
    double least = 1.0;
    force(LS__MEMORY_CMA);
    for (int k = 0; k < 8; k++) {
        const double took = late_broadcast(x);
        least = took < least ? took : least;
    }
    force(LS__MEMORY_UNDECIDED);
    CHECK(least < LS__CHECK_NS * 1e-9);
}

TEST_MAIN
