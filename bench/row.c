/* SPDX-License-Identifier: Apache-2.0 */
/* One size: samples of the operation, and of the floor where there is one, in turns; and whether
 * the results were right.
 *
 * A sample runs from the moment the first rank starts to the moment the last one ends, on the
 * host's one monotonic clock (under a launcher it is the longest time of a rank), and holds as many
 * operations as it takes to move some megabytes, back to back. Each rank writes its data anew
 * before every sample, so both contenders find it in that rank's caches as far as it fits there, as
 * gradients are.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

#define SAMPLE_BYTES 16000000 /* moved at least by the operations of one sample */
#define CALLS_MAX 100

typedef struct sampler {
    const ls__bench_options *options;
    const ls__bench_data *data;
    ls_collective_options collective;
    ls__bench_call call;
    int rank, ranks, calls;
    int64_t count; /* ls__bench_count's */
    int64_t in_count, out_count;
    float *stream[LS__BENCH_RANKS_MAX]; /* the floor's: this rank's chunk of everyone's stream */
    int64_t chunk;                      /* elements of that chunk */
    float *whole;                       /* this rank's stream */
} sampler;

static void prepare(const sampler *s)
{
    if (s->call.in != NULL) {
        ls__bench_fill(s->data, s->rank, s->call.in, s->in_count);
    }
    if (s->call.out != NULL) { /* in place, or something else than the result */
        const bool in_place = s->options->operation->in == LS__BENCH_NONE;
        const int next = (s->rank + 1) % s->ranks;
        ls__bench_fill(s->data, in_place ? s->rank : next, s->call.out, s->out_count);
    }
}

/* Blocks of every rank's operand: its first elements, or what it has for this rank. */
static int64_t wrong_blocks(const sampler *s, bool for_me)
{
    const ls__bench_blocks *blocks = &s->call.blocks;
    int64_t wrong = 0;
    for (int r = 0; r < s->ranks; r++) {
        ls__bench_blocks theirs = {.total = 0};
        ls__bench_blocks_of(s->options, r, s->count, &theirs);
        const size_t at = (size_t)blocks->offsets[r] * ls_dtype_size(s->call.dtype);
        wrong += ls__bench_wrong(s->data, r, for_me ? theirs.offsets[s->rank] : 0,
                                 (const char *)s->call.out + at, blocks->counts[r]);
    }
    return wrong;
}

static int64_t count_wrong(const sampler *s)
{
    const ls__bench_operation *operation = s->options->operation;
    const int64_t count = s->call.count, own = s->call.blocks.offsets[s->rank];
    const void *out = s->call.out;
    if (operation->at_root && s->rank != 0) {
        return 0;
    }
    switch (operation->result) {
    case LS__BENCH_SUM:
        return ls__bench_wrong(s->data, LS__BENCH_REDUCED, 0, out, count);
    case LS__BENCH_SUM_BLOCK:
        return ls__bench_wrong(s->data, LS__BENCH_REDUCED, own, out, count);
    case LS__BENCH_ALL:
        return wrong_blocks(s, false);
    case LS__BENCH_ROOT:
        return ls__bench_wrong(s->data, 0, 0, out, count);
    case LS__BENCH_ROOT_BLOCK:
        return ls__bench_wrong(s->data, 0, own, out, count);
    case LS__BENCH_TRANSPOSED:
        return wrong_blocks(s, true);
    case LS__BENCH_LEFT:
        return ls__bench_wrong(s->data, (s->rank + s->ranks - 1) % s->ranks, 0, out, count);
    case LS__BENCH_NOTHING:
        break;
    }
    return 0;
}

/* Starts all ranks together and returns the time from the first start to the last end; the longest
 * of all ranks' times where they may have several clocks. */
static ls_status run_together(const sampler *s, bool floor, double *elapsed_ms)
{
    ls_group *group = s->call.group;
    LS_TRY(ls_barrier(group, NULL, NULL));
    const double begin = ls__bench_now_ms();
    for (int call = 0; call < s->calls; call++) {
        if (floor) {
            ls__bench_floor(s->stream, s->ranks, s->chunk);
        } else {
            LS_TRY(s->options->operation->call(&s->call));
        }
    }
    double span[2] = {s->options->joins ? 0.0 : -begin,
                      ls__bench_now_ms() - (s->options->joins ? begin : 0.0)};
    LS_TRY(ls_all_reduce(group, span, span, 2, LS_FLOAT64, LS_MAX, NULL, NULL));
    *elapsed_ms = (span[0] + span[1]) / s->calls;
    return LS_OK;
}

static ls_status sample(const sampler *s, double *time_ms, double *floor_ms, int64_t *wrong)
{
    prepare(s);
    LS_TRY(run_together(s, false, time_ms));
    *wrong += count_wrong(s);
    if (s->stream[0] == NULL) { /* not "my chunk is empty": others have one */
        *floor_ms = 0.0;
        return LS_OK;
    }
    ls__bench_fill(s->data, s->rank, s->whole, s->call.count);
    return run_together(s, true, floor_ms);
}

static void summarise(double *samples, int count, double *median, double *spread)
{
    ls__bench_sort(samples, count);
    *median = ls__bench_median(samples, count);
    *spread = (samples[count * 3 / 4] - samples[count / 4]) / *median;
}

/* Enough calls that a sample moves SAMPLE_BYTES, but few enough that sums of sums stay finite. */
static int calls_for(const ls__bench_options *options, int64_t bytes)
{
    const int64_t wanted = bytes > 0 ? (SAMPLE_BYTES + bytes - 1) / bytes : CALLS_MAX;
    const int finite = ls__bench_calls_max(options);
    const int most = finite < CALLS_MAX ? finite : CALLS_MAX;
    return wanted < most ? (int)wanted : most;
}

/* Every rank's chunk has the same number of elements or fewer, at least one. */
static void share_floor(sampler *s, void *shared)
{
    const int64_t count = s->call.count, each = (count + s->ranks - 1) / s->ranks;
    const int64_t first = each * s->rank < count ? each * s->rank : count;
    s->chunk = count - first < each ? count - first : each;
    s->whole = (float *)shared + (int64_t)s->rank * count;
    for (int r = 0; r < s->ranks; r++) {
        s->stream[r] = (float *)shared + (int64_t)r * count + first;
    }
}

/* One more operation, with the engine's counters read on both sides. */
static ls_status find_algorithm(const sampler *s, ls__bench_row *row)
{
    ls_counters before = {.size = sizeof before}, after = {.size = sizeof after};
    LS_TRY(ls_group_get_counters(s->call.group, &before));
    LS_TRY(s->options->operation->call(&s->call));
    LS_TRY(ls_group_get_counters(s->call.group, &after));
    row->sent = after.bytes_sent - before.bytes_sent;
    row->received = after.bytes_received - before.bytes_received;
    row->algorithm = s->options->algorithm != NULL
                         ? s->options->algorithm
                         : ls__bench_which(s->options, row, s->rank, row->sent, row->received);
    return LS_OK;
}

static ls_status measure(const sampler *s, ls__bench_row *row)
{
    const ls__bench_options *options = s->options;
    double times[LS__BENCH_SAMPLES_MAX], floors[LS__BENCH_SAMPLES_MAX];
    int64_t wrong = 0;
    for (int k = -options->warmups; k < options->samples; k++) {
        const int at = k < 0 ? 0 : k;
        LS_TRY(sample(s, &times[at], &floors[at], &wrong));
    }
    LS_TRY(ls_all_reduce(s->call.group, &wrong, &wrong, 1, LS_INT64, LS_SUM, NULL, NULL));
    row->wrong = wrong;
    row->calls = s->calls;
    row->shown = options->samples < LS__BENCH_SHOWN_MAX ? options->samples : LS__BENCH_SHOWN_MAX;
    memcpy(row->samples_ms, times, (size_t)row->shown * sizeof *times);
    summarise(times, options->samples, &row->time_ms, &row->time_spread);
    summarise(floors, options->samples, &row->floor_ms, &row->floor_spread);
    return find_algorithm(s, row);
}

static int64_t elements(const sampler *s, ls__bench_shape shape)
{
    switch (shape) {
    case LS__BENCH_COUNT:
        return s->call.count;
    case LS__BENCH_BLOCKS:
        return s->call.blocks.total;
    case LS__BENCH_NONE:
        break;
    }
    return 0;
}

static ls_status get_memory(const sampler *s, int64_t count, void **out)
{
    const size_t bytes = (size_t)count * ls_dtype_size(s->call.dtype);
    if (bytes == 0) {
        return LS_OK;
    }
    if (s->options->registered) {
        return ls_group_alloc(s->call.group, bytes, out);
    }
    *out = aligned_alloc(64, (bytes + 63) / 64 * 64);
    return *out != NULL ? LS_OK : LS_ERR_MEMORY;
}

static ls_status return_memory(const sampler *s, void *memory)
{
    if (memory == NULL || !s->options->registered) {
        free(memory);
        return LS_OK;
    }
    return ls_group_dealloc(s->call.group, memory);
}

static ls_status allocate_and_measure(sampler *s, void *shared, ls__bench_row *row)
{
    LS_TRY(get_memory(s, s->in_count, &s->call.in));
    LS_TRY(get_memory(s, s->out_count, &s->call.out));
    if (shared != NULL) {
        share_floor(s, shared);
    }
    return measure(s, row);
}

ls_status ls__bench_measure(ls_group *group, const ls__bench_options *options, int64_t bytes,
                            void *shared, ls__bench_row *row)
{
    sampler s = {.options = options,
                 .rank = ls_group_rank(group),
                 .ranks = ls_group_size(group),
                 .collective = *LS_OPTIONS(ls_collective_options, .algorithm = options->algorithm),
                 .count = ls__bench_count(options, bytes),
                 .call = {.group = group, .dtype = options->dtype, .op = options->op}};
    s.call.options = &s.collective;
    ls__bench_blocks_of(options, s.rank, s.count, &s.call.blocks);
    s.call.count = s.call.blocks.counts[s.rank];
    s.in_count = elements(&s, options->operation->in);
    s.out_count = elements(&s, options->operation->out);
    row->count = s.in_count > s.out_count ? s.in_count : s.out_count;
    row->bytes = row->count * (int64_t)ls_dtype_size(options->dtype);
    s.calls = calls_for(options, row->bytes);
    ls__bench_data *data = ls__bench_data_new(options, s.calls);
    if (data == NULL) {
        return LS_ERR_MEMORY;
    }
    s.data = data;
    ls_status status = allocate_and_measure(&s, shared, row);
    const ls_status in = return_memory(&s, s.call.in), out = return_memory(&s, s.call.out);
    ls__bench_data_free(data);
    status = status < 0 ? status : in;
    return status < 0 ? status : out;
}
