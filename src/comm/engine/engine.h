/* The engine: one per runtime, it moves all operations of all groups (docs/design.md, D2).
 *
 *     user threads ── submit (short lock, call order) ──▶ queue of a group ──┐
 *                                                                            ▼
 *     progress token ── held by a waiting caller, else by the engine's thread: turn, turn, turn …
 *                       a turn advances the first operation of every group by a bounded piece
 *
 * Who may touch what is written at each field:  lock = under comm->lock;  token = by the holder of
 * the progress token;  const = set before the object is shared;  atomic = see its orders.
 *
 * Note [Who sleeps where]
 *   - the holder of the token, when nothing moves, parks on this rank's *doorbell* in the board,
 *     which peers and the launcher ring;
 *   - other waiting callers park on `waiter_word`, rung when a work ends or the token is free;
 *   - the engine's thread drives when no caller does, and then parks on the doorbell too, without
 *     the token, so that a caller can take it. When it wakes to find a caller driving it moves to
 *     `thread_word`, so that the doorbell wakes one thread and not two, and comes back when it is
 *     called (an operation nobody waits for) or after a tenth of a second: the caller may have
 *     gone to compute, and then nobody else hears that a peer has died;
 *   - with ranks on other hosts, who would park on the doorbell sleeps in the transport's poller,
 *     which an event beside the doorbell wakes, too (far.h). A poller tells each piece of news to
 *     one thread: if that is the engine's and a caller drives, it rings for the caller.
 * Every park has a deadline of at most half a second, so a lost wake would cost time, never a hang.
 */
#ifndef LS_COMM_ENGINE_ENGINE_H
#define LS_COMM_ENGINE_ENGINE_H

#include "base/arena.h"
#include "base/list.h"
#include "base/runtime.h"
#include "comm/api/collective.h"
#include "comm/engine/backend.h"
#include "comm/memory/heap.h"
#include "comm/transport/transport.h"
#include "comm/tune/rules.h"
#include "job/bootstrap/bootstrap.h"
#include "kernel/reduce/reduce.h"

#define LS__BEAT_NS 500000000u   /* the engine's thread wakes at least this often */
#define LS__CHECK_NS 100000000u  /* a waiting driver looks at deadlines and peers this often */
#define LS__STALL_NS 1000000000u /* from here on descriptors are compared without a full fence */
#define LS__WARN_NS 5000000000u  /* one warning names who is missing */
#define LS__GRACE_NS 1000000000u /* a dead peer without a verdict is believed after this */
#define LS__FAILURE_MAX 1024     /* bytes of a group's first cause */
#define LS__GROUP_NAME_MAX 32
#define LS__WORKS_PER_CHUNK 32
#define LS__CHANNELS_MAX 4

typedef struct ls__comm ls__comm;
typedef struct ls__exec ls__exec;
typedef struct ls__p2p ls__p2p;
typedef struct ls__turns ls__turns;   /* round_robin.c */
typedef struct ls__remote ls__remote; /* far.h */
typedef struct ls__deadlock ls__deadlock;
typedef struct ls__tuning ls__tuning; /* tune/run.h */

/* A thread that has gone to sleep until a work ends; on its stack. */
typedef struct ls__sleeper {
    ls__list link;
    const ls_work *work;
    uint64_t since_ns;
} ls__sleeper;

/* How an operation is run; chosen from everybody's descriptors, so all choose alike. */
typedef enum ls__way {
    LS__WAY_UNDECIDED,
    LS__WAY_SMALL,      /* one_shot through the small stage, data published with fence 0 */
    LS__WAY_REGISTERED, /* in place in everybody's heap */
    LS__WAY_STAGED,     /* in slices through STAGE */
    LS__WAY_MESSAGES,   /* over the message transport */
    LS__WAY_READABLE    /* private buffers where they are, read by peek.h */
} ls__way;
#define LS__WAYS 6

/* The user's callback (ls_work_on_done). Who brings `state` from NONE to SET has written the rest;
 * the engine brings it to ENDED when the operation ends, after it wrote the status. Sync: acquire
 * and release both ways. */
typedef enum ls__told_state { LS__TOLD_NONE, LS__TOLD_SET, LS__TOLD_ENDED } ls__told_state;
typedef struct ls__told {
    _Atomic uint32_t state;
    _Atomic uint32_t asked; /* somebody has called ls_work_on_done */
    ls_status status;
    void (*done)(void *arg, ls_status status);
    void *arg;
} ls__told;

struct ls_work {
    ls__list link; /* in the pool or a group's queue: lock; in a letter list: token */
    ls__list turn; /* of a letter, in a list of ls__p2p; token */
    ls_group *group;
    _Atomic int32_t status; /* LS_IN_PROGRESS until the engine's release store; waiters acquire */
    bool detached;          /* const; nobody waits: the engine takes the handle back */
    bool by_message;        /* const; needs the message transport */
    _Atomic bool posted;    /* fence 0 is announced: release under lock, acquire */
    bool warned;            /* token */
    bool announced;         /* token: posted to far members because it has stalled */
    bool monitored;         /* const; at the deadline all who have not come are named */
    bool told_stopped;      /* token: a warning has named a stopped process */
    bool shown;             /* const; unequal blocks that peers of this host read: shown.c */
    uint8_t channels;       /* slices at the same time, if it runs by messages */
    uint8_t tuner;          /* const; ls__tuner_part */
    uint8_t way;            /* ls__way; set at submission or by the token's holder */
    const ls__program *program; /* the same */
    void (*done)(void *arg, ls_status status);
    void *arg;
    ls__told told; /* the user's callback, if there is one */
    ls__operation operation;
    const ls__algorithm *algorithm; /* asked for by name; NULL: chosen */
    const void *input;
    void *output;
    int64_t count;
    size_t element; /* bytes of one */
    /* v-variants: elements and places of the blocks of INPUT [0] and OUTPUT [1], each [size]; else
     * NULL. `count` is the longest one. */
    int64_t *count_of[2], *offset_of[2];
    ls_dtype dtype;
    ls_reduce_op op; /* AVG has become SUM with a divisor, PREMUL_SUM and the user's SUM */
    ls__reduce_user user;
    double divisor;
    struct ls__pack *pack; /* holds the input, premultiplied; NULL: there is none */
    uint64_t queued_ns, started_ns, deadline_ns;
    uint64_t gone_seen_ns; /* token: since when its peer is gone; Note [Leaving] in failure.c */
    uint64_t flight;       /* number of its record */
    ls__descriptor descriptor;
    /* send and recv; token */
    uint8_t stage;   /* ls__p2p_stage */
    uint64_t letter; /* number that its messages carry */
    size_t moved;    /* bytes */
    int64_t *table;  /* lock: memory of count_of and offset_of, kept; NULL: not needed yet */
};

/* How a kind of small operation goes the short way (small.c). */
typedef struct ls__small_plan {
    uint64_t key; /* of the descriptor; 0: none */
    const ls__program *program;
    int first_step; /* of the program after its fence */
    bool publishes, in_line;
    int64_t count;
    size_t bytes;
    ls_dtype dtype;
    ls_reduce_op op;
    double divisor;
} ls__small_plan;
typedef struct ls__small_kind {
    ls__small_plan plan;
    ls__descriptor descriptor; /* of the last one */
} ls__small_kind;
#define LS__SMALL_KINDS_LOG 3
#define LS__SMALL_KINDS (1 << LS__SMALL_KINDS_LOG)

#define LS__OPERATORS_MAX (LS_REDUCE_OP_USER_LAST - LS_REDUCE_OP_USER + 1)

typedef struct ls__group_member {
    int world_rank;
    int local;   /* index on the board; -1: far */
    bool remote; /* on another host: control and record are mirrors (far.h) */
    ls__control_block *control;
    ls__board_rank *record;
    ls__control_block *mirror; /* far, and the group's own: the same, to be released; else NULL */
    unsigned char *base;       /* of its heap, in our address space; NULL: far */
} ls__group_member;

/* A failure of a group with far members that is to be told. */
typedef enum ls__claim_state {
    LS__CLAIM_NONE,
    LS__CLAIM_WRITING,
    LS__CLAIM_READY,
    LS__CLAIM_SENT
} ls__claim_state;

struct ls_group {
    ls__list link; /* in comm->groups. Changed with lock and token, read with either */
    ls__comm *comm;
    const ls__backend *backend;
    char name[LS__GROUP_NAME_MAX];
    uint32_t id;
    int rank, size;
    bool has_remote;              /* const */
    int channels;                 /* lock */
    ls__group_member *member;     /* [size], const */
    ls__control_block *own;       /* member[rank].control */
    uint64_t sequence;            /* lock: operations submitted */
    uint64_t tuner_operations;    /* lock: of these, the tuner's */
    _Atomic uint64_t posted;      /* the last one announced: release under lock, acquire */
    uint64_t told;                /* token: the last one whose announcement far members have */
    ls__list queue;               /* lock: collectives not ended, in order */
    ls_work *next_post;           /* lock: the first of them that is not announced; NULL: none */
    ls__list mail;                /* lock: sends and receives that the engine has not seen yet */
    _Atomic uint32_t mailed;      /* how many */
    uint64_t letters_made;        /* lock: sends and receives submitted */
    _Atomic uint32_t pending;     /* works not ended, letters too */
    uint32_t handles;             /* lock: works that somebody will wait for */
    bool closed;                  /* lock: freed but for this struct, which the last handle ends */
    uint64_t room_until;          /* lock: every member has finished this one (a lower bound) */
    uint64_t finished_seen;       /* token: every member has told that it finished this one */
    uint64_t slices;              /* token: STAGE slices used so far */
    ls__exec *exec;               /* token */
    ls__exec *publisher;          /* lock: binds buffers for what is announced early */
    ls__p2p *p2p;                 /* token */
    ls__turns *turns;             /* const; not NULL: a handle over several groups, and no more */
    ls__tuning *tuning;           /* const from join on; NULL: not tuned */
    ls__list packs;               /* lock: memory of operations on many buffers, not in use */
    const ls__program **programs; /* lock: [ls__choose_room], NULL until used */
    ls__small_kind small[LS__SMALL_KINDS]; /* lock */
    /* The first cause. Text first, then failed with release; readers acquire. */
    _Atomic int32_t failed; /* 0 or an ls_status */
    char failure[LS__FAILURE_MAX];
    int failed_by; /* whose doing it is: a rank of the world, -1 unknown; before `failed` */
    uint64_t claim_seen_ns; /* token: since when a claim lacks its text */
    /* A cause of this rank's that is told to far members: ls__claim_state. Sync: see far.c. */
    _Atomic uint32_t claim;
    ls_status claim_status;
    int claim_by;
    uint64_t claim_ns;
    char claim_text[LS__FAILURE_MAX];
    /* Counters: written by the token's holder, read by anybody, relaxed. */
    _Atomic uint64_t operations, messages, bytes_sent, bytes_received, wait_ns;
};

struct ls__comm {
    ls_runtime *runtime;
    const ls__env *env;
    ls__boot boot;
    ls__board *board;
    ls__board_rank *me; /* this rank's record on the board */
    ls__heap heap;
    const ls__reduce_table *kernels;
    ls__transport *transport;
    ls__remote *remote; /* NULL: all ranks share memory */
    ls_group *world;
    bool may_spin;             /* ranks of this host do not outnumber its cores */
    int channels;              /* of a new group */
    _Atomic uint32_t yields;   /* relaxed, apart.h */
    _Atomic uint64_t moved_ns; /* relaxed; this rank last moved to another core, or tried to */
    bool has_cma;              /* const: reads private memory of every rank of this host (peek.h) */
    bool cma_always; /* const: it was asked for, so also where it pays with huge pages only */
    ls__operator operators[LS__OPERATORS_MAX]; /* lock */
    bool strict;        /* LOCKSTEP_CHECK=strict: call sites are compared too */
    int forced;         /* ls__way, for tests; 0: none */
    ls__rules rules;    /* const */
    ls__tune_mode tune; /* const */

    ls__lock lock;
    bool making; /* lock: a thread is in ls_group_new */
    bool frozen; /* lock: no memory for a note of the past: nothing is used again */
    ls__list groups;
    ls__list pool;          /* lock: works not in use */
    ls__arena works;        /* lock: where they come from */
    uint64_t works_made;    /* lock: for the test that steady state allocates nothing */
    uint32_t next_group;    /* changed with lock and token, read with either; known ids are below */
    ls__list sleepers;      /* lock: threads that wait, but for the library's own */
    ls__deadlock *deadlock; /* token: memory for looking; NULL until somebody waits for long */
    ls__list held; /* lock: groups of the past that a member may still touch (ls__reclaim) */

    _Atomic uint32_t progress_lock; /* acquire by exchange, released seq_cst */
    _Atomic uint32_t pending;       /* works not ended, of all groups */
    _Atomic uint32_t by_message;    /* of these, those that need the message transport */
    _Atomic uint32_t waiter_word, waiters;
    _Atomic uint32_t thread_word, thread_away;
    _Atomic uint32_t stop;
    ls__env_thread *thread;
    uint64_t next_check_ns;   /* token */
    _Atomic uint32_t spin_ns; /* relaxed; see Note [Patience]. 0: it does not help */
    _Atomic uint32_t waits;   /* relaxed: of those without spinning */
    bool verdict_logged;      /* token */
    ls__list orphans;         /* token: messages for groups this rank does not know yet */
    ls__list notes;           /* token: memory for such messages, not in use */
    int first_peer;           /* token: whose messages are looked at first */
};

ls__comm *ls__comm_get(const char *what); /* of the current runtime; NULL with the error set */
/* What ranks must agree on, as text. */
void ls__comm_config(const ls__comm *comm, char *out, size_t bytes);
ls__board_rank *ls__comm_record(const ls__comm *comm, int world_rank); /* far: its mirror */
/* "rank 2 (host h, pid 12)", near or far */
void ls__comm_name(const ls__comm *comm, int world_rank, char *out, size_t bytes);
/* The same with "… in the backward pass …" */
void ls__comm_describe(const ls__comm *comm, int world_rank, char *out, size_t bytes);

/* ---- engine.c: progress and waiting ------------------------------------------------------- */

/* token; whether anything moved. A thorough turn also looks at every message ring. */
bool ls__engine_turn(ls__comm *comm, bool thorough);
bool ls__progress_try(ls__comm *comm);
void ls__progress_take(ls__comm *comm); /* waits for it; never from a callback */
void ls__progress_release(ls__comm *comm);
/* Until the work has ended, or this time (0: as long as it takes). */
void ls__engine_wait(ls__comm *comm, ls_work *work, uint64_t until_ns);
/* Drives until the counter is 0: nothing of a group, or of all, is in flight. */
void ls__engine_drain(ls__comm *comm, const _Atomic uint32_t *pending);
/* A wait without progress: engine.c, Note [Patience]. */
typedef struct ls__backoff {
    uint64_t since_ns; /* of the present wait without progress; 0: not begun */
    uint64_t begun_ns; /* of the whole wait */
    uint64_t spin_ns;  /* how long it spins before it yields */
    unsigned looks;
    bool yielded; /* spinning was not enough */
} ls__backoff;
/* A look that is not the first has found nothing, now; else `left` begins by itself. */
void ls__backoff_begin(ls__comm *comm, ls__backoff *p, uint64_t now_ns);
/* Spins or yields once; false: it is time to sleep. */
bool ls__backoff_left(ls__comm *comm, ls__backoff *p);
/* Something moved: begins anew, and remembers whether spinning was enough. token */
void ls__backoff_rewarded(ls__comm *comm, ls__backoff *p);
ls_status ls__engine_start(ls__comm *comm);
void ls__engine_stop(ls__comm *comm);
/* A work was submitted that no caller drives; `ready`: there is something to do right now. */
void ls__engine_notify(ls__comm *comm, bool ready);
void ls__ring(ls__comm *comm, int local); /* wakes a rank that sleeps on its doorbell */
void ls__ring_members(ls_group *group);

/* ---- work.c: works and their end ---------------------------------------------------------- */

ls_work *ls__work_take(ls__comm *comm);            /* lock; NULL without memory */
void ls__work_give(ls__comm *comm, ls_work *work); /* lock */
/* An operation came through that was called then: a failure before it is of the past. */
void ls__work_survived(const ls__comm *comm, uint64_t queued_ns);
/* Ends a work that is in no list any more: record, counters, callback, then its status. token */
void ls__work_end(ls_work *work, ls_status status);
/* LS_ERR_STATE in a callback: what it waited for would wait for it. */
ls_status ls__work_may_wait(const char *what);

/* ---- post.c: stamps and descriptors ------------------------------------------------------- */

/* lock; announces works of the queue as far as there is room. True: of one of them all members are
 * there, so somebody must drive it now. */
bool ls__post_flush(ls_group *group);
bool ls__post_all_at(const ls_group *group, uint64_t sequence, uint64_t fences);
void ls__post_reach(ls_group *group, uint64_t sequence, uint64_t fences);
/* The first member that has not reached it; -1: all have. */
int ls__post_missing(const ls_group *group, uint64_t sequence, uint64_t fences);
/* lock; whether the number may be announced, with so many of its slots: Note [Room] in post.c. A
 * rank that has no room is not rung for: it must ask by announcing. */
bool ls__post_room(ls_group *group, uint64_t sequence, uint64_t ahead);
void ls__post_finish(ls_group *group, uint64_t sequence); /* "finished", and wakes who wants room */
static inline ls__post *ls__post_slot(const ls_group *group, int member, uint64_t sequence)
{
    return &group->member[member].control->post[sequence % LS__WINDOW];
}
unsigned char *ls__small_stage(const ls_group *group, int member, uint64_t sequence);
/* Whether what a one-shot operation publishes stands beside its announcement (bind.c). */
bool ls__small_in_line(const ls_work *work);
/* Where a one-shot operation that the member has announced publishes. */
unsigned char *ls__small_place(const ls_group *group, int member, uint64_t sequence);
/* Writes all that belongs to an announcement but the stamp, which must follow at once. lock */
void ls__post_write(ls_group *group, const ls__descriptor *d, ls__line *line);

/* ---- exec.c / choose.c: running programs -------------------------------------------------- */

/* How to run what is not decided yet, by what all members have announced. */
ls__way ls__choose_way(const ls_group *group, const ls_work *work);
/* Whether private buffers of this size are offered to be read; `algorithm`: asked for, or NULL. */
bool ls__choose_reading(const ls_group *group, ls__operation operation,
                        const ls__algorithm *algorithm, int64_t bytes);
/* lock; NULL: no such program (error set) */
const ls__program *ls__choose_program(ls_group *group, const ls_work *work, ls__way way);
size_t ls__choose_room(int size); /* programs a group of this size may need */
/* lock; sets way and program if one-shot. LS_ERR_MEMORY: this rank cannot tell, and must not go on
 * as if it were not, since its peers decide without it. */
ls_status ls__choose_small(ls_group *group, ls_work *work);
/* Runs the steps before fence 0 of a small operation, and says in the line what they published
 * where. lock */
void ls__exec_publish(ls_group *group, ls_work *work, ls__line *line);

/* ---- failure.c ---------------------------------------------------------------------------- */

void ls__comm_tell_board(const ls__comm *comm, ls_status status, const char *text);
/* Proposes a first cause for the group, tells all members, and returns; any thread. */
void ls__group_cause(ls_group *group, ls_status status, const char *text);
/* The same, of what rank `by` of the world has done. */
void ls__group_cause_by(ls_group *group, ls_status status, const char *text, int by);
/* The group's first cause, told to the user now: an end that follows is a consequence, which the
 * board says if it is another's doing. */
const char *ls__group_hear(const ls_group *group);
void ls__comm_note_told(const ls__comm *comm, ls_status status, int by, const char *text);
/* token: if the group has a cause, takes it over and ends its works. True: it has failed. */
bool ls__group_failed(ls_group *group);
/* It has failed, and is told so when member 0, on another host, has answered. Until then nothing
 * more is announced: a peer might compare it with its own before it hears of the failure. */
static inline bool ls__group_failing(const ls_group *group)
{
    return group->member[0].remote &&
           atomic_load_explicit(&group->claim, memory_order_relaxed) != LS__CLAIM_NONE;
}
void ls__engine_check(ls__comm *comm, uint64_t now_ns); /* token: verdict, deadlines, stalls */
bool ls__comm_look(ls__comm *comm); /* token: cheap look for verdicts and claims */

/* ---- deadlock.c --------------------------------------------------------------------------- */

/* token: says what this rank waits for, and fails its groups if it is in a circle. */
void ls__deadlock_check(ls__comm *comm, uint64_t now_ns);
/* The rank has just given up in a circle, of which this is the text: why it is no longer there. */
bool ls__deadlock_left(const ls__comm *comm, int world_rank, char *out, size_t bytes);
void ls__deadlock_close(ls__comm *comm);

/* ---- past.c: memory that a peer may still touch ------------------------------------------- */

typedef enum ls__reclaim_kind {
    LS__RECLAIM_FAILED, /* until all have stopped touching memory for it: data stays in quarantine */
    LS__RECLAIM_LEFT    /* until all have left it: then the control block is freed */
} ls__reclaim_kind;

typedef struct ls__reclaim {
    ls__list link;
    ls__reclaim_kind kind;
    uint32_t id;
    void *control; /* LEFT: the block to free; NULL: none */
    int size;
    int member[]; /* world ranks */
} ls__reclaim;

/* Notes the group; without memory for the note nothing that is freed is ever used again. */
void ls__reclaim_add(ls_group *group, ls__reclaim_kind kind, void *control);
/* Lets go of what no member touches any more. Returns whether a failed group still holds data. */
bool ls__reclaim_settle(ls__comm *comm);
void ls__reclaim_clear(ls__comm *comm);

/* ---- mismatch.c --------------------------------------------------------------------------- */

/* token: compares what the members that reached fence 0 announced. True: they differ, and the
 * group was told so. */
bool ls__mismatch_check(ls_group *group, const ls_work *work);
/* token: the same of this rank and a far member of which the operation was just heard. */
void ls__mismatch_heard(ls_group *group, int member, uint64_t sequence);
bool ls__descriptor_equal(const ls__comm *comm, const ls__descriptor *a, const ls__descriptor *b);
/* All that is compared of an operation of a group, in one word; 0 if it does not fit. */
uint64_t ls__descriptor_key(const ls__comm *comm, const ls__descriptor *d);
/* "all_reduce #17 on group "world" disagrees: rank 0 …, rank 1 …; give every rank the same …" */
void ls__mismatch_text(const ls_group *group, const ls__descriptor *a, int rank_a,
                       const ls__descriptor *b, int rank_b, char *out, size_t bytes);
/* "all_reduce #17 (bucket 3) on group "world"" */
void ls__operation_text(const ls_group *group, const ls__descriptor *d, char *out, size_t bytes);

/* token: rank `from` has sent a block of a v-variant in another length than this rank expects. */
void ls__mismatch_block(ls_group *group, int from, const ls__descriptor *sender, int64_t sent,
                        int64_t expected);

/* ---- counts.c: blocks of unequal lengths ---------------------------------------------------- */

/* Arguments of a v-variant on this rank. */
ls_status ls__counts_check(const char *what, const ls_group *group, const ls__collective *args);
/* The same of buffers that lie on each other; both are used, and memory could hold them. */
ls_status ls__overlap_check(const char *what, const ls_group *group, const ls__collective *args);
/* lock; memory for the work's table; false: there is none. */
bool ls__counts_room(ls__comm *comm, ls_work *work);
/* lock; copies counts and offsets, and sets the work's and the descriptor's counts. */
void ls__counts_fill(const ls_group *group, const ls__collective *args, ls_work *work);
/* ": counts[2] is 7 on rank 0 and 9 on rank 1", as far as this rank can tell; or "" */
void ls__counts_difference(const ls_group *group, const ls__descriptor *a, int rank_a,
                           const ls__descriptor *b, int rank_b, char *out, size_t bytes);
/* token: of the operation in progress */
const ls__descriptor *ls__counts_descriptor(const ls_group *group);

/* ---- shown.c: the same in memory of one host ------------------------------------------------ */

/* Whether members show each other where their blocks are. All members find the same. */
bool ls__v_layout_can(const ls_group *group);
/* Where the input lies, for the descriptor. */
void ls__v_layout_describe(const ls_group *group, ls_work *work);
/* lock; before it is announced. Sets input and offsets anew if they can be packed. */
void ls__v_layout_publish(ls_group *group, ls_work *work);
/* token: when all have announced it: whether a block is not as long as this rank expects; then the
 * group was told so. Sets the count to the longest block of all. */
bool ls__v_layout_differ(ls_group *group, ls_work *work);
ls__way ls__v_layout_way(const ls_group *group, const ls_work *work);
/* Where block `chunk` of the member's input starts, in elements. */
int64_t ls__v_layout_offset(const ls_group *group, const ls_work *work, int member, int chunk);

/* ---- flight.c ----------------------------------------------------------------------------- */

/* lock; the record's number */
uint64_t ls__flight_open(ls__comm *comm, const ls_group *group, const ls__descriptor *descriptor,
                         uint64_t queued_ns);
/* Of a small one that has just been opened; its start is not noted. */
void ls__flight_end(ls__comm *comm, uint64_t number, ls_status status, uint64_t now_ns);
void ls__flight_start(ls__comm *comm, const ls_work *work);
void ls__flight_close(ls__comm *comm, const ls_work *work, ls_status status, uint64_t now_ns);

/* ---- letters.c: send and recv, and the streams of MESSAGES programs ------------------------ */

ls_status ls__p2p_open(ls_group *group);
void ls__p2p_close(ls_group *group);
bool ls__p2p_turn(ls__comm *comm); /* token */

/* ---- round_robin.c: handles over several groups ------------------------------------------- */

/* The group that the next operation on `group` runs on: itself, if it is no such handle. */
ls_group *ls__turns_group(ls_group *group, bool letter);
void ls__turns_pass(ls_group *group, bool letter); /* that operation has been called */
int ls__turns_count(const ls_group *group);        /* groups behind it; 1: itself */
ls_group *ls__turns_at(const ls_group *group, int i);
void ls__turns_free(ls_group *handle);

/* ---- many.c ------------------------------------------------------------------------------- */

typedef struct ls__pack ls__pack; /* memory of a group for an operation, registered if possible */
void ls__packs_free(ls_group *group);
ls__pack *ls__pack_take(ls_group *group, size_t bytes, int room); /* NULL: no memory */
void *ls__pack_memory(const ls__pack *p);
void ls__pack_give(ls__pack *p); /* any thread, without the lock */

/* ---- operators.c -------------------------------------------------------------------------- */

/* A copy of the user's operator of this value; its function is NULL where there is none. */
ls__operator ls__operator_of(ls__comm *comm, ls_reduce_op op);
/* Multiplies the input of a PREMUL_SUM: in place, or into a pack, which `args` uses then. */
ls_status ls__premultiply(ls_group *group, ls__collective *args, double factor);

/* ---- group.c ------------------------------------------------------------------------------ */

/* What a group is made of. Collective over the parent, between begin_making and end_making: one
 * thread at a time. */
typedef struct ls__founding {
    const int *ranks; /* of the parent; NULL: all */
    int count;
    const char *name; /* NULL: numbered */
    const char *tag;  /* what all ranks of the parent must agree on; NULL: name and ranks. With one
                         the ranks may make different groups, each of its own ranks, or none */
    bool among;       /* collective over these ranks only */
} ls__founding;
ls_status ls__group_found(ls_group *parent, const ls__founding *founding, ls_group **out);
typedef struct ls__group_exchange { /* among some ranks of a group */
    ls_group *parent;
    const int *ranks;
    int count;
    const char *tag;
} ls__group_exchange;
ls_status ls__group_exchange_among(const ls__group_exchange *exchange, void *all, size_t bytes);
ls_status ls__group_begin_making(ls_group *parent);
void ls__group_end_making(ls__comm *comm);

typedef struct ls__group_spec {
    const char *name;
    uint32_t id;
    int rank, size;
    const int *world_rank;   /* [size] */
    const uint64_t *control; /* [size] offsets in each member's heap */
} ls__group_spec;
/* All that needs memory: rank, size and world_rank of the spec. Without mirrors of its own the
 * control blocks of far members are those that `control` says. */
ls_status ls__group_make(ls__comm *comm, const ls__group_spec *spec, bool mirrors, ls_group **out);
void ls__group_unmake(ls_group *group); /* of one that was not joined; NULL is allowed */
void ls__group_join(ls_group *group, const ls__group_spec *spec); /* the engine knows it then */
void ls__group_close(
    ls_group *group); /* local: unlinks and frees, the struct with its last handle */
void ls__group_forget(ls_group *group); /* frees the struct itself */

static inline void ls__count(_Atomic uint64_t *counter, uint64_t amount)
{
    /* One writer at a time (the token's holder), so no read-modify-write is needed. */
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + amount,
                          memory_order_relaxed);
}

#endif
