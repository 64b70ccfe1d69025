/* The largest or least elements of rows, in order.
 *
 * An element and its place make one 64-bit word, the element above, as an unsigned number that
 * sorts as the float does (turned over where the largest come first). So words differ all, equal
 * elements sort by their place, and any algorithm is a stable one: the k least words are collected
 * in a heap whose root is the largest of them, in the memory of the result, and the heap is sorted
 * where it stands (heapsort; Williams 1964). n log k steps and no memory besides.
 */
#include "base/assert.h"
#include "kernel/cpu/vmath.h"

/* Negative floats sort against their bits, so these are turned over; all NaN are one, above
 * infinity. */
LS__INLINE uint64_t word_of(float x, int64_t place, bool largest)
{
    const uint32_t bits = x == 0.0f ? 0 : ls__as_bits(x); /* -0 equals 0 */
    uint32_t key = bits >> 31 ? ~bits : bits | UINT32_C(1) << 31;
    key = x != x ? UINT32_MAX : key;
    return (uint64_t)(largest ? ~key : key) << 32 | (uint64_t)place;
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
 * each further element. */
static void top_of_row(uint64_t *heap, const float *x, int64_t n, int64_t k, bool largest)
{
    for (int64_t i = 0; i < k; i++) {
        heap[i] = word_of(x[i], i, largest);
    }
    for (int64_t i = k / 2 - 1; i >= 0; i--) {
        sift(heap, k, i, heap[i]);
    }
    for (int64_t i = k; i < n; i++) {
        const uint64_t word = word_of(x[i], i, largest);
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

/* The caller has checked k and n. index serves as scratch: it holds keys of 64 bits until the row
 * is sorted. */
void LS__K(top)(int64_t *index, const float *x, int64_t rows, int64_t n, int64_t k, bool largest,
                ls_stream *stream)
{
    (void)stream;
    LS_ASSERT(k >= 0 && k <= n && n <= UINT32_MAX);
    if (k == 0) {
        return;
    }
    LS__PARALLEL_FOR(rows > 1 && rows * n >= LS__PARALLEL_MIN, int64_t i = 0, i < rows, i++,
                     { top_of_row((uint64_t *)index + i * k, x + i * n, n, k, largest); })
}
