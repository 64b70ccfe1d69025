/* SPDX-License-Identifier: Apache-2.0 */
/* The limits of control groups, from the files of Linux.
 *
 *   /proc/self/cgroup    "0::/PATH" (version 2), "N:memory:/PATH" (version 1): the group, whose
 *                        limit and those of the groups around it hold, too
 *
 * In a container the path may be the host's, of which only the root is mounted: missing files are
 * skipped. */
#include "base/cgroup.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PATH_BYTES 512
#define ROOT "/sys/fs/cgroup"
#define UNKNOWN (-1)

typedef struct search {
    const ls__env *env;
    const char *controller;
    ls__cgroup_limit *limit;
} search;

bool ls__system_file(const ls__env *env, const char *path, char *out, size_t bytes)
{
    const int fd = env->open(env, path, O_RDONLY | O_CLOEXEC, 0);
    size_t length = 0;
    ssize_t got = 1;
    if (fd < 0) {
        return false;
    }
    while (got > 0 && length < bytes - 1) {
        got = env->read(env, fd, out + length, bytes - 1 - length);
        length += got > 0 ? (size_t)got : 0;
    }
    (void)env->close(env, fd);
    out[length] = '\0';
    return got >= 0 && length > 0;
}

int64_t ls__system_number(const ls__env *env, const char *folder, const char *name)
{
    char path[2 * PATH_BYTES], text[64], *end = NULL;
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    if (!ls__system_file(env, path, text, sizeof text)) {
        return UNKNOWN;
    }
    const int64_t number = strtoll(text, &end, 10);
    return end != text && number >= 0 ? number : UNKNOWN;
}

/* UNKNOWN is not a number, so the other one counts. */
static int64_t smaller(int64_t a, int64_t b)
{
    return a == UNKNOWN ? b : b == UNKNOWN ? a : a < b ? a : b;
}

/* A path that does not exist here (a container's) ends at the mounted root. */
static int64_t least_up_to_root(const search *s, int version, const char *path)
{
    char folder[PATH_BYTES];
    const int root = version == 1 ? snprintf(folder, sizeof folder, ROOT "/%s", s->controller)
                                  : snprintf(folder, sizeof folder, ROOT);
    const size_t room = sizeof folder - (size_t)root;
    int64_t least = UNKNOWN;
    if ((size_t)snprintf(folder + root, room, "%s", path) >= room) {
        folder[root] = '\0';
    }
    for (char *last = folder; last != NULL;) {
        least = smaller(least, s->limit(s->env, version, folder));
        last = strrchr(folder + root, '/');
        if (last != NULL) {
            *last = '\0'; /* the group around it */
        }
    }
    return least;
}

/* Reads one line of /proc/self/cgroup: "5:cpu,memory:/a/b" gives "/a/b" when the list of
 * controllers holds the wanted one or is empty (version 2). Changes `line`. */
static int64_t least_for_line(const search *s, char *line)
{
    char *names = strchr(line, ':'), *path = names != NULL ? strchr(names + 1, ':') : NULL;
    if (path == NULL) {
        return UNKNOWN;
    }
    *path++ = '\0';
    names++;
    if (names[0] == '\0') {
        return least_up_to_root(s, 2, path);
    }
    for (char *rest = names, *name; (name = strsep(&rest, ",")) != NULL;) {
        if (strcmp(name, s->controller) == 0) {
            return least_up_to_root(s, 1, path);
        }
    }
    return UNKNOWN;
}

/* Hosts may mount both versions; the stricter one counts. */
int64_t ls__cgroup_least(const ls__env *env, const char *controller, ls__cgroup_limit *limit)
{
    const search s = {.env = env, .controller = controller, .limit = limit};
    char text[LS__SYSTEM_FILE_BYTES];
    int64_t least = UNKNOWN;
    if (!ls__system_file(env, "/proc/self/cgroup", text, sizeof text)) {
        return UNKNOWN;
    }
    for (char *rest = text, *line; (line = strsep(&rest, "\n")) != NULL;) {
        least = smaller(least, least_for_line(&s, line));
    }
    return least;
}

/* Version 2 has "QUOTA PERIOD" in one file, version 1 a file for each; in microseconds. */
static int64_t cores_of_quota(const ls__env *env, int version, const char *folder)
{
    int64_t quota = UNKNOWN, period = UNKNOWN;
    if (version == 1) {
        quota = ls__system_number(env, folder, "cpu.cfs_quota_us");
        period = ls__system_number(env, folder, "cpu.cfs_period_us");
    } else {
        char path[2 * PATH_BYTES], text[64], *end = NULL;
        (void)snprintf(path, sizeof path, "%s/cpu.max", folder);
        if (ls__system_file(env, path, text, sizeof text)) {
            quota = strtoll(text, &end, 10); /* 0 of "max" */
            period = strtoll(end, NULL, 10);
        }
    }
    if (quota <= 0 || period <= 0) {
        return UNKNOWN;
    }
    return quota > period ? quota / period : 1;
}

int64_t ls__cgroup_cores(const ls__env *env)
{
    return ls__cgroup_least(env, "cpu", cores_of_quota);
}
