/* What operations must give, by plain loops over values drawn from the operation's number. */
#include "sim/scenario.h"

static uint64_t mixed(uint64_t x)
{
    ls__sim_random r = {x};
    return ls__sim_draw(&r);
}

/* Floats of many magnitudes, so that another association of a sum gives other bits. */
float ls__oracle_value(uint64_t id, int rank, int64_t i)
{
    const uint64_t h = mixed(id ^ (uint64_t)rank << 56 ^ (uint64_t)i);
    if ((id & LS__ORACLE_WHOLE) != 0) {
        return (float)(h & 0xffffu);
    }
    const float magnitude = (float)(1u << (h >> 60));
    return ((float)(h & 0xffffffu) - 8388608.0f) * magnitude;
}

/* The canonical association (docs/design.md, D5): a tree split at the largest power of two. Without
 * recursion: the sums of complete subtrees wait on a stack, as the bits of a counter. */
float ls__oracle_sum(uint64_t id, int64_t i, int ranks)
{
    float waiting[8];
    int size[8], depth = 0;
    for (int r = 0; r < ranks; r++) {
        waiting[depth] = ls__oracle_value(id, r, i);
        size[depth++] = 1;
        while (depth > 1 && size[depth - 2] == size[depth - 1]) {
            depth--;
            waiting[depth - 1] += waiting[depth];
            size[depth - 1] *= 2;
        }
    }
    while (depth > 1) {
        depth--;
        waiting[depth - 1] += waiting[depth];
    }
    return waiting[0];
}
