/* SPDX-License-Identifier: Apache-2.0 */
/* --help=man: the table of a command as a page for man(1). */
#include <ctype.h>
#include <stdio.h>

#include <lockstep/version.h>

#include "tools/cli/cli.h"

/* Text for roff: backslashes and hyphens are escaped, and no line begins with a control
 * character. */
static void print_text(const char *text)
{
    for (const char *at = text; *at != '\0'; at++) {
        if ((at == text || at[-1] == '\n') && (*at == '.' || *at == '\'')) {
            printf("\\&");
        }
        if (*at == '\\' || *at == '-') {
            printf("\\");
        }
        (void)putchar(*at);
    }
}

/* "lockstep run" as "lockstep-run", the name under which man(1) finds the page. */
static void print_title(const char *name, bool upper)
{
    for (const char *at = name; *at != '\0'; at++) {
        const char c = *at == ' ' ? '-' : *at;
        if (c == '-') {
            printf("\\");
        }
        (void)putchar(upper ? toupper((unsigned char)c) : c);
    }
}

static void print_option(const cli_option *o)
{
    char number[64];
    const char *value = cli_value_name(o), *fallback = cli_default(o, number, sizeof number);
    printf(".TP\n.B ");
    if (o->letter != '\0') {
        printf("\\-%c%s", o->letter, o->name != NULL ? ", " : "");
    }
    if (o->name != NULL) {
        printf("\\-\\-");
        print_text(o->name);
    }
    printf("%s", value != NULL ? " \\fI" : "");
    print_text(value != NULL ? value : "");
    printf("%s\n", value != NULL ? "\\fR" : "");
    print_text(o->help);
    printf("%s", fallback[0] != '\0' ? " (default " : "");
    print_text(fallback);
    printf("%s\n", fallback[0] != '\0' ? ")" : "");
}

void cli_print_man(const cli_command *command)
{
    printf(".TH ");
    print_title(command->name, true);
    printf(" 1 \"\" \"lockstep %s\" \"Lockstep\"\n.SH NAME\n", ls_version());
    print_title(command->name, false);
    printf(" \\- ");
    print_text(command->about);
    printf("\n.SH SYNOPSIS\n.B ");
    print_text(command->name);
    printf("%s", command->count > 0 ? "\n[\\fIoptions\\fR]" : "");
    if (command->operands != NULL) {
        printf(" ");
        print_text(command->operands);
    }
    printf("\n%s", command->count > 0 ? ".SH OPTIONS\n" : "");
    for (int i = 0; i < command->count; i++) {
        if (!command->options[i].hidden) {
            print_option(&command->options[i]);
        }
    }
    if (command->more != NULL) {
        printf(".SH DESCRIPTION\n.nf\n");
        print_text(command->more);
        printf(".fi\n");
    }
    printf(".SH SEE ALSO\n.BR lockstep (1)\n");
}
