/* SPDX-License-Identifier: Apache-2.0 */
/* The table of the backend `mpi`. */
#define LS_BACKEND_PLUGIN
#include "comm/mpi/plugin.h"

#include <limits.h>

#define POLL_US 50 /* MPI works only while it is called */

/* Nothing of MPI is called here: `lockstep info` starts no MPI. */
static ls_status describe(ls_backend_capabilities *out, char *error)
{
    (void)error;
    const uint32_t kinds = (1u << (LS_BACKEND_SCATTER_V + 1)) - 1;
    out->flags = LS_BACKEND_PROGRAMS;
    out->memory = LS_BACKEND_HOST;
    out->operations = kinds & ~(1u << 4); /* 4 is the barrier */
    out->dtypes = ((1u << LS_DTYPE_COUNT) - 1) & ~(1u << LS_FLOAT16) & ~(1u << LS_BFLOAT16);
    out->reduce_ops = (1u << LS_REDUCE_OP_COUNT) - 1;
    out->poll_us = POLL_US;
    out->count_max = INT_MAX;
    ls__mpi_described();
    return LS_OK;
}

const ls_backend *ls_backend_plugin(uint32_t version)
{
    static const ls_backend table = {.size = sizeof table,
                                     .version = LS_BACKEND_VERSION,
                                     .name = "mpi",
                                     .describe = describe,
                                     .open = ls__mpi_group_open,
                                     .connect = ls__mpi_group_connect,
                                     .close = ls__mpi_group_close,
                                     .start = ls__mpi_start,
                                     .test = ls__mpi_test,
                                     .transport = &ls__mpi_messages,
                                     .unload = ls__mpi_unload};
    return version == LS_BACKEND_VERSION ? &table : NULL;
}
