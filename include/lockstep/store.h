/* SPDX-License-Identifier: Apache-2.0 */
/* The store: small named values shared by the ranks of a job (torch.distributed.Store).
 *
 * The host agent of node 0 serves it, and every connection has proven the job's secret. A key has 1
 * to LS_STORE_KEY_MAX bytes, a value at most LS_STORE_VALUE_MAX bytes, the whole store at most
 * LS_STORE_BYTES_MAX bytes; LS_ERR_LIMIT when a limit is exceeded. Keys and values are copied.
 *
 * No call is collective: each is one request of this rank. Every call has a deadline in
 * milliseconds (negative: the runtime's default), after which it returns LS_ERR_TIMEOUT.
 * LS_ERR_PEER when the store is gone or the job has failed.
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

/* The store of the current runtime; borrowed. NULL before ls_init. A world of one rank has a store
 * in its own memory. */
LS_API ls_store *ls_runtime_store(void);

/* Sets `key` to value[bytes], whether or not it exists. */
LS_API ls_status ls_store_set(ls_store *store, const char *key, const void *value, size_t bytes,
                              int64_t timeout_ms);

/* Waits until `key` exists and copies its value. `*bytes` is the capacity of `value` on entry and
 * the length of the value on return; LS_ERR_LIMIT when the value does not fit (nothing is
 * copied). */
LS_API ls_status ls_store_get(ls_store *store, const char *key, void *value, size_t *bytes,
                              int64_t timeout_ms);

/* Adds `amount` to a counter, which is 0 if the key does not exist; *result (may be NULL) becomes
 * the new value. The value is stored as decimal text; LS_ERR_FORMAT when it is not a number. */
LS_API ls_status ls_store_add(ls_store *store, const char *key, int64_t amount, int64_t *result,
                              int64_t timeout_ms);

/* Waits until `key` exists. */
LS_API ls_status ls_store_wait(ls_store *store, const char *key, int64_t timeout_ms);

/* Sets `key` to `desired` if its value equals `expected`; a key that does not exist equals a value
 * of length 0. *swapped (may be NULL) says whether the value was set. */
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
