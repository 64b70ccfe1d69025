/* SPDX-License-Identifier: Apache-2.0 */
/* A store's server in a thread of the test, as it lives in the launcher's loop. */
#ifndef SERVING_H
#define SERVING_H

#include <pthread.h>
#include <stdatomic.h>

#include "job/store/store.h"

typedef struct serving {
    const ls__env *env;
    uint8_t secret[32];
    ls__store_server *server; /* Sync: mutex */
    pthread_mutex_t mutex;
    pthread_t thread;
    atomic_bool ending;
} serving;

void serving_begin(serving *s);
void serving_end(serving *s);
/* The other end of a connection that the server has adopted as a stranger's. */
int serving_socket(serving *s, ls_status *status);
/* A client that has proven the secret. */
ls_store *serving_client(serving *s);
int serving_count(serving *s); /* connections the server holds */

#endif
