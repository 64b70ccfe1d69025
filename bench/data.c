/* SPDX-License-Identifier: Apache-2.0 */
/* Operands, and what must come out.
 *
 * Operands are small whole numbers, so few bits that every reduction of them is exact in the dtype:
 * whatever the order, there is one right result, computed here in float64. Only all-reduces in
 * place one after the other (sums of sums) may round, and means.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/half.h"
#include "bench.h"

#define PERIOD 16381 /* elements; a prime */

struct ls__bench_data {
    ls_dtype dtype;
    int ranks;
    double tolerance;      /* relative, of the reduction */
    unsigned char *values; /* [ranks+1][PERIOD], the last of them the reduction */
};

typedef struct limits { /* of a dtype */
    double exact;       /* whole numbers to here have no gaps */
    double largest;
    double rounding; /* relative; 0: none */
} limits;

static limits limits_of(ls_dtype dtype)
{
    static const limits table[LS_DTYPE_COUNT] = {[LS_FLOAT32] = {16777216.0, 1e38, 1e-7},
                                                 [LS_FLOAT64] = {9e15, 1e300, 1e-15},
                                                 [LS_FLOAT16] = {2048.0, 65000.0, 1e-3},
                                                 [LS_BFLOAT16] = {256.0, 1e38, 8e-3},
                                                 [LS_INT8] = {127.0, 127.0, 0.0},
                                                 [LS_UINT8] = {255.0, 255.0, 0.0},
                                                 [LS_INT32] = {2147483647.0, 2147483647.0, 0.0},
                                                 [LS_INT64] = {9e15, 9e15, 0.0},
                                                 [LS_BOOL] = {1.0, 1.0, 0.0},
                                                 [LS_INT16] = {32767.0, 32767.0, 0.0},
                                                 [LS_UINT16] = {65535.0, 65535.0, 0.0},
                                                 [LS_UINT32] = {4294967295.0, 4294967295.0, 0.0},
                                                 [LS_UINT64] = {9e15, 9e15, 0.0}};
    return table[dtype];
}

static void put(ls_dtype dtype, unsigned char *at, double value)
{
    const float single = (float)value;
    const uint16_t half =
        dtype == LS_FLOAT16 ? ls__float16_round(single) : ls__bfloat16_round(single);
    const int64_t whole = dtype == LS_FLOAT64 || dtype == LS_FLOAT32 ? 0 : (int64_t)value;
    const int32_t word = (int32_t)whole;
    switch (dtype) {
    case LS_FLOAT32:
        memcpy(at, &single, sizeof single);
        break;
    case LS_FLOAT64:
        memcpy(at, &value, sizeof value);
        break;
    case LS_FLOAT16:
    case LS_BFLOAT16:
        memcpy(at, &half, sizeof half);
        break;
    case LS_INT16:
    case LS_UINT16:
        memcpy(at, &whole, 2); /* the low bytes come first */
        break;
    case LS_INT32:
    case LS_UINT32:
        memcpy(at, &word, sizeof word);
        break;
    case LS_INT64:
    case LS_UINT64:
        memcpy(at, &whole, sizeof whole);
        break;
    default:
        *at = (unsigned char)whole;
        break;
    }
}

/* Of a dtype that rounds; the others are compared by their bytes. */
static double get(ls_dtype dtype, const unsigned char *at)
{
    float single = 0.0f;
    double twice = 0.0;
    uint16_t half = 0;
    switch (dtype) {
    case LS_FLOAT32:
        memcpy(&single, at, sizeof single);
        return (double)single;
    case LS_FLOAT64:
        memcpy(&twice, at, sizeof twice);
        return twice;
    default:
        memcpy(&half, at, sizeof half);
        return (double)(dtype == LS_FLOAT16 ? ls__float16_widen(half) : ls__bfloat16_widen(half));
    }
}

static uint32_t hash(int rank, int i)
{
    uint32_t x = (uint32_t)i * 2654435761u + (uint32_t)rank * 40503u + 1u;
    x ^= x >> 15;
    x *= 2246822519u;
    return x ^ x >> 13;
}

/* The largest operand of a sum over `ranks`. */
static double sum_operand_max(ls_dtype dtype, int ranks)
{
    const double most = floor(limits_of(dtype).exact / ranks);
    return most < 1.0 ? 1.0 : most < 1000.0 ? most : 1000.0;
}

static double operand(const ls__bench_options *options, int rank, int i)
{
    const uint32_t x = hash(rank, i);
    const int ranks = options->ranks;
    double most = fmin(limits_of(options->dtype).exact, 1000.0);
    switch (options->op) {
    case LS_PRODUCT: /* a two at one rank at most */
        if (options->dtype != LS_BOOL) {
            return hash(0, i) % (2 * (uint32_t)ranks) == (uint32_t)rank ? 2.0 : 1.0;
        }
        break;
    case LS_SUM:
    case LS_AVG:
        most = sum_operand_max(options->dtype, ranks);
        break;
    default:
        break;
    }
    if (options->dtype == LS_BOOL) {
        return x & 1u;
    }
    return 1.0 + x % (uint32_t)most;
}

static double combine(const ls__bench_options *options, double a, double b)
{
    switch (options->op) {
    case LS_PRODUCT:
        return a * b;
    case LS_MIN:
        return fmin(a, b);
    case LS_MAX:
        return fmax(a, b);
    case LS_BAND:
        return (double)((int64_t)a & (int64_t)b);
    case LS_BOR:
        return (double)((int64_t)a | (int64_t)b);
    case LS_BXOR:
        return (double)((int64_t)a ^ (int64_t)b);
    default: /* of truth values, a sum is "any" */
        return options->dtype == LS_BOOL ? fmax(a, b) : a + b;
    }
}

static double reduced(const ls__bench_options *options, const double *value)
{
    double result = value[0];
    for (int r = 1; r < options->ranks; r++) {
        result = combine(options, result, value[r]);
    }
    const double mean = result / options->ranks;
    return options->op != LS_AVG ? result : options->dtype <= LS_BFLOAT16 ? mean : trunc(mean);
}

static double expected(const ls__bench_options *options, int calls, int i)
{
    double value[LS__BENCH_RANKS_MAX] = {0.0};
    for (int r = 0; r < options->ranks; r++) {
        value[r] = operand(options, r, i);
    }
    double result = reduced(options, value);
    const bool in_place = options->operation->in == LS__BENCH_NONE;
    for (int call = 1; in_place && call < calls; call++) {
        for (int r = 0; r < options->ranks; r++) {
            value[r] = result;
        }
        result = reduced(options, value);
    }
    return result;
}

ls__bench_data *ls__bench_data_new(const ls__bench_options *options, int calls)
{
    const size_t width = ls_dtype_size(options->dtype);
    ls__bench_data *data = calloc(1, sizeof *data);
    if (data == NULL) {
        return NULL;
    }
    data->values = malloc(((size_t)options->ranks + 1) * PERIOD * width);
    if (data->values == NULL) {
        free(data);
        return NULL;
    }
    data->dtype = options->dtype;
    data->ranks = options->ranks;
    const bool rounds = options->op == LS_AVG || calls > 1;
    data->tolerance = rounds ? 4.0 * calls * limits_of(options->dtype).rounding : 0.0;
    for (int r = 0; r <= options->ranks; r++) {
        for (int i = 0; i < PERIOD; i++) {
            unsigned char *at = data->values + ((size_t)r * PERIOD + (size_t)i) * width;
            const bool result = r == options->ranks;
            put(data->dtype, at, result ? expected(options, calls, i) : operand(options, r, i));
        }
    }
    return data;
}

void ls__bench_data_free(ls__bench_data *data)
{
    if (data != NULL) {
        free(data->values);
        free(data);
    }
}

int ls__bench_calls_max(const ls__bench_options *options)
{
    const limits limit = limits_of(options->dtype);
    const int ranks = options->ranks;
    if (options->operation->result != LS__BENCH_SUM || options->operation->in != LS__BENCH_NONE ||
        ranks == 1 || options->dtype == LS_BOOL) {
        return INT32_MAX;
    }
    double growth = INFINITY; /* how many times all may become `ranks` times as many */
    if (options->op == LS_SUM) {
        growth = log(limit.largest / (sum_operand_max(options->dtype, ranks) * ranks));
    } else if (options->op == LS_PRODUCT) {
        growth = log(log2(limit.largest));
    }
    const double calls = 1.0 + floor(fmax(growth, 0.0) / log((double)ranks));
    return calls < 1e6 ? (int)calls : INT32_MAX;
}

static const unsigned char *values_of(const ls__bench_data *data, int rank, int64_t first)
{
    const int64_t row = rank == LS__BENCH_REDUCED ? data->ranks : rank;
    return data->values + (size_t)(row * PERIOD + first % PERIOD) * ls_dtype_size(data->dtype);
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

void ls__bench_fill(const ls__bench_data *data, int rank, void *x, int64_t count)
{
    const size_t width = ls_dtype_size(data->dtype);
    for (int64_t at = 0; at < count; at += PERIOD) {
        memcpy((char *)x + (size_t)at * width, values_of(data, rank, 0),
               (size_t)least(PERIOD, count - at) * width);
    }
}

static int64_t compare(const ls__bench_data *data, const unsigned char *x,
                       const unsigned char *want, int64_t count, bool rounded)
{
    const size_t width = ls_dtype_size(data->dtype);
    int64_t wrong = 0;
    for (size_t i = 0; i < (size_t)count; i++, x += width, want += width) {
        if (memcmp(x, want, width) == 0) {
            continue;
        }
        if (!rounded) {
            wrong++;
            continue;
        }
        const double found = get(data->dtype, x), right = get(data->dtype, want);
        wrong += !(fabs(found - right) <= data->tolerance * fabs(right));
    }
    return wrong;
}

int64_t ls__bench_wrong(const ls__bench_data *data, int rank, int64_t first, const void *x,
                        int64_t count)
{
    const size_t width = ls_dtype_size(data->dtype);
    const bool rounded = rank == LS__BENCH_REDUCED && data->tolerance > 0.0;
    int64_t wrong = 0;
    for (int64_t at = 0; at < count;) {
        const int64_t n = least(count - at, PERIOD - (first + at) % PERIOD);
        const unsigned char *piece = (const unsigned char *)x + (size_t)at * width;
        const unsigned char *want = values_of(data, rank, first + at);
        if (memcmp(piece, want, (size_t)n * width) != 0) {
            wrong += compare(data, piece, want, n, rounded);
        }
        at += n;
    }
    return wrong;
}

/* ---- shared by ranks ----------------------------------------------------------------------- */

void *ls__bench_share(size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return at != MAP_FAILED ? at : NULL;
}
