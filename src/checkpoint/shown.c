/* SPDX-License-Identifier: Apache-2.0 */
/* What all ranks show, as one list: whether a name is the same wherever it is shown, which boxes of
 * a tensor there are, and which ranks hold each. Ranks whose tables are equal (all of them, if data
 * is the only parallel axis) are found by a hash, and the lowest of them sends the table for all.
 * So pipeline stages with replicas send each stage's table once, and replicas alone send nothing.
 *
 * Every rank then has the same list. It finds the same mismatch and makes the same plan, without a
 * further exchange.
 */
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/size.h"
#include "checkpoint/internal.h"
#include "comm/api/control.h"

/* A row takes some 130 bytes, so 2 million rows, while a manifest lists at most 349,525 pieces. */
#define TABLES_BYTES_MAX ((size_t)256 << 20)

static ls_status no_memory(void)
{
    return ls__fail(LS_ERR_MEMORY, "checkpoint: no memory for the tables of all ranks");
}

ls_status ls__shown_init(ls__shown *s, const ls__env *env, int rank, int size)
{
    *s = (ls__shown){.rank = rank, .size = size};
    ls__table_init(&s->table, env);
    ls__table_init(&s->others, env);
    s->same_as = calloc((size_t)size, sizeof *s->same_as);
    return s->same_as != NULL ? LS_OK : no_memory();
}

void ls__shown_fini(ls__shown *s)
{
    ls__table_fini(&s->table);
    ls__table_fini(&s->others);
    free(s->same_as);
    free(s->both);
    free(s->text);
    free(s->pieces);
    *s = (ls__shown){0};
}

/* ---- the text of a table -------------------------------------------------------------------- */

/* A row: this, then global, start and local of a tensor, then the name and zeros up to 8 bytes. */
typedef struct row {
    int32_t type, dtype, ndim, name_bytes;
    uint64_t value; /* bits of a scalar, checksum of a tensor */
} row;

static size_t dims_bytes(const ls_state_tensor *t)
{
    return (size_t)t->ndim * sizeof t->global[0];
}

static size_t row_bytes(const ls__saved_entry *e)
{
    return sizeof(row) + 3 * dims_bytes(&e->tensor) + ls__round_up(strlen(e->name) + 1, 8);
}

static void write_row(const ls__saved_entry *e, uint8_t *at)
{
    const ls_state_tensor *t = &e->tensor;
    const size_t dims = dims_bytes(t);
    row head = {(int32_t)e->type, (int32_t)t->dtype, t->ndim, (int32_t)strlen(e->name) + 1, 0};
    if (e->type == LS__ENTRY_TENSOR) {
        head.value = e->sum;
    } else if (e->type == LS__ENTRY_FLOAT64) {
        memcpy(&head.value, &e->float64, sizeof head.value);
    } else {
        head.value = (uint64_t)e->int64;
    }
    memcpy(at, &head, sizeof head);
    at += sizeof head;
    memcpy(at, t->global, dims);
    memcpy(at + dims, t->start, dims);
    memcpy(at + 2 * dims, t->local, dims);
    memcpy(at + 3 * dims, e->name, (size_t)head.name_bytes);
}

/* In the order of the names, so that the order of the walk does not matter. Eight bytes of the
 * digest are enough against accidents. */
ls_status ls__shown_write(ls__shown *s, uint64_t *hash)
{
    ls__digest digest;
    uint8_t out[LS__DIGEST_BYTES];
    for (int i = 0; i < s->table.count; i++) {
        s->bytes += row_bytes(s->table.sorted[i]);
    }
    s->text = calloc(s->bytes + 1, 1);
    if (s->text == NULL) {
        return no_memory();
    }
    for (size_t i = 0, at = 0; i < (size_t)s->table.count; i++) {
        write_row(s->table.sorted[i], s->text + at);
        at += row_bytes(s->table.sorted[i]);
    }
    ls__digest_init(&digest);
    ls__digest_add(&digest, s->text, s->bytes);
    LS_TRY(ls__digest_end(&digest, out));
    memcpy(hash, out, sizeof *hash);
    return LS_OK;
}

/* Returns the bytes of the row, 0 if it is malformed. Its name lies in the text. */
static size_t read_row(const uint8_t *at, size_t left, ls__saved_entry *e)
{
    ls_state_tensor *t = &e->tensor;
    row head;
    if (left < sizeof head) {
        return 0;
    }
    memcpy(&head, at, sizeof head);
    if (head.type < LS__ENTRY_TENSOR || head.type > LS__ENTRY_FLOAT64 || head.ndim < 0 ||
        head.ndim > LS_DIMS_MAX || head.name_bytes < 1) {
        return 0;
    }
    e->type = (ls__entry_type)head.type;
    t->dtype = (ls_dtype)head.dtype;
    t->ndim = head.ndim;
    const size_t dims = dims_bytes(t), name = sizeof head + 3 * dims;
    const size_t bytes = name + ls__round_up((size_t)head.name_bytes, 8);
    if (left < bytes || at[name + (size_t)head.name_bytes - 1] != '\0') {
        return 0;
    }
    memcpy(t->global, at + sizeof head, dims);
    memcpy(t->start, at + sizeof head + dims, dims);
    memcpy(t->local, at + sizeof head + 2 * dims, dims);
    e->name = (const char *)at + name;
    if (e->type == LS__ENTRY_TENSOR) {
        e->sum = (uint32_t)head.value;
    } else if (e->type == LS__ENTRY_FLOAT64) {
        memcpy(&e->float64, &head.value, sizeof head.value);
    } else {
        e->int64 = (int64_t)head.value;
    }
    return e->type != LS__ENTRY_TENSOR || ls__tensor_is_valid(t, &e->bytes) ? bytes : 0;
}

ls_status ls__shown_read(ls__shown *s, int rank, const uint8_t *text, size_t bytes)
{
    while (bytes > 0) {
        ls__saved_entry entry = {.rank = rank};
        const size_t used = read_row(text, bytes, &entry);
        if (used == 0) {
            return ls__fail(LS_ERR_INTERNAL, "checkpoint: the table of rank %d is malformed", rank);
        }
        LS_TRY(ls__table_add(&s->others, &entry));
        text += used;
        bytes -= used;
    }
    return LS_OK;
}

/* ---- the exchange --------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    return ls__entry_compare(*(ls__saved_entry *const *)a, *(ls__saved_entry *const *)b);
}

ls_status ls__shown_sort(ls__shown *s)
{
    const int own = s->table.count, others = s->others.count;
    for (int i = 0; i < own; i++) {
        s->table.list[i].rank = s->same_as[s->rank];
    }
    s->sorted = s->table.sorted;
    s->count = own + others;
    if (others == 0) {
        return LS_OK;
    }
    s->sorted = s->both = malloc((size_t)s->count * sizeof *s->both);
    if (s->both == NULL) {
        return no_memory();
    }
    memcpy(s->both, s->table.sorted, (size_t)own * sizeof *s->both);
    for (int i = 0; i < others; i++) {
        s->both[own + i] = &s->others.list[i];
    }
    qsort(s->both, (size_t)s->count, sizeof *s->both, by_name);
    return LS_OK;
}

/* From the words of the last agreement. Returns the number of different tables, and their bytes. */
static int find_equal(ls_checkpoint *c, size_t *bytes)
{
    int tables = 0;
    *bytes = 0;
    for (int r = 0; r < c->size; r++) {
        int lowest = 0;
        while (c->reports[lowest].word[1] != c->reports[r].word[1]) {
            lowest++;
        }
        c->shown.same_as[r] = lowest;
        tables += lowest == r;
        if (lowest == r && !ls__add_size(*bytes, (size_t)c->reports[r].word[2], bytes)) {
            *bytes = SIZE_MAX;
        }
    }
    return tables;
}

/* Receives also after an earlier failure to read, since all ranks take part. Without memory the
 * group is aborted: the others are in the broadcast. */
static ls_status exchange_table(ls_checkpoint *c, int rank, ls_status *read)
{
    ls__shown *s = &c->shown;
    const ls_collective_options options = ls__checkpoint_options_of(c, "checkpoint: tables");
    const size_t bytes = (size_t)c->reports[rank].word[2];
    const bool own = s->same_as[c->rank] == rank;
    LS_ASSERT(!own || bytes == s->bytes);
    uint8_t *text = own ? s->text : malloc(bytes + 1);
    if (text == NULL) {
        (void)ls_group_abort(c->group, "no memory for the checkpoint's tables");
        return no_memory();
    }
    ls_status status = LS_OK;
    if (bytes > 0) {
        status = ls__control_broadcast(c->group, text, (int64_t)bytes, LS_UINT8, rank, &options);
    }
    if (status == LS_OK && *read == LS_OK && !own) {
        *read = ls__shown_read(s, rank, text, bytes);
    }
    if (!own) {
        free(text);
    }
    return status;
}

ls_status ls__shown_exchange(ls_checkpoint *c)
{
    ls__shown *s = &c->shown;
    size_t bytes;
    ls_status read = LS_OK;
    if (find_equal(c, &bytes) == 1) {
        return ls__shown_sort(s); /* takes no memory, hence needs no agreement */
    }
    if (bytes > TABLES_BYTES_MAX) {
        return ls__fail(LS_ERR_LIMIT,
                        "ls_checkpoint_save: the names, shapes and slices of all ranks have %zu "
                        "bytes; at most %zu can be compared. Show fewer or shorter names",
                        bytes, TABLES_BYTES_MAX);
    }
    for (int r = 0; r < c->size; r++) {
        if (s->same_as[r] == r) {
            LS_TRY(exchange_table(c, r, &read));
        }
    }
    if (read == LS_OK) {
        read = ls__shown_sort(s);
    }
    return ls__checkpoint_agree(c, read, NULL, 0);
}
