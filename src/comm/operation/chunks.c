/* SPDX-License-Identifier: Apache-2.0 */
/* Cutting an operation's count into slices and a slice into chunks.
 *
 *     all_reduce, broadcast,   a slice of `count` elements is cut into equal chunks on cache lines
 *     reduce
 *     reduce_scatter, scatter  chunk c is block c; a slice is the same part of every block
 *     all_gather, gather,
 *     all_to_all
 *
 * In the v-variants a slice is the same part of every block as far as that reaches. By messages,
 * where not all ranks know all lengths, there is one slice only.
 *
 * STAGE holds one slice. Where blocks are gathered a rank stages its own block only; otherwise the
 * chunks lie one behind the other, each starting on a cache line.
 */
#include "base/size.h"
#include "comm/core/group.h"
#include "comm/memory/control.h"
#include "comm/operation/exec.h"
#include "comm/operation/v_counts.h"

static bool has_blocks(ls__operation operation)
{
    return ls__operation_has_blocks(operation, true) || ls__operation_has_blocks(operation, false);
}

static bool is_gather(ls__operation operation)
{
    return ls__operation_is_short(operation, true);
}

/* Elements of a cache line: a power of two, since elements have 1, 2, 4 or 8 bytes. */
static int64_t per_line(const ls_work *work)
{
    return LS__CACHE_LINE >> __builtin_ctzll(work->element);
}

/* n / by, where by is mostly 1: a division takes some 5 ns. */
static int64_t divide(int64_t n, int64_t by)
{
    return by == 1 ? n : n / by;
}

int64_t ls__chunk_quantum(const ls_work *work, const ls__program *program, int64_t count)
{
    const int64_t part =
        has_blocks(work->operation) ? count : divide(count + program->chunks - 1, program->chunks);
    return (int64_t)ls__round_up((size_t)part, (size_t)per_line(work));
}

/* The largest slice whose staged chunks fit into `bytes`. Where blocks are scattered, every one of
 * them must fit into its part of the bytes. */
static int64_t slice_max(const ls_work *work, const ls__program *program, size_t bytes)
{
    const int64_t chunks = is_gather(work->operation) ? 1 : program->chunks;
    /* Programs that receive more than one buffer into SCRATCH have shorter slices. */
    const bool hoards = program->scratch_slots > program->chunks + 1;
    const int64_t parts = hoards ? program->scratch_slots : chunks;
    const int64_t lines = divide((int64_t)(bytes / LS__CACHE_LINE), parts);
    const int64_t quantum = lines * per_line(work);
    return has_blocks(work->operation) ? quantum : quantum * chunks;
}

/* Chunks worth a message each, within bounds that keep the scratch small. */
static size_t message_slice(const ls__program *program)
{
    const size_t wanted = (size_t)program->chunks * LS__MESSAGE_CHUNK_BYTES;
    return wanted < LS__MESSAGE_SLICE_BYTES ? LS__MESSAGE_SLICE_BYTES
           : wanted > LS__MESSAGE_SLICE_MAX ? LS__MESSAGE_SLICE_MAX
                                            : wanted;
}

/* Note [Slices]: whether the root may stay ahead of its peers. The same on all ranks. */
static bool runs_ahead(const ls_work *work)
{
    return work->operation == LS__OP_BROADCAST && !ls__is_crowded(work->group->comm);
}

/* Note [Slices]: whether a slice takes half of a slot, since twice as many slots are in use. */
static bool takes_halves(const ls_work *work, const ls__program *program)
{
    return runs_ahead(work) || ls__changes_places(work->group, program);
}

/* Registered operations are not cut: every rank reads its peers in place. */
int64_t ls__slice_of(const ls_work *work, const ls__program *program)
{
    if (ls__operation_is_v(work->operation) && !ls__operation_counts_known(work->operation) &&
        !work->has_layout) {
        return work->count; /* the ends of a block must agree on its slices */
    }
    switch (work->path) {
    case LS__PATH_STAGED:
        return slice_max(work, program, LS__SLICE_BYTES / (takes_halves(work, program) ? 2 : 1));
    case LS__PATH_MESSAGES:
        return slice_max(work, program, message_slice(program));
    default:
        return work->count;
    }
}

/* Note [Slices]. */
static int stage_slots(const ls_work *work, const ls__program *program)
{
    const bool many = work->count > 2 * ls__slice_of(work, program);
    return many && runs_ahead(work) ? LS__SLICE_SLOTS : 2;
}

int ls__slices_at_once(const ls_work *work, const ls__program *program)
{
    switch (work->path) {
    case LS__PATH_STAGED:
        return stage_slots(work, program);
    case LS__PATH_MESSAGES:
        return work->channels > program->overlap ? work->channels : program->overlap;
    default:
        return 1;
    }
}

/* Grows and never shrinks, so a steady state allocates nothing. */
bool ls__scratch_make(ls_group *group, const ls__program *program, int64_t quantum)
{
    ls__exec *exec = group->exec;
    const ls__env *env = group->comm->env;
    const size_t scratch = (size_t)program->scratch_slots * (size_t)quantum * exec->scratch_element;
    exec->scratch_each = ls__round_up(scratch, LS__CACHE_LINE);
    const size_t bytes = exec->scratch_each * (size_t)exec->runs;
    if (bytes <= exec->scratch_bytes) {
        return true;
    }
    unsigned char *grown = env->allocate(env, bytes);
    if (grown == NULL) {
        return false;
    }
    if (exec->scratch != NULL) {
        env->release(env, exec->scratch, exec->scratch_bytes);
    }
    exec->scratch = grown;
    exec->scratch_bytes = bytes;
    return true;
}

/* v-variants: elements of the block that the ref lies in. A peer's is as long as the own one that
 * it becomes. In SCRATCH slot p of all_to_all_v holds what came from rank p. */
static int64_t block_of(const ls_work *work, const ls__program *program, ls__ref ref)
{
    const bool reduces = work->operation == LS__OP_REDUCE_SCATTER_V;
    if (ref.buffer == LS__BUFFER_OUTPUT) {
        return work->count_of[1][ref.chunk];
    }
    if (ref.buffer != LS__BUFFER_SCRATCH) {
        const bool own = ref.rank == program->rank || reduces;
        const bool from_rank = work->operation == LS__OP_ALL_TO_ALL_V;
        return own ? work->count_of[0][ref.chunk]
                   : work->count_of[1][from_rank ? ref.rank : ref.chunk];
    }
    return work->operation == LS__OP_ALL_TO_ALL_V ? work->count_of[1][ref.chunk / program->chunks]
                                                  : work->count_of[0][ref.chunk % program->chunks];
}

/* Of a block of the v-variants, from the start of the buffer. */
static int64_t block_offset(const ls_work *work, const ls__run *run, ls__ref ref)
{
    if (ref.rank != run->program->rank) {
        return ls__v_layout_offset(work->group, work, ref.rank, ref.chunk);
    }
    return work->offset_of[ref.buffer == LS__BUFFER_OUTPUT][ref.chunk];
}

/* Offset in elements, from the start of the user's buffer, of what the ref names in this slice. */
static int64_t user_offset(const ls_work *work, const ls__run *run, ls__ref ref)
{
    const int chunk = ref.chunk;
    const bool whole = ls__operation_has_blocks(work->operation, ref.buffer == LS__BUFFER_INPUT);
    if (work->count_of[0] != NULL) {
        return run->start + (whole ? block_offset(work, run, ref) : 0);
    }
    if (has_blocks(work->operation)) {
        return run->start + (whole ? chunk * work->count : 0);
    }
    const int64_t offset = chunk * run->quantum;
    return run->start + (offset < run->count ? offset : run->count);
}

/* Elements of a chunk of the slice; the last ones may be shorter, or empty. */
static int64_t chunk_count(const ls_work *work, const ls__run *run, int chunk)
{
    if (has_blocks(work->operation)) {
        return run->count;
    }
    const int64_t left = run->count - chunk * run->quantum;
    return left <= 0 ? 0 : left < run->quantum ? left : run->quantum;
}

/* `base` may be NULL where there are no elements. */
static unsigned char *at(unsigned char *base, int64_t elements, size_t element)
{
    return elements == 0 ? base : base + (size_t)elements * element;
}

/* Where ranks change places a slot holds one chunk, and each use of it is in the other heap: Note
 * [Changing places]. */
static unsigned char *stage_at(const ls__exec *exec, const ls__run *run, ls__ref ref)
{
    const ls_work *work = exec->work;
    const bool changes = ls__changes_places(work->group, run->program);
    const bool other = changes && run->slice / (uint64_t)exec->runs % 2 != 0;
    unsigned char *slot = exec->stage[other ? 1 - ref.rank : ref.rank] +
                          (size_t)ls__stage_slot(exec, run->slice) * LS__SLICE_BYTES;
    const bool first = changes || is_gather(work->operation);
    return at(slot, first ? 0 : ref.chunk * run->quantum, work->element);
}

unsigned char *ls__ref_at(const ls__exec *exec, const ls__run *run, ls__ref ref, int64_t *count)
{
    const ls_work *work = exec->work;
    const size_t element = work->element;
    *count = chunk_count(work, run, ref.chunk);
    if (work->count_of[0] != NULL) {
        const int64_t left = block_of(work, run->program, ref) - run->start;
        *count = left <= 0 ? 0 : left < run->count ? left : run->count;
        if (*count == 0 && ref.buffer != LS__BUFFER_SCRATCH) {
            return exec->output[exec->work->group->rank]; /* any: it is not touched */
        }
    }
    if (work->path == LS__PATH_PACKED && ref.buffer == LS__BUFFER_STAGE) {
        ref.buffer =
            LS__BUFFER_INPUT; /* packed blocks are their own stage: Note [Published layouts] */
    }
    switch ((ls__program_buffer)ref.buffer) {
    case LS__BUFFER_INPUT:
        return at(exec->input[ref.rank], user_offset(work, run, ref), element);
    case LS__BUFFER_OUTPUT:
        return at(exec->output[ref.rank], user_offset(work, run, ref), element);
    case LS__BUFFER_STAGE:
        return stage_at(exec, run, ref);
    case LS__BUFFER_SCRATCH:
        if (work->count_of[0] == NULL) {
            *count = chunk_count(work, run, ref.chunk % run->program->chunks);
        }
        return at(exec->scratch + (size_t)run->slot * exec->scratch_each,
                  ref.chunk / run->program->chunks * run->quantum, exec->scratch_element);
    }
    return NULL;
}
