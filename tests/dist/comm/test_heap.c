/* SPDX-License-Identifier: Apache-2.0 */
/* Where the heaps of the ranks of a host lie in the address space: Note [Staggered heaps] in
 * heap.c. */
#include "says.h"
#include "test.h"

#include <stdint.h>

#include "comm/core/comm.h"
#include "comm/core/group.h"

/* By which AMD's Zen predicts the way of a line in its first-level data cache. */
static unsigned way_hash(uintptr_t address)
{
    static const unsigned char pairs[8][2] = {{12, 27}, {13, 26}, {14, 25}, {15, 20},
                                              {16, 21}, {17, 22}, {18, 23}, {19, 24}};
    unsigned hash = 0;
    for (int i = 0; i < 8; i++) {
        hash |= (unsigned)((address >> pairs[i][0] ^ address >> pairs[i][1]) & 1) << i;
    }
    return hash;
}

DIST_TEST(no_two_heaps_compete_for_one_way_of_the_cache, 8)
{
    const ls__comm *comm = ls_world()->comm;
    uint64_t random = 88172645463325252u;
    for (int i = 0; i < 2000; i++) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        const uintptr_t offset = random % ((uintptr_t)60 << 30);
        bool taken[256] = {false};
        for (int r = 0; r < ls_world_size(); r++) {
            if (comm->heap.peer[r].base != NULL && !comm->heap.peer[r].remote) {
                const unsigned hash = way_hash((uintptr_t)comm->heap.peer[r].base + offset);
                CHECK(!taken[hash]);
                taken[hash] = true;
            }
        }
    }
}

TEST(a_heap_without_room_for_the_rings_of_all_ranks_is_refused)
{
    const ls__heap_spec spec = {.size = 1024,
                                .here = 1,
                                .config = "",
                                .reserve = (size_t)1 << 30,
                                .ring_bytes = (size_t)1 << 30};
    ls__heap heap;
    CHECK_STATUS(ls__heap_init(&heap, ls__env_posix(), &spec), LS_ERR_MEMORY);
    CHECK_SAYS(ls_error_message(), "ls_init: a shared heap of %zu MiB is too small for %d ranks; "
                                   "raise LOCKSTEP_HEAP_RESERVE");
    ls__heap_fini(&heap);
}

TEST_MAIN
