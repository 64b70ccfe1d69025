/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated env table: clock, random numbers, threads, memory files and facts of the host. What
 * has a file of its own is declared in entries.h. */
#include "sim/entries.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/assert.h"

#define WALL_START_NS 1700000000000000000u

/* ---- clock, random, cores ------------------------------------------------------------------ */

static uint64_t now_ns(const ls__env *env LS__UNUSED)
{
    ls__sim_point();
    return ls__sim->now_ns;
}

static uint64_t wall_ns(const ls__env *env LS__UNUSED)
{
    ls__sim_point();
    return WALL_START_NS + ls__sim->now_ns;
}

static void sleep_until(const ls__env *env LS__UNUSED, uint64_t deadline_ns)
{
    ls__sim_point();
    while (ls__sim->now_ns < deadline_ns) {
        (void)ls__sim_sleep(deadline_ns);
    }
}

static int random_bytes(const ls__env *env LS__UNUSED, void *out, size_t bytes)
{
    ls__sim_point();
    for (size_t i = 0; i < bytes; i++) {
        ((unsigned char *)out)[i] = (unsigned char)ls__sim_draw(&ls__sim->random);
    }
    return 0;
}

static int cores(const ls__env *env LS__UNUSED)
{
    return ls__sim->host[ls__sim_current()->host].cores;
}

/* ---- threads ------------------------------------------------------------------------------- */

static int thread_start(const ls__env *env LS__UNUSED, const char *name LS__UNUSED,
                        void (*fn)(void *arg), void *arg, ls__env_thread **out)
{
    ls__sim_point();
    *out = (ls__env_thread *)(void *)ls__sim_fiber_new(ls__sim_current(), fn, arg);
    return 0;
}

static void thread_join(const ls__env *env LS__UNUSED, ls__env_thread *thread)
{
    ls__sim_point();
    const ls__sim_fiber *f = (const ls__sim_fiber *)(void *)thread;
    while (f->state != LS__SIM_OVER) {
        ls__sim->running->joins = f;
        (void)ls__sim_sleep(LS__NEVER);
    }
}

static int park(const ls__env *env LS__UNUSED, _Atomic uint32_t *word, uint32_t expected,
                uint64_t deadline_ns)
{
    ls__sim_point();
    ls__sim_fiber *f = ls__sim->running;
    const uint32_t value = __atomic_load_n((const uint32_t *)(const void *)word, __ATOMIC_SEQ_CST);
    if (value != expected) {
        return -EAGAIN;
    }
    if (ls__sim->now_ns >= deadline_ns) {
        return -ETIMEDOUT;
    }
    f->word = word;
    return ls__sim_sleep(deadline_ns) ? -ETIMEDOUT : 0;
}

static void wake(const ls__env *env LS__UNUSED, _Atomic uint32_t *word, int count)
{
    ls__sim_point();
    for (int i = 0; i < ls__sim->fibers && count > 0; i++) {
        ls__sim_fiber *f = ls__sim->fiber[i];
        if (f->state == LS__SIM_ASLEEP && f->word == word) {
            ls__sim_wake(f);
            count--;
        }
    }
}

static void yield(const ls__env *env LS__UNUSED)
{
    ls__sim_point();
    ls__sim->now_ns += 1 + ls__sim_below(&ls__sim->choice, ls__sim->pace.yield_ns);
    ls__sim_switch();
}

/* ---- memory files -------------------------------------------------------------------------- */

static int shm_create(const ls__env *env LS__UNUSED, const char *name LS__UNUSED, size_t bytes)
{
    ls__sim_point();
    ls__sim_object *o = ls__sim_object_new(LS__SIM_SHM);
    o->memory = ls__sim_memory_new(bytes);
    return ls__sim_fd_new(ls__sim_current(), o);
}

static int shm_resize(const ls__env *env LS__UNUSED, int fd, size_t bytes)
{
    ls__sim_point();
    const ls__sim_object *o = ls__sim_fd(fd, LS__SIM_SHM);
    if (o == NULL) {
        return -EBADF;
    }
    o->memory->bytes = bytes > o->memory->bytes ? bytes : o->memory->bytes;
    return 0;
}

static int64_t shm_size(const ls__env *env LS__UNUSED, int fd)
{
    ls__sim_point();
    const ls__sim_object *o = ls__sim_fd(fd, LS__SIM_SHM);
    return o != NULL ? (int64_t)o->memory->bytes : -EINVAL;
}

static int shm_seal(const ls__env *env LS__UNUSED, int fd)
{
    ls__sim_point();
    const ls__sim_object *o = ls__sim_fd(fd, LS__SIM_SHM);
    if (o != NULL) {
        o->memory->sealed = true;
    }
    return o != NULL ? 0 : -EBADF;
}

static int shm_map(const ls__env *env LS__UNUSED, int fd, size_t reserve, size_t phase LS__UNUSED,
                   void **out)
{
    ls__sim_point();
    const ls__sim_object *o = ls__sim_fd(fd, LS__SIM_SHM);
    if (o == NULL || !ls__sim_memory_map(o->memory, reserve)) {
        return o == NULL ? -EBADF : -ENOMEM;
    }
    *out = o->memory->at;
    return 0;
}

static size_t address_space(const ls__env *env LS__UNUSED)
{
    return SIZE_MAX;
}

static void shm_unmap(const ls__env *env LS__UNUSED, void *memory LS__UNUSED,
                      size_t reserve LS__UNUSED)
{
    ls__sim_point();
}

/* Pages of 4096 bytes. */
static void shm_forget(const ls__env *env LS__UNUSED, void *memory, size_t bytes)
{
    ls__sim_point();
    const uintptr_t page = 4096, at = (uintptr_t)memory;
    const uintptr_t from = (at + page - 1) / page * page, to = (at + bytes) / page * page;
    if (from < to) {
        memset((void *)from, 0, to - from);
    }
}

static ssize_t shm_read(ls__sim_object *o, void *out, size_t bytes)
{
    const ls__sim_memory *m = o->memory;
    const size_t left = o->offset < m->bytes ? m->bytes - (size_t)o->offset : 0;
    const size_t take = bytes < left ? bytes : left;
    if (take > 0) {
        memcpy(out, m->at + o->offset, take);
        o->offset += take;
    }
    return (ssize_t)take;
}

static ssize_t shm_write(ls__sim_object *o, const void *in, size_t bytes)
{
    ls__sim_memory *m = o->memory;
    if (m->sealed || !ls__sim_memory_map(m, (size_t)o->offset + bytes)) {
        return -EPERM;
    }
    memcpy(m->at + o->offset, in, bytes);
    o->offset += bytes;
    m->bytes = o->offset > m->bytes ? (size_t)o->offset : m->bytes;
    return (ssize_t)bytes;
}

/* ---- descriptors of any kind --------------------------------------------------------------- */

static ssize_t env_read(const ls__env *env LS__UNUSED, int fd, void *out, size_t bytes)
{
    ls__sim_point();
    ls__sim_object *o = ls__sim_fd_any(ls__sim_current(), fd);
    ls__sim_object *right = NULL;
    if (o == NULL) {
        return -EBADF;
    }
    switch (o->kind) {
    case LS__SIM_STREAM:
        return ls__sim_stream_read(o, out, bytes, &right);
    case LS__SIM_SHM:
        return shm_read(o, out, bytes);
    case LS__SIM_FILE:
        return ls__sim_file_read(o, out, bytes);
    default:
        return -EINVAL;
    }
}

/* Descriptors 1 and 2 are the log's. */
static ssize_t env_write(const ls__env *env LS__UNUSED, int fd, const void *in, size_t bytes)
{
    ls__sim_point();
    if (fd == 1 || fd == 2) {
        ls__sim_note("says: %.*s", (int)bytes - 1, (const char *)in);
        return (ssize_t)bytes;
    }
    ls__sim_object *o = ls__sim_fd_any(ls__sim_current(), fd);
    if (o == NULL) {
        return -EBADF;
    }
    switch (o->kind) {
    case LS__SIM_STREAM:
        return ls__sim_stream_write(o, in, bytes, NULL);
    case LS__SIM_SHM:
        return shm_write(o, in, bytes);
    case LS__SIM_FILE:
        return ls__sim_file_write(o, in, bytes);
    default:
        return -EINVAL;
    }
}

/* A further description of a memory file, as /proc/self/fd gives. */
static int reopen(int fd)
{
    const ls__sim_object *o = ls__sim_fd(fd, LS__SIM_SHM);
    if (o == NULL) {
        return -ENOENT;
    }
    ls__sim_object *again = ls__sim_object_new(LS__SIM_SHM);
    again->memory = o->memory;
    again->memory->refs++;
    return ls__sim_fd_new(ls__sim_current(), again);
}

static int env_open(const ls__env *env LS__UNUSED, const char *path, int flags, int mode)
{
    ls__sim_point();
    int fd = -1;
    if (sscanf(path, "/proc/self/fd/%d", &fd) == 1) {
        return reopen(fd);
    }
    return ls__sim_file_open(path, flags, mode);
}

static int peer_uid(const ls__env *env LS__UNUSED, int fd, uid_t *uid)
{
    ls__sim_point();
    *uid = 1000;
    return ls__sim_fd(fd, LS__SIM_STREAM) != NULL ? 0 : -EBADF;
}

static int peer_pid(const ls__env *env LS__UNUSED, int fd, pid_t *pid)
{
    ls__sim_point();
    const ls__sim_object *s = ls__sim_fd(fd, LS__SIM_STREAM);
    const ls__sim_object *peer = s != NULL && s->out != NULL ? s->out->reader : NULL;
    *pid = peer != NULL && peer->opener != NULL ? peer->opener->pid : 0;
    return s != NULL ? 0 : -EBADF;
}

/* ---- this process and this host ------------------------------------------------------------ */

static pid_t pid(const ls__env *env LS__UNUSED)
{
    return ls__sim_current()->pid;
}

static pid_t starter(const ls__env *env LS__UNUSED, const char *name LS__UNUSED)
{
    return ls__sim_current()->parent;
}

/* No terminal, so nobody asks for it. */
static void stop_self(const ls__env *env LS__UNUSED)
{
}

static int process_state(const ls__env *env LS__UNUSED, pid_t pid)
{
    ls__sim_point();
    const ls__sim_process *p = ls__sim_by_pid(pid);
    if (p == NULL || p->host != ls__sim_current()->host || (p->ended && p->reaped)) {
        return -ENOENT;
    }
    return p->ended ? 'Z' : p->stopped ? 'T' : 'S';
}

static bool process_traced(const ls__env *env LS__UNUSED, pid_t pid LS__UNUSED)
{
    return false;
}

/* The network of the simulator loses whole connections only, which reads and writes report. */
static int64_t tcp_unanswered_ms(const ls__env *env LS__UNUSED, int fd LS__UNUSED)
{
    return 0;
}

static int read_link(const ls__env *env LS__UNUSED, const char *path LS__UNUSED,
                     char *out LS__UNUSED, size_t bytes LS__UNUSED)
{
    return -EINVAL; /* the file system has none */
}

static int mark(const ls__env *env LS__UNUSED, const char *variable LS__UNUSED)
{
    return 0; /* no program here changes its environment */
}

static uid_t uid(const ls__env *env LS__UNUSED)
{
    return 1000;
}

static void catch_stop(const ls__env *env LS__UNUSED, const _Atomic uint32_t *no_more)
{
    ls__sim_point();
    ls__sim_current()->stop_over = no_more;
    ls__sim_current()->stop_caught = 0;
}

static void release_stop(const ls__env *env LS__UNUSED)
{
    ls__sim_point();
    ls__sim_current()->stop_over = NULL;
}

static int caught_stop(const ls__env *env LS__UNUSED)
{
    ls__sim_point();
    return ls__sim_current()->stop_caught;
}

static int adopt_orphans(const ls__env *env LS__UNUSED)
{
    return 0; /* nobody here has grandchildren that outlive their parent */
}

static int allow_descriptors(const ls__env *env LS__UNUSED, int count LS__UNUSED)
{
    return 0;
}

static int host_name(const ls__env *env LS__UNUSED, char *out, size_t bytes)
{
    snprintf(out, bytes, "%s", ls__sim->host[ls__sim_current()->host].name);
    return 0;
}

static int free_port(const ls__env *env LS__UNUSED)
{
    ls__sim_point();
    return 30000 + ls__sim->host[ls__sim_current()->host].next_port++;
}

static bool is_terminal(const ls__env *env LS__UNUSED, int fd LS__UNUSED)
{
    return false;
}

static int resolve(const ls__env *env LS__UNUSED, const char *name, char (*out)[LS__ADDRESS_MAX],
                   int room)
{
    ls__sim_point();
    for (int h = 0; h < ls__sim->hosts && room > 0; h++) {
        const ls__sim_host *host = &ls__sim->host[h];
        if (strcmp(host->name, name) == 0 || strcmp(host->address, name) == 0) {
            snprintf(out[0], LS__ADDRESS_MAX, "%s", host->address);
            return 1;
        }
    }
    if (room > 0 && (strcmp(name, "localhost") == 0 || strcmp(name, "127.0.0.1") == 0)) {
        snprintf(out[0], LS__ADDRESS_MAX, "127.0.0.1");
        return 1;
    }
    return -ENOENT;
}

static int interfaces(const ls__env *env LS__UNUSED, ls__env_interface *out, int room)
{
    ls__sim_point();
    const ls__sim_host *host = &ls__sim->host[ls__sim_current()->host];
    int count = 0;
    if (room > 0) {
        ls__env_interface *i = &out[count++];
        *i = (ls__env_interface){.name = "lo", .address = "127.0.0.1", .loopback = true};
    }
    if (room > 1) {
        ls__env_interface *i = &out[count++];
        *i = (ls__env_interface){.name = "eth0"};
        snprintf(i->address, sizeof i->address, "%s", host->address);
    }
    return count;
}

const ls__env ls__sim_env = {
    .now_ns = now_ns,
    .wall_ns = wall_ns,
    .sleep_until = sleep_until,
    .random_bytes = random_bytes,
    .allocate = ls__sim_env_allocate,
    .release = ls__sim_env_release,
    .thread_start = thread_start,
    .thread_join = thread_join,
    .park = park,
    .wake = wake,
    .yield = yield,
    .cores = cores,
    .poll = ls__sim_env_poll,
    .read = env_read,
    .write = env_write,
    .open = env_open,
    .close = ls__sim_env_close,
    .fsync = ls__sim_env_fsync,
    .rename = ls__sim_env_rename,
    .stat = ls__sim_env_stat,
    .read_link = read_link,
    .list = ls__sim_env_list,
    .remove_file = ls__sim_env_remove_file,
    .remove_folder = ls__sim_env_remove_folder,
    .lock_file = ls__sim_env_lock_file,
    .map_file = ls__sim_env_map_file,
    .unmap_file = ls__sim_env_unmap_file,
    .socket_pair = ls__sim_env_socket_pair,
    .send = ls__sim_env_send,
    .recv = ls__sim_env_recv,
    .peer_uid = peer_uid,
    .peer_pid = peer_pid,
    .host_listen = ls__sim_env_host_listen,
    .host_unlisten = ls__sim_env_host_unlisten,
    .name_folder = ls__sim_env_name_folder,
    .host_accept = ls__sim_env_host_accept,
    .host_connect = ls__sim_env_host_connect,
    .shm_create = shm_create,
    .shm_resize = shm_resize,
    .shm_size = shm_size,
    .shm_seal = shm_seal,
    .shm_map = shm_map,
    .address_space = address_space,
    .shm_unmap = shm_unmap,
    .shm_forget = shm_forget,
    .tcp_listen = ls__sim_env_tcp_listen,
    .tcp_accept = ls__sim_env_tcp_accept,
    .tcp_connect = ls__sim_env_tcp_connect,
    .tcp_connected = ls__sim_env_tcp_connected,
    .tcp_unanswered_ms = tcp_unanswered_ms,
    .tcp_name = ls__sim_env_tcp_name,
    .send_spans = ls__sim_env_send_spans,
    .recv_rooms = ls__sim_env_recv_rooms,
    .resolve = resolve,
    .interfaces = interfaces,
    .poller_open = ls__sim_env_poller_open,
    .poller_add = ls__sim_env_poller_add,
    .poller_remove = ls__sim_env_poller_remove,
    .poller_wait = ls__sim_env_poller_wait,
    .event_open = ls__sim_env_event_open,
    .event_set = ls__sim_env_event_set,
    .event_clear = ls__sim_env_event_clear,
    .spawn = ls__sim_env_spawn,
    .wait_exit = ls__sim_env_wait_exit,
    .kill = ls__sim_env_kill,
    .kill_group = ls__sim_env_kill_group,
    .pid = pid,
    .starter = starter,
    .process_state = process_state,
    .process_traced = process_traced,
    .uid = uid,
    .watch_process = ls__sim_env_watch_process,
    .catch_stop = catch_stop,
    .release_stop = release_stop,
    .caught_stop = caught_stop,
    .pipe = ls__sim_env_pipe,
    .signals_open = ls__sim_env_signals_open,
    .signals_close = ls__sim_env_signals_close,
    .signal_next = ls__sim_env_signal_next,
    .watch_parent = ls__sim_env_watch_parent,
    .adopt_orphans = adopt_orphans,
    .wait_any = ls__sim_env_wait_any,
    .mark = mark,
    .kill_marked = ls__sim_env_kill_marked,
    .stop_self = stop_self,
    .kill_children = ls__sim_env_kill_children,
    .allow_descriptors = allow_descriptors,
    .make_folder = ls__sim_env_make_folder,
    .free_bytes = ls__sim_env_free_bytes,
    .host_name = host_name,
    .free_port = free_port,
    .is_terminal = is_terminal,
};

/* What the library asks for by itself is the simulated table, too. */
const ls__env *ls__env_posix(void)
{
    return &ls__sim_env;
}
