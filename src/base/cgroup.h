/* SPDX-License-Identifier: Apache-2.0 */
/* Control groups of Linux, versions 1 and 2: the limits that hold for this process. */
#ifndef LS_BASE_CGROUP_H
#define LS_BASE_CGROUP_H

#include "base/env.h"

#define LS__SYSTEM_FILE_BYTES 8192

/* Reads the beginning of a file of the kernel's and ends it by 0. Returns false when the file is
 * missing or empty. */
bool ls__system_file(const ls__env *env, const char *path, char *out, size_t bytes);
/* The number with which the file `name` of `folder` begins; -1 for "max", a negative number, and a
 * missing file. */
int64_t ls__system_number(const ls__env *env, const char *folder, const char *name);

/* What a group, whose files lie in `folder`, allows by itself; -1: it sets no limit. */
typedef int64_t ls__cgroup_limit(const ls__env *env, int version, const char *folder);

/* The least limit of this process's group and of the groups around it; -1: no group sets one.
 * `controller` is "memory" or "cpu". */
int64_t ls__cgroup_least(const ls__env *env, const char *controller, ls__cgroup_limit *limit);

/* How many cores the quotas of processor time are worth, rounded down, at least 1; -1: no quota. */
int64_t ls__cgroup_cores(const ls__env *env);

#endif
