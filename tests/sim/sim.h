/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated world: hosts, processes, threads, descriptors, a network and a clock, all in one
 * thread and all decided by a seed (docs/design.md, D11).
 *
 *     process ── fibers (its threads) ── run library code, which calls the env table of env.c
 *        │                                    │
 *     descriptors ──▶ objects (streams, memory files, …)      every call may switch fibers
 *
 * One fiber runs at a time. Where the next one may run (at each call of the table and at some
 * atomic operations) the seed decides who. Time moves a little with each call and jumps to the
 * next event when all fibers sleep. So a seed is one execution, to the last byte of the event log.
 */
#ifndef LS_SIM_SIM_H
#define LS_SIM_SIM_H

#include <stdatomic.h>

#include "base/compiler.h"
#include "base/env.h"
#include "base/list.h"
#include "base/runtime.h"
#include "base/splitmix64.h"
#include "sim/fiber.h"

#define LS__SIM_FIBERS_MAX 512
#define LS__SIM_PROCESSES_MAX 256
#define LS__SIM_HOSTS_MAX 16
#define LS__SIM_FDS_MAX 256
#define LS__SIM_SETTINGS_MAX 64
#define LS__SIM_TEXT_MAX 2048

typedef struct ls__sim_fiber ls__sim_fiber;
typedef struct ls__sim_process ls__sim_process;
typedef struct ls__sim_object ls__sim_object;
typedef struct ls__sim_memory ls__sim_memory;

/* ---- random -------------------------------------------------------------------------------- */

typedef struct ls__sim_random {
    uint64_t state;
} ls__sim_random;

static inline uint64_t ls__sim_draw(ls__sim_random *r)
{
    const uint64_t x = ls__splitmix64(r->state);
    r->state += LS__SPLITMIX64_GAMMA;
    return x;
}

static inline uint64_t ls__sim_below(ls__sim_random *r, uint64_t bound)
{
    return ls__sim_draw(r) % bound;
}

static inline bool ls__sim_chance(ls__sim_random *r, double p)
{
    return (double)(ls__sim_draw(r) >> 11) * 0x1p-53 < p;
}

/* ---- fibers -------------------------------------------------------------------------------- */

typedef enum ls__sim_state {
    LS__SIM_READY,
    LS__SIM_ASLEEP, /* until woken, or until wake_ns */
    LS__SIM_OVER
} ls__sim_state;

struct ls__sim_fiber {
    ls__fiber_context context;
    ls__thread self; /* what ls__self is while it runs */
    ls__sim_process *process;
    int number;
    ls__sim_state state;
    int slot;         /* in the list of those that may run; -1: not in it */
    uint64_t wake_ns; /* asleep: its deadline */
    bool timed_out;   /* why it woke */
    uint64_t slow_ns; /* what each call of this fiber costs on top */
    /* What it sleeps on. */
    const void *word;             /* park */
    const ls__env_poll *items;    /* poll */
    int item_count;               /* the same */
    const ls__sim_object *poller; /* poller_wait */
    const ls__sim_fiber *joins;   /* thread_join */
    void (*fn)(void *arg);
    void *arg;
    ls__sim_fiber *next_free;
};

/* ---- processes ------------------------------------------------------------------------------ */

struct ls__sim_process {
    int pid, parent; /* numbers */
    int host;
    int number; /* of the world's list */
    char name[24];
    bool dead;    /* no fiber of it runs any more */
    bool ended;   /* and its end can be seen by others */
    bool reaped;  /* by its parent, or there is none */
    bool stopped; /* SIGSTOP */
    bool helper;  /* survives its parent */
    bool fresh;   /* runs, without a switch, until its first call */
    ls__env_exit exit;
    int fibers;
    ls__sim_object *fd[LS__SIM_FDS_MAX];
    int fds;                  /* from here on none is open */
    int open_fds, leaked_fds; /* leaked: when it ended */
    int children;
    ls__sim_process *first_child;
    int fail_allocation; /* the n-th from now on finds no memory; 0: none does */
    char *setting[LS__SIM_SETTINGS_MAX + 1]; /* "NAME=value", the environment */
    int settings;
    uint64_t signals_watched, signals_pending; /* a bit a signal */
    const _Atomic uint32_t *stop_over;         /* catch_stop */
    int stop_caught;
    size_t bytes; /* allocated and not released */
    int blocks;
    uint64_t calls; /* of the env table */
    int (*fn)(void *arg);
    void *arg;
    ls__sim_fiber *main;
};

/* ---- objects -------------------------------------------------------------------------------- */

typedef enum ls__sim_kind {
    LS__SIM_STREAM,
    LS__SIM_LISTENER,
    LS__SIM_SHM,
    LS__SIM_FILE,
    LS__SIM_PIDFD,
    LS__SIM_SIGNALS,
    LS__SIM_POLLER,
    LS__SIM_EVENT
} ls__sim_kind;

typedef struct ls__sim_right { /* a descriptor on its way, with the byte at `at` */
    ls__list link;
    uint64_t at;
    ls__sim_object *object;
} ls__sim_right;

/* A bit on its way that is to change: of the next frame (comm/transport/tcp_wire.h) that is written
 * after it was set up. */
typedef struct ls__sim_flip {
    uint64_t drawn;             /* decides which bit */
    bool set;                   /* it has a place */
    uint64_t at, end;           /* the byte; end of the frame */
    bool read;                  /* the byte has been read */
    uint64_t read_ns, whole_ns; /* whole: the frame */
} ls__sim_flip;

/* One direction of a stream. Bytes are numbered from 0 on. */
typedef struct ls__sim_channel {
    unsigned char *data; /* a ring of `room` bytes, a power of two */
    size_t room, limit;  /* limit: bytes it takes */
    uint64_t read, arrived, written;
    ls__list rights;
    bool closed;                     /* the writer is gone: end of file behind what has arrived */
    bool closing;                    /* the same, not arrived yet */
    bool deaf;                       /* the reader is gone */
    bool lost;                       /* what is written arrives nowhere */
    uint64_t last_ns;                /* arrival of the last byte */
    ls__sim_object *reader, *writer; /* NULL: gone */
    ls__sim_flip *flip;              /* NULL: all bits arrive as they are */
} ls__sim_channel;

typedef struct ls__sim_watch { /* of a poller */
    ls__list link, in_object;
    ls__sim_object *poller, *object;
    int fd;
    uint64_t tag;
    bool news;
} ls__sim_watch;

struct ls__sim_object {
    ls__sim_kind kind;
    int refs;
    int number;
    ls__list watches; /* of pollers that look at it */
    /* streams */
    ls__sim_channel *in, *out;
    bool tcp, connecting;
    int error; /* negative; of connecting, or once the connection was reset */
    ls__sim_process *opener;
    int host, port, peer_host, peer_port;
    /* listeners */
    char name[LS__HOST_NAME_MAX + 1]; /* "": TCP */
    ls__sim_object *queue[64];
    int queued;
    ls__list link; /* in the world's listeners */
    /* memory and files */
    ls__sim_memory *memory;
    struct ls__sim_inode *inode;
    uint64_t offset;
    int flags;
    bool locks;
    /* the rest */
    ls__sim_process *process;
    bool set;        /* an event */
    ls__list looked; /* a poller's watches */
};

struct ls__sim_memory {
    int refs;
    size_t bytes;
    unsigned char *at; /* NULL: not mapped yet */
    size_t reserve;
    bool sealed;
    int slab;
};

/* ---- the world ------------------------------------------------------------------------------ */

typedef struct ls__sim_event {
    uint64_t at_ns, order;
    void (*fn)(void *a, uint64_t b);
    void *a;
    uint64_t b;
} ls__sim_event;

typedef struct ls__sim_host {
    char name[32], address[LS__ADDRESS_MAX];
    int cores;
    int next_port;
    bool down;
} ls__sim_host;

/* How the seed wants threads to run. */
typedef struct ls__sim_pace {
    double switch_chance; /* at each call of the table */
    int atomics;          /* about so many atomic operations between two switches; 0: never there */
    uint64_t call_ns;     /* time a call takes, at most */
    uint64_t yield_ns;    /* the same, of a yield */
    uint64_t latency_ns;  /* of the network, at least */
    uint64_t jitter_ns;   /* on top, at most; of each piece on its own */
    uint64_t wake_ns;     /* from a wake-up to running, at most */
    size_t socket_bytes;  /* what a socket takes */
    bool short_transfers; /* reads and writes may be cut */
    ls__sim_process *slow; /* runs rarely */
} ls__sim_pace;

typedef struct ls__sim_world {
    uint64_t seed, now_ns, event_order;
    uint64_t idle_ns; /* of now_ns: all threads slept, for longer than a message takes */
    ls__sim_random random, choice; /* for what happens; for who runs */
    ls__sim_pace pace;
    uint64_t switches, calls;
    uint64_t hash; /* of all that happened: equal for equal seeds */
    ls__fiber_context outside;
    ls__sim_fiber *running;
    ls__sim_fiber *fiber[LS__SIM_FIBERS_MAX];
    int fibers;
    ls__sim_fiber *ready[LS__SIM_FIBERS_MAX];
    int ready_count;
    uint64_t next_wake_ns; /* no sleeping fiber's deadline is before it */
    ls__sim_process *process[LS__SIM_PROCESSES_MAX];
    int processes, living;
    int next_pid;
    ls__sim_host host[LS__SIM_HOSTS_MAX];
    int hosts;
    bool cut[LS__SIM_HOSTS_MAX][LS__SIM_HOSTS_MAX]; /* bytes from a to b get lost */
    ls__sim_event *event;                           /* a heap */
    int events, event_room;
    ls__list listeners;
    int objects;              /* open; for the search for leaks */
    int made;                 /* objects ever */
    ls__list inodes, changes; /* names, and changes of names that are not on the disk */
    uint64_t disk_fault_in;   /* this call of the disk from now on fails; 0: none does */
    int disk_error;           /* with this */
    bool disk_failed;
    bool power_failed;
    uint64_t power_fails_in; /* at this call of the disk from now on; 0: it does not */
    uint64_t limit_ns;       /* of the clock: longer is a hang */
    uint64_t limit_switches;
    bool over; /* the run is to end: see `why` */
    char why[LS__SIM_TEXT_MAX];
    void (*log)(void *arg, const char *line);
    void *log_arg;
    bool log_switches;
    /* Called at each call of the table by a process; may kill it. */
    void (*watch)(void *arg, ls__sim_process *process);
    void *watch_arg;
} ls__sim_world;

extern ls__sim_world *ls__sim; /* the one there is */
extern _Thread_local ls__thread *ls__sim_self;
extern int ls__sim_planted;

/* world.c */
void ls__sim_begin(uint64_t seed);
/* Runs until all processes have ended, or something is wrong; then `over` and `why` tell. */
void ls__sim_run(void);
void ls__sim_end(void);
void ls__sim_stop(const char *format, ...) LS__PRINTF(1, 2); /* ends the run: a failure */
void ls__sim_note(const char *format, ...) LS__PRINTF(1, 2); /* a line of the event log */
void ls__sim_at(uint64_t at_ns, void (*fn)(void *a, uint64_t b), void *a, uint64_t b);
ls__sim_fiber *ls__sim_fiber_new(ls__sim_process *process, void (*fn)(void *arg), void *arg);
void ls__sim_freeze(ls__sim_process *process, bool stopped);
void ls__sim_fiber_end(ls__sim_fiber *fiber); /* its stack is used again; not of the running one */
/* The running fiber sleeps; true: its deadline came. */
bool ls__sim_sleep(uint64_t deadline_ns);
void ls__sim_wake(ls__sim_fiber *fiber);
void ls__sim_call(const char *entry); /* a call of the table: time passes, another may run */
#define ls__sim_point() ls__sim_call(__func__)
void ls__sim_switch(void); /* another runs now, if there is one */
void ls__sim_refuel(void);
ls__sim_process *ls__sim_current(void);
static inline ls__env_exit ls__sim_exited(int code)
{
    return (ls__env_exit){.code = code};
}

/* Runs a new fiber until it sleeps or makes a call; then the running one may go on. */
void ls__sim_run_first(ls__sim_fiber *fiber);

/* process.c */
ls__sim_process *ls__sim_process_new(int host, const char *name, int (*fn)(void *arg), void *arg);
void ls__sim_set(ls__sim_process *process, const char *name, const char *value);
/* SIGKILL, SIGSTOP, SIGCONT, and what others do. */
void ls__sim_kill(ls__sim_process *process, int signal);
/* The running process dies too, and does so at its next switch. */
void ls__sim_die(ls__sim_process *process, ls__env_exit how);
ls__sim_process *ls__sim_by_pid(int pid);

/* memory.c */
void *ls__sim_alloc(size_t bytes); /* of the world itself: zeroed, gone with it */
void ls__sim_memory_begin(void);
void ls__sim_memory_end(void);
ls__sim_memory *ls__sim_memory_new(size_t bytes);
bool ls__sim_memory_map(ls__sim_memory *memory, size_t reserve);
void ls__sim_memory_drop(ls__sim_memory *memory);

/* object.c */
ls__sim_object *ls__sim_object_new(ls__sim_kind kind);
void ls__sim_object_drop(ls__sim_object *object);
int ls__sim_fd_new(ls__sim_process *process, ls__sim_object *object); /* takes the reference */
ls__sim_object *ls__sim_fd(int fd, ls__sim_kind kind); /* of the running process; NULL: none such */
ls__sim_object *ls__sim_fd_any(ls__sim_process *process, int fd);
void ls__sim_fd_close(ls__sim_process *process, int fd);
int ls__sim_ready_for(const ls__sim_object *object); /* LS__READY_… */
void ls__sim_changed(ls__sim_object *object);        /* wakes who looks at it */

/* stream.c */
#define LS__SIM_UNIX_BYTES ((size_t)208 << 10) /* what a socket within a host takes */
ls__sim_channel *ls__sim_channel_new(size_t limit);
ls__sim_object *ls__sim_end_new(ls__sim_channel *in, ls__sim_channel *out);
uint64_t ls__sim_flight_ns(void); /* of a piece of bytes, between hosts */
/* Whether nothing gets from one host to the other now: then fn(a, b) comes again later. */
bool ls__sim_held_up(int from, int to, void (*fn)(void *a, uint64_t b), void *a, uint64_t b);
void ls__sim_fail_end(ls__sim_object *stream, int error); /* NULL is allowed */
void ls__sim_stream_gone(ls__sim_object *stream);
void ls__sim_listener_gone(ls__sim_object *listener);
int ls__sim_stream_ready(const ls__sim_object *stream);
void ls__sim_reset(ls__sim_object *stream); /* both ends see a reset */
ssize_t ls__sim_stream_read(ls__sim_object *stream, void *out, size_t bytes,
                            ls__sim_object **right);
ssize_t ls__sim_stream_write(ls__sim_object *stream, const void *in, size_t bytes,
                             ls__sim_object *right);

/* file.c */
void ls__sim_power_failure(void);
void ls__sim_put_file(const char *path, const void *data, size_t bytes, int mode);

/* env.c */
extern const ls__env ls__sim_env;

#endif
