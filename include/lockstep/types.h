/* SPDX-License-Identifier: Apache-2.0 */
/* Types shared by every layer: element types, reduction operators, option structs, call sites.
 *
 * Nothing here allocates or fails. The values of all enumerators are fixed, because ranks exchange
 * them and files contain them: none is ever renumbered, and the value of a removed one is not
 * reused.
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

/* Reduction operators (MPI_Op, ncclRedOp_t). AVG divides the sum once by the number of ranks.
 * Integers are added in a wider type (64 bits in 128), so that their average is right whatever they
 * are, and it is rounded towards zero, as in C and NCCL. A sum of floats that exceeds the largest
 * one is infinite, and so is its average. PREMUL_SUM multiplies the values of each rank by that
 * rank's options.factor and adds the products, which are rounded to the dtype
 * (ncclRedOpCreatePreMulSum); for integers the factor must be a whole number.
 *
 *              sum product min max   avg   band bor bxor  premul_sum
 *   floats      x     x     x   x     x                       x
 *   integers    x     x     x   x     x     x    x   x        x     overflow wraps (not avg)
 *   bool       any   all   all any          all any odd             as PyTorch's NCCL backend
 *
 * An empty cell means LS_ERR_INVALID. The operators of ls_reduce_op_new have the values
 * LS_REDUCE_OP_USER to LS_REDUCE_OP_USER_LAST. */
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

/* A user-defined operator (MPI_User_function): into[i] = into[i] op right[i] for i in [0,count),
 * where `into` comes from lower ranks than `right`. The operator must be associative; it need not
 * be commutative. Elements are of `dtype`, but 16-bit floats are passed as float32. The function is
 * called on any thread that drives the progress engine, often on parts of a buffer; the only
 * function of this library that it may call is ls_reduce_op_fail. `arg` is that of
 * ls_reduce_op_new. */
typedef void (*ls_reduce_fn)(void *into, const void *right, int64_t count, ls_dtype dtype,
                             void *arg);

/* Bytes of one element; 0 for a value that is not a dtype. */
LS_API size_t ls_dtype_size(ls_dtype dtype);

/* "float32" ...; "invalid" for a value that is not a dtype. Static storage. */
LS_API const char *ls_dtype_name(ls_dtype dtype);

/* "sum" ...; "invalid" for a value that is not an operator, "user-defined" for operators of
 * ls_reduce_op_new. Static storage. */
LS_API const char *ls_reduce_op_name(ls_reduce_op op);

/* The stream in which an operation is started; NULL is the host. With the backend "nccl" it is a
 * CUDA stream, cast: (ls_stream *)stream. */
typedef struct ls_stream ls_stream;

/* Note [Option structs]
 * Options are passed by const pointer; NULL means all defaults. Fill one with
 *     LS_OPTIONS(ls_adamw_options, .lr = 3e-4)                                 C
 *     ls_adamw_options o = ls_adamw_defaults(); o.lr = 3e-4;                    C and C++
 * Both write `size` and the defaults that are not zero (LS_DEFAULTS_<type>) before your fields, so
 * an explicit zero means zero, and a program built against an older header keeps working when the
 * struct grows at its end. A `size` of 0, or an impossible one (less than two words, more than 4096
 * bytes, not a whole number of words), is LS_ERR_INVALID, because fields would be ignored without
 * an error otherwise. In structs that the library fills, the caller sets `size` in the same way,
 * and the library fills the fields within it. Bindings that cannot call inline functions use
 * ls_options_defaults (lockstep.h).
 *
 * In LS_OPTIONS your initialiser replaces a default, which -Woverride-init (part of -Wextra)
 * reports. The pragma disables that warning for the rest of the file, because no pragma inside the
 * macro works: gcc allows none in an expression, clang forgets it where LS_OPTIONS is an argument
 * of another macro (LS_AT), and in a statement expression compound literals among your values
 * (`.mean = (double[]){…}`) would die too early. A file that needs the warning uses ls_…_defaults
 * and, after the last include, `#pragma GCC diagnostic warning "-Woverride-init"`. */
#ifndef __cplusplus
#if defined(__clang__)
#pragma clang diagnostic ignored "-Winitializer-overrides"
#elif defined(__GNUC__)
#pragma GCC diagnostic ignored "-Woverride-init"
#endif
#define LS_OPTIONS(type, ...)                                                                      \
    ((const type *)&(type){.size = sizeof(type), LS_DEFAULTS_##type __VA_ARGS__})
#endif

/* Defines ls_<name>_defaults(), which returns an ls_<name>_options. In C++17 designated
 * initialisers are an extension and must follow the order of the fields. */
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
 * Calls that can fail far from their cause are macros that first record the caller's file and line,
 * so that reports name the line in *your* program. A binding that calls the functions themselves
 * may call ls_site_set before each (`file` is borrowed for as long as the program runs) or omit it.
 * Define LS_NO_SITES to disable these macros. */
LS_API void ls_site_set(const char *file, int line);
#define LS_AT(call) (ls_site_set(__FILE__, __LINE__), call)

/* For LS_SCOPE, LS_NO_GRAD, LS_AUTOCAST and similar macros: a variable whose name contains the line
 * number, so that nested blocks shadow nothing, and at whose end of life `leave` is called. */
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
