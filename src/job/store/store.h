/* SPDX-License-Identifier: Apache-2.0 */
/* The two ends of the store. The server runs in the poll loop of the host agent: the launcher, the
 * parent of ls_spawn, or a thread of local rank 0. The client is the connection of one rank.
 * Besides values, the store passes *descriptors* between the ranks of a host: through it each
 * rank's heap reaches its peers. */
#ifndef LS_JOB_STORE_STORE_H
#define LS_JOB_STORE_STORE_H

#include <lockstep/store.h>

#include "base/env.h"

#define LS__STORE_CLIENTS_MAX 1024  /* several times the ranks of a host */
#define LS__STORE_PENDING_MAX 64    /* connections that have not proved the secret yet */
#define LS__STORE_HANDSHAKE_MS 2000 /* for the proof of the secret */
#define LS__STORE_SECRET_BYTES 32
#define LS__STORE_FDS_MAX 1024   /* descriptors held for put_fd */
#define LS__STORE_WAITERS_MAX 64 /* waiting requests of one client: its threads wait one each */

/* ---- server ---------------------------------------------------------------------------------- */

typedef struct ls__store_server ls__store_server;
ls_status ls__store_server_new(const ls__env *env, const uint8_t secret[32],
                               ls__store_server **out);
void ls__store_server_free(ls__store_server *server);
/* Adds a connected stream (takes fd, on failure too) of an unauthenticated peer, which must prove
 * the secret at once. */
ls_status ls__store_server_adopt(ls__store_server *server, int fd);
/* The same for a connection that the owner made for a rank that it starts. Its time for the proof
 * begins with its first byte, because a program may work for long before ls_init, and it does not
 * count as pending. */
ls_status ls__store_server_invite(ls__store_server *server, int fd);
/* For the owner's poll loop: writes up to `room` items, returns their number, and lowers
 * *deadline_ns to the next timed event. The owner then polls and passes the items, in the same
 * order, to ls__store_server_turn. Neither call blocks. */
int ls__store_server_poll(ls__store_server *server, ls__env_poll *items, int room,
                          uint64_t *deadline_ns);
void ls__store_server_turn(ls__store_server *server, const ls__env_poll *items, int count);

/* Replaces the secret, before the first client sends: for an owner that learns it later. */
void ls__store_server_set_secret(ls__store_server *server, const uint8_t secret[32]);
/* Answers every waiting request and all further ones with `status` and `why`, so that no rank waits
 * for a job that has failed. The first call counts. */
void ls__store_server_fail(ls__store_server *server, ls_status status, const char *why);
/* The descriptor that a rank has published under `key`, borrowed; -1: none. For the owner. */
int ls__store_server_fd(const ls__store_server *server, const char *key);
/* The number of peers, for tests and reports. */
int ls__store_server_clients(const ls__store_server *server);

/* ---- server: several hosts ------------------------------------------------------------------
 * The servers of the hosts form a star: that of node 0 holds the values; those of the other hosts
 * send the requests of their ranks there, and pass descriptors among their own ranks. The owner
 * transports the bytes (job/nodes). */

typedef struct ls__store_peer ls__store_peer; /* here: another host, at the server of node 0 */
struct ls__wire_reply;
/* Called with the answer to a request, possibly from within ls__store_peer_request. It must not
 * free the peer. */
typedef void ls__store_reply(void *arg, uint64_t id, const struct ls__wire_reply *reply);
/* Called with a whole frame to be sent to node 0; the frame is borrowed for the call. */
typedef void ls__store_ask_upstream(void *arg, const uint8_t *frame, size_t bytes);

/* Adds another host, whose link has proved the secret. Its answers go to `reply`. */
ls_status ls__store_server_host(ls__store_server *server, ls__store_reply *reply, void *arg,
                                ls__store_peer **out);
/* Serves a request that arrived from that host. False: it is malformed. */
bool ls__store_peer_request(ls__store_peer *peer, uint16_t type, uint64_t id,
                            const uint8_t *payload, size_t bytes);
void ls__store_peer_free(ls__store_peer *peer); /* NULL is allowed */

/* From now on the server sends requests to node 0 instead of serving them. */
void ls__store_server_set_upstream(ls__store_server *server, ls__store_ask_upstream *ask,
                                   void *arg);
/* Passes on the payload of a reply from node 0. False: it is malformed. */
bool ls__store_server_answer(ls__store_server *server, uint64_t id, const uint8_t *payload,
                             size_t bytes);

/* ---- client ---------------------------------------------------------------------------------- */

/* Takes fd, on failure too; proves the secret. LS_ERR_AUTH: the server dropped the connection;
 * LS_ERR_TIMEOUT: it did not answer. Threads may share the store. */
ls_status ls__store_connect(const ls__env *env, int fd, const uint8_t secret[32],
                            int64_t timeout_ms, ls_store **out);
/* A store in memory, for a world of one rank. */
ls_status ls__store_local(const ls__env *env, ls_store **out);
/* As ls__store_server_fd, of a store in memory when no other thread uses it any more. */
int ls__store_local_fd(const ls_store *store, const char *key);
/* NULL is allowed. No call may be in progress. */
void ls__store_close(ls_store *store);

/* put_fd publishes a descriptor under a key, and the caller keeps fd; get_fd waits for one, and the
 * caller owns *out. */
ls_status ls__store_put_fd(ls_store *store, const char *key, int fd, int64_t timeout_ms);
ls_status ls__store_get_fd(ls_store *store, const char *key, int *out, int64_t timeout_ms);

#endif
