/* The table of fast kernels. */
#include "kernel/kernels.h"

const ls__kernels *ls__kernels_cpu(void)
{
    return ls__kernels_ref();
}

void ls__kernels_set_threads(int threads)
{
    (void)threads;
}

const char *ls__kernels_gemm_name(void)
{
    return "built-in";
}
