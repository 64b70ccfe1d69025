/* SPDX-License-Identifier: Apache-2.0 */
/* Predefined types and operators of MPI, and their names in Lockstep. */
#include "pmpi.h"

#include <stdlib.h>
#include <string.h>

#define SLOTS 256 /* more than three times the types */

typedef enum kind { INTEGER, FLOAT, COMPLEX, BITS, TRUTH, MOVED } kind;

typedef struct type {
    MPI_Datatype handle;
    kind kind;
    int size; /* 0: an empty slot */
    ls_dtype dtype;
} type;

static type table[SLOTS];

/* A handle is a number or a pointer. */
static unsigned slot_of(MPI_Datatype handle)
{
    uint64_t bits = 0;
    memcpy(&bits, &handle, sizeof handle);
    return (unsigned)((bits ^ (bits >> 6) ^ (bits >> 12)) % SLOTS);
}

static const type *find(MPI_Datatype handle)
{
    unsigned at = slot_of(handle);
    while (table[at].size != 0 && table[at].handle != handle) {
        at = (at + 1) % SLOTS;
    }
    return &table[at];
}

/* Types that this MPI lacks are null; several names may mean one type. */
static void add(MPI_Datatype handle, kind k)
{
    static const ls_dtype integers[9] = {
        [1] = LS_INT8, [2] = LS_INT16, [4] = LS_INT32, [8] = LS_INT64};
    int size = 0;
    if (handle == MPI_DATATYPE_NULL || PMPI_Type_size(handle, &size) != MPI_SUCCESS || size <= 0 ||
        find(handle)->size != 0) {
        return;
    }
    type *t = &table[find(handle) - table];
    *t = (type){.handle = handle, .kind = k, .size = size, .dtype = LS_UINT8};
    if (k == INTEGER) {
        t->dtype = integers[size];
    } else if (k == FLOAT || k == COMPLEX) {
        t->dtype = size / (k == COMPLEX ? 2 : 1) == 4 ? LS_FLOAT32 : LS_FLOAT64;
    }
}

static void add_unsigned(MPI_Datatype handle)
{
    add(handle, INTEGER);
    type *t = &table[find(handle) - table];
    t->dtype = t->size == 1   ? LS_UINT8
               : t->size == 2 ? LS_UINT16
               : t->size == 4 ? LS_UINT32
                              : LS_UINT64;
}

void pmpi_types_init(void)
{
    const MPI_Datatype integers[] = {
        MPI_INT,     MPI_LONG, MPI_LONG_LONG, MPI_SHORT, MPI_INT8_T,  MPI_INT16_T,    MPI_INT32_T,
        MPI_INT64_T, MPI_AINT, MPI_OFFSET,    MPI_COUNT, MPI_INTEGER, MPI_SIGNED_CHAR};
    const MPI_Datatype unsigneds[] = {MPI_UNSIGNED,       MPI_UNSIGNED_LONG, MPI_UNSIGNED_LONG_LONG,
                                      MPI_UNSIGNED_SHORT, MPI_UNSIGNED_CHAR, MPI_UINT8_T,
                                      MPI_UINT16_T,       MPI_UINT32_T,      MPI_UINT64_T};
    const MPI_Datatype floats[] = {MPI_FLOAT, MPI_DOUBLE, MPI_REAL, MPI_DOUBLE_PRECISION};
    const MPI_Datatype complexes[] = {MPI_C_FLOAT_COMPLEX, MPI_C_DOUBLE_COMPLEX};
    const MPI_Datatype moved[] = {MPI_CHAR, MPI_WCHAR, MPI_PACKED, MPI_LONG_DOUBLE};
    for (size_t i = 0; i < sizeof integers / sizeof *integers; i++) {
        add(integers[i], INTEGER);
    }
    for (size_t i = 0; i < sizeof unsigneds / sizeof *unsigneds; i++) {
        add_unsigned(unsigneds[i]);
    }
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++) {
        add(floats[i], FLOAT);
    }
    for (size_t i = 0; i < sizeof complexes / sizeof *complexes; i++) {
        add(complexes[i], COMPLEX);
    }
    for (size_t i = 0; i < sizeof moved / sizeof *moved; i++) {
        add(moved[i], MOVED);
    }
    add(MPI_BYTE, BITS);
    add(MPI_C_BOOL, TRUTH);
}

int pmpi_type_size(MPI_Datatype handle)
{
    return find(handle)->size;
}

/* Of the operators that MPI allows on the kind. */
static bool arithmetic(kind k, MPI_Op op, ls_reduce_op *out)
{
    const bool real = k == INTEGER || k == FLOAT;
    if (op == MPI_SUM) {
        *out = LS_SUM;
        return real || k == COMPLEX;
    }
    *out = op == MPI_MAX ? LS_MAX : op == MPI_MIN ? LS_MIN : LS_PRODUCT;
    return real && (op == MPI_MAX || op == MPI_MIN || op == MPI_PROD);
}

static bool bitwise(kind k, MPI_Op op, ls_reduce_op *out)
{
    *out = op == MPI_BAND ? LS_BAND : op == MPI_BOR ? LS_BOR : LS_BXOR;
    return (k == INTEGER || k == BITS) && (op == MPI_BAND || op == MPI_BOR || op == MPI_BXOR);
}

static bool logical(kind k, MPI_Op op, ls_reduce_op *out)
{
    *out = op == MPI_LAND ? LS_BAND : op == MPI_LOR ? LS_BOR : LS_BXOR;
    return (k == INTEGER || k == TRUTH) && (op == MPI_LAND || op == MPI_LOR || op == MPI_LXOR);
}

bool pmpi_reduction_of(MPI_Datatype handle, MPI_Op op, pmpi_reduction *out)
{
    const type *t = find(handle);
    if (t->size == 0) {
        return false;
    }
    *out = (pmpi_reduction){
        .dtype = t->dtype, .factor = t->kind == COMPLEX ? 2 : 1, .size = (size_t)t->size};
    if (arithmetic(t->kind, op, &out->op) || bitwise(t->kind, op, &out->op)) {
        return true;
    }
    out->logical = true;
    return logical(t->kind, op, &out->op);
}

const void *pmpi_truths(const pmpi_reduction *r, const void *in, int64_t count, void **copy)
{
    *copy = NULL;
    if (!r->logical) {
        return in;
    }
    char *out = calloc((size_t)count + 1, r->size);
    const char *from = in;
    const char zero[16] = {0};
    for (int64_t i = 0; i < count && out != NULL; i++, from += r->size) {
        out[i * (int64_t)r->size] =
            memcmp(from, zero, r->size) != 0; /* little-endian, as the build */
    }
    *copy = out;
    return out;
}
