/* SPDX-License-Identifier: Apache-2.0 */
/* The MPI transport (LOCKSTEP_DATA_PLANE=mpi): the data between hosts goes over MPI's own fabric.
 *
 * Control stays on the TCP connections beside it: heartbeats, root causes, what a rank waits for;
 * and a connection that breaks tells at once that a process has died, which MPI would never tell.
 * When the job has failed, MPI is *abandoned*: no MPI function is called any more, since it might
 * wait for the dead rank or abort this one, and what is left to say goes over TCP.
 */
#ifndef LS_COMM_TRANSPORT_MPI_H
#define LS_COMM_TRANSPORT_MPI_H

#include "comm/join/arrival.h"
#include "comm/transport/transport.h"

#include <lockstep/backend.h>

#define LS__MPI_POLL_MIN_NS 50000u  /* MPI works only while it is called: the longest sleep */
#define LS__MPI_POLL_MAX_NS 200000u /* … when nothing has moved for a while */
#define LS__MPI_IDLE_NS 5000000u    /* … when this rank has no operation in flight */

typedef struct ls__mpi_spec {
    const ls__env *env;
    const ls_backend_transport *table;
    void *mpi; /* the plug-in's; owned from here on; opened with ls__mpi_requests */
    int rank, size;
    const bool *remote;     /* [size] */
    ls__transport *control; /* TCP; owned from here on */
    /* Whether MPI has to be abandoned: a rank has died, or the job has failed. */
    bool (*failed)(void *arg);
    void *arg;
    _Atomic uint32_t *calls; /* plugin_call.h */
} ls__mpi_spec;

int ls__mpi_requests(int size); /* of a world of this size */
/* On failure nothing is taken over. LS_ERR_MEMORY, LS_ERR_SYSTEM. */
ls_status ls__mpi_transport_new(const ls__mpi_spec *spec, ls__transport **out);
/* How long the engine may sleep before MPI must work again; `pending`: operations are in flight.
 * Any thread. */
uint64_t ls__mpi_sleep_ns(const ls__transport *t, bool pending);
uint64_t ls__mpi_bytes_sent(const ls__transport *t);   /* of payloads, with the progress lock */
bool ls__mpi_unsent(const ls__transport *t, int peer); /* whether MPI still reads messages to it */

#endif
