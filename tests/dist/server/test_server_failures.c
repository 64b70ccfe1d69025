/* SPDX-License-Identifier: Apache-2.0 */
/* A worker or a server that dies, in any phase, is named by all others within half a second, and
 * none of them keeps half of a version. */
#include <signal.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "autograd/param.h"
#include "server/server.h"

#include "says.h"
#include "train.h"

enum { RANKS = 5, FATAL = 3 };

typedef enum phase {
    IN_FORWARD,
    BETWEEN,    /* backward and the optimizer */
    AFTER_HEAD, /* of a push: the server waits for the gradient */
    IN_PUSH,    /* some of the gradient is sent */
    IN_PULL,    /* the server sends what nobody takes */
    IN_STEP,    /* the server has stepped some parameters */
    AT_JOIN,
    BY_ALARM, /* wherever it is then */
    PHASES
} phase;

/* Between the ranks of a job. */
typedef struct board {
    phase at;
    int victim, alarm_us;
    recipe how;
    _Atomic int64_t died_ns; /* 0: nobody has */
    struct {
        _Atomic int ended; /* 1: with an error that names the victim */
        double seconds;
        bool whole;
        char message[1024];
    } rank[RANKS];
} board;

static board *shared;

static int64_t now_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void die(void)
{
    atomic_store(&shared->died_ns, now_ns());
    (void)kill(getpid(), SIGKILL);
}

static void on_alarm(int signal)
{
    (void)signal;
    die();
}

static bool due(phase at, int step)
{
    return shared->at == at && ls_rank() == shared->victim && step == FATAL;
}

/* ---- where it dies ------------------------------------------------------------------------- */

static int updates;
static void (*update)(const ls_optim *optim, const ls__step_part *parts, int64_t count);

/* The server's step ends after half of the parameters. */
static void update_half(const ls_optim *optim, const ls__step_part *parts, int64_t count)
{
    const bool fatal = ++updates > FATAL;
    update(optim, parts, fatal ? count / 2 : count);
    if (fatal) {
        die();
    }
}

static void die_in_step(ls_optim *optim)
{
    static ls__optim_class fatal;
    fatal = *optim->cls;
    update = fatal.update;
    fatal.update = update_half;
    optim->cls = &fatal;
}

static void die_in_push(ls_module *net, bool sends)
{
    ls__server *s = ls__server_of(net);
    (void)ls__server_ask(s, &(ls__server_head){.kind = LS__SERVER_PUSH, .weight = 1, .lr = 0.1});
    if (sends) {
        const ls__server_slice *slice = ls__server_slice_of(&s->layout, 0, 0);
        (void)ls_send(s->group, ls__server_grads(s->d, slice->region), (int64_t)slice->bytes,
                      LS_UINT8, ls__server_rank(s, 0), LS__SERVER_TAG_GRADIENT, NULL, NULL);
    }
    const struct timespec moment = {0, 20000000}; /* until the server is in the middle of it */
    (void)nanosleep(&moment, NULL);
    die();
}

static void die_in_pull(ls_module *net)
{
    ls__server *s = ls__server_of(net);
    const struct timespec moment = {0, 20000000};
    (void)ls__server_ask(s, &(ls__server_head){.kind = LS__SERVER_PULL});
    (void)nanosleep(&moment, NULL);
    die();
}

/* ---- a rank -------------------------------------------------------------------------------- */

static ls_status train_step(ls_module *net, ls_optim *optim, int step)
{
    LS_SCOPE;
    ls_optim_set_lr(optim, 1e-2);
    if (due(IN_PULL, step)) {
        die_in_pull(net);
    }
    ls_tensor *loss = loss_of(net, ls_rank(), step);
    if (due(IN_FORWARD, step)) {
        die();
    }
    LS_TRY(ls_tensor_status(loss));
    if (due(AFTER_HEAD, step) || due(IN_PUSH, step)) {
        die_in_push(net, shared->at == IN_PUSH);
    }
    LS_TRY(ls_backward(loss));
    if (due(BETWEEN, step)) {
        die();
    }
    LS_TRY(ls_optim_step(optim));
    ls_optim_zero_grad(optim);
    return LS_OK;
}

/* *before are the numbers of the last version that this rank had whole. */
static ls_status train(ls_module *net, ls_optim *optim, numbers *before)
{
    *before = numbers_of(net);
    LS_TRY(ls_server_run(net, optim));
    for (int step = 0; ls_server_works(net) && step < 400; step++) {
        *before = numbers_of(net);
        LS_TRY(train_step(net, optim, step));
        if (due(AT_JOIN, step)) {
            die();
        }
        if (shared->at == AT_JOIN && step == FATAL) {
            break;
        }
    }
    return ls_server_join(net);
}

/* In a failing step the version may have become the next one, whole: all of its bytes differ from
 * those before at once, or none do. Not where a shard may have a new version, and another none. */
static bool is_whole(ls_module *net, const numbers *before)
{
    const numbers now = numbers_of(net);
    ls_param params[64];
    const int count = ls_module_params(net, params, 64);
    size_t at = 0;
    int changed = 0, same = 0;
    for (int i = 0; i < count; i++) {
        const size_t bytes = (size_t)ls_numel(params[i].value) * sizeof(float);
        if (strcmp(params[i].name, "unused") != 0) {
            const bool equal = memcmp(now.data + at, before->data + at, bytes) == 0;
            same += equal;
            changed += !equal;
        }
        at += bytes;
    }
    const ls_server_options *o = &shared->how.server;
    const bool apart = o->mode != LS_SERVER_SYNC && o->servers > 1;
    return apart || same == 0 || changed == 0;
}

static int rank_main(void *arg)
{
    (void)arg;
    if (ls_init(NULL) < 0) {
        return 1;
    }
    const int rank = ls_rank();
    ls_module *net = serve_model(&shared->how);
    ls_optim *optim = optim_of(net, &shared->how);
    numbers before;
    if (shared->at == IN_STEP && rank == shared->victim) {
        die_in_step(optim);
    }
    if (shared->at == BY_ALARM && rank == shared->victim) {
        (void)signal(SIGALRM, on_alarm);
        (void)ualarm((useconds_t)shared->alarm_us, 0);
    }
    const ls_status status = train(net, optim, &before);
    const int64_t died = atomic_load(&shared->died_ns);
    shared->rank[rank].seconds = (double)(now_ns() - died) * 1e-9;
    shared->rank[rank].whole = ls_server_works(net) ? is_whole(net, &before) : true;
    (void)snprintf(shared->rank[rank].message, sizeof shared->rank[rank].message, "%s",
                   status < 0 ? ls_error_message() : "no error");
    atomic_store(&shared->rank[rank].ended, status < 0 && died != 0 ? 1 : 2);
    ls_optim_free(optim);
    ls_module_free(net);
    (void)ls_finalize();
    return status < 0;
}

static void check_death(recipe how, phase at, int victim, int alarm_us)
{
    char name[32];
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    shared->how = how;
    shared->at = at;
    shared->victim = victim;
    shared->alarm_us = alarm_us;
    CHECK(ls_spawn(rank_main, NULL, RANKS) < 0);
    (void)snprintf(name, sizeof name, "rank %d", victim);
    for (int r = 0; r < RANKS; r++) {
        if (r == victim) {
            continue;
        }
        if (atomic_load(&shared->rank[r].ended) != 1 ||
            strstr(shared->rank[r].message, name) == NULL ||
            !test_is_within(shared->rank[r].seconds, 0.5) || !shared->rank[r].whole) {
            test_fail(__FILE__, __LINE__, "phase %d, rank %d: ended %d after %.3f s, whole %d: %s",
                      (int)at, r, atomic_load(&shared->rank[r].ended), shared->rank[r].seconds,
                      shared->rank[r].whole, shared->rank[r].message);
        }
    }
    (void)munmap(shared, sizeof *shared);
}

static const recipe modes[] = {{.server = {.servers = 1}},
                               {.server = {.mode = LS_SERVER_ASYNC, .servers = 2}},
                               {.server = {.mode = LS_SERVER_STALE, .staleness = 2, .servers = 1}},
                               {.server = {.servers = 3, .colocated = true}}};
enum { MODES = sizeof modes / sizeof *modes };

static void check_worker(phase at)
{
    for (int m = 0; m < MODES; m++) {
        check_death(modes[m], at, 1, 0);
    }
}

TEST(a_worker_killed_in_the_forward_pass_is_named_by_all)
{
    check_worker(IN_FORWARD);
}

TEST(a_worker_killed_between_its_push_and_its_pull_is_named_by_all)
{
    check_worker(BETWEEN);
}

TEST(a_worker_killed_before_the_gradient_of_its_push_is_named_by_all)
{
    check_worker(AFTER_HEAD);
}

TEST(a_worker_killed_in_the_middle_of_a_push_is_named_by_all)
{
    check_worker(IN_PUSH);
}

TEST(a_worker_killed_while_it_pulls_is_named_by_all)
{
    check_worker(IN_PULL);
}

TEST(a_worker_killed_where_others_wait_for_it_to_join_is_named_by_all)
{
    check_worker(AT_JOIN);
}

TEST(a_server_killed_in_the_middle_of_a_step_is_named_by_all)
{
    for (int m = 0; m < MODES; m++) {
        check_death(modes[m], IN_STEP, RANKS - 1, 0);
    }
}

TEST(a_server_killed_at_any_moment_is_named_by_all)
{
    for (int i = 0; i < 12; i++) {
        check_death(modes[i % MODES], BY_ALARM, RANKS - 1, 3000 + 1500 * i);
    }
}

/* ---- errors that are no deaths --------------------------------------------------------------- */

static void refuse(ls_server_options options, int ranks_alike, const char *says)
{
    recipe how = {0};
    options.size = sizeof options;
    options.bucket_bytes = 2000;
    if (!ranks_alike && ls_rank() == 1) {
        options.staleness = 3;
    }
    ls_module *net = make_model(&how);
    CHECK(ls_server_new(net, ls_world(), &options) == NULL);
    CHECK_SAYS(ls_error_message(), says);
    ls_module_free(net);
}

DIST_TEST(options_that_differ_between_ranks_are_named, 3)
{
    refuse((ls_server_options){.mode = LS_SERVER_STALE, .servers = 1, .staleness = 2}, 0,
           SAYS("the ranks differ in"));
    CHECK_CONTAINS(ls_error_message(), "staleness");
}

/* None waits for the rank that is wrong. */
DIST_TEST(what_is_wrong_on_one_rank_only_is_named_by_all, 3)
{
    static const struct {
        ls_server_options options;
        const char *named;
    } wrong[] = {
        {{.servers = 9}, "servers: rank 0 has 1, as 2 of 3 ranks, rank 1 has 9"},
        {{.servers = 0}, "servers: rank 0 has 1, as 2 of 3 ranks, rank 1 has 0"},
        {{.servers = 1, .mode = (ls_server_mode)7}, "rank 1 has " SAYS("none of the modes")},
        {{.servers = 1, .backup = 5}, "backup: rank 0 has 0"},
        {{.servers = 1, .staleness = 2}, "staleness: rank 0 has 0"},
        {{.servers = 1, .clip_norm = -1.0}, "clip_norm: rank 0 has 0"}};
    const recipe how = {.norm = true};
    ls_module *net = make_model(&how);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        ls_server_options options =
            ls_rank() == 1 ? wrong[i].options : (ls_server_options){.servers = 1};
        options.size = sizeof options;
        options.bucket_bytes = 2000;
        CHECK(ls_server_new(net, ls_world(), &options) == NULL);
        CHECK_CONTAINS(ls_error_message(), "ls_server_new: the ranks differ in");
        CHECK_CONTAINS(ls_error_message(), wrong[i].named);
    }
    CHECK(ls_server_new(ls_rank() == 1 ? NULL : net, ls_world(), NULL) == NULL);
    CHECK_CONTAINS(ls_error_message(),
                   "the module: rank 0 has a whole one, as 2 of 3 ranks, rank 1 has NULL");
    CHECK_SAYS(ls_error_message(), "give every rank its replica");
    CHECK(ls_server_new(NULL, ls_world(), NULL) == NULL);
    CHECK_CONTAINS(ls_error_message(), "the module is NULL");
    ls_module *part = make_model(&how);
    ls_module *whole = ls_rank() == 1 ? ls_sequential_new(&part, 1) : part;
    CHECK(ls_server_new(part, ls_world(), NULL) == NULL);
    CHECK_SAYS(ls_error_message(), "a part of another");
    CHECK_SAYS(ls_error_message(), "a whole one");
    ls_module_free(whole);
    ls_group *mine = NULL;
    CHECK_OK(ls_group_split(ls_world(), ls_rank() > 0, 0, "some", &mine));
    if (ls_rank() > 0) {
        CHECK_OK(ls_sync_batch_norm_convert(net, mine));
    }
    CHECK(ls_server_new(net, ls_world(), NULL) == NULL);
    CHECK_CONTAINS(ls_error_message(), "rank 1 has of all ranks");
    CHECK_SAYS(ls_error_message(), "convert it on no rank (ls_sync_batch_norm_convert)");
    ls_module_free(net);
}

DIST_TEST(experts_are_refused, 2)
{
    ls_mesh *mesh = NULL;
    CHECK_OK(ls_mesh_new(ls_world(), "ep=2", &mesh));
    ls_module *net = ls_moe_new(IN, HIDDEN, NULL);
    CHECK(ls_server_new(net, ls_world(), NULL) == NULL);
    CHECK_SAYS(ls_error_message(),
               "ls_server_new: the gradient of %.200s is not summed over all ranks of the group "
               "(experts, norms under sequence parallelism), and servers add those of all workers; "
               "use ls_ddp_new");
    ls_module_free(net);
    CHECK_OK(ls_mesh_free(mesh));
}

DIST_TEST(a_module_that_is_freed_while_its_servers_run_is_named_by_the_others, 3)
{
    recipe how = {.server = {.servers = 1, .mode = LS_SERVER_ASYNC}};
    ls_module *net = serve_model(&how);
    ls_optim *optim = optim_of(net, &how);
    if (ls_rank() == 1) {
        CHECK_OK(ls_server_run(net, optim));
        ls_module_free(net);
    } else {
        ls_status status = ls_server_run(net, optim);
        status = status < 0 ? status : ls_server_join(net);
        CHECK_STATUS(status, LS_ERR_ABORTED);
        CHECK_CONTAINS(ls_error_message(), "rank 1");
        CHECK_SAYS(ls_error_message(), "the module was freed while its servers ran; call "
                                       "ls_server_join first");
        ls_module_free(net);
    }
    ls_optim_free(optim);
}

DIST_TEST(a_log_on_some_ranks_only_is_named, 3)
{
    recipe how = {0};
    ls_module *net = make_model(&how);
    CHECK(ls_server_new(net, ls_world(),
                        LS_OPTIONS(ls_server_options, .log = ls_rank() == 1 ? "log" : NULL)) ==
          NULL);
    CHECK_SAYS(ls_error_message(), "name one on every rank or on none");
    ls_module_free(net);
}

DIST_TEST(options_that_say_nothing_are_refused, 3)
{
    refuse((ls_server_options){.servers = 3}, 1, SAYS(", and one worker at least is left"));
    refuse((ls_server_options){.servers = 0}, 1, SAYS("servers is %d of %d ranks%s; give 1 to %d"));
    refuse((ls_server_options){.servers = 4, .colocated = true}, 1,
           SAYS("servers is %d of %d ranks%s; give 1 to %d"));
    refuse((ls_server_options){.servers = 1, .mode = (ls_server_mode)7}, 1,
           SAYS("mode is %d; give LS_SERVER_SYNC, LS_SERVER_ASYNC or LS_SERVER_STALE"));
    refuse(
        (ls_server_options){.servers = 1, .backup = 2}, 1,
        SAYS("backup is %d of %d workers with %s; give 0 to %d, and 0 where no step waits for all "
             "workers"));
    refuse(
        (ls_server_options){.servers = 1, .backup = 1, .mode = LS_SERVER_ASYNC}, 1,
        SAYS("backup is %d of %d workers with %s; give 0 to %d, and 0 where no step waits for all "
             "workers"));
    refuse((ls_server_options){.servers = 1, .clip_norm = 1.0, .mode = LS_SERVER_STALE}, 1,
           SAYS("clip_norm is %g with %s and backup %d; give 0, or a norm above 0 to "
                "LS_SERVER_SYNC without backup: others have no common gradient to limit"));
    refuse(
        (ls_server_options){.servers = 1, .staleness = 1}, 1,
        SAYS("staleness is %d with %s; give 0 or more steps to LS_SERVER_STALE, and 0 to the other "
             "modes"));
}

DIST_TEST(a_group_of_one_rank_has_no_server, 1)
{
    refuse((ls_server_options){.servers = 1, .colocated = true}, 1,
           SAYS("the group has one rank, and a server needs a worker; start two ranks at least"));
}

DIST_TEST(batch_norm_over_all_ranks_is_refused, 2)
{
    recipe how = {.norm = true};
    ls_module *net = make_model(&how);
    CHECK_OK(ls_sync_batch_norm_convert(net, ls_world()));
    CHECK_OK(ls_module_status(net));
    CHECK(ls_server_new(net, ls_world(), NULL) == NULL);
    CHECK_SAYS(ls_error_message(),
               "batch norm takes the statistics of all ranks "
               "(ls_sync_batch_norm_convert), and servers have no forward pass");
    ls_module_free(net);
}

/* A rank's mistake fails the others, which name it. */
static void fail_in_step(recipe how, ls_status want, const char *says,
                         ls_status (*step)(ls_module *net, ls_optim *optim, int step))
{
    ls_module *net = serve_model(&how);
    ls_optim *optim = optim_of(net, &how);
    ls_status status = ls_server_run(net, optim);
    for (int i = 0; ls_server_works(net) && i < STEPS && status == LS_OK; i++) {
        status = step(net, optim, i);
    }
    status = status < 0 ? status : ls_server_join(net);
    CHECK(status < 0);
    CHECK(status == want || status == LS_ERR_ABORTED);
    CHECK_SAYS(ls_error_message(), says);
    ls_optim_free(optim);
    ls_module_free(net);
    forget_settings();
}

static ls_status nan_step(ls_module *net, ls_optim *optim, int step)
{
    LS_SCOPE;
    ls_tensor *loss = loss_of(net, ls_rank(), step);
    LS_TRY(ls_backward(ls_scale(loss, ls_rank() == 1 && step == 3 ? NAN : 1.0)));
    return ls_optim_step(optim);
}

DIST_TEST(a_gradient_that_is_not_finite_is_not_pushed_and_names_its_worker, 4)
{
    static const char says[] =
        SAYS("in step %d, and was not pushed; look for a division by zero or a "
             "logarithm of 0, or lower the learning rate");
    fail_in_step((recipe){.server = {.servers = 1}}, LS_ERR_INVALID, says, nan_step);
    CHECK_CONTAINS(ls_error_message(), "on rank 1 ");
}

DIST_TEST(asynchronous_workers_learn_of_a_gradient_that_is_not_finite, 4)
{
    fail_in_step((recipe){.server = {.mode = LS_SERVER_ASYNC, .servers = 2}}, LS_ERR_INVALID,
                 SAYS("was not pushed"), nan_step);
    CHECK_CONTAINS(ls_error_message(), "on rank 1 ");
}

/* Every gradient is finite, and their sum is not. */
static ls_status huge_step(ls_module *net, ls_optim *optim, int step)
{
    LS_SCOPE;
    ls_param p[64];
    (void)optim;
    LS_TRY(ls_tensor_status(loss_of(net, ls_rank(), step)));
    CHECK(ls_module_params(net, p, 64) > 0);
    return ls_backward(ls_scale(ls_sum(p[0].value), 3e38));
}

DIST_TEST(gradients_whose_sum_overflows_have_no_norm, 4)
{
    fail_in_step((recipe){.server = {.servers = 1, .clip_norm = 1.0}}, LS_ERR_INVALID,
                 SAYS("server: the norm of the gradients is %g, though each of them is finite; "
                      "lower the learning rate"),
                 huge_step);
}

static ls_status rate_step(ls_module *net, ls_optim *optim, int step)
{
    LS_SCOPE;
    ls_optim_set_lr(optim, ls_rank() == 1 ? 0.2 : 0.1);
    return ls_backward(loss_of(net, ls_rank(), step));
}

DIST_TEST(learning_rates_that_differ_in_a_step_are_named, 4)
{
    fail_in_step((recipe){.server = {.servers = 1}}, LS_ERR_MISMATCH,
                 SAYS("; set the same on all workers"), rate_step);
}

static ls_status kind_step(ls_module *net, ls_optim *optim, int step)
{
    LS_SCOPE;
    (void)optim;
    ls_tensor *loss = loss_of(net, ls_rank(), step);
    return ls_rank() == 1 ? ls_backward_weighted(loss, 2) : ls_backward(loss);
}

DIST_TEST(weighted_and_plain_backwards_of_one_step_are_named, 4)
{
    fail_in_step((recipe){.server = {.servers = 1}}, LS_ERR_MISMATCH,
                 SAYS("one; use ls_backward_weighted on all workers or on none"), kind_step);
}

static bool is_bias(void *arg, const char *name, const ls_tensor *param)
{
    (void)arg, (void)param;
    return strstr(name, "bias") != NULL;
}

static bool is_weight(void *arg, const char *name, const ls_tensor *param)
{
    (void)arg, (void)param;
    return strstr(name, "weight") != NULL;
}

static ls_optim *other_optim(ls_module *net, int which)
{
    const double decay = which == 1 ? 0.5 : 0.01;
    ls_optim *optim =
        which == 0
            ? ls_sgd_new(net, NULL)
            : ls_adamw_new(net, LS_OPTIONS(ls_adamw_options, .lr = 1e-2, .weight_decay = decay));
    if (which == 2 || which == 4) {
        CHECK_OK(ls_optim_add_group(optim, which == 2 ? is_bias : is_weight, NULL,
                                    LS_OPTIONS(ls_optim_group_options, .lr_scale = 0.1)));
    }
    return optim;
}

/* Servers would step theirs, and nobody would see it: each has a job of its own. */
static void check_start(int odd, int which, const char *says)
{
    const recipe how = {.server = {.servers = 1}};
    ls_module *net = serve_model(&how);
    ls_optim *optim = other_optim(net, which == 4 ? 2 : 3); /* on all, so that the first is alike */
    ls_optim *given = ls_rank() == odd ? other_optim(net, which) : optim;
    ls_param p[64];
    CHECK(ls_module_params(net, p, 64) > 0);
    if (which == 3 && ls_rank() == odd) {
        CHECK_OK(ls_fill_constant(p[0].value, 0.5));
    }
    const ls_status status = ls_server_run(net, given);
    CHECK(status == LS_ERR_MISMATCH || status == LS_ERR_ABORTED);
    CHECK_SAYS(ls_error_message(), says);
    ls_module_free(net);
    if (given != optim) {
        ls_optim_free(given);
    }
    ls_optim_free(optim);
}

DIST_TEST(a_server_with_another_optimizer_is_named, 3)
{
    check_start(2, 0, SAYS("the optimizer"));
    CHECK_CONTAINS(ls_error_message(), "rank 2 has SGD");
    CHECK_SAYS(ls_error_message(),
               "give ls_server_run the same optimizer on every rank: servers step theirs");
}

DIST_TEST(a_worker_with_another_weight_decay_is_named, 3)
{
    check_start(1, 1, SAYS("the optimizer"));
    CHECK_CONTAINS(ls_error_message(), "weight_decay 0.5");
}

DIST_TEST(a_server_with_other_groups_of_parameters_is_named, 3)
{
    check_start(2, 2, SAYS("optimizer group %d"));
}

DIST_TEST(a_server_whose_group_has_other_parameters_is_named, 3)
{
    check_start(2, 4, SAYS("the optimizer's group of %.200s"));
}

DIST_TEST(parameters_that_one_rank_has_changed_are_named, 3)
{
    check_start(0, 3, SAYS("parameters and buffers"));
    CHECK_SAYS(ls_error_message(), "change them on no rank between ls_server_new, ls_server_join "
                                   "and ls_server_run, or on all alike");
}

/* Groups are freed without waiting for the others, who are elsewhere. */
DIST_TEST(a_log_that_cannot_be_made_fails_all_ranks_at_once, 3)
{
    const recipe how = {0};
    ls_module *net = make_model(&how);
    CHECK(ls_server_new(net, ls_world(),
                        LS_OPTIONS(ls_server_options, .log = "/nonexistent/log")) == NULL);
    CHECK_CONTAINS(ls_error_message(), "replay log: cannot make \"/nonexistent/log\"");
    ls_module_free(net);
}

static void check_call(ls_status status, const char *says)
{
    CHECK(status < 0);
    CHECK_SAYS(ls_error_message(), says);
}

/* Calls that would do nothing, or something else than with averages. */
DIST_TEST(calls_out_of_order_are_refused, 2)
{
    recipe how = {.server = {.servers = 1, .colocated = true}};
    ls_module *net = serve_model(&how);
    ls_optim *optim = optim_of(net, &how);
    double norm;
    LS_SCOPE;
    check_call(ls_server_join(net), SAYS("servers do not run; call ls_server_run first"));
    check_call(ls_tensor_status(loss_of(net, 0, 0)),
               SAYS("no server runs: call ls_server_run before the first step"));
    check_call(ls_ddp_set_local(net, true),
               SAYS("workers without a common step are LS_SERVER_ASYNC's"));
    bool more;
    check_call(ls_ddp_join(net, NULL, &more), SAYS("call ls_server_join after the last batch"));
    check_call(ls_ddp_step_in_backward(net, optim), SAYS("give the optimizer to ls_server_run"));
    const ls_comm_hook hook = {.size = sizeof hook, .name = "none"};
    check_call(ls_ddp_set_hook(net, &hook), SAYS("gradients are sent as they are"));
    CHECK_SAYS(ls_error_message(), "servers step the parameters of this module (ls_server_new): ");
    check_call(ls_clip_grad_norm(net, 1, NULL, &norm),
               SAYS("servers step the parameters (ls_server_new), and the gradients are sent in "
                    "backward; leave it out, and give ls_server_options.clip_norm"));
    CHECK_OK(ls_server_run(net, optim));
    one_step(net, optim, &how, ls_rank(), 0);
    CHECK_OK(ls_server_join(net));
    ls_optim_free(optim);
    ls_module_free(net);
}

DIST_TEST(an_optimizer_of_another_module_is_refused, 2)
{
    recipe how = {.server = {.servers = 1}};
    ls_module *net = serve_model(&how), *other = make_model(&how);
    ls_optim *optim = optim_of(other, &how);
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
    check_call(
        ls_server_run(net, optim),
        SAYS("%s: parameter %s is not one of the optimizer's; give one that was made for the whole "
             "module"));
    check_call(ls_server_run(net, NULL), SAYS("the optimizer is NULL; every rank makes one"));
    ls_optim_free(optim);
    ls_module_free(net);
    ls_module_free(other);
}

DIST_TEST(a_second_push_of_one_version_is_refused, 2)
{
    recipe how = {.server = {.servers = 1}};
    ls_module *net = serve_model(&how);
    ls_optim *optim = optim_of(net, &how);
    LS_SCOPE;
    ls_status status = ls_server_run(net, optim);
    if (ls_server_works(net)) {
        ls_tensor *first = loss_of(net, 0, 0);
        ls_tensor *second = loss_of(net, 0, 1);
        CHECK_OK(ls_backward(first));
        check_call(ls_backward(second),
                   SAYS("a push follows a push of the same version; call "
                        "ls_forward on what ls_server_new returned, or accumulate "
                        "in LS_NO_SYNC"));
        CHECK_OK(ls_server_join(net));
    } else {
        CHECK_OK(status);
        check_call(ls_tensor_status(loss_of(net, 0, 0)),
                   SAYS("is a server and has no data; train where ls_server_works is true"));
        CHECK_OK(ls_server_join(net));
    }
    ls_optim_free(optim);
    ls_module_free(net);
}

TEST_MAIN
