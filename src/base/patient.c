/* One call at a time is handed to the thread and back:
 *
 *     IDLE ──(caller: a call)──▶ ASKED ──(thread: its result)──▶ IDLE
 *                                  └──(caller: the deadline)──▶ LOST   the thread owns the object
 *     IDLE ──(free)──▶ STOP
 *
 * Everything that the thread touches lies in the object, so that a caller may go on, and free its own
 * memory, while a call still hangs: paths are copied in, bytes and names copied out. */
#include "base/patient.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"

#define PATH_BYTES 4200
#define BUFFER_BYTES ((size_t)1 << 20) /* what one read or write takes at most */
#define NAMES_MAX ((size_t)64 << 20)   /* bytes of the names in a folder */

enum { IDLE, ASKED, LOST, STOP };

typedef int (*asked_fn)(ls__patient *p);

struct ls__patient {
    ls__env table; /* first: calls get its address */
    const ls__env *real;
    int64_t timeout_ms;
    ls__env_thread *thread;
    _Atomic uint32_t state; /* Sync: release by who ends its turn, acquire by the other */

    asked_fn fn; /* the call, and its arguments and results */
    ssize_t result;
    char path[PATH_BYTES], other[PATH_BYTES];
    int fd, flags, mode;
    bool follow;
    size_t bytes;
    void *mapped;
    ls__env_stat stat;
    uint64_t room;
    char *names; /* of a listing, each ended by 0; malloc */
    size_t names_bytes, names_room;
    uint8_t *buffer; /* [BUFFER_BYTES]; malloc, from the first read or write on */
};

static ls__patient *patient_of(const ls__env *env)
{
    return (ls__patient *)(uintptr_t)env;
}

/* Sync: the CAS decides whether the result came in time. */
static ssize_t ask(ls__patient *p, asked_fn fn)
{
    const ls__env *real = p->real;
    if (atomic_load_explicit(&p->state, memory_order_relaxed) == LOST) {
        return -ETIMEDOUT;
    }
    LS_ASSERT(atomic_load_explicit(&p->state, memory_order_relaxed) == IDLE);
    const uint64_t deadline = ls__deadline_after(real, p->timeout_ms);
    p->fn = fn;
    atomic_store_explicit(&p->state, ASKED, memory_order_release);
    real->wake(real, &p->state, 1);
    while (atomic_load_explicit(&p->state, memory_order_acquire) == ASKED) {
        uint32_t asked = ASKED;
        if (real->now_ns(real) >= deadline &&
            atomic_compare_exchange_strong_explicit(&p->state, &asked, LOST, memory_order_acquire,
                                                    memory_order_acquire)) {
            return -ETIMEDOUT;
        }
        (void)real->park(real, &p->state, ASKED, deadline);
    }
    return p->result;
}

static bool copy_path(char to[PATH_BYTES], const char *path)
{
    const size_t bytes = strlen(path) + 1;
    if (bytes > PATH_BYTES) {
        return false;
    }
    memcpy(to, path, bytes);
    return true;
}

/* The object is the thread's from then on: nothing may be written to it. */
static bool is_lost(ls__patient *p)
{
    return atomic_load_explicit(&p->state, memory_order_relaxed) == LOST;
}

/* Asks for a call about one path. */
static int ask_path(ls__patient *p, const char *path, asked_fn fn)
{
    if (is_lost(p)) {
        return -ETIMEDOUT;
    }
    return copy_path(p->path, path) ? (int)ask(p, fn) : -ENAMETOOLONG;
}

/* ---- paths ---------------------------------------------------------------------------------- */

#define PATH_CALL(name)                                                                            \
    static int do_##name(ls__patient *p)                                                           \
    {                                                                                              \
        return p->real->name(p->real, p->path);                                                    \
    }                                                                                              \
    static int patient_##name(const ls__env *env, const char *path)                                \
    {                                                                                              \
        return ask_path(patient_of(env), path, do_##name);                                         \
    }
PATH_CALL(make_folder)
PATH_CALL(remove_file)
PATH_CALL(remove_folder)

static int do_rename(ls__patient *p)
{
    return p->real->rename(p->real, p->path, p->other);
}

static int patient_rename(const ls__env *env, const char *from, const char *to)
{
    ls__patient *p = patient_of(env);
    if (is_lost(p)) {
        return -ETIMEDOUT;
    }
    return copy_path(p->other, to) ? ask_path(p, from, do_rename) : -ENAMETOOLONG;
}

static int do_stat(ls__patient *p)
{
    return p->real->stat(p->real, p->path, p->follow, &p->stat);
}

static int patient_stat(const ls__env *env, const char *path, bool follow, ls__env_stat *out)
{
    ls__patient *p = patient_of(env);
    if (is_lost(p)) {
        return -ETIMEDOUT;
    }
    p->follow = follow;
    const int result = ask_path(p, path, do_stat);
    if (result >= 0) {
        *out = p->stat;
    }
    return result;
}

static int do_free_bytes(ls__patient *p)
{
    return p->real->free_bytes(p->real, p->path, &p->room);
}

static int patient_free_bytes(const ls__env *env, const char *path, uint64_t *out)
{
    ls__patient *p = patient_of(env);
    const int result = ask_path(p, path, do_free_bytes);
    *out = result >= 0 ? p->room : 0;
    return result;
}

static int do_map(ls__patient *p)
{
    return p->real->map_file(p->real, p->path, &p->mapped, &p->bytes);
}

static int patient_map_file(const ls__env *env, const char *path, void **out, size_t *bytes)
{
    ls__patient *p = patient_of(env);
    const int result = ask_path(p, path, do_map);
    if (result >= 0) {
        *out = p->mapped;
        *bytes = p->bytes;
    }
    return result;
}

/* ---- listing -------------------------------------------------------------------------------- */

static int keep_name(void *arg, const char *name)
{
    ls__patient *p = arg;
    const size_t bytes = strlen(name) + 1;
    if (p->names_bytes + bytes > p->names_room) {
        const size_t room = 2 * (p->names_room + bytes);
        char *grown = room <= NAMES_MAX ? realloc(p->names, room) : NULL;
        if (grown == NULL) {
            return -ENOMEM;
        }
        p->names = grown;
        p->names_room = room;
    }
    memcpy(p->names + p->names_bytes, name, bytes);
    p->names_bytes += bytes;
    return 0;
}

static int do_list(ls__patient *p)
{
    p->names_bytes = 0;
    return p->real->list(p->real, p->path, keep_name, p);
}

/* The caller's function runs on its own thread, after the listing. */
static int patient_list(const ls__env *env, const char *path,
                        int (*each)(void *arg, const char *name), void *arg)
{
    ls__patient *p = patient_of(env);
    int result = ask_path(p, path, do_list);
    for (size_t at = 0; result == 0 && at < p->names_bytes; at += strlen(p->names + at) + 1) {
        result = each(arg, p->names + at);
    }
    return result;
}

/* ---- descriptors ---------------------------------------------------------------------------- */

static int do_open(ls__patient *p)
{
    return p->real->open(p->real, p->path, p->flags, p->mode);
}

static int patient_open(const ls__env *env, const char *path, int flags, int mode)
{
    ls__patient *p = patient_of(env);
    if (is_lost(p)) {
        return -ETIMEDOUT;
    }
    p->flags = flags;
    p->mode = mode;
    return ask_path(p, path, do_open);
}

#define FD_CALL(name, call)                                                                        \
    static int do_##name(ls__patient *p)                                                           \
    {                                                                                              \
        return p->real->call(p->real, p->fd);                                                      \
    }                                                                                              \
    static int patient_##name(const ls__env *env, int fd)                                          \
    {                                                                                              \
        ls__patient *p = patient_of(env);                                                          \
        if (is_lost(p)) {                                                                          \
            return -ETIMEDOUT;                                                                     \
        }                                                                                          \
        p->fd = fd;                                                                                \
        return (int)ask(p, do_##name);                                                             \
    }
FD_CALL(close, close)
FD_CALL(fsync, fsync)
FD_CALL(lock_file, lock_file)

/* A buffer of the object's own: the kernel may still fill it when the caller has gone on. */
static bool take_buffer(ls__patient *p, int fd, size_t bytes)
{
    p->fd = fd;
    p->bytes = bytes < BUFFER_BYTES ? bytes : BUFFER_BYTES;
    p->buffer = p->buffer != NULL ? p->buffer : malloc(BUFFER_BYTES);
    return p->buffer != NULL;
}

static int do_read(ls__patient *p)
{
    return (int)p->real->read(p->real, p->fd, p->buffer, p->bytes);
}

static ssize_t patient_read(const ls__env *env, int fd, void *out, size_t bytes)
{
    ls__patient *p = patient_of(env);
    if (is_lost(p)) {
        return -ETIMEDOUT;
    }
    const ssize_t got = take_buffer(p, fd, bytes) ? ask(p, do_read) : -ENOMEM;
    if (got > 0) {
        memcpy(out, p->buffer, (size_t)got);
    }
    return got;
}

static int do_write(ls__patient *p)
{
    return (int)p->real->write(p->real, p->fd, p->buffer, p->bytes);
}

static ssize_t patient_write(const ls__env *env, int fd, const void *in, size_t bytes)
{
    ls__patient *p = patient_of(env);
    if (is_lost(p)) {
        return -ETIMEDOUT;
    }
    if (!take_buffer(p, fd, bytes)) {
        return -ENOMEM;
    }
    memcpy(p->buffer, in, p->bytes);
    return ask(p, do_write);
}

/* ---- calls that do not wait for a file -------------------------------------------------------- */

static uint64_t patient_now_ns(const ls__env *env)
{
    const ls__env *real = patient_of(env)->real;
    return real->now_ns(real);
}

static void patient_sleep_until(const ls__env *env, uint64_t deadline_ns)
{
    const ls__env *real = patient_of(env)->real;
    real->sleep_until(real, deadline_ns);
}

static int patient_random_bytes(const ls__env *env, void *out, size_t bytes)
{
    const ls__env *real = patient_of(env)->real;
    return real->random_bytes(real, out, bytes);
}

static void *patient_allocate(const ls__env *env, size_t bytes)
{
    const ls__env *real = patient_of(env)->real;
    return real->allocate(real, bytes);
}

static void patient_release(const ls__env *env, void *memory, size_t bytes)
{
    const ls__env *real = patient_of(env)->real;
    real->release(real, memory, bytes);
}

static void patient_unmap_file(const ls__env *env, void *memory, size_t bytes)
{
    const ls__env *real = patient_of(env)->real;
    real->unmap_file(real, memory, bytes);
}

static pid_t patient_pid(const ls__env *env)
{
    const ls__env *real = patient_of(env)->real;
    return real->pid(real);
}

static int patient_host_name(const ls__env *env, char *out, size_t bytes)
{
    const ls__env *real = patient_of(env)->real;
    return real->host_name(real, out, bytes);
}

/* After the deadline nobody uses the descriptor or the mapping any more. The caller's own close was
 * refused, since it might have hung as well. */
static void drop(ls__patient *p)
{
    if (p->fn == do_open && p->result >= 0) {
        (void)p->real->close(p->real, (int)p->result);
    } else if (p->fn == do_map && p->result >= 0) {
        p->real->unmap_file(p->real, p->mapped, p->bytes);
    } else if (p->fn == do_read || p->fn == do_write || p->fn == do_fsync ||
               p->fn == do_lock_file) {
        (void)p->real->close(p->real, p->fd);
    }
}

/* The thread. */
static void run(void *arg)
{
    ls__patient *p = arg;
    for (;;) {
        uint32_t state = atomic_load_explicit(&p->state, memory_order_acquire);
        if (state == STOP) {
            return;
        }
        if (state != ASKED) {
            (void)p->real->park(p->real, &p->state, state, LS__NEVER);
            continue;
        }
        p->result = p->fn(p);
        if (atomic_compare_exchange_strong_explicit(&p->state, &state, IDLE, memory_order_release,
                                                    memory_order_relaxed)) {
            p->real->wake(p->real, &p->state, 1);
        } else {
            drop(p);
        }
    }
}

/* ---- the object ----------------------------------------------------------------------------- */

static const ls__env patient_table = {
    .now_ns = patient_now_ns,
    .sleep_until = patient_sleep_until,
    .random_bytes = patient_random_bytes,
    .allocate = patient_allocate,
    .release = patient_release,
    .read = patient_read,
    .write = patient_write,
    .open = patient_open,
    .close = patient_close,
    .fsync = patient_fsync,
    .rename = patient_rename,
    .stat = patient_stat,
    .list = patient_list,
    .free_bytes = patient_free_bytes,
    .remove_file = patient_remove_file,
    .remove_folder = patient_remove_folder,
    .lock_file = patient_lock_file,
    .map_file = patient_map_file,
    .unmap_file = patient_unmap_file,
    .make_folder = patient_make_folder,
    .pid = patient_pid,
    .host_name = patient_host_name,
};

ls__patient *ls__patient_new(const ls__env *real, int64_t timeout_ms)
{
    ls__patient *p = calloc(1, sizeof *p);
    if (p == NULL) {
        return NULL;
    }
    p->table = patient_table;
    p->real = real;
    p->timeout_ms = timeout_ms;
    if (real->thread_start(real, "ls-files", run, p, &p->thread) < 0) {
        free(p);
        return NULL;
    }
    return p;
}

/* An object whose thread hangs is left to it. */
void ls__patient_free(ls__patient *p)
{
    if (p == NULL || is_lost(p)) {
        return;
    }
    atomic_store_explicit(&p->state, STOP, memory_order_release);
    p->real->wake(p->real, &p->state, 1);
    p->real->thread_join(p->real, p->thread);
    free(p->names);
    free(p->buffer);
    free(p);
}

const ls__env *ls__patient_env(ls__patient *p, const ls__env *real)
{
    return p != NULL ? &p->table : real;
}
