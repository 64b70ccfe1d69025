/* The subcommands of `lockstep`, a file each. argv[0] is the subcommand's name; they return the
 * process' exit status: 2 for wrong usage. */
#ifndef TOOLS_COMMANDS_H
#define TOOLS_COMMANDS_H

#include <stddef.h>

int cmd_env(int argc, char **argv);
int cmd_run(int argc, char **argv);
int cmd_secret(int argc, char **argv); /* cmd_run.c */
int cmd_data(int argc, char **argv);   /* cmd_data.c */
int cmd_info(int argc, char **argv);   /* cmd_info.c */
int cmd_bench(int argc, char **argv);  /* bench.c */

/* The processor's name as the kernel tells it, "unknown" where it does not. cmd_info.c */
void processor_name(char *out, size_t bytes);

#endif
