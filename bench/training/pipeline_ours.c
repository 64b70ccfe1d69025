/* One rank of Lockstep in bench/compare_pipeline.py: steps of a network of ../nets.h in pipeline
 * stages, with each schedule in turns; pipeline_torch.py does the same. Public headers only.
 *
 *     contender_pipeline NAME ROWS MICRO SCHEDULES WARMUPS STEPS ROUNDS GATE JSON
 *
 * A step has MICRO micro-batches of ROWS samples. Rank R waits for a byte from the pipe GATE/R
 * before each turn, rank 0 writes one to GATE/done after the warm-up and after each turn. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../nets.h"

enum { MICRO_MAX = 64, SCHEDULES_MAX = 8, STEPS_MAX = 100, ROUNDS_MAX = 100 };

typedef struct contender {
    char schedule[32];
    net_run run;
    ls_pipeline *pipe;
    double round_ms[ROUNDS_MAX]; /* medians over the steps of a turn, of the slowest rank */
    int rounds;
    double loss;
} contender;

static int rows, micro_batches;
static int64_t parameters; /* of both stages */

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* ---- training ------------------------------------------------------------------------------ */

/* Stages are cut from a model without an optimizer, whose place theirs takes. */
static void open_contender(contender *c, const net *n)
{
    LS_CHECK(net_open(&c->run, n, (int64_t)rows * micro_batches, true));
    ls_optim_free(c->run.optim);
    c->run.optim = NULL;
    LS_CHECK(ls_pipeline_new(
        c->run.model, ls_world(),
        LS_OPTIONS(ls_pipeline_options, .schedule = c->schedule, .micro_batches = micro_batches),
        &c->pipe));
    c->run.optim = net_optim(n, c->run.model);
    LS_CHECK(c->run.optim != NULL ? LS_OK : ls_error_status());
}

static void close_contender(contender *c)
{
    LS_CHECK(ls_pipeline_free(c->pipe));
    net_close(&c->run);
}

/* Milliseconds. */
static double step(contender *c)
{
    LS_SCOPE;
    ls_micro_batch micro[MICRO_MAX];
    double losses[MICRO_MAX];
    const double begin = now_ms();
    for (int m = 0; m < micro_batches; m++) {
        micro[m] = (ls_micro_batch){
            .size = sizeof *micro,
            .inputs = {ls_slice(c->run.x, 0, (int64_t)m * rows, (int64_t)(m + 1) * rows)},
            .target = ls_slice(c->run.y, 0, (int64_t)m * rows, (int64_t)(m + 1) * rows)};
    }
    ls_optim_zero_grad(c->run.optim);
    LS_CHECK(ls_pipeline_backward(c->pipe, c->run.model, micro, losses));
    LS_CHECK(ls_optim_step(c->run.optim));
    c->loss = 0.0;
    for (int m = 0; m < micro_batches; m++) {
        c->loss += losses[m] / micro_batches;
    }
    return now_ms() - begin;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void turn(contender *c, int steps)
{
    double ms[STEPS_MAX];
    LS_CHECK(ls_barrier(ls_world(), NULL, NULL));
    (void)step(c); /* the caches have another contender's numbers */
    for (int s = 0; s < steps; s++) {
        ms[s] = step(c);
    }
    LS_CHECK(ls_all_reduce(ls_world(), ms, ms, steps, LS_FLOAT64, LS_MAX, NULL, NULL));
    qsort(ms, (size_t)steps, sizeof *ms, by_size);
    c->round_ms[c->rounds++] = ms[steps / 2];
}

/* ---- turns --------------------------------------------------------------------------------- */

/* One byte from or to a named pipe, blocking. */
static void pass_byte(const char *gate, const char *name, int how)
{
    char path[1024], byte = '.';
    (void)snprintf(path, sizeof path, "%s/%s", gate, name);
    const int file = open(path, how | O_CLOEXEC);
    const ssize_t done = how == O_RDONLY ? read(file, &byte, 1) : write(file, &byte, 1);
    if (file < 0 || done != 1) {
        perror(path);
        exit(1);
    }
    (void)close(file);
}

static void wait_for_turn(const char *gate)
{
    char name[16];
    LS_CHECK(ls_barrier(ls_world(), NULL, NULL));
    if (ls_rank() == 0) {
        pass_byte(gate, "done", O_WRONLY);
    }
    (void)snprintf(name, sizeof name, "%d", ls_rank());
    pass_byte(gate, name, O_RDONLY);
}

static void write_rows(const contender *all, int count, const char *path)
{
    FILE *out = fopen(path, "w");
    if (out == NULL) {
        perror(path);
        exit(1);
    }
    for (int i = 0; i < count; i++) {
        fprintf(out,
                "%s{\"schedule\": \"%s\", \"parameters\": %lld, \"loss\": %.9g, \"slowest_ms\": [",
                i > 0 ? ", " : "[", all[i].schedule, (long long)parameters, all[i].loss);
        for (int r = 0; r < all[i].rounds; r++) {
            fprintf(out, "%s%.6f", r > 0 ? ", " : "", all[i].round_ms[r]);
        }
        fprintf(out, "]}");
    }
    fprintf(out, "]\n");
    if (fclose(out) != 0) {
        perror(path);
        exit(1);
    }
}

static int open_all(contender *all, const net *n, const char *schedules, int warmups)
{
    int count = 0;
    for (const char *at = schedules; *at != '\0' && count < SCHEDULES_MAX;) {
        const size_t length = strcspn(at, ",");
        (void)snprintf(all[count].schedule, sizeof all[count].schedule, "%.*s", (int)length, at);
        open_contender(&all[count++], n);
        at += length + (at[length] == ',');
    }
    for (int i = 0; i < count; i++) {
        for (int w = 0; w < warmups; w++) {
            (void)step(&all[i]);
        }
    }
    parameters = ls_module_numel(all[0].run.model);
    LS_CHECK(ls_all_reduce(ls_world(), &parameters, &parameters, 1, LS_INT64, LS_SUM, NULL, NULL));
    return count;
}

int main(int argc, char **argv)
{
    static contender all[SCHEDULES_MAX];
    const net *n = argc == 10 ? net_find(argv[1]) : NULL;
    if (n == NULL) {
        fprintf(
            stderr,
            "usage: contender_pipeline NAME ROWS MICRO SCHEDULES WARMUPS STEPS ROUNDS GATE JSON\n");
        return 2;
    }
    rows = atoi(argv[2]);
    micro_batches = atoi(argv[3]);
    const int steps = atoi(argv[6]), rounds = atoi(argv[7]);
    if (micro_batches > MICRO_MAX || steps > STEPS_MAX || rounds > ROUNDS_MAX) {
        fprintf(stderr, "contender_pipeline: at most %d micro-batches, %d steps, %d rounds\n",
                MICRO_MAX, STEPS_MAX, ROUNDS_MAX);
        return 2;
    }
    LS_CHECK(ls_init(NULL));
    const int count = open_all(all, n, argv[4], atoi(argv[5]));
    for (int r = 0; r < rounds; r++) {
        wait_for_turn(argv[8]);
        for (int i = 0; i < count; i++) {
            turn(&all[(i + r) % count], steps);
        }
    }
    wait_for_turn(argv[8]);
    if (ls_rank() == 0) {
        write_rows(all, count, argv[9]);
    }
    for (int i = count - 1; i >= 0; i--) {
        close_contender(&all[i]);
    }
    LS_CHECK(ls_finalize());
    return 0;
}
