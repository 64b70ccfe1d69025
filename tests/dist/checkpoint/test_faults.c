/* SPDX-License-Identifier: Apache-2.0 */
/* Faults on one rank of several: all return the same named error, and a whole checkpoint stays. */
#include "faults.h"
#include "says.h"

/* All ranks' messages are the same. */
static void check_same_words(ls_status status)
{
    char mine[512] = "", all[4][512];
    (void)snprintf(mine, sizeof mine, "%d %s", status, status < 0 ? ls_error_message() : "");
    CHECK_OK(ls_all_gather(ls_world(), mine, all, sizeof mine, LS_UINT8, NULL, NULL));
    for (int r = 1; r < ls_world_size(); r++) {
        if (strcmp(all[r], all[0]) != 0) {
            test_fail(__FILE__, __LINE__, "rank %d: %s; rank 0: %s", r, all[r], all[0]);
        }
    }
}

static int ranks_fail(void *arg)
{
    static faults f;
    const job *j = arg;
    faults_init(&f, j->folder);
    CHECK_OK(ls__init_with(&f.env, NULL));
    ls_checkpoint *c = open_it(j->folder, j->async);
    int64_t step = 1, newest = 1;
    int32_t hit = 1;
    CHECK_OK(small_save(c, step));
    CHECK_OK(ls_checkpoint_wait(c));
    for (int n = 1; hit; n++) {
        faults_arm(&f, FAULT_ERROR, j->error, ls_rank() == j->victim ? n : 0);
        ls_status status = small_save(c, ++step);
        status = status == LS_OK ? ls_checkpoint_wait(c) : status;
        f.at = 0;
        check_same_words(status);
        ls_status loaded;
        int64_t found = small_load(c, &loaded);
        CHECK_OK(loaded);
        CHECK(found == step || (status < 0 && found == newest));
        newest = found;
        hit = f.hit;
        CHECK_OK(ls_all_reduce(ls_world(), &hit, &hit, 1, LS_INT32, LS_MAX, NULL, NULL));
    }
    CHECK(step > (j->victim == 0 ? 15 : 4));
    CHECK_OK(ls_checkpoint_free(c));
    CHECK_OK(ls_finalize());
    return 0;
}

static void check_ranks(int ranks, int victim, int error, bool async)
{
    char folder[64];
    small_folder(folder);
    job j = {.folder = folder, .victim = victim, .error = error, .async = async};
    CHECK_OK(ls_spawn(ranks_fail, &j, ranks));
    small_remove(folder);
}

TEST(a_failure_on_rank_0_is_the_same_error_on_all)
{
    check_ranks(3, 0, EIO, false);
}

TEST(a_full_disk_on_rank_2_is_the_same_error_on_all)
{
    check_ranks(3, 2, ENOSPC, false);
}

static int ranks_apart(void *arg)
{
    static faults f;
    const job *j = arg;
    faults_init(&f, j->folder);
    CHECK_OK(ls__init_with(&f.env, NULL));
    ls_checkpoint *c = open_it(j->folder, true);
    faults_arm(&f, FAULT_ERROR, ENOENT, ls_rank() == 1 ? 1 : 0);
    CHECK_OK(small_save(c, 1));
    CHECK_STATUS(ls_checkpoint_wait(c), LS_ERR_NOT_FOUND);
    CHECK_CONTAINS(ls_error_message(), "rank 1: checkpoint: rank 0 has made ");
    CHECK_SAYS(ls_error_message(), "checkpoint: rank 0 has made \"%s\", but it does not exist "
                                   "here; give a folder on a file system that all hosts share");
    CHECK_OK(ls_checkpoint_free(c));
    CHECK_OK(ls_finalize());
    return 0;
}

TEST(a_folder_that_another_host_does_not_see_is_said_to_be_that)
{
    char folder[64];
    small_folder(folder);
    CHECK_OK(ls_spawn(ranks_apart, &(job){.folder = folder}, 2));
    small_remove(folder);
}

/* Each rank's own disk has a checkpoint of step 5. */
static int ranks_see_two_folders(void *arg)
{
    const char(*folders)[64] = arg;
    small s = {0};
    int64_t step = 0;
    ls_checkpoint *c = NULL;
    CHECK_OK(ls_init(NULL));
    CHECK_INT(chdir(folders[ls_rank()]), 0);
    CHECK_OK(ls_checkpoint_new(".", ls_world(),
                               LS_OPTIONS(ls_checkpoint_options, .load_only = true), &c));
    CHECK(ls_checkpoint_load(c, SMALL_ITEM(&s), &step) < 0);
    CHECK_SAYS(ls_error_message(), "checkpoint: rank %d sees another manifest than rank 0; give a "
                                   "folder on a file system that all hosts share");
    CHECK_OK(ls_checkpoint_free(c));
    CHECK_OK(ls_finalize());
    return 0;
}

static int save_one(void *arg)
{
    const job *j = arg;
    small s;
    small_fill(&s, j->n);
    CHECK_OK(ls_init(NULL));
    ls_checkpoint *c = open_it(j->folder, false);
    CHECK_OK(ls_checkpoint_save(c, 5, SMALL_ITEM(&s)));
    CHECK_OK(ls_checkpoint_free(c));
    CHECK_OK(ls_finalize());
    return 0;
}

TEST(ranks_that_see_other_checkpoints_of_the_same_step_load_none)
{
    char folders[2][64];
    for (int i = 0; i < 2; i++) {
        small_folder(folders[i]);
        CHECK_INT(run_child(save_one, &(job){.folder = folders[i], .n = i}), 0);
    }
    CHECK_OK(ls_spawn(ranks_see_two_folders, folders, 2));
    small_remove(folders[0]);
    small_remove(folders[1]);
}

TEST(an_error_of_an_asynchronous_save_comes_with_the_next_call_on_all_ranks)
{
    check_ranks(4, 1, ENOSPC, true);
}

TEST(a_rank_killed_during_a_save_loses_nothing)
{
    char folder[64];
    small_folder(folder);
    job j = {.folder = folder, .victim = 1, .kind = FAULT_KILL, .expect = 1};
    CHECK_OK(ls_spawn(ranks_killed, &j, 2));
    for (int victim = 0; victim < 2; victim++) {
        for (int n = 20; n < 34; n += 3) { /* those of open and load come first */
            j.victim = victim;
            j.n = n;
            j.expect++;
            (void)ls_spawn(ranks_killed, &j, 2);
            int status = run_child(ranks_check, &j);
            CHECK(WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 3));
            j.expect -= WEXITSTATUS(status) == 3;
        }
    }
    small_remove(folder);
}

TEST_MAIN
