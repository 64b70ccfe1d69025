/* Which MPI this is, and its plug-in: liblockstep_mpi_NAME.so in the folder lockstep beside this
 * library, or where the system looks for libraries. */
#include "comm/mpi/load.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "base/settings.h"

#define PATH_BYTES 1024

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

/* A name, or a path with a "/"; NULL: nothing says which MPI it is. */
static const char *choose(void)
{
    const char *given = ls__setting_get("LOCKSTEP_MPI");
    for (int i = 0; given == NULL && i < KINDS; i++) {
        given = is_loaded(&kinds[i]) ? kinds[i].name : NULL;
    }
    for (int v = 0; given == NULL && v < 2; v++) {
        for (int i = 0; given == NULL && i < KINDS; i++) {
            given = ls__setting_get(kinds[i].variable[v]) != NULL ? kinds[i].name : NULL;
        }
    }
    return given;
}

static ls_status check_choice(const char *choice)
{
    if (choice == NULL) {
        return ls__fail(LS_ERR_NOT_FOUND,
                        "ls_init: LOCKSTEP_DATA_PLANE=mpi, but this process does not run under an "
                        "MPI: start it by mpirun or srun, or set LOCKSTEP_MPI=openmpi or mpich");
    }
    for (int i = 0; i < KINDS; i++) {
        if (strcmp(choice, kinds[i].name) == 0) {
            return LS_OK;
        }
    }
    return strchr(choice, '/') != NULL
               ? LS_OK
               : ls__fail(LS_ERR_INVALID,
                          "ls_init: LOCKSTEP_MPI=%.60s; give openmpi, mpich, or the path of a "
                          "plug-in",
                          choice);
}

/* Beside this library; where that has no such file, the system looks. */
static void *open_named(const char *name)
{
    char path[PATH_BYTES], file[64];
    Dl_info info;
    void *library = NULL;
    snprintf(file, sizeof file, "liblockstep_mpi_%.20s.so", name);
    const char *end = dladdr((const void *)&kinds, &info) != 0 && info.dli_fname != NULL
                          ? strrchr(info.dli_fname, '/')
                          : NULL;
    if (end != NULL) {
        snprintf(path, sizeof path, "%.*s/lockstep/%s", (int)(end - info.dli_fname), info.dli_fname,
                 file);
        library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    }
    return library != NULL ? library : dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
}

ls_status ls__mpi_load(const ls__mpi_table **out)
{
    const char *choice = choose();
    LS_TRY(check_choice(choice));
    void *library = strchr(choice, '/') != NULL
                        ? dlopen(choice, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)
                        : open_named(choice);
    if (library == NULL) {
        const char *why = dlerror();
        return ls__fail(LS_ERR_NOT_FOUND,
                        "ls_init: the plug-in for MPI \"%.200s\" cannot be loaded (%.300s); build "
                        "Lockstep where that MPI's mpicc is installed",
                        choice, why != NULL ? why : "no reason is known");
    }
    ls__mpi_plugin_fn plugin = NULL;
    void *symbol = dlsym(library, LS__MPI_SYMBOL);
    memcpy(&plugin, &symbol, sizeof plugin); /* ISO C does not convert them */
    *out = plugin != NULL ? plugin(LS__MPI_VERSION) : NULL;
    if (*out == NULL || (*out)->bytes != sizeof **out) {
        return ls__fail(
            LS_ERR_UNSUPPORTED,
            "ls_init: the plug-in for MPI \"%.200s\" is of another version; install the "
            "one that was built with this library",
            choice);
    }
    return LS_OK;
}
