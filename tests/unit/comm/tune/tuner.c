/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of the tuner that need no job: rules, counts, the fit, the table, the file. */
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/error.h"
#include "comm/algorithm/registry.h"
#include "comm/algorithm/rules.h"
#include "comm/core/comm.h"
#include "comm/tune/cache.h"
#include "comm/tune/tune.h"

/* ---- rules -------------------------------------------------------------------------------- */

static const char *rule_at(const ls__rules *rules, int64_t bytes)
{
    const ls__algorithm *found = ls__rules_find(rules, LS__OP_ALL_REDUCE, bytes);
    return found != NULL ? found->name : "none";
}

TEST(rules_hold_from_the_first_size_to_below_the_second)
{
    ls__rules rules = {0};
    CHECK_OK(ls__rules_parse(&rules, "scan=direct;all_reduce=0-4k:recursive_doubling,4k-1Mi:direct,"
                                     "2Mi-:ring;gather=8-:binomial"));
    CHECK(strcmp(rule_at(&rules, 0), "recursive_doubling") == 0);
    CHECK(strcmp(rule_at(&rules, 3999), "recursive_doubling") == 0);
    CHECK(strcmp(rule_at(&rules, 4000), "direct") == 0);
    CHECK(strcmp(rule_at(&rules, (1 << 20) - 1), "direct") == 0);
    CHECK(strcmp(rule_at(&rules, 1 << 20), "none") == 0);
    CHECK(strcmp(rule_at(&rules, INT64_MAX - 1), "ring") == 0);
    CHECK(ls__rules_find(&rules, LS__OP_BROADCAST, 0) == NULL);
    CHECK(ls__rules_find(&rules, LS__OP_SCAN, 0) == ls__algorithm_find(LS__OP_SCAN, "direct"));
    CHECK(ls__rules_find(&rules, LS__OP_GATHER, 7) == NULL);
    CHECK(ls__rules_find(&rules, LS__OP_GATHER, 8) ==
          ls__algorithm_find(LS__OP_GATHER, "binomial"));
}

TEST(a_name_alone_is_for_every_size)
{
    ls__rules rules = {0};
    CHECK_OK(ls__rules_parse(&rules, "all_reduce=root"));
    CHECK(strcmp(rule_at(&rules, 0), "root") == 0);
    CHECK(strcmp(rule_at(&rules, (int64_t)1 << 40), "root") == 0);
}

static void whole_refused(const char *text, const char *why)
{
    ls__rules rules = {0};
    CHECK(ls__rules_parse(&rules, text) < 0);
    CHECK_CONTAINS(ls_error_message(), "LOCKSTEP_ALGORITHM: ");
    CHECK_CONTAINS(ls_error_message(), why);
}

/* After those of another operation and before those of a third. */
static void refused(const char *rules, const char *why)
{
    char text[256];
    snprintf(text, sizeof text, "scan=direct;all_reduce=%s;gather=binomial", rules);
    whole_refused(text, why);
    CHECK_CONTAINS(ls_error_message(), "all_reduce");
}

TEST(rules_that_are_none_are_refused)
{
    refused("0-4k:rign", "no algorithm \"rign\"");
    refused("", "no algorithm \"\"");
    refused("0-4k:ring,", "no algorithm \"\"");
    refused("-4k:ring", "does not begin with sizes");
    refused("0-4q:ring", "does not begin with sizes");
    refused("4k-4k:ring", "does not begin with sizes");
    refused("8k-4k:ring", "does not begin with sizes");
    refused("0-99999999999999999999:ring", "does not begin with sizes");
    refused("0-9999999999G:ring", "does not begin with sizes");
    refused("0-4k:ring,3999-:direct", "both cover 3999 bytes");
    refused("ring,direct", "both cover 0 bytes");
    refused("0-1:ring,1-2:ring,2-3:ring,3-4:ring,4-5:ring,5-6:ring,6-7:ring,7-8:ring,8-:ring",
            "more than 8 rules");
}

TEST(rules_without_an_operation_are_refused)
{
    whole_refused("", "does not begin with an operation");
    whole_refused("ring", "does not begin with an operation");
    whole_refused("all_reduc=ring", "does not begin with an operation");
    whole_refused("send=direct", "does not begin with an operation");
    whole_refused("all_gather_v=direct", "does not begin with an operation");
    whole_refused("all_reduce=ring;", "does not begin with an operation");
    whole_refused("all_reduce=ring;scan=direct;all_reduce=direct", "all_reduce is given twice");
}

/* ---- counts ------------------------------------------------------------------------------- */

static ls__layout hosts_of(int size, int per_host)
{
    ls__layout layout = {.size = size};
    for (int r = 0; r < size; r++) {
        layout.host[r] = r / per_host;
    }
    return layout;
}

static ls__counts counts_of(const char *name, int size, int per_host)
{
    const ls__layout layout = hosts_of(size, per_host);
    ls__counts counts;
    CHECK_OK(ls__tune_count(ls__algorithm_find(LS__OP_ALL_REDUCE, name), &layout, ls__env_posix(),
                            &counts));
    return counts;
}

TEST(what_is_counted_is_what_the_closed_forms_say)
{
    for (int n = 2; n <= 16; n++) {
        const ls__counts direct = counts_of("direct", n, 1), root = counts_of("root", n, 1);
        CHECK(direct.of[LS__COST_STEPS] == 2);
        CHECK(direct.of[LS__COST_ALL_MESSAGES] == 2.0 * n * (n - 1));
        CHECK(fabs(direct.of[LS__COST_LINK] - 2.0 * (n - 1) / n) < 1e-9);
        CHECK(fabs(direct.of[LS__COST_ALL] - 2.0 * (n - 1)) < 1e-9);
        CHECK(root.of[LS__COST_RANK_MESSAGES] == 2.0 * (n - 1));
        CHECK(fabs(root.of[LS__COST_LINK] - (n - 1)) < 1e-9);
        CHECK(direct.exact && root.exact && direct.of[LS__COST_LOCAL] == 0);
    }
}

TEST(bytes_inside_a_host_are_not_on_its_link)
{
    const ls__counts flat = counts_of("direct", 4, 1), two = counts_of("direct", 4, 2);
    /* Of each rank's 3/4 buffers that go out and come back, 2/4 leave the host of two. */
    CHECK(fabs(flat.of[LS__COST_LINK] - 1.5) < 1e-9);
    CHECK(fabs(two.of[LS__COST_LINK] - 2.0) < 1e-9);
    CHECK(two.of[LS__COST_LOCAL] > 0);
    CHECK(counts_of("hierarchical", 4, 2).of[LS__COST_LINK] < two.of[LS__COST_LINK]);
}

/* ---- fit and table ------------------------------------------------------------------------ */

static const ls__figures truth = {.of = {20000, 1500, 0, 0.8, 0, 0.05, 0.1}};

static ls__timings timed_by(const ls__layout *layout, const ls__figures *figures)
{
    ls__timings timings;
    CHECK_OK(ls__timings_init(&timings, layout, ls__env_posix()));
    CHECK(timings.count >= 5);
    for (int t = 0; t < timings.count; t++) {
        for (int class = 0; class < LS__TUNE_CLASSES; class ++) {
            timings.of[t].ns[class] =
                ls__tune_ns(figures, &timings.of[t].counts, (double)ls__tune_bytes[class]);
        }
    }
    return timings;
}

static void decide(const ls__layout *layout, const ls__timings *timings, ls__tune_table *table)
{
    ls__figures figures;
    ls__tune_fit(timings, &figures);
    CHECK_OK(ls__tune_decide(layout, timings, &figures, ls__env_posix(), table));
}

TEST(times_that_follow_the_model_are_predicted_again)
{
    for (int n = 2; n <= 9; n++) {
        const ls__layout layout = hosts_of(n, n > 4 ? 2 : 1);
        const ls__timings timings = timed_by(&layout, &truth);
        ls__figures fitted;
        ls__tune_fit(&timings, &fitted);
        for (int t = 0; t < timings.count; t++) {
            for (double bytes = 100; bytes < 1e8; bytes *= 7) {
                const double want = ls__tune_ns(&truth, &timings.of[t].counts, bytes);
                const double got = ls__tune_ns(&fitted, &timings.of[t].counts, bytes);
                CHECK(fabs(got - want) < 0.15 * want);
            }
        }
        for (int i = 0; i < LS__COST_COUNT; i++) {
            CHECK(fitted.of[i] >= 0);
        }
    }
}

TEST(the_line_of_a_program_gives_its_times)
{
    for (int n = 2; n <= 8; n++) {
        const ls__counts counts = counts_of("direct", n, 1);
        const ls__tune_link line = ls__tune_line(&truth, &counts);
        for (double bytes = 0; bytes <= 1e9; bytes = 100 * bytes + 1) {
            const double ns = ls__tune_ns(&truth, &counts, bytes);
            CHECK_NEAR(line.latency_ns + line.byte_ns * bytes, ns, 1e-9 * ns);
        }
    }
}

TEST(the_table_has_the_cheapest_program_at_every_size)
{
    const ls__layout layout = hosts_of(6, 1);
    const ls__timings timings = timed_by(&layout, &truth);
    ls__tune_table table;
    decide(&layout, &timings, &table);
    for (double bytes = 64; bytes < 1e9; bytes *= 3) {
        const ls__algorithm *chosen = ls__tune_find(&table, LS__OP_ALL_REDUCE, (int64_t)bytes);
        double least = 0, mine = 0;
        for (int t = 0; t < timings.count; t++) {
            const double ns = ls__tune_ns(&truth, &timings.of[t].counts, bytes);
            least = least == 0 || ns < least ? ns : least;
            mine = timings.of[t].algorithm == chosen ? ns : mine;
        }
        CHECK(chosen != NULL && mine > 0 && mine < 1.15 * least);
    }
    /* Small ones want few steps, large ones few bytes. */
    CHECK(ls__tune_find(&table, LS__OP_ALL_REDUCE, 64) !=
          ls__tune_find(&table, LS__OP_ALL_REDUCE, (int64_t)1 << 28));
}

TEST(what_the_model_misses_is_corrected_where_it_was_timed)
{
    const ls__layout layout = hosts_of(4, 1);
    ls__timings timings = timed_by(&layout, &truth);
    ls__tune_table table;
    for (int t = 0; t < timings.count; t++) { /* large direct ones are three times as slow here */
        if (strcmp(timings.of[t].algorithm->name, "direct") == 0) {
            timings.of[t].ns[2] *= 3;
            timings.of[t].ns[3] *= 3;
        }
    }
    decide(&layout, &timings, &table);
    const ls__algorithm *chosen = ls__tune_find(&table, LS__OP_ALL_REDUCE, 1 << 22);
    CHECK(chosen != NULL && strcmp(chosen->name, "direct") != 0);
}

TEST(only_exact_programs_are_admitted)
{
    int count = 0;
    const ls__algorithm *const *all = ls__algorithms(&count);
    const ls__layout layout = hosts_of(5, 1);
    const ls__timings timings = timed_by(&layout, &truth);
    ls__tune_table table;
    decide(&layout, &timings, &table);
    for (int o = 0; o < LS__OP_COUNT; o++) {
        for (int i = 0; i < table.of[o].count; i++) {
            ls__counts counts;
            const ls__algorithm *a = all[table.of[o].range[i].algorithm];
            CHECK(a->operation == (ls__operation)o);
            CHECK_OK(ls__tune_count(a, &layout, ls__env_posix(), &counts));
            CHECK(counts.exact);
        }
        CHECK(table.of[o].count == 0 ||
              table.of[o].range[table.of[o].count - 1].below == INT64_MAX);
    }
}

/* ---- the file ----------------------------------------------------------------------------- */

TEST(a_line_of_the_file_gives_its_times_and_layout)
{
    const ls__layout layout = hosts_of(3, 1);
    ls__timings timings;
    ls__layout read;
    CHECK_OK(ls__timings_init(&timings, &layout, ls__env_posix()));
    CHECK(
        ls__tune_read_times("direct 1000 2000 3000 4000\tnew_one 1 2 3 4\troot 5 0 7 0", &timings));
    for (int t = 0; t < timings.count; t++) {
        const char *name = timings.of[t].algorithm->name;
        const bool direct = strcmp(name, "direct") == 0, root = strcmp(name, "root") == 0;
        CHECK(timings.of[t].ns[0] == (direct ? 1000 : root ? 5 : 0));
        CHECK(timings.of[t].ns[1] == (direct ? 2000 : 0));
        CHECK(timings.of[t].ns[2] == (direct ? 3000 : root ? 7 : 0));
    }
    CHECK(!ls__tune_read_times("", &timings));
    CHECK(!ls__tune_read_times("nonsense", &timings));
    CHECK(!ls__tune_read_times("direct x", &timings));
    CHECK(!ls__tune_read_times("direct -5 1 1 1", &timings));
    CHECK(!ls__tune_read_times("direct nan 1 1 1", &timings));
    CHECK(ls__tune_key_layout("from a, 2 cores, tls, 1 channels, hosts 0,1,1", &read));
    CHECK(read.size == 3 && read.host[0] == 0 && read.host[2] == 1);
    CHECK(!ls__tune_key_layout("from a", &read));
    CHECK(!ls__tune_key_layout("from a hosts 0", &read));
    CHECK(!ls__tune_key_layout("from a hosts 0,99", &read));
}

/* What rank 0 shares: times of the layout itself before those of another one, else the default. */
TEST(figures_come_from_the_layout_else_from_another_else_from_the_model)
{
    const ls__layout three = hosts_of(3, 1);
    ls__timings timings;
    ls__figures figures, other;
    CHECK_OK(ls__timings_init(&timings, &three, ls__env_posix()));
    CHECK(!ls__tune_figures("", &three, ls__env_posix(), &timings, &figures));
    CHECK(memcmp(&figures, &ls__tune_default_figures, sizeof figures) == 0);
    CHECK(!ls__tune_figures("nonsense\n\tof\nmany lines", &three, ls__env_posix(), &timings,
                            &figures));
    const char *text = "from a, hosts 0,1,2,3\tdirect 900000 900000 9000000 90000000\n"
                       "from a, hosts 0,1,2\tdirect 1000 2000 30000 40000\n";
    CHECK(ls__tune_figures(text, &three, ls__env_posix(), &timings, &figures));
    bool timed = false;
    for (int t = 0; t < timings.count; t++) {
        timed = timed || timings.of[t].ns[0] == 1000;
    }
    CHECK(timed);
    const ls__layout five = hosts_of(5, 1);
    CHECK_OK(ls__timings_init(&timings, &five, ls__env_posix()));
    CHECK(ls__tune_figures(text, &five, ls__env_posix(), &timings, &other));
    for (int t = 0; t < timings.count; t++) {
        CHECK(timings.of[t].ns[0] == 0);
    }
    CHECK(memcmp(&figures, &other, sizeof other) != 0);
    CHECK(memcmp(&other, &ls__tune_default_figures, sizeof other) != 0);
}

static int name_a(const ls__env *env, char *out, size_t bytes)
{
    (void)env;
    return snprintf(out, bytes, "a") == 1 ? 0 : -1;
}

static int two_cores(const ls__env *env)
{
    (void)env;
    return 2;
}

static const ls__env *at_host_a(void)
{
    static ls__env env;
    env = *ls__env_posix();
    env.host_name = name_a;
    env.cores = two_cores;
    return &env;
}

/* What rank 0 reads for all ranks: this host's lines, each whole or not at all. */
TEST(lines_of_this_host_are_read_as_far_as_they_fit_whole)
{
    static const char first[] = "from a, 2 cores, tls, 1 channels, hosts 0,1\tdirect 1 2 3 4\n";
    static const char both[] = "from a, 2 cores, tls, 1 channels, hosts 0,1\tdirect 1 2 3 4\n"
                               "from a, 2 cores, tls, 1 channels, hosts 0,0\tdirect 5 6 7 8\n";
    char path[] = "/tmp/lockstep-tuning-XXXXXX", out[400];
    ls__comm *comm = calloc(1, sizeof *comm);
    FILE *file = fdopen(mkstemp(path), "w");
    CHECK(comm != NULL && file != NULL);
    comm->env = at_host_a();
    comm->channels = 1;
    CHECK(
        fprintf(file,
                "lockstep tuning 1\nfrom b, 2 cores, tls, 1 channels, hosts 0,1\tring 1 2 3 4\n%s",
                both) > 0);
    CHECK(fclose(file) == 0 && setenv("LOCKSTEP_TUNE_FILE", path, 1) == 0);
    ls__tune_read_file(comm, out, sizeof both);
    CHECK_STR(out, both);
    ls__tune_read_file(comm, out, sizeof both - 1);
    CHECK_STR(out, first);
    ls__tune_read_file(comm, out, sizeof first - 1);
    CHECK_STR(out, "");
    CHECK(unsetenv("LOCKSTEP_TUNE_FILE") == 0 && remove(path) == 0);
    free(comm);
}

static void count_line(void *arg, const char *key, const char *times)
{
    (void)key;
    (void)times;
    ++*(int *)arg;
}

TEST(times_that_another_user_can_change_are_not_read)
{
    static const char text[] = "lockstep tuning 1\n"
                               "from a, 2 cores, tls, 1 channels, hosts 0,1\tdirect 1 2 3 4\n";
    char path[] = "/tmp/lockstep-tuning-XXXXXX";
    int lines = 0;
    FILE *file = fdopen(mkstemp(path), "w");
    CHECK(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0);
    CHECK(ls__tune_each(ls__env_posix(), path, count_line, &lines));
    CHECK_INT(lines, 1);
    CHECK(chmod(path, 0666) == 0);
    CHECK(!ls__tune_each(ls__env_posix(), path, count_line, &lines));
    CHECK_INT(lines, 1);
    CHECK_CONTAINS(ls_error_message(), "is not used, since another user could change it: ");
    CHECK(remove(path) == 0);
}

/* Everybody may write to /dev/null, which is how no times are asked for. */
TEST(dev_null_gives_no_times_and_no_warning)
{
    int lines = 0;
    CHECK(!ls__tune_each(ls__env_posix(), "/dev/null", count_line, &lines));
    CHECK_INT(lines, 0);
    CHECK_STR(ls_error_message(), "");
}

TEST_MAIN
