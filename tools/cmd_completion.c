/* SPDX-License-Identifier: Apache-2.0 */
/* Completion in shells. The scripts ask `lockstep complete WORD ...` what may come, which asks the
 * tables of the commands, so that no option stands anywhere else. */
#include <stdio.h>
#include <string.h>

#include "commands.h"
#include "tools/cli/cli.h"

static const char bash[] =
    "_lockstep() {\n"
    "    local IFS=$'\\n' current=\"${COMP_WORDS[COMP_CWORD]}\"\n"
    "    COMPREPLY=($(compgen -W \"$(lockstep complete \"${COMP_WORDS[@]:1:COMP_CWORD}\" \\\n"
    "        2>/dev/null | cut -f1)\" -- \"$current\"))\n"
    "}\n"
    "complete -o bashdefault -o default -F _lockstep lockstep\n";

static const char zsh[] =
    "#compdef lockstep\n"
    "_lockstep() {\n"
    "    local -a found\n"
    "    found=(${(f)\"$(lockstep complete \"${(@)words[2,CURRENT]}\" 2>/dev/null |\n"
    "        sed 's/:/\\\\:/g; s/\\t/:/')\"})\n"
    "    if (( $#found )); then _describe lockstep found; else _files; fi\n"
    "}\n"
    "if [ \"$funcstack[1]\" = _lockstep ]; then _lockstep \"$@\"; else compdef _lockstep lockstep; "
    "fi\n";

static const char fish[] =
    "complete -c lockstep -a "
    "'(lockstep complete (commandline -opc)[2..-1] (commandline -ct) 2>/dev/null)'\n";

static const cli_command command = {
    .name = "lockstep completion",
    .about = "Prints the completion of commands and options for a shell.",
    .operands = "bash|zsh|fish",
    .more = "`make install` puts it where shells look. For this shell alone:\n"
            "  eval \"$(lockstep completion bash)\"\n"};

int cmd_completion(int argc, char **argv)
{
    static const char *const scripts[] = {bash, zsh, fish};
    const int first = cli_parse(&command, argc, argv);
    if (first < 0) {
        return -1 - first;
    }
    const int shell = argc - first == 1 ? cli_choice("bash|zsh|fish", argv[first]) : -1;
    if (shell < 0) {
        return cli_wrong(&command, "name one shell: bash, zsh or fish");
    }
    fputs(scripts[shell], stdout);
    return 0;
}

/* Words that are commands of a command: "lockstep train <here>". Returns whether there are any. */
static bool print_kinds(const char *name)
{
    if (strcmp(name, "train") == 0) {
        printf("gpt\nbert\nimage\n");
    } else if (strcmp(name, "data") == 0) {
        printf("tokens\n");
    } else if (strcmp(name, "completion") == 0) {
        printf("bash\nzsh\nfish\n");
    } else if (strcmp(name, "bench") == 0) {
        bench_print_names();
    } else if (strcmp(name, "paper") == 0) {
        paper_print_names();
    } else if (strcmp(name, "plan") == 0) {
        plan_print_names();
    } else if (strcmp(name, "help") == 0) {
        command_print_names();
    } else {
        return false;
    }
    return true;
}

/* argv[1…]: the words after "lockstep"; the last one is being written. */
int cmd_complete(int argc, char **argv)
{
    char option[128];
    const bool nested = argc > 2 && cli_choice("train|data|bench|plan", argv[1]) >= 0;
    const char *current = argc > 1 ? argv[argc - 1] : "";
    const char *before = argc > 2 ? argv[argc - 2] : "";
    if (argc <= 2) {
        command_print_names();
        return 0;
    }
    if (argc == 3 && current[0] != '-' && print_kinds(argv[1])) {
        return 0;
    }
    if (argc == 4 && current[0] != '-' && strcmp(argv[1], "plan") == 0) {
        plan_print_operands(argv[2]);
        return 0;
    }
    if (current[0] != '-' && before[0] != '-') {
        return 0; /* a file, or a program */
    }
    snprintf(option, sizeof option, "--help=options:%s", before[0] == '-' ? before : "");
    char *asked[] = {argv[1], nested && argc > 3 ? argv[2] : option, option, NULL};
    return command_run(nested && argc > 3 ? 3 : 2, asked);
}
