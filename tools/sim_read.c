/* SPDX-License-Identifier: Apache-2.0 */
/* The cluster and the device of `lockstep sim` and `lockstep plan auto`, as a text or in a file. */
#include <stdio.h>
#include <string.h>

#include "base/env_posix.h"
#include "base/error.h"
#include "base/file.h"
#include "tools/sim.h"

#define FILE_BYTES_MAX ((size_t)64 << 10)

typedef ls_status (*read_fn)(const char *what, const char *text, size_t bytes, ls__sim_job *job);

/* A text that does not begin with a digit names a file. */
static ls_status parse(const char *what, const char *text, ls__sim_job *job, read_fn read)
{
    const ls__env *env = ls__env_posix();
    ls__file file;
    char name[256];
    if (text[0] >= '0' && text[0] <= '9') {
        (void)snprintf(name, sizeof name, "--%s", what);
        return read(name, text, strlen(text), job);
    }
    LS_TRY(ls__file_read(env, what, text, FILE_BYTES_MAX, &file));
    (void)snprintf(name, sizeof name, "%s %.200s", what, text);
    const ls_status status =
        file.bytes < FILE_BYTES_MAX
            ? read(name, (const char *)file.data, file.bytes, job)
            : ls__fail(LS_ERR_LIMIT, "%s has %zu bytes or more; it may have some hundred lines",
                       name, FILE_BYTES_MAX);
    ls__file_release(env, &file);
    return status;
}

static ls_status read_cluster(const char *what, const char *text, size_t bytes, ls__sim_job *job)
{
    return ls__cluster_parse(what, text, bytes, &job->cluster);
}

static ls_status read_device(const char *what, const char *text, size_t bytes, ls__sim_job *job)
{
    return ls__processor_parse(what, text, bytes, job->use.width, &job->device);
}

ls_status sim_read_cluster(const char *text, ls__sim_job *job)
{
    return parse("cluster", text, job, read_cluster);
}

ls_status sim_read_device(const char *text, ls__sim_job *job)
{
    return parse("device", text, job, read_device);
}
