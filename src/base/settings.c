/* SPDX-License-Identifier: Apache-2.0 */
/* The one table of environment variables, and reading them.
 *
 * Every variable that the library reads stands here, also those that other launchers set; reading
 * any other one is a bug. So the table that `lockstep info` prints cannot fall behind the code.
 */
#include "base/settings.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/log.h"
#include "base/suggest.h"

#define PREFIX "LOCKSTEP_"
#define NAME_MAX_BYTES 64
#define TIMEOUT_SECONDS 300
#define TIMEOUT_SECONDS_MAX (1000 * 86400) /* about three years: no deadline worth the name */

extern char **environ;

static const ls__setting table[] = {
    {"LOCKSTEP_DEBUG", "warn", "what is logged: error, warn, info or debug"},
    {"LOCKSTEP_TIMEOUT", "300", "deadline of an operation that gives none, in seconds"},
    {"LOCKSTEP_THREADS", "cores / local ranks", "compute threads of a rank"},
    {"LOCKSTEP_CPU", "the best found",
     "kernels: ref (plain loops), base (any processor), avx2 (and FMA), avx512, or amx (and "
     "products of bfloat16 in tiles)"},
    {"LOCKSTEP_ONEDNN", "1",
     "0: built-in kernels in place of oneDNN's: processes start sooner, large products take "
     "longer"},
    {"LOCKSTEP_DETERMINISTIC", "",
     "strict: bitwise identical results for any number of threads (default: for a fixed number)"},
    {"LOCKSTEP_MEMORY", "all that is available",
     "upper limit, in MiB, on the memory that training programs assume is free"},
    {"LOCKSTEP_CHECK", "", "strict: further checks of operations and buffers, slower"},
    {"LOCKSTEP_TRACE", "",
     "FILE.json: a trace of all ranks for Perfetto, Chrome and `lockstep trace`; docs/tracing.md"},
    {"LOCKSTEP_TRACE_EVENTS", "65536",
     "spans that a rank keeps, the newest, of 96 bytes each, 64 to 4194304"},
    {"LOCKSTEP_TRACE_STEPS", "all", "steps that are recorded, counted from 0: 10, 10- or 10-20"},
    {"LOCKSTEP_HEAP_RESERVE", "64", "address space of the shared heap of a rank, in GiB"},
    {"LOCKSTEP_TCP_CONNECTIONS", "2", "connections between two ranks of different hosts"},
    {"LOCKSTEP_CHANNELS", "1",
     "parts of an operation between hosts that are under way at once, 1 to 4"},
    {"LOCKSTEP_ALGORITHM", "chosen",
     "algorithms by operation and size, as \"all_reduce=0-4k:recursive_doubling,4k-:direct;"
     "broadcast=chain\"; docs/algorithms.md has all; a sum by one that is not \"exact\" there has "
     "other bits for other sizes, as of DDP's buckets"},
    {"LOCKSTEP_BACKEND", "native",
     "the backend that moves the data of operations, a plug-in's name or path; docs/backends.md"},
    {"LOCKSTEP_BACKEND_PATH", "",
     "folders of plug-ins, separated by colons, before lockstep/backends beside the library"},
    {"LOCKSTEP_PMPI", "1", "0: the interposer for programs of MPI serves nothing; docs/mpi.md"},
    {"LOCKSTEP_PMPI_REPORT", "0",
     "1: the interposer prints in MPI_Finalize how often it has served each function"},
    {"LOCKSTEP_TUNE", "auto",
     "off: groups on several hosts use the built-in choice of algorithms, not measured times"},
    {"LOCKSTEP_TUNE_FILE", "lockstep/tuning in XDG_CACHE_HOME or ~/.cache",
     "times of the links between hosts, measured by `lockstep tune`; rank 0 reads the file"},
    {"XDG_CACHE_HOME", "", "where users' caches are kept"},
    {"XDG_RUNTIME_DIR", "",
     "local rendezvous under other launchers; /tmp/lockstep-UID if it is not this user's own"},
    {"HOME", "", "where users' caches are kept, in .cache, if XDG_CACHE_HOME is not set"},
    {"LOCKSTEP_HOSTS", "",
     "for tests: ranks act as if on this many hosts in turn, or on the hosts "
     "listed (0,0,1), and share no memory between hosts"},
    {"LOCKSTEP_BOOTSTRAP", "", "set by the launcher: the descriptors a rank joins its job with"},
    {"LOCKSTEP_LIBRARY", "", "for the Python package: the library, a file or its folder"},
    {"LOCKSTEP_PYTHON", "python3", "the interpreter that `lockstep run script.py` uses"},
    {"LOCKSTEP_TORCH_AS", "",
     "for the Python package: the backend, such as gloo, whose groups Lockstep makes (set by "
     "`python -m lockstep.torch --as`)"},
    {"RANK", "0", "set by the launcher: this rank in the world"},
    {"WORLD_SIZE", "1", "set by the launcher: number of ranks"},
    {"LOCAL_RANK", "0", "set by the launcher: this rank among those of its host"},
    {"LOCAL_WORLD_SIZE", "1", "set by the launcher: number of ranks of its host"},
    {"OMP_NUM_THREADS", "", "compute threads of a rank, where LOCKSTEP_THREADS is not set"},
    {"GOMP_SPINCOUNT", "1000", "how often idle threads of OpenMP look for work before they sleep"},
    {"OMP_WAIT_POLICY", "", "active, passive: whether idle threads of OpenMP spin"},
    {"LOCKSTEP_JOB", "", "set by the launcher: the job's number, which marks its processes"},
    {"LOCKSTEP_LIVE", "",
     "set by the launcher: 1 when its output is a terminal, where a rank may "
     "update a line with carriage returns"},
    {"LOCKSTEP_LAUNCHER", "the first whose variables are set",
     "none, torchrun, openmpi, mvapich, hydra, slurm, flux or jsrun; see `lockstep env`"},
    {"LOCKSTEP_RENDEZVOUS", "MASTER_ADDR, or Slurm's first node",
     "HOST:PORT of the rendezvous of several hosts, under other launchers than our own"},
    {"LOCKSTEP_DATA_PLANE", "tls",
     "plain: links between hosts are not encrypted; mpi: data between hosts goes over MPI"},
    {"LOCKSTEP_MPI", "the one that the process runs under",
     "for LOCKSTEP_DATA_PLANE=mpi and LOCKSTEP_BACKEND=mpi: openmpi, mpich, or a path"},
    {"LOCKSTEP_NCCL", "libnccl.so.2", "for LOCKSTEP_BACKEND=nccl: the path of NCCL's library"},
    {"LOCKSTEP_CUDNN", "libcudnn.so.9",
     "for convolutions on a GPU: the path of cuDNN's library; 0: they do without it"},
    {"LOCKSTEP_CUDA", "libcuda.so.1",
     "for LOCKSTEP_BACKEND=nccl: the path of the driver's library"},
    {"MASTER_ADDR", "", "set by launchers: rank 0's host, for the program's own use"},
    {"MASTER_PORT", "", "set by launchers: a port for the program's own use"},
    {"GROUP_RANK", "", "set by torchrun and our launcher: which of the hosts this is"},
    {"TORCHELASTIC_RUN_ID", "", "set by torchrun and our launcher: the job"},
    {"TORCHELASTIC_RESTART_COUNT", "", "set by torchrun and our launcher: which attempt this is"},
    {"OMPI_COMM_WORLD_RANK", "", "set by Open MPI"},
    {"OMPI_COMM_WORLD_SIZE", "", "set by Open MPI"},
    {"OMPI_COMM_WORLD_LOCAL_RANK", "", "set by Open MPI"},
    {"OMPI_COMM_WORLD_LOCAL_SIZE", "", "set by Open MPI"},
    {"PMIX_NAMESPACE", "", "set by Open MPI and srun --mpi=pmix"},
    {"PMIX_RANK", "", "set by Open MPI and srun --mpi=pmix"},
    {"PMI_FD", "", "set by MPICH, Intel MPI and srun --mpi=pmi2: a socket to the process manager"},
    {"PMI_RANK", "", "set by MPICH and Intel MPI"},
    {"PMI_SIZE", "", "set by MPICH and Intel MPI"},
    {"MPI_LOCALRANKID", "", "set by MPICH and Intel MPI"},
    {"MPI_LOCALNRANKS", "", "set by MPICH and Intel MPI"},
    {"MV2_COMM_WORLD_RANK", "", "set by MVAPICH"},
    {"MV2_COMM_WORLD_SIZE", "", "set by MVAPICH"},
    {"MV2_COMM_WORLD_LOCAL_RANK", "", "set by MVAPICH"},
    {"MV2_COMM_WORLD_LOCAL_SIZE", "", "set by MVAPICH"},
    {"SLURM_JOB_ID", "", "set by srun"},
    {"SLURM_STEP_ID", "", "set by srun"},
    {"SLURM_PROCID", "", "set by srun"},
    {"SLURM_LOCALID", "", "set by srun"},
    {"SLURM_NODEID", "", "set by srun"},
    {"SLURM_STEP_NUM_TASKS", "", "set by srun"},
    {"SLURM_STEP_TASKS_PER_NODE", "", "set by srun"},
    {"SLURM_STEP_NODELIST", "", "set by srun"},
    {"SLURM_RESTART_COUNT", "", "set by Slurm: how often the job was requeued"},
    {"SLURM_SRUN_COMM_PORT", "", "set by srun"},
    {"JOB_COMPLETION_INDEX", "", "set by Kubernetes: --node-rank of lockstep run"},
    {"PET_NNODES", "", "set by Kubeflow: --nnodes of lockstep run"},
    {"PET_NODE_RANK", "", "set by Kubeflow: --node-rank of lockstep run"},
    {"PET_NPROC_PER_NODE", "", "set by Kubeflow: -n of lockstep run"},
    {"PET_MAX_RESTARTS", "", "set by Kubeflow: --max-restarts of lockstep run"},
    {"PET_RDZV_ENDPOINT", "", "set by Kubeflow: --rendezvous of lockstep run"},
    {"PET_MASTER_ADDR", "", "set by Kubeflow: the host of --rendezvous of lockstep run"},
    {"PET_MASTER_PORT", "", "set by Kubeflow: the port of --rendezvous of lockstep run"},
    {"FLUX_TASK_RANK", "", "set by Flux"},
    {"FLUX_JOB_SIZE", "", "set by Flux"},
    {"FLUX_TASK_LOCAL_ID", "", "set by Flux"},
    {"FLUX_JOB_ID", "", "set by Flux"},
    {"JSM_NAMESPACE_RANK", "", "set by jsrun"},
    {"JSM_NAMESPACE_SIZE", "", "set by jsrun"},
    {"JSM_NAMESPACE_LOCAL_RANK", "", "set by jsrun"},
    {"JSM_NAMESPACE_LOCAL_SIZE", "", "set by jsrun"},
    {"JSM_NAMESPACE_ID", "", "set by jsrun"},
    {"LOCKSTEP_SECRET_FILE", "", "the job's secret, where ranks run on several hosts"},
    {"LOCKSTEP_IFNAME", "the one that leads to the rendezvous",
     "network interface: eth,ib (prefixes), ^docker,lo (none of these), =eth0 (exactly)"},
    {"GLOO_SOCKET_IFNAME", "", "honoured where LOCKSTEP_IFNAME is not set"},
    {"NCCL_SOCKET_IFNAME", "", "honoured where neither of the two is set"},
    {"TORCH_DISTRIBUTED_DEBUG", "", "OFF, INFO or DETAIL, where LOCKSTEP_DEBUG is not set"},
};

#define TABLE_COUNT ((int)(sizeof table / sizeof *table))

/* What follows the prefix in variables of earlier releases, which LOCKSTEP_ALGORITHM replaces. */
static const char *const former_algorithms[] = {
    "ALL_REDUCE", "REDUCE_SCATTER", "ALL_GATHER", "BROADCAST", "REDUCE",
    "GATHER",     "SCATTER",        "ALL_TO_ALL", "SCAN",      "EXSCAN",
};

/* For `lockstep info` and the completion of names. */
const ls__setting *ls__settings(int *count)
{
    *count = TABLE_COUNT;
    return table;
}

/* `name` need not end in 0. */
static bool known(const char *name, size_t length)
{
    for (int i = 0; i < TABLE_COUNT; i++) {
        if (strlen(table[i].name) == length && memcmp(table[i].name, name, length) == 0) {
            return true;
        }
    }
    return false;
}

/* An empty variable counts as unset. Valid until the environment is changed. */
const char *ls__setting_get(const char *name)
{
    LS_ASSERT(known(name, strlen(name)));
    const char *value = getenv(name);
    return value != NULL && value[0] != '\0' ? value : NULL;
}

/* A bad value is ignored with a warning: a job should not die of a mistyped variable. */
int64_t ls__setting_int(const char *name, int64_t otherwise, int64_t low, int64_t high)
{
    const char *text = ls__setting_get(name);
    if (text == NULL) {
        return otherwise;
    }
    char *end = NULL;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (end == text || *end != '\0') {
        LS__WARN("%s=%s is not a whole number; %lld is used", name, text, (long long)otherwise);
        return otherwise;
    }
    if (errno == ERANGE || value < low || value > high) {
        LS__WARN("%s=%s is not between %lld and %lld; %lld is used", name, text, (long long)low,
                 (long long)high, (long long)otherwise);
        return otherwise;
    }
    return value;
}

int64_t ls__timeout_setting_ms(void)
{
    return 1000 * ls__setting_int("LOCKSTEP_TIMEOUT", TIMEOUT_SECONDS, 1, TIMEOUT_SECONDS_MAX);
}

/* The known variable that `name` most likely means, or NULL. */
const char *ls__settings_suggest(const char *name)
{
    const char *names[TABLE_COUNT];
    const size_t formers = sizeof former_algorithms / sizeof *former_algorithms;
    for (size_t i = 0; i < formers && strncmp(name, PREFIX, sizeof PREFIX - 1) == 0; i++) {
        if (strcmp(name + sizeof PREFIX - 1, former_algorithms[i]) == 0) {
            return "LOCKSTEP_ALGORITHM";
        }
    }
    for (int i = 0; i < TABLE_COUNT; i++) {
        names[i] = table[i].name;
    }
    return ls__suggest(name, names, TABLE_COUNT);
}

/* Returns false, with a warning, for a variable "name=value" that begins with our prefix and is not
 * in the table. */
static bool check_one(const char *entry)
{
    const char *equals = strchr(entry, '=');
    size_t length = equals != NULL ? (size_t)(equals - entry) : strlen(entry);
    if (strncmp(entry, PREFIX, sizeof PREFIX - 1) != 0 || known(entry, length)) {
        return true;
    }
    char name[NAME_MAX_BYTES + 1] = "";
    const char *near = NULL;
    if (length <= NAME_MAX_BYTES) {
        memcpy(name, entry, length);
        near = ls__settings_suggest(name);
    }
    if (near != NULL) {
        LS__WARN("unknown variable %.*s is ignored; did you mean %s?", (int)length, entry, near);
    } else {
        LS__WARN("unknown variable %.*s is ignored; `lockstep info` lists the known ones",
                 (int)length, entry);
    }
    return false;
}

/* Called once, at the start; returns the number of unknown variables. */
int ls__settings_check(void)
{
    int unknown = 0;
    for (char **entry = environ; entry != NULL && *entry != NULL; entry++) {
        unknown += !check_one(*entry);
    }
    const char *check = ls__setting_get("LOCKSTEP_CHECK");
    if (check != NULL && strcmp(check, "strict") != 0) {
        LS__WARN("LOCKSTEP_CHECK=%s is ignored; the only value is strict", check);
    }
    bool level_known = true;
    (void)ls__log_level_setting(&level_known);
    if (!level_known) {
        LS__WARN("the level in LOCKSTEP_DEBUG or TORCH_DISTRIBUTED_DEBUG is not one of error, "
                 "warn, info, debug (OFF, INFO, DETAIL); warn is used");
    }
    return unknown;
}
