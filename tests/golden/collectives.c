/* SPDX-License-Identifier: Apache-2.0 */
/* Mistakes with runtimes, groups, operations and the store in a world of one. */
#include <sys/wait.h>

#include "golden.h"

static float buf[16];

#define SUM(group, b, count, dtype, op, ...)                                                       \
    ls_all_reduce(group, b, b, count, dtype, op, LS_OPTIONS(ls_collective_options, __VA_ARGS__),   \
                  NULL)

static void golden_operator(void *into, const void *right, int64_t count, ls_dtype dtype, void *arg)
{
    (void)into;
    (void)right;
    (void)count;
    (void)dtype;
    (void)arg;
}

GOLDEN(arguments_of_operations)
{
    char text[16];
    SHOW(ls_all_reduce(NULL, buf, buf, 4, LS_FLOAT32, LS_SUM, NULL, NULL));
    SHOW(ls_all_reduce(ls_world(), NULL, NULL, 4, LS_FLOAT32, LS_SUM, NULL, NULL));
    SHOW(ls_all_reduce(ls_world(), buf, buf, -1, LS_FLOAT32, LS_SUM, NULL, NULL));
    SHOW(ls_all_reduce(ls_world(), buf, buf, 4, (ls_dtype)42, LS_SUM, NULL, NULL));
    SHOW(ls_all_reduce(ls_world(), buf, buf, 4, LS_FLOAT32, (ls_reduce_op)42, NULL, NULL));
    SHOW(ls_all_reduce(ls_world(), buf, buf, 4, LS_FLOAT32, LS_BAND, NULL, NULL));
    SHOW(ls_all_reduce(ls_world(), buf, buf, 4, LS_BOOL, LS_AVG, NULL, NULL));
    SHOW(SUM(ls_world(), buf, 4, LS_FLOAT32, LS_MAX, .divisor = 3));
    SHOW(SUM(ls_world(), buf, 4, LS_FLOAT32, LS_SUM, .algorithm = "butterfly"));
    SHOW(SUM(ls_world(), buf, 4, LS_FLOAT32, LS_SUM, .timeout_ms = -5));
    SHOW(SUM(ls_world(), buf, 4, LS_FLOAT32, LS_SUM, .stream = (ls_stream *)(void *)buf));
    SHOW(ls_broadcast(ls_world(), buf, 4, LS_FLOAT32, 7, NULL, NULL));
    SHOW(ls_scan(ls_world(), buf, buf + 4, 4, LS_FLOAT32, LS_AVG, NULL, NULL));
    SHOW(ls_send(ls_world(), buf, 4, LS_FLOAT32, 3, 0, NULL, NULL));
    SHOW(ls_recv(ls_world(), buf, 4, LS_FLOAT32, 0, -1, NULL, NULL));
    SHOW(ls_work_wait(NULL));
    SHOW(ls_work_test(NULL));
    SHOW(ls_work_wait_for(NULL, 5));
    SHOW(ls_work_abort(NULL, "why"));
    SHOW(ls_work_on_done(NULL, NULL, NULL));
    SHOW(ls_stop_agree(ls_world(), NULL));
    ls_reduce_op op = LS_SUM;
    SHOW(ls_reduce_op_new(NULL, NULL, "x", &op));
    SHOW(ls_reduce_op_new(golden_operator, NULL, "", &op));
    SHOW(ls_reduce_op_new(golden_operator, NULL, "x", NULL));
    SHOW(ls_reduce_op_free(LS_SUM));
    SHOW(ls_reduce_op_fail("why"));
    for (int i = 0; i < 64; i++) {
        MUST(ls_reduce_op_new(golden_operator, NULL, "one of many", &op));
    }
    SHOW(ls_reduce_op_new(golden_operator, NULL, "x", &op));
    SHOW(SUM(ls_world(), buf, 4, LS_FLOAT32, op, .algorithm = "ring"));
    SHOW(SUM(ls_world(), buf, 4, LS_INT32, LS_PREMUL_SUM, .factor = 0.5));
    SHOW(ls_group_set_channels(NULL, 1));
    SHOW(ls_group_set_channels(ls_world(), 5));
    SHOW(ls_group_get_tuning(NULL, text, sizeof text));
    SHOW(ls_group_get_tuning(ls_world(), NULL, 0));
}

GOLDEN(arguments_of_unequal_blocks)
{
    static const int64_t four[] = {4}, three[] = {3}, none[] = {-1};
    ls_group *w = ls_world();
    SHOW(ls_all_gather_v(w, buf, 4, buf + 4, NULL, NULL, LS_FLOAT32, NULL, NULL));
    SHOW(ls_all_gather_v(w, buf, 4, buf + 4, none, NULL, LS_FLOAT32, NULL, NULL));
    SHOW(ls_all_gather_v(w, buf, 4, NULL, four, NULL, LS_FLOAT32, NULL, NULL));
    SHOW(ls_all_gather_v(w, NULL, 4, buf + 4, four, NULL, LS_FLOAT32, NULL, NULL));
    SHOW(ls_all_to_all_v(w, NULL, four, NULL, buf, four, NULL, LS_FLOAT32, NULL, NULL));
    SHOW(ls_reduce_scatter_v(w, buf, four, NULL, NULL, LS_FLOAT32, LS_SUM, NULL, NULL));
    SHOW(ls_scatter_v(w, buf, three, NULL, buf + 4, 4, LS_FLOAT32, 0, NULL, NULL));
    SHOW(ls_all_to_all_v(w, buf, four, NULL, buf + 4, three, NULL, LS_FLOAT32, NULL, NULL));
    SHOW(ls_all_to_all_v(w, buf, four, three, buf, four, NULL, LS_FLOAT32, NULL, NULL));
}

GOLDEN(buffers_that_overlap)
{
    static const int64_t four[] = {4};
    ls_group *w = ls_world();
    SHOW(ls_all_gather(w, buf + 1, buf, 4, LS_FLOAT32, NULL, NULL));
    SHOW(ls_reduce_scatter_v(w, buf, four, NULL, buf + 3, LS_FLOAT32, LS_SUM, NULL, NULL));
    SHOW(ls_all_to_all(w, buf, buf + 2, 4, LS_FLOAT32, NULL, NULL));
}

static void ended(void *arg, ls_status status)
{
    (void)arg;
    (void)status;
}

GOLDEN(handles)
{
    ls_group *g = NULL;
    ls_work *work = NULL;
    MUST(ls_group_new(ls_world(), NULL, 0, "part", &g));
    MUST(ls_recv(g, buf, 4, LS_FLOAT32, 0, 3, LS_OPTIONS(ls_collective_options, .tag = "mail"),
                 &work));
    SHOW(ls_work_wait_for(work, -1));
    SHOW(ls_work_wait_for(work, 1));
    SHOW(ls_work_on_done(work, NULL, NULL));
    MUST(ls_work_on_done(work, ended, NULL));
    SHOW(ls_work_on_done(work, ended, NULL));
    MUST(ls_work_abort(work, "the message is late"));
    SHOW(ls_work_wait(work));
    MUST(ls_group_new(ls_world(), NULL, 0, "part", &g));
    MUST(ls_recv(g, buf, 4, LS_FLOAT32, 0, 3, NULL, &work));
    MUST(ls_work_abort(work, NULL));
    SHOW(ls_work_wait(work));
}

static void wait_within(void *arg, ls_status status)
{
    (void)status;
    SHOW(ls_barrier(arg, NULL, NULL));
}

GOLDEN(a_callback_that_waits)
{
    ls_work *work = NULL;
    MUST(ls_barrier(ls_world(), NULL, &work));
    MUST(ls_work_on_done(work, wait_within, ls_world()));
    MUST(ls_work_wait(work));
}

GOLDEN(arguments_of_objects)
{
    void *bytes = NULL;
    size_t length = 3;
    ls_bytes *list = NULL, give = {NULL, 3};
    SHOW(ls_broadcast_bytes(NULL, &bytes, &length, 0, NULL));
    SHOW(ls_broadcast_bytes(ls_world(), &bytes, &length, 0, NULL));
    SHOW(ls_broadcast_bytes(ls_world(), &bytes, NULL, 0, NULL));
    SHOW(ls_broadcast_bytes(ls_world(), &bytes, &length, 5, NULL));
    SHOW(ls_all_gather_bytes(ls_world(), "x", SIZE_MAX, NULL, &list));
    SHOW(ls_gather_bytes(ls_world(), NULL, 3, 0, NULL, &list));
    SHOW(ls_scatter_bytes(ls_world(), NULL, 0, NULL, &bytes, &length));
    SHOW(ls_scatter_bytes(ls_world(), &give, 0, NULL, &bytes, &length));
}

GOLDEN(arguments_of_many)
{
    void *lists[2] = {buf, NULL};
    const int64_t counts[2] = {3, 4}, negative[2] = {3, -4};
    SHOW(ls_all_reduce_many(NULL, lists, counts, 2, LS_FLOAT32, LS_SUM, NULL, NULL));
    SHOW(ls_all_reduce_many(ls_world(), NULL, counts, 2, LS_FLOAT32, LS_SUM, NULL, NULL));
    SHOW(ls_all_reduce_many(ls_world(), lists, counts, 2, LS_FLOAT32, LS_SUM, NULL, NULL));
    SHOW(ls_broadcast_many(ls_world(), lists, negative, 2, LS_FLOAT32, 0, NULL, NULL));
}

GOLDEN(arguments_of_groups)
{
    ls_group *g = NULL;
    ls_counters counters = {.size = 0};
    void *memory = NULL;
    SHOW(ls_group_new(NULL, NULL, 0, "part", &g));
    SHOW(ls_group_new(ls_world(), NULL, 0, "part", NULL));
    SHOW(ls_group_new(ls_world(), (const int[]){0, 0, 0}, 3, "part", &g));
    SHOW(ls_group_new(ls_world(), (const int[]){5}, 1, "part", &g));
    SHOW(ls_group_new_among(NULL, (const int[]){0}, 1, "part", &g));
    SHOW(ls_group_new_among(ls_world(), NULL, 1, "part", &g));
    SHOW(ls_group_new_among(ls_world(), (const int[]){9}, 1, "part", &g));
    SHOW(ls_group_split(NULL, 0, 0, "part", &g));
    SHOW(ls_group_split(ls_world(), 0, 0, "part", NULL));
    SHOW(ls_group_split(ls_world(), -7, 0, "part", &g));
    SHOW(ls_group_round_robin(NULL, 2, "turns", &g));
    SHOW(ls_group_round_robin((ls_group *[]){ls_world(), NULL}, 2, "turns", &g));
    SHOW(ls_group_round_robin((ls_group *[]){ls_world(), ls_world()}, 2, "turns", &g));
    MUST(ls_group_round_robin((ls_group *[]){ls_world()}, 1, NULL, &g));
    SHOW(ls_group_round_robin(&g, 1, "turns", &g));
    SHOW(ls_all_reduce_many(g, NULL, NULL, 1, LS_FLOAT32, LS_SUM, NULL, NULL));
    SHOW(ls_group_free(ls_world()));
    SHOW(ls_group_abort(NULL, "why"));
    SHOW(ls_group_status(NULL));
    SHOW(ls_group_get_counters(ls_world(), &counters));
    SHOW(ls_group_alloc(NULL, 64, &memory));
    SHOW(ls_group_alloc(ls_world(), 64, NULL));
    SHOW(ls_group_alloc(ls_world(), (size_t)1 << 46, &memory));
    SHOW(ls_group_dealloc(ls_world(), buf));
}

GOLDEN(axes_of_meshes)
{
    ls_mesh *mesh = NULL;
    ls_group *group = NULL;
    char longest[300];
    memset(longest, 'a', sizeof longest);
    longest[sizeof longest - 1] = '\0';
    SHOW(ls_mesh_new(NULL, "dp=1", &mesh));
    SHOW(ls_mesh_new(ls_world(), "", &mesh));
    SHOW(ls_mesh_new(ls_world(), "d-p=2", &mesh));
    SHOW(ls_mesh_new(ls_world(), "dp=0", &mesh));
    SHOW(ls_mesh_new(ls_world(), "dp=1;pp=1", &mesh));
    SHOW(ls_mesh_new(ls_world(), "dp=1,dp=2", &mesh));
    SHOW(ls_mesh_new(ls_world(), "a=1,b=1,c=1,d=1,e=1,f=1,g=1,h=1,i=2", &mesh));
    SHOW(ls_mesh_new(ls_world(), "dp=*,pp=*", &mesh));
    SHOW(ls_mesh_new(ls_world(), "dp=3,pp=2", &mesh));
    SHOW(ls_mesh_new(ls_world(), "dp=3,pp=*", &mesh));
    SHOW(ls_mesh_new(ls_world(), longest, &mesh));
    MUST(ls_mesh_new(ls_world(), "dp=1", &mesh));
    SHOW(ls_mesh_group_new(mesh, "pp", &group));
    SHOW(ls_mesh_group_new(mesh, NULL, &group));
    SHOW(ls_mesh_group_new(mesh, "dp", NULL));
    MUST(ls_mesh_free(mesh));
}

GOLDEN_RANKS(meshes_of_other_axes, 4)
{
    ls_mesh *mesh = NULL;
    SHOW(ls_mesh_new(ls_world(), ls_rank() == 3 ? "dp=4" : "dp=2,pp=2", &mesh));
}

GOLDEN_RANKS(a_rank_twice_in_a_group, 2)
{
    ls_group *g = NULL;
    SHOW(ls_group_new(ls_world(), (const int[]){1, 1}, 2, "part", &g));
}

GOLDEN_RANKS(parts_of_one_color_with_two_names, 2)
{
    ls_group *g = NULL;
    SHOW(ls_group_split(ls_world(), 0, 0, ls_rank() == 0 ? "left" : "right", &g));
    SHOW(ls_group_new_among(ls_world(), (const int[]){0, 1}, 2, ls_rank() == 0 ? "left" : "right",
                            &g));
}

static void picky(void *into, const void *right, int64_t count, ls_dtype dtype, void *arg)
{
    (void)into;
    (void)right;
    (void)count;
    (void)dtype;
    (void)arg;
    if (ls_rank() == 1) {
        MUST(ls_reduce_op_fail("it takes no zeros"));
    }
}

GOLDEN_RANKS(an_operator_of_the_user_fails, 2)
{
    ls_reduce_op op = LS_SUM;
    ls_group *group = NULL;
    MUST(ls_reduce_op_new(picky, NULL, "picky", &op));
    MUST(ls_group_new(ls_world(), NULL, 0, "tried", &group));
    /* rank 0 may be back before the root has combined anything */
    (void)ls_reduce(group, buf, buf, 4, LS_FLOAT32, op, 1, NULL, NULL);
    SHOW(ls_barrier(group, NULL, NULL));
}

/* ---- ranks that do not do the same ---------------------------------------------------------- */

static bool odd(void)
{
    return ls_rank() % 2 == 1;
}

GOLDEN_RANKS(groups_in_turn_with_other_ranks, 2)
{
    ls_group *back = NULL, *turns = NULL;
    MUST(ls_group_new(ls_world(), (const int[]){1, 0}, 2, "backwards", &back));
    SHOW(ls_group_round_robin((ls_group *[]){ls_world(), back}, 2, "turns", &turns));
}

GOLDEN_RANKS(a_monitored_barrier_meets_another, 2)
{
    golden_show("a barrier", odd() ? ls_monitored_barrier(ls_world(), 0, NULL)
                                   : ls_barrier(ls_world(), NULL, NULL));
}

GOLDEN_LATE(ranks_miss_a_monitored_barrier, 4)
{
    ls_group *group = NULL;
    MUST(ls_group_new(ls_world(), NULL, 0, "watched", &group));
    MUST(ls_barrier(ls_world(), LS_OPTIONS(ls_collective_options, .tag = "epoch"), NULL));
    if (ls_rank() == 1) {
        SHOW(ls_monitored_barrier(group, 1200, NULL));
        MUST(ls_store_set(ls_runtime_store(), "late", "", 1, -1));
    }
    MUST(ls_store_wait(ls_runtime_store(), "late", 30000));
}

GOLDEN_RANKS(lists_of_many_differ, 2)
{
    void *const lists[] = {buf, buf + 8};
    const int64_t counts[] = {odd() ? 2 : 3, odd() ? 3 : 2};
    SHOW(ls_all_reduce_many(ls_world(), lists, counts, 2, LS_FLOAT32, LS_SUM, NULL, NULL));
}

GOLDEN_LATE(one_rank_splits_alone, 2)
{
    ls_group *part = NULL;
    if (!odd()) {
        SHOW(ls_group_split(ls_world(), 0, 0, "part", &part));
        MUST(ls_store_set(ls_runtime_store(), "late", "", 1, -1));
    }
    MUST(ls_store_wait(ls_runtime_store(), "late", 30000));
}

GOLDEN_LATE(nobody_sends_to_who_takes_from_anybody, 2)
{
    if (!odd()) {
        SHOW(ls_recv_any(ls_world(), buf, 4, LS_FLOAT32, 7, NULL, NULL));
        MUST(ls_store_set(ls_runtime_store(), "late", "", 1, -1));
    }
    MUST(ls_store_wait(ls_runtime_store(), "late", 30000));
}

GOLDEN_RANKS(who_takes_from_anybody_is_waited_for, 2)
{
    golden_show("an operation", odd() ? ls_barrier(ls_world(), NULL, NULL)
                                      : ls_recv_any(ls_world(), buf, 4, LS_FLOAT32, 7, NULL, NULL));
}

GOLDEN_RANKS(all_leave_one_who_takes_from_anybody, 2)
{
    if (!odd()) {
        SHOW(ls_recv_any(ls_world(), buf, 4, LS_FLOAT32, 7,
                         LS_OPTIONS(ls_collective_options, .timeout_ms = 30000), NULL));
    }
}

GOLDEN(an_aborted_group_stays_failed)
{
    ls_group *g = NULL;
    MUST(ls_group_new(ls_world(), NULL, 0, "part", &g));
    MUST(ls_group_abort(g, "the data ran out"));
    SHOW(ls_barrier(g, NULL, NULL));
    SHOW(ls_group_status(g));
    MUST(ls_group_new(ls_world(), NULL, 0, NULL, &g));
    MUST(ls_group_abort(g, NULL));
    SHOW(ls_barrier(g, NULL, NULL));
}

GOLDEN(groups_without_end)
{
    ls_group *g = NULL;
    for (int i = 0; i < 2000; i++) {
        ls_status status = ls_group_new(ls_world(), NULL, 0, "one more", &g);
        if (status < 0) {
            golden_show("ls_group_new(ls_world(), NULL, 0, \"one more\", &g), often", status);
            return;
        }
    }
}

/* ---- the store ------------------------------------------------------------------------------- */

GOLDEN(the_store)
{
    static char big[70000];
    char key[300], small[2];
    size_t bytes = sizeof small;
    int64_t sum;
    ls_store *s = ls_runtime_store();
    memset(key, 'k', sizeof key - 1);
    key[sizeof key - 1] = '\0';
    SHOW(ls_store_set(NULL, "step", "1", 1, -1));
    SHOW(ls_store_set(s, NULL, "1", 1, -1));
    SHOW(ls_store_set(s, "", "1", 1, -1));
    SHOW(ls_store_set(s, key, "1", 1, -1));
    SHOW(ls_store_set(s, "weights", big, sizeof big, -1));
    SHOW(ls_store_set(s, "weights", NULL, 4, -1));
    SHOW(ls_store_get(s, "step", small, NULL, -1));
    SHOW(ls_store_get(s, "step", small, &bytes, 100));
    SHOW(ls_store_wait(s, "step", 100));
    MUST(ls_store_set(s, "name", "four", 4, -1));
    SHOW(ls_store_get(s, "name", small, &bytes, -1));
    SHOW(ls_store_add(s, "name", 1, &sum, -1));
    MUST(ls_store_add(s, "count", INT64_MAX, &sum, -1));
    SHOW(ls_store_add(s, "count", 1, &sum, -1));
    for (int i = 0; i < 2000; i++) {
        (void)snprintf(key, sizeof key, "part %d", i);
        ls_status status = ls_store_set(s, key, big, 60000, -1);
        if (status < 0) {
            golden_show("ls_store_set(s, key, big, 60000, -1), often", status);
            return;
        }
    }
}

/* ---- joining --------------------------------------------------------------------------------- */

GOLDEN(joining_twice)
{
    SHOW(ls_init(NULL));
}

GOLDEN_BARE(options_of_init)
{
    SHOW(ls_init(LS_OPTIONS(ls_init_options, .timeout_ms = -1)));
}

GOLDEN_BARE(a_world_that_nobody_started)
{
    (void)setenv("WORLD_SIZE", "4", 1);
    SHOW(ls_init(NULL));
}

GOLDEN_BARE(a_heap_that_does_not_fit)
{
    (void)setenv("LOCKSTEP_HEAP_RESERVE", "2097152", 1);
    SHOW(ls_init(NULL));
}

GOLDEN_BARE(settings_that_are_misspelt)
{
    (void)setenv("LOCKSTEP_TIMOUT", "5", 1);
    (void)setenv("LOCKSTEP_COLOUR_OF_THE_SKY", "blue", 1);
    (void)setenv("LOCKSTEP_TIMEOUT", "soon", 1);
    (void)setenv("LOCKSTEP_THREADS", "1000000", 1);
    (void)setenv("LOCKSTEP_CHECK", "everything", 1);
    (void)setenv("LOCKSTEP_ALL_REDUCE", "ring", 1);
    (void)setenv("LOCKSTEP_DEBUG", "loud", 1);
    MUST(ls_init(NULL));
    (void)ls_finalize();
}

GOLDEN_BARE(kernels_that_do_not_exist)
{
    (void)setenv("LOCKSTEP_CPU", "avx51", 1);
    SHOW(ls_init(NULL));
    (void)setenv("LOCKSTEP_CPU", "everything", 1);
    SHOW(ls_init(NULL));
    (void)setenv("LOCKSTEP_CPU", "base", 1);
    (void)setenv("LOCKSTEP_DETERMINISTIC", "very", 1);
    SHOW(ls_init(NULL));
    (void)unsetenv("LOCKSTEP_DETERMINISTIC");
    (void)setenv("LOCKSTEP_ONEDNN", "no", 1);
    SHOW(ls_init(NULL));
}

static int answer(void *arg)
{
    (void)arg;
    return 42;
}

GOLDEN_BARE(spawning)
{
    SHOW(ls_spawn(NULL, NULL, 2));
    SHOW(ls_spawn(answer, NULL, 0));
    SHOW(ls_spawn(answer, NULL, 2));
    MUST(ls_init(NULL));
    SHOW(ls_spawn(answer, NULL, 2));
}

GOLDEN(after_a_fork)
{
    fflush(stdout);
    if (fork() == 0) {
        SHOW(ls_all_reduce(ls_world(), buf, buf, 4, LS_FLOAT32, LS_SUM, NULL, NULL));
        SHOW_TENSOR(ls_zeros(LS_SHAPE(2), LS_FLOAT32));
        SHOW(ls_runtime_attach(NULL));
        _exit(0);
    }
    (void)wait(NULL);
}

GOLDEN(a_failed_check_ends_the_program)
{
    LS_CHECK(ls_all_reduce(ls_world(), buf, buf, -1, LS_FLOAT32, LS_SUM, NULL, NULL));
}

GOLDEN(told_in_detail)
{
    ls_log_message(LS_LOG_ERROR, "an error");
    ls_log_message(LS_LOG_WARN, "a warning of %d words", 4);
}
