/* The lecture's table of backends: which functions, types and memory each of them has. */
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
    for (int i = 0; i < count && i + 1 < COLUMNS_MAX; i++) {
        columns[i + 1] = (paper_column){names[i], "", NULL};
    }
    if (g->table == NULL) {
        g->table = paper_table(g->p, "What each backend carries", columns, count + 1);
    }
    json_t *row = json_pack("[s]", what);
    for (int i = 0; i < count; i++) {
        json_array_append_new(row, json_string(has[i] ? "yes" : "-"));
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
    paper_note(p,
               "NCCL: skipped: this version has no CUDA backend, so none has a GPU's memory. The "
               "lecture's table: NCCL has all_reduce, broadcast, reduce, all_gather and "
               "reduce_scatter, of GPU memory; Gloo has most functions, of CPU memory; MPI has "
               "all, of CPU memory.");
    return true;
}
