/* SPDX-License-Identifier: Apache-2.0 */
/* Copies past the caches are copies: every border, and nothing beyond it. */
#include "base/copy.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

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
    ls__copy(out + to, in + from, bytes, LS__COPY_PAST_CACHES);
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

/* Whether or not this processor needs the claims, source and destination keep their bytes. */
TEST(a_copy_that_claims_lines_changes_its_destination_only)
{
    static unsigned char in[40000], before[sizeof in], out[sizeof in];
    for (size_t i = 0; i < sizeof in; i++) {
        in[i] = (unsigned char)(i * 11 + i / 251);
    }
    memcpy(before, in, sizeof in);
    for (size_t bytes = 1; bytes < sizeof in - 200; bytes = bytes * 3 + 7) {
        for (unsigned past = 0; past <= LS__COPY_PAST_CACHES; past++) {
            memset(out, UNTOUCHED, sizeof out);
            ls__copy(out + 3, in + 61, bytes, LS__COPY_CLAIM | past);
            CHECK(out[2] == UNTOUCHED && out[3 + bytes] == UNTOUCHED);
            CHECK(memcmp(out + 3, in + 61, bytes) == 0);
            ls__claim_lines(in + 5, bytes);
            CHECK(memcmp(in, before, sizeof in) == 0);
        }
    }
}

/* The rest of its first and its last line may be memory that somebody else writes. */
TEST(a_claim_stores_nothing_outside_its_range)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char *memory = mmap(NULL, 3 * page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                                 0); /* a store is a SIGSEGV */
    CHECK(memory != MAP_FAILED);
    CHECK(mprotect(memory + page, page, PROT_READ | PROT_WRITE) == 0);
    ls__claim_lines(memory + page - 7, 7 + page + 7);
    for (size_t from = 1; from < 64; from++) {
        ls__claim_lines(memory + from, 7);
    }
    CHECK(munmap(memory, 3 * page) == 0);
}

TEST_MAIN
