/* SPDX-License-Identifier: Apache-2.0 */
/* One rank of Lockstep in bench/compare_pipeline.py, compare_tensor.py, compare_zero.py and
 * compare_experts.py: steps of a network of ../nets.h, or of a layer of experts, over two ranks in
 * each of several forms, which take turns; pipeline_torch.py, tensor_torch.py, zero_torch.py and
 * experts_torch.py do the same. Public headers only.
 *
 *     contender_parallel NAME ROWS MICRO FORMS WARMUPS STEPS ROUNDS GATE JSON
 *
 * A form is a schedule of a pipeline, whose ranks are its stages; "tensor", in which the ranks
 * share each matrix; "experts", in which each has half of the experts; "zero0" to "zero3", data
 * parallelism with ls_ddp_options.zero; or "alone", in which each rank trains the whole network, of
 * experts one with half of them, and none communicates. The batch has MICRO micro-batches
 * of ROWS samples; only pipelines divide it. Rank R waits for a byte from the pipe GATE/R before
 * each turn, rank 0 writes one to GATE/done after the warm-up and after each turn.
 *
 * peak_mb is a rank's peak memory in the turns, less what it had before it made the networks; of
 * the larger rank, and of all forms together. share_mb has of a page of several processes this
 * rank's share. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../nets.h"

enum { MICRO_MAX = 64, FORMS_MAX = 8, STEPS_MAX = 100, ROUNDS_MAX = 100 };

typedef struct contender {
    char form[32];
    net_run run;
    ls_pipeline *pipe;           /* NULL: the form has no stages */
    ls_mesh *mesh;               /* of forms "tensor" and "experts" */
    int64_t parameters;          /* of all ranks together */
    double round_ms[ROUNDS_MAX]; /* medians over the steps of a turn, of the slowest rank */
    int rounds;
    double loss;
} contender;

static int rows, micro_batches;

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* ---- layers of experts ---------------------------------------------------------------------- */

/* A layer and what makes a loss of it. */
static ls_module *experts_of(int64_t dim, int64_t experts)
{
    ls_module *parts[] = {
        ls_moe_new(dim, 4 * dim, LS_OPTIONS(ls_moe_options, .experts = experts, .top_k = 2)),
        ls_linear_new(dim, 10, NULL)};
    return ls_sequential_new(parts, 2);
}

static ls_module *experts_8(void)
{
    return experts_of(384, 8);
}

static ls_module *experts_4(void)
{
    return experts_of(384, 4);
}

static ls_module *tiny_4(void)
{
    return experts_of(32, 4);
}

static ls_module *tiny_2(void)
{
    return experts_of(32, 2);
}

/* A rank with half of the experts for the tokens of two computes as many rows as one with half of
 * them for its own alone. */
static const net layers[] = {
    {"experts", "8 experts, d 384, k 2", experts_8, NET_VECTORS, 1024, {384}, 10, false},
    {"experts-alone", "half of them", experts_4, NET_VECTORS, 1024, {384}, 10, false},
    {"experts-tiny", "4 experts, d 32, k 2", tiny_4, NET_VECTORS, 64, {32}, 10, false},
    {"experts-tiny-alone", "half of them", tiny_2, NET_VECTORS, 64, {32}, 10, false},
};

static const net *find(const char *name)
{
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        if (strcmp(layers[i].name, name) == 0) {
            return &layers[i];
        }
    }
    return net_find(name);
}

/* The network that a rank trains alone. */
static const net *alone(const net *n)
{
    char name[64];
    (void)snprintf(name, sizeof name, "%s-alone", n->name);
    const net *other = find(name);
    return other != NULL ? other : n;
}

/* ---- training ------------------------------------------------------------------------------ */

static ls_status wrap(contender *c, int zero)
{
    ls_module *ddp = ls_ddp_new(c->run.model, ls_world(), LS_OPTIONS(ls_ddp_options, .zero = zero));
    c->run.model = ddp != NULL ? ddp : c->run.model;
    return ddp != NULL ? LS_OK : ls_error_status();
}

static ls_status divide_experts(contender *c)
{
    ls_status status = ls_mesh_new(ls_world(), "ep=*", &c->mesh);
    status = status < 0 ? status : ls_expert_parallel(c->run.model);
    return status < 0 ? status : wrap(c, 0);
}

static ls_status distribute(contender *c)
{
    if (strcmp(c->form, "alone") == 0) {
        return LS_OK;
    }
    if (strncmp(c->form, "zero", 4) == 0) {
        return wrap(c, c->form[4] - '0');
    }
    if (strcmp(c->form, "experts") == 0) {
        return divide_experts(c);
    }
    if (strcmp(c->form, "tensor") == 0) {
        const ls_status status = ls_mesh_new(ls_world(), "tp=*", &c->mesh);
        return status < 0 ? status : ls_tensor_parallel(c->run.model, NULL);
    }
    return ls_pipeline_new(
        c->run.model, ls_world(),
        LS_OPTIONS(ls_pipeline_options, .schedule = c->form, .micro_batches = micro_batches),
        &c->pipe);
}

static void open_contender(contender *c, const net *n)
{
    const bool by_itself = strcmp(c->form, "alone") == 0;
    LS_CHECK(
        net_open_model(&c->run, by_itself ? alone(n) : n, (int64_t)rows * micro_batches, true));
    LS_CHECK(distribute(c));
    c->run.optim = net_optim(n, c->run.model);
    LS_CHECK(c->run.optim != NULL ? LS_OK : ls_error_status());
    LS_CHECK(ls_mesh_use(NULL)); /* the other forms have none */
    c->parameters = ls_module_numel(c->run.model);
    LS_CHECK(
        ls_all_reduce(ls_world(), &c->parameters, &c->parameters, 1, LS_INT64, LS_SUM, NULL, NULL));
}

static void close_contender(contender *c)
{
    LS_CHECK(ls_pipeline_free(c->pipe));
    net_close(&c->run);
    LS_CHECK(ls_mesh_free(c->mesh));
}

/* Backward of all micro-batches; their loss. */
static double pipelined(contender *c)
{
    ls_micro_batch micro[MICRO_MAX];
    double losses[MICRO_MAX], loss = 0.0;
    for (int m = 0; m < micro_batches; m++) {
        micro[m] = (ls_micro_batch){
            .size = sizeof *micro,
            .inputs = {ls_slice(c->run.x, 0, (int64_t)m * rows, (int64_t)(m + 1) * rows)},
            .target = ls_slice(c->run.y, 0, (int64_t)m * rows, (int64_t)(m + 1) * rows)};
    }
    LS_CHECK(ls_pipeline_backward(c->pipe, c->run.model, micro, losses));
    for (int m = 0; m < micro_batches; m++) {
        loss += losses[m] / micro_batches;
    }
    return loss;
}

/* Backward of the batch. */
static ls_tensor *undivided(contender *c)
{
    ls_tensor *logits = ls_forward(c->run.model, c->run.x);
    ls_tensor *loss = strcmp(c->form, "tensor") == 0
                          ? ls_tensor_parallel_cross_entropy(logits, c->run.y, NULL)
                          : ls_cross_entropy(logits, c->run.y, NULL);
    LS_CHECK(ls_backward(loss));
    return loss;
}

/* Milliseconds. */
static double step(contender *c)
{
    LS_SCOPE;
    const double begin = now_ms();
    ls_tensor *loss = NULL;
    LS_CHECK(ls_mesh_use(c->mesh));
    ls_optim_zero_grad(c->run.optim);
    if (c->pipe != NULL) {
        c->loss = pipelined(c);
    } else {
        loss = undivided(c);
    }
    LS_CHECK(ls_optim_step(c->run.optim));
    if (loss != NULL) {
        LS_CHECK(ls_item(loss, &c->loss));
    }
    LS_CHECK(ls_mesh_use(NULL));
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

/* ---- memory -------------------------------------------------------------------------------- */

/* A line of a file of this process, as "VmHWM:" of "status", in MB. */
static double memory_mb(const char *of, const char *name)
{
    char line[256];
    double kb = 0.0;
    (void)snprintf(line, sizeof line, "/proc/self/%s", of);
    FILE *file = fopen(line, "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        kb = strncmp(line, name, strlen(name)) == 0 ? strtod(line + strlen(name), NULL) : kb;
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    return kb / 1024.0;
}

/* The share of pages of shared memory that counts for other processes. Those of programs and
 * libraries are not looked at: who else has them changes with what else runs. */
static double others_mb(void)
{
    return memory_mb("status", "RssShmem:") - memory_mb("smaps_rollup", "Pss_Shmem:");
}

/* From now on; where that is not permitted it is that of the whole run. */
static void reset_peak(void)
{
    FILE *file = fopen("/proc/self/clear_refs", "w");
    if (file != NULL) {
        (void)fputs("5", file);
        (void)fclose(file);
    }
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

/* peak_mb, and the same without the others' share of common pages. */
static void write_rows(const contender *all, int count, const double peak_mb[2], const char *path)
{
    FILE *out = fopen(path, "w");
    if (out == NULL) {
        perror(path);
        exit(1);
    }
    for (int i = 0; i < count; i++) {
        fprintf(out,
                "%s{\"form\": \"%s\", \"parameters\": %lld, \"loss\": %.9g, \"peak_mb\": %.3f, "
                "\"share_mb\": %.3f, \"slowest_ms\": [",
                i > 0 ? ", " : "[", all[i].form, (long long)all[i].parameters, all[i].loss,
                peak_mb[0], peak_mb[1]);
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

static int open_all(contender *all, const net *n, const char *forms, int warmups)
{
    int count = 0;
    for (const char *at = forms; *at != '\0' && count < FORMS_MAX;) {
        const size_t length = strcspn(at, ",");
        (void)snprintf(all[count].form, sizeof all[count].form, "%.*s", (int)length, at);
        open_contender(&all[count++], n);
        at += length + (at[length] == ',');
    }
    for (int i = 0; i < count; i++) {
        for (int w = 0; w < warmups; w++) {
            (void)step(&all[i]);
        }
    }
    return count;
}

int main(int argc, char **argv)
{
    static contender all[FORMS_MAX];
    const net *n = argc == 10 ? find(argv[1]) : NULL;
    if (n == NULL) {
        fprintf(stderr,
                "usage: contender_parallel NAME ROWS MICRO FORMS WARMUPS STEPS ROUNDS GATE JSON\n");
        return 2;
    }
    rows = atoi(argv[2]);
    micro_batches = atoi(argv[3]);
    const int steps = atoi(argv[6]), rounds = atoi(argv[7]);
    if (micro_batches > MICRO_MAX || steps > STEPS_MAX || rounds > ROUNDS_MAX) {
        fprintf(stderr, "contender_parallel: at most %d micro-batches, %d steps, %d rounds\n",
                MICRO_MAX, STEPS_MAX, ROUNDS_MAX);
        return 2;
    }
    LS_CHECK(ls_init(NULL));
    const double before_mb = memory_mb("status", "VmRSS:"), others_before_mb = others_mb();
    const int count = open_all(all, n, argv[4], atoi(argv[5]));
    reset_peak();
    for (int r = 0; r < rounds; r++) {
        wait_for_turn(argv[8]);
        for (int i = 0; i < count; i++) {
            turn(&all[(i + r) % count], steps);
        }
    }
    wait_for_turn(argv[8]);
    double peak_mb[2] = {memory_mb("status", "VmHWM:") - before_mb};
    peak_mb[1] = peak_mb[0] - (others_mb() - others_before_mb);
    LS_CHECK(ls_all_reduce(ls_world(), peak_mb, peak_mb, 2, LS_FLOAT64, LS_MAX, NULL, NULL));
    if (ls_rank() == 0) {
        write_rows(all, count, peak_mb, argv[9]);
    }
    for (int i = count - 1; i >= 0; i--) {
        close_contender(&all[i]);
    }
    LS_CHECK(ls_finalize());
    return 0;
}
