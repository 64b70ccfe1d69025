/* The store: small named values shared by the ranks of a job (torch.distributed.Store).
 *
 * The launcher owns it. Every connection has proven the job's secret; keys are at most
 * LS_STORE_KEY_MAX bytes, values at most LS_STORE_VALUE_MAX, the whole store LS_STORE_BYTES_MAX.
 * Every call has a deadline (timeout_ms; negative means the runtime's default).
 */
#ifndef LOCKSTEP_STORE_H
#define LOCKSTEP_STORE_H

#include <lockstep/status.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LS_STORE_KEY_MAX 255
#define LS_STORE_VALUE_MAX ((size_t)64 << 10)
#define LS_STORE_BYTES_MAX ((size_t)64 << 20)

typedef struct ls_store ls_store;

/* The store of the current runtime; borrowed. A world of one has one too, in memory. */
LS_API ls_store *ls_runtime_store(void);

LS_API ls_status ls_store_set(ls_store *store, const char *key, const void *value, size_t bytes,
                              int64_t timeout_ms);

/* Waits until `key` exists and copies its value. `*bytes` is the capacity of `value` on entry and
 * the value's length on return; LS_ERR_LIMIT when it does not fit (nothing is copied). */
LS_API ls_status ls_store_get(ls_store *store, const char *key, void *value, size_t *bytes,
                              int64_t timeout_ms);

/* Adds to a decimal counter (0 when absent) and returns the new value. */
LS_API ls_status ls_store_add(ls_store *store, const char *key, int64_t amount, int64_t *result,
                              int64_t timeout_ms);

/* Waits until `key` exists. */
LS_API ls_status ls_store_wait(ls_store *store, const char *key, int64_t timeout_ms);

/* Sets `key` to `desired` if its value equals `expected` (an absent key equals a length of 0).
 * `*swapped` says whether it did. */
typedef struct ls_store_value {
    const void *data;
    size_t bytes;
} ls_store_value;
LS_API ls_status ls_store_compare_set(ls_store *store, const char *key, ls_store_value expected,
                                      ls_store_value desired, bool *swapped, int64_t timeout_ms);

/* Deletes `key`; `*deleted` (may be NULL) says whether it existed. */
LS_API ls_status ls_store_delete(ls_store *store, const char *key, bool *deleted,
                                 int64_t timeout_ms);

#ifdef __cplusplus
}
#endif
#endif
