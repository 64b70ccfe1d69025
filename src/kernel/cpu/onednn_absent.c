/* A build without oneDNN: the built-in kernel does all matrix products. */
#include "kernel/cpu/onednn.h"

bool ls__onednn_gemm(const ls__gemm *g)
{
    (void)g;
    return false;
}

void ls__onednn_limit(ls__cpu level)
{
    (void)level;
}

bool ls__onednn_has_tiles(void)
{
    return false;
}

const char *ls__onednn_name(void)
{
    return NULL;
}
