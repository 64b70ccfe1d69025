/* SPDX-License-Identifier: Apache-2.0 */
/* Which of the two interfaces a process has, and the name of the value. */
#include "job/pmi/pmi.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/settings.h"

#define END_MS 2000 /* for the process manager to answer */

static bool has_pmix(void)
{
    return ls__setting_get("PMIX_NAMESPACE") != NULL && ls__setting_get("PMIX_RANK") != NULL;
}

/* PMIx first: srun --mpi=pmix and Open MPI leave a PMI_FD of an outer launcher in the
 * environment. */
const char *ls__pmi_name(void)
{
    return has_pmix() ? "PMIx" : ls__setting_get("PMI_FD") != NULL ? "PMI" : NULL;
}

static int wire_fd(void)
{
    const char *fd = ls__setting_get("PMI_FD");
    return fd != NULL ? atoi(fd) : -1;
}

/* ---- MPI in the same process ---------------------------------------------------------------- */

/* Whether an MPI library is in this process, and was initialised. Such a library uses the same
 * connection, and neither of the two interfaces can be opened again once it was closed. */
static bool has_mpi(bool *initialised)
{
    static const char *const names[] = {NULL, "libmpi.so.40", "libmpich.so.12", "libmpi.so.12"};
    *initialised = false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *library = dlopen(names[i], RTLD_LAZY | RTLD_NOLOAD); /* NULL: the program itself */
        void *call = library != NULL ? dlsym(library, "MPI_Initialized") : NULL;
        int flag = 0;
        if (call != NULL) {
            (void)((int (*)(int *))(uintptr_t)call)(&flag);
        }
        if (library != NULL) {
            dlclose(library);
        }
        if (call != NULL) {
            *initialised = flag != 0;
            return true;
        }
    }
    return false;
}

/* Whether ls_init will load an MPI next, for the data between hosts or for that of groups
 * (comm/mpi). */
static bool carries_data(void)
{
    const char *plane = ls__setting_get("LOCKSTEP_DATA_PLANE");
    const char *backend = ls__setting_get("LOCKSTEP_BACKEND");
    return (plane != NULL && strcmp(plane, "mpi") == 0) ||
           (backend != NULL && strcmp(backend, "mpi") == 0);
}

static struct open_end { /* Sync: ls_init and ls_finalize, which are one thread's */
    bool pmix, wire;
} left_open;

static void end(const ls__env *env, const struct open_end *which)
{
    if (which->pmix) {
        ls__pmix_end();
    }
    if (which->wire) {
        ls__pmi_wire_end(env, wire_fd(), ls__deadline_after(env, END_MS));
    }
}

/* PMIx counts MPI's own use; of PMI-1's socket an MPI that was initialised takes care. */
void ls__pmi_end(const ls__env *env)
{
    bool initialised = false;
    if (!left_open.pmix && !left_open.wire) {
        return;
    }
    (void)has_mpi(&initialised);
    left_open.wire = left_open.wire && !initialised;
    end(env, &left_open);
    left_open = (struct open_end){false, false};
}

/* ---- the broadcast -------------------------------------------------------------------------- */

/* A name is given once in the life of a job, so a program that initialises again uses another one.
 * Without an MPI the connection is closed at once: the process managers kill the whole job when a
 * process with an open one ends, before any rank could report why. */
bool ls__pmi_broadcast(const ls__env *env, int rank, char value[LS__PMI_VALUE],
                       uint64_t deadline_ns, char reason[LS__PMI_REASON])
{
    static _Atomic int calls; /* Sync: a count only */
    char key[32];
    bool initialised = false;
    const struct open_end opened = {has_pmix(), !has_pmix()};
    snprintf(key, sizeof key, "lockstep-%d",
             atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed));
    if (!(opened.pmix
              ? ls__pmix_broadcast(env, rank, key, value, deadline_ns, reason)
              : ls__pmi_wire_broadcast(env, wire_fd(), rank, key, value, deadline_ns, reason))) {
        return false;
    }
    if (has_mpi(&initialised) || carries_data()) {
        left_open = opened;
    } else {
        end(env, &opened);
    }
    return true;
}
