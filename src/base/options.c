/* SPDX-License-Identifier: Apache-2.0 */
/* Structs whose size the caller states: options that are read, statistics that are filled. Both
 * directions copy only the part that the caller's and the library's version of the struct share. */
#include "base/options.h"

#include <stddef.h>

#include "base/assert.h"
#include "base/error.h"

/* A size of 0 is the usual mistake, options without LS_OPTIONS, and has a text of its own. Structs
 * other than options have no function with their defaults. */
static ls_status refuse_options(size_t given, size_t known, const char *type, const char *caller)
{
    const char *end = strstr(type, "_options");
    if (end == NULL) {
        return ls__fail(LS_ERR_INVALID,
                        "%s: the size of the %s is %zu, and it has %zu bytes; fill it with "
                        "LS_OPTIONS(%s, …)",
                        caller, type, given, known, type);
    }
    const int bytes = (int)(end - type); /* of "ls_adam" in "ls_adam_options" */
    if (given == 0) {
        return ls__fail(LS_ERR_INVALID,
                        "%s: options->size is 0; fill options with LS_OPTIONS(%s, …) or start "
                        "from %.*s_defaults()",
                        caller, type, bytes, type);
    }
    return ls__fail(LS_ERR_INVALID,
                    "%s: options->size is %zu, and an %s has %zu bytes; fill options with "
                    "LS_OPTIONS(%s, …) or start from %.*s_defaults()",
                    caller, given, type, known, type, bytes, type);
}

/* `into` holds the defaults of this version already; a caller built against an older, shorter
 * struct overwrites only its part. */
ls_status ls_options_read(void *into, size_t size, const void *from, const char *type,
                          const char *caller)
{
    LS_ASSERT(ls__struct_size_fits(size));
    if (from == NULL) {
        return LS_OK;
    }
    const size_t given = ls__struct_size(from);
    if (!ls__struct_size_fits(given)) {
        return refuse_options(given, size, type, caller);
    }
    memcpy(into, from, given < size ? given : size);
    return LS_OK;
}

/* Writes as much as the caller's struct holds, and leaves its `size` alone. */
ls_status ls__struct_fill(void *out, const void *from, size_t size, const char *type,
                          const char *caller)
{
    LS_ASSERT(ls__struct_size_fits(size));
    if (out == NULL) {
        return ls__fail(LS_ERR_INVALID, "%s: out is NULL; give an %s", caller, type);
    }
    const size_t given = ls__struct_size(out);
    if (!ls__struct_size_fits(given)) {
        return ls__fail(LS_ERR_INVALID,
                        "%s: out->size is %zu, and an %s has %zu bytes; set out->size to "
                        "sizeof(%s) before the call",
                        caller, given, type, size, type);
    }
    const size_t bytes = given < size ? given : size;
    memcpy((char *)out + sizeof given, (const char *)from + sizeof given, bytes - sizeof given);
    return LS_OK;
}

/* Visitors are read where they are used, so only their size is checked here. */
ls_status ls__visitor_check(const ls_state_visitor *visitor, const char *caller)
{
    if (visitor == NULL) {
        return ls__fail(LS_ERR_INVALID, "%s: the visitor is NULL; give one (lockstep/state.h)",
                        caller);
    }
    if (!ls__struct_size_fits(visitor->size)) {
        return ls__fail(LS_ERR_INVALID,
                        "%s: visitor->size is %zu; set it to sizeof(ls_state_visitor)", caller,
                        visitor->size);
    }
    return LS_OK;
}

static ls_status visited(const ls__user_call *user, ls_status status, const char *name)
{
    return ls__user_call_check(user, status, "the visitor's function for \"%s\"", name);
}

ls_status ls__visit_tensor(const ls_state_visitor *visitor, const char *name,
                           const ls_state_tensor *tensor)
{
    const ls__user_call user = ls__user_call_begin();
    return visited(&user, visitor->tensor(visitor->self, name, tensor), name);
}

ls_status ls__visit_int64(const ls_state_visitor *visitor, const char *name, int64_t *value)
{
    const ls__user_call user = ls__user_call_begin();
    return visited(&user, visitor->int64(visitor->self, name, value), name);
}

ls_status ls__visit_float64(const ls_state_visitor *visitor, const char *name, double *value)
{
    const ls__user_call user = ls__user_call_begin();
    return visited(&user, visitor->float64(visitor->self, name, value), name);
}

/* A visitor of an older header ends before the function. */
ls_status ls__visit_optional(const ls_state_visitor *visitor, const char *name, double *value)
{
    const size_t end =
        offsetof(ls_state_visitor, optional_float64) + sizeof visitor->optional_float64;
    const bool has = visitor->size >= end && visitor->optional_float64 != NULL;
    if (!has) {
        return ls__visit_float64(visitor, name, value);
    }
    const ls__user_call user = ls__user_call_begin();
    return visited(&user, visitor->optional_float64(visitor->self, name, value), name);
}
