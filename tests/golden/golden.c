/* SPDX-License-Identifier: Apache-2.0 */
/* What every golden program shares: listing and running its cases, scratch files, failing memory.
 *
 *     PROGRAM --list          a line "NAME RANKS HOSTS DEADLINE_S" for each case
 *     PROGRAM NAME            runs one (with several ranks: under `lockstep run`)
 */
#include "golden.h"

#include <errno.h>
#include <ftw.h>

#include "comm/runtime/init.h"

#define TEXTS_MAX 60
#define TEXT_BYTES 2200
#define CALLS_MAX 2000
#define NO_RECORD "has no memory for the operation"

golden_case *golden_cases;

static char folder[64];
static bool registered;

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *at)
{
    (void)info;
    (void)kind;
    (void)at;
    return remove(path);
}

static void remove_folder(void)
{
    if (folder[0] != '\0') {
        (void)nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    }
}

const char *golden_folder(void)
{
    if (folder[0] == '\0') {
        (void)snprintf(folder, sizeof folder, "/tmp/lockstep-golden-XXXXXX");
        if (mkdtemp(folder) == NULL) {
            exit(3);
        }
        if (!registered) {
            registered = true;
            (void)atexit(remove_folder);
        }
    }
    return folder;
}

const char *golden_new_folder(void)
{
    remove_folder();
    folder[0] = '\0';
    return golden_folder();
}

const char *golden_file(const char *name, const void *data, size_t bytes)
{
    static char paths[8][256];
    static int next;
    char *path = paths[next++ % 8];
    (void)snprintf(path, sizeof paths[0], "%s/%s", golden_folder(), name);
    FILE *file = fopen(path, "wb");
    if (file == NULL || (bytes > 0 && fwrite(data, 1, bytes, file) != bytes) || fclose(file) != 0) {
        exit(3);
    }
    return path;
}

/* ---- a world that fails ---------------------------------------------------------------------- */

static ls__env table;
static golden_fault what;
static int countdown;
static bool failed;

/* Whether this call is the one to fail. */
static bool due(golden_fault kind)
{
    if (kind == what && countdown > 0 && --countdown == 0) {
        failed = true;
        return true;
    }
    return false;
}

static void *allocate(const ls__env *env, size_t bytes)
{
    (void)env;
    const ls__env *real = ls__env_posix();
    return due(GOLDEN_MEMORY) ? NULL : real->allocate(real, bytes);
}

/* The C library's own; ours stand before them for the whole process. */
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
static bool malloc_fails(void)
{
    if (!due(GOLDEN_MALLOC)) {
        return false;
    }
    errno = ENOMEM;
    return true;
}

void *malloc(size_t bytes)
{
    return malloc_fails() ? NULL : __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    return malloc_fails() ? NULL : __libc_calloc(count, bytes);
}

void *realloc(void *memory, size_t bytes)
{
    return malloc_fails() ? NULL : __libc_realloc(memory, bytes);
}
#endif

#define CALL(kind, error, name, parameters, ...)                                                   \
    static int name##_or_not parameters                                                            \
    {                                                                                              \
        (void)env;                                                                                 \
        const ls__env *real = ls__env_posix();                                                     \
        return due(kind) ? -(error) : real->name(real, __VA_ARGS__);                               \
    }
#define FILE_CALL(...) CALL(GOLDEN_FILES, EIO, __VA_ARGS__)
#define SYSTEM_CALL(...) CALL(GOLDEN_SYSTEM, ENOMEM, __VA_ARGS__)

SYSTEM_CALL(random_bytes, (const ls__env *env, void *out, size_t bytes), out, bytes)
SYSTEM_CALL(thread_start,
            (const ls__env *env, const char *name, void (*fn)(void *arg), void *arg,
             ls__env_thread **out),
            name, fn, arg, out)
SYSTEM_CALL(shm_create, (const ls__env *env, const char *name, size_t bytes), name, bytes)
SYSTEM_CALL(shm_resize, (const ls__env *env, int fd, size_t bytes), fd, bytes)
SYSTEM_CALL(shm_map, (const ls__env *env, int fd, size_t reserve, size_t phase, void **out), fd,
            reserve, phase, out)
SYSTEM_CALL(socket_pair, (const ls__env *env, int out[2]), out)

FILE_CALL(open, (const ls__env *env, const char *path, int flags, int mode), path, flags, mode)
FILE_CALL(fsync, (const ls__env *env, int fd), fd)
FILE_CALL(rename, (const ls__env *env, const char *from, const char *to), from, to)
FILE_CALL(lock_file, (const ls__env *env, int fd), fd)
FILE_CALL(list,
          (const ls__env *env, const char *path, int (*each)(void *arg, const char *name),
           void *arg),
          path, each, arg)
FILE_CALL(remove_file, (const ls__env *env, const char *path), path)
FILE_CALL(remove_folder, (const ls__env *env, const char *path), path)
FILE_CALL(make_folder, (const ls__env *env, const char *path), path)
FILE_CALL(map_file, (const ls__env *env, const char *path, void **out, size_t *bytes), path, out,
          bytes)

static ssize_t write_file(const ls__env *env, int fd, const void *in, size_t bytes)
{
    (void)env;
    const ls__env *real = ls__env_posix();
    return bytes > 8 && due(GOLDEN_FILES) ? -EIO : real->write(real, fd, in, bytes);
}

const ls__env *golden_env(void)
{
    table = *ls__env_posix();
    table.allocate = allocate;
    table.open = open_or_not;
    table.fsync = fsync_or_not;
    table.rename = rename_or_not;
    table.lock_file = lock_file_or_not;
    table.list = list_or_not;
    table.remove_file = remove_file_or_not;
    table.remove_folder = remove_folder_or_not;
    table.make_folder = make_folder_or_not;
    table.map_file = map_file_or_not;
    table.write = write_file;
    table.random_bytes = random_bytes_or_not;
    table.thread_start = thread_start_or_not;
    table.shm_create = shm_create_or_not;
    table.shm_resize = shm_resize_or_not;
    table.shm_map = shm_map_or_not;
    table.socket_pair = socket_pair_or_not;
    return &table;
}

void golden_fail(golden_fault kind, int n)
{
    what = kind;
    countdown = n;
    failed = failed && n == 0;
}

bool golden_failed(void)
{
    return failed;
}

static char seen[TEXTS_MAX][TEXT_BYTES];
static int seen_count;

void golden_show_once(ls_status status)
{
    char text[TEXT_BYTES];
    (void)snprintf(text, sizeof text, "%s: %s", ls_status_name(status), ls_error_message());
    for (int i = 0; i < seen_count; i++) {
        /* Which operation finds no record depends on how many the engine has handed back. */
        const bool alike = strstr(seen[i], NO_RECORD) != NULL && strstr(text, NO_RECORD) != NULL;
        if (alike || strcmp(seen[i], text) == 0) {
            return;
        }
    }
    if (seen_count < TEXTS_MAX) {
        (void)snprintf(seen[seen_count++], sizeof seen[0], "%s", text);
        printf("    %s\n", text);
        fflush(stdout);
    }
}

void golden_fail_each(golden_fault kind, ls_status (*scenario)(void))
{
    for (int n = 1; n < CALLS_MAX; n++) {
        MUST(ls__init_with(golden_env(), NULL));
        golden_fail(kind, n);
        const ls_status status = scenario();
        const bool hit = golden_failed();
        if (status < 0) {
            golden_show_once(status);
        }
        golden_fail(kind, 0);
        (void)ls_finalize();
        if (!hit) {
            return;
        }
    }
}

/* ---- running --------------------------------------------------------------------------------- */

static int run_case(const golden_case *c)
{
    if (c->ranks > 0) {
        MUST(ls_init(NULL));
    }
    c->body();
    if (c->ranks > 0) {
        (void)ls_finalize();
    }
    return 0;
}

int main(int argc, char **argv)
{
    const bool list = argc == 2 && strcmp(argv[1], "--list") == 0;
    for (const golden_case *c = golden_cases; c != NULL; c = c->next) {
        if (list) {
            printf("%s %d %d %d\n", c->name, c->ranks, c->hosts, c->deadline_s);
        } else if (argc == 2 && strcmp(argv[1], c->name) == 0) {
            return run_case(c);
        }
    }
    return list ? 0 : 2;
}
