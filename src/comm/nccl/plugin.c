/* SPDX-License-Identifier: Apache-2.0 */
/* The table of the backend `nccl`. */
#define LS_BACKEND_PLUGIN
#include "comm/nccl/plugin.h"

const ls_backend *ls_backend_plugin(uint32_t version)
{
    static const ls_backend table = {.size = sizeof table,
                                     .version = LS_BACKEND_VERSION,
                                     .name = "nccl",
                                     .describe = ls__nccl_describe,
                                     .open = ls__nccl_open,
                                     .connect = ls__nccl_connect,
                                     .close = ls__nccl_close,
                                     .start = ls__nccl_start,
                                     .test = ls__nccl_test,
                                     .abort = ls__nccl_abort,
                                     .alloc = ls__nccl_alloc,
                                     .dealloc = ls__nccl_dealloc,
                                     .unload = ls__nccl_unload,
                                     .mark = ls__nccl_mark_stream,
                                     .unmark = ls__nccl_unmark,
                                     .follow = ls__nccl_follow,
                                     .zero = ls__nccl_zero,
                                     .accepts = ls__nccl_accepts,
                                     .waits = ls__nccl_waits,
                                     .record = ls__nccl_record};
    return version == LS_BACKEND_VERSION ? &table : NULL;
}
