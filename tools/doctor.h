/* SPDX-License-Identifier: Apache-2.0 */
/* `lockstep doctor`: what of this system keeps jobs from running, or makes them slow.
 *
 *     doctor_facts.c reads the system  ▸  doctor.c judges the facts  ▸  cmd_doctor.c prints
 *
 * Judging reads nothing, so that tests can judge systems that they do not run on.
 */
#ifndef TOOLS_DOCTOR_H
#define TOOLS_DOCTOR_H

#include <stdbool.h>
#include <stdint.h>

#define DOCTOR_UNLIMITED INT64_MAX
#define DOCTOR_UNKNOWN (-1)
#define DOCTOR_MPI 2
#define DOCTOR_ADDRESSES 8
#define DOCTOR_FINDINGS_MAX 24

typedef struct doctor_plugin {
    const char *name; /* "openmpi" */
    bool usable;
    bool absent;    /* it is not in this installation */
    char path[512]; /* or, unless usable, why not */
} doctor_plugin;

/* Limits are DOCTOR_UNLIMITED or DOCTOR_UNKNOWN where they have no number. */
typedef struct doctor_facts {
    int cores;     /* that ranks may use */
    int processor; /* cores that this process may run on; more where a quota limits their time */
    int system;    /* cores that the system has */
    double load;   /* of the whole system in the last minute; DOCTOR_UNKNOWN */
    bool no_proc;  /* the system shows no /proc */
    int64_t open_files, locked_bytes, space_bytes;
    int memory_error;         /* of a memfd; 0: it can be made */
    int64_t shm_bytes;        /* of /dev/shm */
    int64_t memory_bytes;     /* available */
    char huge_pages[16];      /* "always", "madvise", "never"; "": unknown */
    bool has_infiniband;      /* an adapter that registers memory */
    const char *wait_policy;  /* OMP_WAIT_POLICY; NULL: not set */
    const char *spin_count;   /* GOMP_SPINCOUNT; NULL: not set */
    bool has_tls;             /* in this build */
    char secret_error[1024];  /* of LOCKSTEP_SECRET_FILE; "": none is set, or it can be read */
    char names_error[1024];   /* of the folder of socket names */
    char backend_error[1024]; /* of LOCKSTEP_BACKEND */
    char clock_source[32];    /* "tsc"; "": unknown */
    double clock_ns;          /* a reading */
    char host[64];
    char host_at[DOCTOR_ADDRESSES][64]; /* what the name of this host resolves to */
    int host_addresses;
    bool has_localhost;
    int ipv4, ipv6, link_local; /* addresses of network interfaces, without loopback */
    int unknown_settings;       /* variables LOCKSTEP_… that have no meaning */
    doctor_plugin mpi[DOCTOR_MPI];
} doctor_facts;

typedef enum doctor_grade {
    DOCTOR_GOOD,
    DOCTOR_ADVICE, /* jobs run, but slower, or not in every form */
    DOCTOR_FAULT,  /* a job fails here */
} doctor_grade;

extern const char *const doctor_grades[3]; /* "ok", "advice", "fault" */

typedef struct doctor_finding {
    const char *subject; /* "open files" */
    doctor_grade grade;
    char found[1200];
    const char *remedy; /* NULL: none is needed, or `found` has it */
} doctor_finding;

void doctor_look(doctor_facts *out);
/* Returns how many findings there are, at most DOCTOR_FINDINGS_MAX. */
int doctor_judge(const doctor_facts *facts, doctor_finding *out);

#endif
