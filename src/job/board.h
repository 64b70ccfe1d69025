/* The board: one page range per host and job, made by the launcher and mapped by its ranks.
 *
 * It holds what must be readable after a rank died and writable without a system call: each rank's
 * doorbell, life, activity and flight records, and the root cause of the job's failure.
 * No locks: every field has one writer, or is set once by compare-and-swap. Anonymous memory
 * (memfd) passed by descriptor; a world of one has a private board.
 *
 *   agent ── root cause ──▶ ranks     (then wakes all doorbells)
 *   launcher ── stop ──▶ ranks        (read at the next synchronising backward)
 *   rank ── activity, flight, life ──▶ launcher and peers
 *   rank ── own finding ──▶ launcher  (which reports it when the rank ends)
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
#define LS__BOARD_VERSION 6
#define LS__BOARD_RANKS_MAX 256 /* ranks of one host */
#define LS__FLIGHT_MAX 512      /* operations remembered per rank; a power of two */

typedef enum ls__life {
    LS__LIFE_EMPTY = 0,   /* not started */
    LS__LIFE_STARTED = 1, /* the process exists */
    LS__LIFE_JOINED = 2,  /* ls_init succeeded */
    LS__LIFE_LEFT = 3,    /* ls_finalize was reached */
    LS__LIFE_DEAD = 4     /* the launcher saw it end */
} ls__life;

typedef enum ls__flight_state {
    LS__FLIGHT_EMPTY = 0,
    LS__FLIGHT_QUEUED = 1,
    LS__FLIGHT_STARTED = 2,
    LS__FLIGHT_DONE = 3,
    LS__FLIGHT_FAILED = 4
} ls__flight_state;

/* One operation. Writer: the rank's own threads; `state` is stored last, with release. */
typedef struct ls__flight_record {
    _Atomic uint32_t state;
    /* Relaxed: with more operations in flight than records, an old one's end may meet the opening
     * of the one that took its record. */
    _Atomic uint32_t fences_passed;
    _Atomic uint64_t queued_ns, started_ns, ended_ns;
    ls__descriptor descriptor;
    char group_name[32];
} ls__flight_record;

typedef struct ls__board_rank {
    LS__ALIGNED(LS__CACHE_LINE) _Atomic uint32_t doorbell; /* futex word: bumped, then woken */
    _Atomic uint32_t sleepers; /* threads parked on the doorbell; wakers skip the call when 0 */
    LS__ALIGNED(LS__CACHE_LINE) _Atomic uint32_t life; /* ls__life */
    _Atomic uint32_t stops_itself; /* it looks at `stop`: no signal for the first stop request */
    _Atomic int32_t pid;
    int32_t world_rank; /* not contiguous on a host where another launcher has dealt them out */
    _Atomic uint64_t heartbeat_ns; /* the engine's last turn */
    /* A failure this rank found itself (a mismatch, a poisoned loss, ls_group_abort, a deadline):
     * text first, then state (release). The launcher reports it if this rank then ends.
     */
    _Atomic uint32_t failed; /* 0, or the negated ls_status */
    /* An operation that began after the failure has come through: the program lives on, and the
     * next failure takes this one's place. */
    _Atomic uint32_t survived;
    _Atomic uint64_t failed_ns; /* when; relaxed */
    char failed_text[1024];
    /* A group of this rank failed by another's doing: its end explains less than that. Text and
     * whose doing (a rank of the world) first, then state (release). */
    _Atomic uint32_t told; /* 0, or the negated ls_status */
    int32_t told_by;
    _Atomic uint64_t told_ns; /* when; relaxed */
    char told_text[1024];
    ls__activity activity;
    ls__blocked_record blocked;   /* what it waits for, when all its threads wait */
    _Atomic uint64_t flight_next; /* records written so far; record i lies at i % LS__FLIGHT_MAX */
    ls__flight_record flight[LS__FLIGHT_MAX];
} ls__board_rank;

typedef struct ls__board {
    uint32_t magic, version;
    uint64_t bytes;
    int32_t ranks; /* local ranks that follow */
    int32_t world_size;
    int32_t first_rank; /* world rank of local rank 0; the others': ls__board_local */
    uint32_t generation;
    uint64_t job; /* random number of this job */
    int32_t launcher_pid;
    char host[64];
    /* Of a world of several hosts; 0 and "" else. */
    int32_t nodes, node;           /* how many, and which this is */
    uint32_t plain;                /* links that leave the host are not encrypted */
    char address[LS__ADDRESS_MAX]; /* of this host, as the others reach it */
    /* The root cause: the first failure of the job. Set once: text and fields, then state.
     */
    LS__ALIGNED(LS__CACHE_LINE) _Atomic uint32_t verdict; /* 0 none, 1 given */
    _Atomic uint32_t
        verdict_claim; /* 1: one process writes it, and no other may; by compare-and-swap */
    int32_t culprit;   /* rank of the world; -1: none */
    int32_t culprit_pid;
    int32_t culprit_signal; /* 0: exited */
    int32_t culprit_code;
    char verdict_text[1024];
    _Atomic uint32_t stop; /* the launcher was asked to stop the job by this signal; 0: not */
    ls__board_rank rank[]; /* [ranks] */
} ls__board;

static inline size_t ls__board_bytes(int ranks)
{
    return sizeof(ls__board) + (size_t)ranks * sizeof(ls__board_rank);
}

/* The index on the board of a rank of the world; -1: it runs on another host. */
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

/* What a new board says about the job. */
typedef struct ls__board_job {
    int ranks, world_size;
    int first_rank;        /* the ranks follow each other from this one on … */
    const int *world_rank; /* … unless they stand here */
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
/* Maps the board behind fd (borrowed), if it is one. */
ls_status ls__board_open(const ls__env *env, int fd, ls__board **out);
/* Unmaps; NULL is allowed. */
void ls__board_close(const ls__env *env, ls__board *board);

/* The root cause, as the job's ranks read it; they are woken. False: another was published before. */
bool ls__board_set_cause(ls__board *board, const ls__env *env, const ls__failure_record *cause);

/* Whether the process of local rank r is stopped by a signal or held by a debugger. */
bool ls__board_stopped(const ls__board *board, const ls__env *env, int r);
/* Whether it has ended and its launcher has not looked yet: that is stopped itself. */
bool ls__board_unreaped(const ls__board *board, const ls__env *env, int r);

/* Bumps the doorbell of local rank r and wakes its sleepers. */
void ls__board_ring(ls__board *board, const ls__env *env, int r);

/* "rank 2 (host h, pid 12) in the backward pass (fc1) at train.c:88 for 1.2 s; last operation:
 * all_reduce #17 (bucket 3 …) of group "ddp", started" - what a rank is doing, for reports; a
 * process that is stopped is said to be. */
void ls__board_describe(const ls__board *board, const ls__env *env, int r, char *out, size_t bytes);
/* The two halves of that line: "rank 2 (host h, pid 12)", and the rest from "in the …" on. */
void ls__board_name(const ls__board *board, int r, char *out, size_t bytes);
void ls__board_record_doing(const ls__board_rank *rank, const ls__env *env, char *out,
                            size_t bytes); /* the same of a record that is on no board */
void ls__board_doing(const ls__board *board, const ls__env *env, int r, char *out, size_t bytes);

#endif
