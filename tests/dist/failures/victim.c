/* SPDX-License-Identifier: Apache-2.0 */
/* A training program of which one rank comes to grief at a chosen place in a chosen way.
 *
 *     victim HOW WHERE RANK FOLDER
 *     HOW    none, kill, segv, abort, exit0, exit3, stop, oom (no memory from there on)
 *     WHERE  startup, rendezvous, forward, backward, stage (the forward of its stage of a
 *            pipeline), the name of an operation (all_reduce … recv), group, between, compute,
 *            checkpoint, exit; survived: between steps, and all ranks have made a mistake on
 *            another group before, and gone on
 *            hook0, hook1: in that phase of a communication hook, on the reducer's own thread or
 *            on that of backward
 *            zero_forward, zero_backward: with zero 3, inside the gathering of parameters in
 *            forward, and in backward while the others gather; zero_step: with zero 2, inside the
 *            gathering that ends a step
 *            transfer: in one of many large all-reduces, mostly while its data moves
 *            forever: it trains until a rank is killed
 *
 * "Inside" an operation means: an alarm goes off in the victim while it waits for the next rank,
 * which comes late. At that moment it writes "STRIKE <monotonic seconds>" to stderr. In `compute`
 * the others are in a loop of their own, without a call of the library.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <lockstep/checkpoint.h>
#include <lockstep/lockstep.h>

#include "autograd/param.h"
#include "base/runtime.h"

enum { DIM = 32, BATCH = 8, STEPS = 4, FATAL_STEP = 2, COUNT = 4096, RANKS_MAX = 8 };
enum { ALARM_US = 60000, AGAIN_US = 5000, LATE_US = 200000, COMPUTE_SECONDS = 20, LARGE = 4 << 20 };

static const char *how, *where, *folder;
static int victim, rank, size, step;
static volatile sig_atomic_t struck;

/* ---- what happens ------------------------------------------------------------------------- */

static bool how_is(const char *name)
{
    return strcmp(how, name) == 0;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Leaves the process without memory: a limit, and what malloc still holds is taken. */
static void use_up_memory(void)
{
    const struct rlimit none = {1 << 20, 1 << 20};
    (void)setrlimit(RLIMIT_AS, &none);
    for (size_t bytes = 1 << 20; bytes >= 16; bytes /= 2) {
        while (malloc(bytes) != NULL) {
        }
    }
}

static void strike(void)
{
    char line[64];
    const int n = snprintf(line, sizeof line, "STRIKE %.4f\n", now());
    if (write(2, line, (size_t)n) < 0) {
        _exit(9);
    }
    struck = 1;
    if (how_is("exit0") || how_is("exit3")) {
        _exit(how_is("exit3") ? 3 : 0);
    }
    if (how_is("oom")) {
        use_up_memory();
        return;
    }
    raise(how_is("kill") ? SIGKILL : how_is("segv") ? SIGSEGV : how_is("stop") ? SIGSTOP : SIGABRT);
}

/* ---- where -------------------------------------------------------------------------------- */

static bool at(const char *here)
{
    return step == FATAL_STEP && strcmp(where, here) == 0 && !how_is("none");
}

/* On a loaded machine the alarm may go off before reports know that the rank is in ls_init. */
static bool is_unknown(void)
{
    const ls_runtime *runtime = ls__self.runtime;
    return at("rendezvous") && (runtime == NULL || runtime->activity->phase != LS__PHASE_START);
}

static void strike_by_alarm(int signal)
{
    (void)signal;
    if (is_unknown()) {
        (void)ualarm(AGAIN_US, 0);
    } else {
        strike();
    }
}

static void strike_at(const char *here)
{
    if (at(here) && rank == victim) {
        strike();
    }
}

/* A rank that ends by itself soon after a failure may well do so because of it: so it waits until
 * that lies in the past. Under mpirun nobody learns of the signal that has killed it. */
static void strike_survived(void)
{
    if (at("survived") && rank == victim &&
        (how_is("abort") || how_is("exit0") || how_is("exit3") || getenv("LOCKSTEP_MPI") != NULL)) {
        usleep(3300000);
    }
    strike_at("survived");
}

/* Around a call in which the victim waits: before it … */
static void meet(const char *here)
{
    if (!at(here)) {
        return;
    }
    if (rank == victim && how_is("oom")) {
        strike();
    } else if (rank == victim) {
        (void)signal(SIGALRM, strike_by_alarm);
        (void)ualarm(ALARM_US, 0);
    }
    if (rank == (victim + 1) % size) {
        usleep(LATE_US);
    }
}

/* … and after it, for a call in which it did not have to wait. */
static void part(const char *here)
{
    while (at(here) && rank == victim && !struck) {
        usleep(1000);
    }
}

#define INSIDE(name, call)                                                                         \
    do {                                                                                           \
        meet(name);                                                                                \
        LS_CHECK(call);                                                                            \
        part(name);                                                                                \
    } while (0)

/* ---- a model with a trap in each pass ------------------------------------------------------ */

typedef struct fragile {
    ls_module base;
    ls_module *fc1, *fc2;
} fragile;

static ls_tensor *fragile_forward(ls_module *m, ls_tensor *x)
{
    fragile *self = (fragile *)m;
    meet("zero_forward");
    ls_tensor *h = ls_relu(ls_forward(self->fc1, x));
    part("zero_forward");
    strike_at("forward");
    return ls_forward(self->fc2, h);
}
static const ls_module_class fragile_class =
    LS_MODULE_CLASS(.name = "fragile", .forward = fragile_forward);

/* A leaf whose gradient is ready in the middle of backward. */
static ls_status trap_begin(ls__observer *self, const ls__backward_info *info)
{
    (void)self;
    (void)info;
    return LS_OK;
}
static ls_status trap_ready(ls__observer *self, int index)
{
    (void)self;
    (void)index;
    strike_at("backward");
    strike_at("zero_backward");
    return LS_OK;
}
static ls_status trap_end(ls__observer *self)
{
    (void)self;
    return LS_OK;
}
static void trap_abort(ls__observer *self, ls_status status, const char *message)
{
    (void)self;
    (void)status;
    (void)message;
}
static ls__observer observer = {.param_count = 1,
                                .begin = trap_begin,
                                .ready = trap_ready,
                                .end = trap_end,
                                .abort = trap_abort};

/* ---- a hook of two phases, the second of which changes nothing ------------------------------ */

static ls_status hook_before(void *state, ls_bucket *bucket, int phase, ls_exchange *out,
                             ls_stream *stream)
{
    (void)state;
    (void)stream;
    strike_at(phase == 0 ? "hook0" : "hook1");
    *out = (ls_exchange){.size = sizeof *out,
                         .kind = LS_EXCHANGE_ALL_REDUCE,
                         .input = ls_bucket_memory(bucket),
                         .output = ls_bucket_memory(bucket),
                         .count = ls_bucket_numel(bucket),
                         .dtype = ls_bucket_dtype(bucket),
                         .mean = true};
    return LS_OK;
}

static void set_hook(ls_module *net)
{
    if (strncmp(where, "hook", 4) == 0) {
        LS_CHECK(ls_ddp_set_hook(
            net, LS_OPTIONS(ls_comm_hook, .name = "fragile", .phases = 2, .before = hook_before)));
    }
}

static ls_module *make_model(void)
{
    fragile *net = ls_module_new(sizeof *net, &fragile_class);
    if (net == NULL) {
        return NULL;
    }
    net->fc1 = ls_module_add(&net->base, "fc1", ls_linear_new(DIM, DIM, NULL));
    net->fc2 = ls_module_add(&net->base, "fc2", ls_linear_new(DIM, DIM, NULL));
    const int zero = strcmp(where, "zero_step") == 0 ? 2 : strncmp(where, "zero", 4) == 0 ? 3 : 0;
    return ls_ddp_new(&net->base, ls_world(), LS_OPTIONS(ls_ddp_options, .zero = zero));
}

/* ---- a pipeline, of which each rank has a stage -------------------------------------------- */

enum { MICRO = 4 };

typedef struct stage {
    ls_module base;
    ls_module *fc;
} stage;

static ls_tensor *stage_forward(ls_module *m, ls_tensor *x)
{
    strike_at("stage");
    return ls_forward(((stage *)m)->fc, x);
}
static const ls_module_class stage_class =
    LS_MODULE_CLASS(.name = "stage", .forward = stage_forward);

static ls_tensor *mean_of(void *arg, ls_tensor *output, ls_tensor *target)
{
    (void)arg;
    (void)target;
    return ls_mean(output);
}

static ls_module *make_stages(void)
{
    ls_module *net = ls_sequential_new(NULL, 0);
    for (int r = 0; r < size; r++) {
        const char name[] = {(char)('a' + r), '\0'};
        stage *one = ls_module_new(sizeof *one, &stage_class);
        one->fc = ls_module_add(&one->base, "fc", ls_linear_new(DIM, DIM, NULL));
        (void)ls_module_add(net, name, &one->base);
    }
    return net;
}

static void run_stages(void)
{
    LS_SCOPE;
    ls_pipeline *pipeline = NULL;
    ls_micro_batch micro[MICRO];
    if (!at("stage")) {
        return;
    }
    ls_module *net = make_stages();
    LS_CHECK(ls_pipeline_new(
        net, ls_world(), LS_OPTIONS(ls_pipeline_options, .micro_batches = MICRO, .loss = mean_of),
        &pipeline));
    for (int m = 0; m < MICRO; m++) {
        micro[m] = (ls_micro_batch){.size = sizeof *micro,
                                    .inputs = {ls_ones(LS_SHAPE(BATCH, DIM), LS_FLOAT32)}};
    }
    LS_CHECK(ls_pipeline_backward(pipeline, net, micro, NULL));
    LS_CHECK(ls_pipeline_free(pipeline));
    ls_module_free(net);
}

/* ---- every operation ----------------------------------------------------------------------- */

static float a[COUNT * RANKS_MAX], b[COUNT * RANKS_MAX];

static void all_operations(void)
{
    ls_group *w = ls_world();
    const int root = (victim + 1) % size;
    INSIDE("all_reduce", ls_all_reduce(w, a, a, COUNT, LS_FLOAT32, LS_SUM, NULL, NULL));
    INSIDE("reduce_scatter", ls_reduce_scatter(w, a, b, COUNT, LS_FLOAT32, LS_SUM, NULL, NULL));
    INSIDE("all_gather", ls_all_gather(w, a, b, COUNT, LS_FLOAT32, NULL, NULL));
    INSIDE("broadcast", ls_broadcast(w, a, COUNT, LS_FLOAT32, root, NULL, NULL));
    INSIDE("reduce", ls_reduce(w, a, b, COUNT, LS_FLOAT32, LS_SUM, victim, NULL, NULL));
    INSIDE("gather", ls_gather(w, a, b, COUNT, LS_FLOAT32, victim, NULL, NULL));
    INSIDE("scatter", ls_scatter(w, a, b, COUNT, LS_FLOAT32, root, NULL, NULL));
    INSIDE("barrier", ls_barrier(w, NULL, NULL));
    const char *const letters[] = {"send", "recv"};
    for (int k = 0; k < 2; k++) {
        const int from = k == 0 ? victim : root, to = k == 0 ? root : victim;
        if (rank == from) {
            INSIDE(letters[k], ls_send(w, a, COUNT * RANKS_MAX, LS_FLOAT32, to, 7, NULL, NULL));
        } else if (rank == to) {
            INSIDE(letters[k], ls_recv(w, b, COUNT * RANKS_MAX, LS_FLOAT32, from, 7, NULL, NULL));
        }
        LS_CHECK(ls_barrier(w, NULL, NULL));
    }
}

static void transfer(void)
{
    static float large[LARGE];
    if (at("transfer") && rank == victim) {
        (void)signal(SIGALRM, strike_by_alarm);
        (void)ualarm(ALARM_US, 0);
    }
    while (at("transfer")) {
        LS_CHECK(ls_all_reduce(ls_world(), large, large, LARGE, LS_FLOAT32, LS_SUM, NULL, NULL));
    }
}

static void make_a_group(void)
{
    ls_group *group = NULL;
    INSIDE("group", ls_group_new(ls_world(), NULL, 0, "copy", &group));
    LS_CHECK(ls_group_free(group));
}

/* Ranks disagree, on a group of its own, and go on. */
static void make_a_mistake(void)
{
    ls_group *group = NULL;
    LS_CHECK(ls_group_new(ls_world(), NULL, 0, "mistaken", &group));
    const ls_status status =
        ls_all_reduce(group, a, a, 10 + (rank == 0), LS_FLOAT32, LS_SUM, NULL, NULL);
    if (status != LS_ERR_MISMATCH && status != LS_ERR_PEER) {
        _exit(9);
    }
    (void)ls_group_free(group);
    LS_CHECK(ls_barrier(ls_world(), NULL, NULL));
}

static void compute(void)
{
    volatile double x = 1.0;
    for (double end = now() + COMPUTE_SECONDS; at("compute") && now() < end;) {
        x = x * 1.0000001;
        strike_at("compute");
    }
}

static void save(ls_module *net)
{
    ls_checkpoint *checkpoint = NULL;
    const ls_checkpoint_item item = LS_ITEM("model", ls_ddp_module(net));
    const int64_t timeout_ms = how_is("stop") ? 3000 : 60000; /* it has one of its own */
    LS_CHECK(ls_checkpoint_new(folder, ls_world(),
                               LS_OPTIONS(ls_checkpoint_options, .timeout_ms = timeout_ms),
                               &checkpoint));
    INSIDE("checkpoint", ls_checkpoint_save(checkpoint, step, &item, 1));
    LS_CHECK(ls_checkpoint_free(checkpoint));
}

/* ---- the program --------------------------------------------------------------------------- */

static void train(ls_module *net, ls_optim *optim, ls_tensor *trap)
{
    const bool forever = strcmp(where, "forever") == 0;
    for (step = 0; step < STEPS || forever; step++) {
        strike_at("between");
        strike_survived();
        compute();
        {
            LS_SCOPE;
            ls_tensor *x = ls_mul(ls_randn(LS_SHAPE(BATCH, DIM)), trap);
            LS_CHECK(ls_backward(ls_mean(ls_forward(net, x))));
        }
        INSIDE("zero_step", ls_optim_step(optim));
        ls_optim_zero_grad(optim);
        run_stages();
        all_operations();
        transfer();
        make_a_group();
        if (step == FATAL_STEP) {
            save(net);
        }
        if (step == 0 && strcmp(where, "survived") == 0) {
            make_a_mistake();
        }
    }
}

static int number_of(const char *variable)
{
    const char *text = getenv(variable);
    return text != NULL ? atoi(text) : 0;
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        fprintf(stderr, "usage: victim HOW WHERE RANK FOLDER\n");
        return 2;
    }
    how = argv[1];
    where = argv[2];
    victim = atoi(argv[3]);
    folder = argv[4];
    rank = number_of("RANK");
    size = number_of("WORLD_SIZE");
    fprintf(stderr, "PID %d\n", (int)getpid());
    step = FATAL_STEP;
    strike_at("startup");
    INSIDE("rendezvous", ls_init(NULL));
    ls_module *net = make_model();
    if (net == NULL) {
        fprintf(stderr, "error: %s\n", ls_error_message());
        return 1;
    }
    set_hook(net);
    ls_optim *optim = ls_sgd_new(net, NULL);
    ls_tensor *trap = ls_set_requires_grad(ls_keep(ls_ones(LS_SHAPE(DIM), LS_FLOAT32)), true);
    LS_CHECK(ls__observer_add(&observer));
    LS_CHECK(ls__param_observe(trap, &observer, 0));
    train(net, optim, trap);
    ls__observer_remove(&observer);
    ls_optim_free(optim);
    ls_module_free(net);
    ls_free(trap);
    LS_CHECK(ls_finalize());
    step = FATAL_STEP;
    strike_at("exit");
    return 0;
}
