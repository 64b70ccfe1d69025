/* SPDX-License-Identifier: Apache-2.0 */
/* Damaged files: a flipped bit anywhere, a truncation to any length, files missing or exchanged.
 * The damage is always seen, and the checkpoint before is loaded instead. And the rules of the
 * folder: what is refused, moved aside, replaced, locked. */
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "says.h"
#include "small.h"

static const char *const parts[] = {"manifest.json", "scalars.json",
                                    "state-00001-of-00001.safetensors"};

static void path_of(char out[256], const char *folder, int step, const char *file)
{
    (void)snprintf(out, 256, "%s/step-%08d/%s", folder, step, file);
}

static size_t read_all(const char *path, uint8_t *out, size_t room)
{
    FILE *f = fopen(path, "rb");
    CHECK(f);
    size_t bytes = fread(out, 1, room, f);
    CHECK(bytes < room);
    (void)fclose(f);
    return bytes;
}

static void write_all(const char *path, const uint8_t *data, size_t bytes)
{
    FILE *f = fopen(path, "wb");
    CHECK(f && fwrite(data, 1, bytes, f) == bytes && fclose(f) == 0);
}

/* Steps 1 and 2 are there. */
static ls_checkpoint *open_two(char folder[64])
{
    ls_checkpoint *c = NULL;
    small_folder(folder);
    CHECK_OK(ls_checkpoint_new(folder, ls_world(),
                               LS_OPTIONS(ls_checkpoint_options, .async = false), &c));
    CHECK_OK(small_save(c, 1));
    CHECK_OK(small_save(c, 2));
    return c;
}

static void expect_step(ls_checkpoint *c, int64_t step)
{
    ls_status status;
    CHECK_INT(small_load(c, &status), step);
    CHECK_OK(status);
}

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* Thousands of warnings are expected; they go nowhere. */
static void hush(void)
{
    int fd = open("/dev/null", O_WRONLY);
    CHECK(fd >= 0 && dup2(fd, 2) == 2 && close(fd) == 0);
}

TEST(a_flipped_bit_at_any_offset_of_any_file_is_seen)
{
    static uint8_t bytes[1 << 16];
    char folder[64], path[256];
    uint32_t random = (uint32_t)test_seed();
    hush();
    CHECK_OK(ls_init(NULL));
    ls_checkpoint *c = open_two(folder);
    for (size_t p = 0; p < sizeof parts / sizeof parts[0]; p++) {
        path_of(path, folder, 2, parts[p]);
        size_t length = read_all(path, bytes, sizeof bytes);
        CHECK(length > 40);
        for (size_t at = 0; at < length; at++) {
            uint8_t bit = (uint8_t)(1u << next_random(&random) % 8);
            bytes[at] ^= bit;
            write_all(path, bytes, length);
            bytes[at] ^= bit;
            expect_step(c, 1);
        }
        write_all(path, bytes, length);
        expect_step(c, 2);
    }
    CHECK_OK(ls_checkpoint_free(c));
    small_remove(folder);
    CHECK_OK(ls_finalize());
}

TEST(a_truncation_to_any_length_and_bytes_too_many_are_seen)
{
    static uint8_t bytes[1 << 16];
    char folder[64], path[256];
    hush();
    CHECK_OK(ls_init(NULL));
    ls_checkpoint *c = open_two(folder);
    for (size_t p = 0; p < sizeof parts / sizeof parts[0]; p++) {
        path_of(path, folder, 2, parts[p]);
        size_t length = read_all(path, bytes, sizeof bytes);
        bytes[length] = ' ';
        for (size_t cut = 0; cut <= length + 1; cut += cut + 3 < length ? 3 : 1) {
            write_all(path, bytes, cut);
            expect_step(c, cut == length ? 2 : 1);
        }
        write_all(path, bytes, length);
    }
    expect_step(c, 2);
    CHECK_OK(ls_checkpoint_free(c));
    small_remove(folder);
    CHECK_OK(ls_finalize());
}

static void run(const char *format, const char *folder)
{
    char command[512];
    (void)snprintf(command, sizeof command, format, folder);
    test_output done = test_run(command, 20);
    CHECK_INT(done.status, 0);
    free(done.text);
}

TEST(missing_exchanged_and_strange_files_are_seen)
{
    static const char *const damages[] = {
        "cd %s/step-00000002 && rm manifest.json",
        "cd %s/step-00000002 && rm scalars.json",
        "cd %s/step-00000002 && rm state-*",
        "cd %s/step-00000002 && cp ../step-00000001/state-* .",
        "cd %s/step-00000002 && cp ../step-00000001/manifest.json .",
        "cd %s/step-00000002 && cp ../step-00000001/* .",
        "cd %s/step-00000002 && mv scalars.json x && mkdir scalars.json",
        "cd %s/step-00000002 && rm scalars.json && mkfifo scalars.json",
        "cd %s/step-00000002 && rm scalars.json && ln -s /dev/zero scalars.json",
        "cd %s/ && rm -r step-00000002 && touch step-00000002",
    };
    char folder[64];
    hush();
    CHECK_OK(ls_init(NULL));
    for (size_t i = 0; i < sizeof damages / sizeof damages[0]; i++) {
        ls_checkpoint *c = open_two(folder);
        run(damages[i], folder);
        expect_step(c, 1);
        CHECK_OK(ls_checkpoint_free(c));
        small_remove(folder);
    }
    CHECK_OK(ls_finalize());
}

/* ---- the folder's rules ---------------------------------------------------------------------- */

TEST(without_a_checkpoint_or_a_whole_one_load_says_which)
{
    char folder[64];
    ls_status status;
    ls_checkpoint *c = NULL;
    hush();
    CHECK_OK(ls_init(NULL));
    small_folder(folder);
    CHECK_OK(ls_checkpoint_new(folder, ls_world(), NULL, &c));
    CHECK_INT(small_load(c, &status), -1);
    CHECK_INT(status, LS_ERR_NOT_FOUND);
    CHECK_CONTAINS(ls_error_message(), folder);
    CHECK_OK(small_save(c, 5));
    CHECK_OK(ls_checkpoint_wait(c));
    run("echo >> %s/step-00000005/scalars.json", folder);
    CHECK_INT(small_load(c, &status), -1);
    CHECK_INT(status, LS_ERR_FORMAT);
    CHECK_CONTAINS(ls_error_message(), "scalars.json");
    CHECK_OK(ls_checkpoint_free(c));
    small_remove(folder);
    CHECK_OK(ls_finalize());
}

TEST(a_cut_file_is_named_with_both_sizes)
{
    char folder[64];
    ls_status status;
    ls_checkpoint *c = NULL;
    hush();
    CHECK_OK(ls_init(NULL));
    small_folder(folder);
    CHECK_OK(ls_checkpoint_new(folder, ls_world(), NULL, &c));
    CHECK_OK(small_save(c, 5));
    CHECK_OK(ls_checkpoint_wait(c));
    run("truncate -s 9 %s/step-00000005/state-00001-of-00001.safetensors", folder);
    CHECK_INT(small_load(c, &status), -1);
    CHECK_CONTAINS(ls_error_message(), "state-00001-of-00001.safetensors\" has 9 bytes, but ");
    CHECK_OK(ls_checkpoint_free(c));
    small_remove(folder);
    CHECK_OK(ls_finalize());
}

TEST(a_checkpoint_of_the_first_format_is_said_to_be_that_and_not_damaged)
{
    char folder[64];
    ls_status status;
    CHECK_OK(ls_init(NULL));
    ls_checkpoint *c = open_two(folder);
    run("sed -i 's/\"version\":2,/\"version\":1,/' %s/step-00000002/manifest.json", folder);
    CHECK_INT(small_load(c, &status), -1);
    CHECK_INT(status, LS_ERR_UNSUPPORTED);
    CHECK_SAYS(ls_error_message(), "%s: it has format version 1, whose hash this library cannot "
                                   "check; load and save it with the version that wrote it");
    CHECK_OK(ls_checkpoint_free(c));
    small_remove(folder);
    CHECK_OK(ls_finalize());
}

TEST(the_hash_of_a_file_is_what_sha256sum_says)
{
    char folder[64];
    CHECK_OK(ls_init(NULL));
    ls_checkpoint *c = open_two(folder);
    run("cd %s/step-00000002 && h=$(sha256sum <scalars.json) && grep -q ${h%%%% *} manifest.json",
        folder);
    CHECK_OK(ls_checkpoint_free(c));
    small_remove(folder);
    CHECK_OK(ls_finalize());
}

TEST(a_damaged_one_is_moved_aside_by_the_next_save_and_pushes_nothing_out)
{
    char folder[64];
    hush();
    CHECK_OK(ls_init(NULL));
    ls_checkpoint *c = open_two(folder);
    CHECK_OK(small_save(c, 3));
    run("echo >> %s/step-00000003/manifest.json", folder);
    expect_step(c, 2);
    CHECK_OK(small_save(c, 4));
    CHECK_INT(small_count(folder, "damaged-step-00000003"), 1);
    CHECK_INT(small_count(folder, "step-"), 2);
    run("echo >> %s/step-00000004/manifest.json", folder);
    expect_step(c, 2);
    CHECK_OK(ls_checkpoint_free(c));
    small_remove(folder);
    CHECK_OK(ls_finalize());
}

/* The n-th call of that save fails, for n = 1, 2, 3 … until there are no more. */
TEST(a_save_that_cannot_move_a_damaged_one_aside_fails)
{
    static faults f;
    char folder[64];
    int failed = 0;
    hush();
    f.hit = true;
    for (int n = 1; f.hit; n++) {
        CHECK_OK(ls_init(NULL));
        ls_checkpoint *c = open_two(folder);
        CHECK_OK(ls_checkpoint_free(c));
        CHECK_OK(ls_finalize());
        faults_init(&f, folder);
        CHECK_OK(ls__init_with(&f.env, NULL));
        CHECK_OK(ls_checkpoint_new(folder, ls_world(),
                                   LS_OPTIONS(ls_checkpoint_options, .async = false), &c));
        run("echo >> %s/step-00000002/manifest.json", folder);
        expect_step(c, 1);
        faults_arm(&f, FAULT_ERROR, EIO, n);
        const ls_status status = small_save(c, 3);
        ls_status loaded;
        f.at = 0;
        failed += status < 0;
        CHECK(status < 0 || small_count(folder, "damaged-step-00000002") == 1);
        const int64_t step = small_load(c, &loaded);
        CHECK_OK(loaded);
        CHECK(step == 3 || (status < 0 && step == 1));
        CHECK_OK(ls_checkpoint_free(c));
        CHECK_OK(ls_finalize());
        small_remove(folder);
    }
    CHECK(failed >= 12);
}

TEST(a_later_step_of_another_run_refuses_a_save_and_stays)
{
    char folder[64];
    CHECK_OK(ls_init(NULL));
    ls_checkpoint *c = open_two(folder);
    CHECK_STATUS(small_save(c, 1), LS_ERR_STATE);
    CHECK_CONTAINS(ls_error_message(), "holds the later step 2");
    small_check_tidy(folder);
    expect_step(c, 2);
    CHECK_OK(small_save(c, 2)); /* the same step is replaced */
    CHECK_INT(small_count(folder, "step-"), 2);
    CHECK_OK(ls_checkpoint_free(c));
    small_remove(folder);
    CHECK_OK(ls_finalize());
}

TEST(while_a_job_writes_another_may_only_load_and_cleans_nothing)
{
    char folder[64], path[256], process[64];
    ls_checkpoint *second = NULL;
    CHECK_OK(ls_init(NULL));
    ls_checkpoint *c = open_two(folder);
    char owner[256] = "";
    (void)snprintf(path, sizeof path, "%s/lock", folder);
    FILE *lock = fopen(path, "rb");
    CHECK(lock != NULL && fgets(owner, sizeof owner, lock) != NULL && fgetc(lock) == EOF);
    CHECK(fclose(lock) == 0 && owner[strlen(owner) - 1] == '\n');
    (void)snprintf(path, sizeof path, "%s/.tmp-step-00000009-1", folder);
    CHECK_INT(mkdir(path, 0777), 0);
    CHECK_STATUS(ls_checkpoint_new(folder, ls_world(), NULL, &second), LS_ERR_STATE);
    (void)snprintf(process, sizeof process, "\" is in use: process %d on host ", (int)getpid());
    CHECK_CONTAINS(ls_error_message(), folder);
    CHECK_CONTAINS(ls_error_message(), process);
    CHECK(second == NULL);
    CHECK_OK(ls_checkpoint_new(folder, ls_world(),
                               LS_OPTIONS(ls_checkpoint_options, .load_only = true), &second));
    CHECK_INT(small_count(folder, ".tmp"), 1);
    expect_step(second, 2);
    CHECK_STATUS(small_save(second, 3), LS_ERR_STATE);
    CHECK_OK(ls_checkpoint_free(second));
    CHECK_OK(ls_checkpoint_free(c));
    CHECK_OK(ls_checkpoint_new(folder, ls_world(), NULL, &c));
    small_check_tidy(folder);
    CHECK_OK(small_save(c, 3));
    CHECK_OK(ls_checkpoint_free(c));
    small_remove(folder);
    CHECK_OK(ls_finalize());
}

static int open_and_die(void *arg)
{
    ls_checkpoint *c = NULL;
    CHECK_OK(ls_init(NULL));
    CHECK_OK(ls_checkpoint_new(arg, ls_world(), NULL, &c));
    CHECK_OK(small_save(c, 1));
    CHECK_OK(ls_checkpoint_wait(c));
    return kill(getpid(), SIGKILL);
}

TEST(the_lock_of_a_process_that_died_refuses_nobody)
{
    char folder[64];
    int status = 0;
    ls_checkpoint *c = NULL;
    small_folder(folder);
    const pid_t pid = fork();
    if (pid == 0) {
        _exit(open_and_die(folder));
    }
    CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status));
    CHECK_OK(ls_init(NULL));
    CHECK_OK(ls_checkpoint_new(folder, ls_world(), NULL, &c));
    expect_step(c, 1);
    CHECK_OK(ls_checkpoint_free(c));
    small_remove(folder);
    CHECK_OK(ls_finalize());
}

/* Each round damages the newest checkpoint and saves the next one. */
TEST(damaged_checkpoints_do_not_pile_up)
{
    char folder[64], command[256];
    hush();
    CHECK_OK(ls_init(NULL));
    ls_checkpoint *c = open_two(folder);
    for (int step = 2; step < 9; step++) {
        (void)snprintf(command, sizeof command, "echo >> %%s/step-%08d/scalars.json", step);
        run(command, folder);
        expect_step(c, step - 1);
        CHECK_OK(small_save(c, step)); /* again, as training from step - 1 comes to it */
        CHECK_OK(small_save(c, step + 1));
        CHECK_INT(small_count(folder, "damaged-step-"), step < 3 ? 1 : 2);
    }
    CHECK_INT(small_count(folder, "damaged-step-00000008"), 1);
    small_check_tidy(folder);
    CHECK_OK(ls_checkpoint_free(c));
    small_remove(folder);
    CHECK_OK(ls_finalize());
}

TEST(opening_to_load_makes_nothing_and_refuses_what_is_no_folder)
{
    char folder[64], path[256];
    ls_status status;
    ls_checkpoint *c = NULL;
    const ls_checkpoint_options load_only = *LS_OPTIONS(ls_checkpoint_options, .load_only = true);
    CHECK_OK(ls_init(NULL));
    small_folder(folder);
    CHECK_OK(ls_checkpoint_new(folder, ls_world(), &load_only, &c));
    CHECK_INT(small_load(c, &status), -1);
    CHECK_INT(status, LS_ERR_NOT_FOUND);
    CHECK_INT(small_count(folder, ""), 0);
    CHECK_OK(ls_checkpoint_free(c));
    (void)snprintf(path, sizeof path, "%s/none", folder);
    CHECK_STATUS(ls_checkpoint_new(path, ls_world(), &load_only, &c), LS_ERR_NOT_FOUND);
    CHECK_CONTAINS(ls_error_message(), path);
    run("touch %s/none", folder);
    CHECK_STATUS(ls_checkpoint_new(path, ls_world(), &load_only, &c), LS_ERR_NOT_FOUND);
    CHECK_CONTAINS(ls_error_message(), "Not a directory");
    small_remove(folder);
    CHECK_OK(ls_finalize());
}

TEST(a_replaced_step_whose_new_one_did_not_come_is_put_back)
{
    char folder[64];
    CHECK_OK(ls_init(NULL));
    ls_checkpoint *c = open_two(folder);
    CHECK_OK(ls_checkpoint_free(c));
    run("cd %s && mv step-00000002 .old-step-00000002", folder);
    CHECK_OK(ls_checkpoint_new(folder, ls_world(), NULL, &c));
    small_check_tidy(folder);
    expect_step(c, 2);
    CHECK_OK(ls_checkpoint_free(c));
    run("cd %s && cp -r step-00000001 .old-step-00000002", folder);
    CHECK_OK(ls_checkpoint_new(folder, ls_world(), NULL, &c));
    small_check_tidy(folder);
    expect_step(c, 2);
    CHECK_OK(ls_checkpoint_free(c));
    small_remove(folder);
    CHECK_OK(ls_finalize());
}

/* ---- mismatches ------------------------------------------------------------------------------ */

typedef struct other {
    small base;
    const char *rename, *with; /* this name is shown as that one; NULL: left out */
    const ls_state_visitor *inner;
    int64_t extra_dim; /* added to the first dim of "mask" */
} other;

static const char *shown(const other *o, const char *name)
{
    return o->rename && strcmp(o->rename, name) == 0 ? o->with : name;
}

static ls_status other_tensor(void *self, const char *name, const ls_state_tensor *t)
{
    other *o = self;
    ls_state_tensor changed = *t;
    if (strcmp(name, "mask") == 0) {
        changed.global[0] += o->extra_dim;
        changed.local[0] += o->extra_dim;
    }
    name = shown(o, name);
    return name ? o->inner->tensor(o->inner->self, name, &changed) : LS_OK;
}

static ls_status other_int64(void *self, const char *name, int64_t *value)
{
    const other *o = self;
    name = shown(o, name);
    return name ? o->inner->int64(o->inner->self, name, value) : LS_OK;
}

static ls_status other_float64(void *self, const char *name, double *value)
{
    const other *o = self;
    name = shown(o, name);
    return name ? o->inner->float64(o->inner->self, name, value) : LS_OK;
}

static ls_status other_state(void *object, const char *prefix, const ls_state_visitor *visitor)
{
    other *o = object;
    o->inner = visitor;
    const ls_state_visitor mine = {.size = sizeof(ls_state_visitor),
                                   .self = o,
                                   .tensor = other_tensor,
                                   .int64 = other_int64,
                                   .float64 = other_float64};
    return small_state(&o->base, prefix, &mine);
}

static void expect_mismatch(ls_checkpoint *c, other o, const char *words)
{
    int64_t step = -7;
    small_fill(&o.base, 50);
    const ls_checkpoint_item item = {
        .size = sizeof(ls_checkpoint_item), .prefix = "", .object = &o, .state = other_state};
    CHECK_STATUS(ls_checkpoint_load(c, &item, 1, &step), LS_ERR_MISMATCH);
    CHECK_CONTAINS(ls_error_message(), words);
    CHECK(small_is(&o.base, 50)); /* nothing was changed */
    CHECK_INT(step, -7);
}

TEST(what_differs_is_named_and_nothing_is_loaded)
{
    char folder[64];
    CHECK_OK(ls_init(NULL));
    ls_checkpoint *c = open_two(folder);
    expect_mismatch(c, (other){.extra_dim = 1},
                    "\"mask\" is uint8 [7] in the checkpoint and uint8 [8] here");
    expect_mismatch(c, (other){.rename = "bias", .with = "bios"},
                    "this program has the tensor \"bios\", but the checkpoint does not");
    expect_mismatch(c, (other){.rename = "weight"}, "the checkpoint has the tensor \"weight\"");
    expect_mismatch(c, (other){.rename = "count", .with = "counts"},
                    "this program has the scalar \"counts\"");
    expect_mismatch(c, (other){.rename = "rate"}, "the checkpoint has the scalar \"rate\"");
    CHECK_OK(ls_checkpoint_free(c));
    small_remove(folder);
    CHECK_OK(ls_finalize());
}

/* What is left out stays as it was, what is there comes, and what is missing is still named. */
TEST(a_part_of_a_checkpoint_is_loaded_where_that_is_asked_for)
{
    char folder[64];
    other o = {.rename = "weight"};
    small expected;
    int64_t step = -1;
    CHECK_OK(ls_init(NULL));
    CHECK_OK(ls_checkpoint_free(open_two(folder)));
    ls_checkpoint *c = NULL;
    CHECK_OK(ls_checkpoint_new(
        folder, ls_world(), LS_OPTIONS(ls_checkpoint_options, .load_only = true, .partial = true),
        &c));
    const ls_checkpoint_item item = {
        .size = sizeof(ls_checkpoint_item), .prefix = "", .object = &o, .state = other_state};
    small_fill(&o.base, 50);
    small_fill(&expected, 2);
    memcpy(expected.weight, o.base.weight, sizeof expected.weight);
    CHECK_OK(ls_checkpoint_load(c, &item, 1, &step));
    CHECK_INT(step, 2);
    CHECK(memcmp(&o.base, &expected, sizeof expected) == 0);
    expect_mismatch(c, (other){.rename = "bias", .with = "bios"},
                    "this program has the tensor \"bios\", but the checkpoint does not");
    CHECK_OK(ls_checkpoint_free(c));
    small_remove(folder);
    CHECK_OK(ls_finalize());
}

TEST(two_items_of_one_name_are_refused_and_infinities_come_back)
{
    char folder[64];
    small a, b;
    int64_t step;
    CHECK_OK(ls_init(NULL));
    ls_checkpoint *c = open_two(folder);
    const ls_checkpoint_item two[] = {
        {.size = sizeof(ls_checkpoint_item), .prefix = "", .object = &a, .state = small_state},
        {.size = sizeof(ls_checkpoint_item), .prefix = "", .object = &b, .state = small_state}};
    small_fill(&a, 1);
    small_fill(&b, 1);
    CHECK_STATUS(ls_checkpoint_save(c, 3, two, 2), LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), "two items have state named");
    static const double odd[] = {1e308 * 10, -1e308 * 10, -0.0, 4.9e-324, 0.1};
    for (int i = 0; i < 5; i++) {
        a.rate = odd[i];
        CHECK_OK(ls_checkpoint_save(c, 4 + i, two, 1));
        small_fill(&b, 9);
        CHECK_OK(ls_checkpoint_load(c, &two[1], 1, &step));
        CHECK(memcmp(&a, &b, sizeof a) == 0);
    }
    CHECK_OK(ls_checkpoint_free(c));
    small_remove(folder);
    CHECK_OK(ls_finalize());
}

TEST_MAIN
