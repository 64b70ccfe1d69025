/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of ops.h: fast against plain, each variant this processor runs, and one thread
 * against two and three to the bit. Tolerances as in sweep.c: plain kernels round once from
 * float64, fast ones sum up to n terms in float32. Of the inputs, w is positive and index holds
 * rows * n numbers below 7. */
#include "base/half.h"
#include "sweep.h"

static int64_t maps(const ls__kernels *k, const inputs *in, float *out)
{
    const double arg[][2] = {{2, 0},           {0.7, 0}, {0, 0},  {-0.25, 0.5},
                             {-INFINITY, 0.1}, {0.4, 0}, {0.1, 0}};
    const ls__map ops[] = {LS__MAP_POW,   LS__MAP_POW,   LS__MAP_POW,  LS__MAP_CLAMP,
                           LS__MAP_CLAMP, LS__MAP_HUBER, LS__MAP_LEAKY};
    int64_t count = in->rows * in->n, at = 0;
    for (int i = 0; i < 7; i++, at += 2 * count) {
        const ls__map op = ops[i];
        const float *x = i == 1 ? in->w : in->x; /* w is positive */
        k->map(op, arg[i], out + at, x, count, NULL);
        k->map_backward(op, arg[i], out + at + count, in->y, x, count, in->beta, NULL);
    }
    return at;
}

static int64_t where(const ls__kernels *k, const inputs *in, float *out)
{
    int64_t rows = in->rows, n = in->n, shape[3] = {rows, 1, n}, at = 0;
    uint8_t *c = allocate((size_t)(rows * n));
    for (int64_t i = 0; i < rows * n; i++) {
        c[i] = in->x[i] < 0.3f ? 2 : 0;
    }
    const ls__strided layouts[] = {{{n, n, 1}}, {{0, 0, 1}}, {{1, 0, 0}}, {{0}}, {{1, 7, rows}}};
    for (int l = 0; l < 5; l++, at += rows * n) {
        k->where(out + at, c, layouts[l], in->x, layouts[l * 2 % 5], in->y, layouts[l * 3 % 5], 3,
                 shape, NULL);
    }
    k->where(out + at, c, layouts[0], in->x, layouts[0], in->y, layouts[0], 0, shape, NULL);
    free(c);
    return at + 1;
}

/* x rounded to a few values: many equal ones, NaN of both signs, and zeros of both. */
static float rough(float x)
{
    const int value = (int)(x * 4.0f);
    return value == 3 ? NAN : value == -3 ? -NAN : copysignf((float)value, x);
}

/* Elements of `dtype` that are often equal, some of them NaN where there is one. */
static void *few_values(ls_dtype dtype, const float *x, int64_t count)
{
    void *out = allocate((size_t)count * 8);
    for (int64_t i = 0; i < count; i++) {
        const int value = (int)(x[i] * 4.0f);
        switch (dtype) {
        case LS_FLOAT32:
            ((float *)out)[i] = rough(x[i]);
            break;
        case LS_FLOAT64:
            ((double *)out)[i] = (double)rough(x[i]);
            break;
        case LS_FLOAT16:
            ((uint16_t *)out)[i] = ls__float16_round(rough(x[i]));
            break;
        case LS_BFLOAT16:
            ((uint16_t *)out)[i] = ls__bfloat16_round(rough(x[i]));
            break;
        case LS_INT32:
            ((int32_t *)out)[i] = value;
            break;
        case LS_INT64:
            ((int64_t *)out)[i] = INT64_MAX - 4 + value; /* beyond what a double holds */
            break;
        case LS_UINT64:
            ((uint64_t *)out)[i] = UINT64_MAX - 4 + (uint64_t)(value < 0 ? 0 : value);
            break;
        case LS_UINT32:
            ((uint32_t *)out)[i] = (uint32_t)value; /* some beyond the largest int32 */
            break;
        case LS_INT16:
        case LS_UINT16:
            ((int16_t *)out)[i] = (int16_t)value;
            break;
        default:
            ((int8_t *)out)[i] = (int8_t)value;
        }
    }
    return out;
}

static int64_t comparisons(const ls__kernels *k, const inputs *in, float *out)
{
    static const ls_dtype types[] = {LS_FLOAT32, LS_FLOAT64, LS_INT8,  LS_UINT8,
                                     LS_BOOL,    LS_INT32,   LS_INT64, LS_INT16,
                                     LS_UINT16,  LS_UINT32,  LS_UINT64};
    int64_t rows = in->rows, n = in->n, shape[3] = {rows, 1, n}, at = 0;
    const ls__strided layouts[] = {{{n, n, 1}}, {{0, 0, 1}}, {{1, 0, 0}}, {{0}}, {{1, 7, rows}}};
    uint8_t *found = allocate((size_t)(rows * n));
    for (int t = 0; t < 11; t++) {
        void *a = few_values(types[t], in->x, rows * n), *b = few_values(types[t], in->y, rows * n);
        for (int i = 0; i < LS__COMPARE_COUNT; i++, at++) {
            const ls__comparison c = {(ls__compare)i, types[t], a,     b,    layouts[(i + t) % 5],
                                      layouts[t % 5], 3,        shape, found};
            k->compare(&c, NULL);
            double sum = 0.0; /* of places: a bit that is wrong is seen */
            for (int64_t j = 0; j < rows * n; j++) {
                sum += found[j] * (double)(j % 127 + 1);
            }
            out[at] = (float)sum;
        }
        free(a), free(b);
    }
    free(found);
    return at;
}

/* Numbers with many equal ones; the results are places, so they are compared exactly. */
static int64_t tops(const ls__kernels *k, const inputs *in, float *out)
{
    int64_t rows = in->n, n = in->rows, at = 0; /* short rows too: the plain twin is slow */
    int64_t *index = allocate((size_t)(rows * n) * 8);
    const int64_t some[] = {1, n / 2, n};
    for (int dtype = 0; dtype < LS_DTYPE_COUNT; dtype++) {
        void *x = few_values((ls_dtype)dtype, in->x, rows * n);
        k->top(index, x, (ls_dtype)dtype, rows, n, 0, true, NULL); /* writes nothing */
        for (int i = 0; i < 6 && (dtype == 0 || rows * n < 5000); i++) {
            k->top(index, x, (ls_dtype)dtype, rows, n, some[i / 2], i % 2 == 0, NULL);
            for (int64_t j = 0; j < rows * some[i / 2]; j++) {
                out[at++] = (float)index[j];
            }
        }
        free(x);
    }
    free(index);
    return at;
}

/* Taps as of a line, of the nearest, and in any order. */
static int64_t upsamples(const ls__kernels *k, const inputs *in, float *out)
{
    const int64_t height = 1 + in->rows % 5, width = 1 + in->n % 4, channels = 1 + in->n % 40;
    ls__tap rows[7], columns[9];
    for (int i = 0; i < 9; i++) {
        const int64_t at = i * width / 9;
        const float weight = at + 1 < width && i % 3 > 0 ? 0.3f * (float)(i % 3) : 0.0f;
        columns[i] = (ls__tap){at, weight > 0.0f ? at + 1 : at, weight};
        const int64_t row = i * 5 % height, next = row + 1 < height ? row + 1 : row;
        rows[i % 7] = (ls__tap){row, next, next > row && i % 2 == 0 ? 0.4f : 0.0f};
    }
    const ls__upsample2d u = {.batch = 1 + in->rows % 40,
                              .channels = channels,
                              .height = height,
                              .width = width,
                              .out_height = 7,
                              .out_width = 9,
                              .rows = rows,
                              .columns = columns};
    const int64_t from = u.batch * height * width * channels, to = u.batch * 63 * channels;
    k->upsample2d(&u, out, in->x, NULL);
    k->upsample2d_backward(&u, out + to, in->beta, in->y, NULL);
    return to + from;
}

/* The same with the bytes of x as elements of 1, 2 and 8 bytes. */
static int64_t picks_of_any_size(const ls__kernels *k, const ls__pick *like, const inputs *in,
                                 float *out)
{
    const int64_t count = in->rows * in->n;
    uint8_t *to = allocate((size_t)count * 8);
    int64_t at = 0;
    for (size_t bytes = 1; bytes <= 8; bytes *= bytes == 2 ? 4 : 2) {
        ls__pick p = *like;
        p.bytes = bytes, p.to = to;
        k->pick(&p, NULL);
        for (int64_t i = 0; i < count; i++) {
            unsigned sum = 0;
            for (size_t b = 0; b < bytes; b++) {
                sum = sum * 31u % 65521u + to[(size_t)i * bytes + b];
            }
            out[at++] = (float)sum;
        }
    }
    free(to);
    return at;
}

/* [rows,n] chosen along the last, then the first, of [7 or rows, n or 7]. */
static int64_t picks(const ls__kernels *k, const inputs *in, float *out)
{
    int64_t rows = in->rows, n = in->n, shape[2] = {rows, n}, at = 0;
    for (int dim = 0; dim < 2; dim++) {
        int64_t wide = dim == 1 ? 7 : n, all = (dim == 1 ? rows : 7) * wide;
        ls__pick p = {.ndim = 2, .dim = dim, .shape = shape, .bytes = 4};
        p.index = dim == 1 ? (const void *)in->index : (const void *)in->index32;
        p.index_bytes = dim == 1 ? 8 : 4;
        p.from = in->x, p.from_strides = (ls__strided){{wide, 1}};
        p.to = out + at, p.to_strides = (ls__strided){{1, rows}}; /* transposed */
        k->pick(&p, NULL);
        at += rows * n;
        at += picks_of_any_size(k, &p, in, out + at);
        for (int64_t i = 0; i < all; i++) {
            out[at + i] = in->w[i];
        }
        p.from = in->y, p.from_strides = (ls__strided){{n, 1}};
        p.to = out + at, p.to_strides = (ls__strided){{wide, 1}};
        k->put_add(&p, NULL);
        at += all;
    }
    return at;
}

static int64_t along(const ls__kernels *k, const inputs *in, float *out)
{
    int64_t count = in->rows * in->n, at = 0;
    int64_t *index = allocate((size_t)count * 8);
    const int64_t cut[][3] = {{in->rows, in->n, 1}, {1, in->rows, in->n}, {in->rows, 1, in->n}};
    for (int c = 0; c < 3; c++) {
        int64_t outer = cut[c][0], n = cut[c][1], inner = cut[c][2];
        k->cumsum(out + at, in->x, outer, n, inner, c == 1, in->beta, NULL);
        at += count;
        for (int least = 0; least < 2; least++) {
            k->extreme(out + at, index, in->x, outer, n, inner, least != 0, NULL);
            at += outer * inner;
            for (int64_t i = 0; i < outer * inner; i++) {
                out[at++] = (float)index[i];
            }
        }
    }
    free(index);
    return at;
}

static int64_t variances(const ls__kernels *k, const inputs *in, float *out)
{
    int64_t rows = in->rows, n = in->n;
    double divisor = n > 1 ? (double)n - 1.0 : 1.0;
    k->variance(out, out + rows, in->x, rows, n, divisor, NULL);
    float *mean = allocate((size_t)rows * 8);
    ls__kernels_ref()->variance(mean + rows, mean, in->x, rows, n, divisor, NULL);
    k->variance_backward(out + 2 * rows, in->y, in->x, mean, rows, n, divisor, in->beta, NULL);
    free(mean);
    return 2 * rows + rows * n;
}

static int64_t rms_norms(const ls__kernels *k, const inputs *in, float *out)
{
    int64_t rows = in->rows, n = in->n, count = rows * n, at = 0;
    void *workspace = allocate(k->layer_norm_workspace(rows, n));
    for (int weighted = 0; weighted < 2; weighted++) {
        const float *w = weighted ? in->w : NULL;
        k->rms_norm(out + at, out + at + count, in->x, w, rows, n, 0.1f, NULL);
        at += count + rows;
        k->rms_norm_backward(out + at, in->beta, out + at + count, in->beta, in->y, in->x, in->w, w,
                             rows, n, workspace, NULL);
        at += count + n;
    }
    k->rms_norm_backward(NULL, 0.0f, out + at, in->beta, in->y, in->x, in->w, NULL, rows, n,
                         workspace, NULL);
    free(workspace);
    return at + n;
}

/* [2,3,T,D] within [T,3,2,D]; positions far beyond what the table is restarted for. */
static int64_t rotaries(const ls__kernels *k, const inputs *in, float *out)
{
    int64_t dim = 2 * (1 + in->n % 40), time = 1 + in->rows * in->n / 6 / dim;
    ls__rotary r = {.batch = 2, .heads = 3, .time = time, .dim = dim, .x = in->x, .y = out};
    r.x_b = dim, r.x_h = 2 * dim, r.x_t = 6 * dim;
    r.first = 1 + in->rows % 3 * 5000, r.base = 10000.0;
    r.back = in->rows % 2 == 0, r.beta = in->beta;
    if (in->n % 2 == 1) {
        r.scaling = (ls__rotary_scaling){8.0, 1.0, 4.0, in->n % 4 == 1 ? 64 : 0};
    }
    r.workspace = allocate(k->rotary_workspace(&r));
    k->rotary(&r, NULL);
    free(r.workspace);
    return 6 * time * dim;
}

static int64_t losses(const ls__kernels *k, const inputs *in, float *out)
{
    int64_t rows = in->rows, n = in->n, count = rows * n;
    int64_t *target = allocate((size_t)rows * 8);
    for (int64_t i = 0; i < rows; i++) {
        target[i] = i % 5 == 3 ? -100 : i * 7919 % n;
    }
    ls__cross_entropy a = {.logits = in->x, .target = target, .index_bytes = 8, .rows = rows};
    a.n = n, a.smoothing = 0.1, a.ignore = -100, a.dlogits = out;
    a.loss = out + count;
    k->cross_entropy(&a, NULL);
    a.dlogits = NULL, a.smoothing = 1.0, a.loss = out + count + 1;
    k->cross_entropy(&a, NULL);
    a.dlogits = out + count + 2, a.loss = out + 2 * count + 2;
    k->nll(&a, NULL);
    float *rest = out + 2 * count + 3;
    memcpy(rest, in->x, (size_t)count * 4); /* in place */
    k->bce(&rest[count], rest, rest, in->w, count, NULL);
    k->bce(&rest[count + 1], NULL, in->x, in->w, count, NULL);
    rest += count + 2;
    a.weight = in->w, a.smoothing = 0.0, a.dlogits = rest, a.loss = rest + count;
    k->cross_entropy(&a, NULL);
    rest += count + 1;
    a.smoothing = 0.2, a.z_loss = 0.05, a.dlogits = rest, a.loss = rest + count;
    k->cross_entropy(&a, NULL);
    free(target);
    return 5 * count + 7;
}

/* A number that lies in memory, as a factor and as the value of all elements. */
static int64_t factors(const ls__kernels *k, const inputs *in, float *out)
{
    const int64_t count = in->rows * in->n;
    const float number = 0.37f;
    const ls__factor f = {&number, -2.0, 3.0};
    k->axpby_by(out, in->x, count, f, 0.0f, NULL);
    memcpy(out + count, in->y, (size_t)count * 4);
    k->axpby_by(out + count, in->x, count, f, in->beta, NULL);
    k->fill_by(out + 2 * count, count, f, NULL);
    return 3 * count;
}

/* Copies, zeros of odd lengths at odd addresses, a number of 64 bits, and the two looks at
 * elements. */
static int64_t bytes(const ls__kernels *k, const inputs *in, float *out)
{
    const int64_t count = in->rows * in->n;
    const size_t all = (size_t)count * 4;
    int64_t first[2], number = UINT32_MAX, *index = allocate((size_t)count * 8);
    float *x = allocate(all), *found = out + count;
    k->copy(out, in->x, all, NULL);
    k->zero((char *)out + 1, all / 3, NULL);
    k->zero(out + count / 2, all / 4 + 1, NULL);
    k->copy(out + count / 5, in->y, all / 5 / 4 * 4, NULL);
    for (int64_t i = 0; i < count; i++) {
        x[i] = i == count - 2 ? -INFINITY : 1.0f;
        index[i] = i % 7 == 5 ? -100 : i == count - 1 ? in->n : i % in->n;
    }
    k->nonfinite(first, x, LS_FLOAT32, 0, count, NULL);
    found[0] = (float)first[0];
    k->nonfinite(first, in->x, LS_FLOAT32, 0, count, NULL);
    found[1] = (float)first[0];
    ls__index_check check = {first, index, 8, count, in->n, true, -100};
    for (int i = 0; i < 2; i++) {
        check.may_ignore = i == 0, first[1] = 0;
        k->outside(&check, NULL);
        found[2 + 2 * i] = (float)first[0], found[3 + 2 * i] = (float)first[1];
    }
    k->increment(&number, NULL);
    found[6] = (float)(number >> 32), found[7] = (float)(uint32_t)number;
    free(index);
    free(x);
    return count + 8;
}

static const sweep_case cases[] = {
    {"factors in memory", factors, 1e-6, 1e-7},
    {"bytes", bytes, 0, 0},
    {"map", maps, 4e-6, 2e-7},
    {"where", where, 0, 0},
    {"compare", comparisons, 0, 0},
    {"top", tops, 0, 0},
    {"upsample2d", upsamples, 2e-6, 1e-6},
    {"pick, put_add", picks, 2e-6, 1e-6},
    {"cumsum, extreme", along, 1e-6, 1e-6},
    {"variance", variances, 2e-6, 2e-7},
    {"rms_norm", rms_norms, 4e-6, 1e-6},
    {"rotary", rotaries, 1e-6, 4e-7},
    {"losses", losses, 4e-6, 2e-7},
};

static const int64_t shapes[][2] = {{1, 1},   {3, 17},  {17, 3},   {1, 1023}, {64, 1},
                                    {65, 64}, {33, 96}, {700, 96}, {17, 4097}};

TEST(fast_kernels_of_more_operations_agree_with_the_plain_twin_whatever_the_threads)
{
    float *want = allocate(CAPACITY * 4), *got = allocate(CAPACITY * 4);
    float *again = allocate(CAPACITY * 4);
    float *x = random_floats(CAPACITY, 1), *y = random_floats(CAPACITY, 2);
    float *w = random_floats(CAPACITY, 3);
    int64_t *index = allocate(CAPACITY * 8);
    int32_t *index32 = allocate(CAPACITY * 4);
    for (int64_t i = 0; i < CAPACITY; i++) {
        w[i] = fabsf(w[i]) + 0.01f;
        index[i] = i * i % 7;
        index32[i] = (int32_t)(i * i % 7);
    }
    inputs in = {.x = x, .y = y, .w = w, .index = index, .index32 = index32};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        in.rows = shapes[s][0], in.n = shapes[s][1];
        for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
            for (int beta = 0; beta < 2; beta++) {
                in.beta = (float)beta;
                compare(&cases[c], &in, want, got, again);
            }
        }
    }
    free(want), free(got), free(again);
    free(x), free(y), free(w), free(index), free(index32);
}

TEST(extremes_find_nan_and_the_first_of_equal_ones)
{
    const float x[] = {1, 5, 5, -2, -2, NAN, 7, NAN};
    for (int isa = 0; isa <= LS__ISA_COUNT; isa++) {
        const ls__kernels *k = isa == LS__ISA_COUNT ? ls__kernels_ref() : variant(isa);
        if (k == NULL) {
            continue;
        }
        float value[2];
        int64_t at[2];
        k->extreme(value, at, x, 1, 5, 1, false, NULL);
        CHECK(value[0] == 5.0f && at[0] == 1);
        k->extreme(value, at, x, 1, 5, 1, true, NULL);
        CHECK(value[0] == -2.0f && at[0] == 3);
        k->extreme(value, at, x, 1, 4, 2, true, NULL); /* columns {1,5,-2,7}, {5,-2,NaN,NaN} */
        CHECK(value[0] == -2.0f && at[0] == 2 && isnan(value[1]) && at[1] == 2);
    }
}

TEST_MAIN
