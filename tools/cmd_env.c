/* SPDX-License-Identifier: Apache-2.0 */
/* `lockstep env`: which world a program started here would join, and why. */
#include <stdio.h>
#include <string.h>

#include "base/env.h"
#include "base/error.h"
#include "commands.h"
#include "job/bootstrap/detect.h"
#include "job/bootstrap/share.h"
#include "tools/cli/cli.h"

static const cli_command command = {
    .name = "lockstep env",
    .about = "Prints which world a program started here would join, and why.",
    .more =
        "Start it in the same way as the program, for example mpirun -n 2 lockstep env. It prints\n"
        "the recognised launcher, the rank, and the rendezvous of the hosts. LOCKSTEP_LAUNCHER\n"
        "selects a launcher (none, torchrun, openmpi, mvapich, hydra, slurm, flux, jsrun);\n"
        "`lockstep info --variables` lists all variables.\n"};

static void print(const ls__detected *found)
{
    bool ours = strcmp(found->launcher, "lockstep") == 0;
    printf("launcher     %s\n", found->launcher);
    printf("because      %s\n", found->why);
    if (ours) {
        return;
    }
    printf("rank         %d of %d, local rank %d of %d\n", found->rank, found->size,
           found->local_rank, found->local_size);
    if (found->size == 1) {
        printf("world        one rank, which waits for no other\n");
    } else if (found->local_size == found->size) {
        printf("rendezvous   a socket in a folder of this user\n");
    } else if (ls__share_way(found) != NULL &&
               strcmp(found->rendezvous_from, "LOCKSTEP_RENDEZVOUS") != 0) {
        printf("rendezvous   rank 0's host; ls_init shares its address by %s\n",
               ls__share_way(found));
    } else if (found->rendezvous[0] != '\0') {
        printf("rendezvous   %s, from %s\n", found->rendezvous, found->rendezvous_from);
    } else {
        printf("rendezvous   unknown: set LOCKSTEP_RENDEZVOUS=HOST:PORT\n");
    }
}

/* Detects as ls_init does, but joins nothing, so it may be run on a login node. */
int cmd_env(int argc, char **argv)
{
    ls__detected found;
    const int first = cli_parse(&command, argc, argv);
    if (first < 0) {
        return -1 - first;
    }
    if (ls__detect_here(ls__env_posix(), &found) < 0) {
        printf("%s\n", ls_error_message());
        return 1;
    }
    print(&found);
    return 0;
}
