/* SPDX-License-Identifier: Apache-2.0 */
/* One call at a time is handed to the thread and back:
 *
 *     IDLE ──(caller: a call)──▶ ASKED ──(thread: its result)──▶ IDLE
 *                                  └──(caller: the deadline)──▶ LOST   the thread owns the object
 *     IDLE ──(free)──▶ STOP
 *
 * Everything that the thread touches lies in the object, so that a caller may go on, and free its
 * own memory, while a call still hangs: paths and bytes are copied in, bytes and names out. */
#include "base/patient.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"

#define PATH_BYTES 4200
#define BUFFER_BYTES ((size_t)1 << 20) /* what one read or write takes at most */
#define NAMES_MAX ((size_t)64 << 20)   /* bytes of the names in a folder */
#define AHEAD_BYTES ((size_t)16 << 20) /* of a mapped file, read in one call */
#define LOOK_MS 20                     /* between two questions whether to stop */
#define PAGE_BYTES 4096                /* or a part of one */

enum { IDLE, ASKED, LOST, STOP };

typedef enum patient_call {
    CLOSE,
    FREE_BYTES,
    FSYNC,
    LIST,
    LOCK_FILE,
    MAKE_FOLDER,
    MAP_FILE,
    OPEN,
    READ,
    READ_AHEAD, /* of a mapped file */
    REMOVE_FILE,
    REMOVE_FOLDER,
    RENAME,
    RESOLVE,
    STAT,
    WRITE
} patient_call;

/* A call with its arguments and results. */
typedef struct request {
    patient_call call;
    const char *path, *to; /* NULL: the call has none; RESOLVE: a host's name */
    const void *in;        /* WRITE */
    int fd, flags, mode;
    bool follow;
    size_t bytes; /* READ, WRITE: how many are asked for; MAP_FILE: how many there are */
    void *mapped;
    size_t from, end; /* READ_AHEAD: of the mapped bytes */
    ls__env_stat stat;
    uint64_t room;
    ssize_t result;
} request;

struct ls__patient {
    ls__env table; /* first: calls get its address */
    const ls__env *real;
    int64_t timeout_ms;
    size_t ahead;
    bool (*stop)(void *arg); /* of ls__resolve_within; NULL: nobody ends a call early */
    void *stop_arg;
    uint64_t until_ns; /* the deadline of all calls since ls__patient_renew; 0: each has its own */
    ls__env_thread *thread;
    _Atomic uint32_t state; /* Sync: release by who ends its turn, acquire by the other */

    request request;
    char path[PATH_BYTES], to[PATH_BYTES];
    uint8_t *buffer; /* [BUFFER_BYTES]; malloc, from the first READ or WRITE on */
    char *names;     /* of LIST, each ended by 0; malloc */
    size_t names_bytes, names_room;
    char address[LS__PATIENT_ADDRESSES][LS__ADDRESS_MAX]; /* of RESOLVE */
};

static ls__patient *patient_of(const ls__env *env)
{
    return (ls__patient *)(uintptr_t)env;
}

/* The object is the thread's from then on: nothing may be written to it. */
static bool is_lost(const ls__patient *p)
{
    return atomic_load_explicit(&p->state, memory_order_relaxed) == LOST;
}

/* ---- the caller's side ----------------------------------------------------------------------- */

static bool adopt_path(char own[PATH_BYTES], const char **path)
{
    if (*path == NULL) {
        return true;
    }
    const size_t bytes = strlen(*path) + 1;
    if (bytes > PATH_BYTES) {
        return false;
    }
    *path = memcpy(own, *path, bytes);
    return true;
}

/* Copies what the request points to into the object. */
static int adopt(ls__patient *p, const request *given)
{
    p->request = *given;
    request *r = &p->request;
    if (!adopt_path(p->path, &r->path) || !adopt_path(p->to, &r->to)) {
        return -ENAMETOOLONG;
    }
    if (r->call != READ && r->call != WRITE) {
        return 0;
    }
    p->buffer = p->buffer != NULL ? p->buffer : malloc(BUFFER_BYTES);
    if (p->buffer == NULL) {
        return -ENOMEM;
    }
    r->bytes = r->bytes < BUFFER_BYTES ? r->bytes : BUFFER_BYTES;
    if (r->call == WRITE) {
        memcpy(p->buffer, r->in, r->bytes);
    }
    return 0;
}

/* Whether the caller's wait is over although the call is not: 0, -ETIMEDOUT or -ECANCELED. Lowers
 * *next_ns to the time of the next look. */
static int is_over(const ls__patient *p, uint64_t deadline, uint64_t *next_ns)
{
    const uint64_t now = p->real->now_ns(p->real);
    const uint64_t look = p->stop != NULL ? ls__time_after(now, LOOK_MS) : LS__NEVER;
    *next_ns = look < deadline ? look : deadline;
    return now >= deadline ? -ETIMEDOUT : p->stop != NULL && p->stop(p->stop_arg) ? -ECANCELED : 0;
}

/* 0, or why the result is not waited for. Sync: the CAS decides whether it came in time. */
static int await(ls__patient *p)
{
    const ls__env *real = p->real;
    const uint64_t deadline =
        p->until_ns != 0 ? p->until_ns : ls__deadline_after(real, p->timeout_ms);
    while (atomic_load_explicit(&p->state, memory_order_acquire) == ASKED) {
        uint32_t asked = ASKED;
        uint64_t next_ns;
        const int over = is_over(p, deadline, &next_ns);
        if (over < 0 && atomic_compare_exchange_strong_explicit(
                            &p->state, &asked, LOST, memory_order_acquire, memory_order_acquire)) {
            return over;
        }
        (void)real->park(real, &p->state, ASKED, next_ns);
    }
    return 0;
}

/* Puts the results into *r; returns that of the call, or -ETIMEDOUT with *r as it was. */
static ssize_t ask(const ls__env *env, request *r)
{
    ls__patient *p = patient_of(env);
    if (is_lost(p)) {
        return -ETIMEDOUT;
    }
    LS_ASSERT(atomic_load_explicit(&p->state, memory_order_relaxed) == IDLE);
    int error = adopt(p, r);
    if (error < 0) {
        return error;
    }
    atomic_store_explicit(&p->state, ASKED, memory_order_release);
    p->real->wake(p->real, &p->state, 1);
    error = await(p);
    if (error < 0) {
        return error;
    }
    *r = p->request;
    return r->result;
}

/* ---- the entries of the table ---------------------------------------------------------------- */

static int patient_make_folder(const ls__env *env, const char *path)
{
    return (int)ask(env, &(request){.call = MAKE_FOLDER, .path = path});
}

static int patient_remove_file(const ls__env *env, const char *path)
{
    return (int)ask(env, &(request){.call = REMOVE_FILE, .path = path});
}

static int patient_remove_folder(const ls__env *env, const char *path)
{
    return (int)ask(env, &(request){.call = REMOVE_FOLDER, .path = path});
}

static int patient_rename(const ls__env *env, const char *from, const char *to)
{
    return (int)ask(env, &(request){.call = RENAME, .path = from, .to = to});
}

static int patient_stat(const ls__env *env, const char *path, bool follow, ls__env_stat *out)
{
    request r = {.call = STAT, .path = path, .follow = follow};
    const int result = (int)ask(env, &r);
    if (result >= 0) {
        *out = r.stat;
    }
    return result;
}

static int patient_free_bytes(const ls__env *env, const char *path, uint64_t *out)
{
    request r = {.call = FREE_BYTES, .path = path};
    const int result = (int)ask(env, &r);
    *out = r.room;
    return result;
}

/* The caller's function runs on its own thread, after the listing. */
static int patient_list(const ls__env *env, const char *path,
                        int (*each)(void *arg, const char *name), void *arg)
{
    const ls__patient *p = patient_of(env);
    int result = (int)ask(env, &(request){.call = LIST, .path = path});
    for (size_t at = 0; result == 0 && at < p->names_bytes; at += strlen(p->names + at) + 1) {
        result = each(arg, p->names + at);
    }
    return result;
}

/* Piece by piece; `mapped` is the request that has mapped the file. */
static int read_ahead(const ls__env *env, const request *mapped)
{
    const size_t ahead = patient_of(env)->ahead;
    const size_t bytes = mapped->bytes < ahead ? mapped->bytes : ahead;
    int result = 0;
    for (size_t from = 0; result >= 0 && from < bytes; from += AHEAD_BYTES) {
        const size_t end = bytes - from < AHEAD_BYTES ? bytes : from + AHEAD_BYTES;
        request r = {.call = READ_AHEAD,
                     .mapped = mapped->mapped,
                     .bytes = mapped->bytes,
                     .from = from,
                     .end = end};
        result = (int)ask(env, &r);
    }
    return result;
}

static int patient_map_file(const ls__env *env, const char *path, void **out, size_t *bytes)
{
    request r = {.call = MAP_FILE, .path = path};
    int result = (int)ask(env, &r);
    result = result < 0 ? result : read_ahead(env, &r);
    if (result >= 0) {
        *out = r.mapped;
        *bytes = r.bytes;
    }
    return result;
}

static int patient_open(const ls__env *env, const char *path, int flags, int mode)
{
    return (int)ask(env, &(request){.call = OPEN, .path = path, .flags = flags, .mode = mode});
}

static int patient_close(const ls__env *env, int fd)
{
    return (int)ask(env, &(request){.call = CLOSE, .fd = fd});
}

static int patient_fsync(const ls__env *env, int fd)
{
    return (int)ask(env, &(request){.call = FSYNC, .fd = fd});
}

static int patient_lock_file(const ls__env *env, int fd)
{
    return (int)ask(env, &(request){.call = LOCK_FILE, .fd = fd});
}

static ssize_t patient_read(const ls__env *env, int fd, void *out, size_t bytes)
{
    const ssize_t got = ask(env, &(request){.call = READ, .fd = fd, .bytes = bytes});
    if (got > 0) {
        memcpy(out, patient_of(env)->buffer, (size_t)got);
    }
    return got;
}

static ssize_t patient_write(const ls__env *env, int fd, const void *in, size_t bytes)
{
    return ask(env, &(request){.call = WRITE, .fd = fd, .in = in, .bytes = bytes});
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

/* ---- the thread ------------------------------------------------------------------------------ */

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

static int touch_pages(const request *r)
{
    const volatile char *bytes = r->mapped;
    for (size_t at = r->from; at < r->end; at += PAGE_BYTES) {
        (void)bytes[at];
    }
    return 0;
}

static ssize_t perform(ls__patient *p)
{
    const ls__env *real = p->real;
    request *r = &p->request;
    switch (r->call) {
    case CLOSE:
        return real->close(real, r->fd);
    case FREE_BYTES:
        return real->free_bytes(real, r->path, &r->room);
    case FSYNC:
        return real->fsync(real, r->fd);
    case LIST:
        p->names_bytes = 0;
        return real->list(real, r->path, keep_name, p);
    case LOCK_FILE:
        return real->lock_file(real, r->fd);
    case MAKE_FOLDER:
        return real->make_folder(real, r->path);
    case MAP_FILE:
        return real->map_file(real, r->path, &r->mapped, &r->bytes);
    case OPEN:
        return real->open(real, r->path, r->flags, r->mode);
    case READ:
        return real->read(real, r->fd, p->buffer, r->bytes);
    case READ_AHEAD:
        return touch_pages(r);
    case REMOVE_FILE:
        return real->remove_file(real, r->path);
    case REMOVE_FOLDER:
        return real->remove_folder(real, r->path);
    case RENAME:
        return real->rename(real, r->path, r->to);
    case RESOLVE:
        return real->resolve(real, r->path, p->address, (int)r->bytes);
    case STAT:
        return real->stat(real, r->path, r->follow, &r->stat);
    case WRITE:
        break;
    }
    return real->write(real, r->fd, p->buffer, r->bytes);
}

/* After the deadline nobody uses the descriptor or the mapping any more. The caller's own close was
 * refused, since it might have hung as well. */
static void drop(const ls__patient *p)
{
    const request *r = &p->request;
    if (r->call == OPEN && r->result >= 0) {
        (void)p->real->close(p->real, (int)r->result);
    } else if ((r->call == MAP_FILE || r->call == READ_AHEAD) && r->result >= 0) {
        p->real->unmap_file(p->real, r->mapped, r->bytes);
    } else if (r->call == READ || r->call == WRITE || r->call == FSYNC || r->call == LOCK_FILE) {
        (void)p->real->close(p->real, r->fd);
    }
}

static void run_helper(void *arg)
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
        p->request.result = perform(p);
        if (atomic_compare_exchange_strong_explicit(&p->state, &state, IDLE, memory_order_release,
                                                    memory_order_relaxed)) {
            p->real->wake(p->real, &p->state, 1);
        } else {
            drop(p);
        }
    }
}

/* ---- the object ------------------------------------------------------------------------------ */

static const ls__env patient_table = {
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
};

ls__patient *ls__patient_new(const ls__env *real, int64_t timeout_ms, size_t ahead)
{
    ls__patient *p = calloc(1, sizeof *p);
    if (p == NULL) {
        return NULL;
    }
    p->table = patient_table;
    p->real = real;
    p->timeout_ms = timeout_ms;
    p->ahead = ahead;
    if (real->thread_start(real, "ls-files", run_helper, p, &p->thread) < 0) {
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

void ls__patient_renew(ls__patient *p)
{
    if (p != NULL && !is_lost(p)) {
        p->until_ns = ls__deadline_after(p->real, p->timeout_ms);
    }
}

const ls__env *ls__patient_env(ls__patient *p, const ls__env *real)
{
    return p != NULL ? &p->table : real;
}

/* ---- names ----------------------------------------------------------------------------------- */

int ls__resolve_within(const ls__env *env, const ls__resolve_spec *spec,
                       char (*out)[LS__ADDRESS_MAX], int room)
{
    ls__patient *p = ls__patient_new(env, spec->timeout_ms, 0);
    room = room < LS__PATIENT_ADDRESSES ? room : LS__PATIENT_ADDRESSES;
    if (p == NULL) {
        return env->resolve(env, spec->name, out, room);
    }
    p->stop = spec->stop;
    p->stop_arg = spec->stop_arg;
    const int count =
        (int)ask(&p->table, &(request){.call = RESOLVE, .path = spec->name, .bytes = (size_t)room});
    if (count > 0) {
        memcpy(out, p->address, (size_t)count * sizeof *out);
    }
    ls__patient_free(p);
    return count;
}
