/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for the other ranks in ls_init: after a few seconds a warning names the ranks that have
 * not called it, and at the deadline the error does.
 *
 *     ls__arrival_begin ──▶ wait a slice ──the rank has come, or a failure──▶ done
 *                             ▲     └──the slice is over──▶ ls__arrival_goes_on: warns ──┐
 *                             └──────────────────────────────────────────────────────────┘ */
#ifndef LS_COMM_JOIN_ARRIVAL_H
#define LS_COMM_JOIN_ARRIVAL_H

#include "base/error.h"
#include "job/board.h"

typedef struct ls__arrival {
    const ls__env *env;
    const ls__board *board;
    int world_size, local_rank;
    int64_t timeout_ms;
    uint64_t begin_ns, warn_ns;
    bool explained; /* the error at the deadline names the missing ranks */
} ls__arrival;

void ls__arrival_begin(ls__arrival *a, const ls__env *env, const ls__board *board, int local_rank,
                       int64_t timeout_ms);
/* Of a wait of ls_init that began then. After Ctrl-Z the time begins anew. */
uint64_t ls__arrival_deadline(const ls__arrival *a, uint64_t begin_ns);
/* How long the next wait may take: to the next warning or the deadline, whichever comes first. */
int64_t ls__arrival_slice_ms(const ls__arrival *a);
/* The same to the deadline alone, for calls that wait for no other rank. */
int64_t ls__arrival_left_ms(const ls__arrival *a);
/* Whether to wait again after a slice that ended with `status`, for a rank of the world. At the
 * deadline false, with the error set. */
bool ls__arrival_goes_on(ls__arrival *a, ls_status status, int awaited);

/* ---- settings.c: two ranks that start with different settings -------------------------------- */

/* On one host heap.c finds them, between hosts tcp_join.c. */
/* A rank and its settings, as ls__comm_config writes them. */
typedef struct ls__settings_side {
    int rank;
    const char *settings;
} ls__settings_side;

/* LS_ERR_MISMATCH with a message that names both ranks and the first setting in which they differ,
 * the same on both ranks. The settings must differ. */
ls_status ls__settings_differ(ls__settings_side a, ls__settings_side b);

#endif
