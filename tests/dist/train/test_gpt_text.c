/* SPDX-License-Identifier: Apache-2.0 */
/* The main job as a user starts it: `lockstep run -n N train_gpt …`. Losses of every step are
 * compared between runs; wrong use must end with words, never with a hang. */
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STEPS 100
#define RUN_SECONDS 50

static char folder[64];

/* Text with something to learn: sentences from a small grammar, the same every time. */
static void write_text(const char *name, int words)
{
    static const char *const word[] = {"the ",   "a ",   "rank ",  "bucket ",     "sends ",
                                       "waits ", "for ", "every ", "gradient.\n", "sum, "};
    char path[128];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    CHECK(f != NULL);
    uint32_t state = 12345;
    for (int i = 0; i < words; i++) {
        state = state * 1664525u + 1013904223u;
        CHECK(fputs(word[(state >> 16) % 10], f) >= 0);
    }
    CHECK(fclose(f) == 0);
}

static void start(void)
{
    (void)snprintf(folder, sizeof folder, "%s", "/tmp/lockstep-gpt-XXXXXX");
    CHECK(mkdtemp(folder) != NULL);
    write_text("text", 4000);
}

static void end(void)
{
    char command[128];
    (void)snprintf(command, sizeof command, "rm -rf '%s'", folder);
    test_output out = test_run(command, 10);
    CHECK_INT(out.status, 0);
    free(out.text);
}

/* Runs the program on `ranks` ranks (0: bare); the caller frees the text. */
static test_output run(int ranks, const char *flags)
{
    char command[1024], launcher[512] = "";
    if (ranks > 0) {
        (void)snprintf(launcher, sizeof launcher, "%s run -n %d ", test_build_path("lockstep"),
                       ranks);
    }
    (void)snprintf(
        command, sizeof command,
        "cd '%s' && %s%s --layers 2 --dim 32 --heads 2 --context 32 --lr 6e-3 --beta2 0.99 "
        "--init-std 0.08 --eval-windows 20 %s",
        folder, launcher, test_build_path("programs/train_gpt"), flags);
    return test_run(command, RUN_SECONDS);
}

static int system_in(const char *what)
{
    char command[512];
    (void)snprintf(command, sizeof command, "cd '%s' && %s", folder, what);
    test_output out = test_run(command, 10);
    int status = out.status;
    free(out.text);
    return status;
}

static void train(int ranks, const char *flags, const char *expected)
{
    test_output out = run(ranks, flags);
    if (out.status != 0 || !strstr(out.text, expected)) {
        test_fail(__FILE__, __LINE__, "status %d, \"%s\" wanted: %s", out.status, expected,
                  out.text);
    }
    free(out.text);
}

static void read_losses(const char *name, double out[STEPS])
{
    char path[128];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "r");
    CHECK(f != NULL);
    for (int i = 0; i < STEPS; i++) {
        int step = 0;
        CHECK(fscanf(f, "%d %lf", &step, &out[i]) == 2 && step == i + 1);
    }
    (void)fclose(f);
}

static double worst_difference(const char *one, const char *other)
{
    double a[STEPS], b[STEPS], worst = 0.0;
    read_losses(one, a);
    read_losses(other, b);
    CHECK(a[STEPS - 1] < 0.7 * a[0]); /* it learns */
    for (int i = 0; i < STEPS; i++) {
        worst = fmax(worst, fabs(a[i] - b[i]) / fabs(b[i]));
    }
    return worst;
}

TEST(four_workers_equal_one_process_on_the_same_global_batch)
{
    start();
    train(4, "--data text --steps 100 --batch 2 --dropout 0.1 --log-losses four",
          "replicas identical: 4 of 4");
    train(0, "--data text --steps 100 --batch 8 --dropout 0.1 --log-losses one",
          "replicas identical: 1 of 1");
    CHECK(worst_difference("four", "one") < 1e-5);
    end();
}

TEST(micro_batches_of_two_workers_equal_one_process)
{
    start();
    train(2, "--data text --steps 100 --batch 2 --accum 2 --log-losses two",
          "replicas identical: 2 of 2");
    train(0, "--data text --steps 100 --batch 8 --log-losses one", "replicas identical: 1 of 1");
    CHECK(worst_difference("two", "one") < 1e-5);
    end();
}

TEST(the_same_run_and_other_buckets_give_the_same_bits)
{
    start();
    train(3, "--data text --steps 100 --batch 2 --log-losses a", "replicas identical: 3 of 3");
    train(3, "--data text --steps 100 --batch 2 --log-losses b", "replicas identical: 3 of 3");
    train(3, "--data text --steps 100 --batch 2 --bucket-bytes 4000 --log-losses c",
          "replicas identical: 3 of 3");
    CHECK(worst_difference("a", "b") == 0.0);
    CHECK(worst_difference("a", "c") == 0.0);
    end();
}

static void check_refused(int ranks, const char *flags, int status, const char *words)
{
    test_output out = run(ranks, flags);
    if (out.status == 0 || out.status == 124 || (status && out.status != status) ||
        !strstr(out.text, words)) {
        test_fail(__FILE__, __LINE__, "%s: status %d, \"%s\" wanted: %s", flags, out.status, words,
                  out.text);
    }
    free(out.text);
}

TEST(wrong_flags_end_with_status_two_and_words)
{
    start();
    check_refused(0, "", 2, "--data is missing");
    check_refused(0, "--data", 2, "--data needs a value");
    check_refused(0, "--data text --stepz 3", 2, "unknown option --stepz; did you mean --steps?");
    check_refused(0, "--data text --steps many", 2, "--steps is \"many\"");
    check_refused(0, "--data text --steps 0", 2, "--steps is \"0\"");
    check_refused(0, "--data text --lr nan", 2, "--lr is \"nan\"");
    check_refused(0, "--data text --dim 30 --heads 4", 2, "--dim 30 is not a multiple");
    check_refused(0, "text", 2, "unexpected argument \"text\"");
    check_refused(2, "--data text --steps x", 0, "--steps is \"x\"");
    end();
}

TEST(unusable_data_is_answered_in_words_on_every_number_of_ranks)
{
    start();
    write_text("short", 8);
    write_text("empty", 0);
    for (int ranks = 0; ranks <= 3; ranks += 3) {
        check_refused(ranks, "--data nowhere", 0,
                      "cannot read \"nowhere\": No such file or directory");
        check_refused(ranks, "--data empty", 0, "\"empty\" is empty");
        check_refused(ranks, "--data short --context 400", 0, "shorter than a window");
        check_refused(ranks, "--data text --batch 100000", 0, "less than one step");
    }
    end();
}

#define SMALL "--data text --steps 6 --batch 2 --every 2 "

TEST(what_cannot_be_resumed_is_answered_in_words_and_left_alone)
{
    start();
    train(2, SMALL "--save s", "replicas identical: 2 of 2");
    CHECK_INT(system_in("mkdir empty && mkdir other && touch other/notes.txt file"), 0);
    for (int ranks = 0; ranks <= 2; ranks += 2) {
        check_refused(ranks, SMALL "--resume nowhere", 1, "nowhere\": No such file");
        check_refused(ranks, SMALL "--resume file", 1, "file\": Not a directory");
        check_refused(ranks, SMALL "--resume empty", 1, "\"empty\" holds no checkpoint");
        check_refused(ranks, SMALL "--resume other --save o", 1, "\"other\" holds no checkpoint");
        check_refused(ranks, SMALL "--resume s --dim 64", 2, "whose model has --dim 32");
    }
    CHECK_INT(system_in("[ ! -e nowhere ] && [ ! -e o ] && [ -z \"$(ls -A empty)\" ] && "
                        "[ \"$(ls -A other)\" = notes.txt ]"),
              0);
    train(2, SMALL "--save empty --resume empty", "starting at step 0");
    end();
}

TEST(a_job_goes_on_from_before_a_damaged_checkpoint_and_saves_over_it)
{
    start();
    train(2, SMALL "--save s --log-losses whole", "replicas identical: 2 of 2");
    CHECK_INT(system_in("echo >>s/step-00000006/manifest.json"), 0);
    train(2, SMALL "--save s --resume s --log-losses whole", "going on at step 4");
    CHECK_INT(system_in("[ -e s/damaged-step-00000006 ] && [ -e s/step-00000006 ] && "
                        "[ $(wc -l <whole) = 6 ]"),
              0);
    end();
}

TEST_MAIN
