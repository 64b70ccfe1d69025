/* SPDX-License-Identifier: Apache-2.0 */
/* --help: usage, summary, and the options with their defaults, wrapped at 80 columns. */
#include <stdio.h>
#include <string.h>

#include "tools/cli/cli.h"

#define COLUMNS 80
#define INDENT 26 /* of an option's help */

const char *cli_value_name(const cli_option *option)
{
    if (!cli_takes_value(option)) {
        return NULL;
    }
    return option->value_name != NULL   ? option->value_name
           : option->choices != NULL    ? option->choices
           : option->kind == CLI_COUNT  ? "N"
           : option->kind == CLI_NUMBER ? "X"
                                        : "TEXT";
}

/* Reads the variable itself, which still has its default because --help stops the parsing. */
const char *cli_default(const cli_option *o, char *out, size_t bytes)
{
    out[0] = '\0';
    if (o->fallback != NULL || o->value == NULL) {
        return o->fallback != NULL ? o->fallback : out;
    }
    if (o->kind == CLI_COUNT) {
        snprintf(out, bytes, "%lld", (long long)*(int64_t *)o->value);
    } else if (o->kind == CLI_NUMBER) {
        snprintf(out, bytes, "%g", *(double *)o->value);
    } else if (o->kind == CLI_TEXT || o->kind == CLI_CHOICE) {
        const char *text = *(const char **)o->value;
        snprintf(out, bytes, "%s", text != NULL ? text : "");
    }
    return out;
}

/* Prints the words of `text` from column `at` on; further lines begin at INDENT. */
static void print_wrapped(const char *text, int at)
{
    while (*text != '\0') {
        const int word = (int)strcspn(text, " ");
        if (at > INDENT && at + 1 + word > COLUMNS) {
            printf("\n%*s", INDENT, "");
            at = INDENT;
        } else if (at > INDENT) {
            printf(" ");
            at++;
        }
        printf("%.*s", word, text);
        at += word;
        text += word;
        text += strspn(text, " ");
    }
    printf("\n");
}

/* A name too long for the left column gets a line of its own. */
static void print_option(const cli_option *o)
{
    char left[64], help[512], number[64];
    const char *value = cli_value_name(o), *fallback = cli_default(o, number, sizeof number);
    char letter[8] = "    ";
    if (o->letter != '\0') {
        snprintf(letter, sizeof letter, "-%c%s", o->letter, o->name != NULL ? ", " : "");
    }
    const int used = snprintf(left, sizeof left, "  %s%s%s%s%s", letter,
                              o->name != NULL ? "--" : "", o->name != NULL ? o->name : "",
                              value != NULL ? " " : "", value != NULL ? value : "");
    snprintf(help, sizeof help, "%s%s%s%s", o->help, fallback[0] != '\0' ? " (default " : "",
             fallback, fallback[0] != '\0' ? ")" : "");
    printf("%s", left);
    if (used >= INDENT - 1) {
        printf("\n");
    }
    printf("%*s", used >= INDENT - 1 ? INDENT : INDENT - used, "");
    print_wrapped(help, INDENT);
}

void cli_print_help(const cli_command *command)
{
    printf("usage: %s%s%s%s\n\n%s\n", command->name, command->count > 0 ? " [options]" : "",
           command->operands != NULL ? " " : "", command->operands != NULL ? command->operands : "",
           command->about);
    for (int i = 0; i < command->count; i++) {
        if (i == 0) {
            printf("\n");
        }
        if (!command->options[i].hidden) {
            print_option(&command->options[i]);
        }
    }
    if (command->more != NULL) {
        printf("\n%s", command->more);
    }
}
