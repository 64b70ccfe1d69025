/* SPDX-License-Identifier: Apache-2.0 */
/* Logs of runs with servers: one process makes every version again, whatever the order was; and
 * what the logs say of the modes. */
#include <errno.h>
#include <sys/stat.h>
#include <time.h>

#include "server/server.h"
#include "trace/replay_log.h"

#include "says.h"
#include "scratch.h"
#include "train.h"

#define EVENTS_MAX 4096

static char path[256];

static void choose_path(void)
{
    if (ls_rank() == 0) {
        scratch_begin();
        (void)snprintf(path, sizeof path, "%s", scratch_at("log"));
    }
    CHECK_OK(ls_broadcast(ls_world(), path, sizeof path, LS_UINT8, 0, NULL, NULL));
}

static void end_path(void)
{
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
    if (ls_rank() == 0) {
        scratch_end();
    }
}

/* ---- the sequential twin -----------------------------------------------------------------------
 */

typedef struct twin {
    const recipe *how;
    ls_optim *optim;
} twin;

static ls_status step_of(void *arg, ls_module *net, int worker, int64_t step)
{
    const twin *t = arg;
    one_step(net, t->optim, t->how, worker, (int)step);
    return LS_OK;
}

static bool ended; /* of the last replay */

/* On rank 0 alone. */
static ls_status replay(const recipe *how, const char *log, numbers *out, int64_t *versions)
{
    const int self = 0;
    ls_group *alone = NULL;
    CHECK_OK(ls_group_new_among(ls_world(), &self, 1, "alone", &alone));
    const size_t bucket = how->server.bucket_bytes > 0 ? how->server.bucket_bytes : 2000;
    ls_module *net =
        ls_ddp_new(make_model(how), alone, LS_OPTIONS(ls_ddp_options, .bucket_bytes = bucket));
    CHECK_OK(ls_module_status(net));
    ls_optim *optim = optim_of(net, how);
    twin t = {how, optim};
    const ls_status status = ls_server_replay(
        net, optim,
        LS_OPTIONS(ls_server_replay_options, .log = log, .step = step_of, .arg = &t,
                   .clip_norm = how->server.clip_norm, .versions = versions, .ended = &ended));
    char message[2048];
    (void)snprintf(message, sizeof message, "%s", ls_error_message());
    *out = numbers_of(net);
    ls_optim_free(optim);
    ls_module_free(net);
    CHECK_OK(ls_group_free(alone));
    if (status < 0) {
        (void)ls_fail(status, "%s", message);
    }
    return status;
}

/* Serves, and replays the log on rank 0. */
static void check_replay(recipe how)
{
    choose_path();
    how.server.log = path;
    const numbers served = train_served(&how);
    if (ls_rank() == 0) {
        numbers again;
        int64_t versions = 0;
        CHECK_OK(replay(&how, path, &again, &versions));
        CHECK(memcmp(again.data, served.data, again.bytes) == 0);
        CHECK(versions >= STEPS && ended);
    }
    forget_settings();
    end_path();
}

static void check_replays(recipe how)
{
    for (int servers = 1; servers <= 3; servers++) {
        how.server.servers = servers;
        how.server.colocated = false;
        check_replay(how);
        how.server.colocated = true;
        check_replay(how);
    }
}

DIST_TEST(a_synchronous_log_is_replayed, 5)
{
    check_replays((recipe){0});
    check_replays((recipe){.weighted = true, .uneven = true});
    check_replays((recipe){.server = {.clip_norm = 0.1}});
}

DIST_TEST(an_asynchronous_log_is_replayed, 5)
{
    check_replays((recipe){.server = {.mode = LS_SERVER_ASYNC}});
    check_replays((recipe){.server = {.mode = LS_SERVER_ASYNC}, .weighted = true});
    check_replays((recipe){.server = {.mode = LS_SERVER_ASYNC}, .uneven = true, .sgd = true});
    check_replays((recipe){.server = {.mode = LS_SERVER_ASYNC}, .bf16 = true});
    check_replays((recipe){.server = {.mode = LS_SERVER_ASYNC}, .late = true, .norm = true});
}

DIST_TEST(a_stale_synchronous_log_is_replayed, 5)
{
    check_replays((recipe){.server = {.mode = LS_SERVER_STALE, .staleness = 2}});
    check_replays((recipe){.server = {.mode = LS_SERVER_STALE}, .uneven = true});
    check_replays((recipe){.server = {.mode = LS_SERVER_STALE, .staleness = 1}, .late = true});
}

DIST_TEST(a_log_with_backup_workers_is_replayed, 5)
{
    check_replays((recipe){.server = {.backup = 1}});
    check_replays((recipe){.server = {.backup = 1}, .late = true});
}

/* ---- what logs say -----------------------------------------------------------------------------
 */

static void sleep_ms(int ms)
{
    const struct timespec t = {ms / 1000, (long)(ms % 1000) * 1000000};
    (void)nanosleep(&t, NULL);
}

/* One rank sleeps twice as long as the others in each step. */
static void run_sleeping(const recipe *how, int slow, int ms)
{
    ls_module *net = serve_model(how);
    ls_optim *optim = optim_of(net, how);
    CHECK_OK(ls_server_run(net, optim));
    for (int step = 0; ls_server_works(net) && step < how->steps; step++) {
        sleep_ms(ls_rank() == slow ? 2 * ms : ms);
        one_step(net, optim, how, ls_rank(), step);
    }
    CHECK_OK(ls_server_join(net));
    ls_optim_free(optim);
    ls_module_free(net);
    forget_settings();
}

static ls__replay_log read_log(void)
{
    ls__replay_log log;
    CHECK_OK(ls__replay_read(ls__self.runtime->env, path, &log));
    return log;
}

/* A worker's clock in a version: how many of its pushes have made one until then. */
static int clock_in(const ls__replay_log *log, int shard, int worker, int64_t version)
{
    int clock = 0;
    for (int64_t i = 0; i < log->count; i++) {
        const ls__replay_event *e = &log->events[i];
        clock += e->shard == shard && e->worker == worker && e->made <= version;
    }
    return clock;
}

/* At every read no worker is more than `bound` steps ahead of the slowest. */
static void check_clocks(const ls__replay_log *log, int workers, int bound, int *largest)
{
    *largest = 0;
    for (int64_t i = 0; i < log->count; i++) {
        const ls__replay_event *e = &log->events[i];
        int slowest = 1 << 30;
        for (int w = 0; w < workers; w++) {
            const int clock = clock_in(log, e->shard, w, e->read);
            slowest = clock < slowest ? clock : slowest;
        }
        const int ahead = (int)e->step - slowest;
        CHECK(ahead <= bound);
        *largest = ahead > *largest ? ahead : *largest;
    }
}

/* Worker 1 pushes nothing before worker 0 is as far ahead of it as it may be. */
static void run_ahead(const recipe *how)
{
    char word = 0;
    ls_module *net = serve_model(how);
    ls_optim *optim = optim_of(net, how);
    CHECK_OK(ls_server_run(net, optim));
    for (int step = 0; ls_server_works(net) && step < how->steps; step++) {
        LS_SCOPE;
        ls_optim_set_lr(optim, lr_of(step));
        ls_tensor *loss = loss_of(net, ls_rank(), step);
        if (ls_rank() == 0 && step == how->server.staleness) {
            CHECK_OK(ls_send(ls_world(), &word, 1, LS_UINT8, 1, 0, NULL, NULL));
        }
        if (ls_rank() == 1 && step == 0) {
            CHECK_OK(ls_recv(ls_world(), &word, 1, LS_UINT8, 0, 0, NULL, NULL));
        }
        CHECK_OK(ls_backward(loss));
    }
    CHECK_OK(ls_server_join(net));
    ls_optim_free(optim);
    ls_module_free(net);
    forget_settings();
}

DIST_TEST(clocks_of_a_stale_synchronous_run_stay_within_the_bound, 5)
{
    for (int bound = 0; bound <= 3; bound += 3) {
        choose_path();
        recipe how = {
            .server = {.mode = LS_SERVER_STALE, .staleness = bound, .servers = 1, .log = path},
            .steps = 12};
        run_ahead(&how);
        if (ls_rank() == 0) {
            ls__replay_log log = read_log();
            int largest = 0;
            CHECK_INT(log.count, 4 * 12);
            check_clocks(&log, 4, bound, &largest);
            CHECK_INT(largest, bound);
            ls__replay_release(&log);
        }
        end_path();
    }
}

DIST_TEST(backup_workers_leave_out_the_slowest_gradients, 6)
{
    choose_path();
    recipe how = {.server = {.backup = 2, .servers = 1, .log = path}, .steps = 10};
    run_sleeping(&how, 1, 4);
    if (ls_rank() == 0) {
        ls__replay_log log = read_log();
        int64_t dropped = 0, applied[64] = {0}, newest = 0;
        for (int64_t i = 0; i < log.count; i++) {
            const ls__replay_event *e = &log.events[i];
            dropped += e->made == LS__REPLAY_NONE;
            if (e->made != LS__REPLAY_NONE) {
                CHECK(e->made < 64 && e->read == e->made - 1);
                applied[e->made]++;
                newest = e->made;
            }
        }
        CHECK(dropped > 0 && newest >= 10);
        for (int64_t v = 1; v <= 7; v++) { /* nobody has ended yet */
            CHECK_INT(applied[v], 5 - 2);
        }
        ls__replay_release(&log);
    }
    end_path();
}

/* ---- a log that was changed --------------------------------------------------------------------
 */

static int read_lines(char lines[][160], int most)
{
    FILE *file = fopen(path, "r");
    int count = 0;
    CHECK(file != NULL);
    while (count < most && fgets(lines[count], 160, file) != NULL) {
        count++;
    }
    (void)fclose(file);
    return count;
}

static void write_lines(char lines[][160], int count)
{
    FILE *file = fopen(path, "w");
    CHECK(file != NULL);
    for (int i = 0; i < count; i++) {
        CHECK(fputs(lines[i], file) >= 0);
    }
    CHECK(fclose(file) == 0);
}

/* Two pushes change places; versions and hashes stay where they were. */
static void move_event(char lines[][160], int count, int at)
{
    char first[160], second[160];
    int hash_a = 0, hash_b = 0;
    memcpy(first, lines[at], sizeof first);
    memcpy(second, lines[at + 1], sizeof second);
    char *made_a = strstr(first, "made="), *made_b = strstr(second, "made=");
    CHECK(made_a != NULL && made_b != NULL);
    hash_a = (int)(made_a - first);
    hash_b = (int)(made_b - second);
    (void)snprintf(lines[at], 160, "%.*s%s", hash_b, second, made_a);
    (void)snprintf(lines[at + 1], 160, "%.*s%s", hash_a, first, made_b);
    write_lines(lines, count);
}

DIST_TEST(a_log_with_one_event_moved_fails_at_that_event, 4)
{
    static char lines[EVENTS_MAX][160];
    choose_path();
    recipe how = {.server = {.mode = LS_SERVER_ASYNC, .servers = 1, .log = path}};
    (void)train_served(&how);
    if (ls_rank() == 0) {
        numbers out;
        char where[64];
        const int count = read_lines(lines, EVENTS_MAX), moved = count - 4;
        CHECK_INT(count, 2 + 3 * STEPS + 1);
        move_event(lines, count, moved);
        CHECK_STATUS(replay(&how, path, &out, NULL), LS_ERR_MISMATCH);
        (void)snprintf(where, sizeof where, "log, line %d", moved + 1);
        CHECK_CONTAINS(ls_error_message(), where);
    }
    forget_settings();
    end_path();
}

DIST_TEST(a_hash_that_differs_is_shown_with_both_values, 3)
{
    static char lines[EVENTS_MAX][160];
    choose_path();
    recipe how = {.server = {.servers = 1, .log = path}};
    (void)train_served(&how);
    if (ls_rank() == 0) {
        numbers out;
        const int count = read_lines(lines, EVENTS_MAX);
        (void)snprintf(strstr(lines[count - 2], "hash="), 32, "hash=0123456789abcdef\n");
        write_lines(lines, count);
        CHECK_STATUS(replay(&how, path, &out, NULL), LS_ERR_MISMATCH);
        CHECK_SAYS(ls_error_message(), "a line was moved or changed, or command, data or build are "
                                       "others than in the run");
        CHECK_CONTAINS(ls_error_message(), ", and the log says 0123456789abcdef");
    }
    forget_settings();
    end_path();
}

static int lines_in(const char *text)
{
    int lines = 0;
    for (; *text != '\0'; text++) {
        lines += *text == '\n';
    }
    return lines;
}

static void refuse_log(const recipe *how, const char *text, const char *says)
{
    numbers out;
    FILE *file = fopen(path, "w");
    CHECK(file != NULL && fprintf(file, "%s# end %d\n", text, lines_in(text) - 2) > 0);
    CHECK(fclose(file) == 0);
    CHECK_STATUS(replay(how, path, &out, NULL), LS_ERR_MISMATCH);
    CHECK_SAYS(ls_error_message(),
               "ls_server_replay: %s, line %lld (shard %d, worker %d, step %lld): %s; the log was "
               "changed, or lines are missing");
    CHECK_CONTAINS(ls_error_message(), says);
}

#define HEAD(shards) "# lockstep replay 1\n# shards " #shards "\n"
#define PUSH(w, t, r, m, s)                                                                        \
    "push worker=" #w " step=" #t " read=" #r " made=" #m " shard=" #s " hash=0123456789abcdef\n"

DIST_TEST(a_log_that_no_run_writes_is_refused_with_the_line, 1)
{
    const recipe how = {0};
    choose_path();
    refuse_log(&how, HEAD(1) PUSH(0, 0, 9, 1, 0), SAYS("it reads a version that no event makes"));
    refuse_log(&how, HEAD(1) PUSH(0, 0, 1, 1, 0), SAYS("it reads a version that is made after it"));
    refuse_log(&how, HEAD(1) PUSH(0, 0, 0, 2, 0),
               SAYS("it does not make the version that follows"));
    refuse_log(&how, HEAD(1) PUSH(0, 0, 0, 1, 0) PUSH(0, 0, 1, 2, 0), SAYS("is in the log twice"));
    refuse_log(&how, HEAD(2) PUSH(0, 0, 0, 1, 0), SAYS("its push is in some shards only"));
    refuse_log(&how,
               HEAD(1) "push worker=1 step=0 read=0 made=1 shard=0 hash=-\n" PUSH(0, 0, 0, 1, 0),
               SAYS("pushes of one version stand in the order of their workers"));
    refuse_log(&how, HEAD(1) "stage step=1 read=0 made=1 shard=0 hash=-\n", SAYS("it is no push"));
    refuse_log(&how, HEAD(1) "push worker=0 step=0 read=0 made=1 shard=0 hash=-\n",
               SAYS("the version that it makes has no hash"));
    end_path();
}

/* ---- a log without its end ---------------------------------------------------------------------
 */

/* The last pushes are in some shards only. */
DIST_TEST(a_log_without_its_end_is_replayed_up_to_there, 5)
{
    static char lines[EVENTS_MAX][160];
    choose_path();
    recipe how = {.server = {.mode = LS_SERVER_ASYNC, .servers = 2, .log = path}};
    (void)train_served(&how);
    for (int left = 1; ls_rank() == 0 && left <= 4; left++) {
        numbers out;
        int64_t versions = 0;
        const int count = read_lines(lines, EVENTS_MAX) - 1;
        lines[count - 1][20] = '\0'; /* as much as the disk has taken of it */
        write_lines(lines, count);
        CHECK_OK(replay(&how, path, &out, &versions));
        CHECK(!ended);
        CHECK(versions > 0 && versions <= 2 * 3 * STEPS - left);
    }
    forget_settings();
    end_path();
}

static ls__env full; /* a disk that takes `room` more bytes */
static size_t room;

static ssize_t write_full(const ls__env *env, int fd, const void *in, size_t bytes)
{
    const ls__env *real = ls__self.runtime->env;
    const size_t some = bytes < room ? bytes : room;
    (void)env;
    room -= some;
    return some > 0 ? real->write(real, fd, in, some) : -ENOSPC;
}

static void fill_disk(ls__replay_writer *writer, size_t bytes)
{
    full = *writer->env;
    full.write = write_full;
    room = bytes;
    writer->env = &full;
}

DIST_TEST(a_disk_that_is_full_within_a_line_fails_all_ranks_by_name, 5)
{
    choose_path();
    recipe how = {.server = {.servers = 2, .log = path}};
    ls_module *net = serve_model(&how);
    ls_optim *optim = optim_of(net, &how);
    const ls__server *s = ls__server_of(net);
    if (s->shard == 0) {
        fill_disk(&s->state->log, 1000);
    }
    ls_status status = ls_server_run(net, optim);
    for (int step = 0; status == LS_OK && ls_server_works(net) && step < STEPS; step++) {
        LS_SCOPE;
        ls_optim_set_lr(optim, lr_of(step));
        status = ls_backward(loss_of(net, ls_rank(), step));
    }
    status = status < 0 ? status : ls_server_join(net);
    CHECK(status < 0);
    CHECK_CONTAINS(ls_error_message(), "replay log: cannot write");
    CHECK_CONTAINS(ls_error_message(), path);
    ls_optim_free(optim);
    ls_module_free(net);
    forget_settings();
    if (ls_rank() == 0) {
        numbers out;
        int64_t versions = 0;
        struct stat file;
        CHECK(stat(path, &file) == 0 && file.st_size > 1000); /* and its head */
        CHECK_OK(replay(&how, path, &out, &versions));
        CHECK(versions > 0 && !ended);
    }
    end_path();
}

/* ---- versions that workers read ----------------------------------------------------------------
 */

typedef struct reading {
    int64_t version;
    uint64_t hash;
} reading;

/* Of each shard that has arrived with the last pull. */
static void note_pull(ls_module *net, reading *out)
{
    static char packed[NUMBERS_MAX * sizeof(float)];
    const ls__server *s = ls__server_of(net);
    CHECK_OK(ls__server_copy_out(&s->layout, s->d, s->staging)); /* what the passes see */
    for (int shard = 0; shard < s->set.servers; shard++) {
        ls__server_pack(&s->layout, shard, packed, s->staging);
        out[shard] = (reading){s->read[shard], ls__server_hash(&s->layout, shard, packed)};
    }
}

static bool is_version(const ls__replay_log *log, int shard, const reading *r)
{
    bool found = r->version == 0;
    for (int64_t i = 0; i < log->count; i++) {
        const ls__replay_event *e = &log->events[i];
        found |= e->shard == shard && e->made == r->version && e->hashed && e->hash == r->hash;
    }
    return found;
}

enum { SHARDS = 2, READERS = 3 };

static void check_pulls(recipe how)
{
    static reading mine[STEPS][SHARDS], all[READERS + SHARDS][STEPS][SHARDS];
    choose_path();
    how.server.servers = SHARDS;
    how.server.log = path;
    ls_module *net = serve_model(&how);
    ls_optim *optim = optim_of(net, &how);
    CHECK_OK(ls_server_run(net, optim));
    for (int step = 0; ls_server_works(net) && step < STEPS; step++) {
        LS_SCOPE;
        ls_optim_set_lr(optim, lr_of(step));
        ls_tensor *loss = loss_of(net, ls_rank(), step);
        note_pull(net, mine[step]);
        CHECK_OK(ls_backward(loss));
    }
    CHECK_OK(ls_server_join(net));
    ls_optim_free(optim);
    ls_module_free(net);
    CHECK_OK(ls_all_gather(ls_world(), mine, all, sizeof mine, LS_UINT8, NULL, NULL));
    if (ls_rank() == 0) {
        ls__replay_log log = read_log();
        for (int i = 0; i < READERS * STEPS * SHARDS; i++) {
            const int worker = i / (STEPS * SHARDS), step = i / SHARDS % STEPS;
            CHECK(is_version(&log, i % SHARDS, &all[worker][step][i % SHARDS]));
        }
        ls__replay_release(&log);
    }
    forget_settings();
    end_path();
}

DIST_TEST(what_a_worker_computes_with_is_one_version_of_each_server_in_every_mode, 5)
{
    check_pulls((recipe){0});
    check_pulls((recipe){.server = {.backup = 1}});
    check_pulls((recipe){.server = {.mode = LS_SERVER_ASYNC}});
    check_pulls((recipe){.server = {.mode = LS_SERVER_STALE, .staleness = 1}});
}

static ls_status two_backwards(void *arg, ls_module *net, int worker, int64_t step)
{
    const twin *t = arg;
    backward(net, t->how, worker, (int)step);
    LS_SCOPE;
    return ls_backward(loss_of(net, worker, (int)step));
}

static ls_status no_backward(void *arg, ls_module *net, int worker, int64_t step)
{
    (void)arg, (void)net, (void)worker, (void)step;
    return LS_OK;
}

static void refuse_replay(ls_module *net, ls_optim *optim, ls_server_step_fn step, void *arg,
                          const char *log, const char *says)
{
    CHECK(ls_server_replay(
              net, optim,
              LS_OPTIONS(ls_server_replay_options, .log = log, .step = step, .arg = arg)) < 0);
    CHECK_SAYS(ls_error_message(), says);
}

DIST_TEST(a_replay_that_is_no_replay_is_refused, 1)
{
    recipe how = {.sgd = true};
    choose_path();
    FILE *file = fopen(path, "w");
    CHECK(file != NULL && fputs(HEAD(1) PUSH(0, 0, 0, 1, 0), file) >= 0 && fclose(file) == 0);
    ls_module *plain = make_model(&how);
    ls_optim *optim = optim_of(plain, &how);
    refuse_replay(plain, optim, step_of, NULL, path,
                  SAYS("ls_server_replay: the module is not a wrapper of one rank"));
    ls_optim_free(optim);
    ls_module *net = ls_ddp_new(plain, ls_world(), NULL);
    optim = optim_of(net, &how);
    twin t = {&how, optim};
    refuse_replay(net, optim, two_backwards, &t, path, SAYS("has run two synchronising backwards"));
    refuse_replay(net, optim, no_backward, &t, path, SAYS("has run no synchronising backward"));
    refuse_replay(net, NULL, step_of, &t, path, SAYS("ls_server_replay: the %s is NULL; give one"));
    refuse_replay(net, optim, NULL, &t, path, SAYS("step function"));
    refuse_replay(net, optim, step_of, &t, NULL, "ls_server_replay: the log is NULL");
    ls_optim_free(optim);
    ls_module_free(net);
    end_path();
}

TEST_MAIN
