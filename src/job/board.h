/* SPDX-License-Identifier: Apache-2.0 */
/* The board: one page range per host and job, made by the host agent and mapped by its ranks.
 *
 * It holds the state that must be readable after a rank died and writable without a system call:
 * each rank's doorbell, life, activity and flight records, and the root cause of the job's failure.
 * No locks: every field has one writer, or is set once by compare-and-swap. The memory is anonymous
 * (memfd) and passed by descriptor; a world of one rank has a private board.
 *
 *   agent ── root cause ──▶ ranks     (then wakes all doorbells)
 *   launcher ── stop ──▶ ranks        (read at the next synchronising backward)
 *   rank ── activity, flight, life ──▶ launcher and peers
 *   rank ── own failure ──▶ launcher  (which reports it when the rank ends)
 */
#ifndef LS_JOB_BOARD_H
#define LS_JOB_BOARD_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/activity.h"
#include "base/compiler.h"
#include "base/env.h"
#include "base/error.h"
#include "job/blocked.h"
#include "job/descriptor.h"
#include "job/failure.h"

#define LS__BOARD_MAGIC 0x4c53424fu /* "LSBO" */
#define LS__BOARD_VERSION 9
#define LS__BOARD_RANKS_MAX 256 /* ranks of one host */
#define LS__FLIGHT_MAX 512      /* operations remembered per rank; a power of two */

/* The life of a rank. It only grows:
 *
 *     EMPTY ─▶ STARTED ─▶ JOINED ─▶ LEFT         written by the launcher (STARTED) and by the rank
 *                 └──────────┴────▶ DEAD         written by the host agent when the process ended
 */
typedef enum ls__life {
    LS__LIFE_EMPTY = 0,   /* not started */
    LS__LIFE_STARTED = 1, /* the process exists */
    LS__LIFE_JOINED = 2,  /* ls_init succeeded */
    LS__LIFE_LEFT = 3,    /* ls_finalize was reached */
    LS__LIFE_DEAD = 4     /* the process ended without ls_finalize */
} ls__life;

/* The state of an operation: QUEUED ─▶ STARTED ─▶ DONE or FAILED. A record that is reused for a
 * later operation passes through EMPTY, while its fields change. */
typedef enum ls__flight_state {
    LS__FLIGHT_EMPTY = 0,
    LS__FLIGHT_QUEUED = 1,
    LS__FLIGHT_STARTED = 2,
    LS__FLIGHT_DONE = 3,
    LS__FLIGHT_FAILED = 4
} ls__flight_state;

/* What a recorded failure is about, where the root cause depends on it: a norm or an average is not
 * finite because a gradient was not, which is often that of another rank. */
typedef enum ls__failed_about {
    LS__ABOUT_OTHER = 0,
    LS__ABOUT_GRADIENT = 1, /* one of this rank is not finite */
    LS__ABOUT_NORM = 2      /* what ranks share is not finite */
} ls__failed_about;

/* One operation of the flight recorder. Writer: the rank's own threads; `state` is stored last,
 * with release. A reader may still see a record change under it, and must check every field. */
typedef struct ls__flight_record {
    _Atomic uint32_t state;
    /* Relaxed: with more operations in flight than records, the end of an old operation may race
     * with the start of the new one that reuses its record. */
    _Atomic uint32_t fences_passed;
    _Atomic uint64_t queued_ns, started_ns, ended_ns;
    ls__descriptor descriptor;
    char group_name[32];
} ls__flight_record;

/* The place of one local rank. Writer: the rank, unless the field says otherwise. */
typedef struct ls__board_rank {
    LS__ALIGNED(LS__CACHE_LINE) _Atomic uint32_t doorbell; /* futex word: bumped, then woken */
    _Atomic uint32_t sleepers; /* threads parked on the doorbell; wakers skip the call when 0 */
    LS__ALIGNED(LS__CACHE_LINE) _Atomic uint32_t life; /* ls__life */
    _Atomic uint32_t stops_itself; /* the rank reads `stop`: do not signal the first stop request */
    _Atomic int32_t pid;
    int32_t world_rank;            /* not contiguous where another launcher numbered the ranks */
    _Atomic uint64_t heartbeat_ns; /* the engine's last turn */
    /* A failure that this rank detected itself (a mismatch, a poisoned loss, ls_group_abort, a
     * deadline): text first, then state (release). The launcher reports it if this rank then ends.
     */
    _Atomic uint32_t failed; /* 0, or the negated ls_status */
    int32_t failed_by;       /* the rank of the world that caused it, this one or another */
    uint32_t failed_about;   /* ls__failed_about */
    /* An operation that was queued after the failure has succeeded: the program continues, and the
     * next failure replaces this one. */
    _Atomic uint32_t survived;
    _Atomic uint64_t failed_ns; /* when; relaxed */
    char failed_text[1024];
    /* A failure of another rank that was reported to this rank's program. If this rank then ends,
     * its end is a consequence, and the other failure explains more. Text and `reported_by` first,
     * then state (release). */
    _Atomic uint32_t reported;    /* 0, or the negated ls_status */
    int32_t reported_by;          /* the failed rank, a rank of the world */
    _Atomic uint64_t reported_ns; /* when; relaxed */
    char reported_text[1024];
    /* Valid once `life` is DEAD: how the process ended, as the host agent saw it; of a rank of
     * another host, why this rank gave it up. */
    char ended_text[640];
    ls__activity activity;
    ls__blocked_record blocked;   /* the operations it waits for, when all its threads wait */
    _Atomic uint64_t flight_next; /* records written so far; record i lies at i % LS__FLIGHT_MAX */
    ls__flight_record flight[LS__FLIGHT_MAX];
} ls__board_rank;

/* The board of one host. The fields before the root cause do not change once the ranks have
 * started.
 */
typedef struct ls__board {
    uint32_t magic, version;
    uint64_t bytes;
    int32_t ranks; /* local ranks, the length of `rank` */
    int32_t world_size;
    int32_t first_rank; /* world rank of local rank 0; ls__board_local finds the others */
    uint32_t generation;
    uint64_t job; /* random number of this job */
    int32_t launcher_pid;
    char host[64];
    /* In a world of several hosts; else 0 and "". */
    int32_t nodes, node;           /* their number, and the number of this one */
    uint32_t plain;                /* links that leave the host are not encrypted */
    char address[LS__ADDRESS_MAX]; /* of this host, as the other hosts reach it */
    /* The root cause of the job's failure. Set once: text and rank first, then state (release). */
    LS__ALIGNED(LS__CACHE_LINE) _Atomic uint32_t root_cause; /* 0: none yet; 1: set */
    _Atomic uint32_t root_cause_claim; /* 1: a process writes it, no other may; compare-and-swap */
    int32_t root_cause_rank;           /* the failed rank of the world; -1: not a rank */
    char root_cause_text[1024];
    /* When the launcher last let all ranks go on after Ctrl-Z; 0: never. Set before the first of
     * them runs, relaxed: a signal comes between. */
    _Atomic uint64_t continued_ns;
    _Atomic uint32_t stop; /* the signal with which the job was asked to stop; 0: it was not */
    ls__board_rank rank[]; /* [ranks] */
} ls__board;

/* Whether a failure of the job is known. Sync: acquire; pairs with ls__board_set_cause. */
static inline bool ls__board_has_cause(const ls__board *board)
{
    return atomic_load_explicit(&board->root_cause, memory_order_acquire) != 0;
}

static inline size_t ls__board_bytes(int ranks)
{
    return sizeof(ls__board) + (size_t)ranks * sizeof(ls__board_rank);
}

/* The index on the board of a rank of the world; -1: it runs on another host. The guess is right
 * wherever the ranks of a host are contiguous. */
static inline int ls__board_local(const ls__board *board, int world_rank)
{
    const int guess = world_rank - board->first_rank;
    if (guess >= 0 && guess < board->ranks && board->rank[guess].world_rank == world_rank) {
        return guess;
    }
    for (int r = 0; r < board->ranks; r++) {
        if (board->rank[r].world_rank == world_rank) {
            return r;
        }
    }
    return -1;
}

/* The facts about a job that a new board starts with. */
typedef struct ls__board_job {
    int ranks, world_size;
    int first_rank;        /* the host's ranks are contiguous from this one on … */
    const int *world_rank; /* … unless this array lists them; [ranks] or NULL */
    uint32_t generation;
    uint64_t number; /* random */
    int launcher_pid;
    const char *host;
    int nodes, node; /* 0: one host */
    bool plain;
    const char *address; /* NULL: one host */
} ls__board_job;

/* Makes a board in a new memfd and maps it; *fd is the caller's. Its size is ls__board_bytes. */
ls_status ls__board_new(const ls__env *env, const ls__board_job *job, int *fd, ls__board **out);
/* Whether a mapping of `bytes` holds a board that this version may read. */
bool ls__board_is_sound(const ls__board *board, size_t bytes);
/* Maps the board behind fd (borrowed). LS_ERR_INVALID if fd is not a board of this version. */
ls_status ls__board_open(const ls__env *env, int fd, ls__board **out);
/* Unmaps; NULL is allowed. */
void ls__board_close(const ls__env *env, ls__board *board);

/* A failure as its rank records it. */
typedef struct ls__board_failure {
    ls_status status;
    int by; /* the rank of the world that caused it */
    ls__failed_about about;
    const char *text; /* borrowed */
} ls__board_failure;

/* Publishes a failure of the rank of this place, where the launcher reads it if the rank then ends.
 * The first one counts, unless an operation that started later has succeeded since. */
void ls__board_record_failure(ls__board_rank *place, const ls__env *env,
                              const ls__board_failure *f);

/* Publishes the root cause and wakes all ranks, which read it. False: one was published before, and
 * it stays. */
bool ls__board_set_cause(ls__board *board, const ls__env *env, const ls__failure_record *cause);

/* Whether the process of local rank r is stopped by a signal or held by a debugger. */
bool ls__board_stopped(const ls__board *board, const ls__env *env, int r);
/* Whether a debugger is attached to it, whatever its state. */
bool ls__board_traced(const ls__board *board, const ls__env *env, int r);
/* Whether it has ended and its launcher has not reaped it yet: the launcher itself is stopped. */
bool ls__board_unreaped(const ls__board *board, const ls__env *env, int r);

/* Bumps the doorbell of local rank r and wakes its sleepers. */
void ls__board_ring(ls__board *board, const ls__env *env, int r);

/* What a rank is doing, for reports: "rank 2 (host h, pid 12) in the backward pass (fc1) at
 * train.c:88 for 1.2 s; last operation: all_reduce #17 (bucket 3 …) of group "ddp", started". An
 * unusual state of its process, such as stopped, comes after the name. */
void ls__board_describe(const ls__board *board, const ls__env *env, int r, char *out, size_t bytes);
/* The two halves of that line: "rank 2 (host h, pid 12)", and the rest from "in the …" on. */
void ls__board_name(const ls__board *board, int r, char *out, size_t bytes);
void ls__board_doing(const ls__board *board, const ls__env *env, int r, char *out, size_t bytes);
/* As ls__board_doing, for a record outside a board: the cached state of a remote rank. */
void ls__board_record_doing(const ls__board_rank *rank, const ls__env *env, char *out,
                            size_t bytes);

#endif
