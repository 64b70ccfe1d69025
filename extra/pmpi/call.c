/* SPDX-License-Identifier: Apache-2.0 */
/* What all calls have in common: whether they are served, MPI's progress, errors, and the
 * report. */
#include "pmpi.h"

#include <stdatomic.h>
#include <stdio.h>

#define CREDIT 16          /* collectives without a wait between two calls of MPI */
#define CREDIT_BYTES 65536 /* so many bytes count as another one */

static const char *const names[] = {
#define X(name, text) text,
    PMPI_FUNCTIONS(X)
#undef X
};

static struct {
    _Atomic uint64_t served, bytes, passed;
} counts[PMPI_FUNCTION_COUNT];

static _Thread_local struct {
    bool has_callback;
    int64_t credit;
} self;

/* A look for messages makes progress, if it finds none: so on a communicator on which none is ever
 * sent, and not on MPI_COMM_SELF, where MPICH looks nowhere else. */
static void make_progress(void *arg)
{
    int found = 0;
    (void)arg;
    (void)PMPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, pmpi.quiet, &found, MPI_STATUS_IGNORE);
}

/* A thread of MPI_THREAD_MULTIPLE is attached for the call only: it may end at any time. */
static bool attach(pmpi_call *call)
{
    if (pmpi.multiple && ls_runtime_current() == NULL) {
        call->attached = ls_runtime_attach(pmpi.runtime) == LS_OK;
    }
    if (!self.has_callback) {
        ls_set_wait_callback(make_progress, NULL);
        self.has_callback = true;
    }
    return ls_runtime_current() != NULL;
}

bool pmpi_begin(pmpi_call *call, MPI_Comm comm, pmpi_function function, bool possible)
{
    *call = (pmpi_call){.comm = comm, .function = function};
    if (!pmpi.on) {
        return false;
    }
    if (attach(call) && possible) {
        call->place = pmpi_find(comm);
    }
    if (call->place == NULL) {
        atomic_fetch_add_explicit(&counts[function].passed, 1, memory_order_relaxed);
        if (call->attached) {
            (void)ls_runtime_attach(NULL);
        }
        return false;
    }
    return true;
}

/* The others must not wait for this rank; then the communicator's error handler decides. */
static int fail(const pmpi_call *call)
{
    static _Atomic int error_class = 0;
    char text[1024];
    int class = atomic_load(&error_class), code = MPI_ERR_OTHER;
    (void)snprintf(text, sizeof text, "%s: %s", names[call->function], ls_error_message());
    (void)ls_group_abort(call->place->group, text);
    (void)fprintf(stderr, "lockstep: rank %d: %s\n", ls_rank(), text);
    if (class == 0 && PMPI_Add_error_class(&class) == MPI_SUCCESS) {
        atomic_store(&error_class, class);
    }
    text[MPI_MAX_ERROR_STRING - 1] = '\0';
    if (class != 0 && PMPI_Add_error_code(class, &code) == MPI_SUCCESS) {
        (void)PMPI_Add_error_string(code, text);
    }
    (void)PMPI_Comm_call_errhandler(call->comm, code);
    return code;
}

int pmpi_end(pmpi_call *call, ls_status status, int64_t bytes)
{
    int code = MPI_SUCCESS;
    if (status == LS_OK) {
        atomic_fetch_add_explicit(&counts[call->function].served, 1, memory_order_relaxed);
        atomic_fetch_add_explicit(&counts[call->function].bytes, (uint64_t)bytes,
                                  memory_order_relaxed);
        self.credit += 1 + bytes / CREDIT_BYTES;
        if (self.credit >= CREDIT) {
            self.credit = 0;
            make_progress(NULL);
        }
    } else {
        code = fail(call);
    }
    if (call->attached) {
        (void)ls_runtime_attach(NULL);
    }
    return code;
}

void pmpi_report(int rank)
{
    for (int f = 0; f < PMPI_FUNCTION_COUNT; f++) {
        if (counts[f].served + counts[f].passed > 0) {
            (void)fprintf(stderr,
                          "lockstep: rank %d: %s: %llu calls of %llu bytes served, %llu passed to "
                          "MPI\n",
                          rank, names[f], (unsigned long long)counts[f].served,
                          (unsigned long long)counts[f].bytes,
                          (unsigned long long)counts[f].passed);
        }
    }
}
