/* SPDX-License-Identifier: Apache-2.0 */
/* The largest or least elements of rows, in order.
 *
 * Each element becomes an unsigned key that sorts as it does (turned over where the largest come
 * first). A key of at most 32 bits and the element's place make one 64-bit word, the key above. So
 * all words differ, equal elements sort by their place, and any algorithm is a stable one: the k
 * least words are collected in a heap whose root is the largest of them, in the memory of the
 * result, and the heap is sorted where it stands (heapsort; Williams 1964). n log k steps and no
 * memory besides. Types of 64 bits leave no room for the place: their heap holds places, and reads
 * the keys where the elements lie.
 */
#include "base/assert.h"
#include "kernel/cpu/vmath.h"

/* The bits of a float whose sign bit is `sign` and whose infinity has the bits `infinity`. -0
 * equals 0; all NaN are one, above infinity. */
LS__INLINE uint64_t float_key(uint64_t bits, uint64_t sign, uint64_t infinity)
{
    const uint64_t magnitude = bits & (sign - 1);
    const uint64_t key = bits & sign ? sign - magnitude : sign + magnitude;
    return magnitude > infinity ? sign | (sign - 1) : key;
}

LS__INLINE uint64_t float64_key(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return float_key(bits, UINT64_C(1) << 63, UINT64_C(0x7ff) << 52);
}

/* The least of 32 bits becomes 0. */
LS__INLINE uint64_t signed_key(int32_t x)
{
    return (uint64_t)((int64_t)x - INT32_MIN);
}

/* Below 2^32 where the type has at most 32 bits. */
LS__INLINE uint64_t key_of(const void *x, ls_dtype dtype, int64_t i)
{
    switch (dtype) {
    case LS_FLOAT32:
        return float_key(ls__as_bits(((const float *)x)[i]), 0x80000000, 0x7f800000);
    case LS_FLOAT64:
        return float64_key(((const double *)x)[i]);
    case LS_FLOAT16:
        return float_key(((const uint16_t *)x)[i], 0x8000, 0x7c00);
    case LS_BFLOAT16:
        return float_key(((const uint16_t *)x)[i], 0x8000, 0x7f80);
    case LS_INT8:
        return signed_key(((const int8_t *)x)[i]);
    case LS_UINT8:
        return ((const uint8_t *)x)[i];
    case LS_BOOL:
        return ((const uint8_t *)x)[i] != 0;
    case LS_INT16:
        return signed_key(((const int16_t *)x)[i]);
    case LS_UINT16:
        return ((const uint16_t *)x)[i];
    case LS_INT32:
        return signed_key(((const int32_t *)x)[i]);
    case LS_UINT32:
        return ((const uint32_t *)x)[i];
    case LS_INT64:
        return (UINT64_C(1) << 63) + (uint64_t)((const int64_t *)x)[i];
    case LS_UINT64:
        return ((const uint64_t *)x)[i];
    case LS_DTYPE_COUNT:
        break;
    }
    LS_ASSERT(dtype < LS_DTYPE_COUNT);
    return 0;
}

/* ---- up to 32 bits: words of key and place ------------------------------------------------ */

LS__INLINE uint64_t word_of(const void *x, ls_dtype dtype, int64_t place, bool largest)
{
    const uint64_t key = key_of(x, dtype, place);
    return (largest ? UINT32_MAX - key : key) << 32 | (uint64_t)place;
}

/* Moves `word` down from position `at`, which is free, until no child is larger. */
static void sift(uint64_t *heap, int64_t count, int64_t at, uint64_t word)
{
    for (int64_t child = 2 * at + 1; child < count; child = 2 * at + 1) {
        child += child + 1 < count && heap[child + 1] > heap[child];
        if (heap[child] <= word) {
            break;
        }
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = word;
}

/* The heap holds the best k so far with the worst of them at the root, where it is compared with
 * each further element. Compiled for each dtype that callers name as a constant. */
LS__INLINE void top_of_words(uint64_t *heap, const void *x, ls_dtype dtype, int64_t n, int64_t k,
                             bool largest)
{
    for (int64_t i = 0; i < k; i++) {
        heap[i] = word_of(x, dtype, i, largest);
    }
    for (int64_t i = k / 2 - 1; i >= 0; i--) {
        sift(heap, k, i, heap[i]);
    }
    for (int64_t i = k; i < n; i++) {
        const uint64_t word = word_of(x, dtype, i, largest);
        if (word < heap[0]) {
            sift(heap, k, 0, word);
        }
    }
    for (int64_t count = k - 1; count > 0; count--) {
        const uint64_t last = heap[count];
        heap[count] = heap[0];
        sift(heap, count, 0, last);
    }
    for (int64_t i = 0; i < k; i++) {
        heap[i] &= UINT32_MAX;
    }
}

/* ---- 64 bits: places ---------------------------------------------------------------------- */

typedef struct wide_row {
    const void *x;
    ls_dtype dtype;
    bool largest;
} wide_row;

/* Whether the element at place a comes after that at b. */
LS__INLINE bool follows(const wide_row *row, int64_t a, int64_t b)
{
    const uint64_t left = key_of(row->x, row->dtype, a), right = key_of(row->x, row->dtype, b);
    return left != right ? (left > right) != row->largest : a > b;
}

/* As `sift`, of places. */
static void sift_place(const wide_row *row, int64_t *heap, int64_t count, int64_t at, int64_t place)
{
    for (int64_t child = 2 * at + 1; child < count; child = 2 * at + 1) {
        child += child + 1 < count && follows(row, heap[child + 1], heap[child]);
        if (!follows(row, heap[child], place)) {
            break;
        }
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = place;
}

/* As `top_of_words`. A later element that equals the root stays out: its place is larger. */
static void top_of_places(int64_t *heap, const wide_row *row, int64_t n, int64_t k)
{
    for (int64_t i = 0; i < k; i++) {
        heap[i] = i;
    }
    for (int64_t i = k / 2 - 1; i >= 0; i--) {
        sift_place(row, heap, k, i, heap[i]);
    }
    for (int64_t i = k; i < n; i++) {
        if (follows(row, heap[0], i)) {
            sift_place(row, heap, k, 0, i);
        }
    }
    for (int64_t count = k - 1; count > 0; count--) {
        const int64_t last = heap[count];
        heap[count] = heap[0];
        sift_place(row, heap, count, 0, last);
    }
}

/* ---- rows --------------------------------------------------------------------------------- */

static void top_of_row(int64_t *index, const void *x, ls_dtype dtype, int64_t n, int64_t k,
                       bool largest)
{
    if (ls_dtype_size(dtype) == sizeof(uint64_t)) {
        top_of_places(index, &(wide_row){x, dtype, largest}, n, k);
    } else if (dtype == LS_FLOAT32) {
        top_of_words((uint64_t *)index, x, LS_FLOAT32, n, k, largest);
    } else {
        top_of_words((uint64_t *)index, x, dtype, n, k, largest);
    }
}

/* The caller has checked k and n. */
void LS__K(top)(int64_t *index, const void *x, ls_dtype dtype, int64_t rows, int64_t n, int64_t k,
                bool largest, ls_stream *stream)
{
    (void)stream;
    LS_ASSERT(k >= 0 && k <= n && n <= UINT32_MAX);
    const char *from = x;
    const int64_t row_bytes = n * (int64_t)ls_dtype_size(dtype);
    if (k == 0) {
        return;
    }
    LS__PARALLEL_FOR(rows > 1 && rows * n >= LS__PARALLEL_MIN, int64_t i = 0, i < rows, i++,
                     { top_of_row(index + i * k, from + i * row_bytes, dtype, n, k, largest); })
}
