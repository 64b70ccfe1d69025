/* SPDX-License-Identifier: Apache-2.0 */
/* The promise of D5 between transports: the same random numbers, reduced over shared memory, over
 * TCP, over both mixed, and over two MPIs, give the same bytes, whatever the dtype, operation, size
 * and number of ranks. Every rank hashes all its results; the parent compares. TEST_LONG=1: all
 * rank counts. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <lockstep/comm.h>

#include "base/splitmix64.h"
#include "test.h"

enum { RANKS_MAX = 8, COUNT_MAX = 40009, DTYPES = 4, MPI_RANKS = 3 };

static const ls_dtype floats[DTYPES] = {LS_FLOAT32, LS_FLOAT64, LS_FLOAT16, LS_BFLOAT16};
static const ls_reduce_op ops[] = {LS_SUM, LS_AVG, LS_PRODUCT, LS_MIN, LS_MAX};
static const int64_t counts[] = {0, 1, 2, 7, 63, 1023, 1025, 2049, 4099, COUNT_MAX};
/* By name, so that one must be the same over all transports; NULL: chosen, which may differ. */
static const char *const algorithms[] = {NULL, "direct", "recursive_doubling"};

#define LENGTH(a) (sizeof(a) / sizeof *(a))

typedef struct shared {
    uint64_t hash[RANKS_MAX];    /* of all results of a rank */
    uint64_t reduced[RANKS_MAX]; /* of those that all ranks have */
    int calls;
} shared;

static void add(uint64_t *hash, const void *data, size_t bytes)
{
    const unsigned char *at = data;
    for (size_t i = 0; i < bytes; i++) {
        *hash = (*hash ^ at[i]) * 0x100000001b3u; /* FNV-1a */
    }
}

/* A float between 2^-4 and 2^4 of either sign, in the bits of the dtype: magnitudes that differ, so
 * that another association, or one rounding more, gives other bits. */
static void put(unsigned char *at, ls_dtype dtype, uint64_t h)
{
    const uint64_t sign = h & 1, power = (h >> 1) % 8;
    const uint16_t half = (uint16_t)(sign << 15 | (11 + power) << 10 | (h >> 8 & 0x3ff));
    const uint16_t brain = (uint16_t)(sign << 15 | (123 + power) << 7 | (h >> 8 & 0x7f));
    const uint32_t single = (uint32_t)(sign << 31 | (123 + power) << 23 | (h >> 8 & 0x7fffff));
    const uint64_t twice = sign << 63 | (1019 + power) << 52 | (h >> 8 & 0xfffffffffffffu);
    switch (dtype) {
    case LS_FLOAT16:
        memcpy(at, &half, sizeof half);
        break;
    case LS_BFLOAT16:
        memcpy(at, &brain, sizeof brain);
        break;
    case LS_FLOAT32:
        memcpy(at, &single, sizeof single);
        break;
    default:
        memcpy(at, &twice, sizeof twice);
        break;
    }
}

typedef struct buffers {
    unsigned char *in, *out;
    shared *shared;
} buffers;

static void fill(unsigned char *to, int64_t count, ls_dtype dtype, uint64_t seed)
{
    const size_t element = ls_dtype_size(dtype);
    for (int64_t i = 0; i < count; i++) {
        put(to + (size_t)i * element, dtype, ls__splitmix64(seed ^ (uint64_t)i));
    }
}

static void reduce_all(const buffers *b, ls_dtype dtype, ls_reduce_op op, int64_t count)
{
    const int rank = ls_rank();
    const size_t bytes = (size_t)count * ls_dtype_size(dtype);
    for (size_t a = 0; a < LENGTH(algorithms); a++) {
        for (int divided = 0; divided < (op == LS_SUM ? 2 : 1); divided++) {
            const ls_collective_options *options = LS_OPTIONS(
                ls_collective_options, .algorithm = algorithms[a], .divisor = divided ? 3.7 : 0);
            fill(b->out, count, dtype, ls__splitmix64((uint64_t)count * 8 + (uint64_t)rank));
            CHECK_OK(ls_all_reduce(ls_world(), b->out, b->out, count, dtype, op, options, NULL));
            add(&b->shared->reduced[rank], b->out, bytes);
        }
    }
}

static void reduce_parts(const buffers *b, ls_dtype dtype, ls_reduce_op op, int64_t count)
{
    const int n = ls_world_size(), rank = ls_rank(), root = (int)(count % n);
    const size_t bytes = (size_t)count * ls_dtype_size(dtype);
    fill(b->in, count * n, dtype, ls__splitmix64((uint64_t)count * 8 + (uint64_t)rank + 1));
    CHECK_OK(ls_reduce_scatter(ls_world(), b->in, b->out, count, dtype, op, NULL, NULL));
    add(&b->shared->hash[rank], b->out, bytes);
    CHECK_OK(ls_reduce(ls_world(), b->in, b->out, count, dtype, op, root, NULL, NULL));
    add(&b->shared->hash[rank], b->out, rank == root ? bytes : 0);
}

static void hash_all(shared *s)
{
    const size_t room = (size_t)COUNT_MAX * 8;
    const int rank = ls_rank();
    buffers b = {.in = calloc(RANKS_MAX, room), .out = calloc(1, room), .shared = s};
    CHECK(b.in != NULL && b.out != NULL);
    for (int d = 0; d < DTYPES; d++) {
        for (size_t o = 0; o < LENGTH(ops); o++) {
            for (size_t c = 0; c < LENGTH(counts); c++) {
                if (counts[c] == COUNT_MAX && ops[o] != LS_SUM && ops[o] != LS_AVG) {
                    continue;
                }
                reduce_all(&b, floats[d], ops[o], counts[c]);
                reduce_parts(&b, floats[d], ops[o], counts[c]);
                b.shared->calls += rank == 0;
            }
        }
    }
    free(b.in);
    free(b.out);
}

static int run_rank(void *arg)
{
    CHECK_OK(ls_init(NULL));
    hash_all(arg);
    CHECK_OK(ls_finalize());
    return 0;
}

static shared *over(const char *hosts, int ranks)
{
    shared *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(s != MAP_FAILED);
    setenv("LOCKSTEP_HOSTS", hosts, 1);
    CHECK_OK(ls_spawn(run_rank, s, ranks));
    return s;
}

static void check_same(const shared *s, const shared *first, int ranks)
{
    CHECK(s->calls > 0);
    for (int r = 0; r < ranks; r++) {
        CHECK(s->reduced[r] == s->reduced[0] && s->reduced[r] == first->reduced[r]);
        CHECK(s->hash[r] == first->hash[r]);
    }
}

TEST(shared_memory_tcp_and_both_mixed_give_the_same_bytes)
{
    static const char *const hosts[] = {"1", "64", "2", "3"};
    const bool all = getenv("TEST_LONG") != NULL;
    for (int n = 1; n <= RANKS_MAX; n++) {
        if (!all && n != 2 && n != 3 && n != 7) {
            continue;
        }
        shared *first = NULL;
        for (size_t h = 0; h < LENGTH(hosts) && (h == 0 || n > 1); h++) {
            shared *s = over(hosts[h], n);
            first = first == NULL ? s : first;
            check_same(s, first, n);
        }
    }
}

/* ---- MPI ------------------------------------------------------------------------------------ */

#define HASHES "EQUAL_BITS_FILE" /* the variable that names the file of the ranks under mpirun */

static shared *open_hashes(int flags)
{
    const int fd = open(getenv(HASHES), O_RDWR | O_CLOEXEC | flags, 0600);
    CHECK(fd >= 0 && ftruncate(fd, sizeof(shared)) == 0);
    shared *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(s != MAP_FAILED && close(fd) == 0);
    return s;
}

DIST_TEST(helper_hash, MPI_RANKS)
{
    hash_all(open_hashes(0));
}

static void check_over(const char *mpi)
{
    char command[2048], path[64];
    snprintf(command, sizeof command, "command -v mpirun.%s >/dev/null && test -e %s_%s.so", mpi,
             test_build_path("src/comm/mpi/ls_backend_mpi"), mpi);
    test_output got = test_run(command, 10);
    free(got.text);
    if (got.status != 0) {
        SKIP("no mpirun of this MPI, or no plug-in (apt-get install libopenmpi-dev libmpich-dev "
             "mpich)");
    }
    snprintf(path, sizeof path, "/tmp/equal-bits.%d", (int)getpid());
    setenv(HASHES, path, 1);
    shared *s = open_hashes(O_CREAT | O_EXCL);
    snprintf(command, sizeof command, "LOCKSTEP_HOSTS=64 TEST_MPI=%s %s helper_hash", mpi,
             test_build_path("tests/dist/net/net_test_equal_bits"));
    got = test_run(command, 60);
    CHECK(unlink(path) == 0);
    CHECK_CONTAINS(got.text, "ok 1 - helper_hash");
    CHECK_INT(got.status, 0);
    free(got.text);
    check_same(s, over("1", MPI_RANKS), MPI_RANKS);
}

TEST(open_mpi_gives_the_bytes_of_shared_memory)
{
    check_over("openmpi");
}

TEST(mpich_gives_the_bytes_of_shared_memory)
{
    check_over("mpich");
}

TEST_MAIN
