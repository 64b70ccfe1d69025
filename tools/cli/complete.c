/* SPDX-License-Identifier: Apache-2.0 */
/* Completion for shells: options, and the words that are values of an option. */
#include <stdio.h>
#include <string.h>

#include "tools/cli/cli.h"

/* The option that `word` names, "--steps" or "-n"; NULL: none. */
static const cli_option *option_named(const cli_command *command, const char *word)
{
    for (int i = 0; i < command->count; i++) {
        const cli_option *o = &command->options[i];
        const bool by_letter = word[0] == '-' && word[1] == o->letter && word[2] == '\0';
        if ((o->letter != '\0' && strlen(word) == 2 && by_letter) ||
            (o->name != NULL && strncmp(word, "--", 2) == 0 && strcmp(word + 2, o->name) == 0)) {
            return o;
        }
    }
    return NULL;
}

static void print_choices(const char *choices)
{
    for (const char *at = choices; *at != '\0'; at++) {
        (void)putchar(*at == '|' ? '\n' : *at);
    }
    printf("\n");
}

/* Hidden options are accepted but not offered. */
void cli_print_completions(const cli_command *command, const char *before)
{
    const cli_option *o = option_named(command, before);
    if (o != NULL && cli_takes_value(o)) {
        if (o->choices != NULL) {
            print_choices(o->choices);
        }
        return;
    }
    for (int i = 0; i < command->count; i++) {
        if (!command->options[i].hidden && command->options[i].name != NULL) {
            printf("--%s\t%s\n", command->options[i].name, command->options[i].help);
        }
    }
    printf("--help\tthe options\n");
}
