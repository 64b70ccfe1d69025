/* SPDX-License-Identifier: Apache-2.0 */
/* The shared memory of ranks on one host: the layout of a rank's heap.
 *
 * Every byte has one writer, the heap's owner, except where a program of the engine says otherwise
 * (a peer's chunk between two fences) and `claim`. No locks: a dead peer cannot hold anything.
 *
 *     heap of rank r
 *     ┌────────┬───────────────────┬─────────────────────────┬──────────────────────────────┐
 *     │ header │ world control     │ rings to ranks 0 … n-1  │ blocks: sub-groups' controls,│
 *     │        │ posts and stages  │ (transport)             │ memory of ls_group_alloc     │
 *     └────────┴───────────────────┴─────────────────────────┴──────────────────────────────┘
 *
 * Note [Stamps]
 * Operation s of a group has post slot s % LS__WINDOW in every member's control block. A rank
 * writes its descriptor there and then stores stamp = s << 24 | 1: "I am at fence 0 of s, and this
 * is what I think s is". Each further fence k of the operation stores s << 24 | (k + 1). So stamps
 * only grow, and "rank p has reached fence k of s" is one comparison. A slot is written again, for
 * s + LS__WINDOW, only when every member's `finished` is at least s, so nobody still reads it.
 *
 * Note [One line]
 * A cache line takes 0.1 us from core to core, a good part of a small operation. So the line of the
 * stamp holds all that peers need of a plain operation: that it was announced, its key, a few
 * numbers of data or the places of registered buffers, and how far its rank has finished, which
 * shows the others that there is room.
 * It is written in one piece, because a peer that reads it takes the line away from the writer. A
 * few more numbers go into the next line, which processors fetch along with this one: 64 bytes take
 * 0.37 instead of 0.50 us (2 ranks whose cores are far apart, Zen 5). The whole descriptor lies
 * behind the pair, for all other operations and for reports.
 *
 * The slices of a staged operation take STAGE slots in turn and use one counter each (`slice`),
 * because a rank may be at fence 0 of a slice before fence 1 of the one before it.
 *
 * Note [Changing places]
 * What one rank stages and another reads goes from core to core twice: when it is read, and when
 * its owner writes there again. Where the two ranks of a group stage for each other, each stages in
 * the memory that it has read when the slot was used before, so that its lines are in its caches
 * and go from core to core once: with every use of a slot the ranks change places, in the stages of
 * both heaps. Nothing else waits for it: a slot is used again when both have finished what it was
 * used for.
 *
 * Note [Last arriver]
 * Whoever reaches a fence stores its stamp and then looks at the stamps of all members; if all are
 * there it rings the doorbells of those that sleep, otherwise it need not ring anybody. All these
 * accesses are sequentially consistent, so they have one order: the poster whose store is last in
 * it sees all others, and rings. A sleeper counts itself in `sleepers`, then reads the doorbell,
 * then looks at the stamps once more and parks only if the doorbell still has that value. If the
 * ringer reads sleepers == 0, that read, and with it the last stamp, precede the sleeper's look,
 * which therefore sees the fence complete; if it reads more, it changes the doorbell, either before
 * the sleeper read it (then the look, too, comes after the stamps) or after (then it does not
 * sleep, or is woken). With members on other hosts, "all" are those of this one (post.c).
 */
#ifndef LS_COMM_MEMORY_CONTROL_H
#define LS_COMM_MEMORY_CONTROL_H

#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#include "base/compiler.h"
#include "job/descriptor.h"

#define LS__HEAP_MAGIC 0x4c534850u /* "LSHP" */
#define LS__HEAP_VERSION 3
#define LS__CONFIG_MAX 320

#define LS__WINDOW 64         /* operations a rank may post ahead of its slowest peer */
#define LS__FENCE_BITS 24     /* of a stamp; 16 million fences are 1 TB in slices */
#define LS__SMALL_SLOTS 8     /* one-shot operations a rank may post ahead */
#define LS__SMALL_BYTES 16384 /* a rank's contribution to a one-shot operation */
#define LS__LINE_BYTES 40     /* of these, what fits beside the stamp */
#define LS__PAIR_BYTES 104    /* and what fits there and in the next line */
#define LS__WIDE_BYTES ((size_t)256 << 10) /* of an offer: Note [Offers] in select.c */
#define LS__WIDE_SLOTS 2
#define LS__LINE_PAIR (2 * LS__CACHE_LINE)
#define LS__IN_PAIRS(bytes) (((bytes) + LS__LINE_PAIR - 1) / LS__LINE_PAIR * LS__LINE_PAIR)
#define LS__SLICE_SLOTS 4 /* of which an operation takes as many as Note [Slices] says */
#ifndef LS__SLICE_BYTES   /* smaller in the simulation */
#define LS__SLICE_BYTES ((size_t)256 << 10) /* fits two ranks' slices in a second-level cache */
#endif
#define LS__GROUP_SLOTS 1024 /* most groups at a time; their ids differ modulo this */

/* Where the bytes lie that a one-shot operation publishes. */
typedef enum ls__place {
    LS__PLACE_SMALL, /* in the small stage, in the operation's slot */
    LS__PLACE_LINE,  /* beside and behind the stamp */
    LS__PLACE_WIDE   /* and the number behind: in the slots of the wide stage */
} ls__place;
#define LS__PLACE_OTHER 0x80u /* added: in the heap of the other rank, Note [Changing places] */

typedef struct ls__line {
    uint64_t key;      /* of the descriptor: ls__descriptor_key; 0: it has no key */
    uint32_t one_shot; /* 1 + bytes that a one-shot operation publishes; 0: another operation */
    uint16_t behind;   /* operations from `finished` to this one; UINT16_MAX: that or more */
    uint8_t place;     /* ls__place, of the published bytes */
    uint8_t memory;    /* of the descriptor */
    union {
        LS__ALIGNED(8) unsigned char data[LS__PAIR_BYTES]; /* of any dtype */
        struct {
            uint64_t input, output; /* of the descriptor, unless `data` is used */
        };
    };
} ls__line;

/* Processors fetch lines in pairs, so the line of the stamp has a pair for itself. The type does
 * not require that alignment, because cached control blocks, which no peer reads, lie anywhere;
 * blocks of the heap have it. */
typedef struct ls__post {
    /* Sync: seq_cst store (one_shot.c: release), acquire load */
    LS__ALIGNED(LS__CACHE_LINE) _Atomic uint64_t stamp;
    ls__line line; /* Note [One line] */
    union {
        ls__descriptor descriptor;
        unsigned char lines[LS__IN_PAIRS(sizeof(ls__descriptor))];
    };
} ls__post;
_Static_assert((offsetof(ls__post, line) + offsetof(ls__line, data)) % 8 == 0,
               "sums are made of what lies there");
_Static_assert(offsetof(ls__post, line) + offsetof(ls__line, data) + LS__LINE_BYTES ==
                   LS__CACHE_LINE,
               "Note [One line]");
_Static_assert(offsetof(ls__post, line) + sizeof(ls__line) == LS__LINE_PAIR, "Note [One line]");
_Static_assert(sizeof(ls__post) % LS__LINE_PAIR == 0, "each stamp begins a pair");

/* One member's part of a group. Zero before any peer learns of it. */
typedef struct ls__control_block {
    /* Sync: release, pairs with acquire in the peers' check for room. */
    LS__ALIGNED(LS__CACHE_LINE) _Atomic uint64_t finished; /* last operation completed, in order */
    /* Sync: seq_cst both ways; see Note [Room] in post.c. */
    LS__ALIGNED(LS__CACHE_LINE) _Atomic uint32_t wants_room;
    LS__ALIGNED(LS__CACHE_LINE) _Atomic uint64_t slice[LS__SLICE_SLOTS];
    /* Failure. Only member 0's claim counts: 0, or 1 + the member whose failure is the group's
     * root cause (compare-and-swap). That member writes text, then failed (release). */
    LS__ALIGNED(LS__CACHE_LINE) _Atomic uint32_t claim;
    _Atomic uint32_t failed; /* negated ls_status */
    int32_t failed_by;       /* the rank of the world that caused it */
    char failed_text[1024];
    ls__post post[LS__WINDOW];
    LS__ALIGNED(LS__CACHE_LINE) unsigned char small[LS__SMALL_SLOTS][LS__SMALL_BYTES];
    unsigned char wide[LS__WIDE_SLOTS][LS__WIDE_BYTES];
    unsigned char stage[LS__SLICE_SLOTS][LS__SLICE_BYTES];
} ls__control_block;
_Static_assert(offsetof(ls__control_block, post) % LS__LINE_PAIR == 0, "each stamp begins a pair");

typedef struct ls__heap_header {
    uint32_t magic, version;
    uint64_t nonce;   /* derived from the job's number and the rank: proves whose heap this is */
    uint64_t reserve; /* bytes of address space to map */
    uint64_t world;   /* offset of the world's control block */
    uint64_t rings;   /* offset of the rings */
    int64_t pid;      /* of the owner, as it sees itself */
    int32_t cores;    /* that the owner may use */
    char config[LS__CONFIG_MAX]; /* the settings on which all ranks must agree, as text */
    /* The newest group id of each residue that this rank has left for good / has failed and stopped
     * touching. Sync: release, pairs with acquire before memory is used again. */
    _Atomic uint32_t left[LS__GROUP_SLOTS];
    _Atomic uint32_t quiet[LS__GROUP_SLOTS];
} ls__heap_header;

/* Clears the cached control block of a member on another host. Stages are never read before they
 * are written. */
static inline void ls__control_clear(ls__control_block *control)
{
    memset(control, 0, offsetof(ls__control_block, small));
}

/* Note [Stamps]. fences_reached is 1 + the number of the fence; 0: only the sequence number. */
static inline uint64_t ls__stamp(uint64_t sequence, uint64_t fences_reached)
{
    return sequence << LS__FENCE_BITS | fences_reached;
}

#endif
