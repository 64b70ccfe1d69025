/* SPDX-License-Identifier: Apache-2.0 */
/* Rings of ranks a distance apart, Note [Shift] in algorithm.h. For 6 ranks and distance 2 there
 * are two rings of three:
 *
 *     0 ──0──▶ 4 ──1──▶ 2 ──2──▶ 0        1 ──0──▶ 5 ──1──▶ 3 ──2──▶ 1
 */
#include "base/assert.h"
#include "comm/algorithm/algorithm.h"

/* Of the edge that leaves place j of a ring of `length`. */
static int lane_of(int j, int length)
{
    return j == length - 1 && length % 2 == 1 ? 2 : j % 2;
}

/* All ranks of a ring number its places from the same member, so both ends of an edge agree on its
 * lane. */
ls__shift ls__shift_of(const ls__program_spec *spec, int distance)
{
    LS_ASSERT(distance >= 1 && distance < spec->size);
    const int n = spec->size, me = spec->rank;
    int length = 1, place = 0;
    while ((length * distance) % n != 0) {
        length++;
    }
    const int rings = n / length;
    for (int at = me % rings; at != me; at = (at - distance + n) % n) {
        place++;
    }
    return (ls__shift){.to = (me - distance + n) % n,
                       .from = (me + distance) % n,
                       .out = lane_of(place, length),
                       .in = lane_of((place - 1 + length) % length, length)};
}
