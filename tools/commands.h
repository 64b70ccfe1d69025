/* SPDX-License-Identifier: Apache-2.0 */
/* The subcommands of `lockstep`, a file each. argv[0] is the subcommand's name; they return the
 * exit status of the process: 2 for wrong usage. */
#ifndef TOOLS_COMMANDS_H
#define TOOLS_COMMANDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

int cmd_bench(int argc, char **argv);    /* bench/command.c */
void bench_print_names(void);            /* its operations, one per line */
int cmd_complete(int argc, char **argv); /* cmd_completion.c */
int cmd_completion(int argc, char **argv);
int cmd_data(int argc, char **argv);
int cmd_doctor(int argc, char **argv);
int cmd_env(int argc, char **argv);
int cmd_generate(int argc, char **argv); /* cmd_train.c */
int cmd_info(int argc, char **argv);
int cmd_paper(int argc, char **argv); /* paper/command.c */
void paper_print_names(void);         /* its experiments, one per line */
int cmd_plan(int argc, char **argv);
void plan_print_names(void); /* cmd_plan.c: its subcommands, one per line */
void plan_print_operands(const char *name);
int cmd_replay(int argc, char **argv);
int cmd_report(int argc, char **argv);
int cmd_run(int argc, char **argv);
int cmd_secret(int argc, char **argv);
int cmd_sim(int argc, char **argv);
int cmd_top(int argc, char **argv);
int cmd_trace(int argc, char **argv);
int cmd_train(int argc, char **argv);
/* Executes the training program of a kind, "gpt", with the arguments argv[1…], which end with NULL;
 * returns an exit status only when that fails. */
int train_become(const char *kind, char **argv);
int cmd_tune(int argc, char **argv);

/* Runs the command that argv[0] names. lockstep.c */
int command_run(int argc, char **argv);
void command_print_names(void); /* one line per command: name, tab, summary */

/* info_backends.c: for each operation, dtype, operator and promise, whether each of `count`
 * backends has it. */
typedef void (*backends_row_fn)(void *arg, const char *what, int count, const char *const *names,
                                const bool *has);
void backends_each(backends_row_fn fn, void *arg);
int print_backends(void); /* info_backends.c: `lockstep info --backends` */
/* info_mesh.c: `lockstep info --mesh AXES`; per_host 0: all ranks share one host. */
int print_mesh(const char *axes, int per_host);

/* A GPT on a mesh, for info_parallel.c. */
typedef struct parallel_question {
    int64_t layers, dim, heads, kv_heads, vocab, context, batch; /* kv_heads 0: as heads */
    bool sequence, regather;
    const char *model;      /* "gpt"; "moe": every second block has experts */
    int64_t experts, top_k; /* of moe, and what follows */
    double capacity;        /* 0: no limit */
    bool padded;
    int tp, cp, ep, dp; /* from the mesh */
    int zero;           /* of the ranks along dp and cp; -1: not given */
    const char *hook;   /* their communication hook; NULL: none */
} parallel_question;
/* Prints the bytes that a step sends, or (memory) that a block keeps; the exit code. */
int print_parallel(const char *mesh, bool memory, parallel_question *q);
struct cli_command;
/* info_zero.c: what training of a published model, or of that in a folder, keeps on each rank, with
 * that much of it divided (-1: a row for each); the exit code. */
int print_zero(const struct cli_command *command, char *const *argv, const char *model, int stage,
               int ranks);
void print_mpi(void); /* info_backends.c: the plug-ins that carry data over MPI */

/* The processor's name according to the kernel; "unknown" if there is none. processor.c */
void processor_name(char *out, size_t bytes);

#endif
