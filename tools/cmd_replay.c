/* SPDX-License-Identifier: Apache-2.0 */
/* `lockstep replay LOG`: the command in the log's header runs again in one process, which makes
 * every version of the log and compares it (ls_server_replay, ls_average_replay,
 * ls_pipeline_replay). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/env.h"
#include "base/error.h"
#include "commands.h"
#include "tools/cli/cli.h"
#include "trace/replay_log.h"

#define WORDS_MAX 4096

static const cli_command command = {
    .name = "lockstep replay",
    .about = "Makes every version of a replay log again, in one process, and compares it.",
    .operands = "LOG",
    .more =
        "  lockstep train gpt -n 4 --server async --log-replay run.log --clip 0 ...\n"
        "  lockstep replay run.log\n"
        "\n"
        "The log has the command, so call it in the same folder, with the same data. The first\n"
        "line whose version has other bits ends it with status 1.\n"};

/* Takes the next word off, which the shell would make of the text, in place; NULL: at its end. */
static char *next_word(char **text)
{
    char *from = *text + strspn(*text, " "), *to = from, *word = from;
    bool quoted = false;
    if (*from == '\0') {
        return NULL;
    }
    for (; *from != '\0' && (quoted || *from != ' '); from++) {
        if (*from == '\'') {
            quoted = !quoted;
        } else if (*from == '\\' && !quoted && from[1] != '\0') {
            *to++ = *++from;
        } else {
            *to++ = *from;
        }
    }
    *text = *from != '\0' ? from + 1 : from;
    *to = '\0';
    return word;
}

/* Runs the words, followed by --replay LOG. */
static int run_command(char *text, char *log)
{
    static char option[] = "--replay";
    char **words = calloc(WORDS_MAX + 4, sizeof *words);
    int count = 0;
    char *word = words != NULL ? next_word(&text) : NULL;
    for (; word != NULL && count < WORDS_MAX; word = next_word(&text)) {
        words[count++] = word;
    }
    if (count < 3 || strcmp(words[0], "lockstep") != 0 || strcmp(words[1], "train") != 0) {
        free(words);
        return cli_wrong(&command,
                         "the log \"%s\" has no command of lockstep train; a program of "
                         "your own replays its log with ls_server_replay, ls_average_replay or "
                         "ls_pipeline_replay",
                         log);
    }
    words[count++] = option;
    words[count++] = log;
    const int status = cmd_train(count - 1, words + 1);
    free(words);
    return status;
}

int cmd_replay(int argc, char **argv)
{
    ls__replay_log log;
    const int first = cli_parse(&command, argc, argv);
    if (first < 0) {
        return -1 - first;
    }
    if (argc - first != 1) {
        return cli_wrong(&command, "give one log");
    }
    if (ls__replay_read(ls__env_posix(), argv[first], &log) < 0) {
        fprintf(stderr, "%s\n", ls_error_message());
        return 1;
    }
    const int status = run_command(log.command, argv[first]);
    ls__replay_release(&log);
    return status;
}
