/* SPDX-License-Identifier: Apache-2.0 */
/* The n-th call about files fails, for n = 1, 2, 3 … until a save succeeds untouched: after each,
 * the newest complete checkpoint loads with its own bytes, the old one was never lost, the error is
 * a named one, and the next open leaves nothing temporary. */
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <time.h>

#include <lockstep/data.h>
#include <lockstep/tokenizer.h>

#include "faults.h"
#include "says.h"

/* One save with the fault; returns the step that loads afterwards. */
static int64_t one_save(faults *f, int n, const char *folder, int64_t step, ls_status *status)
{
    ls_checkpoint *c = open_it(folder, false);
    faults_arm(f, f->kind, f->error, n);
    *status = small_save(c, step);
    f->at = 0;
    if (*status < 0) {
        CHECK_CONTAINS(ls_error_message(), folder);
    }
    (void)ls_checkpoint_free(c);
    return load_fresh(folder);
}

/* A save whose bytes may not be on the disk must not say that they are. */
static bool must_fail(const faults *f)
{
    static const char *const calls[] = {"open", "write", "fsync", "make_folder"};
    for (size_t i = 0; f->hit && f->kind == FAULT_ERROR && i < 4; i++) {
        if (strcmp(f->what, calls[i]) == 0) {
            return true;
        }
    }
    return false;
}

/* `again`: every save is of the same step, so each replaces the one before. */
static void fail_every_call(fault_kind kind, int error, bool again)
{
    static faults f;
    char folder[64];
    int failed = 0, n = 1;
    small_folder(folder);
    faults_init(&f, folder);
    CHECK_OK(ls__init_with(&f.env, NULL));
    int64_t newest = 7;
    ls_checkpoint *c = open_it(folder, false);
    CHECK_OK(small_save(c, newest));
    CHECK_OK(ls_checkpoint_free(c));
    for (bool hit = true; hit; n++) {
        ls_status status;
        int64_t step = again ? newest : newest + 1;
        CHECK(n < CALLS_MAX);
        f.kind = kind;
        f.error = error;
        int64_t loaded = one_save(&f, n, folder, step, &status);
        hit = f.hit;
        CHECK(loaded == step || (status < 0 && loaded == newest));
        CHECK(kind != FAULT_SHORT || status == LS_OK);
        CHECK(status < 0 || !must_fail(&f));
        failed += status < 0;
        newest = loaded;
    }
    CHECK(n > 15);
    CHECK(kind == FAULT_SHORT || failed >= 12);
    CHECK_INT(small_count(folder, "step-"), again ? 1 : 2); /* what a failure kept, went later */
    CHECK_OK(ls_finalize());
    small_remove(folder);
}

TEST(whichever_call_of_a_save_fails_with_eio_a_whole_checkpoint_stays)
{
    fail_every_call(FAULT_ERROR, EIO, false);
}

TEST(whichever_call_of_a_save_finds_the_disk_full_a_whole_checkpoint_stays)
{
    fail_every_call(FAULT_ERROR, ENOSPC, false);
}

TEST(a_full_disk_is_told_in_bytes)
{
    static faults f;
    char folder[64], path[128];
    small s = {0};
    small_folder(folder);
    faults_init(&f, folder);
    CHECK_OK(ls__init_with(&f.env, NULL));
    ls_checkpoint *c = open_it(folder, false);
    faults_arm(&f, FAULT_ERROR, ENOSPC, 4); /* list, make_folder, open, write */
    CHECK_STATUS(small_save(c, 1), LS_ERR_SYSTEM);
    CHECK(strcmp(f.what, "write") == 0);
    CHECK_CONTAINS(ls_error_message(), "No space left on device: the file needs 395 bytes, and ");
    CHECK_SAYS(
        ls_error_message(),
        "checkpoint: cannot write \"%s\": %s: the file needs %zu bytes, and %llu more are free "
        "there; remove files, or give a folder on another file system");
    CHECK_OK(ls_checkpoint_free(c));
    (void)snprintf(path, sizeof path, "%s/w.safetensors", folder);
    faults_arm(&f, FAULT_ERROR, ENOSPC, 3); /* remove_file, open, write */
    CHECK_STATUS(ls_safetensors_save(path, SMALL_ITEM(&s), NULL), LS_ERR_SYSTEM);
    CHECK_CONTAINS(ls_error_message(), "No space left on device: the file needs 395 bytes, and ");
    CHECK_INT(small_count(folder, "w.safe"), 0);
    CHECK_OK(ls_finalize());
    small_remove(folder);
}

TEST(a_short_write_is_continued)
{
    fail_every_call(FAULT_SHORT, 0, false);
}

TEST(replacing_a_step_survives_the_failure_of_any_call)
{
    fail_every_call(FAULT_ERROR, EIO, true);
}

TEST(the_order_is_files_manifest_folder_rename_parent)
{
    static faults f;
    char folder[64];
    small_folder(folder);
    faults_init(&f, folder);
    CHECK_OK(ls__init_with(&f.env, NULL));
    ls_checkpoint *c = open_it(folder, false);
    f.logs = true;
    CHECK_OK(small_save(c, 1));
    f.logs = false;
    CHECK_CONTAINS(f.log, "make_folder open write fsync close open write fsync close "
                          "open write fsync close open fsync close stat rename open fsync close ");
    CHECK(strncmp(f.log, "list make_folder ", 17) == 0 && strlen(f.log) < 160);
    CHECK_OK(ls_checkpoint_free(c));
    CHECK_OK(ls_finalize());
    small_remove(folder);
}

/* Whichever call of opening and loading fails for a passing reason: the newest checkpoint loads, or
 * an error with the reason ends the load. Never is the older one loaded, and never the newest one
 * set aside. */
static void fail_every_call_of_a_load(int error)
{
    static faults f;
    char folder[64];
    int newest = 0, errors = 0;
    ls_checkpoint *c = NULL;
    small_folder(folder);
    faults_init(&f, folder);
    CHECK_OK(ls__init_with(&f.env, NULL));
    c = open_it(folder, false);
    CHECK_OK(small_save(c, 1));
    CHECK_OK(small_save(c, 2));
    CHECK_OK(ls_checkpoint_free(c));
    f.hit = true;
    for (int n = 1; f.hit; n++) {
        CHECK(n < CALLS_MAX);
        faults_arm(&f, FAULT_ERROR, error, n);
        ls_status status = ls_checkpoint_new(folder, ls_world(), NULL, &c);
        const int64_t step = status < 0 ? -1 : small_load(c, &status);
        f.at = 0;
        if (status < 0) {
            CHECK_STATUS(status, LS_ERR_SYSTEM);
            CHECK_CONTAINS(ls_error_message(), folder);
            CHECK_CONTAINS(ls_error_message(), strerror(error));
        }
        errors += status < 0;
        newest += step == 2;
        CHECK(step == 2 || status < 0);
        CHECK_OK(ls_checkpoint_free(c));
    }
    CHECK(errors > 6 && newest >= 1);
    CHECK_INT(small_count(folder, "damaged-"), 0);
    CHECK_INT(load_fresh(folder), 2);
    CHECK_OK(ls_finalize());
    small_remove(folder);
}

TEST(a_passing_reason_ends_a_load_and_sets_no_checkpoint_aside)
{
    static const int passing[] = {EIO, EMFILE, ENFILE, EACCES, ENOMEM, ESTALE};
    for (size_t i = 0; i < sizeof passing / sizeof passing[0]; i++) {
        fail_every_call_of_a_load(passing[i]);
    }
}

/* ---- signals, and another job that writes ---------------------------------------------------- */

static void ask_to_stop(void *arg)
{
    (void)arg;
    CHECK(kill(getpid(), SIGTERM) == 0);
}

static void check_stop(bool async)
{
    static faults f;
    char folder[64];
    small_folder(folder);
    faults_init(&f, folder);
    f.hook = ask_to_stop;
    f.hit = true;
    for (int n = 1; f.hit; n++) {
        CHECK(n < CALLS_MAX);
        CHECK_OK(ls__init_with(&f.env, LS_OPTIONS(ls_init_options, .graceful_stop = true)));
        ls_checkpoint *c = open_it(folder, async);
        faults_arm(&f, FAULT_CALL, 0, n);
        CHECK_OK(small_save(c, n));
        CHECK_OK(ls_checkpoint_wait(c));
        CHECK(ls_stop_requested() == f.hit);
        CHECK_OK(ls_checkpoint_free(c));
        f.at = 0;
        CHECK_INT(load_fresh(folder), n);
        CHECK_OK(ls_finalize());
    }
    small_remove(folder);
}

TEST(a_wish_to_stop_at_any_call_of_a_save_lets_it_end)
{
    check_stop(false);
}

TEST(a_wish_to_stop_at_any_call_of_an_asynchronous_save_lets_it_end)
{
    check_stop(true);
}

static ls_runtime *job_runtime;

/* On the thread that makes the calls about files. */
static void save_two_more(void *arg)
{
    CHECK_OK(ls_runtime_attach(job_runtime));
    CHECK_OK(small_save(arg, 3));
    CHECK_OK(small_save(arg, 4));
    CHECK_OK(ls_runtime_attach(NULL));
}

/* Steps 1 and 2 are listed; then, at any moment of the load, 3 and 4 come and 1 and 2 go. */
TEST(a_load_while_another_job_saves_finds_a_whole_one)
{
    static faults f;
    int older = 0, newer = 0;
    f.hit = true;
    for (int n = 1; f.hit; n++) {
        char folder[64];
        ls_checkpoint *reader = NULL;
        ls_status status;
        CHECK(n < CALLS_MAX);
        small_folder(folder);
        faults_init(&f, folder);
        CHECK_OK(ls__init_with(&f.env, NULL));
        job_runtime = ls_runtime_current();
        ls_checkpoint *writer = open_it(folder, false);
        CHECK_OK(small_save(writer, 1));
        CHECK_OK(small_save(writer, 2));
        CHECK_OK(ls_checkpoint_new(folder, ls_world(),
                                   LS_OPTIONS(ls_checkpoint_options, .load_only = true), &reader));
        f.hook = save_two_more;
        f.hook_arg = writer;
        faults_arm(&f, FAULT_CALL, 0, n);
        int64_t step = small_load(reader, &status);
        f.at = 0;
        CHECK_OK(status);
        older += step == 2;
        newer += step == 4;
        CHECK(step == 2 || step == 4);
        CHECK_STATUS(small_save(reader, 5), LS_ERR_STATE);
        CHECK_CONTAINS(ls_error_message(), "load_only");
        CHECK_OK(ls_checkpoint_free(reader));
        CHECK_OK(ls_checkpoint_free(writer));
        CHECK_OK(ls_finalize());
        small_remove(folder);
    }
    CHECK(newer >= 3 && older >= 2);
}

/* ---- a file system that hangs ---------------------------------------------------------------- */

#define SAID_BYTES 32768

/* Threads that come back late use them until the process ends, where a leak checker sees them. */
static faults *new_faults(void)
{
    static faults *volatile all[CALLS_MAX];
    static int count;
    CHECK(count < CALLS_MAX);
    all[count] = calloc(1, sizeof *all[count]);
    return all[count++];
}

/* The call waits until the test writes a byte. */
static void hang(void *arg)
{
    const int *pipe_of = arg;
    char byte;
    CHECK_INT(read(pipe_of[0], &byte, 1), 1);
}

/* The real disk may be slower than the deadline of this test. */
static int count_fsync(const ls__env *env, int fd)
{
    (void)fd_fails(env, fd, "fsync");
    return 0;
}

static void check_hung_file(void)
{
    CHECK_SAYS(ls_error_message(),
               "%s: %s \"%s\": the file system has not answered in time (LOCKSTEP_TIMEOUT, or a "
               "checkpoint's timeout_ms); check the disk, or the server that it is mounted from");
}

static void check_lost(const char *folder, ls_status status)
{
    CHECK_STATUS(status, LS_ERR_TIMEOUT);
    CHECK_CONTAINS(ls_error_message(), folder);
    check_hung_file();
}

typedef enum { SLOW, HUNG, ENDED } save_end; /* SLOW: the real disk took longer than timeout_ms */

static save_end end_without_a_hang(faults *f, ls_checkpoint *c, ls_status status, const int ends[2])
{
    f->at = 0;
    if (status != LS_ERR_TIMEOUT) {
        CHECK_OK(status);
    }
    CHECK_OK(c != NULL ? ls_checkpoint_free(c) : LS_OK);
    CHECK_OK(ls_finalize());
    close(ends[0]);
    close(ends[1]);
    if (status == LS_OK) { /* else a thread may still wait for the disk */
        free(f);
    }
    return status == LS_OK ? ENDED : SLOW;
}

static ls_status save_and_wait(ls_checkpoint *c, int64_t step)
{
    const ls_status status = small_save(c, step);
    return status == LS_OK ? ls_checkpoint_wait(c) : status;
}

/* The n-th call of a save of step 2 hangs, if there is one. Once the step is complete, a call
 * that hangs only costs the removal of older ones. The faults stay for the thread that hangs, and
 * so does the object's lock. */
static save_end hang_once(const char *folder, bool async, int n, int64_t timeout_ms, char *what)
{
    faults *f = new_faults();
    int ends[2];
    ls_checkpoint *c = NULL;
    CHECK(f != NULL && pipe(ends) == 0);
    faults_init(f, folder);
    f->env.fsync = count_fsync;
    CHECK_OK(ls__init_with(&f->env, NULL));
    const ls_checkpoint_options *set =
        LS_OPTIONS(ls_checkpoint_options, .async = async, .timeout_ms = timeout_ms);
    ls_status status = ls_checkpoint_new(folder, ls_world(), set, &c);
    status = status == LS_OK ? save_and_wait(c, 1) : status;
    if (status == LS_OK) {
        f->hook = hang;
        f->hook_arg = ends;
        faults_arm(f, FAULT_CALL, 0, n);
        status = save_and_wait(c, 2);
    }
    if (!f->hit) {
        return end_without_a_hang(f, c, status, ends);
    }
    if (status == LS_OK) {
        CHECK(n > 15);
    } else {
        check_lost(folder, status);
    }
    snprintf(what + strlen(what), SAID_BYTES - strlen(what), "%s\n", ls_error_message());
    check_lost(folder, save_and_wait(c, 3)); /* no call waits a second time */
    CHECK_OK(ls_checkpoint_free(c));
    CHECK_OK(ls_finalize());
    CHECK_INT(write(ends[1], "", 1), 1); /* the thread comes back, and must touch nothing of us */
    return HUNG;
}

static void check_hangs(bool async)
{
    static char what[SAID_BYTES];
    int64_t timeout_ms = 200;
    for (int n = 1;; n++) {
        char folder[64];
        CHECK(n < CALLS_MAX && timeout_ms < 20000);
        small_folder(folder);
        const save_end got = hang_once(folder, async, n, timeout_ms, what);
        if (got == SLOW) {
            timeout_ms *= 2;
            n--;
            small_remove(folder);
            continue;
        }
        CHECK_OK(ls_init(NULL));
        ls_checkpoint *c = NULL;
        ls_status status;
        CHECK_OK(ls_checkpoint_new(folder, ls_world(),
                                   LS_OPTIONS(ls_checkpoint_options, .load_only = true), &c));
        const int64_t step = small_load(c, &status);
        CHECK_OK(status);
        CHECK(step == 1 || step == 2);
        CHECK_OK(ls_checkpoint_free(c));
        CHECK_OK(ls_finalize());
        small_remove(folder);
        if (got == ENDED) {
            CHECK(n > 15);
            break;
        }
    }
    CHECK_CONTAINS(what, "cannot write \"");
    CHECK_CONTAINS(what, "state-00001-of-00001.safetensors\": the");
    CHECK_CONTAINS(what, "scalars.json\": the");
    CHECK_CONTAINS(what, "manifest.json\": the");
}

TEST(whichever_call_of_a_save_hangs_the_wait_ends_and_names_the_file)
{
    check_hangs(true);
}

/* The n-th call of opening and loading hangs, if there is one. */
static save_end hang_a_load(const char *folder, int n, int64_t timeout_ms)
{
    faults *f = new_faults();
    int ends[2];
    ls_checkpoint *c = NULL;
    int64_t step = -1;
    CHECK(f != NULL && pipe(ends) == 0);
    faults_init(f, folder);
    f->hook = hang;
    f->hook_arg = ends;
    CHECK_OK(ls__init_with(&f->env, NULL));
    faults_arm(f, FAULT_CALL, 0, n);
    const ls_checkpoint_options *set = LS_OPTIONS(ls_checkpoint_options, .timeout_ms = timeout_ms);
    ls_status status = ls_checkpoint_new(folder, ls_world(), set, &c);
    if (status == LS_OK) {
        step = small_load(c, &status);
    }
    CHECK(status < 0 || step == 2);
    if (!f->hit) {
        return end_without_a_hang(f, c, status, ends);
    }
    f->at = 0;
    if (status < 0) {
        check_lost(folder, status);
    }
    CHECK_OK(ls_checkpoint_free(c));
    CHECK_OK(ls_finalize());
    CHECK_INT(write(ends[1], "", 1), 1); /* the thread comes back, and must touch nothing of us */
    return HUNG;
}

/* In a folder of its own, since an object whose thread hangs keeps the lock. */
TEST(whichever_call_of_a_load_hangs_it_ends_and_names_the_path)
{
    save_end got = HUNG;
    int64_t timeout_ms = 200;
    int n = 1;
    while (got != ENDED) {
        char folder[64];
        CHECK(n < CALLS_MAX && timeout_ms < 20000);
        small_folder(folder);
        CHECK_OK(ls_init(NULL));
        ls_checkpoint *c = open_it(folder, false);
        CHECK_OK(small_save(c, 1));
        CHECK_OK(small_save(c, 2));
        CHECK_OK(ls_checkpoint_free(c));
        CHECK_OK(ls_finalize());
        got = hang_a_load(folder, n, timeout_ms);
        small_remove(folder);
        n += got == HUNG;
        timeout_ms *= got == SLOW ? 2 : 1;
    }
    CHECK(n > 10);
}

/* A job's own deadline holds for weights and data. */
static void hang_a_file(const char *folder, const char *path, int n)
{
    faults *f = new_faults();
    int ends[2];
    small s = {0};
    CHECK(f != NULL && pipe(ends) == 0);
    faults_init(f, folder);
    f->hook = hang;
    f->hook_arg = ends;
    CHECK_OK(ls__init_with(&f->env, LS_OPTIONS(ls_init_options, .timeout_ms = 200)));
    faults_arm(f, FAULT_CALL, 0, n);
    CHECK_STATUS(ls_safetensors_load(path, SMALL_ITEM(&s), NULL), LS_ERR_TIMEOUT);
    CHECK_CONTAINS(ls_error_message(), path);
    faults_arm(f, FAULT_CALL, 0, n);
    CHECK(ls_tokenizer_new(path) == NULL && ls_error_status() == LS_ERR_TIMEOUT);
    CHECK_CONTAINS(ls_error_message(), path);
    check_hung_file();
    faults_arm(f, FAULT_CALL, 0, n);
    CHECK(ls_tokens_dataset_new(path, NULL) == NULL && ls_error_status() == LS_ERR_TIMEOUT);
    CHECK_CONTAINS(ls_error_message(), path);
    f->at = 0;
    CHECK_OK(ls_finalize());
    CHECK_INT(write(ends[1], "123", 3), 3);
}

TEST(a_hung_disk_ends_the_load_of_weights_and_data)
{
    char folder[64], path[128];
    small_folder(folder);
    (void)snprintf(path, sizeof path, "%s/file", folder);
    FILE *file = fopen(path, "wb");
    CHECK(file != NULL && fprintf(file, "something") > 0 && fclose(file) == 0);
    for (int n = 1; n <= 2; n++) { /* stat; map or open */
        hang_a_file(folder, path, n);
    }
    small_remove(folder);
}

/* ---- a page that hangs: of a file that could be opened and mapped ---------------------------- */

static atomic_int let_go, page_hangs;
static float large[8192];

static ls_status large_state(void *object, const char *prefix, const ls_state_visitor *v)
{
    const ls_state_tensor tensor = {
        .dtype = LS_FLOAT32, .ndim = 1, .global = {8192}, .local = {8192}, .data = object};
    (void)prefix;
    return v->tensor(v->self, "large", &tensor);
}

#define LARGE_ITEM                                                                                 \
    (&(ls_checkpoint_item){                                                                        \
        .size = sizeof(ls_checkpoint_item), .prefix = "", .object = large, .state = large_state}), \
        1

/* Stands for the kernel, which does not return from a page fault. */
static void hang_at_page(int signal, siginfo_t *info, void *context)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    (void)signal;
    (void)context;
    for (atomic_store(&page_hangs, 1); atomic_load(&let_go) == 0;) {
        (void)nanosleep(&pause, NULL);
    }
    (void)mmap((void *)((uintptr_t)info->si_addr & ~(uintptr_t)4095), 4096, PROT_READ,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    atomic_store(&page_hangs, 0);
}

/* The second page is one of an empty file: reading it raises SIGBUS, the one signal that the
 * library's threads do not block. */
static int map_with_a_hung_page(const ls__env *env, const char *path, void **out, size_t *bytes)
{
    const struct sigaction action = {.sa_sigaction = hang_at_page, .sa_flags = SA_SIGINFO};
    const int result = ls__env_posix()->map_file(ls__env_posix(), path, out, bytes);
    (void)env;
    if (result >= 0 && *bytes > 4096) {
        const int empty = ls__env_posix()->shm_create(ls__env_posix(), "empty", 0);
        CHECK(empty >= 0 && mmap((char *)*out + 4096, 4096, PROT_READ, MAP_PRIVATE | MAP_FIXED,
                                 empty, 0) != MAP_FAILED);
        CHECK(close(empty) == 0 && sigaction(SIGBUS, &action, NULL) == 0);
    }
    return result;
}

static ls_status load_large(const char *folder, bool checkpoint, int64_t timeout_ms)
{
    char path[128];
    (void)snprintf(path, sizeof path, "%s/w.safetensors", folder);
    if (!checkpoint) {
        return ls_safetensors_load(path, LARGE_ITEM, NULL);
    }
    int64_t step = 0;
    ls_checkpoint *c = NULL;
    const ls_checkpoint_options *set =
        LS_OPTIONS(ls_checkpoint_options, .load_only = true, .timeout_ms = timeout_ms);
    ls_status status = ls_checkpoint_new(folder, ls_world(), set, &c);
    status = status == LS_OK ? ls_checkpoint_load(c, LARGE_ITEM, &step) : status;
    CHECK_OK(ls_checkpoint_free(c));
    return status;
}

static void check_page(bool checkpoint)
{
    char folder[64], path[128];
    static ls__env slow;
    small_folder(folder);
    (void)snprintf(path, sizeof path, "%s/w.safetensors", folder);
    CHECK_OK(ls_init(NULL));
    ls_checkpoint *c = open_it(folder, false);
    CHECK_OK(ls_checkpoint_save(c, 1, LARGE_ITEM));
    CHECK_OK(ls_checkpoint_wait(c));
    CHECK_OK(ls_checkpoint_free(c));
    CHECK_OK(ls_safetensors_save(path, LARGE_ITEM, NULL));
    CHECK_OK(ls_finalize());
    slow = *ls__env_posix();
    slow.map_file = map_with_a_hung_page;
    /* The real disk may take longer than the deadline to get to the page. */
    for (int64_t timeout_ms = 300; atomic_load(&page_hangs) == 0; timeout_ms *= 2) {
        CHECK(timeout_ms < 20000);
        CHECK_OK(ls__init_with(&slow, LS_OPTIONS(ls_init_options, .timeout_ms = timeout_ms)));
        const double begin = ls_time();
        CHECK_STATUS(load_large(folder, checkpoint, timeout_ms), LS_ERR_TIMEOUT);
        CHECK_CONTAINS(ls_error_message(), folder);
        CHECK_WITHIN(ls_time() - begin, 0.01 * (double)timeout_ms);
        CHECK_OK(ls_finalize());
    }
    atomic_store(&let_go, 1); /* the thread comes back, and must touch nothing of us */
    while (atomic_load(&page_hangs) != 0) {
        sched_yield();
    }
    small_remove(folder);
}

TEST(a_page_that_hangs_ends_the_load_of_weights)
{
    check_page(false);
}

TEST(a_page_that_hangs_ends_the_load_of_a_checkpoint)
{
    check_page(true);
}

TEST(a_synchronous_save_does_not_wait_longer_for_a_hung_disk)
{
    check_hangs(false);
}

TEST_MAIN
