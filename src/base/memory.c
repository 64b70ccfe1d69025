/* How much memory this process may still take, from the files of Linux.
 *
 *   /proc/meminfo        MemAvailable: free, or can be freed without swapping
 *   /proc/self/cgroup    "0::/PATH" (version 2), "N:memory:/PATH" (version 1): the group, whose
 *                        limit and those of the groups around it hold, too
 *
 * In a container the path may be the host's, of which only the root is mounted: missing files are
 * skipped. The use of a group includes cached files, which the kernel drops when memory is short
 * (inactive_file). */
#include "base/memory.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/settings.h"

#define FILE_BYTES 8192
#define PATH_BYTES 512
#define MIB ((int64_t)1 << 20)
#define UNKNOWN (-1)

typedef struct group_files { /* of one version of control groups */
    const char *root, *limit, *used, *cached;
} group_files;

static const group_files version_2 = {"/sys/fs/cgroup", "memory.max", "memory.current",
                                      "inactive_file"};
static const group_files version_1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes",
                                      "memory.usage_in_bytes", "total_inactive_file"};

/* Reads the beginning of a file and ends it by 0. Returns false when the file is missing or
 * empty. */
static bool read_file(const ls__env *env, const char *path, char *out, size_t bytes)
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

/* The number behind `key` at the beginning of a line; UNKNOWN when no line has it. */
static int64_t number_of(const char *text, const char *key)
{
    const size_t length = strlen(key);
    for (const char *line = text; line != NULL; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, length) == 0 && (line[length] == ':' || line[length] == ' ')) {
            return strtoll(line + length + 1, NULL, 10);
        }
    }
    return UNKNOWN;
}

/* The number that a file consists of; "max" counts as UNKNOWN, as does a missing file. */
static int64_t number_in(const ls__env *env, const char *folder, const char *name)
{
    char path[2 * PATH_BYTES], text[64], *end = NULL;
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    if (!read_file(env, path, text, sizeof text)) {
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

/* Returns how much one group may still take: its limit less its use, where recently read files
 * count as free. */
static int64_t left_in(const ls__env *env, const group_files *files, const char *folder)
{
    char path[2 * PATH_BYTES], text[FILE_BYTES];
    const int64_t limit = number_in(env, folder, files->limit);
    const int64_t used = number_in(env, folder, files->used);
    if (limit == UNKNOWN || used == UNKNOWN) {
        return UNKNOWN;
    }
    (void)snprintf(path, sizeof path, "%s/memory.stat", folder);
    int64_t cached = read_file(env, path, text, sizeof text) ? number_of(text, files->cached) : 0;
    cached = cached < 0 ? 0 : cached > used ? used : cached;
    return limit > used - cached ? limit - (used - cached) : 0;
}

/* The least that the group at `path` and the groups around it leave. A path that does not exist
 * here (a container's) ends at the mounted root. */
static int64_t left_up_to_root(const ls__env *env, const group_files *files, const char *path)
{
    char folder[PATH_BYTES];
    const size_t root = strlen(files->root);
    int64_t left = UNKNOWN;
    if ((size_t)snprintf(folder, sizeof folder, "%s%s", files->root, path) >= sizeof folder) {
        folder[root] = '\0';
    }
    for (char *last = folder; last != NULL;) {
        left = smaller(left, left_in(env, files, folder));
        last = strrchr(folder + root, '/');
        if (last != NULL) {
            *last = '\0'; /* the group around it */
        }
    }
    return left;
}

/* Reads one line of /proc/self/cgroup: "5:cpu,memory:/a/b" gives "/a/b" when the list of
 * controllers holds memory or is empty (version 2). Changes `line`. */
static int64_t left_for_line(const ls__env *env, char *line)
{
    char *names = strchr(line, ':'), *path = names != NULL ? strchr(names + 1, ':') : NULL;
    if (path == NULL) {
        return UNKNOWN;
    }
    *path++ = '\0';
    names++;
    if (names[0] == '\0') {
        return left_up_to_root(env, &version_2, path);
    }
    for (char *rest = names, *name; (name = strsep(&rest, ",")) != NULL;) {
        if (strcmp(name, "memory") == 0) {
            return left_up_to_root(env, &version_1, path);
        }
    }
    return UNKNOWN;
}

/* Hosts may mount both versions; the stricter one counts. */
static int64_t left_by_groups(const ls__env *env)
{
    char text[FILE_BYTES];
    int64_t left = UNKNOWN;
    if (!read_file(env, "/proc/self/cgroup", text, sizeof text)) {
        return UNKNOWN;
    }
    for (char *rest = text, *line; (line = strsep(&rest, "\n")) != NULL;) {
        left = smaller(left, left_for_line(env, line));
    }
    return left;
}

/* An estimate of the moment: other processes may take the memory at any time. UNKNOWN (-1) when
 * the system tells nothing. */
int64_t ls__memory_available(const ls__env *env)
{
    char text[FILE_BYTES];
    int64_t left = UNKNOWN;
    if (read_file(env, "/proc/meminfo", text, sizeof text)) {
        const int64_t kib = number_of(text, "MemAvailable");
        left = kib < 0 || kib > INT64_MAX / 1024 ? UNKNOWN : kib * 1024;
    }
    left = smaller(left, left_by_groups(env));
    const int64_t allowed = ls__setting_int("LOCKSTEP_MEMORY", UNKNOWN, 0, INT64_MAX / MIB);
    return smaller(left, allowed < 0 ? UNKNOWN : allowed * MIB);
}

/* /proc/vmstat counts the kills of the whole host, those inside control groups included. */
int64_t ls__memory_oom_kills(const ls__env *env)
{
    char text[FILE_BYTES];
    return read_file(env, "/proc/vmstat", text, sizeof text) ? number_of(text, "oom_kill")
                                                             : UNKNOWN;
}

/* In the system's files, not sysconf, which adds up caches that are not this machine's: 320 MiB of 32
 * on a virtual Zen 4. */
int64_t ls__memory_last_cache(const ls__env *env)
{
    static const char *const level[] = {"/sys/devices/system/cpu/cpu0/cache/index3",
                                        "/sys/devices/system/cpu/cpu0/cache/index2"};
    for (size_t i = 0; i < sizeof level / sizeof *level; i++) {
        const int64_t kib = number_in(env, level[i], "size");
        if (kib > 0) {
            return kib * 1024;
        }
    }
    return UNKNOWN;
}
