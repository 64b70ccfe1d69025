/* SPDX-License-Identifier: Apache-2.0 */
/* Reading an option struct that may come from a program built against an older, shorter header:
 * the caller's fields replace the defaults, fields that its struct lacks keep them. A size that no
 * struct can have is refused with a message, because otherwise all fields would be ignored
 * silently. The same rules hold for structs that the library fills. */
#ifndef LS_BASE_OPTIONS_H
#define LS_BASE_OPTIONS_H

#include <string.h>

#include <lockstep/state.h>

#define LS__STRUCT_BYTES_MIN (2 * sizeof(size_t)) /* the size and one field, with its padding */
#define LS__STRUCT_BYTES_MAX ((size_t)4096)       /* many times the longest one */

/* The size that a caller's struct states; every such struct starts with it. */
static inline size_t ls__struct_size(const void *of)
{
    size_t size = 0;
    memcpy(&size, of, sizeof size);
    return size;
}

/* Whether a struct of the public headers can have this size. */
static inline bool ls__struct_size_fits(size_t size)
{
    return size >= LS__STRUCT_BYTES_MIN && size <= LS__STRUCT_BYTES_MAX &&
           size % sizeof(size_t) == 0;
}

/* Fills a caller's struct from *from, of `size` bytes, as far as out->size reaches, and leaves
 * out->size as it is. LS_ERR_INVALID for a NULL `out` and for an impossible out->size. */
ls_status ls__struct_fill(void *out, const void *from, size_t size, const char *type,
                          const char *caller);

/* LS_ERR_INVALID for a visitor that is NULL or of an impossible size. */
ls_status ls__visitor_check(const ls_state_visitor *visitor, const char *caller);

/* Call the visitor's functions. A status above 0 and an error without a message become errors that
 * name the value. */
ls_status ls__visit_tensor(const ls_state_visitor *visitor, const char *name,
                           const ls_state_tensor *tensor);
ls_status ls__visit_int64(const ls_state_visitor *visitor, const char *name, int64_t *value);
ls_status ls__visit_float64(const ls_state_visitor *visitor, const char *name, double *value);
/* Calls optional_float64, or float64 where the visitor does not have it. */
ls_status ls__visit_optional(const ls_state_visitor *visitor, const char *name, double *value);

/* Reads the options of a public function that returns a status; or a pointer or tensor. */
#define LS__OPTIONS(type, name, from) LS_READ_OPTIONS(type, name, from, __func__, LS_ERR_INVALID)
#define LS__OPTIONS_OR(failed, type, name, from) LS_READ_OPTIONS(type, name, from, __func__, failed)

#endif
