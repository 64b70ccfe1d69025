/* Copies past the caches are copies: every border, and nothing beyond it. */
#include "base/copy.h"

#include <string.h>

#include "test.h"

#define ROOM 700
#define UNTOUCHED 0xa5

static void check_copy(size_t to, size_t from, size_t bytes)
{
    unsigned char in[ROOM], out[ROOM];
    for (size_t i = 0; i < ROOM; i++) {
        in[i] = (unsigned char)(i * 7 + i / 256 + 1);
    }
    memset(out, UNTOUCHED, sizeof out);
    ls__copy_past_caches(out + to, in + from, bytes);
    for (size_t i = 0; i < ROOM; i++) {
        const bool inside = i >= to && i < to + bytes;
        CHECK(out[i] == (inside ? in[from + (i - to)] : UNTOUCHED));
    }
}

TEST(a_copy_past_the_caches_is_the_same_bytes_at_every_border)
{
    for (size_t to = 0; to < 66; to += 1 + to / 20) {
        for (size_t bytes = 0; bytes < 270; bytes++) {
            check_copy(to, (to * 5 + bytes) % 64, bytes);
        }
    }
}

TEST_MAIN
