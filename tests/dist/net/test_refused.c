/* SPDX-License-Identifier: Apache-2.0 */
/* What ls_init says when the system refuses one rank of two memory, descriptors or shared memory:
 * each call fails in turn, until a job comes through. No rank waits for the one that failed. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <lockstep/lockstep.h>

#include "base/size.h"
#include "comm/core/group.h"
#include "comm/memory/heap.h"
#include "comm/runtime/init.h"
#include "comm/tune/tune.h"
#include "job/bootstrap/local_rendezvous.h"
#include "says.h"
#include "scratch.h"
#include "test.h"

#define LOOP test_build_path("tests/plugins/ls_backend_loop.so")

typedef enum fault {
    FAULT_MEMORY,
    FAULT_POLLER,
    FAULT_EVENT,
    FAULT_SHARED,
    FAULT_FOREIGN, /* the header of a peer's heap is somebody else's memory */
    FAULT_CONNECT,
    FAULT_CALLOC /* what compares the loaders of both ranks */
} fault;

/* Shared by the ranks and the test. */
static struct {
    ls_status (*scenario)(void); /* of both ranks, after ls_init; NULL: ls_init itself fails */
    fault kind;
    size_t least, most; /* bytes of the allocations that fail */
    int good;           /* calls of rank 1 before the one that fails */
    bool hit;
    char said[2][2048]; /* by each rank */
} * plan;

static ls__env table;
static _Atomic int calls;
static bool counting; /* calls may fail now */

static bool due(fault kind)
{
    if (!counting || plan->kind != kind || calls++ != plan->good) {
        return false;
    }
    plan->hit = true;
    return true;
}

static void *allocate(const ls__env *env, size_t bytes)
{
    (void)env;
    return bytes >= plan->least && bytes <= plan->most && due(FAULT_MEMORY)
               ? NULL
               : ls__env_posix()->allocate(ls__env_posix(), bytes);
}

static int poller_open(const ls__env *env)
{
    (void)env;
    return due(FAULT_POLLER) ? -EMFILE : ls__env_posix()->poller_open(ls__env_posix());
}

static int poller_add(const ls__env *env, int poller, int fd, uint64_t tag)
{
    (void)env;
    return due(FAULT_POLLER) ? -ENOSPC
                             : ls__env_posix()->poller_add(ls__env_posix(), poller, fd, tag);
}

static int event_open(const ls__env *env)
{
    (void)env;
    return due(FAULT_EVENT) ? -EMFILE : ls__env_posix()->event_open(ls__env_posix());
}

static int shm_map(const ls__env *env, int fd, size_t reserve, size_t phase, void **out)
{
    (void)env;
    const size_t header = ls__round_up(sizeof(ls__heap_header), LS__PAGE_ALIGN);
    if (reserve == header && due(FAULT_FOREIGN)) {
        *out = mmap(NULL, reserve, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        return 0;
    }
    return due(FAULT_SHARED) ? -ENOMEM
                             : ls__env_posix()->shm_map(ls__env_posix(), fd, reserve, phase, out);
}

static int tcp_connect(const ls__env *env, const char *address, int port, const char *from)
{
    (void)env;
    return due(FAULT_CONNECT) ? -ENETUNREACH
                              : ls__env_posix()->tcp_connect(ls__env_posix(), address, port, from);
}

static int shm_resize(const ls__env *env, int fd, size_t bytes)
{
    (void)env;
    return due(FAULT_SHARED) ? -ENOMEM : ls__env_posix()->shm_resize(ls__env_posix(), fd, bytes);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
void *__libc_calloc(size_t count, size_t bytes); /* the C library's own */

/* An element for each of the two ranks. */
void *calloc(size_t count, size_t bytes)
{
    return count == 2 && plan != NULL && plan->least <= bytes && due(FAULT_CALLOC)
               ? NULL
               : __libc_calloc(count, bytes);
}
#endif

static size_t little_space(const ls__env *env)
{
    (void)env;
    return (size_t)1 << 40;
}

/* Of both ranks; only rank 1's calls fail. */
static int init_one(void *arg)
{
    (void)arg;
    const int rank = atoi(getenv("RANK"));
    table = *ls__env_posix();
    if (rank == 1) {
        table.allocate = allocate;
        table.poller_open = poller_open;
        table.poller_add = poller_add;
        table.event_open = event_open;
        table.shm_map = shm_map;
        table.shm_resize = shm_resize;
        table.tcp_connect = tcp_connect;
        table.address_space = little_space;
    }
    counting = rank == 1 && plan->scenario == NULL;
    ls_status status = ls__init_with(&table, NULL);
    counting = rank == 1 && plan->scenario != NULL;
    if (status == LS_OK && plan->scenario != NULL) {
        status = plan->scenario();
        counting = false;
    } else if (status == LS_OK) {
        status = ls_barrier(ls_world(), NULL, NULL); /* which needs both */
    }
    if (status < 0 && plan->hit) {
        snprintf(plan->said[rank], sizeof plan->said[rank], "%s", ls_error_message());
    }
    return status == LS_OK && ls_finalize() == LS_OK ? 0 : 1;
}

static char all[1 << 16];

/* The launcher's cause is what rank 1 said. Before a rank has the board it can tell it nothing. */
static void check_cause(void)
{
    char said[301];
    snprintf(said, sizeof said, " failed: %.290s", plan->said[1]);
    if (strstr(said, "for the runtime") == NULL && strstr(said, "be the job's board") == NULL) {
        CHECK_CONTAINS(ls_error_message(), "ls_spawn: rank 1 (host");
        CHECK_CONTAINS(ls_error_message(), said);
    }
}

/* What both ranks say with ever more calls that are good, until both come through. */
static void collect_sizes(size_t least, size_t most, fault kind, const char *hosts,
                          ls_status (*scenario)(void))
{
    CHECK(setenv("LOCKSTEP_HOSTS", hosts, 1) == 0 && setenv("LOCKSTEP_TIMEOUT", "10", 1) == 0);
    plan = mmap(NULL, sizeof *plan, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(plan != MAP_FAILED);
    plan->kind = kind;
    plan->least = least;
    plan->most = most;
    plan->scenario = scenario;
    for (plan->good = 0; plan->good < 300; plan->good++) {
        plan->hit = false;
        plan->said[0][0] = plan->said[1][0] = '\0';
        const ls_status status = ls_spawn(init_one, NULL, 2);
        if (!plan->hit) {
            CHECK_OK(status);
            return;
        }
        CHECK((status < 0) == (plan->said[1][0] != '\0')); /* another way may have been found */
        if (status < 0 && scenario == NULL) {
            check_cause();
            CHECK_CONTAINS(plan->said[0], "rank 1 "); /* rank 0 reads it */
        }
        for (int rank = 0; rank < 2; rank++) {
            if (strstr(all, plan->said[rank]) == NULL) {
                strncat(all, plan->said[rank], sizeof all - strlen(all) - 1);
                strncat(all, "\n", sizeof all - strlen(all) - 1);
            }
        }
    }
    test_fail(__FILE__, __LINE__, "no job came through: %s", all);
}

static void collect(fault kind, const char *hosts, ls_status (*scenario)(void))
{
    collect_sizes(0, SIZE_MAX, kind, hosts, scenario);
}

TEST(memory_that_is_refused_to_ls_init_is_named)
{
    collect(FAULT_MEMORY, "64", NULL);
    CHECK_SAYS(all, "ls_init: no memory for ranks on other hosts");
    CHECK_SAYS(all, "ls_init: no memory for the cached state of rank %d");
    CHECK_SAYS(all, "ls_init: no memory for the transports");
    CHECK_SAYS(all, "ls_init: no memory for connections to %d ranks");
    CHECK_SAYS(all, "ls_init: no memory for a connection to rank %d");
    CHECK_SAYS(all, "ls_init: no memory (%zu bytes) for the times of the links");
    CHECK_SAYS(all, "ls_init: connecting to rank %d");
}

TEST(descriptors_that_are_refused_to_ls_init_are_named)
{
    collect(FAULT_POLLER, "64", NULL);
    CHECK_SAYS(all, "ls_init: cannot get a poller and memory for %d ranks: %s");
    CHECK_SAYS(all, "ls_init: cannot watch a connection: %s");
    CHECK_SAYS(all, "ls_init: cannot watch the doorbell: %s");
    collect(FAULT_EVENT, "64", NULL);
    CHECK_SAYS(all, "ls_init: cannot create the event that wakes this rank: %s");
}

TEST(a_rank_that_cannot_be_reached_is_named)
{
    collect(FAULT_CONNECT, "64", NULL);
    CHECK_SAYS(all, "ls_init: connecting to rank %d (%s)");
}

static ssize_t end_of_welcome(const ls__env *env, int fd, void *out, size_t bytes, int *got_fd)
{
    (void)env;
    return bytes == 1 ? 0 : ls__env_posix()->recv(ls__env_posix(), fd, out, bytes, got_fd);
}

static int refuse(const ls__env *env, int fd)
{
    (void)env, (void)fd;
    return -ECONNREFUSED;
}

/* `arg`: whether every connection is refused. */
static int meet_nobody(void *arg)
{
    table = *ls__env_posix();
    if (arg != NULL) {
        table.tcp_connected = refuse;
    } else {
        table.recv = end_of_welcome;
    }
    const ls_status status = ls__init_with(&table, NULL);
    snprintf(plan->said[atoi(getenv("RANK"))], sizeof plan->said[0], "%s", ls_error_message());
    return status == LS_OK && ls_finalize() == LS_OK ? 0 : 1;
}

static void meet(bool refused, const char *timeout)
{
    CHECK(setenv("LOCKSTEP_HOSTS", "64", 1) == 0 && setenv("LOCKSTEP_TIMEOUT", timeout, 1) == 0);
    plan = mmap(NULL, sizeof *plan, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(plan != MAP_FAILED);
    CHECK(ls_spawn(meet_nobody, refused ? plan : NULL, 2) < 0);
}

TEST(a_rank_whose_connections_end_before_their_welcome_is_named)
{
    meet(false, "20");
    check_cause();
    CHECK_SAYS(plan->said[1], "ls_init: the connection to rank %d broke while it was made, and "
                              "could not be made again (%s)");
}

TEST(a_rank_that_refuses_every_connection_is_named)
{
    meet(true, "6");
    CHECK_SAYS(
        plan->said[1],
        "ls_init: no connection between rank %d and rank %d within %.1f s: this rank listens on %s "
        "port %d; is that address reachable from the other host (firewall, LOCKSTEP_IFNAME)?%s%s");
    CHECK_SAYS(plan->said[1], "The last refusal:");
}

TEST(shared_memory_that_is_refused_to_ls_init_is_named)
{
    collect(FAULT_SHARED, "1", NULL);
    CHECK_SAYS(all,
               "ls_init: cannot reserve %zu MiB of address space for the shared heap of rank %d: "
               "%s%s; raise the limit (ulimit -v unlimited), or start fewer ranks");
    CHECK_SAYS(all, " (%zu MiB are left of the limit of virtual memory)");
    CHECK_SAYS(all, "ls_init: cannot map the heap of rank %d: %s");
    collect(FAULT_FOREIGN, "1", NULL);
    CHECK_SAYS(all, "ls_init: the memory that rank %d shared is not its heap (magic %08x, version "
                    "%u); do all ranks run the same build?");
}

/* ---- under another launcher ------------------------------------------------------------------ */

static ssize_t send_as_another_version(const ls__env *env, int fd, const void *in, size_t bytes,
                                       int pass_fd)
{
    ls__local_hello hello;
    (void)env;
    if (bytes == sizeof hello) {
        memcpy(&hello, in, bytes);
        snprintf(hello.version, sizeof hello.version, "0.0.9");
        in = &hello;
    }
    return ls__env_posix()->send(ls__env_posix(), fd, in, bytes, pass_fd);
}

/* As torchrun starts it. */
static pid_t start_rank(const char *rank, void (*give_fault)(void))
{
    const pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        setenv("RANK", rank, 1);
        table = *ls__env_posix();
        if (rank[0] == '1') {
            give_fault();
        }
        const ls_status status = ls__init_with(&table, NULL);
        snprintf(plan->said[atoi(rank)], sizeof plan->said[0], "%s", ls_error_message());
        _exit(status < 0);
    }
    return pid;
}

static void be_another_version(void)
{
    table.send = send_as_another_version;
}

static void have_no_event(void)
{
    table.event_open = event_open;
    counting = true;
}

/* Returns the process of rank 0; rank 1 has failed. */
static pid_t start_both(void (*give_fault)(void))
{
    char port[16];
    int status = 0;
    snprintf(port, sizeof port, "%d", ls__env_posix()->free_port(ls__env_posix()));
    plan = mmap(NULL, sizeof *plan, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(plan != MAP_FAILED);
    CHECK(setenv("WORLD_SIZE", "2", 1) == 0 && setenv("MASTER_ADDR", "127.0.0.1", 1) == 0);
    CHECK(setenv("MASTER_PORT", port, 1) == 0);
    plan->kind = FAULT_EVENT;
    const pid_t first = start_rank("0", give_fault), second = start_rank("1", give_fault);
    CHECK(waitpid(second, &status, 0) == second && WEXITSTATUS(status) == 1);
    return first;
}

/* Local rank 0 shall not wait for it until the deadline. */
TEST(a_rank_that_fails_after_it_met_local_rank_0_is_named_by_it)
{
    int status = 0;
    const pid_t first = start_both(have_no_event);
    CHECK(waitpid(first, &status, 0) == first && WEXITSTATUS(status) == 1);
    CHECK_SAYS(plan->said[1], "ls_init: cannot watch process %d, local rank 0: %s");
    CHECK_CONTAINS(plan->said[0], "rank 1 (host");
    CHECK_CONTAINS(plan->said[0], plan->said[1]);
}

TEST(a_rank_of_another_version_is_told_so_by_local_rank_0)
{
    int status = 0;
    const pid_t first = start_both(be_another_version);
    CHECK(kill(first, SIGKILL) == 0 && waitpid(first, &status, 0) == first);
    CHECK_SAYS(plan->said[1], "ls_init: this process uses a different version of Lockstep than "
                              "local rank 0 of this host (%s); start all ranks with the same "
                              "library");
}

/* ---- after ls_init --------------------------------------------------------------------------- */

static ls_status grow(void)
{
    void *memory = NULL;
    LS_TRY(ls_group_alloc(ls_world(), (size_t)512 << 20, &memory));
    return ls_group_dealloc(ls_world(), memory);
}

static ls_status coalesce(void)
{
    static float x[4096];
    void *bufs[2] = {x, x + 2048}; /* with a gap, so they are packed */
    const int64_t counts[2] = {100, 100};
    return ls_all_reduce_many(ls_world(), bufs, counts, 2, LS_FLOAT32, LS_SUM, NULL, NULL);
}

/* The heap of rank 1 must grow for one of them. */
static ls_status crowd(void)
{
    ls_group *groups[200];
    int made = 0;
    ls_status status = LS_OK;
    while (status == LS_OK && made < 200) {
        status = ls_group_new(ls_world(), NULL, 0, "part", &groups[made]);
        made += status == LS_OK;
    }
    while (made > 0) {
        (void)ls_group_free(groups[--made]);
    }
    return status;
}

static ls_status take_turns(void)
{
    ls_group *groups[2] = {ls_world(), NULL}, *turns = NULL;
    LS_TRY(ls_group_new(ls_world(), NULL, 0, "second", &groups[1]));
    const ls_status status = ls_group_round_robin(groups, 2, NULL, &turns);
    if (status == LS_OK) {
        LS_TRY(ls_group_free(turns));
    }
    LS_TRY(ls_group_free(groups[1]));
    return status;
}

static ls_status wrap(void)
{
    ls_module *net = ls_linear_new(7, 5, NULL);
    LS_TRY(ls_module_status(net));
    ls_module *ddp = ls_ddp_new(net, ls_world(), NULL);
    const ls_status status = ls_module_status(ddp);
    ls_module_free(ddp);
    return status;
}

TEST(what_is_refused_to_groups_is_named)
{
    collect(FAULT_SHARED, "1", grow);
    CHECK_SAYS(all, "cannot grow the shared heap from %zu to %zu MiB: %s");
    collect(FAULT_MEMORY, "1", coalesce);
    CHECK_SAYS(all, "%s on group \"%s\": rank %d has no memory to pack the buffers");
    collect(FAULT_MEMORY, "1", take_turns);
    CHECK_SAYS(all, "ls_group_round_robin: no memory for %d groups");
    collect(FAULT_SHARED, "1", crowd);
    CHECK_SAYS(all, "ls_group_new: rank %d has no shared memory left for the group; raise "
                    "LOCKSTEP_HEAP_RESERVE");
}

/* A loader that rank 0 feeds. */
static ls_status feed(void)
{
    ls_batch batch = {.size = sizeof batch};
    ls_loader *l = NULL;
    ls_dataset *d = ls_tensor_dataset_new(ls_zeros(LS_SHAPE(4, 2), LS_FLOAT32),
                                          ls_zeros(LS_SHAPE(4), LS_INT32));
    ls_sampler *s = ls_sampler_new(4, NULL);
    ls_status status = LS_STATUS_OF(
        l = ls_loader_new(d, s,
                          LS_OPTIONS(ls_loader_options, .feed = LS_FEED_SCATTER, .prefetch = 0)));
    if (status == LS_OK && !ls_loader_next(l, &batch)) {
        status = ls_loader_status(l);
    }
    ls_loader_free(l);
    ls_sampler_free(s);
    ls_dataset_free(d);
    return status;
}

TEST(memory_that_is_refused_to_a_loader_that_rank_0_feeds_is_named)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    SKIP("a sanitizer has its own calloc");
#endif
    collect_sizes(32, SIZE_MAX, FAULT_CALLOC, "1", feed);
    CHECK_SAYS(all, "its loader has failed");
}

static ls_status train_with(int zero)
{
    ls_module *ddp =
        ls_ddp_new(ls_linear_new(7, 5, NULL), ls_world(), LS_OPTIONS(ls_ddp_options, .zero = zero));
    ls_status status = ls_module_status(ddp);
    for (int i = 0; status == LS_OK && i < 2; i++) {
        LS_SCOPE;
        status = ls_backward(ls_mean(ls_forward(ddp, ls_ones(LS_SHAPE(2, 7), LS_FLOAT32))));
    }
    if (status == LS_OK) { /* else the other rank may be elsewhere */
        ls_module_free(ddp);
    }
    return status;
}

static ls_status train(void)
{
    return train_with(0);
}

static ls_status train_with_zero(void)
{
    return train_with(1);
}

TEST(memory_that_is_refused_to_data_parallel_modules_is_named)
{
    collect(FAULT_MEMORY, "1", wrap);
    CHECK_SAYS(all, "no memory for a table of %d buffers");
    const size_t table_bytes = 2 * sizeof(void *); /* of one region */
    collect_sizes(table_bytes, table_bytes, FAULT_MEMORY, "1", train);
    CHECK_SAYS(all, "ddp: no memory for a table of %d regions");
    const size_t of_bucket = sizeof(ls_work *) + sizeof(bool);
    collect_sizes(of_bucket, of_bucket, FAULT_MEMORY, "1", train_with_zero);
    CHECK_SAYS(all, "ddp: no memory for a table of buckets");
}

/* ---- between hosts --------------------------------------------------------------------------- */

static ls_status part(void)
{
    ls_group *g = NULL;
    char text[4096];
    LS_TRY(ls_group_new(ls_world(), NULL, 0, "part", &g));
    const ls_status status = ls_group_get_tuning(g, text, sizeof text);
    const ls_status freed = ls_group_free(g);
    return status < 0 ? status : freed;
}

TEST(memory_that_is_refused_to_a_group_of_several_hosts_is_named)
{
    const size_t bytes = sizeof(ls__tune_table);
    collect_sizes(bytes, bytes, FAULT_MEMORY, "64", part);
    CHECK_SAYS(all, "group \"%s\": no memory (%zu bytes) for its choice of algorithms");
}

static ls_status other_backend(void)
{
    ls_group *g = NULL;
    void *memory = NULL;
    LS_TRY(ls_group_create(ls_world(),
                           LS_OPTIONS(ls_group_options, .name = "part", .backend = LOOP), &g));
    const ls_status status = ls_group_alloc(g, 100, &memory);
    if (memory != NULL) {
        (void)ls_group_dealloc(g, memory);
    }
    const ls_status freed = ls_group_free(g);
    return status < 0 ? status : freed;
}

TEST(memory_that_is_refused_to_a_backend_is_named)
{
    CHECK(setenv("LOOP_PROMISES", "registered", 1) == 0);
    collect(FAULT_MEMORY, "1", other_backend);
    CHECK_SAYS(all, "no memory for backend \"%s\"");
    CHECK_SAYS(all, "no memory for %zu bytes of backend \"%s\"");
    CHECK_SAYS(all, "group \"%s\": rank %d has no memory for its backend");
}

static ls_status receive(void)
{
    static float x[300000];
    return ls_all_reduce(ls_world(), x, x, 300000, LS_FLOAT32, LS_SUM, NULL, NULL);
}

/* Measured links may choose a program that needs no such memory. Messages that come before they are
 * expected take less: without memory for one, it is asked for again later. */
TEST(memory_that_is_refused_to_a_collective_between_hosts_is_named)
{
    CHECK(setenv("LOCKSTEP_TUNE", "off", 1) == 0);
    collect_sizes((size_t)512 << 10, (size_t)4 << 20, FAULT_MEMORY, "64", receive);
    CHECK_SAYS(all, "no memory to receive into");
}

/* ---- traces of several hosts ----------------------------------------------------------------- */

static void keep_warning(ls_log_level level, const char *text, void *arg)
{
    char *to = plan->said[atoi(getenv("RANK"))];
    const size_t used = strlen(to);
    (void)level;
    (void)arg;
    snprintf(to + used, sizeof plan->said[0] - used, "%s\n", text);
}

static int no_memory_for_traces(const ls__env *env, const char *name, size_t bytes)
{
    (void)env;
    return counting && strcmp(name, "lockstep-trace") == 0
               ? -ENOMEM
               : ls__env_posix()->shm_create(ls__env_posix(), name, bytes);
}

/* One end of a job's trace, as on hosts of their own: by a copy of the board, on which the other
 * rank is none. */
static int call_from_afar(void (*end)(ls__comm *comm), const char *abort_for)
{
    const int rank = atoi(getenv("RANK"));
    table = *ls__env_posix();
    table.shm_create = no_memory_for_traces;
    ls_set_log_callback(keep_warning, NULL);
    CHECK_OK(ls__init_with(&table, NULL));
    ls__comm *comm = ls_world()->comm;
    ls__board *board = comm->board, *copy = malloc(ls__board_bytes(2));
    CHECK(copy != NULL);
    memcpy(copy, board, ls__board_bytes(2));
    copy->rank[1 - rank].world_rank = 10;
    if (abort_for != NULL) {
        CHECK_OK(ls_group_abort(ls_world(), abort_for));
    }
    counting = true;
    comm->board = copy;
    end(comm);
    comm->board = board;
    free(copy);
    return 1;
}

static int leave_a_trace(void *arg)
{
    (void)arg;
    return call_from_afar(ls__comm_trace_leave, NULL);
}

static int compare_clocks(void *arg)
{
    (void)arg;
    return call_from_afar(ls__comm_trace_begin, "the test ends it");
}

TEST(traces_of_hosts_that_cannot_be_joined_are_warned_of)
{
    plan = mmap(NULL, sizeof *plan, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(plan != MAP_FAILED);
    scratch_begin();
    CHECK(setenv("LOCKSTEP_HOSTS", "64", 1) == 0 && setenv("LOCKSTEP_TIMEOUT", "10", 1) == 0);
    CHECK(setenv("LOCKSTEP_TRACE", scratch_at("trace.json"), 1) == 0);
    CHECK(ls_spawn(leave_a_trace, NULL, 2) < 0);
    CHECK_SAYS(plan->said[0], "the traces of the hosts could not be joined: %s");
    CHECK_SAYS(plan->said[0], "no memory for the %llu bytes of a rank's trace");
    CHECK(ls_spawn(compare_clocks, NULL, 2) < 0);
    snprintf(all, sizeof all, "%s%s", plan->said[0], plan->said[1]); /* one of them may end first */
    CHECK_SAYS(all, "the clocks of the hosts could not be compared: %s");
    scratch_end();
}

TEST_MAIN
