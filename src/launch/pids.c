/* SPDX-License-Identifier: Apache-2.0 */
/* LOG_DIR/pids.json: the process of each rank, for scripts that watch or signal them. It appears
 * as a whole, by a rename, when all ranks have started, and again after each restart. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "launch/agent.h"

/* A JSON array with one object per rank of this host. */
static json_t *describe(const ls__agent *agent)
{
    json_t *rows = json_array();
    for (int r = 0; r < agent->host.started; r++) {
        json_t *row = json_pack("{s:i, s:i, s:s}", "rank", agent->host.world.first_rank + r, "pid",
                                (int)agent->host.rank[r].pid, "host", agent->host.name);
        if (agent->job->max_restarts > 0) {
            json_object_set_new(row, "attempt", json_integer(agent->host.world.attempt));
        }
        json_array_append_new(rows, row);
    }
    return rows;
}

/* The text and a newline, in a new file. 0, or -errno. */
static int write_text(const ls__env *env, const char *path, const char *text)
{
    const int fd = ls__file_create(env, path, 0666);
    if (fd < 0) {
        return fd;
    }
    size_t bytes = strlen(text), done = 0;
    ssize_t put = 1;
    while (put > 0 && done < bytes) {
        put = env->write(env, fd, text + done, bytes - done);
        done += put > 0 ? (size_t)put : 0;
    }
    put = done == bytes ? env->write(env, fd, "\n", 1) : put;
    env->close(env, fd);
    return put > 0 && done == bytes ? 0 : put < 0 ? (int)put : -EIO;
}

/* Nodes may share the folder, so each writes a file of its own. A failure is only a warning: the
 * job does not depend on the file. */
void ls__agent_write_pids(ls__agent *agent)
{
    char path[4096], temporary[4096];
    const char *folder = agent->job->log_dir;
    if (folder == NULL) {
        return;
    }
    char node[16] = "";
    if (agent->host.nodes != NULL) {
        snprintf(node, sizeof node, ".node%d", agent->host.world.node);
    }
    int a = snprintf(path, sizeof path, "%s/pids%s.json", folder, node);
    int b = snprintf(temporary, sizeof temporary, "%s/pids%s.json.part", folder, node);
    json_t *rows = describe(agent);
    char *text = json_dumps(rows, JSON_INDENT(2));
    int error = text == NULL ? -ENOMEM
                : a >= (int)sizeof path || b >= (int)sizeof temporary
                    ? -ENAMETOOLONG
                    : write_text(agent->env, temporary, text);
    error = error < 0 ? error : agent->env->rename(agent->env, temporary, path);
    if (error < 0) {
        LS__WARN("%s was not written: %s", path, strerror(-error));
    }
    free(text);
    json_decref(rows);
}
