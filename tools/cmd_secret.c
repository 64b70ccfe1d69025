/* `lockstep secret FILE`: makes the secret that the hosts of a job share. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "commands.h"
#include "job/nodes/secret.h"

static const char usage[] =
    "usage: lockstep secret FILE\n"
    "\n"
    "Writes 32 random bytes to a new file that only its owner can read. Copy it to every host of\n"
    "a job (scp -p) and name it there by --secret-file or LOCKSTEP_SECRET_FILE: who has it may "
    "join,\n"
    "nobody else.\n";

int cmd_secret(int argc, char **argv)
{
    bool help = argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0);
    if (argc != 2 || (argv[1][0] == '-' && !help)) {
        fputs(usage, stderr);
        return 2;
    }
    if (help) {
        fputs(usage, stdout);
        return 0;
    }
    if (ls__secret_create(ls__env_posix(), argv[1]) < 0) {
        fprintf(stderr, "lockstep secret: %s\n", ls_error_message());
        return 1;
    }
    return 0;
}
