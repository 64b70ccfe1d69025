/* SPDX-License-Identifier: Apache-2.0 */
/* The env table: everything that the library needs from the operating system (docs/design.md, D11).
 *
 * The real table is ls__env_posix(); a simulator supplies another and so runs the same engine,
 * store, bootstrap and launcher code with N ranks in one process. No file but env_posix*.c calls
 * poll, futex, recv, connect, waitpid, clock_gettime, fork or exec. All waits take an absolute
 * deadline of the table's own clock; LS__NEVER means no deadline. Failing entries return -errno.
 */
#ifndef LS_BASE_ENV_H
#define LS_BASE_ENV_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define LS__NEVER UINT64_MAX
#define LS__MAP_PHASES ((size_t)256 << 20)
#define LS__MAP_ANYWHERE SIZE_MAX

typedef struct ls__env ls__env;
typedef struct ls__env_thread ls__env_thread;

typedef struct ls__env_poll {
    int fd;
    bool want_read, want_write;       /* in */
    bool can_read, can_write, hangup; /* out */
} ls__env_poll;

typedef struct ls__env_exit { /* how a child ended */
    pid_t pid;
    int signal; /* 0: it exited */
    int code;
} ls__env_exit;

/* A child leads a process group of its own, gets SIGKILL when the thread that spawned it ends,
 * reads end of file from its standard input, has default signal handling, and inherits no
 * descriptor but 0-2 and keep_fds (with `fn`: and those of the user's that are not close-on-exec).
 */
typedef struct ls__env_spawn {
    const char *const *argv; /* NULL: run `fn` in a forked child instead of exec */
    const char *const *envp; /* complete environment of the child; NULL: ours */
    int (*fn)(void *arg);
    void *arg;
    int stdout_fd, stderr_fd; /* -1: inherit */
    const int *keep_fds;      /* descriptors the child inherits, besides 0-2 */
    int keep_count;
    bool helper; /* with `fn`: part of the library. It survives its parent, which it watches itself,
                    and ends without the user's exit handlers. Signals that ask it for something
                    (SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGTSTP) wait for its
                    signals_open */
} ls__env_spawn;

typedef struct ls__env_span { /* a piece of memory to be sent */
    const void *at;
    size_t bytes;
} ls__env_span;

typedef struct ls__env_room { /* a piece of memory to receive into */
    void *at;
    size_t bytes;
} ls__env_room;

#define LS__HOST_NAME_MAX 64
#define LS__ADDRESS_MAX 64 /* numeric: "10.0.0.1", "fe80::1%eth0" */

typedef struct ls__env_interface { /* one address of a network interface that is up */
    char name[32];
    char address[LS__ADDRESS_MAX];
    bool loopback;
} ls__env_interface;

/* The events of a poller. */
enum { LS__READY_READ = 1, LS__READY_WRITE = 2, LS__READY_HANGUP = 4 };

typedef struct ls__env_ready {
    uint64_t tag;
    int what; /* LS__READY_…, or-ed */
} ls__env_ready;

typedef enum ls__env_kind {
    LS__ENV_OTHER = 0,
    LS__ENV_FILE = 1,
    LS__ENV_FOLDER = 2,
    LS__ENV_LINK = 3
} ls__env_kind;

typedef struct ls__env_stat {
    ls__env_kind kind;
    int64_t bytes; /* of a file */
    int mode;      /* permissions, as 0600 */
    uid_t uid;     /* the owner */
    gid_t gid;
} ls__env_stat;

typedef struct ls__env_folder { /* a folder that must be this user's alone */
    char path[256];
    uid_t uid; /* where it is not: its owner, its permissions */
    int mode;
} ls__env_folder;

struct ls__env {
    /* clock */
    uint64_t (*now_ns)(const ls__env *env);  /* monotonic */
    uint64_t (*wall_ns)(const ls__env *env); /* since 1970 */
    void (*sleep_until)(const ls__env *env, uint64_t deadline_ns);

    /* random */
    int (*random_bytes)(const ls__env *env, void *out, size_t bytes);

    /* memory: aligned to 64 bytes, not zeroed */
    void *(*allocate)(const ls__env *env, size_t bytes);
    void (*release)(const ls__env *env, void *memory, size_t bytes);

    /* threads. park: sleeps while *word == expected (shared between processes: true for words in
     * shared memory), until woken or the deadline; returns 0, -ETIMEDOUT or -EAGAIN (value
     * differed); spurious returns of 0 are allowed. */
    int (*thread_start)(const ls__env *env, const char *name, void (*fn)(void *arg), void *arg,
                        ls__env_thread **out);
    void (*thread_join)(const ls__env *env, ls__env_thread *thread);
    int (*park)(const ls__env *env, _Atomic uint32_t *word, uint32_t expected,
                uint64_t deadline_ns);
    void (*wake)(const ls__env *env, _Atomic uint32_t *word, int count);
    void (*yield)(const ls__env *env);
    int (*cores)(const ls__env *env); /* this process may use */

    /* descriptors and files */
    int (*poll)(const ls__env *env, ls__env_poll *items, int count, uint64_t deadline_ns);
    ssize_t (*read)(const ls__env *env, int fd, void *out, size_t bytes);
    ssize_t (*write)(const ls__env *env, int fd, const void *in, size_t bytes);
    int (*open)(const ls__env *env, const char *path, int flags, int mode);
    int (*close)(const ls__env *env, int fd);
    int (*fsync)(const ls__env *env, int fd);
    int (*rename)(const ls__env *env, const char *from, const char *to);
    /* The kind, size and owner of the file at `path`; of a symbolic link itself unless `follow`. */
    int (*stat)(const ls__env *env, const char *path, bool follow, ls__env_stat *out);
    /* Writes the target of a symbolic link, as a text; its length, or -errno. */
    int (*read_link)(const ls__env *env, const char *path, char *out, size_t bytes);
    /* Calls each(arg, name) for every entry of a folder but "." and "..", in no order, until it
     * returns non-zero; returns that, 0, or -errno. */
    int (*list)(const ls__env *env, const char *path, int (*each)(void *arg, const char *name),
                void *arg);

    /* Bytes that this user may still write to the file system of `path`. */
    int (*free_bytes)(const ls__env *env, const char *path, uint64_t *out);
    int (*remove_file)(const ls__env *env, const char *path);
    int (*remove_folder)(const ls__env *env, const char *path); /* an empty one */
    /* Locks a file until `fd` is closed or the process ends; -EAGAIN: another process has it. */
    int (*lock_file)(const ls__env *env, int fd);
    /* Maps a regular file read-only; an empty one is *out == NULL. */
    int (*map_file)(const ls__env *env, const char *path, void **out, size_t *bytes);
    void (*unmap_file)(const ls__env *env, void *memory, size_t bytes);

    /* host-local connections and shared memory */
    int (*socket_pair)(const ls__env *env, int out[2]); /* AF_UNIX stream, non-blocking, cloexec */
    /* One sendmsg/recvmsg; pass_fd / *got_fd: -1 for none. Returns bytes or -errno. */
    ssize_t (*send)(const ls__env *env, int fd, const void *in, size_t bytes, int pass_fd);
    ssize_t (*recv)(const ls__env *env, int fd, void *out, size_t bytes, int *got_fd);
    int (*peer_uid)(const ls__env *env, int fd, uid_t *uid);
    int (*peer_pid)(const ls__env *env, int fd, pid_t *pid);
    /* Streams by a name of this host, at most LS__HOST_NAME_MAX bytes without a slash, that only
     * processes of this user find. -EPERM: name_folder says why not. */
    int (*host_listen)(const ls__env *env, const char *name);            /* -EADDRINUSE */
    void (*host_unlisten)(const ls__env *env, int fd, const char *name); /* closes fd */
    int (*host_accept)(const ls__env *env, int fd);                      /* -EAGAIN */
    int (*host_connect)(const ls__env *env, const char *name);           /* -ECONNREFUSED, -ENOENT:
                                                                            nobody listens */
    int (*name_folder)(const ls__env *env, ls__env_folder *out); /* where these names are kept */
    int (*shm_create)(const ls__env *env, const char *name, size_t bytes); /* memfd, cloexec */
    int (*shm_resize)(const ls__env *env, int fd, size_t bytes);           /* grows only */
    int64_t (*shm_size)(const ls__env *env, int fd); /* of such a memfd; -EINVAL: another fd */
    int (*shm_seal)(const ls__env *env, int fd);     /* its bytes never change again */
    /* Maps `reserve` bytes, of which the file may have fewer yet. The address is `phase` behind a
     * multiple of LS__MAP_PHASES, or anywhere with LS__MAP_ANYWHERE. */
    int (*shm_map)(const ls__env *env, int fd, size_t reserve, size_t phase, void **out);
    void (*shm_unmap)(const ls__env *env, void *memory, size_t reserve);
    /* Gives the whole pages within [memory, memory + bytes) of a mapping back to the system, for
     * all processes that map the file; they read as zeros. Others, and all where the system cannot,
     * keep their bytes. */
    void (*shm_forget)(const ls__env *env, void *memory, size_t bytes);
    /* Bytes of address space that this process may still map; SIZE_MAX: no limit is set. */
    size_t (*address_space)(const ls__env *env);

    /* TCP: streams that are non-blocking, close-on-exec and without delay. Addresses are numeric,
     * at most LS__ADDRESS_MAX bytes; those that come from names were resolved before. */
    int (*tcp_listen)(const ls__env *env, const char *address, int port);       /* port 0: any */
    int (*tcp_accept)(const ls__env *env, int fd, char *address, size_t bytes); /* -EAGAIN */
    /* Begins to connect, from the address `from` unless NULL; returns the descriptor. */
    int (*tcp_connect)(const ls__env *env, const char *address, int port, const char *from);
    int (*tcp_connected)(const ls__env *env, int fd); /* 0, -EINPROGRESS or why not */
    /* Milliseconds since the peer's system has last acknowledged anything, while bytes that were
     * sent await that; else 0. The process of the peer has no part in it. */
    int64_t (*tcp_unanswered_ms)(const ls__env *env, int fd);
    /* The numeric addresses of both ends; *port is the own one. */
    int (*tcp_name)(const ls__env *env, int fd, bool peer, char *address, size_t bytes, int *port);
    ssize_t (*send_spans)(const ls__env *env, int fd, const ls__env_span *spans, int count);
    /* Fills one room after the other, with one call; as recv. */
    ssize_t (*recv_rooms)(const ls__env *env, int fd, const ls__env_room *rooms, int count);
    /* Resolves a host name (blocks); writes up to `room` addresses; returns how many, or -errno
     * (-ENOENT: no such name). */
    int (*resolve)(const ls__env *env, const char *name, char (*out)[LS__ADDRESS_MAX], int room);
    int (*interfaces)(const ls__env *env, ls__env_interface *out, int room); /* how many */

    /* Pollers: readiness of many descriptors, edge-triggered: each change is reported once, so the
     * caller reads (writes) until -EAGAIN. A poller's descriptor may itself be polled. */
    int (*poller_open)(const ls__env *env);
    int (*poller_add)(const ls__env *env, int poller, int fd, uint64_t tag);
    int (*poller_remove)(const ls__env *env, int poller, int fd); /* before fd is closed */
    int (*poller_wait)(const ls__env *env, int poller, ls__env_ready *out, int room,
                       uint64_t deadline_ns); /* how many; 0: the deadline */
    int (*event_open)(const ls__env *env);    /* becomes readable by event_set until event_clear */
    void (*event_set)(const ls__env *env, int fd);
    void (*event_clear)(const ls__env *env, int fd);

    /* processes */
    int (*spawn)(const ls__env *env, const ls__env_spawn *spawn, pid_t *pid, int *pidfd);
    int (*wait_exit)(const ls__env *env, pid_t pid,
                     ls__env_exit *out); /* reaps; blocks not: -EAGAIN */
    int (*kill)(const ls__env *env, int pidfd, int signal);
    /* Signals the whole group of a child and what it started. Call it before the child is reaped:
     * after that its number may belong to another process. -ESRCH: the group is empty. */
    int (*kill_group)(const ls__env *env, pid_t pid, int signal);
    pid_t (*pid)(const ls__env *env); /* of this process */
    /* The nearest ancestor that was started without the variable `name`: the process that set
     * it. */
    pid_t (*starter)(const ls__env *env, const char *name);
    uid_t (*uid)(const ls__env *env);
    /* A descriptor that becomes readable when a process, of this user, ends; -ESRCH: it has. */
    int (*watch_process)(const ls__env *env, pid_t pid);
    /* Whether a debugger is attached to a process. */
    bool (*process_traced)(const ls__env *env, pid_t pid);
    /* The state of a process, by the letter of /proc: 'R', 'S', 'D', 'T' stopped, 't' held by a
     * debugger, 'Z' ended and not reaped; 'K': it is about to end; -ENOENT: no such process. */
    int (*process_state)(const ls__env *env, pid_t pid);

    /* Stop requests. catch_stop: SIGINT and SIGTERM are recorded instead of ending the process, if
     * their action is the default one; the second one ends it as before, and so does each once
     * *no_more is not 0. release_stop undoes that; until then no_more must stay readable. */
    void (*catch_stop)(const ls__env *env, const _Atomic uint32_t *no_more);
    void (*release_stop)(const ls__env *env);
    int (*caught_stop)(const ls__env *env); /* the signal noted since catch_stop; 0: none */

    /* launcher */
    int (*pipe)(const ls__env *env, int out[2]); /* out[0]: read, non-blocking; out[1]: write */
    /* A descriptor that becomes readable when one of the signals comes to this thread; they are
     * blocked until signals_close(env, fd, saved) puts back the mask in *saved. */
    int (*signals_open)(const ls__env *env, const int *signals, int count, uint64_t *saved);
    void (*signals_close)(const ls__env *env, int fd, uint64_t saved);
    int (*signal_next)(const ls__env *env, int fd); /* its number, or -EAGAIN */
    /* Does what SIGTSTP does to a process that does not expect it, also where signals_open has it:
     * stops this process until SIGCONT, unless no shell would continue it. */
    void (*stop_self)(const ls__env *env);
    /* pidfd of our parent if that is still `parent`; -ESRCH: it has ended. */
    int (*watch_parent)(const ls__env *env, pid_t parent);
    /* Orphaned descendants become our children from now on. */
    int (*adopt_orphans)(const ls__env *env);
    int (*wait_any)(const ls__env *env,
                    ls__env_exit *out); /* -EAGAIN or -ECHILD: none ended, none left */
    int (*kill_children)(const ls__env *env, int signal); /* all; returns how many */
    /* Marks this process, and all that it starts from now on, for kill_marked. */
    int (*mark)(const ls__env *env, const char *variable);
    /* All of this user, but this one, that were started with `variable` ("NAME=value") in their
     * environment, or that carry the mark; returns how many. */
    int (*kill_marked)(const ls__env *env, const char *variable, int signal);
    int (*allow_descriptors)(const ls__env *env, int count);  /* raises the limit, if it may */
    int (*make_folder)(const ls__env *env, const char *path); /* 0 also when it exists */
    int (*host_name)(const ls__env *env, char *out, size_t bytes);
    int (*free_port)(const ls__env *env); /* a TCP port of the loopback, free a moment ago */
    bool (*is_terminal)(const ls__env *env, int fd);
};

const ls__env *ls__env_posix(void);

/* now_ns + timeout_ms; LS__NEVER for a negative timeout and beyond the clock's end. */
static inline uint64_t ls__time_after(uint64_t now_ns, int64_t timeout_ms)
{
    return timeout_ms < 0 || (uint64_t)timeout_ms > (LS__NEVER - now_ns) / 1000000u
               ? LS__NEVER
               : now_ns + (uint64_t)timeout_ms * 1000000u;
}

static inline uint64_t ls__deadline_after(const ls__env *env, int64_t timeout_ms)
{
    return ls__time_after(env->now_ns(env), timeout_ms);
}

/* The reverse: how long it is to a deadline; -1: for ever. */
static inline int64_t ls__time_left_ms(const ls__env *env, uint64_t deadline_ns)
{
    const uint64_t now_ns = env->now_ns(env);
    return deadline_ns == LS__NEVER ? -1
           : deadline_ns > now_ns   ? (int64_t)((deadline_ns - now_ns) / 1000000u)
                                    : 0;
}

#endif
