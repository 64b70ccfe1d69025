/* One size: samples of the all-reduce and of the floor in turns, and whether the sums were right.
 *
 * A sample runs from the moment the first rank starts to the moment the last one ends, on the
 * host's one monotonic clock, and holds as many operations as it takes to move some megabytes, back
 * to back. Data is written anew before every sample, so both contenders find it in the caches as
 * far as it fits there, as gradients are.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench.h"

#define SAMPLE_BYTES 16000000 /* moved at least by the operations of one sample */
#define CALLS_MAX 100

typedef struct sampler {
    ls_group *group;
    int rank, ranks, calls;
    int64_t count;
    float *buffer;                      /* this rank's operand and result */
    float *stream[LS__BENCH_RANKS_MAX]; /* the floor's: this rank's chunk of everyone's stream */
    int64_t chunk;                      /* elements of that chunk */
} sampler;

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* Small whole numbers, another sequence for each rank. */
static inline float operand(int rank, int64_t i)
{
    return (float)((((uint32_t)i + (uint32_t)rank * 97u) * 2654435761u >> 28) + 1u);
}

static void fill(float *x, int rank, int64_t first, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        x[i] = operand(rank, first + i);
    }
}

/* tree(low, n) of the ranks' values, as comm.h describes it. */
static float tree(const float *value, int n)
{
    if (n == 1) {
        return value[0];
    }
    int half = 1;
    while (half * 2 < n) {
        half *= 2;
    }
    return tree(value, half) + tree(value + half, n - half);
}

/* What element i must be after `calls` sums in place: the second adds n equal values, and so on.
 * The numbers repeat after 2^32 elements only, but there are no more than 16^n different ones. */
static float expected(const sampler *s, int64_t i)
{
    float value[LS__BENCH_RANKS_MAX];
    for (int r = 0; r < s->ranks; r++) {
        value[r] = operand(r, i);
    }
    float sum = tree(value, s->ranks);
    for (int call = 1; call < s->calls; call++) {
        for (int r = 0; r < s->ranks; r++) {
            value[r] = sum;
        }
        sum = tree(value, s->ranks);
    }
    return sum;
}

/* The sum of n equal values is n times one of them, exactly, as long as they are small: so the
 * first sum decides the rest, and a table of all first sums saves the work of `expected`. */
static int64_t count_wrong(const sampler *s)
{
    float after[16 * LS__BENCH_RANKS_MAX + 1]; /* by first sum; NAN: not known yet */
    for (size_t k = 0; k < sizeof after / sizeof *after; k++) {
        after[k] = NAN;
    }
    int64_t wrong = 0;
    for (int64_t i = 0; i < s->count; i++) {
        float sum = 0.0f; /* whole numbers below 2^24: exact in any order */
        for (int r = 0; r < s->ranks; r++) {
            sum += operand(r, i);
        }
        float *want = &after[(int)sum];
        *want = isnan(*want) ? expected(s, i) : *want;
        wrong += s->buffer[i] != *want;
    }
    return wrong;
}

/* Starts everybody together and returns the time from the first start to the last end. */
static ls_status run_together(const sampler *s, bool floor, double *elapsed_ms)
{
    LS_TRY(ls_barrier(s->group, NULL, NULL));
    double span[2] = {-now_ms(), 0.0};
    for (int call = 0; call < s->calls; call++) {
        if (floor) {
            ls__bench_floor(s->stream, s->ranks, s->chunk);
        } else {
            LS_TRY(ls_all_reduce(s->group, s->buffer, s->count, LS_FLOAT32, LS_SUM, NULL, NULL));
        }
    }
    span[1] = now_ms();
    LS_TRY(ls_all_reduce(s->group, span, 2, LS_FLOAT64, LS_MAX, NULL, NULL));
    *elapsed_ms = (span[0] + span[1]) / s->calls;
    return LS_OK;
}

static ls_status sample(const sampler *s, double *time_ms, double *floor_ms, int64_t *wrong)
{
    fill(s->buffer, s->rank, 0, s->count);
    LS_TRY(run_together(s, false, time_ms));
    *wrong += count_wrong(s);
    for (int r = 0; r < s->ranks; r++) {
        fill(s->stream[r], r, 0, s->chunk);
    }
    return run_together(s, true, floor_ms);
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void summarise(double *samples, int count, double *median, double *spread)
{
    qsort(samples, (size_t)count, sizeof *samples, compare_doubles);
    *median = count % 2 ? samples[count / 2] : (samples[count / 2 - 1] + samples[count / 2]) / 2.0;
    *spread = (samples[count * 3 / 4] - samples[count / 4]) / *median;
}

/* So many that a sample moves SAMPLE_BYTES, but so few that sums of sums stay finite. */
static int calls_for(int64_t bytes, int ranks)
{
    const int64_t wanted = (SAMPLE_BYTES + bytes - 1) / bytes;
    const double finite = ranks > 1 ? 34.0 / log10((double)ranks) : CALLS_MAX;
    const double most = finite < CALLS_MAX ? finite : CALLS_MAX;
    return (double)wanted < most ? (int)wanted : (int)most;
}

static sampler sampler_of(ls_group *group, int64_t bytes, float *buffer, void *shared)
{
    sampler s = {.group = group,
                 .rank = ls_group_rank(group),
                 .ranks = ls_group_size(group),
                 .count = bytes / (int64_t)sizeof(float),
                 .buffer = buffer};
    s.calls = calls_for(bytes, s.ranks);
    const int64_t each = (s.count + s.ranks - 1) / s.ranks;
    const int64_t first = each * s.rank < s.count ? each * s.rank : s.count;
    s.chunk = s.count - first < each ? s.count - first : each;
    for (int r = 0; r < s.ranks; r++) {
        s.stream[r] = (float *)shared + (int64_t)r * s.count + first;
    }
    return s;
}

/* One more operation, with the engine's counters read on both sides. */
static ls_status find_algorithm(const sampler *s, ls__bench_row *row)
{
    ls_counters before = {.size = sizeof before}, after = {.size = sizeof after};
    LS_TRY(ls_group_counters(s->group, &before));
    LS_TRY(ls_all_reduce(s->group, s->buffer, s->count, LS_FLOAT32, LS_SUM, NULL, NULL));
    LS_TRY(ls_group_counters(s->group, &after));
    row->algorithm = ls__bench_which(row, s->rank, s->ranks, after.bytes_sent - before.bytes_sent,
                                     after.bytes_received - before.bytes_received);
    return LS_OK;
}

static ls_status measure(const sampler *s, const ls__bench_options *options, ls__bench_row *row)
{
    double times[LS__BENCH_SAMPLES_MAX], floors[LS__BENCH_SAMPLES_MAX];
    int64_t wrong = 0;
    for (int k = -options->warmups; k < options->samples; k++) {
        const int at = k < 0 ? 0 : k;
        LS_TRY(sample(s, &times[at], &floors[at], &wrong));
    }
    LS_TRY(ls_all_reduce(s->group, &wrong, 1, LS_INT64, LS_SUM, NULL, NULL));
    row->wrong = wrong;
    row->calls = s->calls;
    row->count = s->count;
    summarise(times, options->samples, &row->time_ms, &row->time_spread);
    summarise(floors, options->samples, &row->floor_ms, &row->floor_spread);
    return find_algorithm(s, row);
}

ls_status ls__bench_measure(ls_group *group, const ls__bench_options *options, int64_t bytes,
                            void *shared, ls__bench_row *row)
{
    void *buffer = NULL;
    if (options->registered) {
        LS_TRY(ls_group_alloc(group, (size_t)bytes, &buffer));
    } else {
        buffer = aligned_alloc(64, ((size_t)bytes + 63) / 64 * 64);
        if (buffer == NULL) {
            return LS_ERR_MEMORY;
        }
    }
    const sampler s = sampler_of(group, bytes, buffer, shared);
    row->bytes = bytes;
    ls_status status = measure(&s, options, row);
    if (options->registered) {
        const ls_status freed = ls_group_dealloc(group, buffer);
        status = status < 0 ? status : freed;
    } else {
        free(buffer);
    }
    return status;
}
