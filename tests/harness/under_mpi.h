/* SPDX-License-Identifier: Apache-2.0 */
/* Programs of this folder under mpirun of Open MPI and MPICH. */
#ifndef TEST_UNDER_MPI_H
#define TEST_UNDER_MPI_H

#include <stdio.h>
#include <unistd.h>

#include "script.h"

#define UNDER_MPI_SECONDS 60

/* `under MPI N PROGRAM ARGUMENT…` runs PROGRAM_MPI of this folder on N ranks. What a rank says is
 * kept apart until the end, since mpirun may tear the lines of two ranks. */
static inline test_output under_mpi(const char *text)
{
    char definitions[4096], folder[2048];
    snprintf(folder, sizeof folder, "%s", test_build_path("tests/dist/mpi_programs"));
    snprintf(
        definitions, sizeof definitions,
        "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1\n"
        "export OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_orte_execute_quiet=1\n"
        "B=%s; F=%s; export B\n"
        "printf '#!/bin/sh\\nexec \"$@\" >said.$$ 2>&1\\n' >apart; chmod +x apart\n"
        "under() { m=$1; n=$2; p=$3; shift 3; "
        "[ -z \"$LOCKSTEP_DATA_PLANE\" ] || "
        "export LOCKSTEP_MPI=$B/src/comm/mpi/ls_backend_mpi_$m.so; mpirun.$m "
        "$([ $m = mpich ] || echo --oversubscribe) $MPIRUN -n $n ./apart $PRE $F/${p}_$m \"$@\"; "
        "set -- $?; cat said.*; rm said.*; return $1; }\n"
        "exec 2>&1",
        test_build_path(""), folder);
    return script_with(definitions, text, UNDER_MPI_SECONDS);
}

static inline void need_mpi(const char *mpi, const char *program)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    SKIP("MPI itself leaks and races, and a sanitizer must be loaded before the interposer");
#endif
    char command[4096];
    snprintf(command, sizeof command, "command -v mpirun.%s >/dev/null && test -e %s/%s_%s", mpi,
             test_build_path("tests/dist/mpi_programs"), program, mpi);
    test_output got = test_run(command, UNDER_MPI_SECONDS);
    const int status = got.status;
    free(got.text);
    if (status != 0) {
        SKIP("no mpirun of this MPI, or its development files were absent at the build (apt-get "
             "install libopenmpi-dev libmpich-dev mpich)");
    }
}

#endif
