/* SPDX-License-Identifier: Apache-2.0 */
/* See scratch.h. */
#include "scratch.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char folder[64];

void scratch_begin(void)
{
    (void)snprintf(folder, sizeof folder, "%s", "/tmp/lockstep-scratch-XXXXXX");
    CHECK(mkdtemp(folder) != NULL);
}

void scratch_end(void)
{
    char command[128];
    (void)snprintf(command, sizeof command, "rm -rf '%s'", folder);
    test_output out = test_run(command, 10);
    CHECK_INT(out.status, 0);
    free(out.text);
}

const char *scratch_folder(void)
{
    return folder;
}

const char *scratch_at(const char *name)
{
    static char path[4][160];
    static int next;
    char *out = path[next++ % 4];
    (void)snprintf(out, sizeof path[0], "%s/%s", folder, name);
    return out;
}

const char *scratch_write(const char *name, const void *data, size_t bytes)
{
    const char *path = scratch_at(name);
    FILE *f = fopen(path, "wb");
    CHECK(f != NULL);
    CHECK(fwrite(data, 1, bytes, f) == bytes);
    CHECK(fclose(f) == 0);
    return path;
}
