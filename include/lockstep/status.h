/* SPDX-License-Identifier: Apache-2.0 */
/* Status codes and error messages.
 *
 * In an ls_status 0 is success, a positive value means "not finished", and a negative value is an
 * error. ls_error_message() returns the text of the calling thread's last error until its next
 * failing call. The values of the codes are fixed; ls_status_name returns their names.
 */
#ifndef LOCKSTEP_STATUS_H
#define LOCKSTEP_STATUS_H

#include <lockstep/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* X(name, value, meaning) */
#define LS_STATUS_TABLE(X)                                                                         \
    X(LS_OK, 0, "success")                                                                         \
    X(LS_IN_PROGRESS, 1, "started, not finished")                                                  \
    X(LS_ERR_INVALID, -1, "an argument is not acceptable")                                         \
    X(LS_ERR_MEMORY, -2, "out of memory")                                                          \
    X(LS_ERR_SYSTEM, -3, "the operating system refused a call")                                    \
    X(LS_ERR_TIMEOUT, -4, "the deadline passed")                                                   \
    X(LS_ERR_PEER, -5, "another rank died, left or failed")                                        \
    X(LS_ERR_MISMATCH, -6, "ranks disagree about an operation")                                    \
    X(LS_ERR_ABORTED, -7, "the group was aborted")                                                 \
    X(LS_ERR_STATE, -8, "calls in an order that makes no sense")                                   \
    X(LS_ERR_UNSUPPORTED, -9, "this build or backend cannot do it")                                \
    X(LS_ERR_FORMAT, -10, "a file or message is malformed")                                        \
    X(LS_ERR_NOT_FOUND, -11, "no such file, key or name")                                          \
    X(LS_ERR_AUTH, -12, "a connection did not prove the job's secret")                             \
    X(LS_ERR_LIMIT, -13, "a documented limit would be exceeded")                                   \
    X(LS_ERR_STALE, -14, "a handle outlived its scope")                                            \
    X(LS_ERR_FORKED, -15, "called in a child made by fork without exec")                           \
    X(LS_ERR_INTERNAL, -16, "a bug of the library: please report it")                              \
    X(LS_ERR_PLACEMENT, -17, "tensors of a mesh do not compose without a conversion")

typedef enum ls_status {
#define LS_STATUS_ENUM(name, value, text) name = value,
    LS_STATUS_TABLE(LS_STATUS_ENUM)
#undef LS_STATUS_ENUM
} ls_status;

/* "LS_ERR_PEER" ...; "unknown status" for other numbers. Static storage. */
LS_API const char *ls_status_name(ls_status status);

/* Message of the last failing call of this thread; "" if no call failed. The text names the
 * request, the problem and the remedy. Borrowed; valid until the thread's next call into the
 * library. */
LS_API const char *ls_error_message(void);

/* Status of that call; LS_OK if no call failed. After a function returned NULL, a poisoned tensor
 * or false, this is the reason. */
LS_API ls_status ls_error_status(void);

/* For your own modules and state: sets that message (printf's format; copied) and returns `status`,
 * which must be an error. A constructor calls it before it returns NULL. */
LS_API ls_status ls_fail(ls_status status, const char *format, ...) LS_PRINTF(2, 3);

/* For your own constructors that take options as the library's do (types.h, Note [Option structs]):
 * `into` holds the defaults of the struct `type`, which has `size` bytes. The fields of *from (may
 * be NULL) are copied over them. An impossible size is LS_ERR_INVALID in the name of `caller`. */
LS_API ls_status ls_options_read(void *into, size_t size, const void *from, const char *type,
                                 const char *caller);
/* Declares `type name` and fills it in this way; on an error it returns `failed` from the
 * function. */
#define LS_READ_OPTIONS(type, name, from, caller, failed)                                          \
    type name = *LS_OPTIONS(type, .size = sizeof(type));                                           \
    if (ls_options_read(&name, sizeof name, from, #type, caller) != LS_OK) {                       \
        return failed;                                                                             \
    }

/* Prints "rank R: file:line: expression: message" to stderr and ends the process with status 1 when
 * `status` is an error. For programs and examples; the library itself never exits. */
LS_API void ls_check_failed(ls_status status, const char *file, int line, const char *expression);
#define LS_CHECK(expression)                                                                       \
    do {                                                                                           \
        const ls_status ls_check_status_ = LS_STATUS_OF(expression);                               \
        if (ls_check_status_ < 0) {                                                                \
            ls_check_failed(ls_check_status_, __FILE__, __LINE__, #expression);                    \
        }                                                                                          \
    } while (0)

/* Returns the status from the current function when it is an error. */
#define LS_TRY(expression)                                                                         \
    do {                                                                                           \
        const ls_status ls_try_status_ = LS_STATUS_OF(expression);                                 \
        if (ls_try_status_ < 0) {                                                                  \
            return ls_try_status_;                                                                 \
        }                                                                                          \
    } while (0)

/* The status of a call that returns either a status or a new object: the status itself, or for a
 * pointer LS_OK, or if it is NULL the reason. Both of these therefore work:
 *     LS_CHECK(ls_init(NULL));
 *     LS_CHECK(net = ls_linear_new(10, 10, NULL)); */
static inline ls_status ls_status_of_status_(ls_status status)
{
    return status;
}
static inline ls_status ls_status_of_pointer_(const void *pointer)
{
    const ls_status status = pointer != NULL ? LS_OK : ls_error_status();
    return pointer == NULL && status >= 0 ? LS_ERR_INVALID : status;
}
#ifndef __cplusplus
#define LS_STATUS_OF(expression)                                                                   \
    _Generic((expression), ls_status                                                               \
             : ls_status_of_status_, default                                                       \
             : ls_status_of_pointer_)(expression)
#else
} /* overloads */
static inline ls_status ls_status_of_(ls_status status)
{
    return status;
}
static inline ls_status ls_status_of_(const void *pointer)
{
    return ls_status_of_pointer_(pointer);
}
extern "C" {
#define LS_STATUS_OF(expression) ls_status_of_(expression)
#endif

#ifdef __cplusplus
}
#endif
#endif
