/* SPDX-License-Identifier: Apache-2.0 */
/* A collective is data (docs/design.md, D1).
 *
 * An algorithm is a generator: from the operation, the ranks and their hosts it emits, for one
 * rank, a *program*: a few lanes of ordered steps over chunks. A step starts when the step before
 * it in its lane is complete and, if it names one, when another lane has completed a given step.
 * One engine runs programs over any transport; the checker runs them symbolically; the cost of an
 * algorithm is counted from them. A program does not depend on the count: it is cached per
 * (algorithm, operation, size, rank, root) and bound to a chunk table at launch.
 *
 * Buffers. INPUT and OUTPUT are the user's (equal when in place); STAGE is a rank's slot of shared
 * memory that its peers on the host can read and write, SCRATCH private memory. Each is cut into
 * chunks; chunk c of a buffer is elements [start(c), start(c+1)) of the operation's count for the
 * buffers of the full count. The generator says how many chunks a program has; the launcher cuts
 * count into that many nearly equal parts, on 64-byte borders where it can (a chunk may be empty).
 * In all_gather, reduce_scatter, gather, scatter and all_to_all there are `size` blocks and chunk c
 * *is* block c; their short side (INPUT where blocks are gathered, OUTPUT where they are scattered)
 * has one chunk only, numbered `rank`. In all_to_all both sides are long: INPUT's chunk c is for
 * rank c, OUTPUT's chunk c is from rank c. The OUTPUT of reduce and gather and the INPUT of scatter
 * exist on the root only, the OUTPUT of exscan on all ranks but 0. In the v-variants the blocks
 * have lengths of their own, which only the chunk table knows: their programs are the same ones.
 *
 * Note [Wide programs]
 * Where a sum is made in several steps, partial sums must not be rounded between them (D5: 16-bit
 * floats accumulate in float32 and round once). In a *wide* program SCRATCH therefore holds
 * elements of the accumulation dtype, and so do messages sent from SCRATCH into SCRATCH. A COPY or
 * a REDUCE into SCRATCH widens and does not round. A REDUCE into OUTPUT is final: it divides, where
 * the operation divides, and rounds, once; a rounded sum never takes part in another sum. For
 * dtypes that are their own accumulator a wide program is an ordinary one.
 *
 * A *ref* names chunk `chunk` of buffer `buffer` of `rank`. Only PEER_ steps may name another rank.
 *
 *   SEND         src[0] (own) to peer, on this lane's message stream
 *   RECV         from peer into dst[0] (own)
 *   COPY         dst[0] = src[0], both own
 *   REDUCE       every dst = tree(src in order), all own
 *   PEER_COPY    dst[0] = src[0], of which one at least is a peer's
 *   PEER_REDUCE  every dst = tree(src in order); refs may be of any rank on the host
 *   FENCE        all ranks of the group have reached fence number `fence`. Fence 0 also publishes
 *                and compares descriptors: before it no byte of a peer may be read (D4).
 */
#ifndef LS_COMM_PROGRAM_PROGRAM_H
#define LS_COMM_PROGRAM_PROGRAM_H

#include <lockstep/comm.h>

#include "base/env.h"
#include "job/operation.h"

#define LS__PROGRAM_RANKS_MAX 1024
#define LS__PROGRAM_LANES_MAX 8

typedef enum ls__step_kind {
    LS__STEP_SEND,
    LS__STEP_RECV,
    LS__STEP_COPY,
    LS__STEP_REDUCE,
    LS__STEP_PEER_COPY,
    LS__STEP_PEER_REDUCE,
    LS__STEP_FENCE
} ls__step_kind;

typedef enum ls__program_buffer {
    LS__BUFFER_INPUT,
    LS__BUFFER_OUTPUT,
    LS__BUFFER_STAGE,
    LS__BUFFER_SCRATCH
} ls__program_buffer;

typedef struct ls__ref {
    uint8_t buffer; /* ls__program_buffer */
    int16_t rank;   /* owner */
    int32_t chunk;  /* SCRATCH: slot * chunks + chunk that it holds, slots 0 … scratch_slots-1 */
} ls__ref;

typedef struct ls__step {
    uint8_t kind; /* ls__step_kind */
    uint8_t lane;
    int16_t peer;                 /* SEND, RECV*: rank in the group; else -1 */
    int16_t wait_lane;            /* -1: none */
    int32_t wait_step;            /* index within that lane which must be complete */
    int32_t first_dst, dst_count; /* into program->refs */
    int32_t first_src, src_count;
    int32_t fence; /* FENCE: 0, 1, 2 … in order; else -1 */
    /* RECV*: how many steps of each lane must be complete before its message may be put into its
     * place. A message that has arrived may be received before the lane is there; eager_recv.c. */
    int32_t need[LS__PROGRAM_LANES_MAX];
} ls__step;

/* Which buffers a program may be bound to, and so how an operation's data travels. */
typedef enum ls__memory {
    LS__MEMORY_UNDECIDED,  /* of an operation: the announcements will tell */
    LS__MEMORY_MESSAGES,   /* any; needs only a message transport */
    LS__MEMORY_REGISTERED, /* INPUT and OUTPUT lie in registered memory of ranks on one host */
    LS__MEMORY_STAGED,     /* private buffers of ranks on one host, through STAGE */
} ls__memory;

typedef struct ls__program {
    const char *algorithm; /* "direct" */
    ls__operation operation;
    ls__memory memory;
    int rank, size, root;
    bool exact;        /* computes the canonical association; proven by the checker */
    bool wide;         /* SCRATCH holds the accumulation dtype, Note [Wide programs] */
    bool fits[2];      /* correct with INPUT and OUTPUT [0] apart, [1] in place */
    int chunks;        /* per full-count buffer */
    int scratch_slots; /* SCRATCH is scratch_slots buffers of the largest chunk each */
    int overlap;       /* slices that are run at the same time at least; by messages only */
    int lanes;
    int fences;
    int lane_start[LS__PROGRAM_LANES_MAX +
                   1]; /* steps of lane l: [lane_start[l], lane_start[l+1]) */
    ls__step *steps;
    int step_count;
    ls__ref *refs;
    int ref_count;
    const ls__env *env;
} ls__program;

typedef struct ls__program_spec {
    ls__operation operation;
    ls__memory memory;
    int rank, size, root;
    bool in_place;   /* INPUT is OUTPUT on this rank; a hint, of which peers do not know */
    const int *host; /* [size] equal for ranks that share one; NULL: all do. Borrowed */
} ls__program_spec;

#define LS__IN_MESSAGES (1u << LS__MEMORY_MESSAGES)
#define LS__IN_REGISTERED (1u << LS__MEMORY_REGISTERED)
#define LS__IN_STAGED (1u << LS__MEMORY_STAGED)
#define LS__IN_ALL (LS__IN_MESSAGES | LS__IN_REGISTERED | LS__IN_STAGED)

/* An algorithm: one file under comm/algorithm/. `generate` returns LS_ERR_UNSUPPORTED for a spec
 * that it does not support. */
typedef struct ls__algorithm {
    const char *name;
    ls__operation operation;
    bool exact;        /* for every distribution over hosts; false: for some, or for none */
    unsigned memories; /* LS__IN_…: the kinds of memory for which it has programs */
    ls_status (*generate)(const ls__program_spec *spec, const ls__env *env, ls__program **out);
} ls__algorithm;

void ls__program_free(ls__program *program);

/* ---- building (used by generators) ----------------------------------------------------------- */

typedef struct ls__builder ls__builder; /* collects errors: check once, at finish */
ls__builder *ls__builder_new(const ls__program_spec *spec, const ls__env *env,
                             const char *algorithm);
void ls__builder_chunks(ls__builder *b, int chunks, int scratch_slots);
void ls__builder_wide(ls__builder *b);
/* The program is correct for spec.in_place only (otherwise both in place and apart). */
void ls__builder_binding(ls__builder *b);
/* Worth running this many slices at the same time, whose phases fill each other's gaps; else 1. */
void ls__builder_overlap(ls__builder *b, int slices);
/* Each returns the step's index within its lane, for `ls__builder_after`. */
int ls__builder_send(ls__builder *b, int lane, ls__ref src, int peer);
int ls__builder_recv(ls__builder *b, int lane, ls__ref dst, int peer);
int ls__builder_copy(ls__builder *b, int lane, ls__ref dst, ls__ref src);
int ls__builder_reduce(ls__builder *b, int lane, const ls__ref *dst, int dst_count,
                       const ls__ref *src,
                       int src_count); /* REDUCE, or PEER_REDUCE if a ref is a peer's */
int ls__builder_peer_copy(ls__builder *b, int lane, ls__ref dst, ls__ref src);
int ls__builder_fence(ls__builder *b, int lane);
/* The last step added to `lane` waits for step `step` of `other`. */
void ls__builder_after(ls__builder *b, int lane, int other, int step);
ls_status ls__builder_finish(ls__builder *b, bool exact, ls__program **out); /* frees b */

/* ---- checking and counting ------------------------------------------------------------------- */

/* Runs the programs of all ranks symbolically, message streams with room for `capacity` messages;
 * each in place and apart, as it says that it fits.
 * Proves: no deadlock; fences match; no PEER_ access before fence 0, nor a race between two fences
 * (a chunk written by one rank and touched by another); every rank ends with every contribution
 * exactly once, and `exact` programs in the canonical association, 16-bit ones rounded once.
 * LS_ERR_MISMATCH with the rank, step and chunk that is wrong otherwise. */
ls_status ls__program_check(ls__program *const *programs, int size, int capacity);

typedef struct ls__program_cost { /* of one rank, in units of the operation's full buffer */
    int steps;             /* longest chain of dependent steps that move data between ranks, if all
                              ranks do alike; ls__programs_steps counts exactly */
    double sent, received; /* buffers; PEER_ writes count as sent, PEER_ reads as received */
    double wide;           /* the part of `sent` that is in the accumulation dtype */
} ls__program_cost;
void ls__program_cost_count(const ls__program *program, ls__program_cost *out);

/* The longest chain of dependent messages through all ranks' programs (messages only); -1 without
 * memory or when they deadlock. */
int ls__programs_steps(ls__program *const *programs, int size);
/* The same with a callback for every message: the SEND step in its sender's program, and the step
 * of the whole operation in which it travels, from 1. */
typedef void (*ls__message_fn)(void *arg, const ls__program *sender, const ls__step *send,
                               int step);
int ls__programs_walk(ls__program *const *programs, int size, ls__message_fn message, void *arg);

#define LS__TOTALS_STEPS_MAX 256 /* a chain or ring of 64 ranks has 126 */

typedef struct ls__program_totals { /* of all ranks' programs by messages, in full buffers */
    int steps, messages;
    double rank;        /* the most that one rank sends, or receives */
    double link;        /* the most that one rank sends to one other */
    double total, wide; /* sum over all messages; the part of it in the accumulation dtype */
    struct {
        double rank, total; /* of one step */
    } step[LS__TOTALS_STEPS_MAX];
} ls__program_totals;
/* LS_ERR_LIMIT for more ranks or steps than are counted, LS_ERR_MEMORY. */
ls_status ls__programs_count(ls__program *const *programs, int size, ls__program_totals *out);

/* One step a line, for people: "lane 0: peer_reduce output[*].2 = input[0].2 + input[1].2 …". */
ls_status ls__program_print(const ls__program *program, char *out, size_t bytes);

/* eager_recv.c: when a message may be received before its turn. */
ls_status ls__program_find_eager_recvs(ls__program *p); /* fills in ls__step.need; LS_ERR_MEMORY */

#endif
