/* SPDX-License-Identifier: Apache-2.0 */
/* Parses a command line by its table. The first mistake ends the parsing; the error names the most
 * similar option. */
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/suggest.h"
#include "tools/cli/cli.h"

#define NAMES_MAX 128
#define NAME_BYTES 64
/* Longer than the launcher takes to end the other ranks when rank 0 has failed. */
#define OTHER_RANKS_WAIT_SECONDS 2

/* ---- mistakes ------------------------------------------------------------------------------ */

bool cli_speaks_first(void)
{
    const char *rank = getenv("RANK");
    return rank == NULL || strcmp(rank, "0") == 0;
}

void cli_leave_job(void)
{
    if (getenv("LOCKSTEP_BOOTSTRAP") == NULL) {
        (void)unsetenv("RANK");
        (void)unsetenv("WORLD_SIZE");
    }
}

/* All ranks find the same mistake, and the launcher reports the first rank that exits. */
void cli_let_rank_0_speak(void)
{
    if (!cli_speaks_first()) {
        (void)nanosleep(&(struct timespec){.tv_sec = OTHER_RANKS_WAIT_SECONDS}, NULL);
    }
}

int cli_wrong(const cli_command *command, const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (command->ranked) {
        cli_let_rank_0_speak();
    }
    cli_flush(stdout);
    fprintf(stderr, "%s: %s; see %s --help\n", command->name, text, command->name);
    return CLI_WRONG_USE;
}

/* The error for an argument that names no option; suggests one that is not hidden. */
static int unknown(const cli_command *command, const char *argument)
{
    static char written[NAMES_MAX][NAME_BYTES];
    const char *names[NAMES_MAX];
    char name[NAME_BYTES];
    int count = 0;
    snprintf(name, sizeof name, "%.*s", (int)strcspn(argument, "="), argument);
    for (int i = 0; i < command->count && count < NAMES_MAX; i++) {
        const cli_option *o = &command->options[i];
        if (!o->hidden && o->name != NULL) {
            snprintf(written[count], NAME_BYTES, "--%s", o->name);
            names[count] = written[count];
            count++;
        }
    }
    const char *near = ls__suggest(name, names, count);
    return near != NULL ? cli_wrong(command, "unknown option %s; did you mean %s?", name, near)
                        : cli_wrong(command, "unknown option %s", name);
}

/* ---- values -------------------------------------------------------------------------------- */

bool cli_takes_value(const cli_option *option)
{
    return option->kind != CLI_SWITCH && option->kind != CLI_IGNORED_SWITCH;
}

/* "--steps", or "-n" for an option that has only a letter. */
static const char *written_as(const cli_option *o, char out[NAME_BYTES])
{
    if (o->name != NULL) {
        snprintf(out, NAME_BYTES, "--%s", o->name);
    } else {
        snprintf(out, NAME_BYTES, "-%c", o->letter);
    }
    return out;
}

int cli_choice(const char *choices, const char *value)
{
    const size_t length = strlen(value);
    int index = 0;
    for (const char *at = choices; at != NULL; index++) {
        const char *end = strchr(at, '|');
        const size_t bytes = end != NULL ? (size_t)(end - at) : strlen(at);
        if (bytes == length && memcmp(at, value, length) == 0) {
            return index;
        }
        at = end != NULL ? end + 1 : NULL;
    }
    return -1;
}

/* "sgd|adamw|adam" as "sgd, adamw or adam". */
static const char *listed(const char *choices, char *out, size_t bytes)
{
    size_t used = 0;
    out[0] = '\0';
    for (const char *at = choices; *at != '\0' && used + 8 < bytes; at++) {
        const char *put = *at != '|' ? NULL : strchr(at + 1, '|') != NULL ? ", " : " or ";
        used += (size_t)(put != NULL ? snprintf(out + used, bytes - used, "%s", put)
                                     : snprintf(out + used, bytes - used, "%c", *at));
    }
    return out;
}

/* Numbers outside low … high, and text after a number, are errors. Returns 0 or an exit status. */
static int take_number(const cli_command *command, const cli_option *o, const char *text)
{
    const bool whole = o->kind == CLI_COUNT;
    char *end = NULL, name[NAME_BYTES];
    errno = 0;
    const long long count = whole ? strtoll(text, &end, 10) : 0;
    const double number = whole ? (double)count : strtod(text, &end);
    if (end == text || *end != '\0' || errno != 0 || isnan(number) || number < o->low ||
        number > o->high) {
        return cli_wrong(command,
                         whole ? "%s is \"%s\"; give a whole number from %.0f to %.0f"
                               : "%s is \"%s\"; give a number from %.10g to %.10g",
                         written_as(o, name), text, o->low, o->high);
    }
    if (whole) {
        *(int64_t *)o->value = count;
    } else {
        *(double *)o->value = number;
    }
    return 0;
}

/* Stores a value by the kind of its option. Returns 0 or an exit status. */
static int take_value(const cli_command *command, const cli_option *o, const char *text)
{
    char name[NAME_BYTES], list[512];
    switch (o->kind) {
    case CLI_COUNT:
    case CLI_NUMBER:
        return take_number(command, o, text);
    case CLI_READ:
        return o->read(command, o, text);
    case CLI_CHOICE:
        if (cli_choice(o->choices, text) < 0) {
            return cli_wrong(command, "%s is \"%s\"; give %s", written_as(o, name), text,
                             listed(o->choices, list, sizeof list));
        }
        *(const char **)o->value = text;
        return 0;
    case CLI_TEXT:
        *(const char **)o->value = text;
        return 0;
    case CLI_SWITCH:
        *(bool *)o->value = true;
        return 0;
    case CLI_IGNORED:
    case CLI_IGNORED_SWITCH:
        return 0;
    }
    return 0;
}

/* ---- arguments ----------------------------------------------------------------------------- */

/* Whether `text` is the name, up to its end or a "=". */
static bool is_named(const cli_command *command, const char *text, const char *name)
{
    size_t i = 0;
    for (; name[i] != '\0'; i++) {
        const bool other = command->underscores && name[i] == '-' && text[i] == '_';
        if (text[i] != name[i] && !other) {
            return false;
        }
    }
    return text[i] == '\0' || text[i] == '=';
}

/* The option that an argument names, or NULL; *value becomes the value in the same argument, or
 * NULL. */
static const cli_option *find(const cli_command *command, const char *argument, const char **value)
{
    *value = NULL;
    for (int i = 0; i < command->count; i++) {
        const cli_option *o = &command->options[i];
        if (o->name != NULL && strncmp(argument, "--", 2) == 0 &&
            is_named(command, argument + 2, o->name)) {
            const char *equals = strchr(argument, '=');
            *value = equals != NULL ? equals + 1 : NULL;
            return o;
        }
        if (o->letter != '\0' && argument[0] == '-' && argument[1] == o->letter) {
            *value = argument[2] != '\0' ? argument + 2 : NULL;
            return *value == NULL || cli_takes_value(o) ? o : NULL;
        }
    }
    return NULL;
}

/* Handles --help and its forms for scripts, anywhere in the line. Returns whether it was one of
 * them. */
static bool answered(const cli_command *command, const char *argument)
{
    if (strcmp(argument, "--help=man") == 0) {
        cli_print_man(command);
        return true;
    }
    if (strncmp(argument, "--help=options:", 15) == 0) {
        cli_print_completions(command, argument + 15);
        return true;
    }
    if (strcmp(argument, "--help") != 0 && strcmp(argument, "-h") != 0) {
        return false;
    }
    if (!command->ranked || cli_speaks_first()) {
        cli_print_help(command);
    }
    return true;
}

/* Reads the option at argv[*at]; if its value is the next argument, *at becomes that. Returns 0 or
 * an exit status. */
static int take_argument(const cli_command *command, int argc, char **argv, int *at)
{
    char name[NAME_BYTES];
    const char *value = NULL;
    const cli_option *o = find(command, argv[*at], &value);
    if (o == NULL) {
        return unknown(command, argv[*at]);
    }
    if (!cli_takes_value(o) && value != NULL) {
        return cli_wrong(command, "%s is a switch and takes no value", written_as(o, name));
    }
    if (cli_takes_value(o) && value == NULL) {
        if (++*at >= argc) {
            return cli_wrong(command, "%s needs a value", written_as(o, name));
        }
        value = argv[*at];
    }
    return take_value(command, o, value);
}

int cli_parse(const cli_command *command, int argc, char **argv)
{
    bool ended = false; /* "--" was read */
    int kept = 0;       /* operands, collected from argv[1] on, where all has been read */
    for (int i = 1; i < argc; i++) {
        const bool operand = ended || argv[i][0] != '-' || argv[i][1] == '\0';
        if (!operand && strcmp(argv[i], "--") == 0) {
            ended = true;
        } else if (operand && command->operands == NULL) {
            return -1 - cli_wrong(command, "unexpected argument \"%s\"", argv[i]);
        } else if (operand && command->ends) {
            return i;
        } else if (operand) {
            argv[1 + kept++] = argv[i];
        } else if (answered(command, argv[i])) {
            return -1;
        } else {
            const int status = take_argument(command, argc, argv, &i);
            if (status != 0) {
                return -1 - status;
            }
        }
    }
    memmove(argv + argc - kept, argv + 1, (size_t)kept * sizeof *argv);
    return argc - kept;
}
