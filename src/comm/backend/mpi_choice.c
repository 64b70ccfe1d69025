/* SPDX-License-Identifier: Apache-2.0 */
/* See mpi_choice.h. */
#include "comm/backend/mpi_choice.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "base/settings.h"

typedef struct kind {
    const char *name;
    const char *symbol;      /* that only this MPI exports */
    const char *soname[2];   /* of its library, where it was loaded out of sight */
    const char *variable[2]; /* set by its mpirun, or by the manager that it needs */
} kind;

static const kind kinds[] = {
    {"openmpi",
     "ompi_mpi_comm_world",
     {"libmpi.so.40", NULL},
     {"OMPI_COMM_WORLD_RANK", "PMIX_RANK"}},
    {"mpich", "MPIR_Dup_fn", {"libmpich.so.12", "libmpi.so.12"}, {"PMI_RANK", "MPI_LOCALRANKID"}}};

#define KINDS ((int)(sizeof kinds / sizeof *kinds))

static bool is_loaded(const kind *k)
{
    bool found = dlsym(RTLD_DEFAULT, k->symbol) != NULL;
    for (int i = 0; i < 2 && !found && k->soname[i] != NULL; i++) {
        void *library = dlopen(k->soname[i], RTLD_NOW | RTLD_NOLOAD);
        found = library != NULL;
        if (library != NULL) {
            (void)dlclose(library); /* only the count of RTLD_NOLOAD */
        }
    }
    return found;
}

/* NULL: nothing says which MPI it is. */
static const char *found(void)
{
    for (int i = 0; i < KINDS; i++) {
        if (is_loaded(&kinds[i])) {
            return kinds[i].name;
        }
    }
    for (int v = 0; v < 2; v++) {
        for (int i = 0; i < KINDS; i++) {
            if (ls__setting_get(kinds[i].variable[v]) != NULL) {
                return kinds[i].name;
            }
        }
    }
    return NULL;
}

ls_status ls__mpi_choose(char *out, size_t bytes)
{
    const char *given = ls__setting_get("LOCKSTEP_MPI");
    const char *choice = given != NULL ? given : found();
    if (choice == NULL) {
        return ls__fail(LS_ERR_NOT_FOUND,
                        "backend \"mpi\": this process does not run under an MPI; start it by "
                        "mpirun or srun, or set LOCKSTEP_MPI=openmpi or mpich");
    }
    for (int i = 0; i < KINDS; i++) {
        if (strcmp(choice, kinds[i].name) == 0) {
            snprintf(out, bytes, LS__BACKEND_MPI "_%s", choice);
            return LS_OK;
        }
    }
    if (strchr(choice, '/') == NULL) {
        return ls__fail(LS_ERR_INVALID,
                        "LOCKSTEP_MPI=%.60s; give openmpi, mpich, or the path of a plug-in",
                        choice);
    }
    snprintf(out, bytes, "%s", choice);
    return LS_OK;
}
