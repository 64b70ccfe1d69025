/* SPDX-License-Identifier: Apache-2.0 */
/* One side of a call that moves data, as bytes. A predefined type without gaps is the user's
 * memory; any other is packed by MPI, which gives the bytes of its type signature, and nothing
 * else, on these two MPIs: that is checked. */
#include "pmpi.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

static int count_of(const pmpi_blocks *b, int r)
{
    return b->counts != NULL ? b->counts[r] : b->count;
}

static int64_t offset_of(const pmpi_blocks *b, int r)
{
    return b->offsets != NULL ? b->offsets[r] : r * b->bytes;
}

static char *user_of(const pmpi_blocks *b, int r)
{
    return b->user + (b->displs != NULL ? b->displs[r] : (int64_t)r * b->count) * b->extent;
}

int64_t pmpi_blocks_total(const pmpi_blocks *b)
{
    int64_t total = b->n * b->bytes;
    for (int r = 0; r < b->n && b->lengths != NULL; r++) {
        total += b->lengths[r];
    }
    return total;
}

/* Sizes of the type, and memory to pack into. */
static ls_status lay_out(pmpi_blocks *b)
{
    MPI_Aint lower = 0, extent = 0;
    int64_t at = 0;
    int size = pmpi_type_size(b->type);
    b->plain = size > 0;
    if (b->plain) {
        extent = size;
    } else if (PMPI_Type_size(b->type, &size) != MPI_SUCCESS ||
               PMPI_Type_get_extent(b->type, &lower, &extent) != MPI_SUCCESS) {
        return ls_fail(LS_ERR_INVALID, "the datatype is not valid");
    }
    b->size = size;
    b->extent = (int64_t)extent;
    b->bytes = b->counts != NULL ? 0 : b->count * b->size;
    for (int r = 0; r < b->n && b->lengths != NULL; r++) {
        b->lengths[r] = b->counts[r] * b->size;
        b->offsets[r] = b->plain ? b->displs[r] * b->size : at;
        at += b->lengths[r];
    }
    b->data = b->user;
    if (!b->plain) {
        b->data = b->packed = malloc((size_t)pmpi_blocks_total(b) + 1);
        return b->packed != NULL ? LS_OK : ls_fail(LS_ERR_MEMORY, "no memory to pack the data");
    }
    return LS_OK;
}

ls_status pmpi_blocks_init(pmpi_blocks *b, const void *user, int n, int count, MPI_Datatype type)
{
    *b = (pmpi_blocks){.user = (char *)(uintptr_t)user, .n = n, .count = count, .type = type};
    return lay_out(b);
}

ls_status pmpi_blocks_init_v(pmpi_blocks *b, const void *user, int n, const int *counts,
                             const int *displs, MPI_Datatype type)
{
    *b = (pmpi_blocks){
        .user = (char *)(uintptr_t)user, .n = n, .counts = counts, .displs = displs, .type = type};
    b->lengths = calloc(2 * (size_t)n, sizeof *b->lengths);
    if (b->lengths == NULL) {
        return ls_fail(LS_ERR_MEMORY, "no memory for the lengths of %d blocks", n);
    }
    b->offsets = b->lengths + n;
    return lay_out(b);
}

void pmpi_blocks_fini(pmpi_blocks *b)
{
    free(b->packed);
    free(b->lengths);
}

static ls_status check_packed(int code, int used, int64_t bytes)
{
    return code == MPI_SUCCESS && used == bytes
               ? LS_OK
               : ls_fail(LS_ERR_SYSTEM, "MPI packs %lld bytes of this datatype as %d (error %d)",
                         (long long)bytes, used, code);
}

ls_status pmpi_pack(pmpi_blocks *b, int first, int n)
{
    for (int r = first; r < first + n && !b->plain; r++) {
        const int64_t bytes = count_of(b, r) * b->size;
        int used = 0;
        if (bytes > INT_MAX) {
            return ls_fail(LS_ERR_LIMIT, "a block of 2 GiB or more has a derived datatype");
        }
        const int code = PMPI_Pack(user_of(b, r), count_of(b, r), b->type,
                                   b->data + offset_of(b, r), (int)bytes, &used, MPI_COMM_SELF);
        LS_TRY(check_packed(code, used, bytes));
    }
    return LS_OK;
}

ls_status pmpi_unpack(pmpi_blocks *b)
{
    for (int r = 0; r < b->n && !b->plain; r++) {
        const int64_t bytes = count_of(b, r) * b->size;
        int used = 0;
        if (bytes > INT_MAX) {
            return ls_fail(LS_ERR_LIMIT, "a block of 2 GiB or more has a derived datatype");
        }
        const int code = PMPI_Unpack(b->data + offset_of(b, r), (int)bytes, &used, user_of(b, r),
                                     count_of(b, r), b->type, MPI_COMM_SELF);
        LS_TRY(check_packed(code, used, bytes));
    }
    return LS_OK;
}
