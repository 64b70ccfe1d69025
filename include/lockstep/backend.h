/* SPDX-License-Identifier: Apache-2.0 */
/* Backends: plug-ins that move the data of a group's operations, such as MPI or NCCL.
 *
 * Control is native, data is the backend's. For every operation of a group the library numbers it,
 * compares the descriptors of all ranks, watches its deadline and the other ranks, and reports
 * failures, as it does without a plug-in. A backend only moves the bytes:
 *
 *     library   compare descriptors ▸ start ▸ test, test, test … ▸ result to the caller
 *     backend                         start   moves data      done
 *
 * A plug-in is a shared object that exports one function, `ls_backend_plugin`. It needs only this
 * header and must not link the library. It lists its promises (ls_backend_capabilities); the
 * library refuses all other requests with an error and does not pass them to the plug-in.
 * docs/backends.md describes how to write one, tests/plugins/loop.c is an example.
 *
 * Rules for all functions of a plug-in:
 * - The library makes one call at a time into a plug-in, from any thread, so
 *   MPI_THREAD_SERIALIZED suffices. Threads of the plug-in's own are allowed.
 * - No function blocks on another rank. Those that may need other ranks return LS_IN_PROGRESS and
 *   are called again, not later than `poll_us` microseconds afterwards.
 * - A function that fails returns a negative ls_status and writes the reason to `error`, of
 *   LS_BACKEND_ERROR_MAX bytes, as one line without a full stop: "send to rank 3: no route".
 * - Structs grow at their ends. Each begins with `size`, written by the side that makes it; the
 *   other side reads no field beyond it.
 */
#ifndef LOCKSTEP_BACKEND_H
#define LOCKSTEP_BACKEND_H

#include <lockstep/status.h>
#include <lockstep/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this interface. A plug-in of another version is refused. */
#define LS_BACKEND_VERSION 1

#define LS_BACKEND_ERROR_MAX 512    /* bytes of an error's text */
#define LS_BACKEND_ADDRESS_MAX 1024 /* bytes that each rank may contribute to connect */

/* What a group may be asked to do. Buffers are as for the functions of the same names in comm.h. A
 * barrier has no data and never reaches a backend. REPLAY has none either: it goes to backends that
 * have `record`, which says what it is. */
typedef enum ls_backend_kind {
    LS_BACKEND_ALL_REDUCE = 0,
    LS_BACKEND_REDUCE_SCATTER = 1,
    LS_BACKEND_ALL_GATHER = 2,
    LS_BACKEND_BROADCAST = 3,
    LS_BACKEND_REPLAY = 4,
    LS_BACKEND_SEND = 5,
    LS_BACKEND_RECV = 6,
    LS_BACKEND_REDUCE = 7,
    LS_BACKEND_GATHER = 8,
    LS_BACKEND_SCATTER = 9,
    LS_BACKEND_ALL_TO_ALL = 10,
    LS_BACKEND_SCAN = 11,
    LS_BACKEND_EXSCAN = 12,
    LS_BACKEND_ALL_TO_ALL_V = 13,
    LS_BACKEND_ALL_GATHER_V = 14,
    LS_BACKEND_REDUCE_SCATTER_V = 15,
    LS_BACKEND_GATHER_V = 16,
    LS_BACKEND_SCATTER_V = 17
} ls_backend_kind;

/* What a backend promises beyond moving data. */
typedef enum ls_backend_flag {
    /* Sums are added in the library's order: a binary tree over the ranks, adjacent pairs first,
     * split at the largest power of two; 16-bit floats accumulate in float32 and are rounded
     * once. */
    LS_BACKEND_CANONICAL = 1 << 0,
    /* `abort` ends operations in flight, and their buffers are not touched any more. */
    LS_BACKEND_ABORTABLE = 1 << 1,
    /* `alloc` makes memory that the backend reaches directly. */
    LS_BACKEND_REGISTERED = 1 << 2,
    /* `stream` of an operation may be other than NULL. */
    LS_BACKEND_STREAMS = 1 << 3,
    /* It applies operators that the program defines (ls_reduce_op_new). */
    LS_BACKEND_USER_OPS = 1 << 4,
    /* `transport` moves messages between hosts, over which the library runs its own programs. */
    LS_BACKEND_PROGRAMS = 1 << 5,
    /* It multiplies by `factor` and divides by `divisor` of an operation itself. */
    LS_BACKEND_SCALES = 1 << 6
} ls_backend_flag;

/* Kinds of memory in which buffers may lie. Without HOST the library reads and writes no buffer of
 * the group itself, and refuses what would need that. */
typedef enum ls_backend_memory {
    LS_BACKEND_HOST = 1 << 0,
    LS_BACKEND_DEVICE = 1 << 1 /* of the device that was current when the group was opened */
} ls_backend_memory;

typedef struct ls_backend_capabilities {
    size_t size;
    uint32_t flags;      /* of ls_backend_flag */
    uint32_t memory;     /* of ls_backend_memory */
    uint32_t operations; /* bit 1 << k for every ls_backend_kind k that it carries. SEND and RECV
                            together or not at all */
    uint32_t dtypes;     /* bit 1 << d for every ls_dtype d that it reduces. Operations that do not
                            reduce move bytes, whatever their dtype */
    uint32_t reduce_ops; /* bit 1 << op for every ls_reduce_op. LS_AVG is LS_SUM and a division, and
                            LS_PREMUL_SUM a multiplication and LS_SUM, which the library does or
                            LS_BACKEND_SCALES: these two bits are ignored */
    uint32_t poll_us;    /* the library calls `test` at least this often while an operation is in
                            flight: 50 to 200; smaller and larger numbers become these limits */
    uint32_t address_bytes; /* that each rank contributes to `connect`: at most
                               LS_BACKEND_ADDRESS_MAX */
    uint32_t reserved;      /* 0 */
    int64_t count_max; /* elements of an input or an output of one operation, to the end of its last
                          block; 0: any number */
} ls_backend_capabilities;

/* A group that is to be opened. Pointers are valid during the call. */
typedef struct ls_backend_group_spec {
    size_t size;
    const char *name;      /* for texts */
    uint64_t job;          /* a number of the job, the same on all its ranks */
    uint32_t id;           /* of the group: job, generation and id are never used twice together */
    uint32_t generation;   /* how often the job was restarted */
    int rank, ranks;       /* of this process in the group, and how many there are */
    const int *world_rank; /* [ranks] */
    const int *host;       /* [ranks] ranks with equal numbers share a host */
    int64_t timeout_ms;    /* after which the library gives up */
    int world_ranks;       /* how many ranks the job has */
} ls_backend_group_spec;

/* An operation to be started. The struct and its arrays are valid during the call: a plug-in copies
 * what it keeps. The buffers are the plug-in's until `test` has returned another status than
 * LS_IN_PROGRESS, or `abort` has returned. */
typedef struct ls_backend_operation {
    size_t size;
    ls_backend_kind kind;
    ls_dtype dtype;
    ls_reduce_op op;   /* operations that reduce; LS_REDUCE_OP_USER: `combine` */
    int root;          /* SEND, RECV: the peer, a rank of the group */
    uint64_t sequence; /* of the group, growing; SEND and RECV: see `message` */
    uint64_t message;  /* SEND, RECV: number of the message between the two ranks in this
                          direction, the same on both sides, each used once */
    const void *input; /* NULL on ranks that have none; equal to `output`, or to this rank's block
                          of it, in place, as in comm.h */
    void *output;      /* NULL on ranks that have none */
    int64_t count;     /* elements, of each block where there are blocks; SEND, RECV: of all */
    size_t element;    /* bytes of one */
    /* v-variants: elements and places of the blocks of the input [0] and the output [1], each
     * [ranks]; else NULL */
    const int64_t *counts[2], *offsets[2];
    ls_stream *stream;    /* NULL: the host */
    ls_reduce_fn combine; /* of a user's operator; NULL otherwise */
    void *combine_arg;
    /* SCALES: of LS_PREMUL_SUM each rank's input is multiplied by its own `factor`; of LS_SUM the
     * sum is divided by `divisor`, equal on all ranks, 0: not. Without SCALES 1 and 0 */
    double factor, divisor;
    void *after; /* STREAMS: the place of `mark` after which the operation may use its buffers; the
                    plug-in's from now on. NULL: at once */
} ls_backend_operation;

/* Messages between the ranks of the job, for LS_BACKEND_PROGRAMS: the steps of the library's
 * programs and its announcements (LOCKSTEP_DATA_PLANE). Heartbeats and root causes stay on the
 * library's own connections. Between two ranks messages arrive complete, unchanged and in order.
 *
 * Requests are numbers from 0 to requests - 1, chosen by the library: each names at most one send
 * or receive in flight, so a plug-in keeps an array of them and allocates nothing for a message. */
typedef struct ls_backend_transport {
    size_t size;
    /* Opens the transport of all ranks, `world`. The only function that may wait for other ranks:
     * it is called in ls_init, before these have connections to each other. */
    ls_status (*open)(const ls_backend_group_spec *world, int requests, void **transport,
                      char *error);
    /* Called until it returns LS_OK: messages can be sent to all ranks; or an error. */
    ls_status (*connect)(void *transport, char *error);
    /* Sends `message`, which stays unchanged until `poll` has stored the request. */
    ls_status (*send)(void *transport, int request, int peer, const void *message, size_t bytes,
                      char *error);
    /* Receives the next message of a peer, of up to `bytes` bytes. Messages fill the buffers in the
     * order of the calls. */
    ls_status (*receive)(void *transport, int request, int peer, void *buffer, size_t bytes,
                         char *error);
    /* Moves messages, and stores the requests that have ended, in any order, and the bytes of each
     * that received; both arrays have room for all. Returns how many, or a negative ls_status. */
    int (*poll)(void *transport, int *ended, size_t *received, char *error);
    /* `failed`: the job has failed, and a rank may be dead. Then no other function of the transport
     * is called any more, and the library never frees the memory of requests in flight. */
    void (*close)(void *transport, bool failed);
} ls_backend_transport;

/* The table of a plug-in. Functions marked "may be NULL" are optional. */
typedef struct ls_backend {
    size_t size;
    uint32_t version; /* LS_BACKEND_VERSION */
    const char *name; /* lower-case letters, digits and _; the file is ls_backend_NAME.so, or, for
                         "mpi", which depends on the MPI, ls_backend_mpi_openmpi.so or _mpich.so */

    /* Once a process, before all others: what the backend can do in this process. It may load
     * further libraries and fail, for example because they are missing. */
    ls_status (*describe)(ls_backend_capabilities *out, char *error);

    /* Begins to open a group: makes *group and writes this rank's address,
     * capabilities.address_bytes bytes, to `address`. Nothing of another rank is needed. */
    ls_status (*open)(const ls_backend_group_spec *spec, void *address, void **group, char *error);
    /* Called with the addresses of all ranks, [ranks][address_bytes], until it returns LS_OK: the
     * group can be used; or an error. All ranks of the group call it at about the same time, so it
     * may make a collective call of its own library, such as MPI_Comm_create_group, which waits
     * until the other ranks have called it, too. */
    ls_status (*connect)(void *group, const void *addresses, char *error);
    /* Frees the group. Local. `failed`: the group has failed, and a rank may be dead; otherwise no
     * operation is in flight. A failed group whose operations could not be aborted is not
     * closed. */
    void (*close)(void *group, bool failed);

    /* Starts an operation, whose descriptors agree on all ranks. All ranks start the collectives of
     * a group in the same order, one after the other has ended; several SEND and RECV may be in
     * flight. *request is what `test` gets. */
    ls_status (*start)(void *group, const ls_backend_operation *operation, void **request,
                       char *error);
    /* LS_OK: it has ended on this rank, and the request is gone. An error fails the group on all
     * ranks, with this text as the root cause. */
    ls_status (*test)(void *group, void *request, char *error);
    /* ABORTABLE: the group has failed. When it returns, all requests are gone, and no buffer is
     * touched any more. Else it may be NULL; then buffers of operations in flight stay in use. */
    void (*abort)(void *group);
    /* A rank of the group for which the request waits, or -1; for reports. May be NULL. */
    int (*awaited)(void *group, void *request);

    /* REGISTERED, else NULL: memory, aligned to 64 bytes and zeroed. */
    ls_status (*alloc)(void *group, size_t bytes, void **out, char *error);
    void (*dealloc)(void *group, void *memory, size_t bytes);

    /* PROGRAMS, else NULL. */
    const ls_backend_transport *transport;

    /* At the end of the process's use, in ls_finalize, after all groups and the transport have been
     * closed. `failed`: a rank may be dead or stopped. May be NULL. */
    void (*unload)(bool failed);

    /* STREAMS, else NULL. Streams are queues of a device: what the program puts into one runs in
     * order, later than the call. `mark` and `unmark` are called by the program's threads at any
     * time, also while another function runs. */

    /* Adds to *place, a new one if it is NULL, that an operation waits for all that is in `stream`
     * now. */
    ls_status (*mark)(void *group, ls_stream *stream, void **place, char *error);
    /* No operation will take the place. Those of a group that has failed end with it. */
    void (*unmark)(void *group, void *place);
    /* What is put into `stream` from now on waits for the end of the request. LS_IN_PROGRESS: it
     * has not been given to the device yet, call again. */
    ls_status (*follow)(void *group, void *request, ls_stream *stream, char *error);
    /* Zeroes memory of `alloc` in the order of `stream`; NULL: before it returns. */
    ls_status (*zero)(void *group, ls_stream *stream, void *memory, size_t bytes, char *error);

    /* May be NULL. LS_OK: an operation may use this memory; else the call of the operation is
     * refused with `error`, on this rank only. In place: `input` of some kinds equals `output`.
     * From any thread, as `mark`. */
    ls_status (*accepts)(void *group, ls_backend_kind kind, const void *input, const void *output,
                         char *error);
    /* May be NULL. What this rank's part of the request waits for, a clause for reports: "the
     * program's stream has not come to it". Static storage. */
    const char *(*waits)(void *group, void *request);

    /* With STREAMS, may be NULL: its operations cannot be captured. The calling thread captures
     * `stream`, as for a CUDA graph: puts a collective, whose place is in the capture, there, so
     * that what follows in `stream` waits for it. The plug-in has the place from now on. Each start
     * of what was captured repeats the operation, on all ranks; the library then starts one REPLAY,
     * whose place is behind it, so that its end is tested for as that of any operation. From the
     * program's threads, as `mark`. */
    ls_status (*record)(void *group, const ls_backend_operation *operation, ls_stream *stream,
                        char *error);
} ls_backend;

/* The least table of this version: older plug-ins end here. */
#define LS_BACKEND_LEAST_SIZE offsetof(ls_backend, mark)

/* The function that a plug-in exports. Returns its table, in static storage, or NULL if it does not
 * have the requested version. */
typedef const ls_backend *(*ls_backend_plugin_fn)(uint32_t version);
#define LS_BACKEND_SYMBOL "ls_backend_plugin"
#if defined(LS_BACKEND_PLUGIN) /* define it in the plug-in's source */
__attribute__((visibility("default"))) const ls_backend *ls_backend_plugin(uint32_t version);
#endif

#ifdef __cplusplus
}
#endif
#endif
