/* SPDX-License-Identifier: Apache-2.0 */
/* The table of blocks against a plain map of bytes. */
#include "test.h"

#include <string.h>

#include "comm/memory/blocks.h"

enum { START = 4096, END = START + (8 << 20), LINES = (END - START) / 64, HELD = 200 };

static uint64_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

static unsigned char taken[LINES]; /* one a cache line of the range */
static unsigned char ever[LINES];

static void mark(size_t offset, size_t bytes, unsigned char value)
{
    for (size_t at = offset; at < offset + bytes; at += 64) {
        CHECK(at >= START && at < END);
        CHECK_INT(taken[(at - START) / 64], !value);
        taken[(at - START) / 64] = value;
    }
}

/* What was ever used lies within the first `dirty` bytes. */
static void check_dirty(size_t offset, size_t bytes, size_t dirty)
{
    for (size_t at = offset; at < offset + bytes; at += 64) {
        CHECK(!ever[(at - START) / 64] || at - offset < dirty);
        ever[(at - START) / 64] = 1;
    }
}

TEST(blocks_never_overlap_and_all_come_back)
{
    ls__blocks blocks;
    size_t offset[HELD], bytes[HELD];
    int held = 0;
    uint64_t state = test_seed();
    CHECK_INT(ls__blocks_init(&blocks, ls__env_posix(), START, END), 0);
    for (int i = 0; i < 20000; i++) {
        if (held < HELD && next_random(&state) % 2 == 0) {
            const size_t most = next_random(&state) % 50 == 0 ? 2 << 20 : 20000;
            size_t dirty = 0;
            bytes[held] = 1 + next_random(&state) % most;
            if (ls__blocks_take(&blocks, bytes[held], &offset[held], &dirty) == 0) {
                CHECK_INT(offset[held] % (bytes[held] >= 1 << 20 ? 4096 : 64), 0);
                mark(offset[held], bytes[held], 1);
                check_dirty(offset[held], bytes[held], dirty);
                held++;
            }
        } else if (held > 0) {
            const int k = (int)(next_random(&state) % (uint64_t)held);
            ls__block *block = ls__blocks_find(&blocks, offset[k]);
            CHECK(block != NULL);
            mark(offset[k], bytes[k], 0);
            ls__blocks_give(&blocks, block);
            CHECK(ls__blocks_find(&blocks, offset[k]) == NULL);
            held--;
            offset[k] = offset[held];
            bytes[k] = bytes[held];
        }
    }
    while (held > 0) {
        held--;
        ls__blocks_give(&blocks, ls__blocks_find(&blocks, offset[held]));
    }
    CHECK_INT(blocks.count, 1); /* merged to what it was */
    CHECK_INT(blocks.at[0].bytes, END - START);
    ls__blocks_fini(&blocks);
}

TEST(a_full_range_says_so_and_serves_again)
{
    ls__blocks blocks;
    size_t offset = 0, other = 0, dirty = 0;
    CHECK_INT(ls__blocks_init(&blocks, ls__env_posix(), 128, 128 + 128), 0);
    CHECK_INT(ls__blocks_take(&blocks, 128, &offset, &dirty), 0);
    CHECK_INT(dirty, 0);
    CHECK(ls__blocks_take(&blocks, 1, &other, &dirty) != 0);
    CHECK(ls__blocks_take(&blocks, SIZE_MAX, &other, &dirty) != 0);
    ls__blocks_give(&blocks, ls__blocks_find(&blocks, offset));
    CHECK_INT(ls__blocks_take(&blocks, 100, &other, &dirty), 0);
    CHECK_INT(other, offset);
    CHECK_INT(dirty, 128);
    ls__blocks_fini(&blocks);
}

TEST_MAIN
