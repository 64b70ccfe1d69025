/* SPDX-License-Identifier: Apache-2.0 */
/* Closed forms of what algorithms cost by messages, in full buffers. */
#ifndef LS_BENCH_FORMS_H
#define LS_BENCH_FORMS_H

#include "comm/program/program.h"

#define LS__BENCH_FORM_RANKS_MAX 64

typedef struct ls__bench_amount {
    const char *text; /* of n ranks; log is that to base 2, rounded up */
    double (*at)(int ranks);
} ls__bench_amount;

typedef struct ls__bench_form {
    ls__operation operation;
    const char *name;
    int from; /* it holds from this number of ranks on; 0: for powers of two */
    ls__bench_amount steps, rank, link, total;
    const char *association;
} ls__bench_form;

const ls__bench_form *ls__bench_form_find(const ls__algorithm *algorithm); /* NULL: none */
bool ls__bench_form_holds(const ls__bench_form *form, int ranks);

/* The costs of the programs of `ranks` ranks (at most LS__BENCH_FORM_RANKS_MAX; root 0, one
 * host). */
ls_status ls__bench_count_totals(const ls__algorithm *algorithm, int ranks,
                                 ls__program_totals *out);

#endif
