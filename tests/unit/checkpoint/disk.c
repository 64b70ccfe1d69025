/* What is asked of the disk when a folder is new, and when it gives a byte at a time. */
#include "faults.h"

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

TEST_MAIN
