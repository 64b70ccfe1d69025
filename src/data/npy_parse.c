/* SPDX-License-Identifier: Apache-2.0 */
/* The header of .npy files: a cursor reads the dictionary and never leaves it. Every offset in a
 * message counts from the file's beginning. */
#include "data/npy.h"

#include <stdbool.h>
#include <string.h>

#include "base/error.h"
#include "base/foreign.h"
#include "base/size.h"
#include "data/bytes.h"

#define MAGIC "\x93NUMPY"
#define MAGIC_BYTES 6
#define DESCR_MAX 16 /* of a type we read 3 */

/* Invariant: at <= end <= size of the file. No function moves `at` past `end`. */
typedef struct cursor {
    const char *path;
    const uint8_t *data; /* the whole file */
    size_t at, end;      /* of the header */
} cursor;

/* The keys of the dictionary, as bits, to see which have occurred. */
typedef enum key { KEY_DESCR = 1, KEY_ORDER = 2, KEY_SHAPE = 4, KEY_ALL = 7 } key;

typedef struct type {
    const char *descr;
    ls_dtype dtype;
} type;

/* NumPy's spelling: byte order, kind, bytes. */
static const type types[] = {{"<f4", LS_FLOAT32}, {"<f8", LS_FLOAT64}, {"<f2", LS_FLOAT16},
                             {"|i1", LS_INT8},    {"|u1", LS_UINT8},   {"<i4", LS_INT32},
                             {"<i8", LS_INT64},   {"|b1", LS_BOOL},    {"<i2", LS_INT16},
                             {"<u2", LS_UINT16},  {"<u4", LS_UINT32},  {"<u8", LS_UINT64}};

/* ---- the cursor --------------------------------------------------------------------------- */

/* `c` may be a copy from before the failed part, so that the offset names its beginning. */
static ls_status fail_expected(const cursor *c, const char *what)
{
    return ls__fail(LS_ERR_FORMAT,
                    "npy: \"%s\": %s expected at offset %zu; the header is damaged or not NumPy's",
                    c->path, what, c->at);
}

/* NumPy pads the header with spaces and ends it with a newline; other white space is not
 * written. */
static void skip_space(cursor *c)
{
    while (c->at < c->end && (c->data[c->at] == ' ' || c->data[c->at] == '\n')) {
        c->at++;
    }
}

/* Consumes the text if it comes next, after white space; otherwise only the white space is
 * consumed. */
static bool take_text(cursor *c, const char *text)
{
    skip_space(c);
    const size_t length = strlen(text);
    if (c->end - c->at < length || memcmp(c->data + c->at, text, length) != 0) {
        return false;
    }
    c->at += length;
    return true;
}

/* Reads a quoted string, cut to DESCR_MAX - 1 characters; no valid key or type is longer.
 * Escapes are refused, because no key and no type has one. */
static ls_status take_string(cursor *c, const char *what, char out[DESCR_MAX])
{
    skip_space(c);
    const uint8_t quote = c->at < c->end ? c->data[c->at] : 0;
    if (quote != '\'' && quote != '"') {
        return fail_expected(c, what);
    }
    size_t length = 0;
    for (c->at++; c->at < c->end && c->data[c->at] != quote; c->at++) {
        const uint8_t byte = c->data[c->at];
        if (byte < ' ' || byte > '~' || byte == '\\') {
            return fail_expected(c, what);
        }
        if (length < DESCR_MAX - 1) {
            out[length++] = (char)byte;
        }
    }
    out[length] = '\0';
    return c->at < c->end ? (c->at++, LS_OK) : fail_expected(c, "the end of a string");
}

/* Only digits: a sign or a suffix of Python 2 (10L) is an error. The overflow check comes before
 * the multiplication. */
static ls_status take_number(cursor *c, int64_t *out)
{
    skip_space(c);
    if (c->at == c->end || c->data[c->at] < '0' || c->data[c->at] > '9') {
        return fail_expected(c, "a dimension");
    }
    *out = 0;
    for (; c->at < c->end && c->data[c->at] >= '0' && c->data[c->at] <= '9'; c->at++) {
        const int64_t digit = c->data[c->at] - '0';
        if (*out > (INT64_MAX - digit) / 10) {
            return fail_expected(c, "a dimension below 2^63");
        }
        *out = *out * 10 + digit;
    }
    return LS_OK;
}

/* ---- the values --------------------------------------------------------------------------- */

/* Types are compared as text, so an alias such as "=f4" is refused; NumPy always writes the byte
 * order. */
static ls_status parse_descr(cursor *c, ls__npy *out)
{
    char descr[DESCR_MAX];
    skip_space(c);
    const size_t at = c->at;
    if (take_text(c, "[")) {
        return ls__fail(LS_ERR_UNSUPPORTED,
                        "npy: \"%s\" holds records (offset %zu); save each field as an array of "
                        "its own",
                        c->path, at);
    }
    LS_TRY(take_string(c, "the type of elements", descr));
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (strcmp(descr, types[i].descr) == 0) {
            out->dtype = types[i].dtype;
            return LS_OK;
        }
    }
    if (descr[0] == '>') {
        return ls__fail(LS_ERR_UNSUPPORTED,
                        "npy: \"%s\" holds big-endian elements, '%s' (offset %zu); save "
                        "array.astype(array.dtype.newbyteorder('<'))",
                        c->path, descr, at);
    }
    return ls__fail(LS_ERR_UNSUPPORTED,
                    "npy: \"%s\" holds elements of type '%s' (offset %zu); supported are float16, "
                    "float32, float64, bool, and int and uint of 8 to 64 bits; save "
                    "array.astype('float32'), for example",
                    c->path, descr, at);
}

/* Only C order is read: rows must be contiguous to be copied as samples. */
static ls_status parse_order(cursor *c)
{
    skip_space(c);
    const size_t at = c->at;
    if (take_text(c, "True")) {
        return ls__fail(LS_ERR_UNSUPPORTED,
                        "npy: \"%s\" is in Fortran order (offset %zu); save "
                        "numpy.ascontiguousarray(array)",
                        c->path, at);
    }
    return take_text(c, "False") ? LS_OK : fail_expected(c, "True or False");
}

/* Reads (), (n,), (n, m) or (n, m,), each dimension below 2^63; their product is checked later. */
static ls_status parse_shape(cursor *c, ls__npy *out)
{
    if (!take_text(c, "(")) {
        return fail_expected(c, "a shape in round brackets");
    }
    for (out->ndim = 0; !take_text(c, ")");) {
        if (out->ndim == LS_DIMS_MAX) {
            return ls__fail(LS_ERR_UNSUPPORTED,
                            "npy: \"%s\" has more than %d dimensions (offset %zu); reshape it",
                            c->path, LS_DIMS_MAX, c->at);
        }
        LS_TRY(take_number(c, &out->dim[out->ndim]));
        out->ndim++;
        const bool comma = take_text(c, ",");
        skip_space(c);
        const bool closed = c->at < c->end && c->data[c->at] == ')';
        if (!comma && (!closed || out->ndim == 1)) { /* (n) is a number, not a shape */
            return fail_expected(c, "a comma");
        }
    }
    return LS_OK;
}

/* `seen` collects the keys, so that a second one of the same name is found. The error names the
 * place where the key begins. */
static ls_status parse_entry(cursor *c, ls__npy *out, int *seen)
{
    static const struct {
        const char *name;
        key which;
    } keys[] = {{"descr", KEY_DESCR}, {"fortran_order", KEY_ORDER}, {"shape", KEY_SHAPE}};
    char name[DESCR_MAX];
    key which = 0;
    skip_space(c);
    const cursor begin = *c;
    LS_TRY(take_string(c, "a key", name));
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        which = strcmp(name, keys[i].name) == 0 ? keys[i].which : which;
    }
    if (which == 0 || (*seen & (int)which) != 0) {
        return fail_expected(&begin, "one each of 'descr', 'fortran_order' and 'shape'");
    }
    *seen |= (int)which;
    if (!take_text(c, ":")) {
        return fail_expected(c, "a colon");
    }
    return which == KEY_DESCR   ? parse_descr(c, out)
           : which == KEY_ORDER ? parse_order(c)
                                : parse_shape(c, out);
}

/* All three keys are required and nothing may follow but white space, as in numpy.lib.format. */
static ls_status parse_dictionary(cursor *c, ls__npy *out)
{
    int seen = 0;
    if (!take_text(c, "{")) {
        return fail_expected(c, "a dictionary");
    }
    while (!take_text(c, "}")) {
        LS_TRY(parse_entry(c, out, &seen));
        skip_space(c);
        if (!take_text(c, ",") && (c->at == c->end || c->data[c->at] != '}')) {
            return fail_expected(c, "a comma");
        }
    }
    if (seen != KEY_ALL) {
        return fail_expected(c, "'descr', 'fortran_order' and 'shape' before");
    }
    skip_space(c);
    return c->at == c->end ? LS_OK : fail_expected(c, "the end of the header");
}

/* ---- the whole ---------------------------------------------------------------------------- */

/* Magic, version and length of the header. Afterwards the cursor spans exactly the header, which
 * lies inside the file. */
static ls_status parse_prefix(const uint8_t *data, size_t bytes, const char *path, cursor *out)
{
    if (bytes < 10) {
        return ls__fail(LS_ERR_FORMAT,
                        "npy: \"%s\" has %zu bytes, but a .npy file has at least 10; is the file "
                        "complete?",
                        path, bytes);
    }
    if (memcmp(data, MAGIC, MAGIC_BYTES) != 0) {
        return ls__fail(
            LS_ERR_FORMAT,
            "npy: \"%s\" begins with %02x %02x %02x %02x, but a .npy file begins with "
            "93 4e 55 4d; %s",
            path, data[0], data[1], data[2], data[3],
            ls__foreign_words(ls__foreign_kind_of(data, bytes), "is it another format?"));
    }
    if (data[6] < 1 || data[6] > 3 || data[7] != 0) {
        return ls__fail(LS_ERR_UNSUPPORTED,
                        "npy: \"%s\" has version %d.%d (offset 6); 1.0, 2.0 and 3.0 are supported",
                        path, data[6], data[7]);
    }
    const size_t begin = data[6] == 1 ? 10 : 12;
    const size_t length = begin > bytes  ? 0
                          : data[6] == 1 ? ls__little_16(data + 8)
                                         : ls__little_32(data + 8);
    if (begin > bytes || length > bytes - begin) {
        return ls__fail(LS_ERR_FORMAT,
                        "npy: \"%s\" ends at offset %zu, within its header of %zu bytes; it is "
                        "truncated",
                        path, bytes, begin + length);
    }
    *out = (cursor){.path = path, .data = data, .at = begin, .end = begin + length};
    return LS_OK;
}

/* The elements must fill the rest of the file exactly. Sets count and begin. */
static ls_status check_size(const cursor *c, size_t bytes, ls__npy *out)
{
    size_t claimed = 0;
    bool fits = true;
    out->count = 1;
    for (int i = 0; i < out->ndim; i++) {
        fits = fits && ls__mul_int64(out->count, out->dim[i], &out->count);
    }
    if (!fits || !ls__bytes_of(out->count, ls_dtype_size(out->dtype), &claimed)) {
        return ls__fail(LS_ERR_FORMAT,
                        "npy: the shape that \"%s\" claims (before offset %zu) overflows; the file "
                        "is damaged",
                        c->path, c->end);
    }
    if (claimed != bytes - c->end) {
        return ls__fail(LS_ERR_FORMAT,
                        "npy: the header of \"%s\" claims %zu bytes of elements, but %zu follow "
                        "from offset %zu; the file is truncated or damaged",
                        c->path, claimed, bytes - c->end, c->end);
    }
    out->begin = c->end;
    return LS_OK;
}

/* In C a bool that is neither 0 nor 1 is undefined behaviour, so the file's are read once. */
static ls_status check_bools(const cursor *c, const ls__npy *array)
{
    for (int64_t i = 0; array->dtype == LS_BOOL && i < array->count; i++) {
        const uint8_t byte = c->data[array->begin + (size_t)i];
        if (byte > 1) {
            return ls__fail(LS_ERR_FORMAT,
                            "npy: \"%s\" holds bool %d at offset %zu, which is neither 0 nor 1; "
                            "the file is damaged",
                            c->path, byte, array->begin + (size_t)i);
        }
    }
    return LS_OK;
}

/* `data` may be hostile; it is only read, never written. On failure *out must not be used. */
ls_status ls__npy_parse(const uint8_t *data, size_t bytes, const char *path, ls__npy *out)
{
    cursor c = {0};
    *out = (ls__npy){0};
    LS_TRY(parse_prefix(data, bytes, path, &c));
    LS_TRY(parse_dictionary(&c, out));
    LS_TRY(check_size(&c, bytes, out));
    return check_bools(&c, out);
}
