/* SPDX-License-Identifier: Apache-2.0 */
/* What is left of memory and of cores, read from files of a system that does not exist. */
#include "base/cgroup.h"
#include "base/memory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "test.h"

enum { FILES_MAX = 8 };

static struct {
    const char *path, *text;
} files[FILES_MAX];

static int open_fake(const ls__env *env, const char *path, int flags, int mode)
{
    (void)env, (void)flags, (void)mode;
    for (int i = 0; i < FILES_MAX && files[i].path != NULL; i++) {
        if (strcmp(files[i].path, path) == 0) {
            size_t bytes = strlen(files[i].text);
            int fd = memfd_create("fake", 0);
            CHECK(fd >= 0 && write(fd, files[i].text, bytes) == (ssize_t)bytes);
            CHECK(lseek(fd, 0, SEEK_SET) == 0);
            return fd;
        }
    }
    return -ENOENT;
}

static void clear(void)
{
    memset(files, 0, sizeof files);
    (void)unsetenv("LOCKSTEP_MEMORY");
}

static void add(const char *path, const char *text)
{
    int i = 0;
    while (files[i].path != NULL) {
        i++;
    }
    CHECK(i < FILES_MAX - 1);
    files[i].path = path;
    files[i].text = text;
}

static int64_t available(void)
{
    ls__env fake = *ls__env_posix();
    fake.open = open_fake;
    return ls__memory_available(&fake);
}

static const char meminfo[] = "MemTotal:       24000 kB\nMemFree:          100 kB\n"
                              "MemAvailable:   20000 kB\nBuffers:            1 kB\n";

TEST(a_system_that_says_nothing_leaves_it_open)
{
    clear();
    CHECK_INT(available(), -1);
    add("/proc/meminfo", "MemTotal: 24000 kB\nMemFree: 100 kB\n");
    add("/proc/self/cgroup", "");
    CHECK_INT(available(), -1);
}

TEST(without_groups_it_is_what_the_system_calls_available)
{
    clear();
    add("/proc/meminfo", meminfo);
    CHECK_INT(available(), 20000 * 1024);
    add("/proc/self/cgroup", "0::/a/b\n");
    CHECK_INT(available(), 20000 * 1024);
}

TEST(a_group_leaves_its_limit_less_what_is_used_but_for_files_read_lately)
{
    clear();
    add("/proc/meminfo", meminfo);
    add("/proc/self/cgroup", "0::/a/b\n");
    add("/sys/fs/cgroup/a/b/memory.max", "max\n");
    add("/sys/fs/cgroup/a/b/memory.current", "4000000\n");
    add("/sys/fs/cgroup/a/memory.max", "10000000\n"); /* of the group around it */
    add("/sys/fs/cgroup/a/memory.current", "7000000\n");
    CHECK_INT(available(), 3000000);
    add("/sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file 500000\nactive_file 9\n");
    CHECK_INT(available(), 3500000);
}

TEST(a_group_of_version_1_counts_too_and_a_full_one_leaves_nothing)
{
    clear();
    add("/proc/meminfo", meminfo);
    add("/proc/self/cgroup", "5:cpu:/elsewhere\n4:pids,memory:/host/path\n0::/\n");
    add("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    add("/sys/fs/cgroup/memory/memory.usage_in_bytes", "900000\n");
    CHECK_INT(available(), 20000 * 1024);
    files[2].text = "800000\n"; /* the container sees its own group as the root */
    CHECK_INT(available(), 0);
    files[3].text = "300000\n";
    CHECK_INT(available(), 500000);
}

TEST(the_setting_takes_from_it_and_never_adds)
{
    clear();
    add("/proc/meminfo", meminfo);
    CHECK(setenv("LOCKSTEP_MEMORY", "3", 1) == 0);
    CHECK_INT(available(), 3 << 20);
    CHECK(setenv("LOCKSTEP_MEMORY", "3000", 1) == 0);
    CHECK_INT(available(), 20000 * 1024);
    files[0].path = NULL;
    CHECK_INT(available(), (int64_t)3000 << 20);
}

static int64_t cores(void)
{
    ls__env fake = *ls__env_posix();
    fake.open = open_fake;
    return ls__cgroup_cores(&fake);
}

TEST(a_quota_of_processor_time_is_worth_whole_cores_and_at_least_one)
{
    clear();
    CHECK_INT(cores(), -1);
    add("/proc/self/cgroup", "0::/a/b\n");
    CHECK_INT(cores(), -1);
    add("/sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
    CHECK_INT(cores(), -1);
    add("/sys/fs/cgroup/a/cpu.max", "390000 100000\n"); /* of the group around it */
    CHECK_INT(cores(), 3);
    files[1].text = "50000 100000\n";
    CHECK_INT(cores(), 1);
    ls__env fake = *ls__env_posix();
    fake.open = open_fake;
    CHECK_INT(fake.cores(&fake), 1); /* however many the affinity mask has */
    files[1].text = "200000\n";      /* without a period it says nothing */
    CHECK_INT(cores(), 3);
}

TEST(a_quota_of_version_1_counts_too)
{
    clear();
    add("/proc/self/cgroup", "4:memory:/m\n3:cpu,cpuacct:/host/path\n0::/\n");
    add("/sys/fs/cgroup/cpu/host/path/cpu.cfs_quota_us", "-1\n");
    add("/sys/fs/cgroup/cpu/host/path/cpu.cfs_period_us", "100000\n");
    CHECK_INT(cores(), -1);
    add("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "250000\n");
    add("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    CHECK_INT(cores(), 2);
}

TEST(this_system_says_something)
{
    clear();
    int64_t left = ls__memory_available(ls__env_posix());
    CHECK(left > 1 << 20);
}

TEST(the_last_cache_is_the_third_level_or_the_second)
{
    ls__env fake = *ls__env_posix();
    fake.open = open_fake;
    clear();
    CHECK_INT(ls__memory_last_cache(&fake), -1);
    add("/sys/devices/system/cpu/cpu0/cache/index2/size", "1024K\n");
    CHECK_INT(ls__memory_last_cache(&fake), 1 << 20);
    add("/sys/devices/system/cpu/cpu0/cache/index3/size", "16384K\n");
    CHECK_INT(ls__memory_last_cache(&fake), 16 << 20);
}

TEST_MAIN
