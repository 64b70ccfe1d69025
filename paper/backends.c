/* SPDX-License-Identifier: Apache-2.0 */
/* The lecture's table of backends: which functions, types and memory each of them has. */
#include <string.h>

#include "paper.h"
#include "tools/commands.h"

enum { COLUMNS_MAX = 16 };

typedef struct grid {
    paper *p;
    json_t *table; /* NULL before the first row */
} grid;

static void add(void *arg, const char *what, int count, const char *const *names, const bool *has)
{
    grid *g = arg;
    paper_column columns[COLUMNS_MAX] = {{"function", "", NULL}};
    bool nccl = false;
    for (int i = 0; i < count && i + 2 < COLUMNS_MAX; i++) {
        columns[i + 1] = (paper_column){names[i], "", NULL};
        nccl = nccl || strcmp(names[i], "nccl") == 0;
    }
    columns[count + 1] = (paper_column){"nccl", "", NULL};
    if (g->table == NULL) {
        g->table = paper_table(g->p, "What each backend carries", columns, count + (nccl ? 1 : 2));
    }
    json_t *row = json_pack("[s]", what);
    for (int i = 0; i < count; i++) {
        json_array_append_new(row, json_string(has[i] ? "yes" : "-"));
    }
    if (!nccl) {
        json_array_append_new(row, json_string("no GPU here"));
    }
    json_array_append_new(json_object_get(g->table, "rows"), row);
}

bool paper_backends(paper *p)
{
    grid g = {.p = p};
    backends_each(add, &g);
    paper_note(
        p,
        "As each backend promises (lockstep info --backends); comm_test_backend runs all that is "
        "promised and compares it with native. Barriers work on every backend.");
    (void)paper_note_nccl(p);
    paper_note(p, "The lecture's table: NCCL has all_reduce, broadcast, reduce, all_gather and "
                  "reduce_scatter, of GPU memory; Gloo has most functions, of CPU memory; MPI has "
                  "all, of CPU memory.");
    return true;
}
