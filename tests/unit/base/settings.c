/* SPDX-License-Identifier: Apache-2.0 */
/* Environment variables: the table, numbers, suggestions, log levels, kernel variants. Each check
 * of a warning runs a helper test of this program with another environment. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "base/log.h"
#include "base/runtime.h"
#include "base/settings.h"
#include "says.h"
#include "test.h"

/* Runs `helper` of this program in the given environment and returns what it printed. */
static char *run_helper(const char *environment, const char *helper)
{
    static char *volatile kept[64]; /* until the process ends; a leak checker sees it */
    static int count;
    char command[2048];
    snprintf(command, sizeof command, "env %s TEST_VERBOSE=1 '%s' helper_%s", environment,
             test_build_path("tests/unit/base/settings"), helper);
    test_output out = test_run(command, 20);
    if (out.status != 0) {
        test_fail(__FILE__, __LINE__, "%s: status %d: %s", command, out.status, out.text);
    }
    CHECK(count < 64);
    kept[count] = out.text;
    return kept[count++];
}

TEST(a_misspelt_variable_finds_the_nearest_known_name)
{
    CHECK(strcmp(ls__settings_suggest("LOCKSTEP_TIMOUT"), "LOCKSTEP_TIMEOUT") == 0);
    CHECK(strcmp(ls__settings_suggest("LOCKSTEP_DEBGU"), "LOCKSTEP_DEBUG") == 0);
    CHECK(strcmp(ls__settings_suggest("LOCKSTEP_THREAD"), "LOCKSTEP_THREADS") == 0);
    CHECK(strcmp(ls__settings_suggest("LOCKSTEP_HEAPRESERVE"), "LOCKSTEP_HEAP_RESERVE") == 0);
    CHECK(ls__settings_suggest("LOCKSTEP_COMPLETELY_DIFFERENT") == NULL);
    char longer[500];
    memset(longer, 'A', sizeof longer);
    longer[sizeof longer - 1] = '\0';
    CHECK(ls__settings_suggest(longer) == NULL);
}

TEST(every_setting_has_a_name_and_a_meaning_and_stands_once)
{
    int count = 0;
    const ls__setting *table = ls__settings(&count);
    CHECK(count > 5);
    for (int i = 0; i < count; i++) {
        CHECK(table[i].name[0] != '\0' && table[i].meaning[0] != '\0');
        CHECK(table[i].fallback != NULL);
        for (int j = 0; j < i; j++) {
            CHECK(strcmp(table[i].name, table[j].name) != 0);
        }
    }
}

TEST(helper_check)
{
    printf("unknown=%d\n", ls__settings_check());
}

TEST(unknown_variables_of_ours_are_warned_about_with_a_suggestion)
{
    char *text = run_helper("LOCKSTEP_TIMOUT=3 LOCKSTEP_NONSENSE_OF_MINE=1 OTHER=1", "check");
    CHECK_CONTAINS(text, "lockstep: warning: unknown variable LOCKSTEP_TIMOUT is ignored; did you "
                         "mean LOCKSTEP_TIMEOUT?");
    CHECK_CONTAINS(text, "LOCKSTEP_NONSENSE_OF_MINE is ignored; `lockstep info`");
    CHECK_CONTAINS(text, "unknown=2");
    CHECK(!test_contains(text, "OTHER"));
    CHECK_CONTAINS(run_helper("LOCKSTEP_TIMEOUT=3", "check"), "unknown=0");
}

TEST(helper_number)
{
    printf("number=%d\n", (int)ls__setting_int("LOCKSTEP_TIMEOUT", 300, 1, 1000));
}

TEST(a_number_is_read_or_warned_about_and_replaced)
{
    CHECK_CONTAINS(run_helper("-u LOCKSTEP_TIMEOUT", "number"), "number=300");
    CHECK_CONTAINS(run_helper("LOCKSTEP_TIMEOUT=", "number"), "number=300");
    CHECK_CONTAINS(run_helper("LOCKSTEP_TIMEOUT=7", "number"), "number=7");
    CHECK_CONTAINS(run_helper("LOCKSTEP_TIMEOUT=1000", "number"), "number=1000");
    static const char *const malformed[] = {"7s", "x", "1.5", "0x10"};
    for (int i = 0; i < 4; i++) {
        char environment[64];
        snprintf(environment, sizeof environment, "LOCKSTEP_TIMEOUT=%s", malformed[i]);
        char *text = run_helper(environment, "number");
        CHECK_CONTAINS(text, "number=300");
        CHECK_CONTAINS(text, "is not a whole number; 300 is used");
    }
    static const char *const outside[] = {"0", "-5", "1001", "99999999999999999999999"};
    for (int i = 0; i < 4; i++) {
        char environment[64];
        snprintf(environment, sizeof environment, "LOCKSTEP_TIMEOUT=%s", outside[i]);
        char *text = run_helper(environment, "number");
        CHECK_CONTAINS(text, "number=300");
        CHECK_CONTAINS(text, "is not between 1 and 1000; 300 is used");
    }
}

TEST(helper_log)
{
    LS__ERROR("at error");
    LS__WARN("at warn");
    LS__INFO("at info");
    LS__DEBUG("at %s", "debug");
}

static void check_levels(const char *environment, int lines)
{
    static const char *const expected[] = {
        "lockstep: error: at error\n", "lockstep: warning: at warn\n", "lockstep: info: at info\n",
        "lockstep: debug: at debug\n"};
    char *text = run_helper(environment, "log");
    for (int i = 0; i < 4; i++) {
        if (test_contains(text, expected[i]) != (i < lines)) {
            test_fail(__FILE__, __LINE__, "%s: want %d lines, got: %s", environment, lines, text);
        }
    }
}

TEST(the_log_level_is_ours_else_torchs_else_warn)
{
    check_levels("-u LOCKSTEP_DEBUG -u TORCH_DISTRIBUTED_DEBUG", 2);
    check_levels("LOCKSTEP_DEBUG=error", 1);
    check_levels("LOCKSTEP_DEBUG=INFO", 3);
    check_levels("LOCKSTEP_DEBUG=debug", 4);
    check_levels("LOCKSTEP_DEBUG=error TORCH_DISTRIBUTED_DEBUG=DETAIL", 1);
    check_levels("TORCH_DISTRIBUTED_DEBUG=DETAIL", 4);
    check_levels("TORCH_DISTRIBUTED_DEBUG=INFO", 3);
    check_levels("TORCH_DISTRIBUTED_DEBUG=OFF", 2);
    check_levels("LOCKSTEP_DEBUG=nonsense", 2);
    CHECK_CONTAINS(run_helper("LOCKSTEP_DEBUG=nonsense", "check"), "not one of error, warn");
}

TEST(helper_rank_log)
{
    ls_runtime runtime;
    ls__runtime_init(&runtime, ls__env_posix());
    runtime.rank = 3;
    CHECK_OK(ls_runtime_attach(&runtime));
    static char text[6000];
    memset(text, 'z', sizeof text - 1);
    LS__WARN("short");
    LS__WARN("%s", text);
    LS__WARN("after");
}

TEST(a_log_line_carries_the_rank_and_a_long_one_still_ends)
{
    char *text = run_helper("LOCKSTEP_DEBUG=warn", "rank_log");
    CHECK_CONTAINS(text, "[rank 3] warning: short\n");
    CHECK_CONTAINS(text, "\n# [rank 3] warning: after\n");
}

TEST(helper_cpu)
{
    ls_status status = ls__cpu_check();
    printf("cpu=%s of %s, variant %s%s: %s\n", ls__cpu_name(ls__cpu_level()),
           ls__cpu_name(ls__cpu_best_level()), ls__isa_name(ls__cpu_isa()),
           ls__cpu_strict() ? ", strict" : "", status == LS_OK ? "ok" : ls_error_message());
}

TEST(the_kernels_are_the_best_unless_the_user_asks_for_less)
{
    const char *best = ls__cpu_name(ls__cpu_best_level());
    char want[64];
    snprintf(want, sizeof want, "cpu=%s of %s, variant %s: ok", best, best,
             ls__isa_name(ls__cpu_best()));
    CHECK_CONTAINS(run_helper("-u LOCKSTEP_CPU", "cpu"), want);
    CHECK_CONTAINS(run_helper("LOCKSTEP_CPU=base", "cpu"), "variant base: ok");
    char *text = run_helper("LOCKSTEP_CPU=ref", "cpu");
    CHECK_CONTAINS(text, "cpu=ref of ");
    CHECK_CONTAINS(text, "variant base: ok");
    for (int level = LS__CPU_BASE; level < LS__CPU_COUNT; level++) {
        char setting[64];
        const char *name = ls__cpu_name((ls__cpu)level);
        snprintf(setting, sizeof setting, "LOCKSTEP_CPU=%s", name);
        snprintf(want, sizeof want, "cpu=%s of %s", name, best);
        bool there = level <= (int)ls__cpu_best_level();
        if (there) {
            CHECK_CONTAINS(run_helper(setting, "cpu"), want);
        } else {
            CHECK_SAYS(run_helper(setting, "cpu"), "LOCKSTEP_CPU=%s: this processor offers no more "
                                                   "than %s; ask for that, or unset it");
        }
    }
}

TEST(kernels_nobody_knows_are_refused_with_the_nearest_name)
{
    char *text = run_helper("LOCKSTEP_CPU=avx9", "cpu");
    CHECK_CONTAINS(text,
                   "LOCKSTEP_CPU=avx9 is not one of ref, base, avx2, avx512, amx; did you mean "
                   "avx2?");
    text = run_helper("LOCKSTEP_CPU=everything", "cpu");
    CHECK_CONTAINS(text, "amx; unset it for the best");
}

TEST(results_for_any_number_of_threads_are_asked_for_with_one_word)
{
    CHECK_CONTAINS(run_helper("LOCKSTEP_DETERMINISTIC=strict", "cpu"), ", strict: ok");
    CHECK_CONTAINS(run_helper("LOCKSTEP_DETERMINISTIC=1", "cpu"),
                   "LOCKSTEP_DETERMINISTIC=1 is not strict, the only value");
}

TEST(onednn_is_used_or_not)
{
    CHECK_CONTAINS(run_helper("LOCKSTEP_ONEDNN=0", "cpu"), ": ok");
    CHECK_CONTAINS(run_helper("LOCKSTEP_ONEDNN=1", "cpu"), ": ok");
    CHECK_CONTAINS(run_helper("LOCKSTEP_ONEDNN=no", "cpu"),
                   "LOCKSTEP_ONEDNN=no is neither 0 nor 1");
}

TEST_MAIN
