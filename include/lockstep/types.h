/* Types shared by every layer: element types, reduction operators, option structs, call sites.
 *
 * Nothing here allocates or fails. All enumerators are pinned: they travel on the wire and stand in
 * files, so a value is never renumbered and a removed one never reused.
 */
#ifndef LOCKSTEP_TYPES_H
#define LOCKSTEP_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define LS_API __attribute__((visibility("default")))
#define LS_PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#define LS_API
#define LS_PRINTF(text, first)
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Element types. float16 and bfloat16 are accumulated in float32 and rounded once. */
typedef enum ls_dtype {
    LS_FLOAT32 = 0,
    LS_FLOAT64 = 1,
    LS_FLOAT16 = 2,
    LS_BFLOAT16 = 3,
    LS_INT8 = 4,
    LS_UINT8 = 5,
    LS_INT32 = 6,
    LS_INT64 = 7,
    LS_BOOL = 8,
    LS_INT16 = 9,
    LS_UINT16 = 10,
    LS_UINT32 = 11,
    LS_UINT64 = 12,
    LS_DTYPE_COUNT = 13
} ls_dtype;

/* Reduction operators (MPI_Op, ncclRedOp_t). AVG divides the sum once, by the number of ranks;
 * integers towards zero, as C and NCCL do. PREMUL_SUM is the sum of each rank's values times its
 * own options.factor (ncclRedOpCreatePreMulSum), the products rounded to the dtype; of integers
 * the factor is a whole number.
 *
 *              sum product min max   avg   band bor bxor  premul_sum
 *   floats      x     x     x   x     x                       x
 *   integers    x     x     x   x     x     x    x   x        x     overflow wraps around
 *   bool       any   all   all any          all any odd             as PyTorch's NCCL backend
 *
 * An empty cell is LS_ERR_INVALID. ls_reduce_op_new makes operators with values of
 * LS_REDUCE_OP_USER and above. */
typedef enum ls_reduce_op {
    LS_SUM = 0,
    LS_PRODUCT = 1,
    LS_MIN = 2,
    LS_MAX = 3,
    LS_AVG = 4,
    LS_BAND = 5,
    LS_BOR = 6,
    LS_BXOR = 7,
    LS_PREMUL_SUM = 8,
    LS_REDUCE_OP_COUNT = 9,
    LS_REDUCE_OP_USER = 64
} ls_reduce_op;
#define LS_REDUCE_OP_USER_LAST 127

/* into[i] = into[i] op right[i], i in [0,count): one element at a time, `into` of lower ranks than
 * `right`. Associative; it need not be commutative (MPI_User_function). Elements are of `dtype`;
 * 16-bit floats come as float32. Called on whatever thread moves the operation on, often on pieces
 * of it; of this library it may call ls_reduce_op_fail alone. `arg` is the user's. */
typedef void (*ls_reduce_fn)(void *into, const void *right, int64_t count, ls_dtype dtype,
                             void *arg);

/* Bytes of one element; 0 for a value that is not a dtype. */
LS_API size_t ls_dtype_size(ls_dtype dtype);

/* "float32" ...; "invalid" for a value that is not a dtype. Static storage. */
LS_API const char *ls_dtype_name(ls_dtype dtype);

/* "sum" ...; "invalid" for a value that is not an operator, "user-defined" for operators of
 * ls_reduce_op_new. Static storage. */
LS_API const char *ls_reduce_op_name(ls_reduce_op op);

/* Where a start is ordered: NULL is the host. Only the host exists in this release. */
typedef struct ls_stream ls_stream;

/* Note [Option structs]
 * Options are passed by const pointer; NULL means all defaults. Fill one with
 *     LS_OPTIONS(ls_adamw_options, .lr = 3e-4)                                 C
 *     ls_adamw_options o = ls_adamw_defaults(); o.lr = 3e-4;                    C and C++
 * Both write `size` and the defaults that are not zero (LS_DEFAULTS_<type>) before your fields, so
 * an explicit zero means zero, and a program built against an older header keeps working when the
 * struct grows at its end. A struct whose `size` is 0, or a number that no struct can have (less
 * than two words, more than 4096 bytes, not a whole number of words), is LS_ERR_INVALID: fields
 * would be ignored in silence otherwise. Structs that the library fills take their `size` from the
 * caller in the same way, and are filled as far as it reaches. Bindings that cannot call inline
 * functions use ls_options_defaults (lockstep.h).
 *
 * In LS_OPTIONS your initialiser replaces a default, which -Woverride-init (of -Wextra) reports.
 * The pragma switches that warning off for the rest of the file, because no pragma inside the macro
 * works: gcc allows none in an expression, clang forgets it where LS_OPTIONS is an argument of
 * another macro (LS_AT), and in a statement expression compound literals among your values (`.mean
 * = (double[]){…}`) would die too early. A file that wants the warning uses ls_…_defaults and, after
 * the last include, `#pragma GCC diagnostic warning "-Woverride-init"`. */
#ifndef __cplusplus
#if defined(__clang__)
#pragma clang diagnostic ignored "-Winitializer-overrides"
#elif defined(__GNUC__)
#pragma GCC diagnostic ignored "-Woverride-init"
#endif
#define LS_OPTIONS(type, ...)                                                                      \
    ((const type *)&(type){.size = sizeof(type), LS_DEFAULTS_##type __VA_ARGS__})
#endif

/* Defines ls_<name>_defaults() of ls_<name>_options. C++17 has designated initialisers as an
 * extension; they stand in the order of the fields. */
#if defined(__cplusplus) && defined(__GNUC__)
#define LS_DEFAULTS_FUNCTION(name)                                                                 \
    _Pragma("GCC diagnostic push") _Pragma("GCC diagnostic ignored \"-Wpragmas\"")                 \
        _Pragma("GCC diagnostic ignored \"-Wpedantic\"")                                           \
            _Pragma("GCC diagnostic ignored \"-Wc++20-extensions\"")                               \
                _Pragma("GCC diagnostic ignored \"-Wmissing-field-initializers\"")                 \
                    LS_DEFAULTS_FUNCTION_(name) _Pragma("GCC diagnostic pop")
#else
#define LS_DEFAULTS_FUNCTION(name) LS_DEFAULTS_FUNCTION_(name)
#endif
#define LS_DEFAULTS_FUNCTION_(name)                                                                \
    static inline ls_##name##_options ls_##name##_defaults(void)                                   \
    {                                                                                              \
        const ls_##name##_options defaults_ = {.size = sizeof(ls_##name##_options),                \
                                               LS_DEFAULTS_ls_##name##_options};                   \
        return defaults_;                                                                          \
    }

/* Note [Call sites]
 * Calls that can fail far from their cause are macros which first note the caller's file and line,
 * so that reports name the line in *your* program. A binding that calls the plain functions may
 * call ls_site_set itself or leave it. Define LS_NO_SITES to get no macros at all. */
LS_API void ls_site_set(const char *file, int line);
#define LS_AT(call) (ls_site_set(__FILE__, __LINE__), call)

/* For LS_SCOPE, LS_NO_GRAD, LS_AUTOCAST and their kin: a variable with a name of its own on every
 * line, so that blocks within blocks shadow nothing, on whose death `leave` is called. */
#if defined(__GNUC__)
#define LS_UNTIL_END_(leave) __attribute__((cleanup(leave), unused))
#endif
#define LS_ON_LINE(name) LS_ON_LINE_OF_(name, __LINE__)
#define LS_ON_LINE_OF_(name, line) LS_ON_LINE_JOIN_(name, line)
#define LS_ON_LINE_JOIN_(name, line) name##line

#ifdef __cplusplus
}
#endif
#endif
