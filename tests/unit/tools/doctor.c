/* SPDX-License-Identifier: Apache-2.0 */
/* Findings of `lockstep doctor` about systems with one thing wrong. What it reads on this system
 * is printed by a golden case. */
#include "test.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "says.h"
#include "tools/doctor.h"

static doctor_finding found[DOCTOR_FINDINGS_MAX];

/* A system on which nothing is wrong. */
static doctor_facts good(void)
{
    return (doctor_facts){
        .cores = 4,
        .processor = 4,
        .system = 4,
        .load = 0.5,
        .open_files = 4096,
        .locked_bytes = 64 << 10,
        .space_bytes = DOCTOR_UNLIMITED,
        .shm_bytes = INT64_C(1) << 32,
        .memory_bytes = INT64_C(1) << 33,
        .huge_pages = "madvise",
        .has_tls = true,
        .clock_source = "tsc",
        .clock_ns = 25.0,
        .host = "h1",
        .host_at = {"10.0.0.1"},
        .host_addresses = 1,
        .has_localhost = true,
        .ipv4 = 1,
        .mpi = {{.name = "openmpi", .absent = true}, {.name = "mpich", .absent = true}},
    };
}

/* The line about a subject as it is printed. */
static const char *line_about(const doctor_facts *f, const char *subject, doctor_grade grade)
{
    static char line[2000];
    const int count = doctor_judge(f, found);
    CHECK(count <= DOCTOR_FINDINGS_MAX);
    for (int i = 0; i < count; i++) {
        if (strcmp(found[i].subject, subject) == 0) {
            const char *remedy = found[i].remedy;
            CHECK_INT(found[i].grade, grade);
            CHECK(grade == DOCTOR_GOOD ? remedy == NULL : true);
            snprintf(line, sizeof line, "%s\n%s", found[i].found, remedy != NULL ? remedy : "");
            return line;
        }
    }
    return "(nothing is said of it)";
}

/* Changes the good system, and looks for the finding and the remedy. */
#define FINDS(change, subject, grade, ...)                                                         \
    do {                                                                                           \
        doctor_facts facts_ = good();                                                              \
        facts_.change;                                                                             \
        const char *const says_[] = {__VA_ARGS__};                                                 \
        const char *said_ = line_about(&facts_, subject, grade);                                   \
        for (size_t i_ = 0; i_ < sizeof says_ / sizeof *says_; i_++) {                             \
            CHECK_SAYS(said_, says_[i_]);                                                          \
        }                                                                                          \
    } while (0)

TEST(a_system_without_faults_has_none)
{
    const doctor_facts f = good();
    const int count = doctor_judge(&f, found);
    CHECK(count > 14);
    for (int i = 0; i < count; i++) {
        CHECK_INT(found[i].grade, DOCTOR_GOOD);
        CHECK(found[i].remedy == NULL && found[i].found[0] != '\0');
    }
}

TEST(processor_load_and_clock_are_judged)
{
    FINDS(no_proc = true, "/proc", DOCTOR_FAULT,
          SAYS("cannot be read, and no job starts without it"),
          SAYS("mount it: mount -t proc proc /proc"));
    FINDS(cores = 2, "processor", DOCTOR_ADVICE,
          SAYS("a quota of processor time is worth %d of %d cores"),
          SAYS("Lockstep starts threads for the quota; set OMP_NUM_THREADS for other libraries, or "
               "raise the quota (docker run --cpus, resources.limits.cpu)"));
    FINDS(cores = 4, "processor", DOCTOR_GOOD, SAYS("%d cores, no quota"));
    FINDS(load = 4.1, "load", DOCTOR_ADVICE, SAYS("%.1f processes want to run on %d cores"),
          SAYS("ranks wait for the slowest one: end the other work, or take measurements as upper "
               "bounds"));
    FINDS(clock_ns = 900.0, "clock", DOCTOR_ADVICE, SAYS("source %s, a reading takes %.0f ns"),
          SAYS("each operation reads it several times: select tsc or the hypervisor's own clock in "
               "/sys/devices/system/clocksource/clocksource0/current_clocksource"));
    FINDS(spin_count = "1000", "spinning", DOCTOR_GOOD, SAYS("idle threads sleep soon"));
    FINDS(spin_count = "infinite", "spinning", DOCTOR_ADVICE,
          SAYS("%s=%s keeps idle threads on their cores"));
    FINDS(spin_count = "30000000000", "spinning", DOCTOR_ADVICE, "GOMP_SPINCOUNT=30000000000");
    FINDS(wait_policy = "active", "spinning", DOCTOR_ADVICE, "OMP_WAIT_POLICY=active",
          SAYS("on cores that other processes use a step takes many times as long: unset it"));
}

/* The load is that of the whole system, not of the container. */
TEST(a_quota_does_not_make_a_system_busy)
{
    doctor_facts f = good();
    f.cores = 1;
    f.load = 1.9;
    CHECK_CONTAINS(line_about(&f, "load", DOCTOR_GOOD), "1.9 processes want to run on 4 cores");
}

TEST(memory_is_judged)
{
    FINDS(memory_bytes = 100 << 20, "memory", DOCTOR_ADVICE, "100.0 MiB available",
          SAYS("the kernel may end ranks: use a smaller model or batch, or raise the container's "
               "limit"));
    FINDS(memory_bytes = DOCTOR_UNKNOWN, "memory", DOCTOR_GOOD, "unknown");
    FINDS(memory_error = EPERM, "shared memory", DOCTOR_FAULT, SAYS("a memfd cannot be made: %s"),
          SAYS("ranks of one host share a memfd: allow memfd_create and ftruncate in the "
               "container's seccomp profile"));
    FINDS(cores = 4, "shared memory", DOCTOR_GOOD, SAYS("ranks of this host can share a memfd"));
    FINDS(huge_pages[0] = '\0', "huge pages", DOCTOR_GOOD, SAYS("unknown: /sys does not say"));
    doctor_facts f = good();
    snprintf(f.huge_pages, sizeof f.huge_pages, "never");
    CHECK_SAYS(line_about(&f, "huge pages", DOCTOR_ADVICE),
               "large tensors take more time to map: echo madvise as root into "
               "/sys/kernel/mm/transparent_hugepage/enabled");
}

TEST(only_mpi_needs_dev_shm_and_locked_memory)
{
    doctor_facts f = good();
    f.shm_bytes = 64 << 20;
    f.has_infiniband = true;
    (void)line_about(&f, "/dev/shm", DOCTOR_GOOD);
    (void)line_about(&f, "locked memory", DOCTOR_GOOD);
    f.mpi[1] = (doctor_plugin){.usable = true, .path = "/lib/mpich.so"};
    CHECK_SAYS(line_about(&f, "MPICH", DOCTOR_GOOD), "/lib/mpich.so");
    CHECK_SAYS(line_about(&f, "/dev/shm", DOCTOR_ADVICE),
               "Lockstep does not use it, but MPI libraries do: docker run --shm-size=1g");
    CHECK_SAYS(line_about(&f, "locked memory", DOCTOR_ADVICE),
               "MPI registers its buffers with the InfiniBand adapter: ulimit -l unlimited, "
               "memlock in /etc/security/limits.conf");
    f.locked_bytes = DOCTOR_UNLIMITED;
    (void)line_about(&f, "locked memory", DOCTOR_GOOD);
}

TEST(limits_are_judged_by_what_a_job_of_all_cores_needs)
{
    FINDS(open_files = 279, "open files", DOCTOR_FAULT,
          SAYS("up to %lld, %lld are needed by %d ranks of one host"), "280 are needed by 4 ranks",
          SAYS("raise the hard limit: nofile in /etc/security/limits.conf, docker run --ulimit "
               "nofile=65536, LimitNOFILE= of a service"));
    FINDS(open_files = 280, "open files", DOCTOR_ADVICE, "up to 280");
    FINDS(open_files = DOCTOR_UNLIMITED, "open files", DOCTOR_GOOD, "unlimited");
    FINDS(space_bytes = 256 << 20, "address space", DOCTOR_FAULT,
          SAYS("each rank maps the heaps of all ranks of its host: ulimit -v unlimited"));
    FINDS(space_bytes = INT64_C(1) << 32, "address space", DOCTOR_ADVICE, "4.0 GiB");
}

TEST(names_and_networks_are_judged)
{
    FINDS(host_addresses = 0, "host name", DOCTOR_ADVICE, SAYS("\"%s\" cannot be resolved"),
          SAYS("jobs of one host need no name, other libraries and hosts do: add it to "
               "/etc/hosts"));
    doctor_facts f = good();
    snprintf(f.host_at[0], sizeof f.host_at[0], "127.0.1.1");
    snprintf(f.host_at[1], sizeof f.host_at[1], "::1");
    f.host_addresses = 2;
    const char *line = line_about(&f, "host name", DOCTOR_ADVICE);
    CHECK_SAYS(line, "\"h1\" is 127.0.1.1, ::1");
    CHECK_SAYS(line, "other hosts do not reach this one there: in a job of several hosts give "
                     "--rendezvous an address of a network interface, or correct /etc/hosts");
    FINDS(has_localhost = false, "localhost", DOCTOR_ADVICE, SAYS("cannot be resolved"),
          SAYS("add \"127.0.0.1 localhost\" to /etc/hosts"));
    FINDS(has_localhost = true, "localhost", DOCTOR_GOOD, SAYS("can be resolved"));
    FINDS(ipv6 = 2, "network", DOCTOR_GOOD, SAYS("%d IPv4 and %d IPv6 addresses"));
    f = good();
    f.ipv4 = 0;
    f.link_local = 1;
    line = line_about(&f, "network", DOCTOR_ADVICE);
    CHECK_SAYS(line, "only loopback%s");
    CHECK_SAYS(line, "and link-local addresses");
    CHECK_SAYS(line, "a job of several hosts needs an interface with an address (ip address)");
    FINDS(has_tls = false, "tls", DOCTOR_ADVICE,
          SAYS("this build cannot encrypt links between hosts"),
          SAYS("install OpenSSL 3 with its headers (libssl-dev) and build again, or keep jobs "
               "within one host"));
    FINDS(has_tls = true, "tls", DOCTOR_GOOD, SAYS("links between hosts are encrypted"));
}

TEST(what_the_environment_asks_for_and_cannot_be_had_is_a_fault)
{
    FINDS(secret_error[0] = 's', "secret", DOCTOR_FAULT, "s");
    FINDS(names_error[0] = 'n', "sockets", DOCTOR_FAULT, "n");
    FINDS(backend_error[0] = 'b', "backend", DOCTOR_FAULT, "b");
    FINDS(unknown_settings = 2, "variables", DOCTOR_ADVICE,
          SAYS("%d named LOCKSTEP_* without a meaning"),
          SAYS("`lockstep info --variables` lists those that have; unset or correct the others"));
    FINDS(mpi[0].absent = false, "Open MPI", DOCTOR_ADVICE, "");
    FINDS(mpi[0].absent = true, "Open MPI", DOCTOR_GOOD,
          SAYS("no plug-in in this installation; only jobs over this MPI need one"));
}

TEST_MAIN
