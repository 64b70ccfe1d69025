/* Collectives: groups of ranks and operations on them. No tensors, no autograd.
 *
 * Rules that hold for every operation below
 * - All ranks of the group call the same operations in the same order. Each call carries a
 *   descriptor (operation, dtype, count, reduce-op, root, tag). Ranks compare descriptors *before*
 *   any number is combined; a difference is LS_ERR_MISMATCH on every rank, naming both sides.
 * - The last argument is `ls_work **work`. With NULL the call blocks until the operation is done;
 *   otherwise it returns at once and *work is a handle for ls_work_wait. Buffers must stay
 *   untouched until then. "Done" means that the result is here and that no peer will touch this
 *   buffer again.
 * - A group that failed stays failed: every later call returns the root cause.
 * - Sums have one order of addition, a binary tree over the ranks (adjacent pairs first, split at
 *   the largest power of two). So neither size, slicing nor timing changes a bit, and every rank
 *   gets the same bytes. 16-bit floats accumulate in float32 and round once. A ring, selected by
 *   name, has an order of its own. If several NaNs meet, all ranks get the same one of them; the
 *   algorithm decides which.
 * - count is in elements; 0 is allowed. `options` NULL means defaults.
 * - Arguments stand in MPI's order: the memory that is sent, its counts, its offsets, the memory
 *   that is received, its counts, its offsets; then dtype, op, root, options, and last the place for
 *   the work or a result.
 * - in and out must not overlap, except exactly as "in place" of the operation says; anything else
 *   is LS_ERR_INVALID.
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

/* The group of all ranks; borrowed. NULL without a runtime. */
LS_API ls_group *ls_world(void);

LS_API int ls_group_rank(const ls_group *group); /* this process' rank in the group */
LS_API int ls_group_size(const ls_group *group);
LS_API const char *ls_group_name(const ls_group *group);

/* Makes a group of parent ranks[0..count-1], in that order (MPI_Comm_create, new_group).
 * Collective over the *parent*; ranks outside get *out = NULL. ranks NULL duplicates the parent
 * (MPI_Comm_dup): the same ranks, whose operations neither wait for nor fail the parent's.
 * `name` appears in reports (copied; NULL: numbered). Returns new; free with ls_group_free. */
LS_API ls_status ls_group_new(ls_group *parent, const int *ranks, int count, const char *name,
                              ls_group **out);

/* Ranks of `parent` that give the same color, 0 or more, become a group, ordered by key and, where
 * keys are equal, by rank in the parent (MPI_Comm_split, ncclCommSplit). With LS_NO_COLOR a rank
 * gets *out = NULL. Ranks of one color give the same `name` (copied; NULL: numbered). Collective
 * over the parent; two exchanges, however many colors. Returns new; free with ls_group_free. */
#define LS_NO_COLOR (-1)
LS_API ls_status ls_group_split(ls_group *parent, int color, int key, const char *name,
                                ls_group **out);

/* Sets how many parts (channels) of one operation between hosts are in flight at the same time, 1
 * to 4, each with its own memory. Results do not change by a bit. Applies to operations that start
 * later; the default is 1, or LOCKSTEP_CHANNELS. Collective: all ranks pass the same number. */
LS_API ls_status ls_group_set_channels(ls_group *group, int channels);

/* Which algorithms the group's operations use by size, a line an operation: "all_reduce
 * 0-64Ki:root, 64Ki-:direct", terminated and cut to `bytes`. Groups with ranks on several hosts
 * choose by the times that `lockstep tune` keeps in LOCKSTEP_TUNE_FILE of rank 0, else by default
 * figures of the cost model; "" for other groups, whose choice needs no timing. Sums keep their
 * association and so their bits. Local call. LOCKSTEP_TUNE=off keeps the built-in choice;
 * LOCKSTEP_ALGORITHM="all_reduce=0-4k:root,4k-:direct;broadcast=chain" asks for algorithms by size. */
LS_API ls_status ls_group_get_tuning(ls_group *group, char *out, size_t bytes);

/* As ls_group_new, but collective over those ranks only, of which this must be one; others do not
 * call it (MPI_Comm_create_group; new_group with use_local_synchronization). Costs two messages a
 * rank through the first. */
LS_API ls_status ls_group_new_among(ls_group *parent, const int *ranks, int count, const char *name,
                                    ls_group **out);

/* One handle over `count` groups of the same ranks in the same order, such as duplicates:
 * collective k of the handle runs on groups[k % count], so several are in flight at once without
 * waiting for each other (Li et al. 2020, section 3.3). Letters go over groups[0]; an abort reaches
 * them all. The groups are borrowed: free the handle first, with ls_group_free, when its operations
 * have ended. Local call; every rank must make it with the same groups. */
LS_API ls_status ls_group_round_robin(ls_group *const *groups, int count, const char *name,
                                      ls_group **out);

/* Frees the group after its operations ended. Collective. NULL is allowed. */
LS_API ls_status ls_group_free(ls_group *group);

/* Fails the group on every member with LS_ERR_ABORTED and `why`. Local call, remote effect. */
LS_API ls_status ls_group_abort(ls_group *group, const char *why);

/* LS_OK, or the first cause with which the group failed (ls_error_message is set to its text). */
LS_API ls_status ls_group_status(ls_group *group);

/* Memory that peers on this host can read in place: operations on it copy nothing. 64-byte aligned,
 * zeroed. Local call. Free with ls_group_dealloc; after an abort it is reused only once no live
 * peer can still touch it. */
LS_API ls_status ls_group_alloc(ls_group *group, size_t bytes, void **out);
LS_API ls_status ls_group_dealloc(ls_group *group, void *memory);

/* ---- operations --------------------------------------------------------------------------- */

typedef struct ls_collective_options {
    size_t size;
    const char
        *tag; /* what this is, for reports and comparison ("bucket 3: fc1.weight …"); copied */
    int64_t timeout_ms; /* 0: the runtime's default */
    ls_stream *stream;  /* NULL: host */
    double divisor;     /* SUM only: divide the sum once by this; 0: do not. Ranks must agree */
    /* NULL: chosen among those that keep the association of sums. Or its name: "direct" for all,
     * "one_shot" for reductions of little data, "ring";
     *   all_reduce      "recursive_doubling", "halving_doubling", "root", "full_exchange",
     *                   "tree_stages", "double_tree", "hierarchical"
     *   reduce_scatter  "recursive_halving", "pairwise"
     *   all_gather      "recursive_doubling", "bruck"
     *   all_to_all      "pairwise", "bruck"; scans: "recursive_doubling"
     *   broadcast       "binomial", "scatter_all_gather", "chain"
     *   reduce, gather, scatter  "binomial"
     * Ranks must agree. Sums by "ring", "double_tree" and, where hosts have different numbers of
     * ranks, "hierarchical" have the same bytes on every rank, but not those of the other
     * algorithms; LS_ERR_INVALID lists the names of an operation. Costs: docs/algorithms.md. */
    const char *algorithm;
    double factor; /* PREMUL_SUM only: this rank's. Default 1, which LS_OPTIONS sets. An all_reduce
                      multiplies its output at the call; others copy their input */
} ls_collective_options;
#define LS_DEFAULTS_ls_collective_options .factor = 1,
LS_DEFAULTS_FUNCTION(collective)

/* *out becomes an operator of this rank that applies `fn` (MPI_Op_create), for every operation that
 * reduces and every dtype. Ranks that use it together must give it the same name, 1 to 23 bytes,
 * copied: operators are compared by name, and only programs that keep the order of ranks are
 * admitted. `fn` and `arg` must stay good until the operations that use them have ended. At most 64
 * at a time. Local call. Free with ls_reduce_op_free, which operations under way survive. */
LS_API ls_status ls_reduce_op_new(ls_reduce_fn fn, void *arg, const char *name, ls_reduce_op *out);
LS_API ls_status ls_reduce_op_free(ls_reduce_op op);

/* Reports from within an operator's `fn` that it cannot combine these values. The group of the
 * operation fails on every member with LS_ERR_ABORTED, the operator's name and `why` (copied), and
 * no rank gets a result made from `into`; `fn` still has to return. LS_ERR_STATE outside `fn`. */
LS_API ls_status ls_reduce_op_fail(const char *why);

/* out[count] becomes the reduction of in[count] over ranks (MPI_Allreduce, ncclAllReduce). In place
 * when in == out. Apart, programs read `in` and write `out` without a further pass, so `in` must
 * stay as it is until the operation has ended. */
LS_API ls_status ls_all_reduce(ls_group *group, const void *in, void *out, int64_t count,
                               ls_dtype dtype, ls_reduce_op op,
                               const ls_collective_options *options, ls_work **work);

/* out[count] becomes block `rank` of the reduction of in[size*count] (MPI_Reduce_scatter_block).
 * In place when out == in + rank*count elements; `in` is left unspecified then. */
LS_API ls_status ls_reduce_scatter(ls_group *group, const void *in, void *out, int64_t count,
                                   ls_dtype dtype, ls_reduce_op op,
                                   const ls_collective_options *options, ls_work **work);

/* out[size*count] becomes the blocks in[count] of all ranks in rank order (MPI_Allgather). In place
 * when in == out + rank*count elements. */
LS_API ls_status ls_all_gather(ls_group *group, const void *in, void *out, int64_t count,
                               ls_dtype dtype, const ls_collective_options *options,
                               ls_work **work);

/* buf[count] of `root` is copied to every rank (MPI_Bcast). */
LS_API ls_status ls_broadcast(ls_group *group, void *buf, int64_t count, ls_dtype dtype, int root,
                              const ls_collective_options *options, ls_work **work);

/* out[count] of `root` becomes the reduction of in[count] over ranks, with the bytes all_reduce
 * would give it (MPI_Reduce). In place on the root when in == out. Elsewhere `out` is not used and
 * may be NULL, and the call may return before the root has the result. */
LS_API ls_status ls_reduce(ls_group *group, const void *in, void *out, int64_t count,
                           ls_dtype dtype, ls_reduce_op op, int root,
                           const ls_collective_options *options, ls_work **work);

/* out[size*count] of `root` becomes the blocks in[count] of all ranks in rank order (MPI_Gather).
 * In place on the root when in == out + root*count elements. Elsewhere `out` is not used and may be
 * NULL. */
LS_API ls_status ls_gather(ls_group *group, const void *in, void *out, int64_t count,
                           ls_dtype dtype, int root, const ls_collective_options *options,
                           ls_work **work);

/* out[count] becomes block `rank` of in[size*count] of `root` (MPI_Scatter). In place on the root
 * when out == in + root*count elements. Elsewhere `in` is not used and may be NULL. */
LS_API ls_status ls_scatter(ls_group *group, const void *in, void *out, int64_t count,
                            ls_dtype dtype, int root, const ls_collective_options *options,
                            ls_work **work);

/* Block j of in[size*count] becomes block `rank` of rank j's out[size*count] (MPI_Alltoall). In
 * place when in == out. */
LS_API ls_status ls_all_to_all(ls_group *group, const void *in, void *out, int64_t count,
                               ls_dtype dtype, const ls_collective_options *options,
                               ls_work **work);

/* The same with blocks of unequal lengths. Counts and offsets are in elements, copied; offsets
 * NULL: blocks lie one after the other. Blocks of no elements are fine. Where every rank gives all
 * counts they are compared before a number is combined; where only the two ends of a block know its
 * length, the receiver compares before it uses a byte. A difference is LS_ERR_MISMATCH, naming the
 * entry and both sides; a rank whose sends had already completed may see the error on its next
 * call. */

/* MPI_Alltoallv: in_counts[j] elements from in + in_offsets[j] go to rank j, where they become
 * out_counts[rank] elements at out_offsets[rank]. All four are [size]. In place when in == out,
 * with equal counts and offsets. */
LS_API ls_status ls_all_to_all_v(ls_group *group, const void *in, const int64_t *in_counts,
                                 const int64_t *in_offsets, void *out, const int64_t *out_counts,
                                 const int64_t *out_offsets, ls_dtype dtype,
                                 const ls_collective_options *options, ls_work **work);

/* MPI_Allgatherv: counts[size], the same on all ranks; count == counts[rank]. Offsets may differ.
 * In place when in == out + offsets[rank] elements. */
LS_API ls_status ls_all_gather_v(ls_group *group, const void *in, int64_t count, void *out,
                                 const int64_t *counts, const int64_t *offsets, ls_dtype dtype,
                                 const ls_collective_options *options, ls_work **work);

/* MPI_Reduce_scatter: out[counts[rank]]; block r of in lies at offsets[r]; counts as above. In
 * place when out == in + offsets[rank] elements; `in` is left unspecified then. */
LS_API ls_status ls_reduce_scatter_v(ls_group *group, const void *in, const int64_t *counts,
                                     const int64_t *offsets, void *out, ls_dtype dtype,
                                     ls_reduce_op op, const ls_collective_options *options,
                                     ls_work **work);

/* MPI_Gatherv: out, counts[size] and offsets are used on the root only. In place on the root when
 * in == out + offsets[root] elements. */
LS_API ls_status ls_gather_v(ls_group *group, const void *in, int64_t count, void *out,
                             const int64_t *counts, const int64_t *offsets, ls_dtype dtype,
                             int root, const ls_collective_options *options, ls_work **work);

/* MPI_Scatterv: in, counts[size] and offsets are used on the root only. In place on the root when
 * out == in + offsets[root] elements. */
LS_API ls_status ls_scatter_v(ls_group *group, const void *in, const int64_t *counts,
                              const int64_t *offsets, void *out, int64_t count, ls_dtype dtype,
                              int root, const ls_collective_options *options, ls_work **work);

/* out[count] of rank r becomes the reduction of in[count] of ranks 0 … r (MPI_Scan), in the
 * association of sums that these r+1 ranks would have among themselves; so the last rank gets the
 * bytes of all_reduce. In place when in == out. Not LS_AVG. */
LS_API ls_status ls_scan(ls_group *group, const void *in, void *out, int64_t count, ls_dtype dtype,
                         ls_reduce_op op, const ls_collective_options *options, ls_work **work);

/* The same of ranks 0 … r-1 (MPI_Exscan). Rank 0's `out` is left as it is, and may be NULL. */
LS_API ls_status ls_exscan(ls_group *group, const void *in, void *out, int64_t count,
                           ls_dtype dtype, ls_reduce_op op, const ls_collective_options *options,
                           ls_work **work);

/* Returns when every rank has called it (MPI_Barrier). */
LS_API ls_status ls_barrier(ls_group *group, const ls_collective_options *options, ls_work **work);

/* The same, blocking; when timeout_ms (0: the default) is over on one rank, the group fails with
 * LS_ERR_TIMEOUT on all, and the text names *all* ranks that had not come
 * (torch.distributed.monitored_barrier). */
LS_API ls_status ls_monitored_barrier(ls_group *group, int64_t timeout_ms,
                                      const ls_collective_options *options);

/* Whether any rank of `group` was asked to stop (ls_stop_requested), the same answer on all: for
 * loops without a reducer. Collective: an all-reduce of 4 bytes. */
LS_API ls_status ls_stop_agree(ls_group *group, bool *stop);

/* Sends buf[count] to `peer`; matches its ls_recv with the same `tag`, in order (MPI_Send). Any
 * number may be in flight. tag >= 0. */
LS_API ls_status ls_send(ls_group *group, const void *buf, int64_t count, ls_dtype dtype, int peer,
                         int tag, const ls_collective_options *options, ls_work **work);

/* Receives exactly count elements; another count or dtype is LS_ERR_MISMATCH on both sides. */
LS_API ls_status ls_recv(ls_group *group, void *buf, int64_t count, ls_dtype dtype, int peer,
                         int tag, const ls_collective_options *options, ls_work **work);

/* Receives the first message with this tag from any rank (MPI_ANY_SOURCE). Messages of one pair
 * match in order; of several that have arrived the earliest is taken. Pass LS_ANY_SOURCE as `peer`
 * of ls_recv, where ls_work_source returns the sender, or make the blocking call, with the sender
 * in *source (NULL: not wanted). */
#define LS_ANY_SOURCE (-1)
LS_API ls_status ls_recv_any(ls_group *group, void *buf, int64_t count, ls_dtype dtype, int tag,
                             const ls_collective_options *options, int *source);

/* ---- many buffers, one operation ----------------------------------------------------------- */

/* ls_all_reduce or ls_broadcast of bufs[i][counts[i]] for i in 0 … n-1, as one operation (a group
 * call of NCCL, all_reduce_coalesced of PyTorch). Every rank gives the same counts. The lists are
 * copied. Buffers are packed into memory that the group keeps for the next call, as large as all of
 * them; buffers that lie one behind the other are used where they are. */
LS_API ls_status ls_all_reduce_many(ls_group *group, void *const *bufs, const int64_t *counts,
                                    int n, ls_dtype dtype, ls_reduce_op op,
                                    const ls_collective_options *options, ls_work **work);
LS_API ls_status ls_broadcast_many(ls_group *group, void *const *bufs, const int64_t *counts, int n,
                                   ls_dtype dtype, int root, const ls_collective_options *options,
                                   ls_work **work);

/* ---- objects: bytes of any length ---------------------------------------------------------- */

/* Lengths may differ from rank to rank and only the giver knows them (broadcast_object_list and its
 * kin in torch.distributed). Blocking. What comes back is new memory, not NULL even for length 0:
 * free it with ls_bytes_free. On an error nothing is returned. A rank that has no memory for what
 * comes fails the group with LS_ERR_MEMORY. Short objects (504 bytes) take one small operation,
 * longer ones a second, without a copy. */

typedef struct ls_bytes {
    void *data;
    size_t length;
} ls_bytes;

/* Root: gives *bytes and *length, and they stay its own. Others: get new memory in *bytes. */
LS_API ls_status ls_broadcast_bytes(ls_group *group, void **bytes, size_t *length, int root,
                                    const ls_collective_options *options);

/* *out becomes the list [size] of what the ranks gave, in rank order; one ls_bytes_free(*out) frees
 * it all. */
LS_API ls_status ls_all_gather_bytes(ls_group *group, const void *bytes, size_t length,
                                     const ls_collective_options *options, ls_bytes **out);

/* The same on the root; elsewhere *out = NULL. */
LS_API ls_status ls_gather_bytes(ls_group *group, const void *bytes, size_t length, int root,
                                 const ls_collective_options *options, ls_bytes **out);

/* in[size] of the root (elsewhere not used): rank r gets new memory with in[r]. */
LS_API ls_status ls_scatter_bytes(ls_group *group, const ls_bytes *in, int root,
                                  const ls_collective_options *options, void **bytes,
                                  size_t *length);

/* ---- work --------------------------------------------------------------------------------- */

/* Waits for the operation, returns its status and releases the handle; call once per handle. */
LS_API ls_status ls_work_wait(ls_work *work);

/* LS_IN_PROGRESS, or the operation's status; does not release the handle. */
LS_API ls_status ls_work_test(ls_work *work);

/* The rank in its group from which a receive that has ended well came; LS_ANY_SOURCE before, or of
 * another operation. Ask before ls_work_wait, which releases the handle. */
LS_API int ls_work_source(const ls_work *work);

/* Waits for at most this time, 0 or more. LS_IN_PROGRESS when it is over: the handle lives on.
 * Otherwise as ls_work_wait, and the handle is released. */
LS_API ls_status ls_work_wait_for(ls_work *work, int64_t timeout_ms);

/* Fails the operation's *group* with LS_ERR_ABORTED and `why`, on every member: an operation cannot
 * be taken back alone, since peers count on it. The handle must still be waited for. Nothing
 * happens when the operation has ended before. */
LS_API ls_status ls_work_abort(ls_work *work, const char *why);

/* Has `done` called with the operation's status once it has ended: at once if it has, else before
 * any wait for this handle returns, on whatever thread moves operations on. It may start operations
 * but not wait for any (LS_ERR_STATE), nor use this handle, and must be short. Once per handle
 * (LS_ERR_STATE). The handle must still be waited for. */
LS_API ls_status ls_work_on_done(ls_work *work, void (*done)(void *arg, ls_status status),
                                 void *arg);

/* ---- statistics --------------------------------------------------------------------------- */

/* The engine's own counts since the group was made, including its measurements of links between
 * hosts (LOCKSTEP_TUNE). A message is one step that moves data between two ranks; reads and writes
 * of a peer's buffer in shared memory count as one each. */
typedef struct ls_counters {
    size_t size; /* set to sizeof before the call */
    uint64_t operations;
    uint64_t messages;
    uint64_t bytes_sent;     /* bytes this rank wrote to or passed to peers */
    uint64_t bytes_received; /* bytes this rank read or got from peers */
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
