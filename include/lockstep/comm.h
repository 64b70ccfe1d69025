/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives: groups of ranks and operations on them, without tensors and autograd.
 *
 * These rules hold for every operation below:
 * - All ranks of the group call the same operations in the same order. Each call carries a
 *   descriptor (operation, dtype, count, reduce-op, root, tag). Ranks compare descriptors *before*
 *   any data is combined; a difference is LS_ERR_MISMATCH on every rank and names both sides.
 * - The last argument is `ls_work **work`. With NULL the call blocks until the operation is done;
 *   otherwise it returns at once, and *work is a handle for ls_work_wait. Buffers must not be
 *   touched until then. "Done" means that the result is complete and that no peer will access this
 *   buffer again.
 * - A group that failed stays failed: every later call returns the root cause. Errors of an
 *   operation are LS_ERR_INVALID (arguments), LS_ERR_MISMATCH, LS_ERR_TIMEOUT, LS_ERR_PEER (a rank
 *   died), LS_ERR_ABORTED and LS_ERR_MEMORY; after one of them the contents of `out` are undefined.
 * - Sums have one order of addition, a binary tree over the ranks (adjacent pairs first, split at
 *   the largest power of two). Neither size, slicing nor timing therefore changes a bit, and every
 *   rank gets the same bytes. 16-bit floats accumulate in float32 and are rounded once. A ring,
 *   selected by name, has a different order. If several NaNs are combined, all ranks get the same
 *   one; the algorithm decides which one it is.
 * - Counts and offsets are in elements; a count of 0 is allowed. `options` NULL means defaults.
 * - Arguments are in MPI's order: the send buffer, its counts, its offsets; the receive buffer, its
 *   counts, its offsets; then dtype, op, root, options, and last the pointer for the work or a
 *   result.
 * - `in` and `out` must not overlap, except as the operation's "in place" says; any other overlap
 *   is LS_ERR_INVALID.
 * - Buffers are borrowed until the operation is done.
 *
 * Sources: Patarasuk & Yuan 2009 (bandwidth-optimal all-reduce); Thakur, Rabenseifner & Gropp 2005.
 */
#ifndef LOCKSTEP_COMM_H
#define LOCKSTEP_COMM_H

#include <lockstep/runtime.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ls_group ls_group;
typedef struct ls_work ls_work;

/* ---- groups ------------------------------------------------------------------------------- */

/* The group of all ranks (MPI_COMM_WORLD); borrowed. NULL before ls_init. */
LS_API ls_group *ls_world(void);

/* This process's rank in the group, 0 … size-1; the number of its ranks; its name (borrowed). Local
 * calls. Of a NULL group they are 0, 1 and "". */
LS_API int ls_group_rank(const ls_group *group);
LS_API int ls_group_size(const ls_group *group);
LS_API const char *ls_group_name(const ls_group *group);

/* Makes a group of the parent's ranks[0..count-1], in that order (MPI_Comm_create, new_group).
 * Collective over the *parent*; ranks outside the new group get *out = NULL. With `ranks` NULL it
 * duplicates the parent (MPI_Comm_dup): operations of the duplicate neither wait for those of the
 * parent nor make them fail. `name` appears in reports (copied; NULL: a number). Free the group
 * with ls_group_free. LS_ERR_MISMATCH when the ranks pass different lists. */
LS_API ls_status ls_group_new(ls_group *parent, const int *ranks, int count, const char *name,
                              ls_group **out);

typedef struct ls_group_options {
    size_t size;
    const int *ranks; /* as of ls_group_new; NULL: all of the parent's */
    int count;
    const char *name;
    /* What moves the data of the group's operations (backend.h): "native", or the name or path of a
     * plug-in, such as "loop". NULL: the parent's; the world's is LOCKSTEP_BACKEND. All ranks must
     * ask for the same one. */
    const char *backend;
    bool canonical_sums; /* refuse a backend that does not add in the order described above */
} ls_group_options;
#define LS_DEFAULTS_ls_group_options
LS_DEFAULTS_FUNCTION(group)

/* ls_group_new with options. LS_ERR_NOT_FOUND, LS_ERR_UNSUPPORTED or another error of the plug-in,
 * on all ranks alike, when one of them cannot use the backend. */
LS_API ls_status ls_group_create(ls_group *parent, const ls_group_options *options, ls_group **out);

/* The name of the group's backend (borrowed); "native" of a NULL group. Local call. */
LS_API const char *ls_group_backend(const ls_group *group);

/* Ranks of `parent` that pass the same color, 0 or more, become a group, ordered by key and, for
 * equal keys, by rank in the parent (MPI_Comm_split, ncclCommSplit). With LS_NO_COLOR a rank gets
 * *out = NULL. Ranks of one color pass the same `name` (copied; NULL: a number). Collective over
 * the parent; costs two exchanges for any number of colors. Free the group with ls_group_free. */
#define LS_NO_COLOR (-1)
LS_API ls_status ls_group_split(ls_group *parent, int color, int key, const char *name,
                                ls_group **out);

/* Sets how many parts (channels) of one operation between hosts are in flight at the same time, 1
 * to 4, each with its own memory. Results do not change by a bit. Applies to operations that start
 * later; the default is 1, or LOCKSTEP_CHANNELS. Collective: all ranks pass the same number. */
LS_API ls_status ls_group_set_channels(ls_group *group, int channels);

/* Writes to `out` which algorithms the group's operations use by size, one line per operation:
 * "all_reduce 0-64Ki:root, 64Ki-:direct". The text is terminated and cut to `bytes`. Groups with
 * ranks on several hosts choose by the times that `lockstep tune` writes to LOCKSTEP_TUNE_FILE of
 * rank 0, or without them by the default figures of the cost model. Other groups need no timing,
 * and their text is "". The order of addition, and with it every bit of a sum, is the same for all
 * choices of the library. Local call. LOCKSTEP_TUNE=off keeps the built-in choice;
 * LOCKSTEP_ALGORITHM="all_reduce=0-4k:root,4k-:direct;broadcast=chain" selects algorithms by
 * size, also those that change the bits of a sum (ls_collective_options.algorithm). */
LS_API ls_status ls_group_get_tuning(ls_group *group, char *out, size_t bytes);

/* Like ls_group_new, but collective over the listed ranks only; the caller must be one of them, and
 * other ranks do not call it (MPI_Comm_create_group; new_group with use_local_synchronization).
 * Costs two messages per rank, which pass through the first one. */
LS_API ls_status ls_group_new_among(ls_group *parent, const int *ranks, int count, const char *name,
                                    ls_group **out);

/* One handle over `count` groups of the same ranks in the same order, such as duplicates:
 * collective k of the handle runs on groups[k % count], so several are in flight at once without
 * waiting for each other (Li et al. 2020, section 3.3). Point-to-point messages use groups[0]; an
 * abort applies to all groups. The groups are borrowed: free the handle before them, with
 * ls_group_free, when its operations have ended. Local call; every rank must make it with the same
 * groups. */
LS_API ls_status ls_group_round_robin(ls_group *const *groups, int count, const char *name,
                                      ls_group **out);

/* Waits for the group's operations and frees it (MPI_Comm_free). Collective; NULL is allowed.
 * LS_ERR_STATE, at once and with nothing freed, while a DDP wrapper, a reducer, a mesh or a handle
 * of ls_group_round_robin still uses it: free that first. ls_finalize frees groups in any case. */
LS_API ls_status ls_group_free(ls_group *group);

/* Fails the group on every member with LS_ERR_ABORTED and the text `why` (copied; ncclCommAbort).
 * Only the calling rank calls it; the others see the error at their next call. */
LS_API ls_status ls_group_abort(ls_group *group, const char *why);

/* LS_OK, or the status with which the group failed; ls_error_message is set to the root cause.
 * Local call (ncclCommGetAsyncError). */
LS_API ls_status ls_group_status(ls_group *group);

/* Memory that peers on this host can access directly, so operations on it copy nothing
 * (ncclMemAlloc, MPI_Alloc_mem). It is aligned to 64 bytes and zeroed. Local call. LS_ERR_MEMORY
 * when the heap is full (LOCKSTEP_HEAP_RESERVE). Free it with ls_group_dealloc (NULL is allowed);
 * after an abort it is reused only when no live peer can still access it. */
LS_API ls_status ls_group_alloc(ls_group *group, size_t bytes, void **out);
LS_API ls_status ls_group_dealloc(ls_group *group, void *memory);

/* ---- operations --------------------------------------------------------------------------- */

typedef struct ls_collective_options {
    size_t size;
    const char *tag;    /* names the data in reports ("bucket 3: fc1.weight …"); ranks must agree;
                           copied */
    int64_t timeout_ms; /* deadline of this operation; 0: the runtime's default */
    /* NULL: the host has filled the buffers. Else (backend "nccl") a CUDA stream: the operation
     * begins after what is in the stream at the call. Pass cudaStreamLegacy or cudaStreamPerThread
     * for the default stream. The program must let its stream wait: ls_work_wait_stream */
    ls_stream *stream;
    double divisor; /* SUM only: divides the sum once; 0: no division. Ranks must agree */
    /* NULL: the library chooses among the algorithms that keep the order of addition. A name
     * selects one: "direct" (all operations), "one_shot" (reductions of little data), "ring";
     *   all_reduce      "recursive_doubling", "halving_doubling", "root", "full_exchange",
     *                   "tree_stages", "double_tree", "hierarchical"
     *   reduce_scatter  "recursive_halving", "pairwise"
     *   all_gather      "recursive_doubling", "bruck"
     *   all_to_all      "pairwise", "bruck"; scans: "recursive_doubling"
     *   broadcast       "binomial", "scatter_all_gather", "chain"
     *   reduce, gather, scatter  "binomial"
     * Ranks must agree. Sums by "ring", "double_tree" and, if hosts have different numbers of
     * ranks, "hierarchical" have the same bytes on every rank, but not those of the other
     * algorithms. LS_ERR_INVALID lists the names of an operation. docs/algorithms.md has the
     * costs. */
    const char *algorithm;
    double factor; /* PREMUL_SUM only: the factor of this rank; default 1. An all_reduce multiplies
                      its output at the call; other operations copy their input */
} ls_collective_options;
#define LS_DEFAULTS_ls_collective_options .factor = 1,
LS_DEFAULTS_FUNCTION(collective)

/* *out becomes an operator of this rank that applies `fn` (MPI_Op_create); it works with every
 * operation that reduces and with every dtype. Ranks that use it together must give it the same
 * name (1 to 23 bytes, copied), because operators are compared by name. Only algorithms that keep
 * the order of ranks are used. `fn` and `arg` must stay valid until the operations that use them
 * have ended. LS_ERR_LIMIT: more than 64 at a time. Local call. ls_reduce_op_free frees it;
 * operations that are in flight continue. */
LS_API ls_status ls_reduce_op_new(ls_reduce_fn fn, void *arg, const char *name, ls_reduce_op *out);
LS_API ls_status ls_reduce_op_free(ls_reduce_op op);

/* Called inside an operator's `fn`: reports that it cannot combine these values. The group of the
 * operation fails on every member with LS_ERR_ABORTED, the operator's name and `why` (copied), and
 * no rank gets a result made from `into`. `fn` must still return. LS_ERR_STATE outside `fn`. */
LS_API ls_status ls_reduce_op_fail(const char *why);

/* out[count] becomes the reduction of in[count] over all ranks (MPI_Allreduce, ncclAllReduce). In
 * place when in == out. Separate buffers cost no extra pass: the algorithm reads `in` directly, so
 * `in` must not change until the operation is done. */
LS_API ls_status ls_all_reduce(ls_group *group, const void *in, void *out, int64_t count,
                               ls_dtype dtype, ls_reduce_op op,
                               const ls_collective_options *options, ls_work **work);

/* out[count] becomes block `rank` of the reduction of in[size*count] (MPI_Reduce_scatter_block,
 * ncclReduceScatter). In place when out == in + rank*count elements; the rest of `in` is then
 * undefined. */
LS_API ls_status ls_reduce_scatter(ls_group *group, const void *in, void *out, int64_t count,
                                   ls_dtype dtype, ls_reduce_op op,
                                   const ls_collective_options *options, ls_work **work);

/* out[size*count] becomes the blocks in[count] of all ranks in rank order (MPI_Allgather,
 * ncclAllGather). In place when in == out + rank*count elements. */
LS_API ls_status ls_all_gather(ls_group *group, const void *in, void *out, int64_t count,
                               ls_dtype dtype, const ls_collective_options *options,
                               ls_work **work);

/* buf[count] of rank `root` is copied to every rank (MPI_Bcast, ncclBroadcast). */
LS_API ls_status ls_broadcast(ls_group *group, void *buf, int64_t count, ls_dtype dtype, int root,
                              const ls_collective_options *options, ls_work **work);

/* out[count] of rank `root` becomes the reduction of in[count] over all ranks, with the same bytes
 * as ls_all_reduce gives (MPI_Reduce, ncclReduce). In place on the root when in == out. On other
 * ranks `out` is not used and may be NULL, and the call may return before the root has the
 * result. */
LS_API ls_status ls_reduce(ls_group *group, const void *in, void *out, int64_t count,
                           ls_dtype dtype, ls_reduce_op op, int root,
                           const ls_collective_options *options, ls_work **work);

/* out[size*count] of rank `root` becomes the blocks in[count] of all ranks in rank order
 * (MPI_Gather). In place on the root when in == out + root*count elements. On other ranks `out` is
 * not used and may be NULL. */
LS_API ls_status ls_gather(ls_group *group, const void *in, void *out, int64_t count,
                           ls_dtype dtype, int root, const ls_collective_options *options,
                           ls_work **work);

/* out[count] becomes block `rank` of in[size*count] of rank `root` (MPI_Scatter). In place on the
 * root when out == in + root*count elements. On other ranks `in` is not used and may be NULL. */
LS_API ls_status ls_scatter(ls_group *group, const void *in, void *out, int64_t count,
                            ls_dtype dtype, int root, const ls_collective_options *options,
                            ls_work **work);

/* Block j of in[size*count] becomes block `rank` of rank j's out[size*count] (MPI_Alltoall). In
 * place when in == out. */
LS_API ls_status ls_all_to_all(ls_group *group, const void *in, void *out, int64_t count,
                               ls_dtype dtype, const ls_collective_options *options,
                               ls_work **work);

/* The v-variants are the same operations with blocks of unequal lengths. Counts and offsets are in
 * elements and are copied; with offsets NULL the blocks lie one after the other. A block may be
 * empty. If every rank passes all counts, they are compared before any data is combined; if only
 * the two ends of a block know its length, the receiver compares it before it uses a byte. A
 * difference is LS_ERR_MISMATCH, which names the entry and both sides; a rank whose sends had
 * already completed may see the error on its next call. */

/* in_counts[j] elements at in + in_offsets[j] go to rank j, which receives them as its
 * out_counts[rank] elements at out + out_offsets[rank] (MPI_Alltoallv). All four arrays are [size].
 * In place when in == out, with equal counts and offsets. */
LS_API ls_status ls_all_to_all_v(ls_group *group, const void *in, const int64_t *in_counts,
                                 const int64_t *in_offsets, void *out, const int64_t *out_counts,
                                 const int64_t *out_offsets, ls_dtype dtype,
                                 const ls_collective_options *options, ls_work **work);

/* counts[r] elements of rank r become those at out + offsets[r] (MPI_Allgatherv). counts[size] is
 * the same on all ranks, and count == counts[rank]; offsets may differ from rank to rank. In place
 * when in == out + offsets[rank] elements. */
LS_API ls_status ls_all_gather_v(ls_group *group, const void *in, int64_t count, void *out,
                                 const int64_t *counts, const int64_t *offsets, ls_dtype dtype,
                                 const ls_collective_options *options, ls_work **work);

/* out[counts[rank]] becomes the reduction of block `rank` over all ranks; block r of `in` lies at
 * offsets[r] (MPI_Reduce_scatter). counts[size] is the same on all ranks. In place when out == in +
 * offsets[rank] elements; the rest of `in` is then undefined. */
LS_API ls_status ls_reduce_scatter_v(ls_group *group, const void *in, const int64_t *counts,
                                     const int64_t *offsets, void *out, ls_dtype dtype,
                                     ls_reduce_op op, const ls_collective_options *options,
                                     ls_work **work);

/* in[count] of rank r becomes counts[r] elements at out + offsets[r] of rank `root` (MPI_Gatherv).
 * out, counts[size] and offsets are used on the root only. In place on the root when in == out +
 * offsets[root] elements. */
LS_API ls_status ls_gather_v(ls_group *group, const void *in, int64_t count, void *out,
                             const int64_t *counts, const int64_t *offsets, ls_dtype dtype,
                             int root, const ls_collective_options *options, ls_work **work);

/* counts[r] elements at in + offsets[r] of rank `root` become out[count] of rank r (MPI_Scatterv).
 * in, counts[size] and offsets are used on the root only. In place on the root when out == in +
 * offsets[root] elements. */
LS_API ls_status ls_scatter_v(ls_group *group, const void *in, const int64_t *counts,
                              const int64_t *offsets, void *out, int64_t count, ls_dtype dtype,
                              int root, const ls_collective_options *options, ls_work **work);

/* out[count] of rank r becomes the reduction of in[count] of ranks 0 … r (MPI_Scan). Sums have the
 * order of addition of a group of these r+1 ranks, so the last rank gets the bytes of
 * ls_all_reduce. In place when in == out. LS_AVG is LS_ERR_INVALID. */
LS_API ls_status ls_scan(ls_group *group, const void *in, void *out, int64_t count, ls_dtype dtype,
                         ls_reduce_op op, const ls_collective_options *options, ls_work **work);

/* The same for ranks 0 … r-1 (MPI_Exscan). Rank 0's `out` is not changed and may be NULL. */
LS_API ls_status ls_exscan(ls_group *group, const void *in, void *out, int64_t count,
                           ls_dtype dtype, ls_reduce_op op, const ls_collective_options *options,
                           ls_work **work);

/* Is done when every rank has called it (MPI_Barrier). */
LS_API ls_status ls_barrier(ls_group *group, const ls_collective_options *options, ls_work **work);

/* A blocking barrier that names all missing ranks (torch.distributed.monitored_barrier). If
 * timeout_ms (0: the runtime's default) expires on one rank, the group fails on all ranks with
 * LS_ERR_TIMEOUT, and the text names *every* rank that had not called it. */
LS_API ls_status ls_monitored_barrier(ls_group *group, int64_t timeout_ms,
                                      const ls_collective_options *options);

/* *stop says whether any rank of `group` received a stop request (see ls_stop_requested), with the
 * same answer on all ranks; for training loops without a reducer. Collective; blocks for an
 * all-reduce of 4 bytes. */
LS_API ls_status ls_stop_agree(ls_group *group, bool *stop);

/* Sends buf[count] to rank `peer` (MPI_Send, ncclSend). It matches the peer's ls_recv with the same
 * `tag` >= 0, in the order of calls. Any number may be in flight. Not collective. */
LS_API ls_status ls_send(ls_group *group, const void *buf, int64_t count, ls_dtype dtype, int peer,
                         int tag, const ls_collective_options *options, ls_work **work);

/* Receives buf[count] from rank `peer` (MPI_Recv, ncclRecv). A message of another count or dtype is
 * LS_ERR_MISMATCH on both sides. */
LS_API ls_status ls_recv(ls_group *group, void *buf, int64_t count, ls_dtype dtype, int peer,
                         int tag, const ls_collective_options *options, ls_work **work);

/* Receives the first message with this tag from any rank (MPI_ANY_SOURCE). Messages between two
 * ranks match in order; if several have arrived, the earliest is received. Either pass
 * LS_ANY_SOURCE as `peer` to ls_recv, and ls_work_source returns the sender, or use this blocking
 * call, which writes the sender to *source (may be NULL). */
#define LS_ANY_SOURCE (-1)
LS_API ls_status ls_recv_any(ls_group *group, void *buf, int64_t count, ls_dtype dtype, int tag,
                             const ls_collective_options *options, int *source);

/* Receives a message of at most `count` elements (the count of MPI_Recv is such a limit); dtype,
 * peer and tag as in ls_recv. ls_work_count returns how many have come; buf is unchanged beyond
 * them. A longer message is LS_ERR_MISMATCH on both sides. */
LS_API ls_status ls_recv_up_to(ls_group *group, void *buf, int64_t count, ls_dtype dtype, int peer,
                               int tag, const ls_collective_options *options, ls_work **work);

/* ---- many buffers, one operation ----------------------------------------------------------- */

/* ls_all_reduce or ls_broadcast, in place, of bufs[i][counts[i]] for i in 0 … n-1 as one operation
 * (a group call of NCCL, all_reduce_coalesced of PyTorch). Every rank passes the same counts. The
 * arrays `bufs` and `counts` are copied. Buffers are packed into a fusion buffer as large as all of
 * them, which the group keeps for the next call; adjacent buffers are not packed. */
LS_API ls_status ls_all_reduce_many(ls_group *group, void *const *bufs, const int64_t *counts,
                                    int n, ls_dtype dtype, ls_reduce_op op,
                                    const ls_collective_options *options, ls_work **work);
LS_API ls_status ls_broadcast_many(ls_group *group, void *const *bufs, const int64_t *counts, int n,
                                   ls_dtype dtype, int root, const ls_collective_options *options,
                                   ls_work **work);

/* ---- objects: bytes of any length ---------------------------------------------------------- */

/* Lengths are in bytes and may differ from rank to rank; only the sender needs to know them
 * (broadcast_object_list, gather_object, … of torch.distributed). These calls are collective and
 * block. Results are new memory, not NULL even for length 0; free them with ls_bytes_free. On an
 * error nothing is returned. If a rank has no memory for an object, the group fails with
 * LS_ERR_MEMORY. Objects of at most 504 bytes need one small operation, longer ones a second one,
 * without a copy. */

typedef struct ls_bytes {
    void *data;
    size_t length;
} ls_bytes;

/* The root passes its object in *bytes and *length and keeps it. Other ranks get a copy of it in
 * new memory. */
LS_API ls_status ls_broadcast_bytes(ls_group *group, void **bytes, size_t *length, int root,
                                    const ls_collective_options *options);

/* *out becomes the array [size] of the objects of all ranks, in rank order; ls_bytes_free(*out)
 * frees the array and the objects. */
LS_API ls_status ls_all_gather_bytes(ls_group *group, const void *bytes, size_t length,
                                     const ls_collective_options *options, ls_bytes **out);

/* The same on rank `root`; other ranks get *out = NULL. */
LS_API ls_status ls_gather_bytes(ls_group *group, const void *bytes, size_t length, int root,
                                 const ls_collective_options *options, ls_bytes **out);

/* Rank r gets a copy of in[r] of rank `root` in new memory. in[size] is used on the root only. */
LS_API ls_status ls_scatter_bytes(ls_group *group, const ls_bytes *in, int root,
                                  const ls_collective_options *options, void **bytes,
                                  size_t *length);

/* ---- work --------------------------------------------------------------------------------- */

/* Waits for the operation, returns its status and releases the handle (MPI_Wait). Call it once per
 * handle: a second call is LS_ERR_INVALID, unless another operation has got the handle
 * meanwhile. */
LS_API ls_status ls_work_wait(ls_work *work);

/* Lets `stream` wait for the operation and releases the handle, without waiting for the data
 * (cudaStreamWaitEvent): what the program puts into the stream from now on sees the result. It
 * blocks until all ranks have called the operation and it has been given to the device. A failure
 * after that fails the group. Stream NULL: as ls_work_wait. LS_ERR_UNSUPPORTED: the group's backend
 * has no streams. */
LS_API ls_status ls_work_wait_stream(ls_work *work, ls_stream *stream);

/* LS_IN_PROGRESS, or the operation's status. It does not block and does not release the handle. */
LS_API ls_status ls_work_test(ls_work *work);

/* The rank in the group that sent the message of a completed receive; LS_ANY_SOURCE before
 * completion and for other operations. Call it before ls_work_wait, which releases the handle. */
LS_API int ls_work_source(const ls_work *work);

/* The number of elements of a completed receive (MPI_Get_count); -1 before completion and for other
 * operations. Call it before ls_work_wait, which releases the handle. */
LS_API int64_t ls_work_count(const ls_work *work);

/* Waits for at most timeout_ms >= 0. Returns LS_IN_PROGRESS when the time is over; the handle then
 * stays valid. Otherwise it does the same as ls_work_wait, which releases the handle. */
LS_API ls_status ls_work_wait_for(ls_work *work, int64_t timeout_ms);

/* Fails the operation's *group* with LS_ERR_ABORTED and `why` on every member, because a single
 * operation cannot be cancelled while peers depend on it. The handle must still be waited for. If
 * the operation has already ended, nothing happens. */
LS_API ls_status ls_work_abort(ls_work *work, const char *why);

/* Registers a callback: `done` is called with the operation's status when it ends, or at once if it
 * has ended. It runs before any wait for this handle returns, on any thread that drives the
 * progress engine. It must be short; it may start operations, but not wait for any (LS_ERR_STATE)
 * or use this handle. A second registration is LS_ERR_STATE. The handle must still be waited
 * for. */
LS_API ls_status ls_work_on_done(ls_work *work, void (*done)(void *arg, ls_status status),
                                 void *arg);

/* ---- statistics --------------------------------------------------------------------------- */

/* Counts of the engine since the group was made, including measurements of the links between hosts
 * (`lockstep tune`). A message is one step that moves data between two ranks; a read or a write of
 * a peer's buffer in shared memory counts as one message. */
typedef struct ls_counters {
    size_t size; /* set to sizeof before the call */
    uint64_t operations;
    uint64_t messages;
    uint64_t bytes_sent;     /* bytes this rank wrote to or passed to peers */
    uint64_t bytes_received; /* bytes this rank read or received from peers */
    uint64_t wait_ns;        /* time callers were blocked in waits */
} ls_counters;
LS_API ls_status ls_group_get_counters(const ls_group *group, ls_counters *out);

#if !defined(LS_NO_SITES)
#define ls_all_reduce(...) LS_AT(ls_all_reduce(__VA_ARGS__))
#define ls_reduce_scatter(...) LS_AT(ls_reduce_scatter(__VA_ARGS__))
#define ls_all_gather(...) LS_AT(ls_all_gather(__VA_ARGS__))
#define ls_broadcast(...) LS_AT(ls_broadcast(__VA_ARGS__))
#define ls_reduce(...) LS_AT(ls_reduce(__VA_ARGS__))
#define ls_gather(...) LS_AT(ls_gather(__VA_ARGS__))
#define ls_scatter(...) LS_AT(ls_scatter(__VA_ARGS__))
#define ls_all_to_all(...) LS_AT(ls_all_to_all(__VA_ARGS__))
#define ls_all_to_all_v(...) LS_AT(ls_all_to_all_v(__VA_ARGS__))
#define ls_all_gather_v(...) LS_AT(ls_all_gather_v(__VA_ARGS__))
#define ls_reduce_scatter_v(...) LS_AT(ls_reduce_scatter_v(__VA_ARGS__))
#define ls_gather_v(...) LS_AT(ls_gather_v(__VA_ARGS__))
#define ls_scatter_v(...) LS_AT(ls_scatter_v(__VA_ARGS__))
#define ls_reduce_op_new(...) LS_AT(ls_reduce_op_new(__VA_ARGS__))
#define ls_reduce_op_free(...) LS_AT(ls_reduce_op_free(__VA_ARGS__))
#define ls_scan(...) LS_AT(ls_scan(__VA_ARGS__))
#define ls_exscan(...) LS_AT(ls_exscan(__VA_ARGS__))
#define ls_barrier(...) LS_AT(ls_barrier(__VA_ARGS__))
#define ls_stop_agree(...) LS_AT(ls_stop_agree(__VA_ARGS__))
#define ls_send(...) LS_AT(ls_send(__VA_ARGS__))
#define ls_recv(...) LS_AT(ls_recv(__VA_ARGS__))
#define ls_recv_up_to(...) LS_AT(ls_recv_up_to(__VA_ARGS__))
#define ls_recv_any(...) LS_AT(ls_recv_any(__VA_ARGS__))
#define ls_group_new(...) LS_AT(ls_group_new(__VA_ARGS__))
#define ls_group_new_among(...) LS_AT(ls_group_new_among(__VA_ARGS__))
#define ls_monitored_barrier(...) LS_AT(ls_monitored_barrier(__VA_ARGS__))
#define ls_all_reduce_many(...) LS_AT(ls_all_reduce_many(__VA_ARGS__))
#define ls_broadcast_many(...) LS_AT(ls_broadcast_many(__VA_ARGS__))
#define ls_group_split(...) LS_AT(ls_group_split(__VA_ARGS__))
#define ls_group_get_tuning(...) LS_AT(ls_group_get_tuning(__VA_ARGS__))
#define ls_group_set_channels(...) LS_AT(ls_group_set_channels(__VA_ARGS__))
#define ls_broadcast_bytes(...) LS_AT(ls_broadcast_bytes(__VA_ARGS__))
#define ls_all_gather_bytes(...) LS_AT(ls_all_gather_bytes(__VA_ARGS__))
#define ls_gather_bytes(...) LS_AT(ls_gather_bytes(__VA_ARGS__))
#define ls_scatter_bytes(...) LS_AT(ls_scatter_bytes(__VA_ARGS__))
#endif

#ifdef __cplusplus
}
#endif
#endif
