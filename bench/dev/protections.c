/* SPDX-License-Identifier: Apache-2.0 */
/* `measure protections`: what an all_reduce costs beside moving and adding the data. Ranks
 * of this host do the same work twice, in turns: by the library, and by a bare loop of stamps over
 * the same memory with the same kernels, which checks no argument, compares nothing, remembers
 * nothing, looks for no failure and would wait for ever. The difference is everything that keeps
 * users from harm (arguments, descriptors, flight records, failures, deadlines), together with what
 * makes the library general: an upper bound of the price of protection. */
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench/bench.h"
#include "comm/core/comm.h"
#include "comm/core/group.h"
#include "comm/memory/control.h"

#define ROUNDS 61
#define SAMPLE_BYTES 8000000 /* of all calls of a sample; small ones: CALLS_MAX calls */
#define CALLS_MAX 400
#define LOOKS 2000 /* before a rank yields that has a core of its own */
#define HEAD (2 * LS__CACHE_LINE)

static const int64_t all_sizes[] = {4, 1000, 16000, 1000000, 10000000};
enum { SIZES = sizeof all_sizes / sizeof *all_sizes, LARGEST = 10000000 };

/* Every rank's block: its stamp, two places for small data, its operand. */
typedef struct bare {
    int rank, size;
    bool crowded; /* more ranks than cores */
    uint64_t fence;
    unsigned char *block[LS__BENCH_RANKS_MAX];
    const ls__reduce_kernels *kernels;
} bare;

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static unsigned char *place_of(const bare *b, int rank)
{
    return b->block[rank] + HEAD + (b->fence % 2) * LS__SMALL_BYTES;
}

static float *operand_of(const bare *b, int rank)
{
    return (float *)(void *)(b->block[rank] + HEAD + 2 * (size_t)LS__SMALL_BYTES);
}

static _Atomic uint64_t *stamp_of(const bare *b, int rank)
{
    return (_Atomic uint64_t *)(void *)b->block[rank];
}

static void meet(bare *b)
{
    b->fence++;
    atomic_store_explicit(stamp_of(b, b->rank), b->fence, memory_order_release);
    for (int r = 0; r < b->size; r++) {
        int looks = 0;
        while (atomic_load_explicit(stamp_of(b, r), memory_order_acquire) < b->fence) {
            if (b->crowded || ++looks > LOOKS) {
                sched_yield();
            }
        }
    }
}

static void reduce(const bare *b, void *const *dst, int dst_count, const void *const *src,
                   int64_t count)
{
    if (count > 0) {
        ls__reduce(&(ls__reduce_args){.dst = dst,
                                      .dst_count = dst_count,
                                      .src = src,
                                      .src_count = b->size,
                                      .count = count,
                                      .dtype = LS_FLOAT32,
                                      .op = LS_SUM,
                                      .table = b->kernels});
    }
}

/* As "one_shot" does it, with data that fits in the places. */
static void bare_small(bare *b, int64_t count)
{
    const void *src[LS__BENCH_RANKS_MAX];
    void *own = operand_of(b, b->rank);
    memcpy(place_of(b, b->rank), own, (size_t)count * sizeof(float));
    for (int r = 0; r < b->size; r++) {
        src[r] = r == b->rank ? own : place_of(b, r);
    }
    meet(b);
    reduce(b, &own, 1, src, count);
}

/* As "direct" does it, in place. */
static void bare_large(bare *b, int64_t count)
{
    const int64_t each = (count / b->size + 16) / 16 * 16, first = each * b->rank;
    const int64_t left = count - first;
    const void *src[LS__BENCH_RANKS_MAX];
    void *dst[LS__BENCH_RANKS_MAX];
    for (int r = 0; r < b->size; r++) {
        dst[r] = operand_of(b, r) + first;
        src[r] = dst[r];
    }
    meet(b);
    reduce(b, dst, b->size, src, left < each ? left : each);
    meet(b);
}

static ls_status run_calls(bare *b, bool library, int64_t count, int calls)
{
    for (int i = 0; i < calls; i++) {
        if (library) {
            LS_TRY(ls_all_reduce(ls_world(), operand_of(b, b->rank), operand_of(b, b->rank), count,
                                 LS_FLOAT32, LS_SUM, NULL, NULL));
        } else if ((size_t)count * sizeof(float) <= LS__SMALL_BYTES) {
            bare_small(b, count);
        } else {
            bare_large(b, count);
        }
    }
    return LS_OK;
}

/* Microseconds of a call, the longest of all ranks. */
static ls_status sample(bare *b, bool library, int64_t count, int calls, double *us)
{
    LS_TRY(ls_barrier(ls_world(), NULL, NULL));
    const double begin = now_us();
    LS_TRY(run_calls(b, library, count, calls));
    *us = (now_us() - begin) / calls;
    return ls_all_reduce(ls_world(), us, us, 1, LS_FLOAT64, LS_MAX, NULL, NULL);
}

/* Both add up the same: 1 + 2 + … of every element, on every rank. */
static ls_status check(bare *b, bool library, int64_t count)
{
    float *x = operand_of(b, b->rank);
    for (int64_t i = 0; i < count; i++) {
        x[i] = (float)(b->rank + 1);
    }
    LS_TRY(ls_barrier(ls_world(), NULL, NULL));
    LS_TRY(run_calls(b, library, count, 1));
    int32_t wrong = 0;
    for (int64_t i = 0; i < count; i++) {
        wrong += x[i] != (float)(b->size * (b->size + 1) / 2);
        x[i] = 0;
    }
    LS_TRY(ls_all_reduce(ls_world(), &wrong, &wrong, 1, LS_INT32, LS_SUM, NULL, NULL));
    return wrong == 0 ? LS_OK : LS_ERR_INTERNAL;
}

static ls_status measure(bare *b, int64_t bytes)
{
    const int64_t count = bytes / (int64_t)sizeof(float);
    const int most = (int)(SAMPLE_BYTES / bytes) + 1, calls = most < CALLS_MAX ? most : CALLS_MAX;
    double ours[ROUNDS], theirs[ROUNDS], added[ROUNDS];
    LS_TRY(check(b, true, count));
    LS_TRY(check(b, false, count));
    for (int i = 0; i < ROUNDS; i++) {
        const bool first = i % 2 == 0; /* in turns, and in turns the first */
        LS_TRY(sample(b, first, count, calls, first ? &ours[i] : &theirs[i]));
        LS_TRY(sample(b, !first, count, calls, first ? &theirs[i] : &ours[i]));
        added[i] = ours[i] - theirs[i];
    }
    ls__bench_sort(ours, ROUNDS);
    ls__bench_sort(theirs, ROUNDS);
    ls__bench_sort(added, ROUNDS);
    if (b->rank == 0) {
        const int half = ROUNDS / 2, tenth = ROUNDS / 10;
        printf("%10lld %10.2f %10.2f %10.2f %9.1f %12.2f %10.2f %9.1f\n", (long long)bytes,
               ours[half], theirs[half], added[half], 100.0 * added[half] / theirs[half],
               ours[tenth], theirs[tenth], 100.0 * (ours[tenth] / theirs[tenth] - 1));
        (void)fflush(stdout);
    }
    return LS_OK;
}

/* Where every rank's block lies in this process. */
static ls_status find_blocks(bare *b, void *own)
{
    const ls_group *world = ls_world();
    int64_t offset[LS__BENCH_RANKS_MAX];
    const int64_t mine = (unsigned char *)own - world->member[b->rank].base;
    LS_TRY(ls_all_gather(ls_world(), &mine, offset, 1, LS_INT64, NULL, NULL));
    for (int r = 0; r < b->size; r++) {
        b->block[r] = world->member[r].base + offset[r];
    }
    return LS_OK;
}

static ls_status measure_all(void)
{
    void *own = NULL;
    bare b = {.rank = ls_rank(), .size = ls_world_size(), .kernels = ls__reduce_kernels_get()};
    b.crowded = !ls_world()->comm->machine.may_spin;
    LS_TRY(ls_group_alloc(ls_world(), HEAD + 2 * (size_t)LS__SMALL_BYTES + LARGEST, &own));
    LS_TRY(find_blocks(&b, own));
    if (b.rank == 0) {
        printf(
            "# all_reduce in registered memory, float32 sum, %d ranks; us, medians of %d pairs in\n"
            "# turns, and the fastest tenth. bare: stamps and sums over the same memory, no more\n"
            "#%9s %10s %10s %10s %9s %12s %10s %9s\n",
            b.size, ROUNDS, "bytes", "lockstep", "bare", "added", "added %", "fast: ours", "bare",
            "added %");
    }
    for (int i = 0; i < SIZES; i++) {
        LS_TRY(measure(&b, all_sizes[i]));
    }
    return ls_group_dealloc(ls_world(), own);
}

static int run_rank(void *unused)
{
    (void)unused;
    LS_CHECK(ls_init(NULL));
    const ls_status status = measure_all();
    if (status == LS_ERR_INTERNAL) {
        fprintf(stderr, "measure protections: wrong results\n");
        return 1;
    }
    LS_CHECK(status);
    LS_CHECK(ls_finalize());
    return 0;
}

int ls__bench_protections(int argc, char **argv)
{
    char *end = NULL;
    const bool told = argc == 2 && strcmp(argv[0], "-n") == 0;
    const long ranks = told ? strtol(argv[1], &end, 10) : 2;
    if ((argc > 0 && !told) || (told && (end == argv[1] || *end != '\0')) || ranks < 1 ||
        ranks > LS__BENCH_RANKS_MAX) {
        fprintf(stderr, "measure protections: takes nothing, or -n and a number from 1 to %d\n",
                LS__BENCH_RANKS_MAX);
        return 2;
    }
    (void)unsetenv("LOCKSTEP_HOSTS"); /* over shared memory */
    if (ls_spawn(run_rank, NULL, (int)ranks) < 0) {
        fprintf(stderr, "measure protections: %s\n", ls_error_message());
        return 1;
    }
    return 0;
}
