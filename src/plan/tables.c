/* SPDX-License-Identifier: Apache-2.0 */
/* A list of tables, which is emptied where it is full (tables.h). */
#include "plan/tables.h"

#include <string.h>

#include "base/assert.h"

static bool is_equal(const ls__plan_table *t, const char *name, const ls__schedule_spec *spec)
{
    return strcmp(t->name, name) == 0 && t->spec.ranks == spec->ranks &&
           t->spec.micro_batches == spec->micro_batches && t->spec.chunks == spec->chunks &&
           t->spec.warm_up == spec->warm_up && t->spec.recompute == spec->recompute;
}

ls_status ls__plan_tables_get(ls__plan_tables *tables, const char *name,
                              const ls__schedule_spec *spec, ls__schedule **out)
{
    LS_ASSERT(spec->replicas == NULL && spec->per_step == 0 && !spec->vertical_sync);
    for (int i = 0; i < tables->count; i++) {
        if (is_equal(&tables->list[i], name, spec)) {
            *out = tables->list[i].table;
            return LS_OK;
        }
    }
    LS_TRY(ls__schedule_new(tables->env, name, spec, out));
    const int64_t cells = (int64_t)(*out)->stages * (*out)->micro_batches;
    if (tables->count == LS__PLAN_TABLES_MAX || tables->cells + cells > LS__SCHEDULE_CELLS_MAX) {
        ls__plan_tables_free(tables);
    }
    tables->list[tables->count++] = (ls__plan_table){name, *spec, *out};
    tables->cells += cells;
    return LS_OK;
}

void ls__plan_tables_free(ls__plan_tables *tables)
{
    for (int i = 0; i < tables->count; i++) {
        ls__schedule_free(tables->list[i].table);
    }
    tables->count = 0;
    tables->cells = 0;
}
