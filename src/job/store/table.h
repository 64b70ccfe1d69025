/* What a store holds: values and descriptors by key, bounded. Used by the server and by the store
 * of a world of one; not thread-safe. Messages of failures are set (ls__fail) and name the key. */
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

ls_status ls__store_table_set(ls__store_table *table, ls__store_key key, ls_store_value value);
/* false: no such key. The value is borrowed until the next change. */
bool ls__store_table_get(const ls__store_table *table, ls__store_key key, ls_store_value *out);
bool ls__store_table_delete(ls__store_table *table, ls__store_key key);
ls_status ls__store_table_add(ls__store_table *table, ls__store_key key, int64_t amount,
                              int64_t *result);
ls_status ls__store_table_compare_set(ls__store_table *table, ls__store_key key,
                                      ls_store_value expected, ls_store_value desired,
                                      bool *swapped);

/* Descriptors have names of their own. Takes fd (closes it on failure too). */
ls_status ls__store_table_put_fd(ls__store_table *table, ls__store_key key, int fd);
int ls__store_table_get_fd(const ls__store_table *table,
                           ls__store_key key); /* borrowed; -1: none */

#endif
