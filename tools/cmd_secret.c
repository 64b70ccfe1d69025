/* SPDX-License-Identifier: Apache-2.0 */
/* `lockstep secret FILE`: makes the secret that the hosts of a job share. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "commands.h"
#include "job/nodes/secret.h"
#include "tools/cli/cli.h"

static const cli_command command = {
    .name = "lockstep secret",
    .about = "Writes a new secret, 32 random bytes, to a file that only its owner can read.",
    .operands = "FILE",
    .more = "Copy it to every host of a job (scp -p) and name it there with --secret-file or\n"
            "LOCKSTEP_SECRET_FILE. Only processes that have it can join the job.\n"};

int cmd_secret(int argc, char **argv)
{
    const int first = cli_parse(&command, argc, argv);
    if (first < 0) {
        return -1 - first;
    }
    if (argc - first != 1) {
        return cli_wrong(&command, "the file is missing; name the one to write");
    }
    if (ls__secret_create(ls__env_posix(), argv[first]) < 0) {
        fprintf(stderr, "lockstep secret: %s\n", ls_error_message());
        return 1;
    }
    return 0;
}
