/* SPDX-License-Identifier: Apache-2.0 */
/* The tuner in jobs: all ranks use one table, sums keep their bits, and what the user asks for by
 * size is done. In shared memory there is nothing to be tuned. */
#include "says.h"
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <lockstep/comm.h>
#include <lockstep/store.h>

#include "comm/algorithm/registry.h"
#include "comm/core/group.h"

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

DIST_TEST(many_operations_of_two_sizes_are_right, 4)
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

/* Rounds everywhere: equal bits show an equal association, whatever is chosen. */
static uint64_t bits_of_sums(void)
{
    static float x[LARGE];
    const int counts[3] = {5, 2000, LARGE};
    uint64_t hash = 0xcbf29ce484222325u;
    for (int c = 0; c < 3; c++) {
        for (int i = 0; i < counts[c]; i++) {
            x[i] = 1.0f / (float)(3 + i + 17 * ls_rank());
        }
        CHECK_OK(ls_all_reduce(ls_world(), x, x, counts[c], LS_FLOAT32, LS_SUM, NULL, NULL));
        for (int i = 0; i < counts[c]; i++) {
            uint32_t bits = 0;
            memcpy(&bits, &x[i], sizeof bits);
            hash = (hash ^ bits) * 0x100000001b3u;
        }
    }
    return hash;
}

DIST_TEST(groups_of_their_own_tune_too, 6)
{
    const int some[3] = {5, 0, 3};
    char text[TEXT] = "";
    ls_group *group = NULL;
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

/* The choice of every rank goes to the file that TABLE names, the bits of sums with it. */
DIST_TEST(helper_shows, 3)
{
    char text[TEXT] = "", bits[32];
    same_table(ls_world(), text);
    snprintf(bits, sizeof bits, "bits %016llx\n", (unsigned long long)bits_of_sums());
    if (ls_rank() == 0) {
        strncat(text, bits, sizeof text - strlen(text) - 1);
        write_text(getenv("TABLE"), text);
    }
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
    CHECK_INT(run_helper("LOCKSTEP_ALGORITHM=all_reduce=0-1k:recursive_doubling,1k-:ring",
                         "helper_rules"),
              0);
    CHECK_INT(run_helper("LOCKSTEP_ALGORITHM=all_reduce=0-1k:one_shot,1k-:halving_doubling",
                         "helper_rules"),
              0);
}

TEST(off_is_off)
{
    CHECK_INT(run_helper("LOCKSTEP_TUNE=off", "helper_untuned"), 0);
}

/* What a job of 3 ranks on 3 hosts chooses with this file of times. */
static void shown(const char *folder, const char *settings, char *out, size_t bytes)
{
    char all[512], path[64];
    snprintf(path, sizeof path, "%s/table", folder);
    snprintf(all, sizeof all, "LOCKSTEP_HOSTS=64 TABLE=%s %s", path, settings);
    CHECK_INT(run_helper(all, "helper_shows"), 0);
    read_text(path, out, bytes);
    CHECK(unlink(path) == 0);
}

/* A file by which root takes a thousandth of the time of all other algorithms. */
static void best_is_root(const char *key, char *out, size_t bytes)
{
    int count = 0, n = snprintf(out, bytes, "lockstep tuning 1\n%s", key);
    const ls__algorithm *const *all = ls__algorithms(&count);
    for (int i = 0; i < count; i++) {
        const bool timed = all[i]->exact && (all[i]->memories & LS__IN_MESSAGES) != 0;
        const char *ns = strcmp(all[i]->name, "root") == 0 ? "1e4 1e4 1e5 4e5" : "1e7 1e7 1e8 4e8";
        if (all[i]->operation == LS__OP_ALL_REDUCE && timed) {
            n += snprintf(out + n, bytes - (size_t)n, "\t%s %s", all[i]->name, ns);
        }
    }
    (void)snprintf(out + n, bytes - (size_t)n, "\n");
}

/* `lockstep tune` writes the file; jobs choose by it, with the bits that they have without. */
TEST(a_job_chooses_by_the_times_that_the_command_has_kept)
{
    char folder[] = "/tmp/lockstep-tune-XXXXXX", command[512], file[64], times[4096], plain[TEXT];
    char tuned[TEXT], settings[160], line[2048], key[128];
    CHECK(mkdtemp(folder) != NULL);
    snprintf(file, sizeof file, "%s/in/it", folder);
    snprintf(settings, sizeof settings, "LOCKSTEP_TUNE_FILE=%s", file);
    shown(folder, settings, plain, sizeof plain);
    snprintf(command, sizeof command, "LOCKSTEP_HOSTS=64 %s %s run -n 3 %s tune", settings,
             test_build_path("lockstep"), test_build_path("lockstep"));
    const test_output out = test_run(command, 60);
    CHECK_INT(out.status, 0);
    CHECK_CONTAINS(out.text, "recursive_doubling");
    free(out.text);
    read_text(file, times, sizeof times);
    CHECK_SAYS(times, "lockstep tuning 1");
    CHECK_SAYS(times, "from %s, %d cores, %s, %d channels, hosts");
    CHECK_CONTAINS(times, " hosts 0,1,2\tdirect ");
    shown(folder, settings, tuned, sizeof tuned);
    CHECK(strcmp(strstr(plain, "bits "), strstr(tuned, "bits ")) == 0);
    snprintf(command, sizeof command, "LOCKSTEP_DEBUG=info LOCKSTEP_HOSTS=64 %s %s run -n 3 %s",
             settings, test_build_path("lockstep"),
             test_build_path("examples/01_hello_all_reduce"));
    const test_output logged = test_run(command, 60);
    CHECK_SAYS(logged.text, "group \"%s\" uses these algorithms by size in bytes (%s):");
    CHECK_SAYS(logged.text, "from the times in the tuning file");
    free(logged.text);
    CHECK(sscanf(times, "lockstep tuning 1\n%127[^\t]", key) == 1);
    best_is_root(key, line, sizeof line);
    write_text(file, line);
    shown(folder, settings, tuned, sizeof tuned);
    CHECK_CONTAINS(tuned, "all_reduce      0-:root\n");
    CHECK(strcmp(strstr(plain, "bits "), strstr(tuned, "bits ")) == 0);
    write_text(file, "something else\n");
    shown(folder, settings, tuned, sizeof tuned);
    CHECK(strcmp(plain, tuned) == 0);
    CHECK(unlink(file) == 0);
    snprintf(file, sizeof file, "%s/in", folder);
    CHECK(rmdir(file) == 0 && rmdir(folder) == 0);
}

/* What `lockstep tune` says under these settings. */
static void check_tune(const char *settings, const char *says)
{
    char command[512];
    snprintf(command, sizeof command, "env %s LOCKSTEP_HOSTS=64 %s run -n 2 %s tune", settings,
             test_build_path("lockstep"), test_build_path("lockstep"));
    const test_output out = test_run(command, 60);
    CHECK_INT(out.status, 1);
    CHECK_SAYS(out.text, says);
    free(out.text);
}

TEST(times_that_cannot_be_kept_are_told)
{
    check_tune("LOCKSTEP_TUNE_FILE=/dev/null/times",
               SAYS("cannot write the times to %s: %s; set LOCKSTEP_TUNE_FILE to another file"));
    check_tune("-u LOCKSTEP_TUNE_FILE -u XDG_CACHE_HOME -u HOME",
               SAYS("no file is known for the times, since HOME is not set; set LOCKSTEP_TUNE_FILE "
                    "to a file"));
}

TEST_MAIN
