/* SPDX-License-Identifier: Apache-2.0 */
/* The table of operations. A trait that a row does not name is false, LS__SIDE_ALL for buffers. */
#include "job/operation.h"

#define PLAIN(operation) .plain = operation

const ls__operation_traits ls__operations[LS__OP_COUNT] = {
    [LS__OP_ALL_REDUCE] = {"all_reduce", PLAIN(LS__OP_ALL_REDUCE), .reduces = true},
    [LS__OP_REDUCE_SCATTER] = {"reduce_scatter", PLAIN(LS__OP_REDUCE_SCATTER), .reduces = true,
                               .in_blocks = true},
    [LS__OP_ALL_GATHER] = {"all_gather", PLAIN(LS__OP_ALL_GATHER), .out_blocks = true},
    [LS__OP_BROADCAST] = {"broadcast", PLAIN(LS__OP_BROADCAST), .has_root = true},
    [LS__OP_BARRIER] = {"barrier", PLAIN(LS__OP_BARRIER)},
    [LS__OP_SEND] = {"send", PLAIN(LS__OP_SEND)},
    [LS__OP_RECV] = {"recv", PLAIN(LS__OP_RECV)},
    [LS__OP_REDUCE] = {"reduce", PLAIN(LS__OP_REDUCE), .reduces = true, .has_root = true,
                       .output = LS__SIDE_ROOT},
    [LS__OP_GATHER] = {"gather", PLAIN(LS__OP_GATHER), .has_root = true, .out_blocks = true,
                       .output = LS__SIDE_ROOT},
    [LS__OP_SCATTER] = {"scatter", PLAIN(LS__OP_SCATTER), .has_root = true, .in_blocks = true,
                        .input = LS__SIDE_ROOT},
    [LS__OP_ALL_TO_ALL] = {"all_to_all", PLAIN(LS__OP_ALL_TO_ALL), .in_blocks = true,
                           .out_blocks = true},
    [LS__OP_SCAN] = {"scan", PLAIN(LS__OP_SCAN), .reduces = true, .scans = true},
    [LS__OP_EXSCAN] = {"exscan", PLAIN(LS__OP_EXSCAN), .reduces = true, .scans = true,
                       .output = LS__SIDE_NOT_FIRST},
    [LS__OP_ALL_TO_ALL_V] = {"all_to_all_v", PLAIN(LS__OP_ALL_TO_ALL), .in_blocks = true,
                             .out_blocks = true},
    [LS__OP_ALL_GATHER_V] = {"all_gather_v", PLAIN(LS__OP_ALL_GATHER), .out_blocks = true,
                             .counts_known = true},
    [LS__OP_REDUCE_SCATTER_V] = {"reduce_scatter_v", PLAIN(LS__OP_REDUCE_SCATTER), .reduces = true,
                                 .in_blocks = true, .counts_known = true},
    [LS__OP_GATHER_V] = {"gather_v", PLAIN(LS__OP_GATHER), .has_root = true, .out_blocks = true,
                         .output = LS__SIDE_ROOT},
    [LS__OP_SCATTER_V] = {"scatter_v", PLAIN(LS__OP_SCATTER), .has_root = true, .in_blocks = true,
                          .input = LS__SIDE_ROOT},
};

const char *ls__operation_name(ls__operation operation)
{
    return (unsigned)operation < LS__OP_COUNT ? ls__operations[operation].name : "invalid";
}
