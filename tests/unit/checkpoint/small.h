/* SPDX-License-Identifier: Apache-2.0 */
/* A small state whose every value follows from the step, and an env table that counts what is done
 * with the files of one folder and fails, shortens or kills at the n-th call. */
#ifndef CHECKPOINT_SMALL_H
#define CHECKPOINT_SMALL_H

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <lockstep/checkpoint.h>

#include "base/env.h"
#include "comm/runtime/init.h"
#include "test.h"

/* ---- state -------------------------------------------------------------------------------- */

enum { SMALL_ROWS = 5, SMALL_COLUMNS = 3, SMALL_BYTES = 7 };

typedef struct small {
    float weight[SMALL_ROWS * SMALL_COLUMNS];
    uint8_t mask[SMALL_BYTES];
    double bias; /* a tensor without dims */
    int64_t count;
    double rate;
} small;

static inline ls_status small_state(void *object, const char *prefix, const ls_state_visitor *v)
{
    small *s = object;
    const ls_state_tensor weight = {.dtype = LS_FLOAT32,
                                    .ndim = 2,
                                    .global = {SMALL_ROWS, SMALL_COLUMNS},
                                    .local = {SMALL_ROWS, SMALL_COLUMNS},
                                    .data = s->weight};
    const ls_state_tensor mask = {.dtype = LS_UINT8,
                                  .ndim = 1,
                                  .global = {SMALL_BYTES},
                                  .local = {SMALL_BYTES},
                                  .data = s->mask};
    const ls_state_tensor bias = {.dtype = LS_FLOAT64, .data = &s->bias};
    const ls_state_tensor none = {.dtype = LS_INT64, .ndim = 2, .global = {3, 0}, .local = {3, 0}};
    (void)prefix;
    LS_TRY(v->tensor(v->self, "weight", &weight));
    LS_TRY(v->int64(v->self, "count", &s->count));
    LS_TRY(v->tensor(v->self, "mask", &mask));
    LS_TRY(v->tensor(v->self, "none", &none));
    LS_TRY(v->float64(v->self, "rate", &s->rate));
    return v->tensor(v->self, "bias", &bias);
}

static inline void small_fill(small *s, int64_t step)
{
    memset(s, 0, sizeof *s);
    for (int i = 0; i < SMALL_ROWS * SMALL_COLUMNS; i++) {
        s->weight[i] = (float)(step * 100 + i) * 0.1f;
    }
    for (int i = 0; i < SMALL_BYTES; i++) {
        s->mask[i] = (uint8_t)(step + i);
    }
    s->bias = 1.0 / (double)(step + 1);
    s->count = -step;
    s->rate = (double)step / 3.0;
}

static inline bool small_is(const small *s, int64_t step)
{
    small expected;
    small_fill(&expected, step);
    return memcmp(&expected, s, sizeof expected) == 0;
}

#define SMALL_ITEM(s)                                                                              \
    (&(ls_checkpoint_item){                                                                        \
        .size = sizeof(ls_checkpoint_item), .prefix = "", .object = (s), .state = small_state}),   \
        1

static inline ls_status small_save(ls_checkpoint *c, int64_t step)
{
    small s;
    small_fill(&s, step);
    return ls_checkpoint_save(c, step, SMALL_ITEM(&s));
}

/* The step loaded, whose values are checked; -1 and the status when none was. */
static inline int64_t small_load(ls_checkpoint *c, ls_status *status)
{
    small s;
    int64_t step = -1;
    memset(&s, 0, sizeof s);
    *status = ls_checkpoint_load(c, SMALL_ITEM(&s), &step);
    CHECK(*status < 0 || small_is(&s, step));
    return *status < 0 ? -1 : step;
}

/* ---- the folder --------------------------------------------------------------------------- */

static inline void small_folder(char path[64])
{
    (void)snprintf(path, 64, "/tmp/lockstep-checkpoint-XXXXXX");
    CHECK(mkdtemp(path) != NULL);
}

static inline void small_remove(const char *path)
{
    char command[256];
    (void)snprintf(command, sizeof command, "rm -rf '%s'", path);
    free(test_run(command, 20).text);
}

/* Entries of the folder that begin with `prefix`. */
static inline int small_count(const char *path, const char *prefix)
{
    int count = 0;
    DIR *folder = opendir(path);
    CHECK(folder);
    for (struct dirent *e = readdir(folder); e; e = readdir(folder)) {
        bool dots = strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0;
        count += !dots && strncmp(e->d_name, prefix, strlen(prefix)) == 0;
    }
    (void)closedir(folder);
    return count;
}

/* Only complete checkpoints and the lock are left: nothing temporary, old or half. */
static inline void small_check_tidy(const char *path)
{
    CHECK_INT(small_count(path, ".tmp"), 0);
    CHECK_INT(small_count(path, ".old"), 0);
}

/* ---- faults ------------------------------------------------------------------------------- */

/* FAULT_CALL: something else happens just then, by `hook`. */
typedef enum fault_kind { FAULT_ERROR, FAULT_SHORT, FAULT_KILL, FAULT_CALL } fault_kind;

typedef struct faults {
    ls__env env;        /* first: the calls get its address */
    const char *folder; /* only calls about it count */
    fault_kind kind;
    int error;  /* errno of FAULT_ERROR */
    int at;     /* which call; 0: none */
    int called; /* so far */
    bool hit;
    void (*hook)(void *arg);
    void *hook_arg;
    const char *what; /* the call that was hit */
    bool ours[1024];  /* descriptors of files in the folder */
    bool logs;        /* writes the order of calls: "open write fsync rename " */
    char log[4096];
} faults;

static inline bool fault_due(faults *f, const char *what)
{
    size_t used = strlen(f->log);
    if (f->logs && used + 16 < sizeof f->log) {
        (void)snprintf(f->log + used, sizeof f->log - used, "%s ", what);
    }
    if (f->at == 0 || ++f->called != f->at) {
        return false;
    }
    f->hit = true;
    f->what = what;
    if (f->kind == FAULT_KILL) {
        (void)kill(getpid(), SIGKILL);
    }
    if (f->kind == FAULT_CALL) {
        f->hook(f->hook_arg);
    }
    return f->kind == FAULT_ERROR;
}

static inline faults *faults_of(const ls__env *env)
{
    return (faults *)(uintptr_t)env;
}

static inline bool path_fails(const ls__env *env, const char *path, const char *what)
{
    faults *f = faults_of(env);
    return strncmp(path, f->folder, strlen(f->folder)) == 0 && fault_due(f, what);
}

static inline bool fd_fails(const ls__env *env, int fd, const char *what)
{
    faults *f = faults_of(env);
    return fd >= 0 && fd < 1024 && f->ours[fd] && fault_due(f, what);
}

#define FAULT_PATH(name, result, declaration, call)                                                \
    static inline result fault_##name declaration                                                  \
    {                                                                                              \
        return path_fails(env, path, #name) ? -faults_of(env)->error : ls__env_posix()->name call; \
    }
FAULT_PATH(rename, int, (const ls__env *env, const char *path, const char *to), (env, path, to))
FAULT_PATH(make_folder, int, (const ls__env *env, const char *path), (env, path))
FAULT_PATH(remove_file, int, (const ls__env *env, const char *path), (env, path))
FAULT_PATH(remove_folder, int, (const ls__env *env, const char *path), (env, path))
FAULT_PATH(stat, int, (const ls__env *env, const char *path, bool follow, ls__env_stat *out),
           (env, path, follow, out))
FAULT_PATH(list, int,
           (const ls__env *env, const char *path, int (*each)(void *arg, const char *name),
            void *arg),
           (env, path, each, arg))
FAULT_PATH(map_file, int, (const ls__env *env, const char *path, void **out, size_t *bytes),
           (env, path, out, bytes))

static inline int fault_open(const ls__env *env, const char *path, int flags, int mode)
{
    faults *f = faults_of(env);
    if (path_fails(env, path, "open")) {
        return -f->error;
    }
    int fd = ls__env_posix()->open(env, path, flags, mode);
    if (fd >= 0 && fd < 1024) {
        f->ours[fd] = strncmp(path, f->folder, strlen(f->folder)) == 0;
    }
    return fd;
}

static inline int fault_close(const ls__env *env, int fd)
{
    bool fails = fd_fails(env, fd, "close");
    int rc = ls__env_posix()->close(env, fd);
    if (fd >= 0 && fd < 1024) {
        faults_of(env)->ours[fd] = false;
    }
    return fails ? -faults_of(env)->error : rc;
}

static inline ssize_t fault_write(const ls__env *env, int fd, const void *in, size_t bytes)
{
    faults *f = faults_of(env);
    bool before = f->hit;
    if (fd_fails(env, fd, "write")) { /* a disk that is full takes a part first */
        (void)ls__env_posix()->write(env, fd, in, bytes / 2);
        return -f->error;
    }
    bool shortened = f->kind == FAULT_SHORT && f->hit && !before && bytes > 1;
    return ls__env_posix()->write(env, fd, in, shortened ? bytes / 2 : bytes);
}

static inline ssize_t fault_read(const ls__env *env, int fd, void *out, size_t bytes)
{
    return fd_fails(env, fd, "read") ? -faults_of(env)->error
                                     : ls__env_posix()->read(env, fd, out, bytes);
}

static inline int fault_fsync(const ls__env *env, int fd)
{
    return fd_fails(env, fd, "fsync") ? -faults_of(env)->error : ls__env_posix()->fsync(env, fd);
}

static inline int fault_lock(const ls__env *env, int fd)
{
    return fd_fails(env, fd, "lock") ? -faults_of(env)->error : ls__env_posix()->lock_file(env, fd);
}

static inline void faults_init(faults *f, const char *folder)
{
    memset(f, 0, sizeof *f);
    f->env = *ls__env_posix();
    f->folder = folder;
    f->error = EIO;
    f->env.open = fault_open;
    f->env.close = fault_close;
    f->env.write = fault_write;
    f->env.read = fault_read;
    f->env.fsync = fault_fsync;
    f->env.rename = fault_rename;
    f->env.make_folder = fault_make_folder;
    f->env.remove_file = fault_remove_file;
    f->env.remove_folder = fault_remove_folder;
    f->env.stat = fault_stat;
    f->env.list = fault_list;
    f->env.map_file = fault_map_file;
    f->env.lock_file = fault_lock;
}

static inline void faults_arm(faults *f, fault_kind kind, int error, int at)
{
    f->kind = kind;
    f->error = error;
    f->at = at;
    f->called = 0;
    f->hit = false;
    f->what = "";
}

#endif
