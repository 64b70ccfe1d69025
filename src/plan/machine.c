/* SPDX-License-Identifier: Apache-2.0 */
/* The machine on which something was measured. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "plan/profile.h"

#define HEAD_BYTES 4096 /* of /proc/cpuinfo; the name is in the first lines */

void ls__processor_name(const ls__env *env, char *out, size_t bytes)
{
    char head[HEAD_BYTES + 1];
    (void)snprintf(out, bytes, "unknown");
    const int fd = env->open(env, "/proc/cpuinfo", O_RDONLY, 0);
    if (fd < 0) {
        return;
    }
    const ssize_t got = env->read(env, fd, head, HEAD_BYTES);
    (void)env->close(env, fd);
    head[got > 0 ? got : 0] = '\0';
    const char *line = strstr(head, "model name"), *colon = line != NULL ? strchr(line, ':') : NULL;
    if (colon != NULL) {
        colon += 1 + strspn(colon + 1, " \t");
        (void)snprintf(out, bytes, "%.*s", (int)strcspn(colon, "\n"), colon);
    }
}
