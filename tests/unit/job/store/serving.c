/* SPDX-License-Identifier: Apache-2.0 */
/* The thread turns the server at least every 5 ms, so that a connection adopted meanwhile is seen.
 */
#include "serving.h"

#include <string.h>

#include "test.h"

#define ITEMS_MAX 512

static void *serve(void *arg)
{
    serving *s = arg;
    ls__env_poll items[ITEMS_MAX];
    while (!s->ending) {
        uint64_t deadline = ls__deadline_after(s->env, 5);
        pthread_mutex_lock(&s->mutex);
        int count = ls__store_server_poll(s->server, items, ITEMS_MAX, &deadline);
        pthread_mutex_unlock(&s->mutex);
        s->env->poll(s->env, items, count, deadline);
        pthread_mutex_lock(&s->mutex);
        ls__store_server_turn(s->server, items, count);
        pthread_mutex_unlock(&s->mutex);
    }
    return NULL;
}

void serving_begin(serving *s)
{
    memset(s, 0, sizeof *s);
    s->env = ls__env_posix();
    CHECK_INT(s->env->random_bytes(s->env, s->secret, sizeof s->secret), 0);
    CHECK_OK(ls__store_server_new(s->env, s->secret, &s->server));
    pthread_mutex_init(&s->mutex, NULL);
    CHECK_INT(pthread_create(&s->thread, NULL, serve, s), 0);
}

void serving_end(serving *s)
{
    s->ending = true;
    pthread_join(s->thread, NULL);
    ls__store_server_free(s->server);
    pthread_mutex_destroy(&s->mutex);
}

int serving_socket(serving *s, ls_status *status)
{
    int pair[2];
    CHECK_INT(s->env->socket_pair(s->env, pair), 0);
    pthread_mutex_lock(&s->mutex);
    *status = ls__store_server_adopt(s->server, pair[0]);
    pthread_mutex_unlock(&s->mutex);
    return pair[1];
}

ls_store *serving_client(serving *s)
{
    ls_store *store = NULL;
    ls_status status;
    int fd = serving_socket(s, &status);
    CHECK_OK(status);
    CHECK_OK(ls__store_connect(s->env, fd, s->secret, 10000, &store));
    return store;
}

int serving_count(serving *s)
{
    pthread_mutex_lock(&s->mutex);
    int count = ls__store_server_clients(s->server);
    pthread_mutex_unlock(&s->mutex);
    return count;
}
