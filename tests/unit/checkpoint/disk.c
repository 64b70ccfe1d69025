/* SPDX-License-Identifier: Apache-2.0 */
/* What is asked of the disk when a folder is new, when a step is saved again, and when it gives a
 * byte at a time. */
#include "faults.h"
#include "says.h"

/* The name of a new folder is made to last too; one that is there already needs no more. */
TEST(a_new_folder_is_synced_with_the_folder_above_it)
{
    static faults f;
    char folder[64], path[128];
    small_folder(folder);
    (void)snprintf(path, sizeof path, "%s/new", folder);
    faults_init(&f, folder);
    CHECK_OK(ls__init_with(&f.env, NULL));
    for (int i = 0; i < 2; i++) {
        f.logs = true;
        f.log[0] = '\0';
        ls_checkpoint *c = open_it(path, false);
        f.logs = false;
        CHECK_INT(test_contains(f.log, "make_folder open fsync close "), i == 0);
        CHECK_OK(ls_checkpoint_free(c));
    }
    CHECK_OK(ls_finalize());
    small_remove(path);
    small_remove(folder);
}

/* Power that is lost before the folder is on the disk may lose the new name, so the old save stays
 * until then. */
TEST(the_former_save_of_a_step_is_removed_once_the_new_one_is_on_the_disk)
{
    static faults f;
    char folder[64];
    small_folder(folder);
    faults_init(&f, folder);
    CHECK_OK(ls__init_with(&f.env, NULL));
    ls_checkpoint *c = open_it(folder, false);
    CHECK_OK(small_save(c, 1));
    f.logs = true;
    CHECK_OK(small_save(c, 1));
    f.logs = false;
    CHECK_CONTAINS(f.log, "stat rename rename open fsync close list ");
    CHECK_CONTAINS(strstr(f.log, "rename rename "), "remove_folder ");
    CHECK_OK(ls_checkpoint_free(c));
    CHECK_OK(ls_finalize());
    small_remove(folder);
}

static ssize_t read_one_byte(const ls__env *env, int fd, void *out, size_t bytes)
{
    (void)env;
    return ls__env_posix()->read(ls__env_posix(), fd, out, bytes > 1 ? 1 : bytes);
}

TEST(files_that_come_a_byte_at_a_time_are_read_whole)
{
    ls__env env = *ls__env_posix();
    char folder[64];
    small_folder(folder);
    env.read = read_one_byte;
    CHECK_OK(ls__init_with(&env, NULL));
    ls_checkpoint *c = open_it(folder, false);
    CHECK_OK(small_save(c, 3));
    CHECK_OK(ls_checkpoint_free(c));
    CHECK_INT(load_fresh(folder), 3);
    CHECK_OK(ls_finalize());
    small_remove(folder);
}

/* ---- warnings -------------------------------------------------------------------------------- */

static char warned[8192];

static void keep_warning(ls_log_level level, const char *text, void *arg)
{
    const size_t used = strlen(warned);
    (void)level;
    (void)arg;
    (void)snprintf(warned + used, sizeof warned - used, "%s\n", text);
}

static void begin_with(faults *f, char folder[64])
{
    small_folder(folder);
    faults_init(f, folder);
    ls_set_log_callback(keep_warning, NULL);
}

static void end_with(const char *folder)
{
    ls_set_log_callback(NULL, NULL);
    CHECK_OK(ls_finalize());
    small_remove(folder);
}

/* The folder above it may be written and not read, say. */
TEST(a_new_folder_whose_name_may_be_lost_is_warned_of)
{
    static faults f;
    char folder[64], path[128];
    begin_with(&f, folder);
    CHECK_OK(ls__init_with(&f.env, NULL));
    for (int n = 1; n < 8; n++) {
        ls_checkpoint *c = NULL;
        (void)snprintf(path, sizeof path, "%s/new-%d", folder, n);
        faults_arm(&f, FAULT_ERROR, EACCES, n);
        (void)ls_checkpoint_new(path, ls_world(), NULL, &c);
        f.at = 0;
        (void)ls_checkpoint_free(c);
    }
    CHECK_SAYS(
        warned,
        "checkpoint: the name of the new folder \"%s\" may be lost when the power fails: %s");
    end_with(folder);
}

static int good_renames;

static int rename_no_more(const ls__env *env, const char *from, const char *to)
{
    (void)env;
    return good_renames-- > 0 ? ls__env_posix()->rename(ls__env_posix(), from, to) : -EIO;
}

/* The step is replaced by a second save of it, whose rename fails, and the first one's way back
 * too. */
TEST(a_step_that_cannot_be_put_back_is_put_back_by_the_next_open)
{
    static faults f;
    char folder[64];
    begin_with(&f, folder);
    f.env.rename = rename_no_more;
    good_renames = 2; /* of the first save, and of its step aside */
    CHECK_OK(ls__init_with(&f.env, NULL));
    ls_checkpoint *c = open_it(folder, false);
    CHECK_OK(small_save(c, 3));
    CHECK_STATUS(small_save(c, 3), LS_ERR_SYSTEM);
    CHECK_SAYS(warned, "checkpoint: \"%s\" will be put back when the folder is opened next");
    CHECK_OK(ls_checkpoint_free(c));
    c = open_it(folder, false);
    CHECK_SAYS(warned, "checkpoint: \"%s\" could not be renamed back: %s");
    CHECK_OK(ls_checkpoint_free(c));
    good_renames = 1;
    CHECK_INT(load_fresh(folder), 3);
    end_with(folder);
}

TEST_MAIN
