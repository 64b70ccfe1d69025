/* Every call of oneDNN. Its API changed from 2 to 3; dnnl_sgemm is the same in both.
 *
 * dnnl_sgemm with several threads may cut the sum over k among them, which changes its bits with
 * the number of threads (seen in 2.6.3 for m = 96, n = 256, k = 4096). So it runs on one thread
 * here, and gemm.c cuts C among threads by shape alone.
 */
#include <oneapi/dnnl/dnnl.h>

#include "kernel/cpu/onednn.h"
#include "kernel/cpu/threads.h"

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

bool ls__onednn_gemm(const ls__gemm *g)
{
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

const char *ls__onednn_name(void)
{
    return "oneDNN " TEXT(DNNL_VERSION_MAJOR) "." TEXT(DNNL_VERSION_MINOR) "." TEXT(
        DNNL_VERSION_PATCH);
}
