/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of schedules, which the plans of a search have in common: a table depends neither on cuts
 * nor on placements. */
#ifndef LS_PLAN_TABLES_H
#define LS_PLAN_TABLES_H

#include "schedule/schedule.h"

#define LS__PLAN_TABLES_MAX 64

typedef struct ls__plan_table {
    const char *name;
    ls__schedule_spec spec;
    ls__schedule *table;
} ls__plan_table;

typedef struct ls__plan_tables {
    const ls__env *env;
    ls__plan_table list[LS__PLAN_TABLES_MAX];
    int count;
    int64_t cells; /* stages x micro-batches of all; at most LS__SCHEDULE_CELLS_MAX */
} ls__plan_tables;

/* The table, which belongs to `tables` until the next call for another one, or free. The name is
 * static, the spec has no replicas. Errors as of ls__schedule_new. */
ls_status ls__plan_tables_get(ls__plan_tables *tables, const char *name,
                              const ls__schedule_spec *spec, ls__schedule **out);
void ls__plan_tables_free(ls__plan_tables *tables); /* all of them; may be used again */

#endif
