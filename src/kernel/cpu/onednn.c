/* SPDX-License-Identifier: Apache-2.0 */
/* The float32 product of oneDNN, the limit on its instructions, and what it has here.
 *
 * dnnl_sgemm with several threads may cut the sum over k among them, which changes its bits with
 * the number of threads (seen in 2.6.3 for m = 96, n = 256, k = 4096). So it runs on one thread
 * here, and gemm.c cuts C among threads by shape alone.
 */
#include <oneapi/dnnl/dnnl.h>

#include <stdatomic.h>
#include <stdio.h>

#include "base/log.h"
#include "kernel/cpu/onednn.h"
#include "kernel/cpu/threads.h"

#define WORTH_A_WORD 0x1p24 /* multiply-adds: from some 0.3 ms on */

static atomic_bool denied; /* LOCKSTEP_ONEDNN=0 */

/* One thread: the caller has cut the product already. The thread count is restored on return. False
 * if oneDNN refuses, and C is then unchanged. */
bool ls__onednn_gemm(const ls__gemm *g)
{
    if (!ls__onednn_present()) {
        return false;
    }
    int threads = ls__threads_own();
    if (threads > 1) {
        ls__threads_set(1);
    }
    dnnl_status_t status =
        dnnl_sgemm(g->trans_a ? 'T' : 'N', g->trans_b ? 'T' : 'N', g->m, g->n, g->k, 1.0f, g->a,
                   g->lda, g->b, g->ldb, g->beta, g->c, g->ldc);
    if (threads > 1) {
        ls__threads_set(threads);
    }
    return status == dnnl_success;
}

/* Tables of kernels are asked for by several threads. */
void ls__onednn_allow(bool allowed)
{
    atomic_store_explicit(&denied, !allowed, memory_order_relaxed);
}

bool ls__onednn_present(void)
{
    return !atomic_load_explicit(&denied, memory_order_relaxed);
}

/* LOCKSTEP_CPU also limits oneDNN, which chooses its instructions once a process. It is too late
 * where the host program has used oneDNN already; that is a warning, not an error. */
void ls__onednn_limit(ls__cpu level)
{
    static const dnnl_cpu_isa_t most[LS__CPU_COUNT] = {
        dnnl_cpu_isa_sse41, dnnl_cpu_isa_sse41, dnnl_cpu_isa_avx2, dnnl_cpu_isa_avx512_core_bf16,
        dnnl_cpu_isa_avx512_core_amx};
    if (dnnl_set_max_cpu_isa(most[level]) != dnnl_success &&
        (dnnl_get_effective_cpu_isa() & ~most[level]) != 0) {
        LS__WARN(
            "LOCKSTEP_CPU=%s: the program used oneDNN before this library, and oneDNN keeps the "
            "instructions chosen then; make a tensor before the program uses oneDNN",
            ls__cpu_name(level));
    }
}

/* An instruction set is the bits of those that it includes. */
static bool includes(dnnl_cpu_isa_t set)
{
    return ((unsigned)dnnl_get_effective_cpu_isa() & (unsigned)set) == (unsigned)set;
}

/* oneDNN asks the system for the tiles before it says that it has them. */
bool ls__onednn_has_tiles(void)
{
    return includes(dnnl_cpu_isa_avx512_core_amx);
}

bool ls__onednn_has_bf16(void)
{
    return ls__onednn_present() && includes(dnnl_cpu_isa_avx512_core_bf16);
}

/* float32 uses nothing beyond AVX-512. */
static const char *instructions(bool half)
{
    if (half && ls__onednn_has_tiles()) {
        return ", AMX";
    }
    if (includes(dnnl_cpu_isa_avx512_core)) {
        return half ? ", AVX-512 BF16" : ", AVX-512";
    }
    if (includes(dnnl_cpu_isa_avx2)) {
        return ", AVX2";
    }
    return includes(dnnl_cpu_isa_sse41) ? ", SSE4.1" : ""; /* not x86 */
}

/* The version of the library that was loaded, which may be newer than the headers. */
bool ls__onednn_path(bool half, char *text, size_t room)
{
    if (!ls__onednn_present()) {
        return false;
    }
    const dnnl_version_t *v = dnnl_version();
    (void)snprintf(text, room, "oneDNN %d.%d.%d%s", v->major, v->minor, v->patch,
                   instructions(half));
    return !half || ls__onednn_has_bf16();
}

/* Without AVX2 or instructions for bfloat16 nobody expects oneDNN's best. */
void ls__onednn_refused(const char *what, double work, bool half)
{
    static atomic_flag said = ATOMIC_FLAG_INIT;
    char name[64];
    if (work < WORTH_A_WORD || !includes(dnnl_cpu_isa_avx2) ||
        !ls__onednn_path(half, name, sizeof name) ||
        atomic_flag_test_and_set_explicit(&said, memory_order_relaxed)) {
        return;
    }
    LS__WARN("%s has no fast kernel for %s: the built-in loops compute it, perhaps several times "
             "slower (other shapes are not reported)",
             name, what);
}
