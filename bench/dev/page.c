/* SPDX-License-Identifier: Apache-2.0 */
/* `measure algorithms`: docs/algorithms.md, counted from the programs. */
#include <stdio.h>
#include <string.h>

#include "bench/bench.h"
#include "comm/algorithm/registry.h"
#include "forms.h"

static const int shown[] = {4, 6, 16};
#define SHOWN (sizeof shown / sizeof *shown)

static const char head[] =
    "# What the algorithms cost\n"
    "\n"
    "`build/bench/dev/measure algorithms` counts this page from the programs that run;\n"
    "`UPDATE_GOLDEN=1 tests/run --only algorithms` writes it anew, and a test compares it. Each "
    "count\n"
    "stands beside its closed form. Another test compares the two for 1 to 16 ranks, wherever the "
    "form\n"
    "is valid, and a third one compares the count with the engine's own counters, byte for byte.\n"
    "\n"
    "Bytes are given in *full buffers*: the whole buffer of all_reduce, reduce, broadcast and "
    "scans; all\n"
    "n blocks of the others. The root is rank 0, and all ranks are on one host (`hierarchical` on "
    "h\n"
    "hosts sends 2(h-1)/h buffers out of each host, for all its ranks together).\n"
    "\n"
    "- **steps**: the longest chain of messages in which each message needs data of the previous "
    "one\n"
    "- **rank**: the largest amount that one rank sends, or receives\n"
    "- **link**: the largest amount that one rank sends to one other rank\n"
    "- **total**: all messages together\n"
    "- **w(n)**: the largest number of ones in a binary number below n, which is the longest path "
    "in a\n"
    "  binomial tree; log n is the binary logarithm, rounded up\n"
    "- **exact**: the sum has the bits of the canonical tree (adjacent ranks first, split at the\n"
    "  largest power of two), so the choice among exact algorithms never changes a bit. The other\n"
    "  algorithms also give the same bytes on every rank, but not the bytes of that tree\n"
    "\n"
    "Partial sums of 16-bit floats travel as float32, with twice the bytes, and those of averages "
    "of\n"
    "integers in a wider integer, with two or four times the bytes; they are counted as\n"
    "elements. \"for 2^k\" marks formulas for powers of two; other numbers of ranks take a little "
    "more.\n";

/* A number of buffers with as many digits as it needs, at most three. */
static void put_number(double x)
{
    char text[32];
    snprintf(text, sizeof text, "%.3f", x);
    size_t length = strlen(text);
    while (text[length - 1] == '0') {
        length--;
    }
    length -= text[length - 1] == '.' ? 1 : 0;
    printf("%.*s", (int)length, text);
}

static const char *condition(const ls__bench_form *form)
{
    return form->from == 0 ? " (for 2^k)" : form->from > 2 ? " (from 4 ranks on)" : "";
}

static void put_form(const ls__bench_form *form)
{
    if (form == NULL) {
        printf(" |  |  |  |  |\n");
        return;
    }
    printf(" | %s%s | %s | %s | %s | %s |\n", form->steps.text, condition(form), form->rank.text,
           form->link.text, form->total.text, form->association);
}

static ls_status put_counts(const ls__algorithm *algorithm)
{
    for (size_t i = 0; i < SHOWN; i++) {
        ls__program_totals t;
        LS_TRY(ls__bench_count_totals(algorithm, shown[i], &t));
        printf(" | %d: ", t.steps);
        put_number(t.rank);
        printf(", ");
        put_number(t.link);
        printf(", ");
        put_number(t.total);
    }
    return LS_OK;
}

static bool by_messages(const ls__algorithm *algorithm, ls__operation operation)
{
    return algorithm->operation == operation && (algorithm->memories & LS__IN_MESSAGES) != 0;
}

static ls_status put_operation(ls__operation operation)
{
    int count = 0, rows = 0;
    const ls__algorithm *const *all = ls__algorithms(&count);
    for (int a = 0; a < count; a++) {
        if (!by_messages(all[a], operation)) {
            continue;
        }
        if (rows++ == 0) {
            printf("\n## %s\n\n| algorithm | exact", ls__operation_name(operation));
            for (size_t i = 0; i < SHOWN; i++) {
                printf(" | %d ranks: steps: rank, link, total", shown[i]);
            }
            printf(
                " | steps | rank | link | total | association |\n|---|---|---|---|---|---|---|---"
                "|---|---|\n");
        }
        const ls__bench_form *form = ls__bench_form_find(all[a]);
        const bool by_hosts = form != NULL && strcmp(form->name, "hierarchical") == 0;
        printf("| %s | %s", all[a]->name, all[a]->exact ? "yes" : by_hosts ? "aligned" : "no");
        LS_TRY(put_counts(all[a]));
        put_form(form);
    }
    return LS_OK;
}

/* Elements that a rank reads from its peers' memory and writes to it; of the rank with most of
 * them. */
static void put_memory(const ls__algorithm *algorithm, ls__memory memory)
{
    const int ranks = 4;
    double read = 0, written = 0;
    int fences = 0;
    for (int r = 0; r < ranks; r++) {
        const ls__program_spec spec = {
            .operation = algorithm->operation, .memory = memory, .rank = r, .size = ranks};
        ls__program *program = NULL;
        ls__program_cost cost;
        if (algorithm->generate(&spec, ls__env_posix(), &program) != LS_OK) {
            return;
        }
        ls__program_cost_count(program, &cost);
        read = cost.received > read ? cost.received : read;
        written = cost.sent > written ? cost.sent : written;
        fences = program->fences;
        ls__program_free(program);
    }
    printf("| %s | %s | %s | %d | ", ls__operation_name(algorithm->operation), algorithm->name,
           memory == LS__MEMORY_REGISTERED ? "registered" : "staged", fences);
    put_number(read);
    printf(" | ");
    put_number(written);
    printf(" |\n");
}

static void put_shared_memory(void)
{
    int count = 0;
    const ls__algorithm *const *all = ls__algorithms(&count);
    printf(
        "\n## In shared memory\n\nRanks of one host read and write each other's memory. "
        "`registered` is memory of\n`ls_group_alloc`; `staged` is private memory, copied through "
        "slices. The table shows\n4 ranks, and of these the rank with the largest amount:\n\n"
        "| operation | algorithm | memory | fences | read from peers | written to peers |\n"
        "|---|---|---|---|---|---|\n");
    for (int a = 0; a < count; a++) {
        for (int m = LS__MEMORY_REGISTERED; m <= LS__MEMORY_STAGED; m++) {
            if ((all[a]->memories >> m & 1u) != 0) {
                put_memory(all[a], (ls__memory)m);
            }
        }
    }
}

int ls__bench_page(void)
{
    fputs(head, stdout);
    for (int operation = 0; operation < LS__OP_COUNT; operation++) {
        if (put_operation((ls__operation)operation) != LS_OK) {
            fprintf(stderr, "lockstep bench: %s\n", ls_error_message());
            return 1;
        }
    }
    put_shared_memory();
    return 0;
}
