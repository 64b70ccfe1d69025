/* SPDX-License-Identifier: Apache-2.0 */
/* What the command and the examples answer to wrong use: in words, with the status to expect, and
 * without one word too many. The texts are what users read, so they are compared as they stand. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "script.h"

/* ---- streams --------------------------------------------------------------------------------- */

TEST(a_program_started_with_closed_streams_keeps_them_out_of_shared_memory)
{
    check_script("$L run -n 2 sh -c 'exec $E/01_hello_all_reduce >&-'", 0, "");
    check_script("$L run -n 2 sh -c 'exec $E/01_hello_all_reduce <&- >&- 2>&-'", 0, "");
    check_script("$E/01_hello_all_reduce <&- >&- 2>&-", 0, "");
    check_script("$L run -n 2 $E/01_hello_all_reduce <&- >&-", 0, "");
    check_script("$L run -n 2 $E/01_hello_all_reduce <&- 2>&-", 0, "2 of 2 ranks");
    check_script("$L run -n 2 --log-dir l $E/01_hello_all_reduce >&- 2>&-; cat l/0/stdout.log", 0,
                 "2 of 2 ranks");
}

/* ---- settings -------------------------------------------------------------------------------- */

TEST(an_unknown_variable_is_told_by_the_command_and_by_one_rank)
{
    static const char warning[] =
        "warning: unknown variable LOCKSTEP_TIMOUT is ignored; did you mean LOCKSTEP_TIMEOUT?\n";
    check_count(script, "LOCKSTEP_TIMOUT=5 $L run -n 4 $E/01_hello_all_reduce", warning, 2);
    check_count(script, "LOCKSTEP_TIMOUT=5 $L run -n 4 $E/01_hello_all_reduce",
                "[0] [rank 0] warning: unknown variable", 1);
    check_count(script, "LOCKSTEP_TIMOUT=5 $E/01_hello_all_reduce", warning, 1);
    check_count(script, "LOCKSTEP_CHECK=all $E/01_hello_all_reduce",
                "warning: LOCKSTEP_CHECK=all is ignored; the only value is strict\n", 1);
}

TEST(ranks_with_other_kernels_do_not_train_together)
{
    check_script("$L run -n 2 sh -c 'LOCKSTEP_CPU=$([ $RANK = 0 ] && echo ref || echo base) exec "
                 "$E/01_hello_all_reduce'",
                 1, "LOCKSTEP_CPU=base");
}

TEST(the_log_at_info_says_what_every_rank_is)
{
    check_script("LOCKSTEP_DEBUG=info $L run -n 2 $E/01_hello_all_reduce", 0,
                 "[1] [rank 1] info: lockstep 0.");
}

TEST(a_rank_that_cannot_join_claims_no_rank)
{
    test_output got = script("LOCKSTEP_BOOTSTRAP=garbage $E/01_hello_all_reduce");
    CHECK_INT(got.status, 1);
    CHECK_CONTAINS(got.text, "LOCKSTEP_BOOTSTRAP=garbage is not of version v1");
    CHECK_INT(count_of(got.text, "rank 0"), 0);
    free(got.text);
    check_script("WORLD_SIZE=4 $E/01_hello_all_reduce", 1,
                 "start the program with `lockstep run -n 4 PROGRAM`, or unset WORLD_SIZE");
    check_script("LOCKSTEP_TIMEOUT=1 RANK=0 WORLD_SIZE=4 $E/01_hello_all_reduce", 1,
                 "local rank 1, 2, 3 did not join within the deadline");
}

/* ---- the command ----------------------------------------------------------------------------- */

TEST(help_about_a_command_is_that_commands)
{
    check_script("$L help run", 0, "usage: lockstep run [options] [--] PROGRAM ARGS");
    check_script("$L help bench", 0, "usage: lockstep bench [options] OPERATION");
    check_script("$L help info", 0, "usage: lockstep info [options]");
    check_script("$L help train gpt", 0, "usage: lockstep train gpt [options]");
    check_script("$L help", 0, "usage: lockstep COMMAND");
    check_script(
        "for c in info version env secret data completion train generate; do $L help $c && "
        "$L $c --help || exit 9; done",
        0, "usage: lockstep generate");
    check_script("$L help rum", 2, "did you mean run?");
    check_script("$L version now", 2, "lockstep version: unexpected argument \"now\"");
}

TEST(a_number_of_hosts_needs_a_place_to_meet)
{
    check_script("$L run --nnodes=1 -n 2 true", 0, "");
    check_script("$L run --nnodes 1:1 -n 2 true", 0, "");
    check_script("$L run --nnodes 1:2 -n 2 true", 2, "the number of hosts is fixed");
    check_script("$L run --nnodes 2 -n 2 true", 2, "needs --rendezvous HOST:PORT");
}

TEST(a_log_folder_is_made_with_what_is_above_it)
{
    check_script("$L run -n 2 --log-dir a/b/c echo hi >/dev/null && cat a/b/c/1/stdout.log", 0,
                 "hi\n");
    check_script("$L run -n 2 --log-dir $PWD/x/y echo hi >/dev/null && tail -c 2 x/y/pids.json", 0,
                 "]\n");
    check_script("echo > file; $L run -n 2 --log-dir file true", 1,
                 "--log-dir file: Not a directory; give a folder that can be written");
    check_script("$L run -n 1 --max-restarts 1 --log-dir $(printf %05000d 0) true", 1,
                 SAYS("--log-dir: the name is too long; give a shorter one"));
    check_script("mkdir -p l/pids.json; $L run -n 1 --log-dir l true 2>&1", 0,
                 SAYS("%s was not written: %s"));
}

TEST(output_that_cannot_be_written_is_told_once)
{
    check_script(
        "$L run -n 2 sh -c 'echo some; echo more' 2>&1 >/dev/full; true", 0,
        SAYS("standard %s: %s; the output of the ranks is lost until it can be written again"));
}

/* A rank that is not the process that the launcher started. */
TEST(descriptors_that_somebody_closed_are_named)
{
    if (access("/bin/bash", X_OK) != 0) {
        SKIP("no bash, whose shell closes any descriptor");
    }
    check_script(
        "$L run -n 1 bash -c 'IFS=: read v s b x <<< $LOCKSTEP_BOOTSTRAP; exec {x}<&-; exec "
        "$E/01_hello_all_reduce'",
        1,
        SAYS("ls_init: descriptor %d should hold the job's secret, but it is closed, used by "
             "something else or was read before: only the process that the launcher started "
             "can join"));
    check_script(
        "$L run -n 1 bash -c 'IFS=: read v s b x <<< $LOCKSTEP_BOOTSTRAP; exec {s}<&-; exec "
        "$E/01_hello_all_reduce'",
        1,
        SAYS("ls_init: descriptor %d should be the connection to the launcher, but it is "
             "closed or used by something else: only the process that the launcher started "
             "can join"));
}

TEST(too_few_descriptors_are_told_with_the_remedy)
{
    check_script("ulimit -n 64; $L run -n 200 sleep 20", 1,
                 SAYS("raise the limit of open files (ulimit -n), or start fewer ranks"));
}

TEST(info_shows_the_instructions_and_the_limits)
{
    check_script("grep -q amx_bf16 /proc/cpuinfo || echo AMX BF16; $L info", 0, SAYS("AMX BF16"));
    check_script("ulimit -n 321; $L info", 0, "open files         321\n");
    check_script("$L info", 0, SAYS("open files"));
    check_script("$L info", 0, SAYS("address space"));
}

/* ---- examples and programs ------------------------------------------------------------------- */

TEST(programs_refuse_flags_they_do_not_have)
{
    static const char *const names[] = {"$E/03_gpt_text", "$P/train_gpt", "$P/train_bert",
                                        "$P/train_image"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char text[256];
        snprintf(text, sizeof text, "%s --stepz 3", names[i]);
        check_script(text, 2,
                     i == 0 ? "error: unknown flag --stepz; --help lists them\n"
                            : "unknown option --stepz; did you mean --steps?; see lockstep train ");
        snprintf(text, sizeof text, "%s stepz", names[i]);
        check_script(text, 2,
                     i == 0 ? "error: unknown flag stepz; --help lists them\n"
                            : "unexpected argument \"stepz\"; see lockstep train ");
        snprintf(text, sizeof text, "%s --help | grep ranks", names[i]);
        check_script(text, 0, "ranks");
    }
}

/* The mistake once, then the report: not once a rank. */
TEST(a_mistake_that_all_ranks_find_is_told_by_the_first)
{
    static const char *const wrong[] = {"--data nowhere", "--data .", "--steps 0",
                                        "--data /dev/null"};
    static const char *const words[] = {
        "error: text: cannot read \"nowhere\": No such file or directory; check the path",
        "error: text: \".\" holds no regular file; name a file or a folder with files in it",
        ("lockstep train gpt: --steps is \"0\"; give a whole number from 1 to 1000000000000; see "
         "lockstep "
         "train gpt --help"),
        "error: text: \"/dev/null\" is not a regular file; give the path of a regular file"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char text[256], line[256];
        snprintf(text, sizeof text, "$L run -n 4 $P/train_gpt %s", wrong[i]);
        snprintf(line, sizeof line, "[0] %s\n", words[i]);
        check_count(script, text, line, 1);
        snprintf(line, sizeof line, "lockstep:   | %s\n", words[i]);
        check_count(script, text, line, 1);
        check_count(script, text, words[i], 2);
    }
}

TEST(a_rank_that_alone_finds_a_mistake_tells_it)
{
    check_script(
        "echo some text > some; for i in 1 2 3 4 5 6 7 8 9; do cat some some > more; "
        "mv more some; done\n"
        "$L run -n 2 sh -c '[ $RANK = 0 ] || cd /; exec $P/train_gpt --data some'",
        1,
        "lockstep:   | error: text: cannot read \"some\": No such file or directory; check "
        "the path\n");
}

TEST(more_ranks_than_the_data_feeds_are_refused)
{
    check_script("i=0; while [ $i -lt 40 ]; do echo line $i; i=$((i+1)); done > few\n"
                 "$L run -n 8 $P/train_gpt --data few --batch 100 --context 20",
                 1, "samples are less than one step of 8 ranks x 100");
}

TEST(another_model_on_one_rank_is_named_on_both_sides)
{
    check_script("seq 2000 > some\n$L run -n 3 sh -c 'd=64; [ $RANK = 2 ] && d=128; "
                 "exec $P/train_gpt --data some --layers 2 --steps 3 --dim $d'",
                 1,
                 "the ranks differ in parameter 0: rank 0 has tokens.weight float32[256,64], 16384 "
                 "elements, 256 rows (29 parameters in all), as 2 of 3 ranks, rank 2 has "
                 "tokens.weight float32[256,128], 32768 elements, 256 rows (29 parameters in all); "
                 "build the same model on every rank\n");
    check_script("seq 2000 > some\n$L run -n 2 sh -c 'b=4000; [ $RANK = 1 ] && b=8000; "
                 "exec $P/train_gpt --data some --steps 3 --bucket-bytes $b'",
                 1,
                 "the ranks differ in bucket_bytes: rank 0 has 4000, rank 1 has 8000; give every "
                 "rank the same\n");
}

TEST_MAIN
