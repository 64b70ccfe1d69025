/* SPDX-License-Identifier: Apache-2.0 */
/* The reducer's calls for DistributedDataParallel beyond the public ones: ddp knows which gradients
 * are present, and can move them to other memory. */
#ifndef LS_REDUCE_REDUCER_H
#define LS_REDUCE_REDUCER_H

#include <lockstep/reducer.h>

/* The caller overwrites a gradient that is absent instead of adding to it, so absent ones need no
 * zeroing. Set once, before the first backward. */
void ls__reducer_set_overwrites(ls_reducer *r);

/* ls_reducer_begin; an error does not name the caller's line. */
ls_status ls__reducer_begin(ls_reducer *r, const ls_reducer_begin_options *options);

/* Counts a micro-batch of this weight (1 where backwards are plain) that reached no gradient, in
 * place of a local backward. The step's last micro-batch has one in any case. */
void ls__reducer_count_idle(ls_reducer *r, double weight);

/* The group of its operations, a duplicate of the user's, whose order of operations is the
 * reducer's: buckets may be launched from ls_reducer_begin to ls_reducer_wait. */
ls_group *ls__reducer_group(const ls_reducer *r);

/* The lowest rank that had data in the last synchronised backward; 0 before the first one, and when
 * all ranks had joined. */
int ls__reducer_first_live(const ls_reducer *r);

/* Whether its ranks agree on settings, as of the last exchange; Note [Agreement]. */
bool ls__reducer_agrees(const ls_reducer *r);

/* Whether the next backward finds an average in the place of this gradient, keeps it and clears the
 * place. */
bool ls__reducer_sets_aside(const ls_reducer *r, int param);

/* Whether a gradient was accumulated and not reduced. ls__reducer_scale_local multiplies all such,
 * in buckets on the host, by `factor`. */
bool ls__reducer_is_local(const ls_reducer *r, int param);
void ls__reducer_scale_local(ls_reducer *r, double factor);
/* The sum of the weights by which they were multiplied; 0: they are plain. */
double ls__reducer_weights(const ls_reducer *r);
/* Says in the following control exchanges whether the replicas may differ; ranks must agree. */
void ls__reducer_set_differ(ls_reducer *r, bool differ);

/* The groups over which gradients are added up, as duplicates: 0 has all ranks of the reducer. */
#define LS__DOMAINS_MAX 64 /* different reduce groups, and batch groups, of one reducer */
int ls__reducer_domains(const ls_reducer *r);
ls_group *ls__reducer_domain_group(const ls_reducer *r, int domain);
int ls__reducer_param_domain(const ls_reducer *r, int param);

/* Compares the parameters of all ranks in the next synchronised backward: hashes[count], which must
 * live until it has ended; NULL: this rank has not seen all of them, and no rank compares.
 * ls_reducer_wait returns LS_ERR_MISMATCH when they differ. */
void ls__reducer_show_hashes(ls_reducer *r, const uint64_t *hashes);

/* The averages of a bucket end on one rank each (ZeRO, Rajbhandari et al. 2020, section 5): every
 * rank gets those of its part, and what else lies in the gradients is undefined. ls__reducer_divide
 * says, after ls_reducer_new, that this will be so: no hook is taken; `release`: memory of the rest
 * is given back to the system as soon as a bucket is reduced; `within`: it is so among the ranks of
 * this group, and each other group of the same size has the same averages; borrowed for the call;
 * NULL: among all. ls__reducer_scatter: it is so from the next backward on. Both collective. */
ls_status ls__reducer_divide(ls_reducer *r, bool release, ls_group *within);
ls_status ls__reducer_scatter(ls_reducer *r);
/* Elements [*from, *from + *count) of a parameter's gradient have averages on this rank. */
void ls__reducer_own(const ls_reducer *r, int param, int64_t *from, int64_t *count);
/* With `release`, memory of buckets passes from one to the next (pool.c). Before the gradient of an
 * absent parameter is written, on the thread of backward; `moved` is called with the place of each
 * gradient that has another one from then on. */
ls_status ls__reducer_write(ls_reducer *r, int param);
void ls__reducer_on_moved(ls_reducer *r, void (*moved)(void *arg, int param, void *memory),
                          void *arg);
/* A block for the parameters of a bucket; NULL: they are to be gathered in their own memory. */
ls_status ls__reducer_block_take(ls_reducer *r, int bucket, char **out);
void ls__reducer_block_give(ls_reducer *r, int bucket, const char *block);
/* A bucket in the order of launching: each rank of `group` has an equal part of it. */
typedef struct ls__bucket_place {
    int region;
    size_t offset, bytes;
    ls_dtype dtype;
    ls_group *group; /* among whose ranks it is divided */
    const char *tag;
} ls__bucket_place;
int ls__reducer_bucket_count(const ls_reducer *r);
ls__bucket_place ls__reducer_bucket_place(const ls_reducer *r, int bucket);
int ls__reducer_bucket_of(const ls_reducer *r, int param);
/* In a backward that synchronises, on its thread: all gradients of the bucket are final. */
bool ls__reducer_bucket_is_ready(const ls_reducer *r, int bucket);
/* Before any gradient of it is final: this backward reaches all parameters of the bucket. */
bool ls__reducer_bucket_is_reached(const ls_reducer *r, int bucket);
/* Another duplicate of the group among whose ranks buckets are divided. It fails with the
 * reducer's, and is for operations in an order of their own; borrowed. NULL in a group of one.
 * Collective. */
ls_status ls__reducer_second_group(ls_reducer *r, ls_group **out);

/* Called for each bucket whose averages are in place, in the order of launching, by the thread that
 * calls ls__reducer_poll, which does not wait, and ls_reducer_wait; both return its failure. */
typedef ls_status (*ls__reduced_fn)(void *arg, const int *params, int count);
void ls__reducer_on_reduced(ls_reducer *r, ls__reduced_fn reduced, void *arg); /* NULL: none */
ls_status ls__reducer_poll(ls_reducer *r);

/* ---- record.c, captured.c: backwards in a captured step (lockstep/captured.h) ---------------- */

/* In a run of such a step, what a rank wants to do, and what all of them do. */
typedef struct ls__reducer_vote {
    int32_t act;       /* the least of all ranks' */
    int32_t refuses;   /* 0: this rank can record it. Of all: the first that cannot, from 1 */
    uint64_t step;     /* which captured step it is, of those over this reducer */
    uint64_t recorded; /* what this rank would replay; 0: nothing. Of all: UINT64_MAX if they
                          differ */
} ls__reducer_vote;

/* What was recorded. */
typedef struct ls__reducer_recorded {
    uint64_t step;
    uint32_t operations;
    int32_t failed;  /* 0: it can be replayed. Of all: the first rank where it cannot, from 1 */
    uint64_t digest; /* of their sizes and types */
} ls__reducer_recorded;

/* Why backwards that synchronise cannot be recorded; NULL: they can. */
const char *ls__reducer_obstacle(const ls_reducer *r);
/* Whether the next backward is recorded: its operations go into the capture of its stream. */
void ls__reducer_record(ls_reducer *r, bool records);
/* Nothing has been recorded so far. */
void ls__reducer_record_anew(ls_reducer *r);
/* Operations that this thread has begun for the reducer while it watched or recorded a step. */
uint64_t ls__reducer_noticed(const ls_reducer *r);
/* Collective. A run begins, and after one that records it has ended. LS_ERR_MISMATCH: ranks are in
 * different steps, or have recorded different operations, which all of them find. */
ls_status ls__reducer_vote_run(ls_reducer *r, ls__reducer_vote *vote);
ls_status ls__reducer_vote_recorded(ls_reducer *r, ls__reducer_recorded *recorded);
/* What this rank has recorded since ls__reducer_record_anew. */
void ls__reducer_get_recorded(const ls_reducer *r, ls__reducer_recorded *out);
/* Records that *most becomes the largest of all ranks', in the order of the stream. */
ls_status ls__reducer_record_max(ls_reducer *r, int64_t *most, ls_stream *stream);
/* Collective, after the device was given a replay in this stream: its end is watched as that of an
 * operation. */
ls_status ls__reducer_replayed(ls_reducer *r, ls_stream *stream, uint64_t step, uint64_t recorded);
/* One more synchronised backward, which is a replay. */
void ls__reducer_count_replay(ls_reducer *r);
/* The failure of the reducer's groups. */
ls_status ls__reducer_status(const ls_reducer *r);

/* Fails the reducer's group on all ranks with this cause. */
void ls__reducer_abort(ls_reducer *r, ls_status status, const char *message);

/* The figures of the last synchronised backward as they are kept, for each step:
 * ls_reducer_get_stats also adds up bytes and names a rank. */
const ls_reducer_stats *ls__reducer_figures(const ls_reducer *r);

/* Whether no synchronising backward is under way. */
bool ls__reducer_is_idle(ls_reducer *r);

/* The control exchange ended (control.c). */
void ls__reducer_control_done(void *reducer, ls_status status);

#endif
