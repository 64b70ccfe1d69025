/* The store's two ends. Server: lives in the launcher's (or ls_spawn parent's) poll loop. Client: a
 * connection of one rank. Beside values it passes *descriptors* between ranks of a host: the broker
 * through which each rank's heap reaches its peers. */
#ifndef LS_JOB_STORE_STORE_H
#define LS_JOB_STORE_STORE_H

#include <lockstep/store.h>

#include "base/env.h"

#define LS__STORE_CLIENTS_MAX 1024
#define LS__STORE_PENDING_MAX 64 /* connections that have not proven the secret yet */
#define LS__STORE_HANDSHAKE_MS 2000
#define LS__STORE_SECRET_BYTES 32
#define LS__STORE_FDS_MAX 1024   /* descriptors held for put_fd */
#define LS__STORE_WAITERS_MAX 64 /* of one client */

/* ---- server ------------------------------------------------------------------------------- */

typedef struct ls__store_server ls__store_server;
ls_status ls__store_server_new(const ls__env *env, const uint8_t secret[32],
                               ls__store_server **out);
void ls__store_server_free(ls__store_server *server);
/* Adopts a connected stream (takes fd) of an unauthenticated peer, which must prove the secret at once. */
ls_status ls__store_server_adopt(ls__store_server *server, int fd);
/* The same for our end of a rank's connection: its time begins with its first byte, for a program
 * may work for long before ls_init, and it does not count as pending. */
ls_status ls__store_server_invite(ls__store_server *server, int fd);
/* For the owner's poll loop: writes up to `room` items, returns how many; *deadline_ns is lowered
 * to the next timed event. Then ls__store_server_turn with the polled items. Never blocks. */
int ls__store_server_poll(ls__store_server *server, ls__env_poll *items, int room,
                          uint64_t *deadline_ns);
void ls__store_server_turn(ls__store_server *server, const ls__env_poll *items, int count);

/* Before the first client has spoken: the secret was not known when the server was made. */
void ls__store_server_set_secret(ls__store_server *server, const uint8_t secret[32]);
/* From now on every waiter and every request is answered with LS_ERR_PEER and `why`: nobody waits
 * for a job that has failed. The first call counts. */
void ls__store_server_fail(ls__store_server *server, const char *why);
/* Connections now held, for tests and reports. */
int ls__store_server_clients(const ls__store_server *server);

/* ---- server: several hosts ------------------------------------------------------------------
 * The hosts' servers stand in a star: that of node 0 holds the values; those of the others send
 * their ranks' requests there and pass descriptors among their own ranks. How the bytes travel is
 * the owner's business (job/nodes). */

typedef struct ls__store_guest ls__store_guest; /* another host, at node 0's server */
struct ls__wire_reply;
/* Called with the answer to a request, perhaps within ls__store_guest_ask. */
typedef void ls__store_reply(void *arg, uint64_t id, const struct ls__wire_reply *reply);
/* Called with a whole frame that is to reach node 0. */
typedef void ls__store_ask_upstream(void *arg, const uint8_t *frame, size_t bytes);

ls_status ls__store_server_host(ls__store_server *server, ls__store_reply *reply, void *arg,
                                ls__store_guest **out);
/* A frame that came from there; false: it is malformed. */
bool ls__store_guest_ask(ls__store_guest *guest, uint16_t type, uint64_t id, const uint8_t *payload,
                         size_t bytes);
void ls__store_guest_free(ls__store_guest *guest); /* NULL is allowed */

void ls__store_server_set_upstream(ls__store_server *server, ls__store_ask_upstream *ask,
                                   void *arg);
/* The payload of a reply that came from node 0; false: it is malformed. */
bool ls__store_server_answer(ls__store_server *server, uint64_t id, const uint8_t *payload,
                             size_t bytes);

/* ---- client ------------------------------------------------------------------------------- */

/* Takes fd; sends the secret. Thread-safe: calls of several threads queue. */
ls_status ls__store_connect(const ls__env *env, int fd, const uint8_t secret[32], ls_store **out);
ls_status ls__store_local(const ls__env *env, ls_store **out); /* in memory, one process */
void ls__store_close(ls_store *store);

/* Publishes a descriptor under a key / waits for one; the caller keeps fd and owns *out. */
ls_status ls__store_put_fd(ls_store *store, const char *key, int fd, int64_t timeout_ms);
ls_status ls__store_get_fd(ls_store *store, const char *key, int *out, int64_t timeout_ms);

#endif
