/* SPDX-License-Identifier: Apache-2.0 */
/* The table of a store: chained hashing over entries that hold key and value in one block.
 *
 * Every byte counts towards LS_STORE_BYTES_MAX, and so does a fixed cost per entry, so that a
 * client which only makes empty keys is bounded too. The hash is keyed with random bytes: a client
 * cannot choose keys that all fall into one chain.
 */
#include "job/store/table.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/error.h"
#include "base/list.h"

#define BUCKETS 4096   /* chains stay short with the few thousand keys of a large job */
#define ENTRY_COST 128 /* charged for each entry: its header and the allocator's overhead */

typedef struct entry {
    ls__list link;
    size_t block_bytes; /* as allocated */
    size_t key_bytes, value_bytes;
    int fd;         /* -1: a value */
    uint8_t data[]; /* key, then value */
} entry;

struct ls__store_table {
    const ls__env *env;
    uint64_t hash_key;
    size_t bytes; /* charged so far: the blocks of all entries and ENTRY_COST for each */
    int fds;      /* entries that hold a descriptor */
    ls__list bucket[BUCKETS];
};

/* The buckets are a fixed array: the bound on bytes also bounds the number of entries. */
ls_status ls__store_table_new(const ls__env *env, ls__store_table **out)
{
    ls__store_table *table = env->allocate(env, sizeof *table);
    if (table == NULL) {
        return ls__fail(LS_ERR_MEMORY, "the store's table of %zu bytes", sizeof *table);
    }
    table->env = env;
    table->bytes = 0;
    table->fds = 0;
    int error = env->random_bytes(env, &table->hash_key, sizeof table->hash_key);
    if (error < 0) {
        env->release(env, table, sizeof *table);
        return ls__fail(LS_ERR_SYSTEM, "random bytes for the store: %s", strerror(-error));
    }
    for (int i = 0; i < BUCKETS; i++) {
        ls__list_init(&table->bucket[i]);
    }
    *out = table;
    return LS_OK;
}

/* Removes an entry and closes its descriptor. */
static void entry_free(ls__store_table *table, entry *e)
{
    LS_ASSERT(table->bytes >= e->block_bytes + ENTRY_COST && (e->fd < 0 || table->fds > 0));
    ls__list_remove(&e->link);
    table->bytes -= e->block_bytes + ENTRY_COST;
    if (e->fd >= 0) {
        table->fds--;
        table->env->close(table->env, e->fd);
    }
    table->env->release(table->env, e, e->block_bytes);
}

/* NULL is allowed. Closes all descriptors in the table. */
void ls__store_table_free(ls__store_table *table)
{
    if (table == NULL) {
        return;
    }
    for (int i = 0; i < BUCKETS; i++) {
        LS__LIST_EACH (at, &table->bucket[i]) {
            entry_free(table, LS__LIST_ITEM(at, entry, link));
        }
    }
    table->env->release(table->env, table, sizeof *table);
}

/* FNV-1a that starts from the random key and mixes the high bits down after each byte: the chain is
 * chosen by low bits. */
static ls__list *bucket_of(const ls__store_table *table, ls__store_key key)
{
    uint64_t hash = table->hash_key;
    for (size_t i = 0; i < key.bytes; i++) {
        hash = (hash ^ (uint8_t)key.text[i]) * 0x100000001b3u;
        hash ^= hash >> 29;
    }
    return (ls__list *)&table->bucket[(hash ^ (hash >> 32)) % BUCKETS];
}

/* The entry of a value, or of a descriptor if `fd`; NULL: none. */
static entry *find(const ls__store_table *table, ls__store_key key, bool fd)
{
    ls__list *bucket = bucket_of(table, key);
    LS__LIST_EACH (at, bucket) {
        entry *e = LS__LIST_ITEM(at, entry, link);
        if (e->key_bytes == key.bytes && (e->fd >= 0) == fd &&
            memcmp(e->data, key.text, key.bytes) == 0) {
            return e;
        }
    }
    return NULL;
}

/* Adds an entry and then removes `old` (may be NULL), so that a failure leaves the table as it
 * was. */
static ls_status replace(ls__store_table *table, ls__store_key key, ls_store_value value,
                         entry *old, int fd)
{
    LS_ASSERT(key.bytes >= 1 && key.bytes <= LS_STORE_KEY_MAX);
    const size_t block = sizeof(entry) + key.bytes + value.bytes;
    const size_t freed = old == NULL ? 0 : old->block_bytes + ENTRY_COST;
    if (table->bytes - freed + block + ENTRY_COST > LS_STORE_BYTES_MAX) {
        return ls__fail(
            LS_ERR_LIMIT,
            "store key \"%.*s\": the store is full (%zu of %zu bytes): delete keys that "
            "are no longer needed",
            (int)key.bytes, key.text, table->bytes, LS_STORE_BYTES_MAX);
    }
    entry *e = table->env->allocate(table->env, block);
    if (e == NULL) {
        return ls__fail(LS_ERR_MEMORY, "store key \"%.*s\": no memory for its %zu bytes",
                        (int)key.bytes, key.text, block);
    }
    e->block_bytes = block;
    e->key_bytes = key.bytes;
    e->value_bytes = value.bytes;
    e->fd = fd;
    memcpy(e->data, key.text, key.bytes);
    if (value.bytes > 0) {
        memcpy(e->data + key.bytes, value.data, value.bytes);
    }
    if (old != NULL) {
        entry_free(table, old);
    }
    ls__list_push_front(bucket_of(table, key), &e->link);
    table->bytes += block + ENTRY_COST;
    return LS_OK;
}

/* A value of the same length is overwritten in place: counters and flags need no allocation. */
ls_status ls__store_table_set(ls__store_table *table, ls__store_key key, ls_store_value value)
{
    entry *old = find(table, key, false);
    if (old != NULL && old->value_bytes == value.bytes) {
        if (value.bytes > 0) {
            memcpy(old->data + key.bytes, value.data, value.bytes);
        }
        return LS_OK;
    }
    return replace(table, key, value, old, -1);
}

/* A missing key yields an empty value, which add and compare_set use. */
bool ls__store_table_get(const ls__store_table *table, ls__store_key key, ls_store_value *out)
{
    const entry *e = find(table, key, false);
    if (e == NULL) {
        *out = (ls_store_value){NULL, 0};
        return false;
    }
    *out = (ls_store_value){e->data + e->key_bytes, e->value_bytes};
    return true;
}

bool ls__store_table_delete(ls__store_table *table, ls__store_key key)
{
    entry *e = find(table, key, false);
    if (e == NULL) {
        return false;
    }
    entry_free(table, e);
    return true;
}

/* A counter is a decimal number as text; an absent or empty value counts as 0. */
static bool parse_counter(ls_store_value value, int64_t *out)
{
    char text[24];
    char *end = NULL;
    if (value.bytes == 0) {
        *out = 0;
        return true;
    }
    if (value.bytes >= sizeof text) {
        return false;
    }
    memcpy(text, value.data, value.bytes);
    text[value.bytes] = '\0';
    errno = 0;
    *out = strtoll(text, &end, 10);
    return errno == 0 && end == text + value.bytes && (text[0] == '-' || isdigit((uint8_t)text[0]));
}

/* The counter stays text, as in c10d's store, so that ls_store_get reads it. */
ls_status ls__store_table_add(ls__store_table *table, ls__store_key key, int64_t amount,
                              int64_t *result)
{
    ls_store_value value;
    int64_t old, sum;
    ls__store_table_get(table, key, &value);
    if (!parse_counter(value, &old)) {
        return ls__fail(
            LS_ERR_FORMAT,
            "adding to store key \"%.*s\": its value of %zu bytes is not a decimal number; "
            "use another key for the counter",
            (int)key.bytes, key.text, value.bytes);
    }
    if (__builtin_add_overflow(old, amount, &sum)) {
        return ls__fail(LS_ERR_LIMIT,
                        "adding %" PRId64 " to store key \"%.*s\", which is %" PRId64
                        ", exceeds the range of int64",
                        amount, (int)key.bytes, key.text, old);
    }
    char text[24];
    const int length = snprintf(text, sizeof text, "%" PRId64, sum);
    LS_TRY(ls__store_table_set(table, key, (ls_store_value){text, (size_t)length}));
    *result = sum;
    return LS_OK;
}

/* A missing key compares as an empty value, so that one of several ranks can create it. */
ls_status ls__store_table_compare_set(ls__store_table *table, ls__store_key key,
                                      ls_store_value expected, ls_store_value desired,
                                      bool *swapped)
{
    ls_store_value value;
    ls__store_table_get(table, key, &value);
    *swapped = value.bytes == expected.bytes &&
               (value.bytes == 0 || memcmp(value.data, expected.data, value.bytes) == 0);
    return *swapped ? ls__store_table_set(table, key, desired) : LS_OK;
}

/* The number of descriptors is bounded because those of the process are. */
ls_status ls__store_table_put_fd(ls__store_table *table, ls__store_key key, int fd)
{
    LS_ASSERT(fd >= 0);
    entry *old = find(table, key, true);
    const bool full = old == NULL && table->fds >= LS__STORE_FDS_MAX;
    const ls_status status =
        full ? ls__fail(LS_ERR_LIMIT, "descriptor \"%.*s\": the store already holds %d descriptors",
                        (int)key.bytes, key.text, table->fds)
             : replace(table, key, (ls_store_value){NULL, 0}, old, fd);
    if (status < 0) {
        table->env->close(table->env, fd);
        return status;
    }
    table->fds++; /* entry_free has counted a replaced one */
    return LS_OK;
}

int ls__store_table_get_fd(const ls__store_table *table, ls__store_key key)
{
    const entry *e = find(table, key, true);
    return e == NULL ? -1 : e->fd;
}
