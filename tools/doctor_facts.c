/* SPDX-License-Identifier: Apache-2.0 */
/* What `lockstep doctor` judges, read from this system. See doctor.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/cgroup.h"
#include "base/env.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/settings.h"
#include "comm/backend/mpi_choice.h"
#include "comm/backend/plugin.h"
#include "comm/core/backend.h"
#include "job/name_folder.h"
#include "job/nodes/secret.h"
#include "tools/build_info.h"
#include "tools/doctor.h"

#define READINGS 200
#define INTERFACES_MAX 64

/* The first word of a file of the kernel's; "" if there is none. */
static void read_word(const char *path, char *out, size_t bytes)
{
    char text[256] = "";
    (void)ls__system_file(ls__env_posix(), path, text, sizeof text);
    (void)snprintf(out, bytes, "%.*s", (int)strcspn(text, " \n"), text);
}

/* The word in brackets: "always [madvise] never". */
static void read_huge_pages(char *out, size_t bytes)
{
    char text[256] = "";
    (void)ls__system_file(ls__env_posix(), "/sys/kernel/mm/transparent_hugepage/enabled", text,
                          sizeof text);
    const char *open = strchr(text, '[');
    (void)snprintf(out, bytes, "%.*s", open != NULL ? (int)strcspn(open + 1, "]") : 0,
                   open != NULL ? open + 1 : "");
}

/* Of a process: the soft limit, or the hard one. `which` is a RLIMIT_… */
static int64_t limit_of(int which, bool hard)
{
    struct rlimit limit;
    if (getrlimit(which, &limit) != 0) {
        return DOCTOR_UNKNOWN;
    }
    const rlim_t value = hard ? limit.rlim_max : limit.rlim_cur;
    return value == RLIM_INFINITY || value > INT64_MAX ? DOCTOR_UNLIMITED : (int64_t)value;
}

static void look_at_memory(doctor_facts *f)
{
    const ls__env *env = ls__env_posix();
    struct statvfs shm;
    const int fd = env->shm_create(env, "lockstep-doctor", 4096);
    f->memory_error = fd < 0 ? -fd : 0;
    if (fd >= 0) {
        env->close(env, fd);
    }
    f->shm_bytes =
        statvfs("/dev/shm", &shm) == 0 ? (int64_t)(shm.f_frsize * shm.f_blocks) : DOCTOR_UNKNOWN;
    f->memory_bytes = ls__memory_available(env);
    read_huge_pages(f->huge_pages, sizeof f->huge_pages);
    f->open_files = limit_of(RLIMIT_NOFILE, true); /* the launcher raises the soft one */
    f->locked_bytes = limit_of(RLIMIT_MEMLOCK, false);
    f->space_bytes = limit_of(RLIMIT_AS, false);
}

static int each_adapter(void *arg, const char *name)
{
    (void)name;
    *(bool *)arg = true;
    return 1;
}

static void look_at_processor(doctor_facts *f)
{
    const ls__env *env = ls__env_posix();
    double load[1];
    const int64_t quota = ls__cgroup_cores(env);
    f->system = (int)sysconf(_SC_NPROCESSORS_ONLN);
    f->cores = f->processor = env->cores(env);
    if (quota == f->cores) { /* it is what limits them */
        f->processor = f->system;
    }
    f->load = getloadavg(load, 1) == 1 ? load[0] : DOCTOR_UNKNOWN;
    f->wait_policy = ls__setting_get("OMP_WAIT_POLICY");
    f->spin_count = ls__setting_get("GOMP_SPINCOUNT");
    read_word("/sys/devices/system/clocksource/clocksource0/current_clocksource", f->clock_source,
              sizeof f->clock_source);
    uint64_t least = UINT64_MAX;
    for (int turn = 0; turn < 3; turn++) { /* other processes may interrupt one */
        const uint64_t begin = env->now_ns(env);
        for (int i = 0; i < READINGS; i++) {
            (void)env->now_ns(env);
        }
        const uint64_t took = env->now_ns(env) - begin;
        least = took < least ? took : least;
    }
    f->clock_ns = (double)least / READINGS;
}

static void look_at_hosts(doctor_facts *f)
{
    const ls__env *env = ls__env_posix();
    static ls__env_interface found[INTERFACES_MAX];
    char address[DOCTOR_ADDRESSES][LS__ADDRESS_MAX];
    (void)env->host_name(env, f->host, sizeof f->host);
    const int count = env->resolve(env, f->host, address, DOCTOR_ADDRESSES);
    f->host_addresses = count > 0 ? count : 0;
    for (int i = 0; i < f->host_addresses; i++) {
        (void)snprintf(f->host_at[i], sizeof f->host_at[i], "%.63s", address[i]);
    }
    f->has_localhost = env->resolve(env, "localhost", address, DOCTOR_ADDRESSES) > 0;
    const int interfaces = env->interfaces(env, found, INTERFACES_MAX);
    for (int i = 0; i < interfaces; i++) {
        const bool v6 = strchr(found[i].address, ':') != NULL;
        const bool local = strncmp(found[i].address, "fe80:", 5) == 0;
        f->link_local += !found[i].loopback && local;
        f->ipv6 += !found[i].loopback && v6 && !local;
        f->ipv4 += !found[i].loopback && !v6;
    }
}

static void look_at_links(doctor_facts *f)
{
    const ls__env *env = ls__env_posix();
    const char *path = ls__setting_get("LOCKSTEP_SECRET_FILE");
    uint8_t secret[LS__SECRET_FILE_BYTES];
    ls__env_folder folder;
    f->has_tls = strcmp(BUILD_TLS, "1.3") == 0;
    if (path != NULL && ls__secret_read(env, path, "LOCKSTEP_SECRET_FILE", secret) < 0) {
        (void)snprintf(f->secret_error, sizeof f->secret_error, "%s", ls_error_message());
    }
    if (env->name_folder(env, &folder) < 0) {
        (void)ls__name_folder_fail(env, "lockstep doctor");
        (void)snprintf(f->names_error, sizeof f->names_error, "%s", ls_error_message());
    }
}

static void look_at_plugins(doctor_facts *f)
{
    static const char *const names[DOCTOR_MPI] = {"openmpi", "mpich"};
    const char *asked = ls__setting_get("LOCKSTEP_BACKEND");
    ls__plugin loaded;
    for (int i = 0; i < DOCTOR_MPI; i++) {
        char backend[LS__BACKEND_NAME_MAX];
        doctor_plugin *p = &f->mpi[i];
        (void)snprintf(backend, sizeof backend, LS__BACKEND_MPI "_%s", names[i]);
        const ls_status status = ls__plugin_load(backend, &loaded);
        *p = (doctor_plugin){.name = names[i], .usable = status == LS_OK};
        p->absent = status == LS_ERR_NOT_FOUND;
        (void)snprintf(p->path, sizeof p->path, "%.511s",
                       p->usable ? loaded.path : ls_error_message());
        if (p->usable) {
            ls__plugin_unload(&loaded, false);
        }
    }
    if (asked != NULL && strcmp(asked, LS__BACKEND_NATIVE) != 0) {
        if (ls__plugin_load(asked, &loaded) == LS_OK) {
            ls__plugin_unload(&loaded, false);
        } else {
            (void)snprintf(f->backend_error, sizeof f->backend_error, "%s", ls_error_message());
        }
    }
}

void doctor_look(doctor_facts *f)
{
    *f = (doctor_facts){.cores = 1, .no_proc = access("/proc/self/exe", F_OK) != 0};
    look_at_processor(f);
    look_at_memory(f);
    look_at_hosts(f);
    look_at_links(f);
    look_at_plugins(f);
    (void)ls__env_posix()->list(ls__env_posix(), "/sys/class/infiniband", each_adapter,
                                &f->has_infiniband);
    f->unknown_settings = ls__settings_check();
}
