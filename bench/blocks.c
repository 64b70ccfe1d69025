/* SPDX-License-Identifier: Apache-2.0 */
/* How a buffer is cut into blocks, one for each rank.
 *
 * Even operations: count elements each. Uneven ones: weights 1, 2, 3 … n, so that block w begins at
 * total * w(w+1) / n(n+1), rounded down, and the last is n times as long as the first (with fewer
 * elements than that some are empty). all-to-all-v exchanges block (i+j) mod n between ranks i and
 * j: all ranks send and receive as much, and every block has another length than its neighbours.
 */
#include "bench.h"

/* total * w(w+1) / n(n+1), of products that cannot overflow. */
static int64_t begin_of(int64_t total, int n, int w)
{
    const int64_t whole = (int64_t)n * (n + 1), part = (int64_t)w * (w + 1);
    return total / whole * part + total % whole * part / whole;
}

void ls__bench_blocks_of(const ls__bench_options *options, int rank, int64_t count,
                         ls__bench_blocks *out)
{
    const ls__bench_operation *operation = options->operation;
    const int n = options->ranks;
    const int turn = operation->result == LS__BENCH_TRANSPOSED ? rank : 0;
    int64_t offset = 0;
    for (int i = 0; i < n; i++) {
        const int w = (turn + i) % n;
        out->counts[i] =
            operation->uneven ? begin_of(count, n, w + 1) - begin_of(count, n, w) : count;
        out->offsets[i] = offset;
        offset += out->counts[i];
    }
    out->total = offset;
}
