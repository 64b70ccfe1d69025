/* SPDX-License-Identifier: Apache-2.0 */
/* SipHash-1-3 against Python's: PYTHONHASHSEED=0 python3 -c 'print(hex(hash(bytes(range(n)))))',
 * whose key is then 0 (sys.hash_info.algorithm is "siphash13"). */
#include "base/siphash.h"

#include "test.h"

TEST(texts_have_pythons_hashes)
{
    static const struct {
        size_t bytes;
        uint64_t hash;
    } known[] = {{1, 0x68a914128e01e473},  {3, 0x4d4c9a4a8ef6e0ad}, {7, 0x2f098ab0c751325a},
                 {8, 0xead411e67ebe2eea},  {9, 0x75927f9d95124362}, {15, 0xf30eb725bb91c9ea},
                 {16, 0x8972188433a5c5b7}, {31, 0x169739443111d49b}};
    const ls__siphash_key zero = {{0, 0}}, other = {{0, 1}};
    unsigned char data[32];
    for (size_t i = 0; i < sizeof data; i++) {
        data[i] = (unsigned char)i;
    }
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        CHECK(ls__siphash(&zero, data, known[i].bytes) == known[i].hash);
        CHECK(ls__siphash(&other, data, known[i].bytes) != known[i].hash);
    }
}

TEST_MAIN
