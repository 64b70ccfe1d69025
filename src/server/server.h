/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a parameter server: wrapper.c and state.c make it, run.c begins and ends a period of
 * serving, worker.c pulls and pushes, serve.c answers, version.c makes versions. layout.c says
 * which elements each server has.
 *
 *     worker                                server
 *     head: push                       ──▶  serve.c takes it from any worker, and
 *     its ranges of the gradient       ──▶  receives them, while it takes other requests
 *     head: pushed, step, read, weight ──▶  version.c steps when it may
 *     head: pull                       ──▶  waits until this worker may read
 *                                      ◀──  head: version; its ranges of the parameters
 *
 * A server handles one request at a time. It sends a copy of a version, so that the next version
 * can be made at the same time. A worker receives into memory beside its parameters, until
 * everything has arrived. */
#ifndef LS_SERVER_SERVER_H
#define LS_SERVER_SERVER_H

#include <lockstep/server.h>

#include "ddp/wrapper.h"
#include "server/step.h"

enum { /* tags of messages on the server's group */
       LS__SERVER_TAG_REQUEST,
       LS__SERVER_TAG_GRADIENT,
       LS__SERVER_TAG_VERSION,
       LS__SERVER_TAG_PARAMETERS,
       LS__SERVER_TAG_SQUARES,
};

/* Of waits for a rank that computes: a worker may join long before the others, and a push takes as
 * long as its backward. */
#define LS__SERVER_NO_DEADLINE_MS ((int64_t)1 << 40)

typedef enum ls__server_kind {
    LS__SERVER_PULL,
    LS__SERVER_PUSH,   /* a gradient follows, bucket by bucket */
    LS__SERVER_PUSHED, /* all of it was sent */
    LS__SERVER_JOIN,
    LS__SERVER_EVENT, /* of another server: a line of the log */
    LS__SERVER_ENDED  /* of another server: no line follows */
} ls__server_kind;

/* The answer to a pull, before the parameters. */
typedef struct ls__server_version {
    int64_t version;
    uint32_t stop, unused;
} ls__server_version;

/* A copy of one version, which workers receive. */
typedef struct ls__server_copy {
    char *parameters, *buffers;
    int64_t version; /* -1: none */
    int readers;     /* sends under way */
} ls__server_copy;

/* A worker as its server sees it. */
typedef struct ls__server_client {
    int64_t clock; /* pushes that were taken */
    bool joined;
    bool waits;            /* has asked for a version */
    bool pushed;           /* its gradient waits for those of the others (sync) */
    ls__server_head *head; /* of its last push, with the bitmap */
    char *gradient;        /* … packed */
    char *buffers;         /* … of the module; shard 0 */
    ls__server_version answer;
    ls__server_copy *copy; /* that it receives; NULL: none */
    ls_work **works;       /* [work_count] that send it, or receive its gradient */
    int work_count;
} ls__server_client;

/* A server. Sync: owned by the thread that serves, from ls_server_run to ls_server_join. */
typedef struct ls__server_state {
    int64_t version;
    uint32_t stop;              /* a push of the newest version, or of an earlier one, said so */
    ls__server_stepper stepper; /* its parameters are those of the newest version */
    char *buffers;              /* of the newest version; shard 0 */
    char *registered;           /* the memory of all that is sent or received */
    ls__server_client *clients; /* [workers] */
    ls__server_copy *copies;    /* [workers + 1] */
    ls__server_copy *newest;    /* the copy of `version`; NULL: none was asked for yet */
    ls__server_push *pushes;    /* [workers] of which a version is made */
    double *squares;            /* [servers][params] of the gradients' ranges of all */
    ls_work **exchange;         /* [2 * servers] of them */
    int ended;                  /* other servers that write no further line */
    ls__replay_writer log;
    ls_server_stats stats;
    double staleness; /* the sum */
    size_t table_bytes;
} ls__server_state;

typedef struct ls__server {
    ls__ddp *d;
    const ls__env *env;
    ls_server_options set;
    ls_group *group; /* a duplicate of the user's */
    int size, rank, workers;
    int shard; /* this rank serves; -1: it does not */
    bool works;
    ls__server_layout layout;
    size_t head_bytes;    /* of a request with its bitmap */
    size_t buffers_bytes; /* of the module's, as they are sent */
    ls_optim *optim;      /* borrowed, while running */
    int *optim_param;     /* [param_count] the optimizer's number of a parameter */
    bool running;
    /* The worker; owned by the user's thread. */
    bool fresh;    /* it has pulled since its last push */
    bool may_push; /* its parameters are a version of which it has pushed no gradient */
    bool pushing;  /* the backward under way does */
    int sent;      /* buckets of it that are on their way */
    int *missing;  /* [buckets] gradients of it that are not final */
    uint64_t pulling_ns, sending_ns; /* of this step: its pull; when its push began */
    int64_t step;
    int64_t *read;     /* [shards] */
    char *staging;     /* all regions, as they arrive */
    char *heads;       /* [2][shards][head_bytes]: the second ones begin a push */
    ls_work **pending; /* [pending_max] */
    int pending_count, pending_max;
    /* The server. */
    ls__server_state *state;   /* NULL: this rank is none */
    ls__env_thread *thread;    /* of a rank that works as well */
    _Atomic uint32_t attached; /* Sync: release by the thread, acquire by the user's */
    ls_status served;          /* how serving ended; read after the thread was joined */
    char served_message[LS__MESSAGE_MAX];
    size_t table_bytes;
} ls__server;

ls__server *ls__server_of(const ls_module *net); /* NULL: it has none */
int ls__server_rank(const ls__server *s, int shard);

/* worker.c */
extern const ls__ddp_remote ls__server_worker;
/* Sends a request to every server; ls__server_wait ends it. */
ls_status ls__server_ask(ls__server *s, const ls__server_head *head);
/* Waits for s->pending; the first error. */
ls_status ls__server_wait(ls__server *s);
/* Receives, for each rank; then they are in the module. */
ls_status ls__server_take(ls__server *s);
/* The group fails with this rank's error, which is returned again. */
ls_status ls__server_give_up(ls__server *s, ls_status status);

/* state.c: the memory of a server, and its end. */
ls_status ls__server_state_new(ls__server *s);
ls_status ls__server_end_thread(ls__server *s); /* waits; returns how serving ended */
void ls__server_free(ls__ddp *d);

/* serve.c: until all workers have joined. */
ls_status ls__server_serve(ls__server *s);

/* version.c: a push has been received into the client. */
ls_status ls__server_pushed(ls__server *s, int worker);
/* A worker that has joined is no longer waited for. */
ls_status ls__server_joined(ls__server *s);
/* Whether a worker that has asked may have the newest version. */
bool ls__server_may_read(const ls__server *s, int worker);
/* Of a version that all servers make; a ls__server_squares_fn. */
ls_status ls__server_add_squares(void *server, int shard, double *squares);
/* Writes a line, or sends it to the server that does. */
ls_status ls__server_log(ls__server *s, const ls__replay_event *event);

#endif
