/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers drawn by kernels against ls_random_uniform and ls_random_normal, which draw them one by
 * one: bits, for every variant, wherever a stream is cut and however many threads draw. */
#include <lockstep/random.h>

#include "kernel_test.h"

#define SEED 0x123456789abcdefu
#define STREAM (77ull << 40 | 5u)
#define MARK 1e30f

static void want_numbers(float *uniform, float *normal, int64_t count, uint64_t first)
{
    for (int64_t i = 0; i < count; i++) {
        const uint64_t at = first + (uint64_t)i;
        uniform[i] = (float)(-0.3 + 0.7 * (double)ls_random_uniform(SEED, STREAM, at));
        normal[i] = (float)(0.1 + 0.02 * (double)ls_random_normal(SEED, STREAM, at));
    }
}

static void uniforms(const ls__kernels *k, float *out, int64_t count, uint64_t first)
{
    k->random_uniform(out, count, first, -0.3, 0.4, SEED, STREAM, NULL);
}

static void normals(const ls__kernels *k, float *out, int64_t count, uint64_t first)
{
    k->random_normal(out, count, first, 0.1, 0.02, SEED, STREAM, NULL);
}

/* Every table of this machine, the plain one last; NULL: it has none of that number. */
static const ls__kernels *table(int i)
{
    return i == LS__ISA_COUNT ? ls__kernels_ref() : variant(i);
}

TEST(numbers_of_every_instruction_set_are_those_of_the_public_functions)
{
    enum { MOST = 1100 };
    static const int64_t counts[] = {0, 1, 2, 3, 4, 5, 7, 31, 64, 255, 256, 257, 511, 1100};
    static const uint64_t firsts[] = {0, 1, 2, 3, 4, 253, 1001, (1ull << 34) - 6, UINT64_MAX / 2};
    float want[2][MOST], got[MOST + 2];
    for (size_t f = 0; f < sizeof firsts / sizeof *firsts; f++) {
        want_numbers(want[0], want[1], MOST, firsts[f]);
        for (int i = 0; i <= LS__ISA_COUNT; i++) {
            const ls__kernels *k = table(i);
            for (size_t c = 0; k != NULL && c < 2 * sizeof counts / sizeof *counts; c++) {
                const int64_t count = counts[c / 2];
                for (int64_t j = 0; j < count + 2; j++) {
                    got[j] = MARK;
                }
                (c % 2 == 0 ? uniforms : normals)(k, got + 1, count, firsts[f]);
                check_same_bits(k->name, got + 1, want[c % 2], count);
                CHECK(got[0] == MARK && got[count + 1] == MARK); /* nothing beside them */
            }
        }
    }
}

TEST(numbers_do_not_depend_on_pieces_or_threads)
{
    enum { COUNT = 200003, FIRST = 7 };
    static const int64_t pieces[] = {1, 70001, 3, 2, 65536, 64460};
    float *want[2] = {allocate(COUNT * sizeof(float)), allocate(COUNT * sizeof(float))};
    float *got = allocate(COUNT * sizeof(float));
    want_numbers(want[0], want[1], COUNT, FIRST);
    for (int i = 0; i < LS__ISA_COUNT; i++) {
        const ls__kernels *k = table(i);
        for (int threads = 1; k != NULL && threads <= 5; threads++) {
            ls__kernels_set_threads(threads);
            for (int normal = 0; normal < 2; normal++) {
                memset(got, 0xff, COUNT * sizeof(float));
                (normal == 0 ? uniforms : normals)(k, got, COUNT, FIRST);
                check_same_bits(k->name, got, want[normal], COUNT);
            }
        }
        ls__kernels_set_threads(2);
        memset(got, 0xff, COUNT * sizeof(float));
        int64_t at = 0;
        for (size_t p = 0; k != NULL && p < sizeof pieces / sizeof *pieces; at += pieces[p++]) {
            normals(k, got + at, pieces[p], FIRST + (uint64_t)at);
        }
        if (k != NULL) {
            CHECK_INT(at, COUNT);
            check_same_bits(k->name, got, want[1], COUNT);
        }
    }
    ls__kernels_set_threads(1);
    free(want[0]), free(want[1]), free(got);
}

TEST_MAIN
