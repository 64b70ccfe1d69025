/* The plug-in over one MPI: compiled once with each MPI's header, linked with that MPI and nothing of
 * the library. See table.h.
 *
 * Note [MPI_Finalize]
 * A process can initialise MPI once only, but may call ls_init again after ls_finalize. So MPI is
 * finalized when the process exits, on a thread of its own: MPI_Finalize waits for all ranks, and a
 * rank that has died keeps it for ever. After a failure it is not called at all, and neither is any
 * other function of MPI: a dead peer would make it wait, or abort this process before it has said
 * why the job failed. */
#include "comm/mpi/table.h"

#include <mpi.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TAG 1

struct ls__mpi {
    MPI_Comm comm;
    MPI_Request duplicating;
    int count, rank, size;
    MPI_Request *request; /* [count] */
    bool *receives;       /* [count]: the request is a receive */
    MPI_Status *status;   /* [count] */
};

static struct {
    bool ours;      /* initialised here, so finalized here */
    bool abandoned; /* Note [MPI_Finalize] */
    int open;       /* communicators that were not closed: a process that exits so has failed */
    int64_t finalize_ms;
    _Atomic int finalized;
} process;

/* True if the call succeeded; else `error` names the call and MPI's reason. */
static bool check(int code, const char *call, char error[LS__MPI_ERROR_MAX])
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    if (code == MPI_SUCCESS) {
        return true;
    }
    (void)MPI_Error_string(code, text, &length);
    (void)snprintf(error, LS__MPI_ERROR_MAX, "%s: %.400s", call, text);
    return false;
}

/* ---- initialising and finalizing ------------------------------------------------------------ */

static void *finalize_main(void *arg)
{
    (void)arg;
    (void)MPI_Finalize();
    atomic_store(&process.finalized, 1);
    return NULL;
}

static void at_exit(void)
{
    int finalized = 0;
    pthread_t thread;
    const struct timespec pause = {.tv_nsec = 1000000};
    if (process.open > 0 || MPI_Finalized(&finalized) != MPI_SUCCESS || finalized != 0 ||
        pthread_create(&thread, NULL, finalize_main, NULL) != 0) {
        return;
    }
    for (int64_t ms = 0; atomic_load(&process.finalized) == 0; ms++) {
        if (ms >= process.finalize_ms) {
            (void)fprintf(stderr,
                          "lockstep: MPI_Finalize did not end in %lld ms and is given up; look for "
                          "a rank that has not left\n",
                          (long long)process.finalize_ms);
            return;
        }
        (void)nanosleep(&pause, NULL);
    }
    (void)pthread_join(thread, NULL);
}

static const char *level_name(int level)
{
    return level == MPI_THREAD_SINGLE       ? "MPI_THREAD_SINGLE"
           : level == MPI_THREAD_FUNNELED   ? "MPI_THREAD_FUNNELED"
           : level == MPI_THREAD_SERIALIZED ? "MPI_THREAD_SERIALIZED"
                                            : "MPI_THREAD_MULTIPLE";
}

/* The program's own calls cannot be kept apart from those of the engine's thread, so its MPI has to
 * allow calls by several threads at once. */
static bool adopt(char error[LS__MPI_ERROR_MAX])
{
    int level = MPI_THREAD_SINGLE, finalized = 0;
    (void)MPI_Finalized(&finalized);
    if (finalized != 0) {
        (void)snprintf(error, LS__MPI_ERROR_MAX,
                       "MPI is finalized in this process; call ls_finalize before MPI_Finalize");
        return false;
    }
    if (!check(MPI_Query_thread(&level), "MPI_Query_thread", error)) {
        return false;
    }
    if (level < MPI_THREAD_MULTIPLE) {
        (void)snprintf(error, LS__MPI_ERROR_MAX,
                       "this program has initialised MPI with %s, but Lockstep calls MPI from a "
                       "thread of its own; call MPI_Init_thread with MPI_THREAD_MULTIPLE",
                       level_name(level));
        return false;
    }
    return true;
}

static bool initialise(int64_t finalize_ms, char error[LS__MPI_ERROR_MAX])
{
    int initialised = 0, level = 0;
    process.finalize_ms = finalize_ms;
    if (process.abandoned) {
        (void)snprintf(error, LS__MPI_ERROR_MAX,
                       "MPI was given up in this process after a failure; start a new one");
        return false;
    }
    if (!check(MPI_Initialized(&initialised), "MPI_Initialized", error)) {
        return false;
    }
    if (initialised != 0) {
        return process.ours || adopt(error);
    }
    if (!check(MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level), "MPI_Init_thread",
               error)) {
        return false;
    }
    process.ours = true;
    (void)atexit(at_exit);
    if (level < MPI_THREAD_SERIALIZED) {
        (void)snprintf(error, LS__MPI_ERROR_MAX,
                       "this MPI offers %s only; use one that was built with threads",
                       level_name(level));
        return false;
    }
    return true;
}

/* ---- the table ------------------------------------------------------------------------------ */

static void free_all(ls__mpi *m)
{
    free(m->request);
    free(m->receives);
    free(m->status);
    free(m);
}

static ls__mpi *plugin_open(int requests, int64_t finalize_ms, char error[LS__MPI_ERROR_MAX])
{
    if (!initialise(finalize_ms, error)) {
        return NULL;
    }
    ls__mpi *m = calloc(1, sizeof *m);
    if (m == NULL) {
        (void)snprintf(error, LS__MPI_ERROR_MAX, "no memory for MPI's requests");
        return NULL;
    }
    *m = (ls__mpi){.comm = MPI_COMM_NULL, .duplicating = MPI_REQUEST_NULL, .count = requests};
    m->request = malloc((size_t)requests * sizeof *m->request);
    m->receives = calloc((size_t)requests, sizeof *m->receives);
    m->status = malloc((size_t)requests * sizeof *m->status);
    for (int i = 0; m->request != NULL && i < requests; i++) {
        m->request[i] = MPI_REQUEST_NULL;
    }
    (void)MPI_Comm_rank(MPI_COMM_WORLD, &m->rank);
    (void)MPI_Comm_size(MPI_COMM_WORLD, &m->size);
    if (m->request == NULL || m->receives == NULL || m->status == NULL ||
        !check(MPI_Comm_idup(MPI_COMM_WORLD, &m->comm, &m->duplicating), "MPI_Comm_idup", error)) {
        free_all(m);
        return NULL;
    }
    process.open++;
    return m;
}

static int plugin_rank(const ls__mpi *m)
{
    return m->rank;
}

static int plugin_size(const ls__mpi *m)
{
    return m->size;
}

static int plugin_ready(ls__mpi *m, char error[LS__MPI_ERROR_MAX])
{
    int done = 0;
    if (!check(MPI_Test(&m->duplicating, &done, MPI_STATUS_IGNORE), "MPI_Comm_idup", error)) {
        return -1;
    }
    if (done != 0 && !check(MPI_Comm_set_errhandler(m->comm, MPI_ERRORS_RETURN),
                            "MPI_Comm_set_errhandler", error)) {
        return -1;
    }
    return done != 0;
}

static bool plugin_send(ls__mpi *m, int request, int peer, const void *from, size_t bytes,
                        char error[LS__MPI_ERROR_MAX])
{
    return check(MPI_Isend(from, (int)bytes, MPI_BYTE, peer, TAG, m->comm, &m->request[request]),
                 "MPI_Isend", error);
}

static bool plugin_receive(ls__mpi *m, int request, int peer, void *to, size_t bytes,
                           char error[LS__MPI_ERROR_MAX])
{
    m->receives[request] = true;
    return check(MPI_Irecv(to, (int)bytes, MPI_BYTE, peer, TAG, m->comm, &m->request[request]),
                 "MPI_Irecv", error);
}

static int plugin_poll(ls__mpi *m, int *ended, size_t *received, char error[LS__MPI_ERROR_MAX])
{
    int count = 0;
    const int code = MPI_Testsome(m->count, m->request, &count, ended, m->status);
    if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS) {
        (void)check(code, "MPI_Testsome", error);
        return -1;
    }
    count = count == MPI_UNDEFINED ? 0 : count;
    for (int i = 0; i < count; i++) {
        int bytes = 0;
        if (code == MPI_ERR_IN_STATUS && !check(m->status[i].MPI_ERROR, "MPI_Testsome", error)) {
            return -1;
        }
        (void)MPI_Get_count(&m->status[i], MPI_BYTE, &bytes); /* of a send it means nothing */
        received[i] = bytes > 0 ? (size_t)bytes : 0;
    }
    return count;
}

/* A send that has not ended goes on without its request, until MPI_Finalize. */
static void plugin_close(ls__mpi *m, bool abandon)
{
    process.abandoned = process.abandoned || abandon;
    if (abandon) {
        return; /* MPI may still look at the requests */
    }
    process.open--;
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

static const ls__mpi_table table = {.version = LS__MPI_VERSION,
                                    .bytes = sizeof table,
                                    .open = plugin_open,
                                    .rank = plugin_rank,
                                    .size = plugin_size,
                                    .ready = plugin_ready,
                                    .send = plugin_send,
                                    .receive = plugin_receive,
                                    .poll = plugin_poll,
                                    .close = plugin_close};

__attribute__((visibility("default"))) const ls__mpi_table *ls__mpi_plugin(uint32_t version);

const ls__mpi_table *ls__mpi_plugin(uint32_t version)
{
    return version == LS__MPI_VERSION ? &table : NULL;
}
