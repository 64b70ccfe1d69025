/* What ls_init says when the system refuses one rank of two memory, descriptors or shared memory: each
 * call fails in turn, until a job comes through. No rank waits for the one that failed. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <lockstep/lockstep.h>

#include "comm/engine/init.h"
#include "comm/tune/tune.h"
#include "says.h"
#include "test.h"

#define LOOP test_build_path("tests/plugins/ls_backend_loop.so")

typedef enum fault { FAULT_MEMORY, FAULT_POLLER, FAULT_EVENT, FAULT_SHARED } fault;

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
    return due(FAULT_SHARED) ? -ENOMEM
                             : ls__env_posix()->shm_map(ls__env_posix(), fd, reserve, phase, out);
}

static int shm_resize(const ls__env *env, int fd, size_t bytes)
{
    (void)env;
    return due(FAULT_SHARED) ? -ENOMEM : ls__env_posix()->shm_resize(ls__env_posix(), fd, bytes);
}

static size_t little_space(const ls__env *env)
{
    (void)env;
    return (size_t)1 << 40;
}

/* Of both ranks; only rank 1's calls fail. */
static int init_one(void *arg)
{
    (void)arg;
    table = *ls__env_posix();
    if (atoi(getenv("RANK")) == 1) {
        table.allocate = allocate;
        table.poller_open = poller_open;
        table.poller_add = poller_add;
        table.event_open = event_open;
        table.shm_map = shm_map;
        table.shm_resize = shm_resize;
        table.address_space = little_space;
    }
    counting = plan->scenario == NULL;
    ls_status status = ls__init_with(&table, NULL);
    if (status == LS_OK && plan->scenario != NULL) {
        counting = true;
        status = plan->scenario();
        counting = false;
    }
    if (status < 0 && plan->hit) {
        const int rank = atoi(getenv("RANK"));
        snprintf(plan->said[rank], sizeof plan->said[rank], "%s", ls_error_message());
    }
    return status == LS_OK && ls_finalize() == LS_OK ? 0 : 1;
}

static char all[1 << 16];

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

TEST(shared_memory_that_is_refused_to_ls_init_is_named)
{
    collect(FAULT_SHARED, "1", NULL);
    CHECK_SAYS(all,
               "ls_init: cannot reserve %zu MiB of address space for the shared heap of rank %d: "
               "%s%s; raise the limit (ulimit -v unlimited), or start fewer ranks");
    CHECK_SAYS(all, " (%zu MiB are left of the limit of virtual memory)");
    CHECK_SAYS(all, "ls_init: cannot map the heap of rank %d: %s");
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
}

TEST(memory_that_is_refused_to_data_parallel_modules_is_named)
{
    collect(FAULT_MEMORY, "1", wrap);
    CHECK_SAYS(all, "no memory for a table of %d buffers");
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

TEST(memory_that_is_refused_to_a_collective_between_hosts_is_named)
{
    collect_sizes((size_t)128 << 10, (size_t)4 << 20, FAULT_MEMORY, "64", receive);
    CHECK_SAYS(all, "no memory to receive into");
}

TEST_MAIN
