/* The subcommands of `lockstep`, a file each. argv[0] is the subcommand's name; they return the
 * process' exit status: 2 for wrong usage. */
#ifndef TOOLS_COMMANDS_H
#define TOOLS_COMMANDS_H

int cmd_run(int argc, char **argv);   /* cmd_run.c */
int cmd_info(int argc, char **argv);  /* cmd_info.c */
int cmd_bench(int argc, char **argv); /* bench.c */

/* The nearest of `count` words to `word` within edit distance 3, or NULL. */
const char *suggest(const char *word, const char *const *words, int count);

#endif
