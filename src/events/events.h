/* SPDX-License-Identifier: Apache-2.0 */
/* Event logs (lockstep/event_log.h): event_log.c opens, checks and writes; each format makes the
 * bytes of one line or record. */
#ifndef LS_EVENTS_EVENTS_H
#define LS_EVENTS_EVENTS_H

#include <lockstep/event_log.h>

#include "base/env.h"

#define LS__EVENTS_NUMBERS_MAX 4096 /* values of a call */

typedef struct ls__event {
    int64_t step;
    const char *group; /* "" for none */
    const ls_event_value *values;
    int count;
} ls__event;

/* Bytes that are ready to be written. */
typedef struct ls__event_bytes {
    char *at;
    size_t used, room;
} ls__event_bytes;

/* LS_ERR_MEMORY. */
ls_status ls__event_bytes_put(ls__event_bytes *b, const void *bytes, size_t count);

/* tensorboard.c: the first records of a file; with `start` > 0 TensorBoard drops what came later.
 */
ls_status ls__tensorboard_head(ls__event_bytes *b, uint64_t wall_ns, int64_t start);
ls_status ls__tensorboard_event(ls__event_bytes *b, uint64_t wall_ns, const ls__event *event);

#endif
