/* What the library asks of an MPI. The library itself is linked with none: each MPI has a plug-in
 * (plugin.c, compiled once per ABI), which is loaded by its name (load.h) and returns this table.
 * No MPI type occurs here, because two MPIs have different ones.
 *
 * Requests are numbers from 0 to count - 1: each names at most one send or receive in flight. All
 * calls between `open` and `close` are made by the holder of the progress lock, so
 * MPI_THREAD_SERIALIZED is enough. None blocks, except `open`.
 */
#ifndef LS_COMM_MPI_TABLE_H
#define LS_COMM_MPI_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LS__MPI_VERSION 1
#define LS__MPI_ERROR_MAX 512
#define LS__MPI_SYMBOL "ls__mpi_plugin"

typedef struct ls__mpi ls__mpi; /* a communicator of the job with its requests; the plug-in's own */

typedef struct ls__mpi_table {
    uint32_t version, bytes; /* LS__MPI_VERSION, sizeof */
    /* Initialises MPI, or adopts the one that the program has initialised, and begins to duplicate
     * MPI_COMM_WORLD, with `requests` requests. MPI_Finalize, if it is ours to call, runs when the
     * process exits, and is given up after finalize_ms. NULL: why stands in `error`. */
    ls__mpi *(*open)(int requests, int64_t finalize_ms, char error[LS__MPI_ERROR_MAX]);
    int (*rank)(const ls__mpi *m);
    int (*size)(const ls__mpi *m);
    /* 1: the communicator is duplicated; 0: not yet; -1: failed. */
    int (*ready)(ls__mpi *m, char error[LS__MPI_ERROR_MAX]);
    bool (*send)(ls__mpi *m, int request, int peer, const void *from, size_t bytes,
                 char error[LS__MPI_ERROR_MAX]);
    bool (*receive)(ls__mpi *m, int request, int peer, void *to, size_t bytes,
                    char error[LS__MPI_ERROR_MAX]);
    /* Lets MPI work. Stores the requests that have ended, and the bytes of each that received; both
     * arrays have room for all. Returns how many; -1: failed. */
    int (*poll)(ls__mpi *m, int *ended, size_t *received, char error[LS__MPI_ERROR_MAX]);
    /* Withdraws the receives. `abandon`: makes no MPI call, now or when
     * the process exits; memory given to `send` and `receive` must never be freed then. */
    void (*close)(ls__mpi *m, bool abandon);
} ls__mpi_table;

typedef const ls__mpi_table *(*ls__mpi_plugin_fn)(uint32_t version);

#endif
