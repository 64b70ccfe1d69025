/* SPDX-License-Identifier: Apache-2.0 */
/* Command lines from one table. A command declares its options once; parsing, --help, errors with
 * suggestions, the man page and completion are made from this table:
 *
 *     const cli_option options[] = {{"steps", CLI_COUNT, &steps, 1, 1e6, "optimizer steps"}, …};
 *     const cli_command command = {.name = "lockstep train gpt", .about = "Trains …",
 *                                  .options = options, .count = 1};
 *     int first = cli_parse(&command, argc, argv);
 *     if (first < 0) return -1 - first;
 *
 * parse.c reads, help.c prints for people, man.c for man, complete.c for shells; file.c opens the
 * files that options name, end.c closes standard output.
 */
#ifndef TOOLS_CLI_H
#define TOOLS_CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define CLI_WRONG_USE 2 /* exit status */

typedef enum cli_kind {
    CLI_TEXT,           /* const char ** */
    CLI_COUNT,          /* int64_t *, from low to high */
    CLI_NUMBER,         /* double *, from low to high */
    CLI_SWITCH,         /* bool *, becomes true; takes no value */
    CLI_CHOICE,         /* const char **, one of `choices` */
    CLI_READ,           /* `read` takes the text */
    CLI_IGNORED,        /* accepted, with a value that has no effect */
    CLI_IGNORED_SWITCH, /* accepted, without a value */
} cli_kind;

typedef struct cli_command cli_command;
typedef struct cli_option cli_option;

struct cli_option {
    const char *name; /* "steps": --steps N or --steps=N; NULL: only the letter */
    cli_kind kind;
    void *value; /* holds the default */
    double low, high;
    const char *help;
    char letter;            /* 'n': -n 4 or -n4; 0: none */
    const char *value_name; /* "DIR"; NULL: that of the kind */
    const char *choices;    /* "sgd|adamw" */
    const char *fallback;   /* the default as text; NULL: that of `value`; "": none */
    bool hidden;            /* accepted, but not listed */
    /* Of CLI_READ: 0, or an exit status after cli_wrong. */
    int (*read)(const cli_command *command, const cli_option *option, const char *text);
};

struct cli_command {
    const char *name;     /* "lockstep run" */
    const char *about;    /* a sentence: "Starts …" */
    const char *operands; /* "[--] PROGRAM ARGS ..."; NULL: takes none */
    const char *more;     /* paragraphs after the options; may be NULL */
    const cli_option *options;
    int count;
    bool ranked;      /* all ranks of a job find the same mistake: only rank 0 reports it */
    bool ends;        /* the first operand ends the options: the rest belongs to it */
    bool underscores; /* _ is accepted for - in names, as in torchrun */
};

/* Reads argv[1] to argv[argc-1]. Operands move after the options, in their order; returns the
 * index of the first, argc without any. Negative: the process ends with status -1 - result, after
 * help (status 0) or an error that was printed (status 2). */
int cli_parse(const cli_command *command, int argc, char **argv);

/* "NAME: …" on stderr; returns CLI_WRONG_USE. */
int cli_wrong(const cli_command *command, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* As fflush; cli_end reports the error. */
void cli_flush(FILE *out);
/* The last call of a command: writes out and closes standard output. Returns the exit status,
 * `status` unless that is 0 and the output cannot be written, which it says on stderr. */
int cli_end(int status);

/* The index of `value` in choices, "sgd|adamw"; -1: it is not one of them. */
int cli_choice(const char *choices, const char *value);

/* Whether this process is rank 0 or in no job, by RANK, so it is known before ls_init. */
bool cli_speaks_first(void);
/* Other ranks wait here until rank 0 has had the time to report an error that all ranks share. */
void cli_let_rank_0_speak(void);

/* For a command that is one process and waits for no other: removes RANK and WORLD_SIZE, which a
 * pod or an earlier job may have left in the environment, unless `lockstep run` started it. Call it
 * first. */
void cli_leave_job(void);

/* The name of the value in help: "N", "DIR", "sgd|adamw"; NULL for a switch. */
const char *cli_value_name(const cli_option *option);
bool cli_takes_value(const cli_option *option);
/* The default as text, "" if there is none. The text is in out[bytes] or belongs to the option. */
const char *cli_default(const cli_option *option, char *out, size_t bytes);

void cli_print_help(const cli_command *command);
void cli_print_man(const cli_command *command);
/* "--steps<TAB>optimizer steps" a line; after an option with choices (`before`) those; after one
 * with another value nothing, so that the shell offers files. */
void cli_print_completions(const cli_command *command, const char *before);

/* A new file for writing; what lies at the path, such as a link or a pipe, is removed first.
 * Devices and this process's own streams, in /dev, are written to as they are. NULL with errno. */
FILE *cli_create(const char *path);
/* Whether cli_create can be expected to do so; leaves what lies there as it is. False with
 * errno. */
bool cli_can_create(const char *path);
/* Whether two names, of which either may be NULL, are of one regular file, also through a link. */
bool cli_same_file(const char *a, const char *b);
/* 0, or a status after cli_wrong where the file that --`option` writes is the one that is read. */
int cli_keep_input(const cli_command *command, const char *option, const char *written,
                   const char *read);
struct json_t; /* <jansson.h> */
bool cli_write_json(const struct json_t *root, const char *path,
                    size_t flags); /* as json_dump_file */
/* An existing regular file: "r", or "r+", which follows no link. NULL with errno; EINVAL: it is
 * neither a regular file nor a folder. */
FILE *cli_open(const char *path, const char *mode);

#endif
