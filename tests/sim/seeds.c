/* SPDX-License-Identifier: Apache-2.0 */
/* The simulation over seeds: fresh ones, those that found bugs, and those in which a planted bug
 * must be found. */
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_long(void)
{
    return getenv("TEST_LONG") != NULL;
}

/* A rank that is killed in the simulation leaves its memory to nobody: that is no leak to report.
 */
static test_output sim(const char *arguments, int deadline_seconds)
{
    char command[512];
    snprintf(command, sizeof command, "ASAN_OPTIONS=\"$ASAN_OPTIONS:detect_leaks=0\" '%s' %s",
             test_build_path("tests/sim/simulate"), arguments);
    return test_run(command, deadline_seconds);
}

static void check_good(const char *arguments, int deadline_seconds)
{
    test_output out = sim(arguments, deadline_seconds);
    if (out.status != 0) {
        test_fail(__FILE__, __LINE__, "simulate %s: status %d\n%s", arguments, out.status,
                  out.text);
    }
    free(out.text);
}

TEST_OF(every_seed_ends_with_the_right_bits_or_one_named_error, 0, 600)
{
    char arguments[64];
    const unsigned long long seeds = is_long() ? 100000 : 600;
    const unsigned long long first = test_seed() % 1000000 * 1000;
    snprintf(arguments, sizeof arguments, "--seeds %llu-%llu", first, first + seeds - 1);
    check_good(arguments, 590);
}

/* Each has found a bug; what it was stands in the commit that fixed it. */
TEST(seeds_that_found_bugs_hold)
{
    static const char *const seeds[] = {
        "818",      "906",  /* no memory for a one-shot program: zeros were added */
        "87",               /* a poller told the engine's thread what the driver waited for; and a
                               micro-batch that reached no parameter lost its weight */
        "46",       "92",   /* ls_init waited for the connections of a dead rank */
        "1555",             /* the last of a host at a fence was not the last it saw */
        "34",       "241",  /* whose failure it was got lost between hosts */
        "1488",             /* … or was forgotten when another group went on */
        "135",      "254",  /* ls_group_new without memory: nobody was blamed */
        "126",      "1307", /* the name of a new checkpoint folder was not on the disk */
        "73615",            /* all ranks of node 0 failed last, and the job ended with 0 */
        "2012",     "3818", /* memory was left when a checkpoint's ranks were lost */
        "344",      "630",  /* a damaged frame was told as a connection that was closed */
        "8419",     "8660", /* a connection reset as it is made: waited for until the deadline */
        "31070",            /* a rank left after damage: told as a rank that had only left */
        "7004076",  "29000151", /* ranks of other hosts were ended before they could report */
        "8018162",              /* how a rank ended was known on its host, and not told */
        "29102285", /* a rank that others waited for ended without a reason of its own */
        "31015084", /* a call was missing, and the next one was the same */
        "31001182", /* an error of the disk was told as a secret that is not a file */
        "31407820", /* ls_init failed after the connections were made: told as a broken one */
        "31645151", /* … which waited for answers until the launcher ended it, without its report */
        "31459548", /* a connection that could not be made was told as an exit after ls_finalize */
        "31592154", /* … and a store that was not joined in time as one before ls_init */
        "31782812", /* a rank that learned of another's failed save ended first: told as an exit */
        "31783141", /* damage before a group was made: told as a rank that had ended */
        "32280587", /* a launcher failed while nodes joined: they waited for its cause for ever */
        "29204211", /* 93 ms for a slow rank of 16: messages on their way are no lost wake-up */
        "31998291", /* … of 5, 82 ms */
        "8712",     /* … 86 ms */
    };
    for (size_t i = 0; i < sizeof seeds / sizeof *seeds; i++) {
        char arguments[64];
        snprintf(arguments, sizeof arguments, "--seeds %s", seeds[i]);
        check_good(arguments, 50);
    }
}

static char *read_all(const char *path)
{
    FILE *file = fopen(path, "r");
    CHECK(file != NULL);
    CHECK(fseek(file, 0, SEEK_END) == 0);
    const long bytes = ftell(file);
    CHECK(bytes > 0);
    rewind(file);
    char *text = calloc(1, (size_t)bytes + 1);
    CHECK(text != NULL && fread(text, 1, (size_t)bytes, file) == (size_t)bytes);
    CHECK(fclose(file) == 0);
    return text;
}

/* Whatever ran before it in the same process. */
TEST(a_seed_gives_the_same_event_log_to_the_last_byte)
{
    char path[2][64] = {"/tmp/lockstep-sim-XXXXXX", "/tmp/lockstep-sim-XXXXXX"}, arguments[160];
    char *text[2];
    const char *const seeds[2] = {"900-919", "919"};
    for (int i = 0; i < 2; i++) {
        CHECK(mkstemp(path[i]) >= 0);
        snprintf(arguments, sizeof arguments, "--seeds %s --log %s", seeds[i], path[i]);
        check_good(arguments, 30);
        text[i] = read_all(path[i]);
        (void)remove(path[i]);
    }
    const size_t longer = strlen(text[0]), shorter = strlen(text[1]);
    CHECK(shorter > 10000 && longer > shorter);
    CHECK(strcmp(text[0] + longer - shorter, text[1]) == 0);
    free(text[0]);
    free(text[1]);
}

static void check_found(const char *bug, int seeds)
{
    char arguments[96];
    snprintf(arguments, sizeof arguments, "--until-found --planted %s --seeds 1-%d", bug, seeds);
    check_good(arguments, 290);
}

TEST_OF(a_comparison_that_is_skipped_is_found, 0, 300)
{
    check_found("comparison", 2000);
}

TEST_OF(tags_that_are_not_compared_are_found, 0, 300)
{
    check_found("tag", 2000);
}

TEST_OF(a_deadline_that_is_not_looked_at_is_found, 0, 300)
{
    check_found("deadline", 2000);
}

TEST_OF(a_fence_that_is_left_out_is_found, 0, 300)
{
    check_found("fence", 2000);
}

TEST_OF(a_wake_up_that_is_lost_is_found, 0, 300)
{
    check_found("wake", 2000);
}

TEST_OF(a_slot_of_another_generation_is_found, 0, 300)
{
    check_found("generation", 2000);
}

TEST_OF(a_frame_whose_damage_is_not_noticed_is_found, 0, 300)
{
    check_found("damage", 2000);
}

TEST_OF(a_failure_in_the_words_of_another_is_found, 0, 300)
{
    check_found("words", 2000);
}

/* Rare: two staged operations follow each other while a peer still reads the first one's slots. */
TEST_OF(a_stage_slot_that_is_used_again_too_early_is_found, 0, 300)
{
    check_found("slot", 12000);
}

TEST_OF(an_operator_that_is_wrong_for_one_dtype_is_found, 0, 300)
{
    check_found("operator", 2000);
}

TEST_MAIN
