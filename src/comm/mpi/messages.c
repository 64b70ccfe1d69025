/* SPDX-License-Identifier: Apache-2.0 */
/* The transport of the backend `mpi`: messages over a duplicate of MPI_COMM_WORLD. Messages with
 * one tag between two ranks arrive in order, and receives match in the order in which they are
 * posted. */
#include "comm/mpi/plugin.h"

#include <stdlib.h>

#define TAG 1

typedef struct messages {
    MPI_Comm comm;
    MPI_Request duplicating;
    int count;
    MPI_Request *request; /* [count] */
    bool *receives;       /* [count]: the request is a receive */
    MPI_Status *status;   /* [count] */
} messages;

static void free_all(messages *m)
{
    free(m->request);
    free(m->receives);
    free(m->status);
    free(m);
}

static ls_status messages_open(const ls_backend_group_spec *world, int requests, void **transport,
                               char *error)
{
    ls_status status = ls__mpi_initialise(world, error);
    if (status != LS_OK) {
        return status;
    }
    messages *m = calloc(1, sizeof *m);
    if (m == NULL) {
        return ls__mpi_fail(LS_ERR_MEMORY, error, "no memory for MPI's requests");
    }
    *m = (messages){.comm = MPI_COMM_NULL, .duplicating = MPI_REQUEST_NULL, .count = requests};
    m->request = malloc((size_t)requests * sizeof *m->request);
    m->receives = calloc((size_t)requests, sizeof *m->receives);
    m->status = malloc((size_t)requests * sizeof *m->status);
    for (int i = 0; m->request != NULL && i < requests; i++) {
        m->request[i] = MPI_REQUEST_NULL;
    }
    status = m->request == NULL || m->receives == NULL || m->status == NULL
                 ? ls__mpi_fail(LS_ERR_MEMORY, error, "no memory for MPI's requests")
                 : ls__mpi_check(MPI_Comm_idup(MPI_COMM_WORLD, &m->comm, &m->duplicating),
                                 "MPI_Comm_idup", error);
    if (status != LS_OK) {
        free_all(m);
        return status;
    }
    ls__mpi_opened();
    *transport = m;
    return LS_OK;
}

static ls_status messages_connect(void *transport, char *error)
{
    messages *m = transport;
    int done = 0;
    const ls_status status =
        ls__mpi_check(MPI_Test(&m->duplicating, &done, MPI_STATUS_IGNORE), "MPI_Comm_idup", error);
    if (status != LS_OK || done == 0) {
        return status != LS_OK ? status : LS_IN_PROGRESS;
    }
    return ls__mpi_check(MPI_Comm_set_errhandler(m->comm, MPI_ERRORS_RETURN),
                         "MPI_Comm_set_errhandler", error);
}

static ls_status messages_send(void *transport, int request, int peer, const void *message,
                               size_t bytes, char *error)
{
    messages *m = transport;
    return ls__mpi_check(
        MPI_Isend(message, (int)bytes, MPI_BYTE, peer, TAG, m->comm, &m->request[request]),
        "MPI_Isend", error);
}

static ls_status messages_receive(void *transport, int request, int peer, void *buffer,
                                  size_t bytes, char *error)
{
    messages *m = transport;
    m->receives[request] = true;
    return ls__mpi_check(
        MPI_Irecv(buffer, (int)bytes, MPI_BYTE, peer, TAG, m->comm, &m->request[request]),
        "MPI_Irecv", error);
}

static int messages_poll(void *transport, int *ended, size_t *received, char *error)
{
    messages *m = transport;
    int count = 0;
    const int code = MPI_Testsome(m->count, m->request, &count, ended, m->status);
    if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS) {
        return (int)ls__mpi_check(code, "MPI_Testsome", error);
    }
    count = count == MPI_UNDEFINED ? 0 : count;
    for (int i = 0; i < count; i++) {
        int bytes = 0, cancelled = 0;
        if (code == MPI_ERR_IN_STATUS && m->status[i].MPI_ERROR != MPI_SUCCESS) {
            return (int)ls__mpi_check(m->status[i].MPI_ERROR, "MPI_Testsome", error);
        }
        /* MPICH over UCX ends receives from a dead rank in this way. */
        if (MPI_Test_cancelled(&m->status[i], &cancelled) != MPI_SUCCESS || cancelled != 0) {
            return (int)ls__mpi_check(MPI_ERR_OTHER, "MPI_Testsome", error);
        }
        (void)MPI_Get_count(&m->status[i], MPI_BYTE, &bytes); /* of a send it means nothing */
        received[i] = bytes > 0 ? (size_t)bytes : 0;
    }
    return count;
}

/* A send that has not ended goes on without its request, until MPI_Finalize. */
static void messages_close(void *transport, bool failed)
{
    messages *m = transport;
    if (failed) {
        ls__mpi_abandon();
        return; /* MPI may still look at the requests */
    }
    ls__mpi_closed();
    for (int i = 0; i < m->count; i++) {
        if (m->request[i] != MPI_REQUEST_NULL && m->receives[i]) {
            (void)MPI_Cancel(&m->request[i]);
        }
        if (m->request[i] != MPI_REQUEST_NULL) {
            (void)MPI_Request_free(&m->request[i]);
        }
    }
    free_all(m); /* the communicator stays: small messages of ranks that leave later may come */
}

const ls_backend_transport ls__mpi_messages = {.size = sizeof ls__mpi_messages,
                                               .open = messages_open,
                                               .connect = messages_connect,
                                               .send = messages_send,
                                               .receive = messages_receive,
                                               .poll = messages_poll,
                                               .close = messages_close};
