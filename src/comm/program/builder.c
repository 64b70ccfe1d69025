/* SPDX-License-Identifier: Apache-2.0 */
/* The builder: collects steps lane by lane and packs them into a program.
 *
 * Generators call it without checking any result; the first mistake (a rank that does not exist, a
 * chunk out of range, memory) is kept and returned by ls__builder_finish. A broadcast from rank 0
 * to rank 1:
 *
 *     ls__builder *b = ls__builder_new(spec, env, "pair");
 *     if (spec->rank == 0) {
 *         ls__builder_send(b, 0, ls__ref_of(LS__BUFFER_OUTPUT, 0, 0), 1);
 *     } else {
 *         ls__builder_recv(b, 0, ls__ref_of(LS__BUFFER_OUTPUT, 1, 0), 0);
 *     }
 *     return ls__builder_finish(b, true, out);
 *
 * Steps and refs are collected in an arena, each lane's steps in a list, because their numbers are
 * known only at the end; pack() then copies them into the two arrays of the program.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "base/assert.h"
#include "base/error.h"
#include "comm/program/program.h"

typedef struct pending pending; /* a step, and the next one of its lane */
struct pending {
    ls__step step;
    pending *next;
};

typedef struct ref_block ref_block; /* refs in the order in which they were added */
struct ref_block {
    const ls__ref *refs;
    int count;
    ref_block *next;
};

struct ls__builder {
    ls__program_spec spec;
    const ls__env *env;
    const char *algorithm;
    ls__arena arena;
    int chunks, scratch_slots, fences, step_count, ref_count;
    int overlap; /* slices at the same time */
    bool wide;   /* Note [Wide programs] */
    bool bound;  /* correct for spec.in_place only */
    struct {
        pending *first, *last;
        int count;
    } lane[LS__PROGRAM_LANES_MAX];
    ref_block *first_block, *last_block;
    ls_status status; /* of the first mistake */
    char message[256];
};

static void fail(ls__builder *b, ls_status status, const char *format, ...) LS__PRINTF(3, 4);
/* Keeps the first mistake; later ones are most often its consequences. */
static void fail(ls__builder *b, ls_status status, const char *format, ...)
{
    if (b->status != LS_OK) {
        return;
    }
    b->status = status;
    va_list args;
    va_start(args, format);
    (void)vsnprintf(b->message, sizeof b->message, format, args);
    va_end(args);
}

/* NULL: no memory, which ls__builder_finish reports; all functions accept NULL, so generators need
 * not check. */
ls__builder *ls__builder_new(const ls__program_spec *spec, const ls__env *env,
                             const char *algorithm)
{
    ls__builder *b = env->allocate(env, sizeof *b);
    if (b == NULL) {
        return NULL;
    }
    memset(b, 0, sizeof *b);
    b->spec = *spec;
    b->env = env;
    b->algorithm = algorithm;
    b->chunks = 1;
    ls__arena_init(&b->arena, env, (size_t)1 << 14);
    if (spec->size < 1 || spec->size > LS__PROGRAM_RANKS_MAX || spec->rank < 0 ||
        spec->rank >= spec->size || spec->root < 0 || spec->root >= spec->size) {
        fail(b, LS_ERR_INVALID, "rank %d and root %d of %d ranks: at most %d ranks, counted from 0",
             spec->rank, spec->root, spec->size, LS__PROGRAM_RANKS_MAX);
    }
    return b;
}

/* How many chunks the buffers have, and SCRATCH slots of one chunk each. Called before the first
 * step, since refs are checked against it. */
void ls__builder_chunks(ls__builder *b, int chunks, int scratch_slots)
{
    if (b == NULL) {
        return;
    }
    if (chunks < 1 || scratch_slots < 0) {
        fail(b, LS_ERR_INVALID, "%d chunks and %d scratch slots", chunks, scratch_slots);
    }
    b->chunks = chunks;
    b->scratch_slots = scratch_slots;
}

/* Note [Wide programs] in program.h. */
void ls__builder_wide(ls__builder *b)
{
    if (b != NULL) {
        b->wide = true;
    }
}

/* By messages only: in shared memory slices follow each other. */
void ls__builder_overlap(ls__builder *b, int slices)
{
    if (b != NULL) {
        b->overlap = slices;
    }
}

/* For generators that emit other steps in place than out of place. */
void ls__builder_binding(ls__builder *b)
{
    if (b != NULL) {
        b->bound = true;
    }
}

/* ---- steps -------------------------------------------------------------------------------- */

/* SCRATCH chunks are numbered slot * chunks + chunk. */
static int64_t chunk_limit(const ls__builder *b, ls__ref ref)
{
    return ref.buffer == LS__BUFFER_SCRATCH ? (int64_t)b->chunks * b->scratch_slots : b->chunks;
}

/* Only PEER_ steps may name memory of another rank, and never its SCRATCH, which is private. */
static void check_refs(ls__builder *b, const ls__ref *refs, int count, bool peers)
{
    for (int i = 0; i < count; i++) {
        const ls__ref ref = refs[i];
        if (ref.rank < 0 || ref.rank >= b->spec.size || ref.buffer > LS__BUFFER_SCRATCH) {
            fail(b, LS_ERR_INTERNAL, "a ref names buffer %d of rank %d of %d", ref.buffer, ref.rank,
                 b->spec.size);
        } else if (ref.chunk < 0 || ref.chunk >= chunk_limit(b, ref)) {
            fail(b, LS_ERR_INTERNAL, "a ref names chunk %d of %lld", ref.chunk,
                 (long long)chunk_limit(b, ref));
        } else if (ref.rank != b->spec.rank && (!peers || ref.buffer == LS__BUFFER_SCRATCH)) {
            fail(b, LS_ERR_INTERNAL, "a step of rank %d names memory of rank %d", b->spec.rank,
                 ref.rank);
        }
    }
}

/* Copies the refs and returns the index of the first one in the program. */
static int add_refs(ls__builder *b, const ls__ref *refs, int count)
{
    const int first = b->ref_count;
    if (count == 0) {
        return first;
    }
    ref_block *block = ls__arena_alloc(&b->arena, sizeof *block);
    ls__ref *copy = ls__arena_alloc(&b->arena, (size_t)count * sizeof *copy);
    if (block == NULL || copy == NULL) {
        fail(b, LS_ERR_MEMORY, "no memory for the steps");
        return first;
    }
    memcpy(copy, refs, (size_t)count * sizeof *copy);
    *block = (ref_block){copy, count, NULL};
    *(b->last_block ? &b->last_block->next : &b->first_block) = block;
    b->last_block = block;
    b->ref_count += count;
    return first;
}

/* The refs of a step: its destinations and its sources. */
typedef struct operands {
    const ls__ref *dst;
    int dst_count;
    const ls__ref *src;
    int src_count;
} operands;

/* Whether the step may touch memory of other ranks. */
static bool is_peer_kind(ls__step_kind kind)
{
    return kind == LS__STEP_PEER_COPY || kind == LS__STEP_PEER_REDUCE;
}

/* Appends one step to a lane and returns its index within the lane. After a mistake the program is
 * never used, so any index will do. */
static int add(ls__builder *b, int lane, ls__step_kind kind, int peer, const operands *o)
{
    if (b == NULL || lane < 0 || lane >= LS__PROGRAM_LANES_MAX) {
        if (b != NULL) {
            fail(b, LS_ERR_INTERNAL, "lane %d of %d", lane, LS__PROGRAM_LANES_MAX);
        }
        return 0;
    }
    check_refs(b, o->dst, o->dst_count, is_peer_kind(kind));
    check_refs(b, o->src, o->src_count, is_peer_kind(kind));
    pending *p = ls__arena_alloc(&b->arena, sizeof *p);
    if (p == NULL) {
        fail(b, LS_ERR_MEMORY, "no memory for the steps");
        return 0;
    }
    p->next = NULL;
    p->step = (ls__step){.kind = (uint8_t)kind,
                         .lane = (uint8_t)lane,
                         .peer = (int16_t)peer,
                         .wait_lane = -1,
                         .dst_count = o->dst_count,
                         .src_count = o->src_count,
                         .fence = -1};
    p->step.first_dst = add_refs(b, o->dst, o->dst_count);
    p->step.first_src = add_refs(b, o->src, o->src_count);
    *(b->lane[lane].last ? &b->lane[lane].last->next : &b->lane[lane].first) = p;
    b->lane[lane].last = p;
    b->step_count++;
    return b->lane[lane].count++;
}

/* A rank does not send messages to itself. */
static int add_message(ls__builder *b, int lane, ls__step_kind kind, int peer, const operands *o)
{
    if (b != NULL && (peer < 0 || peer >= b->spec.size || peer == b->spec.rank)) {
        fail(b, LS_ERR_INTERNAL, "rank %d of %d exchanges a message with rank %d", b->spec.rank,
             b->spec.size, peer);
    }
    return add(b, lane, kind, peer, o);
}

/* Waits until the transport has taken the message, which at capacity 0 means: until the receiver
 * has. */
int ls__builder_send(ls__builder *b, int lane, ls__ref src, int peer)
{
    return add_message(b, lane, LS__STEP_SEND, peer, &(operands){.src = &src, .src_count = 1});
}

/* Messages of one lane match the peer's sends on that lane in order. */
int ls__builder_recv(ls__builder *b, int lane, ls__ref dst, int peer)
{
    return add_message(b, lane, LS__STEP_RECV, peer, &(operands){.dst = &dst, .dst_count = 1});
}

/* In place, a copy from INPUT to OUTPUT is onto itself and costs nothing. */
int ls__builder_copy(ls__builder *b, int lane, ls__ref dst, ls__ref src)
{
    return add(b, lane, LS__STEP_COPY, -1,
               &(operands){.dst = &dst, .dst_count = 1, .src = &src, .src_count = 1});
}

/* The destination may be a peer's, too. */
int ls__builder_peer_copy(ls__builder *b, int lane, ls__ref dst, ls__ref src)
{
    if (b != NULL && dst.rank == b->spec.rank && src.rank == b->spec.rank) {
        fail(b, LS_ERR_INTERNAL, "peer_copy of rank %d names memory of no peer", b->spec.rank);
    }
    return add(b, lane, LS__STEP_PEER_COPY, -1,
               &(operands){.dst = &dst, .dst_count = 1, .src = &src, .src_count = 1});
}

/* Whether every ref names memory of this rank. */
static bool all_own(const ls__builder *b, const ls__ref *refs, int count)
{
    for (int i = 0; i < count; i++) {
        if (b != NULL && refs[i].rank != b->spec.rank) {
            return false;
        }
    }
    return true;
}

/* Chooses REDUCE or PEER_REDUCE itself, so generators need not know which ranks share memory with
 * which. */
int ls__builder_reduce(ls__builder *b, int lane, const ls__ref *dst, int dst_count,
                       const ls__ref *src, int src_count)
{
    const bool own = all_own(b, dst, dst_count) && all_own(b, src, src_count);
    if (b != NULL && (dst_count < 1 || src_count < 1)) {
        fail(b, LS_ERR_INTERNAL, "reduce of %d operands to %d places", src_count, dst_count);
    }
    return add(b, lane, own ? LS__STEP_REDUCE : LS__STEP_PEER_REDUCE, -1,
               &(operands){dst, dst_count, src, src_count});
}

/* Fences are numbered in the order in which they are added; all ranks must add equally many, in the
 * same order. */
int ls__builder_fence(ls__builder *b, int lane)
{
    const int index = add(b, lane, LS__STEP_FENCE, -1, &(operands){0});
    if (b != NULL && b->status == LS_OK) {
        b->lane[lane].last->step.fence = b->fences++;
    }
    return index;
}

/* A step that is not added yet may be named: the check comes at the end. */
void ls__builder_after(ls__builder *b, int lane, int other, int step)
{
    if (b == NULL || b->status != LS_OK) {
        return;
    }
    if (lane < 0 || lane >= LS__PROGRAM_LANES_MAX || b->lane[lane].last == NULL || other < 0 ||
        other >= LS__PROGRAM_LANES_MAX || other == lane || step < 0) {
        fail(b, LS_ERR_INTERNAL, "lane %d cannot wait for step %d of lane %d", lane, step, other);
        return;
    }
    b->lane[lane].last->step.wait_lane = (int16_t)other;
    b->lane[lane].last->step.wait_step = step;
}

/* ---- packing ------------------------------------------------------------------------------ */

/* Never of 0 bytes, so NULL always means that there is no memory. */
static void *allocate(ls__builder *b, size_t bytes)
{
    void *memory = b->env->allocate(b->env, bytes ? bytes : 1);
    if (memory == NULL) {
        fail(b, LS_ERR_MEMORY, "no memory for %zu bytes of steps", bytes);
    } else {
        memset(memory, 0, bytes);
    }
    return memory;
}

/* Moves the steps from their lanes and the refs from their blocks into two arrays. */
static void pack(const ls__builder *b, ls__program *p)
{
    int at = 0;
    p->lanes = 1; /* also of a program without a step */
    for (int lane = 0; lane < LS__PROGRAM_LANES_MAX; lane++) {
        p->lane_start[lane] = at;
        for (const pending *s = b->lane[lane].first; s != NULL; s = s->next) {
            p->steps[at++] = s->step;
            p->lanes = lane + 1;
        }
    }
    p->lane_start[LS__PROGRAM_LANES_MAX] = at;
    LS_ASSERT(at == p->step_count);
    at = 0;
    for (const ref_block *block = b->first_block; block != NULL; block = block->next) {
        memcpy(p->refs + at, block->refs, (size_t)block->count * sizeof *p->refs);
        at += block->count;
    }
    LS_ASSERT(at == p->ref_count);
}

/* Whether every step that is waited for exists. */
static void check_waits(ls__builder *b)
{
    for (int lane = 0; lane < LS__PROGRAM_LANES_MAX; lane++) {
        for (const pending *s = b->lane[lane].first; s != NULL; s = s->next) {
            if (s->step.wait_lane >= 0 && s->step.wait_step >= b->lane[s->step.wait_lane].count) {
                fail(b, LS_ERR_INTERNAL, "lane %d waits for step %d of lane %d, which has %d", lane,
                     s->step.wait_step, s->step.wait_lane, b->lane[s->step.wait_lane].count);
            }
        }
    }
}

/* NULL: a mistake is recorded in the builder. */
static ls__program *build(ls__builder *b, bool exact)
{
    ls__program *p = allocate(b, sizeof *p);
    if (p == NULL) {
        return NULL;
    }
    *p = (ls__program){.algorithm = b->algorithm,
                       .operation = b->spec.operation,
                       .memory = b->spec.memory,
                       .rank = b->spec.rank,
                       .size = b->spec.size,
                       .root = b->spec.root,
                       .exact = exact,
                       .wide = b->wide,
                       .fits = {!b->bound || !b->spec.in_place, !b->bound || b->spec.in_place},
                       .chunks = b->chunks,
                       .scratch_slots = b->scratch_slots,
                       .overlap = b->overlap > 1 ? b->overlap : 1,
                       .fences = b->fences,
                       .step_count = b->step_count,
                       .ref_count = b->ref_count,
                       .env = b->env};
    p->steps = allocate(b, (size_t)b->step_count * sizeof *p->steps);
    p->refs = allocate(b, (size_t)b->ref_count * sizeof *p->refs);
    if (p->steps == NULL || p->refs == NULL) {
        ls__program_free(p);
        return NULL;
    }
    pack(b, p);
    if (b->status == LS_OK && ls__program_find_eager_recvs(p) != LS_OK) {
        fail(b, LS_ERR_MEMORY, "no memory for the steps");
        ls__program_free(p);
        return NULL;
    }
    return p;
}

/* Frees the builder in any case. On failure *out is NULL and the error is set. */
ls_status ls__builder_finish(ls__builder *b, bool exact, ls__program **out)
{
    *out = NULL;
    if (b == NULL) {
        return ls__fail(LS_ERR_MEMORY, "no memory to build a collective's program");
    }
    check_waits(b);
    ls__program *p = b->status == LS_OK ? build(b, exact) : NULL;
    ls_status status = b->status;
    if (status != LS_OK) {
        (void)ls__fail(status, "program %s of %s: %s", b->algorithm,
                       ls__operation_name(b->spec.operation), b->message);
    }
    *out = p;
    ls__arena_fini(&b->arena);
    b->env->release(b->env, b, sizeof *b);
    return status;
}

/* NULL is allowed. The arrays were allocated with at least one byte. */
void ls__program_free(ls__program *p)
{
    if (p == NULL) {
        return;
    }
    const ls__env *env = p->env;
    const size_t step_bytes = (size_t)p->step_count * sizeof *p->steps;
    const size_t ref_bytes = (size_t)p->ref_count * sizeof *p->refs;
    if (p->steps != NULL) {
        env->release(env, p->steps, step_bytes ? step_bytes : 1);
    }
    if (p->refs != NULL) {
        env->release(env, p->refs, ref_bytes ? ref_bytes : 1);
    }
    env->release(env, p, sizeof *p);
}
