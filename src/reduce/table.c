/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of tables, such as an embedding's: of [rows, columns] a backward reaches the rows of
 * its batch, and the others are zero. Between hosts only the rows are sent that some rank has
 * reached. The control exchange carries a bit for each row, as for each parameter, so every rank
 * knows them before the gradient is ready:
 *
 *     gradient [rows, columns]  ──pack──▶  [taken, columns]  ──all_reduce──▶  ──unpack──▶  gradient
 *
 * No bit of a result depends on it: each element is added up over the ranks in the same order, and
 * the sum of zeros is zero. A table has a bucket of its own, of the modes OVERLAP and BUCKETED;
 * FLAT and NAIVE are there to be compared with. */
#include "reduce/table.h"

#include "base/assert.h"
#include "comm/backend/plugin_group.h"
#include "comm/core/group.h"
#include "comm/core/round_robin.h"
#include "kernel/reduce/reduce.h"
#include "reduce/bucket.h"
#include "reduce/exchange.h"
#include "reduce/reducer.h"

#define LEAST_BYTES ((size_t)64 << 10) /* a smaller table is not worth a bucket of its own */
#define MOST_TAKEN 0.75 /* of the rows, since packing copies twice; measured at 0.63 */

/* The same on all ranks of the domain. Ranks of one host share memory and send nothing. */
static bool is_table(const ls_reducer *r, const ls__reduce_param *param)
{
    const ls__reduce_domain *domain = &r->domains[param->key.domain];
    return param->rows > 0 && param->map == 0 && param->bytes >= LEAST_BYTES &&
           r->options.wire_dtype == LS_FLOAT32 &&
           (r->options.mode == LS_REDUCE_OVERLAP || r->options.mode == LS_REDUCE_BUCKETED) &&
           ls__round_robin_at(domain->group, 0)->has_remote;
}

static ls_status make_table(ls_reducer *r, ls__reduce_param *param)
{
    ls__reduce_table *table = ls__arena_alloc(&r->arena, sizeof *table);
    uint8_t *marks = ls__arena_alloc(&r->arena, 2 * (size_t)param->rows);
    if (table == NULL || marks == NULL) {
        return ls__fail(LS_ERR_MEMORY, "reducer \"%s\": no memory for %d parameters", r->name,
                        r->param_count);
    }
    void *packed = NULL;
    LS_TRY(ls__group_memory(r->domains[param->key.domain].group, param->bytes, &packed));
    *table = (ls__reduce_table){.rows = {param->rows, marks, false},
                                .taken = marks + param->rows,
                                .packed = packed,
                                .row_bytes = param->bytes / (size_t)param->rows};
    param->table = table;
    return LS_OK;
}

ls_status ls__tables_make(ls_reducer *r, int d, size_t *bits)
{
    *bits = 0;
    for (int i = 0; i < r->param_count; i++) {
        ls__reduce_param *param = &r->params[i];
        if (param->key.domain == d && is_table(r, param)) {
            LS_TRY(make_table(r, param));
            *bits += ls__table_bytes(param->table);
        }
    }
    return LS_OK;
}

void ls__tables_free(ls_reducer *r, int d)
{
    for (int i = 0; r->params != NULL && i < r->param_count; i++) {
        ls__reduce_param *param = &r->params[i];
        if (param->key.domain == d && param->table != NULL) {
            (void)ls_group_dealloc(r->domains[d].group, param->table->packed);
            param->table = NULL;
        }
    }
}

/* ---- a backward begins -------------------------------------------------------------------- */

/* Adds the rows that are not zero: whatever was accumulated there, also by the program. */
static void mark_present(ls__rows *rows, const char *grad, size_t row_bytes)
{
    for (int64_t i = 0; i < rows->count; i++, grad += row_bytes) {
        const bool zero = grad[0] == 0 && memcmp(grad, grad + 1, row_bytes - 1) == 0;
        rows->reached[i] |= !zero;
    }
}

void ls__table_begin(ls__reduce_table *table, bool reached, const void *accumulated)
{
    if (!reached) {
        ls__rows_clear(&table->rows);
    }
    if (table->rows.some && accumulated != NULL) {
        mark_present(&table->rows, accumulated, table->row_bytes);
    }
}

size_t ls__table_bytes(const ls__reduce_table *table)
{
    return ((size_t)table->rows.count + 7) / 8;
}

void ls__table_put(ls__reduce_table *table, uint8_t *bits)
{
    ls__rows *rows = &table->rows;
    memset(bits, rows->some ? 0 : 0xff, ls__table_bytes(table));
    for (int64_t i = 0; rows->some && i < rows->count; i++) {
        bits[i / 8] = (uint8_t)(bits[i / 8] | rows->reached[i] << (i % 8));
    }
    rows->some = false;
}

void ls__table_take(ls__reduce_table *table, const uint8_t *bits, size_t stride, int ranks)
{
    table->taken_count = 0;
    for (int64_t i = 0; i < table->rows.count; i += 8) {
        uint8_t any = 0;
        for (int rank = 0; rank < ranks; rank++) {
            any |= bits[(size_t)rank * stride + (size_t)i / 8];
        }
        for (int64_t k = i; k < i + 8 && k < table->rows.count; k++, any >>= 1) {
            table->taken[k] = any & 1;
            table->taken_count += any & 1;
        }
    }
}

/* ---- a bucket is reduced ------------------------------------------------------------------ */

const ls__reduce_table *ls__bucket_table(const ls_reducer *r, const ls__reduce_bucket *bucket)
{
    const ls__reduce_table *table = r->params[r->plan.order[bucket->first]].table;
    return table != NULL && (double)table->taken_count <= MOST_TAKEN * (double)table->rows.count
               ? table
               : NULL;
}

static void pack(const ls__reduce_table *table, const char *grad)
{
    char *to = table->packed;
    for (int64_t i = 0; i < table->rows.count; i++, grad += table->row_bytes) {
        if (table->taken[i]) {
            ls__elements_copy(to, grad, table->row_bytes);
            to += table->row_bytes;
        }
    }
}

static void unpack(const ls__reduce_table *table, char *grad)
{
    const char *from = table->packed;
    for (int64_t i = 0; i < table->rows.count; i++, grad += table->row_bytes) {
        if (table->taken[i]) {
            ls__elements_copy(grad, from, table->row_bytes);
            from += table->row_bytes;
        }
    }
}

static ls_status pack_bucket(ls_reducer *r, ls__reduce_bucket *bucket, int phase LS__UNUSED,
                             ls__reduce_exchange *out)
{
    const ls__reduce_table *table = ls__bucket_table(r, bucket);
    const ls_dtype dtype = r->plan.regions[bucket->region].key.dtype;
    const size_t bytes = (size_t)table->taken_count * table->row_bytes;
    pack(table, ls__bucket_memory(r, bucket));
    *out = (ls__reduce_exchange){.operation = LS__OP_ALL_REDUCE,
                                 .input = table->packed,
                                 .output = table->packed,
                                 .count = (int64_t)(bytes / ls_dtype_size(dtype)),
                                 .dtype = dtype,
                                 .divisor = ls__bucket_divisor(r, bucket)};
    return LS_OK;
}

static ls_status unpack_bucket(ls_reducer *r, ls__reduce_bucket *bucket, int phase LS__UNUSED)
{
    unpack(ls__bucket_table(r, bucket), ls__bucket_memory(r, bucket));
    return LS_OK;
}

const ls__exchange_kind ls__exchange_rows = {1, pack_bucket, unpack_bucket};

/* ---- the program says which ---------------------------------------------------------------- */

ls__rows *ls__reducer_rows(const ls_reducer *r, int param)
{
    LS_ASSERT(param >= 0 && param < r->param_count);
    return r->params[param].table != NULL ? &r->params[param].table->rows : NULL;
}

/* Where the table is not sent by rows, there is nothing to note. */
ls_status ls_reducer_reach(ls_reducer *r, int param, const int64_t *index, int64_t count)
{
    if (r == NULL || param < 0 || param >= r->param_count || r->params[param].rows == 0 ||
        count < 0 || (count > 0 && index == NULL)) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_reducer_reach: parameter %d with %lld rows; give a parameter that was "
                        "registered with rows, and where their numbers lie",
                        param, (long long)count);
    }
    const ls__reduce_param *p = &r->params[param];
    for (int64_t i = 0; i < count; i++) {
        if (index[i] < 0 || index[i] >= p->rows) {
            return ls__fail(LS_ERR_INVALID,
                            "ls_reducer_reach: number %lld is row %lld of parameter %s; give rows "
                            "in [0,%lld)",
                            (long long)i, (long long)index[i], p->name, (long long)p->rows);
        }
    }
    ls__rows *rows = ls__reducer_rows(r, param);
    if (rows != NULL && !rows->some) {
        ls__rows_clear(rows);
    }
    for (int64_t i = 0; rows != NULL && i < count; i++) {
        rows->reached[index[i]] = 1;
    }
    return LS_OK;
}
