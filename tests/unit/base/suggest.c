/* SPDX-License-Identifier: Apache-2.0 */
/* Which of some known words is suggested for one that is not known. */
#include "test.h"

#include "base/suggest.h"

static const char *const words[] = {"--op",    "--ranks",        "--seed",
                                    "--steps", "--max-restarts", "run"};

static const char *near(const char *word)
{
    const char *found = ls__suggest(word, words, (int)(sizeof words / sizeof *words));
    return found != NULL ? found : "";
}

TEST(a_slip_is_corrected)
{
    CHECK(strcmp(near("--stepz"), "--steps") == 0);
    CHECK(strcmp(near("--rank"), "--ranks") == 0);
    CHECK(strcmp(near("--mx-restrts"), "--max-restarts") == 0);
    CHECK(strcmp(near("rnu"), "run") == 0);
}

/* One letter is within two changes of any short word. */
TEST(a_letter_and_another_word_suggest_nothing)
{
    CHECK(strcmp(near("-x"), "") == 0);
    CHECK(strcmp(near("-o"), "") == 0);
    CHECK(strcmp(near("x"), "") == 0);
    CHECK(strcmp(near("--greedy"), "") == 0);
    CHECK(strcmp(near("--"), "") == 0);
    CHECK(strcmp(near(""), "") == 0);
}

TEST_MAIN
