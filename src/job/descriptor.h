/* SPDX-License-Identifier: Apache-2.0 */
/* The descriptor: a rank's description of the next operation of a group. Ranks of one host publish
 * it with fence 0, ranks of several hosts send it at the head of every message. The descriptors are
 * compared before any data are combined (docs/design.md, D4). Fixed size, versioned. */
#ifndef LS_JOB_DESCRIPTOR_H
#define LS_JOB_DESCRIPTOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define LS__DESCRIPTOR_VERSION 4
#define LS__TAG_MAX 96     /* text kept of a tag, for reports */
#define LS__OP_NAME_MAX 24 /* of a user's operator, ended by 0 */
#define LS__FILE_MAX 64    /* tail kept of a call site's file name */

typedef struct ls__descriptor {
    uint16_t version;
    uint8_t operation; /* ls__operation */
    uint8_t reduce_op; /* ls_reduce_op; LS_REDUCE_OP_USER for every user operator; 0xff: none */
    uint8_t dtype;     /* ls_dtype */
    uint8_t algorithm; /* 1 + registry index of an algorithm requested by name; 0: the library's
                          choice */
    uint8_t memory;    /* ls__memory */
    uint8_t forced;    /* ls__memory, for tests */
    uint32_t generation;
    uint32_t group;
    uint64_t sequence; /* number of the operation in its group, from 1 */
    int64_t count;
    int32_t root;      /* or the peer; 0 for operations without one */
    int32_t tag;       /* of send/recv; of a collective, ls__collective.mark, compared as well */
    uint64_t tag_hash; /* ls__hash_text of options.tag */
    double divisor;
    /* Registered memory: offsets in the publisher's heap; not compared. */
    uint64_t input, output;
    uint64_t counts_hash;   /* of the v-variants in which every rank gives all counts; else 0 */
    uint64_t counts_weight; /* sum of (i + 1) * counts[i]: locates the one that differs
                               (v_counts.c) */
    char op_name[LS__OP_NAME_MAX]; /* of a user's operator; else "" */
    int32_t line;                  /* call site; compared only with LOCKSTEP_CHECK=strict */
    int32_t pid;
    char file[LS__FILE_MAX];
    char text[LS__TAG_MAX]; /* the tag itself */
} ls__descriptor;

/* A copy without the bytes behind an empty tag: compilers copy 192 bytes with plain moves, and the
 * whole with an instruction that takes 8 ns to begin. */
static inline void ls__descriptor_copy(ls__descriptor *to, const ls__descriptor *from)
{
    memcpy(to, from, offsetof(ls__descriptor, text));
    to->text[0] = '\0';
    if (from->text[0] != '\0') {
        memcpy(to->text, from->text, sizeof to->text);
    }
}

/* The fields of a plain operation packed into one word without loss, so that two operations can be
 * compared with one instruction (one_shot.c). 0: a field is too large; compare the descriptors. */
static inline uint64_t ls__key_of(uint8_t operation, uint8_t reduce_op, uint8_t dtype, int32_t root,
                                  int64_t count)
{
    const bool fits = operation < 64 && dtype < 64 && (uint32_t)root < 1u << 12 &&
                      (uint64_t)count < UINT64_C(1) << 31;
    return fits ? 1 | (uint64_t)operation << 1 | (uint64_t)dtype << 7 | (uint64_t)reduce_op << 13 |
                      (uint64_t)(uint32_t)root << 21 | (uint64_t)count << 33
                : 0;
}

#endif
