/* SPDX-License-Identifier: Apache-2.0 */
/* Tables for the tests: of a generator, of a text, and copies that may be damaged. */
#ifndef TABLES_H
#define TABLES_H

#include <stdbool.h>

#include "schedule/schedule.h"
#include "test.h"

typedef struct named_spec {
    const char *name;
    ls__schedule_spec spec;
} named_spec;

/* One of each kind of schedule, with and without recomputation. */
extern const named_spec table_kinds[];
extern const int table_kind_count;

ls__schedule *table_of(const char *name, const ls__schedule_spec *spec); /* checked */
ls__schedule *table_parsed(const char *text);                            /* checked */
ls__schedule *table_copy(const ls__schedule *s);

#endif
