/* SPDX-License-Identifier: Apache-2.0 */
/* Command lines read by a table. Texts about mistakes stand in tests/golden; here: what is read, in
 * which order, and with which status it ends. */
#include "test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "scratch.h"
#include "tools/cli/cli.h"

#define LENGTH(a) ((int)(sizeof(a) / sizeof *(a)))

static int64_t steps;
static double rate;
static bool greedy;
static const char *text, *optim;
static int reads; /* calls of `read` */

static int read_twice(const cli_command *command, const cli_option *option, const char *value)
{
    reads++;
    return strcmp(value, "bad") == 0 ? cli_wrong(command, "%s is bad", option->name) : 0;
}

static const cli_option options[] = {
    {"steps", CLI_COUNT, &steps, .low = 1, .high = 100, .letter = 'n', .help = "steps"},
    {"learn-rate", CLI_NUMBER, &rate, .low = 0, .high = 1, .help = "rate"},
    {"greedy", CLI_SWITCH, &greedy, .help = "greedy"},
    {"text", CLI_TEXT, &text, .help = "text"},
    {"optim", CLI_CHOICE, &optim, .choices = "sgd|adamw|adam", .help = "optim"},
    {"read", CLI_READ, .read = read_twice, .help = "read"},
    {"tee", CLI_IGNORED, .letter = 't', .hidden = true},
    {"standalone", CLI_IGNORED_SWITCH, .hidden = true},
};

static const cli_command takes = {.name = "test",
                                  .about = "About.",
                                  .operands = "FILE ...",
                                  .options = options,
                                  .count = LENGTH(options)};

/* Reads up to 8 words, a NULL behind the last; argv keeps them. */
static int parse(const cli_command *command, char **argv)
{
    int argc = 0;
    steps = 7;
    rate = 0.5;
    greedy = false;
    text = NULL;
    optim = "sgd";
    reads = 0;
    while (argv[argc] != NULL) {
        argc++;
    }
    return cli_parse(command, argc, argv);
}

#define PARSE(command, ...) parse(command, (char *[]){"test", __VA_ARGS__, NULL})

TEST(values_come_behind_a_blank_an_equals_sign_or_a_letter)
{
    CHECK_INT(PARSE(&takes, "--steps", "3", "--learn-rate=0.25", "--greedy", "--text", "--greedy"),
              7);
    CHECK(steps == 3 && rate == 0.25 && greedy && strcmp(text, "--greedy") == 0);
    CHECK_INT(PARSE(&takes, "-n4"), 2);
    CHECK_INT(steps, 4);
    CHECK_INT(PARSE(&takes, "-n", "5", "--text="), 4);
    CHECK(steps == 5 && text[0] == '\0');
    CHECK_INT(PARSE(&takes, "--optim", "adam", "--read", "good", "--standalone", "-t", "3"), 8);
    CHECK(strcmp(optim, "adam") == 0 && reads == 1);
    CHECK_INT(PARSE(&takes, "-t"), -3); /* its value is missing */
}

TEST(operands_follow_the_options_in_their_order)
{
    char *argv[] = {"test", "a", "--steps", "3", "b", "--", "--greedy", NULL};
    CHECK_INT(parse(&takes, argv), 4);
    CHECK(strcmp(argv[4], "a") == 0 && strcmp(argv[5], "b") == 0 &&
          strcmp(argv[6], "--greedy") == 0);
    CHECK(steps == 3 && !greedy);
}

TEST(the_first_operand_may_end_the_options)
{
    cli_command ends = takes;
    ends.ends = true;
    char *argv[] = {"test", "-n", "2", "program", "--steps", "9", NULL};
    CHECK_INT(parse(&ends, argv), 3);
    CHECK_INT(steps, 2);
    CHECK_INT(PARSE(&ends, "-n", "2", "--", "-program"), 4);
}

TEST(underscores_serve_as_hyphens_where_a_command_says_so)
{
    cli_command loose = takes;
    loose.underscores = true;
    CHECK_INT(PARSE(&loose, "--learn_rate", "0.125"), 3);
    CHECK(rate == 0.125);
    CHECK_INT(PARSE(&takes, "--learn_rate", "0.125"), -3);
}

TEST(mistakes_end_with_status_two_and_change_nothing_later)
{
    CHECK_INT(PARSE(&takes, "--steps", "0"), -3);
    CHECK_INT(PARSE(&takes, "--steps", "101"), -3);
    CHECK_INT(PARSE(&takes, "--steps", "3x"), -3);
    CHECK_INT(PARSE(&takes, "--steps", "99999999999999999999"), -3);
    CHECK_INT(PARSE(&takes, "--learn-rate", "nan"), -3);
    CHECK_INT(PARSE(&takes, "--optim", "ada"), -3);
    CHECK_INT(PARSE(&takes, "--optim", "sgd|adamw"), -3);
    CHECK_INT(PARSE(&takes, "--greedy=yes"), -3);
    CHECK_INT(PARSE(&takes, "--step", "3"), -3);
    CHECK_INT(PARSE(&takes, "--read", "bad", "--greedy"), -3);
    CHECK(!greedy);
    cli_command none = takes;
    none.operands = NULL;
    CHECK_INT(PARSE(&none, "file"), -3);
}

TEST(help_ends_with_status_zero)
{
    CHECK_INT(PARSE(&takes, "--help"), -1);
    CHECK_INT(PARSE(&takes, "--steps", "3", "-h"), -1);
    CHECK_INT(PARSE(&takes, "--help=man"), -1);
    CHECK_INT(PARSE(&takes, "--help=options:"), -1);
}

TEST(defaults_are_written_as_the_values_are)
{
    char out[64];
    steps = 12;
    rate = 0.001;
    text = NULL;
    optim = "sgd";
    CHECK(strcmp(cli_default(&options[0], out, sizeof out), "12") == 0);
    CHECK(strcmp(cli_default(&options[1], out, sizeof out), "0.001") == 0);
    CHECK(strcmp(cli_default(&options[2], out, sizeof out), "") == 0);
    CHECK(strcmp(cli_default(&options[3], out, sizeof out), "") == 0);
    CHECK(strcmp(cli_default(&options[4], out, sizeof out), "sgd") == 0);
    CHECK_INT(cli_choice("sgd|adamw|adam", "adam"), 2);
    CHECK_INT(cli_choice("sgd|adamw|adam", "adamw|adam"), -1);
}

/* ---- files ----------------------------------------------------------------------------------- */

static void put(FILE *file, const char *line)
{
    CHECK(file != NULL);
    CHECK(fputs(line, file) >= 0 && fclose(file) == 0);
}

static void holds(const char *path, const char *line)
{
    char got[64] = "";
    struct stat found;
    FILE *file = cli_open(path, "r");
    CHECK(lstat(path, &found) == 0 && S_ISREG(found.st_mode));
    CHECK(file != NULL && fgets(got, sizeof got, file) != NULL && fclose(file) == 0);
    CHECK_STR(got, line);
}

TEST(a_created_file_is_a_new_one)
{
    char path[256], victim[256];
    scratch_begin();
    snprintf(path, sizeof path, "%s", scratch_at("new"));
    snprintf(victim, sizeof victim, "%s", scratch_write("victim", "precious\n", 9));
    CHECK(symlink(victim, path) == 0);
    CHECK(cli_can_create(path));
    put(cli_create(path), "over a link\n");
    holds(path, "over a link\n");
    holds(victim, "precious\n");
    CHECK(unlink(path) == 0 && mkfifo(path, 0600) == 0);
    put(cli_create(path), "over a pipe\n"); /* without a reader */
    holds(path, "over a pipe\n");
    CHECK(unlink(path) == 0 && link(victim, path) == 0);
    put(cli_create(path), "over another name\n");
    holds(victim, "precious\n");
    put(cli_create("/dev/null"), "into a device\n");
    CHECK(access("/dev/null", W_OK) == 0);
    CHECK(cli_create(scratch_at("none/new")) == NULL && errno == ENOENT);
    CHECK(!cli_can_create(scratch_at("none/new")) && errno == ENOENT);
    scratch_end();
}

TEST(only_a_regular_file_is_opened)
{
    char path[256], victim[256];
    scratch_begin();
    snprintf(path, sizeof path, "%s", scratch_at("pipe"));
    CHECK(mkfifo(path, 0600) == 0);
    CHECK(cli_open(path, "r") == NULL && errno == EINVAL);
    CHECK(cli_open(path, "r+") == NULL && errno == EINVAL);
    snprintf(victim, sizeof victim, "%s", scratch_write("victim", "precious\n", 9));
    CHECK(unlink(path) == 0 && symlink(victim, path) == 0);
    FILE *file = cli_open(path, "r");
    CHECK(file != NULL && fclose(file) == 0);
    CHECK(cli_open(path, "r+") == NULL && errno == ELOOP);
    CHECK(cli_open(scratch_at("none"), "r") == NULL && errno == ENOENT);
    scratch_end();
}

TEST_MAIN
