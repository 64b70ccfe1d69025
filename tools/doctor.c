/* SPDX-License-Identifier: Apache-2.0 */
/* See doctor.h. The findings stand in the order in which a job meets their subjects. */
#include "tools/doctor.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((int64_t)1 << 20)
#define GIB ((int64_t)1 << 30)
#define FILES_OTHER 256 /* as src/launch/agent.c */
#define FILES_PER_RANK 6
#define FILES_OF_JOBS 1024     /* connections to some hundred ranks of other hosts */
#define SPACE_MIN (GIB / 2)    /* a program, its threads and the least heaps */
#define SPACE_ENOUGH (8 * GIB) /* a rank's tensors and heap, beside the heaps of its peers */
#define SHM_ENOUGH (256 * MIB)
#define MEMORY_ENOUGH (GIB / 2)
#define CLOCK_SLOW_NS 500.0 /* ten times that of a clock that is read without a system call */
#define SPIN_LONG 100000

const char *const doctor_grades[3] = {"ok", "advice", "fault"};

typedef struct findings {
    const doctor_facts *facts;
    doctor_finding *at;
    int count;
} findings;

static void add(findings *all, const char *subject, doctor_grade grade, const char *remedy,
                const char *format, ...) __attribute__((format(printf, 5, 6)));

static void add(findings *all, const char *subject, doctor_grade grade, const char *remedy,
                const char *format, ...)
{
    doctor_finding *f = &all->at[all->count++];
    va_list args;
    *f = (doctor_finding){.subject = subject, .grade = grade};
    f->remedy = grade == DOCTOR_GOOD ? NULL : remedy;
    va_start(args, format);
    (void)vsnprintf(f->found, sizeof f->found, format, args);
    va_end(args);
}

/* "64.0 MiB", "unlimited" */
static const char *amount(int64_t bytes, char out[32])
{
    const bool large = bytes >= GIB;
    if (bytes == DOCTOR_UNLIMITED || bytes < 0) {
        return bytes < 0 ? "unknown" : "unlimited";
    }
    (void)snprintf(out, 32, "%.1f %s", (double)bytes / (double)(large ? GIB : MIB),
                   large ? "GiB" : "MiB");
    return out;
}

/* ---- processor ------------------------------------------------------------------------------ */

static void judge_cores(findings *all)
{
    const doctor_facts *f = all->facts;
    if (f->cores < f->processor) {
        add(all, "processor", DOCTOR_ADVICE,
            "Lockstep starts threads for the quota; set OMP_NUM_THREADS for other libraries, or "
            "raise the quota (docker run --cpus, resources.limits.cpu)",
            "a quota of processor time is worth %d of %d cores", f->cores, f->processor);
    } else {
        add(all, "processor", DOCTOR_GOOD, NULL, "%d cores, no quota", f->cores);
    }
    const bool busy = f->load > (double)f->system;
    add(all, "load", busy ? DOCTOR_ADVICE : DOCTOR_GOOD,
        "ranks wait for the slowest one: end the other work, or take measurements as upper bounds",
        "%.1f processes want to run on %d cores", f->load > 0.0 ? f->load : 0.0, f->system);
}

static void judge_spinning(findings *all)
{
    const doctor_facts *f = all->facts;
    const bool active = f->wait_policy != NULL && strcmp(f->wait_policy, "active") == 0;
    const bool endless = f->spin_count != NULL && (strtoll(f->spin_count, NULL, 10) > SPIN_LONG ||
                                                   strncmp(f->spin_count, "inf", 3) == 0);
    if (active || endless) {
        add(all, "spinning", DOCTOR_ADVICE,
            "on cores that other processes use a step takes many times as long: unset it",
            "%s=%s keeps idle threads on their cores",
            active ? "OMP_WAIT_POLICY" : "GOMP_SPINCOUNT", active ? f->wait_policy : f->spin_count);
    } else {
        add(all, "spinning", DOCTOR_GOOD, NULL, "idle threads sleep soon");
    }
}

static void judge_clock(findings *all)
{
    const doctor_facts *f = all->facts;
    const char *source = f->clock_source[0] != '\0' ? f->clock_source : "unknown";
    add(all, "clock", f->clock_ns > CLOCK_SLOW_NS ? DOCTOR_ADVICE : DOCTOR_GOOD,
        "each operation reads it several times: select tsc or the hypervisor's own clock in "
        "/sys/devices/system/clocksource/clocksource0/current_clocksource",
        "source %s, a reading takes %.0f ns", source, f->clock_ns);
}

static void judge_proc(findings *all)
{
    if (all->facts->no_proc) {
        add(all, "/proc", DOCTOR_FAULT, "mount it: mount -t proc proc /proc",
            "cannot be read, and no job starts without it");
    }
}

/* ---- memory --------------------------------------------------------------------------------- */

static void judge_memory(findings *all)
{
    const doctor_facts *f = all->facts;
    char text[32];
    const bool little = f->memory_bytes >= 0 && f->memory_bytes < MEMORY_ENOUGH;
    add(all, "memory", little ? DOCTOR_ADVICE : DOCTOR_GOOD,
        "the kernel may end ranks: use a smaller model or batch, or raise the container's limit",
        "%s available", amount(f->memory_bytes, text));
    if (f->memory_error != 0) {
        add(all, "shared memory", DOCTOR_FAULT,
            "ranks of one host share a memfd: allow memfd_create and ftruncate in the container's "
            "seccomp profile",
            "a memfd cannot be made: %s", strerror(f->memory_error));
    } else {
        add(all, "shared memory", DOCTOR_GOOD, NULL, "ranks of this host can share a memfd");
    }
}

static bool has_mpi(const doctor_facts *f)
{
    return f->mpi[0].usable || f->mpi[1].usable;
}

static void judge_shm(findings *all)
{
    const doctor_facts *f = all->facts;
    char text[32];
    const bool little = f->shm_bytes >= 0 && f->shm_bytes < SHM_ENOUGH && has_mpi(f);
    add(all, "/dev/shm", little ? DOCTOR_ADVICE : DOCTOR_GOOD,
        "Lockstep does not use it, but MPI libraries do: docker run --shm-size=1g", "%s",
        amount(f->shm_bytes, text));
}

static void judge_huge_pages(findings *all)
{
    const char *now = all->facts->huge_pages;
    const bool never = strcmp(now, "never") == 0;
    add(all, "huge pages", never ? DOCTOR_ADVICE : DOCTOR_GOOD,
        "large tensors take more time to map: echo madvise as root into "
        "/sys/kernel/mm/transparent_hugepage/enabled",
        "%s", now[0] != '\0' ? now : "unknown: /sys does not say");
}

/* ---- limits --------------------------------------------------------------------------------- */

static void judge_files(findings *all)
{
    const doctor_facts *f = all->facts;
    const int64_t needed = FILES_OTHER + FILES_PER_RANK * (int64_t)f->cores;
    const doctor_grade grade = f->open_files < needed          ? DOCTOR_FAULT
                               : f->open_files < FILES_OF_JOBS ? DOCTOR_ADVICE
                                                               : DOCTOR_GOOD;
    if (f->open_files == DOCTOR_UNLIMITED) {
        add(all, "open files", DOCTOR_GOOD, NULL, "unlimited");
        return;
    }
    add(all, "open files", grade,
        "raise the hard limit: nofile in /etc/security/limits.conf, docker run --ulimit "
        "nofile=65536, LimitNOFILE= of a service",
        "up to %lld, %lld are needed by %d ranks of one host", (long long)f->open_files,
        (long long)needed, f->cores);
}

static void judge_locked(findings *all)
{
    const doctor_facts *f = all->facts;
    char text[32];
    const bool little = f->has_infiniband && has_mpi(f) && f->locked_bytes != DOCTOR_UNLIMITED;
    add(all, "locked memory", little ? DOCTOR_ADVICE : DOCTOR_GOOD,
        "MPI registers its buffers with the InfiniBand adapter: ulimit -l unlimited, memlock in "
        "/etc/security/limits.conf",
        "%s", amount(f->locked_bytes, text));
}

static void judge_space(findings *all)
{
    const doctor_facts *f = all->facts;
    char text[32];
    const doctor_grade grade = f->space_bytes < SPACE_MIN      ? DOCTOR_FAULT
                               : f->space_bytes < SPACE_ENOUGH ? DOCTOR_ADVICE
                                                               : DOCTOR_GOOD;
    add(all, "address space", grade,
        "each rank maps the heaps of all ranks of its host: ulimit -v unlimited", "%s",
        amount(f->space_bytes, text));
}

/* ---- hosts ---------------------------------------------------------------------------------- */

static bool is_loopback(const char *address)
{
    return strncmp(address, "127.", 4) == 0 || strcmp(address, "::1") == 0;
}

static void judge_name(findings *all)
{
    const doctor_facts *f = all->facts;
    char list[DOCTOR_ADDRESSES * 66] = "";
    bool outside = false;
    for (int i = 0; i < f->host_addresses; i++) {
        const size_t used = strlen(list);
        (void)snprintf(list + used, sizeof list - used, "%s%s", i > 0 ? ", " : "", f->host_at[i]);
        outside = outside || !is_loopback(f->host_at[i]);
    }
    if (f->host_addresses == 0) {
        add(all, "host name", DOCTOR_ADVICE,
            "jobs of one host need no name, other libraries and hosts do: add it to /etc/hosts",
            "\"%s\" cannot be resolved", f->host);
    } else {
        add(all, "host name", outside ? DOCTOR_GOOD : DOCTOR_ADVICE,
            "other hosts do not reach this one there: in a job of several hosts give "
            "--rendezvous an address of a network interface, or correct /etc/hosts",
            "\"%s\" is %s", f->host, list);
    }
    add(all, "localhost", f->has_localhost ? DOCTOR_GOOD : DOCTOR_ADVICE,
        "add \"127.0.0.1 localhost\" to /etc/hosts", "%s",
        f->has_localhost ? "can be resolved" : "cannot be resolved");
}

static void judge_networks(findings *all)
{
    const doctor_facts *f = all->facts;
    if (f->ipv4 + f->ipv6 == 0) {
        add(all, "network", DOCTOR_ADVICE,
            "a job of several hosts needs an interface with an address (ip address)",
            "only loopback%s", f->link_local > 0 ? " and link-local addresses" : "");
    } else {
        add(all, "network", DOCTOR_GOOD, NULL, "%d IPv4 and %d IPv6 addresses", f->ipv4, f->ipv6);
    }
}

static void judge_links(findings *all)
{
    const doctor_facts *f = all->facts;
    if (f->secret_error[0] != '\0') {
        add(all, "secret", DOCTOR_FAULT, NULL, "%s", f->secret_error);
    }
    if (f->names_error[0] != '\0') {
        add(all, "sockets", DOCTOR_FAULT, NULL, "%s", f->names_error);
    }
    if (f->has_tls) {
        add(all, "tls", DOCTOR_GOOD, NULL, "links between hosts are encrypted");
    } else {
        add(all, "tls", DOCTOR_ADVICE,
            "install OpenSSL 3 with its headers (libssl-dev) and build again, or keep jobs within "
            "one host",
            "this build cannot encrypt links between hosts");
    }
}

/* ---- plug-ins and settings ------------------------------------------------------------------ */

static void judge_plugins(findings *all)
{
    for (int i = 0; i < DOCTOR_MPI; i++) {
        const doctor_plugin *p = &all->facts->mpi[i];
        const bool good = p->usable || p->absent;
        add(all, i == 0 ? "Open MPI" : "MPICH", good ? DOCTOR_GOOD : DOCTOR_ADVICE, NULL, "%s",
            p->absent ? "no plug-in in this installation; only jobs over this MPI need one"
                      : p->path);
    }
    if (all->facts->backend_error[0] != '\0') {
        add(all, "backend", DOCTOR_FAULT, NULL, "%s", all->facts->backend_error);
    }
}

static void judge_settings(findings *all)
{
    const int unknown = all->facts->unknown_settings;
    if (unknown > 0) {
        add(all, "variables", DOCTOR_ADVICE,
            "`lockstep info --variables` lists those that have; unset or correct the others",
            "%d named LOCKSTEP_* without a meaning", unknown);
    }
}

int doctor_judge(const doctor_facts *facts, doctor_finding *out)
{
    findings all = {.facts = facts, .at = out};
    judge_cores(&all);
    judge_spinning(&all);
    judge_clock(&all);
    judge_proc(&all);
    judge_memory(&all);
    judge_shm(&all);
    judge_huge_pages(&all);
    judge_files(&all);
    judge_locked(&all);
    judge_space(&all);
    judge_name(&all);
    judge_networks(&all);
    judge_links(&all);
    judge_plugins(&all);
    judge_settings(&all);
    return all.count;
}
