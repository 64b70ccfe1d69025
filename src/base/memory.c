/* SPDX-License-Identifier: Apache-2.0 */
/* How much memory this process may still take, from the files of Linux.
 *
 *   /proc/meminfo        MemAvailable: free, or can be freed without swapping
 *   control groups       base/cgroup.h: what their limits leave
 *
 * The use of a group includes cached files, which the kernel drops when memory is short
 * (inactive_file). */
#include "base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cgroup.h"
#include "base/settings.h"

#define PATH_BYTES 1024
#define MIB ((int64_t)1 << 20)
#define UNKNOWN (-1)

typedef struct group_files { /* of one version of control groups */
    const char *limit, *used, *cached;
} group_files;

static const group_files version_2 = {"memory.max", "memory.current", "inactive_file"};
static const group_files version_1 = {"memory.limit_in_bytes", "memory.usage_in_bytes",
                                      "total_inactive_file"};

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

/* UNKNOWN is not a number, so the other one counts. */
static int64_t smaller(int64_t a, int64_t b)
{
    return a == UNKNOWN ? b : b == UNKNOWN ? a : a < b ? a : b;
}

/* Returns how much one group may still take: its limit less its use, where recently read files
 * count as free. */
static int64_t left_in(const ls__env *env, int version, const char *folder)
{
    const group_files *files = version == 1 ? &version_1 : &version_2;
    char path[PATH_BYTES], text[LS__SYSTEM_FILE_BYTES];
    const int64_t limit = ls__system_number(env, folder, files->limit);
    const int64_t used = ls__system_number(env, folder, files->used);
    if (limit == UNKNOWN || used == UNKNOWN) {
        return UNKNOWN;
    }
    (void)snprintf(path, sizeof path, "%s/memory.stat", folder);
    int64_t cached =
        ls__system_file(env, path, text, sizeof text) ? number_of(text, files->cached) : 0;
    cached = cached < 0 ? 0 : cached > used ? used : cached;
    return limit > used - cached ? limit - (used - cached) : 0;
}

/* An estimate of the moment: other processes may take the memory at any time. UNKNOWN (-1) when
 * the system tells nothing. */
int64_t ls__memory_available(const ls__env *env)
{
    char text[LS__SYSTEM_FILE_BYTES];
    int64_t left = UNKNOWN;
    if (ls__system_file(env, "/proc/meminfo", text, sizeof text)) {
        const int64_t kib = number_of(text, "MemAvailable");
        left = kib < 0 || kib > INT64_MAX / 1024 ? UNKNOWN : kib * 1024;
    }
    left = smaller(left, ls__cgroup_least(env, "memory", left_in));
    const int64_t allowed = ls__setting_int("LOCKSTEP_MEMORY", UNKNOWN, 0, INT64_MAX / MIB);
    return smaller(left, allowed < 0 ? UNKNOWN : allowed * MIB);
}

/* /proc/vmstat counts the kills of the whole host, those inside control groups included. */
int64_t ls__memory_oom_kills(const ls__env *env)
{
    char text[LS__SYSTEM_FILE_BYTES];
    return ls__system_file(env, "/proc/vmstat", text, sizeof text) ? number_of(text, "oom_kill")
                                                                   : UNKNOWN;
}

/* In the system's files, not sysconf, which adds up caches that are not this machine's: 320 MiB of
 * 32 on a virtual Zen 4. */
int64_t ls__memory_last_cache(const ls__env *env)
{
    static const char *const level[] = {"/sys/devices/system/cpu/cpu0/cache/index3",
                                        "/sys/devices/system/cpu/cpu0/cache/index2"};
    for (size_t i = 0; i < sizeof level / sizeof *level; i++) {
        const int64_t kib = ls__system_number(env, level[i], "size");
        if (kib > 0) {
            return kib * 1024;
        }
    }
    return UNKNOWN;
}
