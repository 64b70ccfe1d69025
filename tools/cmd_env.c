/* `lockstep env`: which world a program started here would join, and why. */
#include <stdio.h>
#include <string.h>

#include "base/env.h"
#include "base/error.h"
#include "commands.h"
#include "job/bootstrap/detect.h"

static const char usage[] =
    "usage: lockstep env\n"
    "\n"
    "Says what ls_init would find in this environment: which launcher's rule fired and why, the "
    "rank,\n"
    "and where the hosts meet. Start it as the program would be: mpirun -n 2 lockstep env.\n"
    "LOCKSTEP_LAUNCHER chooses a rule (none, torchrun, openmpi, mvapich, hydra, slurm, flux, "
    "jsrun);\n"
    "`lockstep info` lists all variables.\n";

static void print(const ls__found *found)
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
        printf("world        of one: nothing is waited for\n");
    } else if (found->local_size == found->size) {
        printf("ranks meet   by a name of this host\n");
    } else if (found->rendezvous[0] != '\0') {
        printf("hosts meet   at %s, by %s\n", found->rendezvous, found->rendezvous_from);
    } else {
        printf("hosts meet   nowhere yet: set LOCKSTEP_RENDEZVOUS=HOST:PORT\n");
    }
}

int cmd_env(int argc, char **argv)
{
    ls__found found;
    if (argc > 1) {
        bool help = strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0;
        fputs(usage, help ? stdout : stderr);
        return help ? 0 : 2;
    }
    if (ls__detect_here(ls__env_posix(), &found) < 0) {
        printf("%s\n", ls_error_message());
        return 1;
    }
    print(&found);
    return 0;
}
