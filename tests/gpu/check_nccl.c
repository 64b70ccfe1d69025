/* SPDX-License-Identifier: Apache-2.0 */
/* The backend `nccl` on a real GPU: what tests/dist/comm/test_nccl.c shows over fakes, as far as it
 * can be seen from outside. scripts/gpu-check runs it with 1 to 4 ranks:
 *
 *     check_nccl values     every type and sum, and the other operations
 *     check_nccl streams    an operation comes after its stream, and its stream after it
 *     check_nccl hang       a stream that never comes to its operation: ended, not hung
 *     check_nccl speed      all_reduce by size, one line of JSON each
 *
 * A second argument is the most bytes. Each prints "ok" from rank 0, or says what is wrong and ends
 * with 1. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/comm.h>

#include "base/half.h"

enum { COUNT = 10007, ROUNDS = 50 };

typedef uintptr_t pointer;
static struct {
    int (*init)(unsigned);
    int (*count)(int *);
    int (*device)(int *, int);
    int (*retain)(void **, int);
    int (*set_context)(void *);
    int (*alloc)(pointer *, size_t);
    int (*to_device)(pointer, const void *, size_t);
    int (*to_host)(void *, pointer, size_t);
    int (*make_stream)(ls_stream **, unsigned);
    int (*synchronize)(ls_stream *);
    int (*set32)(pointer, unsigned, size_t, ls_stream *);
    int (*copy)(pointer, pointer, size_t, ls_stream *);
    int (*wait_value)(ls_stream *, pointer, uint32_t, unsigned);
} cuda;

static ls_group *group;

static void fail(const char *what)
{
    fprintf(stderr, "rank %d: %s: %s\n", ls_rank(), what, ls_error_message());
    exit(1);
}

static void must(int error, const char *what)
{
    if (error != 0) {
        fprintf(stderr, "rank %d: %s: CUDA error %d\n", ls_rank(), what, error);
        exit(1);
    }
}

static void find(void *library, const char *name, void *to)
{
    void *symbol = library != NULL ? dlsym(library, name) : NULL;
    if (symbol == NULL) {
        fprintf(stderr, "libcuda.so.1: %s is missing: %s\n", name, dlerror());
        exit(1);
    }
    memcpy(to, &symbol, sizeof symbol);
}

static void open_device(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *context = NULL;
    int count = 0, device = 0;
    find(library, "cuInit", &cuda.init);
    find(library, "cuDeviceGetCount", &cuda.count);
    find(library, "cuDeviceGet", &cuda.device);
    find(library, "cuDevicePrimaryCtxRetain", &cuda.retain);
    find(library, "cuCtxSetCurrent", &cuda.set_context);
    find(library, "cuMemAlloc_v2", &cuda.alloc);
    find(library, "cuMemcpyHtoD_v2", &cuda.to_device);
    find(library, "cuMemcpyDtoH_v2", &cuda.to_host);
    find(library, "cuStreamCreate", &cuda.make_stream);
    find(library, "cuStreamSynchronize", &cuda.synchronize);
    find(library, "cuMemsetD32Async", &cuda.set32);
    find(library, "cuMemcpyDtoDAsync_v2", &cuda.copy);
    find(library, "cuStreamWaitValue32_v2", &cuda.wait_value);
    must(cuda.init(0), "cuInit");
    must(cuda.count(&count), "cuDeviceGetCount");
    must(cuda.device(&device, ls_local_rank() % count), "cuDeviceGet");
    must(cuda.retain(&context, device), "cuDevicePrimaryCtxRetain");
    must(cuda.set_context(context), "cuCtxSetCurrent");
}

static pointer device_memory(size_t bytes)
{
    pointer at = 0;
    must(cuda.alloc(&at, bytes), "cuMemAlloc");
    return at;
}

/* ---- values -------------------------------------------------------------------------------- */

static double get(const void *from, int64_t i, ls_dtype dtype)
{
    switch (dtype) {
    case LS_FLOAT32:
        return (double)((const float *)from)[i];
    case LS_FLOAT64:
        return ((const double *)from)[i];
    case LS_FLOAT16:
        return (double)ls__float16_widen(((const uint16_t *)from)[i]);
    case LS_BFLOAT16:
        return (double)ls__bfloat16_widen(((const uint16_t *)from)[i]);
    case LS_INT8:
    case LS_UINT8:
        return ((const int8_t *)from)[i];
    case LS_INT32:
    case LS_UINT32:
        return ((const int32_t *)from)[i];
    default:
        return (double)((const int64_t *)from)[i];
    }
}

static void put(void *to, int64_t i, ls_dtype dtype, int value)
{
    const float f = (float)value;
    const double d = value;
    const int64_t whole = value;
    const uint16_t half = dtype == LS_FLOAT16 ? ls__float16_round(f) : ls__bfloat16_round(f);
    const void *from = dtype == LS_FLOAT32                           ? (const void *)&f
                       : dtype == LS_FLOAT64                         ? (const void *)&d
                       : dtype == LS_FLOAT16 || dtype == LS_BFLOAT16 ? (const void *)&half
                                                                     : (const void *)&whole;
    memcpy((char *)to + (size_t)i * ls_dtype_size(dtype), from, ls_dtype_size(dtype));
}

/* Small whole numbers, whose sums every type holds exactly. */
static int input(int rank, int64_t i)
{
    return (int)((i * 3 + rank) % 5) + 1;
}

static int expected(int64_t i, ls_reduce_op op)
{
    int x = input(0, i);
    for (int r = 1; r < ls_world_size(); r++) {
        const int y = input(r, i);
        x = op == LS_SUM ? x + y : op == LS_MIN ? (x < y ? x : y) : (x > y ? x : y);
    }
    return x;
}

static void check_reduction(pointer at, ls_dtype dtype, ls_reduce_op op)
{
    static char host[COUNT * 8];
    const size_t bytes = COUNT * ls_dtype_size(dtype);
    for (int64_t i = 0; i < COUNT; i++) {
        put(host, i, dtype, input(ls_rank(), i));
    }
    must(cuda.to_device(at, host, bytes), "cuMemcpyHtoD");
    if (ls_all_reduce(group, (void *)at, (void *)at, COUNT, dtype, op, NULL, NULL) != LS_OK) {
        fail("all_reduce");
    }
    must(cuda.to_host(host, at, bytes), "cuMemcpyDtoH");
    for (int64_t i = 0; i < COUNT; i++) {
        if (get(host, i, dtype) != expected(i, op)) {
            fprintf(stderr, "rank %d: %s of %s: element %lld is %g, not %d\n", ls_rank(),
                    ls_reduce_op_name(op), ls_dtype_name(dtype), (long long)i, get(host, i, dtype),
                    expected(i, op));
            exit(1);
        }
    }
}

/* Block b of rank r is r * size + b. */
static void check_movers(pointer in, pointer out)
{
    const int size = ls_world_size(), me = ls_rank();
    int32_t host[64], got[64];
    for (int b = 0; b < size; b++) {
        host[b] = me * size + b;
    }
    must(cuda.to_device(in, host, sizeof host), "cuMemcpyHtoD");
    if (ls_all_to_all(group, (void *)in, (void *)out, 1, LS_INT32, NULL, NULL) != LS_OK) {
        fail("all_to_all");
    }
    must(cuda.to_host(got, out, sizeof got), "cuMemcpyDtoH");
    for (int r = 0; r < size; r++) {
        if (got[r] != r * size + me) {
            fail("all_to_all gave another value");
        }
    }
    if (ls_all_gather(group, (void *)in, (void *)out, 1, LS_INT32, NULL, NULL) != LS_OK ||
        ls_broadcast(group, (void *)in, 1, LS_INT32, size - 1, NULL, NULL) != LS_OK) {
        fail("all_gather, broadcast");
    }
    must(cuda.to_host(got, out, sizeof got), "cuMemcpyDtoH");
    must(cuda.to_host(host, in, sizeof host), "cuMemcpyDtoH");
    for (int r = 0; r < size; r++) {
        if (got[r] != r * size || host[0] != (size - 1) * size) {
            fail("all_gather or broadcast gave another value");
        }
    }
}

static void values(void)
{
    static const ls_dtype dtypes[] = {LS_FLOAT32, LS_FLOAT64, LS_FLOAT16, LS_BFLOAT16, LS_INT8,
                                      LS_UINT8,   LS_INT32,   LS_UINT32,  LS_INT64,    LS_UINT64};
    const pointer in = device_memory(COUNT * 8), out = device_memory(COUNT * 8);
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++) {
        check_reduction(in, dtypes[d], LS_SUM);
        check_reduction(in, dtypes[d], LS_MIN);
        check_reduction(in, dtypes[d], LS_MAX);
    }
    check_movers(in, out);
}

/* ---- streams ------------------------------------------------------------------------------- */

/* Bits of float32 numbers that the device writes, sums and copies without the host. */
static void streams(size_t bytes)
{
    const size_t count = bytes / sizeof(float);
    const pointer x = device_memory(count * 4), kept = device_memory(ROUNDS * 4);
    float first[ROUNDS];
    ls_stream *stream = NULL;
    must(cuda.make_stream(&stream, 1), "cuStreamCreate");
    for (int i = 0; i < ROUNDS; i++) {
        ls_work *work = NULL;
        const float value = (float)(i + ls_rank());
        must(cuda.set32(x, ls__float_bits(value), count, stream), "cuMemsetD32Async");
        if (ls_all_reduce(group, (void *)x, (void *)x, (int64_t)count, LS_FLOAT32, LS_SUM,
                          LS_OPTIONS(ls_collective_options, .stream = stream), &work) != LS_OK ||
            ls_work_wait_stream(work, stream) != LS_OK) {
            fail("all_reduce in a stream");
        }
        must(cuda.copy(kept + (size_t)i * 4, x + (count - 1) * 4, 4, stream), "cuMemcpyDtoDAsync");
    }
    must(cuda.synchronize(stream), "cuStreamSynchronize");
    must(cuda.to_host(first, kept, sizeof first), "cuMemcpyDtoH");
    for (int i = 0; i < ROUNDS; i++) {
        const int n = ls_world_size();
        if (first[i] != (float)(n * i + n * (n - 1) / 2)) {
            fail("a sum came too early or too late");
        }
    }
}

/* The last rank's stream waits for a word that nobody writes. */
static void hang(void)
{
    const pointer x = device_memory(COUNT * 4), word = device_memory(4);
    const uint32_t zero = 0;
    ls_stream *stream = NULL;
    must(cuda.to_device(word, &zero, sizeof zero), "cuMemcpyHtoD");
    must(cuda.make_stream(&stream, 1), "cuStreamCreate");
    if (ls_rank() == ls_world_size() - 1) {
        must(cuda.wait_value(stream, word, 1, 0), "cuStreamWaitValue32");
    }
    const double begin = ls_time();
    const ls_status status = ls_all_reduce(
        group, (void *)x, (void *)x, COUNT, LS_FLOAT32, LS_SUM,
        LS_OPTIONS(ls_collective_options, .stream = stream, .timeout_ms = 3000), NULL);
    if (status == LS_OK || ls_time() - begin > 3.0 + 5.0) {
        fail("a hanging stream was not ended in time");
    }
    fprintf(stderr, "rank %d: %s\nok\n", ls_rank(), ls_error_message());
    _Exit(0); /* the stream still hangs */
}

/* ---- speed --------------------------------------------------------------------------------- */

/* Sizes and repetitions of nccl-tests, as scripts/gpu-check runs those. */
static void speed(size_t largest)
{
    const int n = ls_world_size();
    for (size_t bytes = 1 << 10; bytes <= largest; bytes *= 8) {
        void *x = NULL;
        if (ls_group_alloc(group, bytes, &x) != LS_OK) {
            fail("ls_group_alloc");
        }
        double begin = 0;
        for (int i = 0; i < 12; i++) {
            begin = i == 2 ? ls_time() : begin;
            if (ls_all_reduce(group, x, x, (int64_t)(bytes / 4), LS_FLOAT32, LS_SUM, NULL, NULL) !=
                LS_OK) {
                fail("all_reduce");
            }
        }
        const double seconds = (ls_time() - begin) / 10;
        if (ls_rank() == 0) {
            printf("{\"ranks\": %d, \"bytes\": %zu, \"time_us\": %.1f, \"busbw_gb_s\": %.3f}\n", n,
                   bytes, seconds * 1e6, (double)bytes * 2 * (n - 1) / n / seconds * 1e-9);
        }
        (void)ls_group_dealloc(group, x);
    }
}

int main(int argc, char **argv)
{
    const char *what = argc >= 2 ? argv[1] : "";
    const size_t size = argc == 3 ? strtoull(argv[2], NULL, 10) : (size_t)256 << 20;
    if (ls_init(NULL) != LS_OK) {
        fail("ls_init");
    }
    open_device();
    if (ls_group_create(ls_world(), LS_OPTIONS(ls_group_options, .backend = "nccl"), &group) !=
        LS_OK) {
        fail("ls_group_create");
    }
    if (strcmp(what, "values") == 0) {
        values();
    } else if (strcmp(what, "streams") == 0) {
        streams(size < ((size_t)16 << 20) ? size : (size_t)16 << 20);
    } else if (strcmp(what, "hang") == 0) {
        hang();
    } else if (strcmp(what, "speed") == 0) {
        speed(size);
    } else {
        fprintf(stderr, "use: check_nccl values|streams|hang|speed\n");
        return 2;
    }
    if (ls_group_free(group) != LS_OK || ls_finalize() != LS_OK) {
        fail("the end");
    }
    if (getenv("RANK") == NULL || strcmp(getenv("RANK"), "0") == 0) {
        printf("ok\n");
    }
    return 0;
}
