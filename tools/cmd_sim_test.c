/* `lockstep sim-test`: the simulation is a program of its own, lockstep-sim, beside this one. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "commands.h"

#define SUFFIX "-sim"

int cmd_sim_test(int argc, char **argv)
{
    char path[4096];
    (void)argc;
    const ssize_t length = readlink("/proc/self/exe", path, sizeof path - sizeof SUFFIX);
    if (length < 0) {
        fprintf(stderr, "lockstep sim-test: where this program lies: %s\n", strerror(errno));
        return 2;
    }
    memcpy(path + length, SUFFIX, sizeof SUFFIX);
    (void)execv(path, argv);
    fprintf(stderr, "lockstep sim-test: %s: %s; it is built and installed beside lockstep\n", path,
            strerror(errno));
    return 2;
}
