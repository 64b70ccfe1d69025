/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of tables, of which a backward reaches few rows; see table.c. */
#ifndef LS_REDUCE_TABLE_H
#define LS_REDUCE_TABLE_H

#include "reduce/internal.h"

/* Makes the tables of domain d, whose group exists; *bits becomes the bytes of all their bitmaps.
 * Collective in that all ranks of the domain do it. */
ls_status ls__tables_make(ls_reducer *r, int d, size_t *bits);
void ls__tables_free(ls_reducer *r, int d);

/* A synchronising backward begins, which reaches the table or not: adds the rows of what earlier
 * ones have accumulated (NULL: nothing). */
void ls__table_begin(ls__reduce_table *table, bool reached, const void *accumulated);
size_t ls__table_bytes(const ls__reduce_table *table); /* of a bitmap */
/* This rank's rows as a bitmap; they are forgotten. */
void ls__table_put(ls__reduce_table *table, uint8_t *bits);
/* Takes the rows of all ranks, whose bitmaps lie `stride` bytes apart. */
void ls__table_take(ls__reduce_table *table, const uint8_t *bits, size_t stride, int ranks);

/* The table whose rows stand for the bucket in this backward; NULL: all of the bucket is sent. */
const ls__reduce_table *ls__bucket_table(const ls_reducer *r, const ls__reduce_bucket *bucket);
/* Its rows are packed, and the averages unpacked. */
extern const struct ls__exchange_kind ls__exchange_rows;

/* The rows of a parameter, to be marked before a backward begins; NULL: all of them are always
 * sent. */
ls__rows *ls__reducer_rows(const ls_reducer *r, int param);

#endif
