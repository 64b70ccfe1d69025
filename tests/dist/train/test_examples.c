/* SPDX-License-Identifier: Apache-2.0 */
/* The examples as a reader starts them. */
#include "says.h"
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RUN_SECONDS 30

static char folder[64];

static void put(const char *name, const void *data, size_t bytes)
{
    char path[128];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    CHECK(f != NULL);
    CHECK(fwrite(data, 1, bytes, f) == bytes);
    CHECK(fclose(f) == 0);
}

/* 66 images of 4x4: steps of 16 samples end with one of 2, fewer than 4 ranks. */
static void start(void)
{
    enum { COUNT = 66, PIXELS = 16 };
    uint8_t images[16 + COUNT * PIXELS] = {0, 0, 8, 3, 0, 0, 0, COUNT, 0, 0, 0, 4, 0, 0, 0, 4};
    uint8_t labels[8 + COUNT] = {0, 0, 8, 1, 0, 0, 0, COUNT};
    uint32_t state = 1;
    for (size_t i = 16; i < sizeof images; i++) {
        state = state * 1664525u + 1013904223u;
        images[i] = (uint8_t)(state >> 24);
    }
    for (int i = 0; i < COUNT; i++) {
        labels[8 + i] = images[16 + i * PIXELS] / 26; /* 0 to 9, to be read off the first pixel */
    }
    (void)snprintf(folder, sizeof folder, "%s", "/tmp/lockstep-examples-XXXXXX");
    CHECK(mkdtemp(folder) != NULL);
    put("images", images, sizeof images);
    put("labels", labels, sizeof labels);
    labels[8 + COUNT / 2] = 10;
    put("wrong", labels, sizeof labels);
}

static void end(void)
{
    char command[128];
    (void)snprintf(command, sizeof command, "rm -rf '%s'", folder);
    test_output out = test_run(command, 10);
    CHECK_INT(out.status, 0);
    free(out.text);
}

/* `lockstep run -n ranks example flags`, or bare with 0 ranks; the caller frees the text. */
static test_output run(int ranks, const char *example, const char *flags)
{
    char command[1024], launcher[512] = "";
    if (ranks > 0) {
        (void)snprintf(launcher, sizeof launcher, "%s run -n %d ", test_build_path("lockstep"),
                       ranks);
    }
    (void)snprintf(command, sizeof command, "cd '%s' && %s%s/%s %s", folder, launcher,
                   test_build_path("examples"), example, flags);
    return test_run(command, RUN_SECONDS);
}

static void check_says(int ranks, const char *example, const char *flags, const char *words)
{
    test_output out = run(ranks, example, flags);
    if (out.status != 0 || !strstr(out.text, words)) {
        test_fail(__FILE__, __LINE__, "%s %s on %d ranks: status %d, \"%s\" wanted: %s", example,
                  flags, ranks, out.status, words, out.text);
    }
    free(out.text);
}

TEST(the_perceptron_prints_the_same_on_one_two_and_four_ranks)
{
    start();
    test_output one = run(0, "02_mlp_ddp", "images labels");
    CHECK_INT(one.status, 0);
    const char *last = strstr(one.text, "epoch 20/20  loss ");
    CHECK(last);
    for (int ranks = 2; ranks <= 4; ranks += 2) {
        check_says(ranks, "02_mlp_ddp", "images labels", last);
    }
    free(one.text);
    end();
}

TEST(a_label_outside_the_classes_is_named_and_ends_all_ranks)
{
    start();
    test_output out = run(2, "02_mlp_ddp", "images wrong");
    CHECK(out.status != 0 && out.status != 124);
    CHECK_CONTAINS(out.text, "cross_entropy: element ");
    CHECK_CONTAINS(out.text, "give values in [0,10)");
    free(out.text);
    end();
}

/* What `make demo` shows, short: losses, the other model's, replicas, and the prompt gone on
 * with. */
TEST(the_text_example_learns_judges_and_writes)
{
    start();
    char many[64 * 40 + 1] = "";
    for (int i = 0; i < 40; i++) {
        memcpy(many + 64 * i, "all ranks sum the same gradients; all ranks take the same step. ",
               64);
    }
    put("text", many, 64 * 40);
    for (int ranks = 0; ranks <= 2; ranks += 2) {
        test_output out = run(ranks, "03_gpt_text",
                              "--data text --steps 40 --dim 16 --heads 2 --context 16 "
                              "--prompt 'all ranks' --sample-bytes 20 --temperature 0.5");
        CHECK_INT(out.status, 0);
        CHECK_CONTAINS(out.text, "step    40/40  loss ");
        CHECK_CONTAINS(out.text, " (trigram ");
        CHECK_CONTAINS(out.text, ranks == 2 ? "replicas identical: 2 of 2" : "identical: 1 of 1");
        CHECK_CONTAINS(out.text, "all ranks");
        free(out.text);
    }
    check_says(0, "03_gpt_text", "--help", "--temperature");
    end();
}

TEST(the_other_examples_say_that_all_ranks_agree)
{
    start();
    for (int ranks = 0; ranks <= 3; ranks++) {
        check_says(ranks, "00_naive_ddp", "", "relative difference of the losses");
        check_says(ranks, "04_bring_your_own_backward", "", "on every rank: yes");
        check_says(ranks, "05_gradient_accumulation", "", "largest relative difference of a step");
        if (ranks < 3) { /* 3 do not divide its hidden units */
            check_says(ranks, "08_tensor_parallel", "", "; within 1e-5 of one process'");
            check_says(ranks, "10_experts", "", "; within 1e-4 of one process' with all experts");
        }
        check_says(ranks, "07_pipeline", "", "losses that differ from accumulation: 0 of 160");
        check_says(ranks, "07_pipeline", "zb-h1", "losses that differ from accumulation: 0 of 160");
    }
    static const char *const modes[] = {"sync", "async", "stale"};
    for (int i = 0; i < 3; i++) {
        check_says(3, "09_parameter_server", modes[i], "made all of them again: the same bits");
    }
    test_output out = run(5, "04_bring_your_own_backward", "");
    CHECK_INT(out.status, 2);
    CHECK_SAYS(out.text, "the batch of %d samples does not divide by %d ranks");
    free(out.text);
    out = run(2, "09_parameter_server", "snyc");
    CHECK_INT(out.status, 2);
    CHECK_SAYS(out.text, "mode \"%s\": give sync, async or stale");
    free(out.text);
    out = run(3, "10_experts", "");
    CHECK_INT(out.status, 2);
    CHECK_SAYS(out.text, "%d experts for %d ranks; start 1, 2, 4 or 8");
    free(out.text);
    end();
}

TEST_MAIN
