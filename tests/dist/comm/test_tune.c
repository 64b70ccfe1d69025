/* The tuner in jobs: all ranks use one table, sums keep their bits, and what the user asks for by
 * size is done. In shared memory there is nothing to be tuned. */
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <lockstep/comm.h>
#include <lockstep/store.h>

#include "comm/group/group.h"
#include "comm/tune/run.h"

enum { TEXT = 2048, LARGE = 30000 };

static bool over_tcp(const ls_group *group)
{
    return group->has_remote;
}

/* Sums of integers as floats, of 1 to LARGE elements: exact, whatever the order. */
static void sums(ls_group *group, int operations)
{
    static float x[LARGE];
    const int n = ls_group_size(group), rank = ls_group_rank(group);
    for (int k = 0; k < operations; k++) {
        const int count = k % 3 == 0 ? 1 + k % 7 : k % 3 == 1 ? 700 + k : LARGE - k % 100;
        for (int i = 0; i < count; i++) {
            x[i] = (float)(rank + 1 + (i + k) % 13);
        }
        CHECK_OK(ls_all_reduce(group, x, x, count, LS_FLOAT32, LS_SUM, NULL, NULL));
        for (int i = 0; i < count; i++) {
            CHECK(x[i] == (float)(n * (n + 1) / 2 + n * ((i + k) % 13)));
        }
    }
}

static void same_table(ls_group *group, char *mine)
{
    char all[8 * TEXT];
    CHECK_OK(ls_group_get_tuning(group, mine, TEXT));
    CHECK_OK(ls_all_gather(group, mine, all, TEXT, LS_UINT8, NULL, NULL));
    for (int r = 0; r < ls_group_size(group); r++) {
        CHECK(strcmp(all + r * TEXT, mine) == 0);
    }
}

static void tuned(int ranks)
{
    char text[TEXT] = "";
    CHECK_INT(ls_world_size(), ranks);
    sums(ls_world(), LS__TUNE_AT - 1);
    CHECK_OK(ls_group_get_tuning(ls_world(), text, TEXT));
    CHECK(strcmp(text, "") == 0);
    sums(ls_world(), 40);
    same_table(ls_world(), text);
    CHECK(over_tcp(ls_world()) == (strstr(text, "all_reduce") != NULL));
    sums(ls_world(), 40);
}

DIST_TEST(two_ranks_tune_alike, 2)
{
    tuned(2);
}

DIST_TEST(three_ranks_tune_alike, 3)
{
    tuned(3);
}

DIST_TEST(eight_ranks_tune_alike, 8)
{
    tuned(8);
}

DIST_TEST(what_is_queued_behind_the_tuner_is_right, 4)
{
    enum { MANY = 100 };
    static float x[MANY][500];
    ls_work *work[MANY];
    for (int k = 0; k < MANY; k++) {
        for (int i = 0; i < 500; i++) {
            x[k][i] = (float)(ls_rank() + k + i);
        }
        CHECK_OK(ls_all_reduce(ls_world(), x[k], x[k], k % 2 ? 3 : 500, LS_FLOAT32, LS_SUM, NULL,
                               &work[k]));
    }
    for (int k = 0; k < MANY; k++) {
        CHECK_OK(ls_work_wait(work[k]));
        for (int i = 0; i < (k % 2 ? 3 : 500); i++) {
            CHECK(x[k][i] == (float)(6 + 4 * (k + i)));
        }
    }
}

/* Rounds everywhere: equal bits show an equal association. */
DIST_TEST(tuned_sums_have_the_bits_of_untuned_ones, 5)
{
    static float untuned[3][LARGE], x[LARGE];
    const int counts[3] = {5, 2000, LARGE};
    for (int when = 0; when < 2; when++) {
        for (int c = 0; c < 3; c++) {
            for (int i = 0; i < counts[c]; i++) {
                x[i] = 1.0f / (float)(3 + i + 17 * ls_rank());
            }
            CHECK_OK(ls_all_reduce(ls_world(), x, x, counts[c], LS_FLOAT32, LS_SUM, NULL, NULL));
            if (when == 0) {
                memcpy(untuned[c], x, (size_t)counts[c] * sizeof *x);
            }
            CHECK(memcmp(untuned[c], x, (size_t)counts[c] * sizeof *x) == 0);
        }
        sums(ls_world(), 50);
    }
}

DIST_TEST(groups_of_their_own_tune_too, 6)
{
    const int some[3] = {5, 0, 3};
    char text[TEXT] = "";
    ls_group *group = NULL;
    sums(ls_world(), 4);
    CHECK_OK(ls_group_new(ls_world(), some, 3, "some", &group));
    if (group != NULL) {
        sums(group, 50);
        same_table(group, text);
        CHECK(over_tcp(group) == (strstr(text, "all_reduce") != NULL));
    }
    CHECK_OK(ls_group_free(group));
    sums(ls_world(), 30);
}

static void read_text(const char *path, char *out, size_t bytes)
{
    FILE *file = fopen(path, "r");
    CHECK(file != NULL);
    out[fread(out, 1, bytes - 1, file)] = '\0';
    fclose(file);
}

static void write_text(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    CHECK(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0);
}

/* ---- with another environment ------------------------------------------------------------- */

DIST_TEST(helper_rules, 3)
{
    sums(ls_world(), 40);
}

DIST_TEST(helper_untuned, 3)
{
    char text[TEXT] = "";
    sums(ls_world(), 40);
    CHECK_OK(ls_group_get_tuning(ls_world(), text, TEXT));
    CHECK(strcmp(text, "") == 0);
}

DIST_TEST(helper_kept, 3)
{
    char text[TEXT] = "";
    sums(ls_world(), 40);
    CHECK_OK(ls_group_get_tuning(ls_world(), text, TEXT));
    CHECK(strstr(text, "all_reduce") != NULL);
}

static int run_helper(const char *settings, const char *helper)
{
    char command[512], self[256];
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    CHECK(n > 0);
    self[n] = '\0';
    snprintf(command, sizeof command, "%s %s %s", settings, self, helper);
    const test_output out = test_run(command, 60);
    if (out.status != 0) {
        fprintf(stderr, "%s", out.text);
    }
    free(out.text);
    return out.status;
}

TEST(rules_are_followed_with_and_without_shared_memory)
{
    CHECK_INT(run_helper("LOCKSTEP_ALL_REDUCE=0-1k:recursive_doubling,1k-:ring", "helper_rules"),
              0);
    CHECK_INT(run_helper("LOCKSTEP_ALL_REDUCE=0-1k:one_shot,1k-:halving_doubling", "helper_rules"),
              0);
}

TEST(off_is_off)
{
    CHECK_INT(run_helper("LOCKSTEP_TUNE=off", "helper_untuned"), 0);
}

/* What one job has timed the next one finds; what cannot be read is timed again. */
TEST(times_are_kept_in_the_file)
{
    char folder[] = "/tmp/lockstep-tune-XXXXXX", path[64], settings[160], first[4096], again[4096];
    CHECK(mkdtemp(folder) != NULL);
    snprintf(path, sizeof path, "%s/in/it", folder);
    snprintf(settings, sizeof settings,
             "LOCKSTEP_HOSTS=64 LOCKSTEP_TUNE=auto LOCKSTEP_TUNE_FILE=%s", path);
    CHECK_INT(run_helper(settings, "helper_kept"), 0);
    read_text(path, first, sizeof first);
    CHECK_CONTAINS(first, "lockstep tuning 1\n");
    CHECK_CONTAINS(first, " hosts 0,1,2\tdirect ");
    CHECK_INT(run_helper(settings, "helper_kept"), 0);
    read_text(path, again, sizeof again);
    CHECK(strcmp(first, again) == 0);
    write_text(path, "something else\n");
    CHECK_INT(run_helper(settings, "helper_kept"), 0);
    read_text(path, again, sizeof again);
    CHECK_CONTAINS(again, "lockstep tuning 1\n");
    CHECK(unlink(path) == 0);
    snprintf(path, sizeof path, "%s/in", folder);
    CHECK(rmdir(path) == 0 && rmdir(folder) == 0);
}

TEST_MAIN
