/* SPDX-License-Identifier: Apache-2.0 */
/* CRC-32C against published values (RFC 3720, appendix B.4) and against the plain loop. */
#include <string.h>

#include "base/crc32c.h"
#include "test.h"

TEST(published_values_come_out)
{
    unsigned char block[32];
    memset(block, 0, sizeof block);
    CHECK_INT(ls__crc32c(0, block, 32), 0x8a9136aa);
    memset(block, 0xff, sizeof block);
    CHECK_INT(ls__crc32c(0, block, 32), 0x62a8ab43);
    for (int i = 0; i < 32; i++) {
        block[i] = (unsigned char)i;
    }
    CHECK_INT(ls__crc32c(0, block, 32), 0x46dd794e);
    CHECK_INT(ls__crc32c(0, "123456789", 9), 0xe3069283);
    CHECK_INT(ls__crc32c_plain(0, "123456789", 9), 0xe3069283);
    CHECK_INT(ls__crc32c(0, NULL, 0), 0);
}

TEST(fast_and_plain_agree_at_every_length_and_offset_and_in_pieces)
{
    static unsigned char data[20000];
    uint32_t x = (uint32_t)test_seed();
    for (size_t i = 0; i < sizeof data; i++) {
        x = x * 1664525u + 1013904223u;
        data[i] = (unsigned char)(x >> 24);
    }
    for (size_t n = 0; n < 14000; n += 1 + n / 37) {
        const size_t from = n % 17;
        const uint32_t want = ls__crc32c_plain(0, data + from, n);
        CHECK_INT(ls__crc32c(0, data + from, n), want);
        const uint32_t half = ls__crc32c(0, data + from, n / 3);
        CHECK_INT(ls__crc32c(half, data + from + n / 3, n - n / 3), want);
    }
}

TEST(every_single_flipped_bit_is_seen)
{
    unsigned char data[4096] = {1, 2, 3};
    const uint32_t good = ls__crc32c(0, data, sizeof data);
    for (size_t bit = 0; bit < 8 * sizeof data; bit += 7) {
        data[bit / 8] ^= (unsigned char)(1 << bit % 8);
        CHECK(ls__crc32c(0, data, sizeof data) != good);
        data[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
}

TEST_MAIN
