/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of detect.h, as one table of the variables that each launcher sets, and their
 * reading.
 *
 * Nothing here opens or starts anything, so tests can feed it environments recorded elsewhere. */
#include "job/bootstrap/detect.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/env.h"
#include "base/error.h"
#include "base/settings.h"
#include "base/suggest.h"

#define JOB_PARTS 4
#define SIZE_MAX_RANKS (1 << 20) /* larger numbers are typing errors */
/* Slurm numbers the shell of a batch job and that of an interactive one as steps, from here on. */
#define SLURM_SPECIAL_STEPS 0xfffffff0ul

typedef struct rule {
    const char *launcher;
    const char *rank, *size;             /* both set: the rule fits */
    const char *local_rank, *local_size; /* may be absent */
    const char *job[JOB_PARTS]; /* variables that identify the job on this host; NULL ends */
} rule;

static const rule rules[] = {
    {"torchrun",
     "RANK",
     "WORLD_SIZE",
     "LOCAL_RANK",
     "LOCAL_WORLD_SIZE",
     {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "GROUP_RANK"}},
    {"openmpi",
     "OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE",
     {"PMIX_NAMESPACE"}},
    {"mvapich",
     "MV2_COMM_WORLD_RANK",
     "MV2_COMM_WORLD_SIZE",
     "MV2_COMM_WORLD_LOCAL_RANK",
     "MV2_COMM_WORLD_LOCAL_SIZE",
     {NULL}},
    {"hydra", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", {NULL}},
    {"slurm",
     "SLURM_PROCID",
     "SLURM_STEP_NUM_TASKS",
     "SLURM_LOCALID",
     NULL, /* of the list of all nodes */
     {"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_NODEID"}},
    {"flux", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", NULL, {"FLUX_JOB_ID"}},
    {"jsrun",
     "JSM_NAMESPACE_RANK",
     "JSM_NAMESPACE_SIZE",
     "JSM_NAMESPACE_LOCAL_RANK",
     "JSM_NAMESPACE_LOCAL_SIZE",
     {"JSM_NAMESPACE_ID", NULL}}};

#define RULE_COUNT ((int)(sizeof rules / sizeof *rules))

typedef ls__detect_source source;

/* `name` may be NULL: a launcher without such a variable. */
static const char *value_of(const source *s, const char *name)
{
    return name != NULL ? s->get(s->arg, name) : NULL;
}

/* ---- numbers ------------------------------------------------------------------------------- */

/* The value of a variable, which must be a whole number in [low, high]. A rank outside the world
 * would otherwise wait for peers that do not exist. */
static ls_status number_of(const source *s, const rule *r, const char *name, int low, int high,
                           int *out)
{
    const char *text = value_of(s, name);
    char *end = NULL;
    errno = 0;
    long value = text != NULL ? strtol(text, &end, 10) : 0;
    if (text == NULL || end == text || *end != '\0' || errno != 0 || value < low || value > high) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_init: %s=%.40s is not a number from %d to %d, as %s would set it: "
                        "unset it, or choose a launcher by LOCKSTEP_LAUNCHER (none: run alone)",
                        name, text != NULL ? text : "", low, high, r->launcher);
    }
    *out = (int)value;
    return LS_OK;
}

static bool is_loopback_name(const char *host)
{
    return strcmp(host, "localhost") == 0 || strncmp(host, "127.", 4) == 0 ||
           strcmp(host, "::1") == 0;
}

/* For a launcher that gives no local rank: all ranks run on this host if their rendezvous is a
 * loopback address or missing; else each rank counts as alone on its host. */
static void assume_local(const source *s, ls__detected *out)
{
    const char *master = value_of(s, "MASTER_ADDR");
    bool here =
        value_of(s, "LOCKSTEP_RENDEZVOUS") == NULL && (master == NULL || is_loopback_name(master));
    out->local_rank = here ? out->rank : 0;
    out->local_size = here ? out->size : 1;
}

/* Slurm gives no variable for this: the number of tasks is taken from its list of all nodes. */
static ls_status read_local_size(const source *s, const rule *r, ls__detected *out)
{
    const char *tasks = value_of(s, "SLURM_STEP_TASKS_PER_NODE");
    const char *node = value_of(s, "SLURM_NODEID");
    if (value_of(s, r->local_size) != NULL) {
        return number_of(s, r, r->local_size, 1, out->size, &out->local_size);
    }
    if (strcmp(r->launcher, "slurm") == 0 && tasks != NULL && node != NULL) {
        out->local_size = ls__slurm_tasks(tasks, atoi(node));
        return out->local_size > 0
                   ? LS_OK
                   : ls__fail(
                         LS_ERR_INVALID,
                         "ls_init: SLURM_STEP_TASKS_PER_NODE=%.60s with SLURM_NODEID=%.20s does "
                         "not say how many tasks this node has: set LOCKSTEP_LAUNCHER=none to "
                         "run alone",
                         tasks, node);
    }
    return ls__fail(LS_ERR_INVALID,
                    "ls_init: %s is set, but no variable gives the number of ranks on this host: "
                    "set RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE for each process, or "
                    "LOCKSTEP_LAUNCHER=none to run alone",
                    r->local_rank);
}

/* The size comes first: the other numbers are checked against it. */
static ls_status read_numbers(const source *s, const rule *r, ls__detected *out)
{
    LS_TRY(number_of(s, r, r->size, 1, SIZE_MAX_RANKS, &out->size));
    LS_TRY(number_of(s, r, r->rank, 0, out->size - 1, &out->rank));
    if (value_of(s, r->local_rank) == NULL) {
        assume_local(s, out);
        return LS_OK;
    }
    LS_TRY(read_local_size(s, r, out));
    return number_of(s, r, r->local_rank, 0, out->local_size - 1, &out->local_rank);
}

/* ---- the job ------------------------------------------------------------------------------- */

/* A text that is the same for all ranks of the job on this host and differs between jobs: the
 * values of the rule's variables. If none is set, the process that started the ranks and the size
 * of the world identify the job; otherwise ranks that were given different sizes shall meet, so
 * that the difference is named. GROUP_RANK alone identifies no job, since every job has it. */
static void read_job(const source *s, const rule *r, ls__detected *out)
{
    size_t used = 0;
    bool any = false;
    const char *restarts =
        value_of(s, strcmp(r->launcher, "slurm") == 0 ? "SLURM_RESTART_COUNT"
                                                      : "TORCHELASTIC_RESTART_COUNT");
    out->attempt = restarts != NULL ? atoi(restarts) : 0;
    for (int i = 0; i < JOB_PARTS && r->job[i] != NULL && used < sizeof out->job; i++) {
        const char *value = value_of(s, r->job[i]);
        any = any || (value != NULL && i < 3);
        int length = snprintf(out->job + used, sizeof out->job - used, "%.100s/",
                              value != NULL ? value : "");
        used += length > 0 ? (size_t)length : 0;
    }
    if (used < sizeof out->job) {
        snprintf(out->job + used, sizeof out->job - used, "%d/%d/%d",
                 any ? 0 : s->starter(s->arg, r->rank), any ? 0 : out->size, out->attempt);
    }
}

/* ---- where several hosts meet ---------------------------------------------------------------- */

/* A port near MASTER_PORT. MASTER_PORT itself belongs to the program, and torchrun's own store
 * uses it. */
static int neighbour_port(int port)
{
    return port + 1000 <= 65535 ? port + 1000 : port - 1000;
}

/* Nothing is written if MASTER_ADDR and MASTER_PORT give no address; the user is asked for one
 * then. */
static void rendezvous_at_master(const source *s, ls__detected *out)
{
    const char *address = value_of(s, "MASTER_ADDR"), *port = value_of(s, "MASTER_PORT");
    int number = port != NULL ? atoi(port) : 0;
    if (address == NULL || number < 1 || number > 65535) {
        return;
    }
    bool v6 = strchr(address, ':') != NULL;
    snprintf(out->rendezvous, sizeof out->rendezvous, v6 ? "[%.255s]:%d" : "%.255s:%d", address,
             neighbour_port(number));
    snprintf(out->rendezvous_from, sizeof out->rendezvous_from, "MASTER_ADDR (MASTER_PORT %s 1000)",
             number + 1000 <= 65535 ? "+" : "-");
}

/* Under Slurm: the first node of the step, and a port computed from job and step. Scripts
 * commonly compute MASTER_PORT from the job's number too, so the range differs from theirs. */
static void rendezvous_at_first_node(const source *s, ls__detected *out)
{
    const char *list = value_of(s, "SLURM_STEP_NODELIST"), *job = value_of(s, "SLURM_JOB_ID");
    const char *step = value_of(s, "SLURM_STEP_ID");
    char host[256];
    if (list == NULL || job == NULL || !ls__slurm_first_host(list, host, sizeof host)) {
        return;
    }
    unsigned long number = strtoul(job, NULL, 10) * 7 + strtoul(step, NULL, 10);
    snprintf(out->rendezvous, sizeof out->rendezvous, "%s:%lu", host, 12000 + number % 8000);
    snprintf(out->rendezvous_from, sizeof out->rendezvous_from, "SLURM_STEP_NODELIST");
}

/* The user's own choice wins over anything that is derived. */
static void read_rendezvous(const source *s, const rule *r, ls__detected *out)
{
    const char *given = value_of(s, "LOCKSTEP_RENDEZVOUS");
    if (given != NULL) {
        snprintf(out->rendezvous, sizeof out->rendezvous, "%.319s", given);
        snprintf(out->rendezvous_from, sizeof out->rendezvous_from, "LOCKSTEP_RENDEZVOUS");
        return;
    }
    if (strcmp(r->launcher, "slurm") == 0) {
        rendezvous_at_first_node(s, out);
    }
    if (out->rendezvous[0] == '\0') {
        rendezvous_at_master(s, out);
    }
}

/* ---- rules --------------------------------------------------------------------------------- */

/* The shell of a batch job has SLURM_PROCID too, but it is a single process: only steps of srun
 * count. */
static bool is_slurm_step(const source *s)
{
    const char *step = value_of(s, "SLURM_STEP_ID");
    char *end = NULL;
    unsigned long number = step != NULL ? strtoul(step, &end, 10) : 0;
    return step != NULL && end != step && number < SLURM_SPECIAL_STEPS;
}

/* srun --mpi=pmi2 and flux set PMI_RANK and PMI_SIZE too, but no local rank; their own variables
 * do. */
static bool is_bare_pmi(const source *s, const rule *r)
{
    return strcmp(r->launcher, "hydra") == 0 && value_of(s, r->local_rank) == NULL &&
           (is_slurm_step(s) || value_of(s, "FLUX_TASK_RANK") != NULL);
}

/* Whether the rule's launcher started this process, judging by its variables. */
static bool fits(const source *s, const rule *r)
{
    return value_of(s, r->rank) != NULL && value_of(s, r->size) != NULL && !is_bare_pmi(s, r) &&
           (strcmp(r->launcher, "slurm") != 0 || is_slurm_step(s));
}

/* A world of one. `why` also mentions a batch job without srun, the most common reason for a
 * world of one that was meant to be larger. */
static void set_alone(const source *s, ls__detected *out, const char *why)
{
    bool shell = value_of(s, "SLURM_JOB_ID") != NULL && !is_slurm_step(s);
    out->launcher = "none";
    out->rank = out->local_rank = 0;
    out->size = out->local_size = 1;
    snprintf(out->why, sizeof out->why, "%s%s", why,
             shell ? "; SLURM_JOB_ID is set, but this is not a step of srun" : "");
}

/* torchrun's variables without its run id were set by hand or by another tool, so the messages
 * say "environment" instead of blaming torchrun. */
static ls_status apply_rule(const source *s, const rule *r, ls__detected *out)
{
    const bool by_hand = r == &rules[0] && value_of(s, "TORCHELASTIC_RUN_ID") == NULL;
    out->launcher = by_hand ? "environment" : r->launcher;
    LS_TRY(read_numbers(s, r, out));
    snprintf(out->why, sizeof out->why, "%s=%d and %s=%d are set", r->rank, out->rank, r->size,
             out->size);
    read_job(s, r, out);
    if (out->local_size < out->size) {
        read_rendezvous(s, r, out);
    }
    return LS_OK;
}

/* LOCKSTEP_LAUNCHER names a launcher: its variables must be set, and no other rule is tried. */
static ls_status detect_by_name(const source *s, const char *name, ls__detected *out)
{
    const char *names[RULE_COUNT + 2] = {"none", "lockstep"};
    for (int i = 0; i < RULE_COUNT; i++) {
        names[i + 2] = rules[i].launcher;
        if (strcmp(rules[i].launcher, name) != 0) {
            continue;
        }
        if (!fits(s, &rules[i])) {
            return ls__fail(
                LS_ERR_INVALID,
                "ls_init: LOCKSTEP_LAUNCHER=%s, but %s and %s are not both set%s: unset "
                "it, or start the program with that launcher",
                name, rules[i].rank, rules[i].size,
                strcmp(name, "slurm") == 0 ? " for a step of srun" : "");
        }
        return apply_rule(s, &rules[i], out);
    }
    const char *near = ls__suggest(name, names, RULE_COUNT + 2);
    return ls__fail(
        LS_ERR_INVALID,
        "ls_init: LOCKSTEP_LAUNCHER=%.40s is not one of none, lockstep, torchrun, openmpi, "
        "mvapich, hydra, slurm, flux, jsrun%s%s%s",
        name, near != NULL ? "; did you mean " : "", near != NULL ? near : "",
        near != NULL ? "?" : "");
}

/* See detect.h for the order. */
ls_status ls__detect(const ls__detect_source *s, ls__detected *out)
{
    const char *name = value_of(s, "LOCKSTEP_LAUNCHER");
    memset(out, 0, sizeof *out);
    if (name != NULL && strcmp(name, "none") == 0) {
        set_alone(s, out, "LOCKSTEP_LAUNCHER=none");
        return LS_OK;
    }
    if (name != NULL && strcmp(name, "lockstep") != 0) {
        return detect_by_name(s, name, out);
    }
    if (value_of(s, "LOCKSTEP_BOOTSTRAP") != NULL) {
        out->launcher = "lockstep";
        snprintf(out->why, sizeof out->why, "LOCKSTEP_BOOTSTRAP is set");
        return LS_OK;
    }
    if (name != NULL) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_init: LOCKSTEP_LAUNCHER=lockstep, but LOCKSTEP_BOOTSTRAP "
                        "is not set: start the program with `lockstep run -n N`");
    }
    for (int i = 0; i < RULE_COUNT; i++) {
        if (fits(s, &rules[i])) {
            return apply_rule(s, &rules[i], out);
        }
    }
    set_alone(s, out, "no launcher's variables are set");
    return LS_OK;
}

static const char *from_here(void *arg, const char *name)
{
    (void)arg;
    return ls__setting_get(name);
}

static int starter_here(void *arg, const char *name)
{
    const ls__env *env = arg;
    return (int)env->starter(env, name);
}

ls_status ls__detect_here(const ls__env *env, ls__detected *out)
{
    const ls__detect_source here = {from_here, starter_here, (void *)(uintptr_t)env};
    return ls__detect(&here, out);
}
