/* SPDX-License-Identifier: Apache-2.0 */
/* What the two walks of the verifier share. */
#ifndef LS_SCHEDULE_VERIFY_H
#define LS_SCHEDULE_VERIFY_H

#include "base/compiler.h"
#include "schedule/schedule.h"

/* "schedule 1f1b: rank 1, action 5 (1B2): " and the reason; actions are counted from 1. verify.c */
ls_status ls__schedule_bad(const ls__schedule *s, int rank, int index, const char *format, ...)
    LS__PRINTF(4, 5);

/* Executes the messages of all ranks over channels that hold one message. Peers are known to be
 * right. verify_channels.c */
ls_status ls__schedule_verify_channels(const ls__schedule *s, ls__arena *arena);

#endif
