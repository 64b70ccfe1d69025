/* SPDX-License-Identifier: Apache-2.0 */
/* The store's calls, over a connection and in memory: every test runs on both. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "serving.h"
#include "test.h"

#define MS 2000

typedef void (*body)(ls_store *store);

/* Runs `what` on a store of either kind. */
static void on_both(body what)
{
    ls_store *local = NULL;
    serving s;
    CHECK_OK(ls__store_local(ls__env_posix(), &local));
    what(local);
    ls__store_close(local);
    serving_begin(&s);
    ls_store *remote = serving_client(&s);
    what(remote);
    ls__store_close(remote);
    serving_end(&s);
}

static ls_store_value value_of(const char *text)
{
    return (ls_store_value){text, strlen(text)};
}

static void check_value(ls_store *store, const char *key, const char *want)
{
    char got[64];
    size_t bytes = sizeof got;
    CHECK_OK(ls_store_get(store, key, got, &bytes, MS));
    CHECK_INT(bytes, strlen(want));
    CHECK(memcmp(got, want, bytes) == 0);
}

static void set_and_get(ls_store *store)
{
    CHECK_OK(ls_store_set(store, "a", "one", 3, MS));
    check_value(store, "a", "one");
    CHECK_OK(ls_store_set(store, "a", "longer than before", 18, MS));
    check_value(store, "a", "longer than before");
    CHECK_OK(ls_store_set(store, "a", NULL, 0, MS));
    check_value(store, "a", "");
    CHECK_OK(ls_store_wait(store, "a", MS));
}

TEST(a_value_set_is_the_value_got)
{
    on_both(set_and_get);
}

static void every_length(ls_store *store)
{
    static const size_t lengths[] = {0, 1, 3, 17, 1023, 4096, LS_STORE_VALUE_MAX};
    uint8_t *in = malloc(LS_STORE_VALUE_MAX), *out = malloc(LS_STORE_VALUE_MAX);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        for (size_t b = 0; b < lengths[i]; b++) {
            in[b] = (uint8_t)(b * 7 + i);
        }
        char key[LS_STORE_KEY_MAX + 1];
        memset(key, 'k', sizeof key);
        key[i == 0 ? LS_STORE_KEY_MAX : i] = '\0';
        size_t bytes = LS_STORE_VALUE_MAX;
        CHECK_OK(ls_store_set(store, key, in, lengths[i], MS));
        CHECK_OK(ls_store_get(store, key, out, &bytes, MS));
        CHECK_INT(bytes, lengths[i]);
        CHECK(memcmp(in, out, bytes) == 0);
    }
    free(in);
    free(out);
}

TEST(values_and_keys_of_every_length_pass)
{
    on_both(every_length);
}

static void counting(ls_store *store)
{
    int64_t now = -1;
    CHECK_OK(ls_store_add(store, "n", 5, &now, MS));
    CHECK_INT(now, 5);
    CHECK_OK(ls_store_add(store, "n", -12, &now, MS));
    CHECK_INT(now, -7);
    check_value(store, "n", "-7");
    CHECK_OK(ls_store_add(store, "n", INT64_MIN + 7, NULL, MS));
    CHECK_STATUS(ls_store_add(store, "n", -1, &now, MS), LS_ERR_LIMIT);
    CHECK_OK(ls_store_set(store, "text", "12x", 3, MS));
    CHECK_STATUS(ls_store_add(store, "text", 1, &now, MS), LS_ERR_FORMAT);
    CHECK_CONTAINS(ls_error_message(), "\"text\"");
}

TEST(a_counter_adds_and_refuses_what_is_no_number)
{
    on_both(counting);
}

static void comparing(ls_store *store)
{
    bool swapped = false;
    CHECK_OK(ls_store_compare_set(store, "c", value_of(""), value_of("first"), &swapped, MS));
    CHECK(swapped);
    CHECK_OK(ls_store_compare_set(store, "c", value_of(""), value_of("second"), &swapped, MS));
    CHECK(!swapped);
    CHECK_OK(ls_store_compare_set(store, "c", value_of("firsT"), value_of("no"), &swapped, MS));
    CHECK(!swapped);
    check_value(store, "c", "first");
    CHECK_OK(ls_store_compare_set(store, "c", value_of("first"), value_of("third"), &swapped, MS));
    CHECK(swapped);
    check_value(store, "c", "third");
}

TEST(compare_set_swaps_only_what_was_expected)
{
    on_both(comparing);
}

static void deleting(ls_store *store)
{
    bool deleted = true;
    CHECK_OK(ls_store_delete(store, "d", &deleted, MS));
    CHECK(!deleted);
    CHECK_OK(ls_store_set(store, "d", "x", 1, MS));
    CHECK_OK(ls_store_delete(store, "d", &deleted, MS));
    CHECK(deleted);
    CHECK_STATUS(ls_store_wait(store, "d", 0), LS_ERR_TIMEOUT);
}

TEST(a_deleted_key_is_gone)
{
    on_both(deleting);
}

static void waiting(ls_store *store)
{
    char out[8];
    size_t bytes = sizeof out;
    uint64_t begin = ls__env_posix()->now_ns(ls__env_posix());
    CHECK_STATUS(ls_store_get(store, "missing", out, &bytes, 60), LS_ERR_TIMEOUT);
    CHECK_CONTAINS(ls_error_message(), "\"missing\"");
    CHECK(ls__env_posix()->now_ns(ls__env_posix()) - begin >= 60000000u);
    CHECK_STATUS(ls_store_wait(store, "missing", 0), LS_ERR_TIMEOUT);
    int fd;
    CHECK_STATUS(ls__store_get_fd(store, "missing", &fd, 10), LS_ERR_TIMEOUT);
    CHECK_OK(ls_store_set(store, "missing", "x", 1, MS)); /* the connection is still good */
}

TEST(a_deadline_ends_a_wait_and_names_the_key)
{
    on_both(waiting);
}

static void refusing(ls_store *store)
{
    char key[LS_STORE_KEY_MAX + 2], out[4];
    size_t bytes = sizeof out;
    static uint8_t large[LS_STORE_VALUE_MAX + 1];
    memset(key, 'k', sizeof key);
    key[LS_STORE_KEY_MAX + 1] = '\0';
    CHECK_STATUS(ls_store_set(store, key, "", 0, MS), LS_ERR_INVALID);
    CHECK_STATUS(ls_store_set(store, "", "", 0, MS), LS_ERR_INVALID);
    CHECK_STATUS(ls_store_set(store, NULL, "", 0, MS), LS_ERR_INVALID);
    CHECK_STATUS(ls_store_set(NULL, "k", "", 0, MS), LS_ERR_INVALID);
    CHECK_STATUS(ls_store_set(store, "k", NULL, 1, MS), LS_ERR_INVALID);
    CHECK_STATUS(ls_store_set(store, "k", large, sizeof large, MS), LS_ERR_LIMIT);
    CHECK_STATUS(ls_store_get(store, "k", out, NULL, MS), LS_ERR_INVALID);
    CHECK_OK(ls_store_set(store, "k", "12345", 5, MS));
    CHECK_STATUS(ls_store_get(store, "k", out, &bytes, MS), LS_ERR_LIMIT);
    CHECK_INT(bytes, 5);
}

TEST(wrong_arguments_and_small_buffers_are_refused)
{
    on_both(refusing);
}

static void filling(ls_store *store)
{
    static uint8_t large[LS_STORE_VALUE_MAX];
    char key[32];
    int count = 0;
    ls_status status = LS_OK;
    for (; status == LS_OK && count < 2000; count++) {
        snprintf(key, sizeof key, "large %d", count);
        status = ls_store_set(store, key, large, sizeof large, MS);
    }
    CHECK_INT(status, LS_ERR_LIMIT);
    CHECK_CONTAINS(ls_error_message(), "full");
    CHECK(count > 1000 && (size_t)(count - 1) * sizeof large <= LS_STORE_BYTES_MAX);
    CHECK_OK(ls_store_delete(store, "large 0", NULL, MS));
    CHECK_OK(ls_store_set(store, key, large, sizeof large, MS));
}

TEST(a_full_store_refuses_and_goes_on)
{
    on_both(filling);
}

/* A descriptor arrives as another one for the same file. */
static void passing(ls_store *store)
{
    const ls__env *env = ls__env_posix();
    int got = -1, file = env->shm_create(env, "test", 4);
    CHECK_INT(write(file, "abcd", 4), 4);
    CHECK_OK(ls__store_put_fd(store, "file", file, MS));
    CHECK_OK(ls__store_get_fd(store, "file", &got, MS));
    CHECK(got >= 0 && got != file);
    char text[4];
    CHECK_INT(pread(got, text, 4, 0), 4);
    CHECK(memcmp(text, "abcd", 4) == 0);
    env->close(env, got);
    env->close(env, file);
    CHECK_STATUS(ls_store_wait(store, "file", 0), LS_ERR_TIMEOUT); /* names of their own */
}

TEST(a_descriptor_passes_to_another_rank)
{
    on_both(passing);
}

/* ---- threads --------------------------------------------------------------------------------- */

static void *set_later(void *arg)
{
    usleep(30000);
    (void)ls_store_set(arg, "later", "now", 3, MS);
    return NULL;
}

static void two_threads(ls_store *store)
{
    pthread_t thread;
    pthread_create(&thread, NULL, set_later, store);
    check_value(store, "later", "now"); /* waits, on the connection that the other thread uses */
    pthread_join(thread, NULL);
}

TEST(a_thread_that_waits_does_not_keep_another_from_setting)
{
    on_both(two_threads);
}

static void *count_up(void *arg)
{
    for (int i = 0; i < 200; i++) {
        if (ls_store_add(arg, "shared", 1, NULL, MS) != LS_OK) {
            return arg;
        }
    }
    return NULL;
}

static void eight_threads(ls_store *store)
{
    pthread_t threads[8];
    for (int i = 0; i < 8; i++) {
        pthread_create(&threads[i], NULL, count_up, store);
    }
    for (int i = 0; i < 8; i++) {
        void *failed = NULL;
        pthread_join(threads[i], &failed);
        CHECK(failed == NULL);
    }
    check_value(store, "shared", "1600");
}

TEST(eight_threads_share_one_store)
{
    on_both(eight_threads);
}

TEST_MAIN
