/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of measuring that all contenders in C share, see contender.h. */
#include "contender.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PERIOD 16381 /* a prime: data that went to a wrong place do not fit there */
#define RANKS_MAX 64
#define SAMPLES_MAX 256
#define SAMPLES_MIN 3
#define SAMPLE_BYTES 16000000 /* moved by a sample's operations */
#define CALLS_MAX 40
#define WARMUP_MS 40.0
#define CALLS_SLOW 3 /* where no call is done in a millisecond, though it moves little */

typedef struct command {
    contender_op op;
    int64_t count; /* elements an operation is called with */
    bool registered;
    int warmups, samples;
    double budget_ms;
} command;

typedef struct bench {
    const contender *self;
    command command;
    int calls;
    float *in, *out;
    int64_t in_count, out_count;
    float pattern[RANKS_MAX + 1][PERIOD]; /* each rank's data, and their sum */
} bench;

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* Whole numbers from 1 to 1000: their sums are exact in any order. */
static void draw(bench *b)
{
    uint64_t state = 88172645463325252u;
    const int ranks = b->self->ranks;
    for (int i = 0; i < PERIOD; i++) {
        b->pattern[ranks][i] = 0.0f;
    }
    for (int r = 0; r < ranks; r++) {
        for (int i = 0; i < PERIOD; i++) { /* Marsaglia 2003, xorshift */
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            b->pattern[r][i] = (float)(state % 1000 + 1);
            b->pattern[ranks][i] += b->pattern[r][i];
        }
    }
}

static void fill(float *x, int64_t count, const float *pattern)
{
    for (int64_t at = 0; at < count; at += PERIOD) {
        const int64_t left = count - at;
        memcpy(x + at, pattern, sizeof *x * (size_t)(left < PERIOD ? left : PERIOD));
    }
}

/* Elements of x that are not scale times pattern[first ...], where `tolerance` is relative. */
static int64_t count_wrong(const float *x, int64_t count, const float *pattern, int64_t first,
                           float scale, float tolerance)
{
    int64_t wrong = 0;
    for (int64_t at = 0; at < count;) {
        const int64_t begin = (first + at) % PERIOD;
        const int64_t most = PERIOD - begin, n = count - at < most ? count - at : most;
        for (int64_t i = 0; i < n; i++) {
            const float want = pattern[begin + i] * scale;
            wrong += !(fabsf(x[at + i] - want) <= tolerance * want);
        }
        at += n;
    }
    return wrong;
}

static void prepare(const bench *b)
{
    const float *own = b->pattern[b->self->rank];
    if (b->in != NULL) {
        fill(b->in, b->in_count, own);
    }
    fill(b->out, b->out_count, own);
}

/* After `calls` operations one after the other on the same memory. */
static int64_t check(const bench *b)
{
    const int ranks = b->self->ranks, rank = b->self->rank;
    const float *sum = b->pattern[ranks];
    int64_t wrong = 0;
    switch (b->command.op) {
    case CONTENDER_ALL_REDUCE: { /* from the second call on, sums of equal values: rounded */
        const float scale = (float)pow(ranks, b->calls - 1);
        return count_wrong(b->out, b->out_count, sum, 0, scale, b->calls > 1 ? 1e-4f : 0.0f);
    }
    case CONTENDER_ALL_GATHER:
        for (int r = 0; r < ranks; r++) {
            const float *block = b->out + (int64_t)r * b->command.count;
            wrong += count_wrong(block, b->command.count, b->pattern[r], 0, 1.0f, 0.0f);
        }
        return wrong;
    case CONTENDER_BROADCAST:
        return count_wrong(b->out, b->out_count, b->pattern[0], 0, 1.0f, 0.0f);
    case CONTENDER_REDUCE_SCATTER:
        return count_wrong(b->out, b->out_count, sum, rank * b->command.count, 1.0f, 0.0f);
    case CONTENDER_ALL_TO_ALL:
        for (int r = 0; r < ranks; r++) {
            const int64_t n = b->command.count;
            wrong += count_wrong(b->out + r * n, n, b->pattern[r], rank * n, 1.0f, 0.0f);
        }
        return wrong;
    }
    return 1;
}

/* Milliseconds from the first start to the last end. */
static double run_calls(const bench *b, int calls)
{
    b->self->barrier();
    double span[2] = {-now_ms(), 0.0};
    for (int call = 0; call < calls; call++) {
        b->self->operate(b->command.op, b->in, b->out, b->command.count);
    }
    span[1] = now_ms();
    b->self->maximum(span, 2);
    return span[0] + span[1];
}

/* Whether the warm-ups have taken WARMUP_MS on any rank; all ranks find the same. */
static bool is_warm(const bench *b, double start)
{
    double taken[2] = {now_ms() - start, 0.0};
    b->self->maximum(taken, 2);
    return taken[0] >= WARMUP_MS;
}

/* Warm-ups, of which the fastest tells how many calls a sample holds: as many as move some
 * megabytes, but so few that sums of sums stay finite. The ranks have just been woken: the system
 * needs some milliseconds until each has a core, and samples of small sizes take less in all. */
static void warm_up(bench *b)
{
    prepare(b);
    double fastest = INFINITY;
    const double start = now_ms();
    for (int i = 0; i < b->command.warmups || !is_warm(b, start); i++) {
        fastest = fmin(fastest, run_calls(b, 1));
        if (i % CALLS_MAX == CALLS_MAX - 1) { /* sums of sums grow */
            prepare(b);
        }
    }
    const int64_t bytes = b->out_count * (int64_t)sizeof(float);
    const double finite = b->self->ranks > 1 ? 33.0 / log10(b->self->ranks) : CALLS_MAX;
    const double wanted = fmin(ceil((double)SAMPLE_BYTES / (double)bytes), finite);
    b->calls = wanted < CALLS_MAX ? (int)wanted : CALLS_MAX;
    if (fastest > 1.0 && b->calls > CALLS_SLOW) {
        b->calls = CALLS_SLOW;
    }
    if (b->calls > 1) { /* a first sample at full length, untimed */
        prepare(b);
        (void)run_calls(b, b->calls);
    }
}

/* The number of samples taken, or -1: wrong results. All ranks come to the same answer. */
static int measure(bench *b, double *sample)
{
    warm_up(b);
    const double start = now_ms();
    for (int k = 0; k < b->command.samples; k++) {
        prepare(b);
        sample[k] = run_calls(b, b->calls) / b->calls;
        double verdict[2] = {(double)check(b), now_ms() - start};
        b->self->maximum(verdict, 2);
        if (verdict[0] > 0.0) {
            return -1;
        }
        if (verdict[1] > b->command.budget_ms && k + 1 >= SAMPLES_MIN) {
            return k + 1;
        }
    }
    return b->command.samples;
}

static bool parse(const char *line, int ranks, command *c)
{
    static const char *const names[] = {"all_reduce", "all_gather", "broadcast", "reduce_scatter",
                                        "all_to_all"};
    char op[32], buffers[32];
    long long bytes;
    if (sscanf(line, "%31s %lld %31s %d %d %lf", op, &bytes, buffers, &c->warmups, &c->samples,
               &c->budget_ms) != 6 ||
        bytes < 4 || c->warmups < 1 || c->samples < 1 || c->samples > SAMPLES_MAX) {
        return false;
    }
    c->count = bytes / (long long)sizeof(float);
    c->registered = strcmp(buffers, "registered") == 0;
    for (int i = 0; i < (int)(sizeof names / sizeof *names); i++) {
        if (strcmp(op, names[i]) == 0) {
            c->op = (contender_op)i;
            const bool blocks = c->op != CONTENDER_ALL_REDUCE && c->op != CONTENDER_BROADCAST;
            c->count = blocks ? c->count / ranks : c->count;
            return c->count > 0;
        }
    }
    return false;
}

/* BYTES is the larger of the two buffers, as in nccl-tests. */
static bool get_memory(bench *b)
{
    const command *c = &b->command;
    const int64_t all = c->count * b->self->ranks;
    const bool gathers = c->op == CONTENDER_ALL_GATHER;
    const bool scatters = c->op == CONTENDER_REDUCE_SCATTER || c->op == CONTENDER_ALL_TO_ALL;
    b->out_count = gathers || c->op == CONTENDER_ALL_TO_ALL ? all : c->count;
    b->in_count = gathers ? c->count : scatters ? all : 0;
    b->out = b->self->allocate((size_t)b->out_count * sizeof(float), c->registered);
    b->in = NULL;
    if (b->in_count > 0) {
        b->in = b->self->allocate((size_t)b->in_count * sizeof(float), c->registered);
    }
    return b->out != NULL && (b->in != NULL || b->in_count == 0);
}

static void answer(FILE *out, const bench *b, const double *sample, int count)
{
    if (count < 0) {
        fprintf(out, "error wrong results\n");
    } else {
        fprintf(out, "ok %d", b->calls);
        for (int i = 0; i < count; i++) {
            fprintf(out, " %.9g", sample[i]);
        }
        fprintf(out, "\n");
    }
    fflush(out);
}

static int serve(bench *b, FILE *in, FILE *out)
{
    char line[256];
    double sample[SAMPLES_MAX];
    while (fgets(line, sizeof line, in) != NULL && strcmp(line, "quit\n") != 0) {
        if (!parse(line, b->self->ranks, &b->command) || !get_memory(b)) {
            fprintf(stderr, "contender: cannot do '%s'\n", line);
            return 1;
        }
        const int count = measure(b, sample);
        b->self->release(b->out, b->command.registered);
        if (b->in != NULL) {
            b->self->release(b->in, b->command.registered);
        }
        if (b->self->rank == 0) {
            answer(out, b, sample, count);
        }
    }
    return 0;
}

static FILE *open_in(const char *folder, const char *name, const char *mode)
{
    char path[4096];
    const int length = snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = length > 0 && (size_t)length < sizeof path ? fopen(path, mode) : NULL;
    if (file == NULL) {
        perror(path);
    }
    return file;
}

int contender_serve(const contender *self, const char *folder)
{
    if (self->ranks > RANKS_MAX) {
        fprintf(stderr, "contender: %d ranks, no more than %d\n", self->ranks, RANKS_MAX);
        return 1;
    }
    bench *b = calloc(1, sizeof *b);
    char name[32];
    snprintf(name, sizeof name, "in.%d", self->rank);
    FILE *in = open_in(folder, name, "r");
    FILE *out = self->rank == 0 ? open_in(folder, "out", "w") : NULL;
    int status = 1;
    if (b != NULL && in != NULL && (out != NULL || self->rank != 0)) {
        b->self = self;
        draw(b);
        status = serve(b, in, out);
    }
    if (in != NULL) {
        fclose(in);
    }
    if (out != NULL) {
        fclose(out);
    }
    free(b);
    return status;
}

int contender_once(const contender *self)
{
    float x = (float)(self->rank + 1);
    self->operate(CONTENDER_ALL_REDUCE, NULL, &x, 1);
    double at = now_ms();
    self->maximum(&at, 1);
    if (self->rank == 0) {
        printf("%.0f\n", at * 1e6);
        fflush(stdout);
    }
    return x == (float)(self->ranks * (self->ranks + 1) / 2) ? 0 : 1;
}
