/* SPDX-License-Identifier: Apache-2.0 */
/* Asynchronous pipelines: their replay log says of each micro-batch the versions of the parameters
 * that the papers give its stages (Narayanan et al. 2019, section 3.3; 2021, section 3.1), and its
 * sequential twin has the same losses and parameters, to the last bit. */
#include "base/env.h"
#include "elements.h"
#include "says.h"
#include "scratch.h"
#include "test.h"
#include "trace/replay_log.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <lockstep/lockstep.h>

#include "optim/optim.h"

enum { LAYERS = 8, DIM = 12, ROWS = 5, MICRO = 8, CALLS = 3, OUTPUTS = 3, PARAMS = 2 * LAYERS };

static ls_module *make_net(void)
{
    ls_module *net = ls_sequential_new(NULL, 0);
    for (int i = 0; i < LAYERS; i++) {
        const char name[] = {(char)('a' + i), '\0'};
        ls_module *pair[] = {
            ls_linear_new(DIM, DIM,
                          LS_OPTIONS(ls_linear_options, .activation = LS_ACTIVATION_GELU)),
            ls_dropout_new(0.1)};
        (void)ls_module_add(net, name, ls_sequential_new(pair, 2));
    }
    return net;
}

static ls_micro_batch micro_of(int call, int m, int replica)
{
    const uint64_t stream = (uint64_t)(call * MICRO + m + 1000 * replica);
    float x[ROWS * DIM];
    int32_t y[ROWS];
    for (int i = 0; i < ROWS * DIM; i++) {
        x[i] = ls_random_normal(3, stream, (uint64_t)i);
    }
    for (int i = 0; i < ROWS; i++) {
        y[i] = (i + call + m) % DIM;
    }
    return (ls_micro_batch){.size = sizeof(ls_micro_batch),
                            .inputs = {ls_from_data(x, LS_SHAPE(ROWS, DIM), LS_FLOAT32)},
                            .target = ls_from_data(y, LS_SHAPE(ROWS), LS_INT32),
                            .context = {.step = stream}};
}

/* ---- the log ------------------------------------------------------------------------------ */

static char path[256];

/* A folder of rank 0, whose file all ranks read. */
static void begin_log(void)
{
    if (ls_rank() == 0) {
        scratch_begin();
        (void)snprintf(path, sizeof path, "%s", scratch_at("log"));
    }
    CHECK_OK(ls_broadcast(ls_world(), path, sizeof path, LS_UINT8, 0, NULL, NULL));
}

static void end_log(void)
{
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
    if (ls_rank() == 0) {
        scratch_end();
    }
}

/* The version that micro-batch m finds at a stage; with vertical sync that of the first one. */
static int version_of(int m, int stage, int stages, int per_step, bool vertical_sync)
{
    const int delay = per_step > 1 ? 1 : stages - 1 - (vertical_sync ? 0 : stage);
    return m / per_step > delay ? m / per_step - delay : 0;
}

/* The versions that the papers give. */
static void check_log(int stages, int per_step, bool vertical_sync)
{
    ls__replay_log log;
    CHECK_OK(ls__replay_read(ls__env_posix(), path, &log));
    CHECK_INT(log.shards, stages);
    CHECK_INT(log.count, CALLS * MICRO * stages);
    for (int i = 0; i < log.count; i++) {
        const ls__replay_event *e = &log.events[i];
        const int m = i / stages % MICRO, call = i / stages / MICRO, versions = MICRO / per_step;
        CHECK_INT(e->shard, i % stages);
        CHECK_INT(e->step, i / stages);
        CHECK_INT(e->read,
                  call * versions + version_of(m, e->shard, stages, per_step, vertical_sync));
        CHECK_INT(e->made, call * versions + m / per_step + 1);
        CHECK_INT(e->hashed, (m + 1) % per_step == 0);
    }
    ls__replay_release(&log);
}

/* ---- the twin ----------------------------------------------------------------------------- */

typedef struct trained { /* by the pipeline; outputs are those of the last rank */
    double losses[CALLS][MICRO];
    int call; /* calls so far */
    float *outputs[CALLS][OUTPUTS];
} trained;

typedef struct twin {
    ls_module *net;
    int copies, own; /* own: the copy that `trained` is of */
    const trained *expected;
    int checked; /* losses of the own copy */
    bool of_own; /* the micro-batch is */
} twin;

/* In other shapes than in training. */
static ls_micro_batch evaluated(int call, int m)
{
    ls_micro_batch micro = micro_of(call, 100 + m, 0);
    micro.inputs[0] = ls_slice(micro.inputs[0], 0, 0, ROWS - m);
    return micro;
}

/* What the pipeline has computed with its newest parameters after so many calls. */
static void check_outputs(const twin *t, int call)
{
    LS_SCOPE;
    LS_NO_GRAD;
    ls_module_train(t->net, false);
    for (int m = 0; m < OUTPUTS && t->expected->outputs[call][m] != NULL; m++) {
        CHECK(memcmp(t->expected->outputs[call][m],
                     elements_of(ls_forward(t->net, evaluated(call, m).inputs[0])),
                     (size_t)((ROWS - m) * DIM) * sizeof(float)) == 0);
    }
    ls_module_train(t->net, true);
}

static ls_status twin_micro(void *arg, int copy, int64_t number, ls_micro_batch *out)
{
    twin *t = arg;
    const int call = (int)number / MICRO, m = (int)number % MICRO;
    if (m == 0 && call > 0 && copy == 0) {
        check_outputs(t, call - 1);
    }
    t->of_own = copy == t->own;
    *out = micro_of(call, m, copy);
    return LS_OK;
}

static ls_tensor *twin_loss(void *arg, ls_tensor *output, ls_tensor *target)
{
    twin *t = arg;
    double loss = 0.0;
    ls_tensor *y = ls_cross_entropy(output, target, NULL);
    CHECK_OK(ls_item(y, &loss));
    if (t->of_own) {
        CHECK(loss == t->expected->losses[t->checked / MICRO][t->checked % MICRO]);
        t->checked++;
    }
    return y;
}

static ls_status run_twin(twin *t, const char *cut, int64_t *versions)
{
    bool ended = false;
    t->net = make_net();
    ls_optim *optim = ls_adamw_new(t->net, LS_OPTIONS(ls_adamw_options, .lr = 0.02));
    const ls_status status =
        ls_pipeline_replay(t->net, optim,
                           LS_OPTIONS(ls_pipeline_replay_options, .log = path, .micro = twin_micro,
                                      .arg = t, .copies = t->copies, .cut = cut, .loss = twin_loss,
                                      .loss_arg = t, .versions = versions, .ended = &ended));
    ls_optim_free(optim);
    CHECK(status < 0 || ended);
    return status;
}

/* ---- both --------------------------------------------------------------------------------- */

/* The second stage is a dropout alone. */
static const char *const bare_cut = "d.1 e.0";

static void check_params(ls_module *net, ls_module *whole)
{
    ls_param params[PARAMS];
    const int count = ls_module_params(net, params, PARAMS);
    for (int i = 0; i < count; i++) {
        ls_tensor *other = ls_module_param(whole, params[i].name);
        CHECK(memcmp(elements_of(params[i].value), elements_of(other),
                     (size_t)ls_numel(other) * sizeof(float)) == 0);
    }
}

static void keep_outputs(ls_pipeline *pipe, ls_module *net, trained *to)
{
    LS_SCOPE;
    LS_NO_GRAD;
    ls_micro_batch micro[OUTPUTS];
    ls_tensor *outputs[OUTPUTS];
    ls_module_train(net, false);
    for (int m = 0; m < OUTPUTS; m++) {
        micro[m] = evaluated(to->call, m);
    }
    CHECK_OK(ls_pipeline_forward(pipe, micro, OUTPUTS, outputs));
    for (int m = 0; m < OUTPUTS && outputs[m] != NULL; m++) {
        const size_t bytes = (size_t)ls_numel(outputs[m]) * sizeof(float);
        to->outputs[to->call][m] = malloc(bytes);
        memcpy(to->outputs[to->call][m], elements_of(outputs[m]), bytes);
    }
    ls_module_train(net, true);
}

static void call_pipeline(ls_pipeline *pipe, ls_module *net, int replica, trained *to)
{
    {
        LS_SCOPE;
        ls_micro_batch micro[MICRO];
        for (int m = 0; m < MICRO; m++) {
            micro[m] = micro_of(to->call, m, replica);
        }
        CHECK_OK(ls_pipeline_backward(pipe, net, micro, to->losses[to->call]));
    }
    keep_outputs(pipe, net, to);
    to->call++;
}

static void free_outputs(trained *t)
{
    for (int c = 0; c < CALLS; c++) {
        for (int m = 0; m < OUTPUTS; m++) {
            free(t->outputs[c][m]);
        }
    }
}

static void train_with(const char *schedule, int pp, int dp, bool vertical_sync, const char *cut)
{
    char axes[32];
    ls_mesh *mesh = NULL;
    ls_pipeline *pipe = NULL;
    ls_module *net = make_net();
    trained done = {.call = 0};
    int64_t versions = 0;
    const int per_step = strcmp(schedule, "pipedream") == 0 ? 1 : pp;
    (void)snprintf(axes, sizeof axes, "pp=%d,dp=%d", pp, dp);
    CHECK_OK(ls_mesh_new(ls_world(), axes, &mesh));
    const int replica = ls_mesh_coordinate(mesh, "dp");
    begin_log();
    CHECK_OK(ls_pipeline_new(net, ls_mesh_group(mesh, "pp"),
                             LS_OPTIONS(ls_pipeline_options, .schedule = schedule,
                                        .micro_batches = MICRO, .vertical_sync = vertical_sync,
                                        .cut = cut, .log = replica == 0 ? path : NULL),
                             &pipe));
    net = dp > 1 ? ls_ddp_new(net, ls_mesh_group(mesh, "dp"), NULL) : net;
    ls_optim *optim = ls_module_param_count(net) > 0
                          ? ls_adamw_new(net, LS_OPTIONS(ls_adamw_options, .lr = 0.02))
                          : NULL;
    CHECK_OK(ls_pipeline_set_optim(pipe, optim));
    for (int call = 0; call < CALLS; call++) {
        call_pipeline(pipe, net, replica, &done);
    }
    CHECK_OK(ls_pipeline_free(pipe));
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL)); /* the log has its end */
    check_log(pp, per_step, vertical_sync);
    twin t = {.copies = dp, .own = replica, .expected = &done};
    CHECK_OK(run_twin(&t, cut, &versions));
    CHECK_INT(versions, CALLS * MICRO / per_step * pp);
    CHECK_INT(t.checked, CALLS * MICRO);
    check_outputs(&t, CALLS - 1);
    check_params(net, t.net);
    end_log();
    free_outputs(&done);
    ls_optim_free(optim);
    ls_module_free(net);
    ls_module_free(t.net);
    CHECK_OK(ls_mesh_free(mesh));
}

static void train(const char *schedule, int pp, int dp)
{
    train_with(schedule, pp, dp, false, NULL);
}

DIST_TEST(pipedream_equals_its_staleness_twin_on_1, 1)
{
    train("pipedream", 1, 1);
}

DIST_TEST(pipedream_equals_its_staleness_twin_on_2, 2)
{
    train("pipedream", 2, 1);
    train("pipedream-2bw", 2, 1);
}

DIST_TEST(pipedream_equals_its_staleness_twin_on_4, 4)
{
    train("pipedream", 4, 1);
    train("pipedream-2bw", 4, 1);
}

DIST_TEST(pipedream_equals_its_staleness_twin_on_8, 8)
{
    train("pipedream", 8, 1);
    train("pipedream-2bw", 8, 1);
}

DIST_TEST(replicas_of_asynchronous_stages_average_every_step, 4)
{
    train("pipedream", 2, 2);
    train("pipedream-2bw", 2, 2);
}

/* Narayanan et al. 2019, section 3.3: delay P-1 at every stage. */
DIST_TEST(vertical_sync_gives_a_micro_batch_one_version_at_all_stages, 4)
{
    train_with("pipedream", 4, 1, true, NULL);
    train_with("pipedream", 2, 2, true, NULL);
}

DIST_TEST(vertical_sync_on_8, 8)
{
    train_with("pipedream", 8, 1, true, NULL);
}

DIST_TEST(a_stage_without_parameters_steps_without_an_optimizer, 3)
{
    train_with("pipedream", 3, 1, false, bare_cut);
    train_with("pipedream", 3, 1, true, bare_cut);
}

/* ---- logs that are wrong -------------------------------------------------------------------- */

enum { LINES_MAX = 2 + 2 * MICRO, LINE = 160 };

/* One call of two stages, each on its rank. */
static void log_a_call(void)
{
    ls_pipeline *pipe = NULL;
    ls_module *net = make_net();
    trained done = {.call = 0};
    CHECK_OK(ls_pipeline_new(net, ls_world(),
                             LS_OPTIONS(ls_pipeline_options, .schedule = "pipedream",
                                        .micro_batches = MICRO, .log = path),
                             &pipe));
    ls_optim *optim = ls_adamw_new(net, LS_OPTIONS(ls_adamw_options, .lr = 0.02));
    CHECK_OK(ls_pipeline_set_optim(pipe, optim));
    call_pipeline(pipe, net, 0, &done);
    free_outputs(&done);
    ls_optim_free(optim);
    CHECK_OK(ls_pipeline_free(pipe));
    ls_module_free(net);
}

static int read_lines(char lines[][LINE])
{
    int count = 0;
    FILE *file = fopen(path, "r");
    CHECK(file != NULL);
    while (count < LINES_MAX && fgets(lines[count], LINE, file) != NULL) {
        count++;
    }
    CHECK(fclose(file) == 0);
    return count;
}

static void write_lines(char lines[][LINE], int count)
{
    FILE *file = fopen(path, "w");
    CHECK(file != NULL);
    for (int i = 0; i < count; i++) {
        CHECK(fputs(lines[i], file) >= 0);
    }
    CHECK(fclose(file) == 0);
}

static ls_status say_micro(void *arg, int copy, int64_t number, ls_micro_batch *out)
{
    (void)arg;
    *out = micro_of((int)number / MICRO, (int)number % MICRO, copy);
    return LS_OK;
}

static ls_status no_micro(void *arg, int copy, int64_t number, ls_micro_batch *out)
{
    return number < 3 ? say_micro(arg, copy, number, out) : LS_ERR_INVALID;
}

/* With data that end before the log does. */
static void end_early(void)
{
    ls_module *net = make_net();
    ls_optim *optim = ls_adamw_new(net, LS_OPTIONS(ls_adamw_options, .lr = 0.02));
    CHECK_STATUS(
        ls_pipeline_replay(net, optim,
                           LS_OPTIONS(ls_pipeline_replay_options, .log = path, .micro = no_micro)),
        LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(), "micro-batch %lld of the replay");
    CHECK_CONTAINS(ls_error_message(), "micro-batch 3 of the replay");
    ls_optim_free(optim);
    ls_module_free(net);
}

static void refuse_log(const char *cut, int line, const char *says)
{
    char where[32];
    ls_module *net = make_net();
    ls_optim *optim = ls_adamw_new(net, LS_OPTIONS(ls_adamw_options, .lr = 0.02));
    CHECK_STATUS(ls_pipeline_replay(net, optim,
                                    LS_OPTIONS(ls_pipeline_replay_options, .log = path,
                                               .micro = say_micro, .cut = cut)),
                 LS_ERR_MISMATCH);
    CHECK_SAYS(ls_error_message(), says);
    (void)snprintf(where, sizeof where, line > 0 ? "log, line %d: " : "log", line);
    CHECK_CONTAINS(ls_error_message(), where);
    ls_optim_free(optim);
    ls_module_free(net);
}

#define OTHER_ORDER                                                                                \
    SAYS("ls_pipeline_replay: %s, line %lld: micro-batch %lld of stage %d comes next, reads "      \
         "version %lld at most and makes %lld; the log was changed, or lines are missing")
#define OTHER_HASH                                                                                 \
    SAYS(                                                                                          \
        "ls_pipeline_replay: %s, line %lld: version %lld of stage %d has hash %016llx there, and " \
        "%016llx here; a line was moved or changed, or the run had other data, settings or code")

/* Line `at` becomes the text; 0-based, as in `lines`. */
static void check_changed(char lines[][LINE], int count, int at, const char *text, int line,
                          const char *says)
{
    char kept[LINE];
    memcpy(kept, lines[at], LINE);
    (void)snprintf(lines[at], LINE, "%s", text);
    write_lines(lines, count);
    refuse_log(NULL, line, says);
    memcpy(lines[at], kept, LINE);
}

/* Swaps what the micro-batch in line `at` read with the one before it in its stage. */
static void check_moved_read(char lines[][LINE], int count, int at)
{
    char text[LINE];
    char *read = strstr(lines[at], "read="), *made = strstr(lines[at], "made=");
    CHECK(read != NULL && made != NULL);
    (void)snprintf(text, LINE, "%.*sread=%d %s", (int)(read - lines[at]), lines[at],
                   atoi(read + 5) - 1, made);
    check_changed(lines, count, at, text, at + (at % 2 == 0 ? 1 : 0), OTHER_HASH);
}

DIST_TEST(a_log_with_one_event_moved_fails_at_that_event, 2)
{
    static char lines[LINES_MAX][LINE];
    begin_log();
    log_a_call();
    if (ls_rank() == 0) {
        char moved[LINE];
        const int count = read_lines(lines), at = 2 + 2 * 4; /* micro-batch 4, stage 0 */
        CHECK_INT(count, LINES_MAX);
        end_early();
        refuse_log("e.0 f.0", 0,
                   SAYS("ls_pipeline_replay: the cut \"%.200s\" makes %d stages, and "
                        "%s has %d; give the cut of the run"));
        check_moved_read(lines, count, at);
        check_moved_read(lines, count, at + 1);
        check_changed(lines, count, at, "stage step=4 read=3 made=6 shard=0 hash=-\n", at + 1,
                      OTHER_ORDER);
        check_changed(lines, count, at, "stage step=4 read=5 made=5 shard=0 hash=-\n", at + 1,
                      OTHER_ORDER);
        check_changed(lines, count, at, "push worker=0 step=4 read=3 made=5 shard=0 hash=-\n",
                      at + 1, OTHER_ORDER);
        memcpy(moved, lines[at], LINE);
        memmove(lines[at], lines[at + 1], 3 * sizeof lines[0]);
        memcpy(lines[at + 3], moved, LINE);
        write_lines(lines, count);
        refuse_log(NULL, at + 1, OTHER_ORDER);
    }
    end_log();
}

DIST_TEST(a_log_is_of_a_schedule_that_steps_within_a_call, 1)
{
    ls_module *net = make_net();
    ls_pipeline *pipe = NULL;
    CHECK_STATUS(ls_pipeline_new(net, ls_world(),
                                 LS_OPTIONS(ls_pipeline_options, .schedule = "1f1b",
                                            .micro_batches = MICRO, .log = "log"),
                                 &pipe),
                 LS_ERR_INVALID);
    CHECK_SAYS(
        ls_error_message(),
        "ls_pipeline_new: log \"%.200s\": a replay log is of versions that a call makes, and "
        "schedule %s steps after it; leave log out, or take pipedream");
    ls_module_free(net);
}

DIST_TEST(a_replay_needs_a_model_an_optimizer_a_log_and_micro_batches, 1)
{
    ls_module *net = make_net();
    ls_optim *optim = ls_adamw_new(net, NULL);
    const ls_pipeline_replay_options *whole = LS_OPTIONS(ls_pipeline_replay_options, .log = "log",
                                                         .micro = say_micro),
                                     *wrong[] = {
                                         LS_OPTIONS(ls_pipeline_replay_options, .micro = say_micro),
                                         LS_OPTIONS(ls_pipeline_replay_options, .log = "log"),
                                         LS_OPTIONS(ls_pipeline_replay_options, .log = "log",
                                                    .micro = say_micro, .copies = 0)};
    CHECK_STATUS(ls_pipeline_replay(NULL, optim, whole), LS_ERR_INVALID);
    CHECK_STATUS(ls_pipeline_replay(net, NULL, whole), LS_ERR_INVALID);
    for (int i = 0; i < 3; i++) {
        CHECK_STATUS(ls_pipeline_replay(net, optim, wrong[i]), LS_ERR_INVALID);
        CHECK_SAYS(ls_error_message(),
                   "ls_pipeline_replay: give the whole model, its optimizer, a log, a function for "
                   "the micro-batches, and one copy at least");
    }
    ls_optim_free(optim);
    ls_module_free(net);
}

/* ---- jobs that die --------------------------------------------------------------------------- */

typedef enum phase { IN_LOSS, IN_STEP, BY_ALARM } phase;

static struct { /* inherited by the ranks */
    phase at;
    int victim, alarm_us;
    int64_t versions;
} death;

static int losses, updates;
static void (*update)(const ls_optim *optim, const ls__step_part *parts, int64_t count);

static void die(int signal)
{
    (void)signal;
    (void)kill(getpid(), SIGKILL);
}

/* In the second call. */
static ls_tensor *fatal_loss(void *arg, ls_tensor *output, ls_tensor *target)
{
    (void)arg;
    if (death.at == IN_LOSS && ++losses > MICRO + 3) {
        die(0);
    }
    return ls_cross_entropy(output, target, NULL);
}

/* The step ends after half of the parameters. */
static void update_half(const ls_optim *optim, const ls__step_part *parts, int64_t count)
{
    const bool fatal = ++updates > MICRO + 3;
    update(optim, parts, fatal ? count / 2 : count);
    if (fatal) {
        die(0);
    }
}

static void prepare_death(ls_optim *optim)
{
    static ls__optim_class fatal;
    if (ls_rank() == death.victim && death.at == IN_STEP) {
        fatal = *optim->cls;
        update = fatal.update;
        fatal.update = update_half;
        optim->cls = &fatal;
    }
    if (ls_rank() == death.victim && death.at == BY_ALARM) {
        (void)signal(SIGALRM, die);
        (void)ualarm((useconds_t)death.alarm_us, 0);
    }
}

static int mortal_main(void *arg)
{
    (void)arg;
    ls_pipeline *pipe = NULL;
    ls_status status = ls_init(NULL);
    ls_module *net = make_net();
    LS_CHECK(ls_pipeline_new(net, ls_world(),
                             LS_OPTIONS(ls_pipeline_options, .schedule = "pipedream",
                                        .micro_batches = MICRO, .loss = fatal_loss, .log = path),
                             &pipe));
    ls_optim *optim = ls_adamw_new(net, LS_OPTIONS(ls_adamw_options, .lr = 0.02));
    status = status < 0 ? status : ls_pipeline_set_optim(pipe, optim);
    LS_CHECK(ls_barrier(ls_world(), NULL, NULL));
    prepare_death(optim);
    for (int call = 0; call < 400 && status == LS_OK; call++) {
        LS_SCOPE;
        ls_micro_batch micro[MICRO];
        for (int m = 0; m < MICRO; m++) {
            micro[m] = micro_of(call, m, 0);
        }
        status = ls_pipeline_backward(pipe, net, micro, NULL);
    }
    _exit(status < 0);
}

static int replay_main(void *arg)
{
    (void)arg;
    int64_t versions = 0;
    bool ended = true;
    LS_CHECK(ls_init(NULL));
    ls_module *net = make_net();
    ls_optim *optim = ls_adamw_new(net, LS_OPTIONS(ls_adamw_options, .lr = 0.02));
    LS_CHECK(
        ls_pipeline_replay(net, optim,
                           LS_OPTIONS(ls_pipeline_replay_options, .log = path, .micro = say_micro,
                                      .versions = &versions, .ended = &ended)));
    ls_optim_free(optim);
    ls_module_free(net);
    LS_CHECK(ls_finalize());
    return versions >= death.versions && !ended ? 0 : 7;
}

/* What it wrote is replayed: calls that all ranks ended. */
static void check_death(phase at, int victim, int alarm_us)
{
    scratch_begin();
    (void)snprintf(path, sizeof path, "%s", scratch_at("log"));
    death.at = at;
    death.victim = victim;
    death.alarm_us = alarm_us;
    death.versions = at == BY_ALARM ? 0 : (int64_t)3 * MICRO;
    CHECK(ls_spawn(mortal_main, NULL, 3) < 0);
    CHECK_OK(ls_spawn(replay_main, NULL, 1));
    scratch_end();
}

TEST(the_log_of_a_job_that_died_is_replayed_as_far_as_it_goes)
{
    check_death(IN_LOSS, 2, 0);
    for (int victim = 0; victim < 3; victim++) {
        check_death(IN_STEP, victim, 0);
        check_death(BY_ALARM, victim, 2000 + 3000 * victim);
    }
}

/* ---- refused -------------------------------------------------------------------------------- */

DIST_TEST(zero_is_refused, 2)
{
    if (test_on_device()) {
        SKIP("a device that is apart refuses zero before");
    }
    ls_module *net = make_net();
    ls_pipeline *pipe = NULL;
    ls_group *own = NULL;
    CHECK_OK(ls_pipeline_new(
        net, ls_world(),
        LS_OPTIONS(ls_pipeline_options, .schedule = "pipedream", .micro_batches = MICRO), &pipe));
    CHECK_OK(ls_group_split(ls_world(), ls_rank(), 0, NULL, &own));
    ls_module *ddp = ls_ddp_new(net, own, LS_OPTIONS(ls_ddp_options, .zero = 1));
    ls_optim *optim = ls_adamw_new(ddp, NULL);
    CHECK_OK(ls_pipeline_set_optim(pipe, optim));
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
    ls_micro_batch micro[MICRO];
    for (int m = 0; m < MICRO; m++) {
        micro[m] = micro_of(0, m, 0);
    }
    CHECK_STATUS(ls_pipeline_backward(pipe, ddp, micro, NULL), LS_ERR_UNSUPPORTED);
    CHECK_SAYS(ls_error_message(),
               "ls_pipeline_backward: the optimizer steps while micro-batches are in flight, with "
               "versions of the parameters that lie elsewhere, and zero gathers parameters in "
               "place; leave zero out, or step after ls_pipeline_backward");
    CHECK_STATUS(ls_pipeline_free(pipe), LS_ERR_UNSUPPORTED);
    ls_optim_free(optim);
    ls_module_free(ddp);
    CHECK_OK(ls_group_free(own));
}

DIST_TEST(divided_parameters_are_refused, 2)
{
    if (test_on_device()) {
        SKIP("a device that is apart refuses zero before");
    }
    ls_module *net = make_net();
    ls_pipeline *pipe = NULL;
    ls_group *own = NULL;
    CHECK_OK(ls_pipeline_new(
        net, ls_world(),
        LS_OPTIONS(ls_pipeline_options, .schedule = "1f1b", .micro_batches = MICRO), &pipe));
    CHECK_OK(ls_group_split(ls_world(), ls_rank(), 0, NULL, &own));
    ls_module *ddp = ls_ddp_new(net, own, LS_OPTIONS(ls_ddp_options, .zero = 3));
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
    ls_micro_batch micro[MICRO];
    for (int m = 0; m < MICRO; m++) {
        micro[m] = micro_of(0, m, 0);
    }
    CHECK_STATUS(ls_pipeline_backward(pipe, ddp, micro, NULL), LS_ERR_UNSUPPORTED);
    CHECK_SAYS(ls_error_message(),
               "ls_pipeline_backward: zero 3 would gather the parameters of a stage for each of "
               "its micro-batches, in an order that differs from rank to rank; take zero 2");
    CHECK_STATUS(ls_pipeline_free(pipe), LS_ERR_UNSUPPORTED);
    ls_module_free(ddp);
    CHECK_OK(ls_group_free(own));
}

/* Also where a call has as many micro-batches as a step. */
DIST_TEST(a_schedule_that_steps_itself_needs_an_optimizer, 2)
{
    static const char *const schedules[] = {"pipedream", "pipedream-2bw"};
    for (int i = 0; i < 4; i++) {
        const int count = i < 2 ? i + 1 : MICRO;
        ls_module *net = make_net();
        ls_pipeline *pipe = NULL;
        CHECK_OK(ls_pipeline_new(
            net, ls_world(),
            LS_OPTIONS(ls_pipeline_options, .schedule = schedules[i % 2], .micro_batches = count),
            &pipe));
        LS_SCOPE;
        ls_micro_batch micro[MICRO];
        for (int m = 0; m < count; m++) {
            micro[m] = micro_of(0, m, 0);
        }
        CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
        CHECK(ls_pipeline_backward(pipe, net, micro, NULL) < 0);
        CHECK_CONTAINS(ls_error_message(), "give it the optimizer with ls_pipeline_set_optim");
        CHECK(ls_pipeline_free(pipe) < 0);
        ls_module_free(net);
    }
}

/* The user cannot look between the gradient and the step. */
static void check_nan(const char *schedule)
{
    ls_module *net = make_net();
    ls_pipeline *pipe = NULL;
    CHECK_OK(ls_pipeline_new(
        net, ls_world(),
        LS_OPTIONS(ls_pipeline_options, .schedule = schedule, .micro_batches = MICRO), &pipe));
    ls_optim *optim = ls_adamw_new(net, NULL);
    CHECK_OK(ls_pipeline_set_optim(pipe, optim));
    {
        LS_SCOPE;
        ls_micro_batch micro[MICRO];
        for (int m = 0; m < MICRO; m++) {
            micro[m] = micro_of(0, m, 0);
        }
        put_float(micro[3].inputs[0], 7, NAN);
        CHECK(ls_pipeline_backward(pipe, net, micro, NULL) < 0);
    }
    CHECK_SAYS(
        ls_error_message(),
        "ls_pipeline_backward: the gradient of %.200s is not finite on rank %d (element %lld "
        "of %lld), and the optimizer has not stepped with it; look for a division by zero or "
        "a logarithm of 0, or lower the learning rate%s");
    ls_param params[PARAMS];
    const int count = ls_module_params(net, params, PARAMS);
    for (int i = 0; i < count; i++) {
        const float *at = elements_of(params[i].value);
        for (int64_t e = 0; e < ls_numel(params[i].value); e++) {
            CHECK(isfinite(at[e]));
        }
    }
    CHECK_STATUS(ls_pipeline_free(pipe), LS_ERR_INVALID);
    ls_optim_free(optim);
    ls_module_free(net);
}

DIST_TEST(a_gradient_that_is_not_finite_is_not_stepped_with, 3)
{
    check_nan("pipedream");
}

DIST_TEST(a_gradient_that_is_not_finite_is_not_stepped_with_in_2bw, 2)
{
    check_nan("pipedream-2bw");
}

TEST_MAIN
