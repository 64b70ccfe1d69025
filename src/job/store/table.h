/* SPDX-License-Identifier: Apache-2.0 */
/* The table of a store: values and descriptors by key, bounded. The server and the store of a world
 * of one rank use it; it is not thread-safe. Every failure sets a message (ls__fail) that names the
 * key.
 */
#ifndef LS_JOB_STORE_TABLE_H
#define LS_JOB_STORE_TABLE_H

#include "base/env.h"
#include "job/store/store.h"

typedef struct ls__store_table ls__store_table;

typedef struct ls__store_key {
    const char *text; /* not terminated */
    size_t bytes;
} ls__store_key;

ls_status ls__store_table_new(const ls__env *env, ls__store_table **out);
void ls__store_table_free(ls__store_table *table);

/* Sets or replaces; key and value are copied. LS_ERR_LIMIT: the table would exceed
 * LS_STORE_BYTES_MAX.
 */
ls_status ls__store_table_set(ls__store_table *table, ls__store_key key, ls_store_value value);
/* False: the key does not exist. The value is borrowed until the next change of the table. */
bool ls__store_table_get(const ls__store_table *table, ls__store_key key, ls_store_value *out);
/* False: the key does not exist. */
bool ls__store_table_delete(ls__store_table *table, ls__store_key key);
/* Adds to a decimal counter; a missing key counts as 0. */
ls_status ls__store_table_add(ls__store_table *table, ls__store_key key, int64_t amount,
                              int64_t *result);
/* Sets `desired` if the value equals `expected`; an empty `expected` also matches a missing key. */
ls_status ls__store_table_compare_set(ls__store_table *table, ls__store_key key,
                                      ls_store_value expected, ls_store_value desired,
                                      bool *swapped);

/* Descriptors have a name space of their own. put_fd takes fd, on failure too; get_fd returns a
 * borrowed one, or -1 if the key does not exist. */
ls_status ls__store_table_put_fd(ls__store_table *table, ls__store_key key, int fd);
int ls__store_table_get_fd(const ls__store_table *table, ls__store_key key);

#endif
