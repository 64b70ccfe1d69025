/* `lockstep info --backends`: what each backend promises. tests/dist/comm/test_backend.c runs every
 * function, dtype and operator of this table on a group of the backend, and all that stands here as
 * promised has to give the native results. */
#include <dirent.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "comm/backend/mpi_choice.h"
#include "comm/backend/plugin.h"
#include "commands.h"
#include "job/operation.h"

enum { BACKENDS_MAX = 8 };

typedef struct backends {
    int count;
    char name[BACKENDS_MAX][LS__BACKEND_NAME_MAX], path[BACKENDS_MAX][LS__BACKEND_PATH_MAX];
    ls_backend_capabilities can[BACKENDS_MAX];
} backends;

/* The name in "ls_backend_NAME.so"; false: it is another file. */
static bool name_in(const char *file, char *name)
{
    char end[4] = "";
    return sscanf(file, "ls_backend_%31[a-z0-9_].%3s", name, end) == 2 && strcmp(end, "so") == 0;
}

static bool is_known(const backends *all, const char *name)
{
    for (int i = 0; i < all->count; i++) {
        if (strcmp(all->name[i], name) == 0) {
            return true;
        }
    }
    return false;
}

/* Adds the plug-ins of one folder; those that cannot be used are printed with their reason. */
static void add_folder(backends *all, const char *folder)
{
    DIR *open = opendir(folder);
    const struct dirent *entry = NULL;
    while (open != NULL && all->count < BACKENDS_MAX && (entry = readdir(open)) != NULL) {
        char name[LS__BACKEND_NAME_MAX], path[LS__BACKEND_PATH_MAX];
        ls__plugin plugin;
        if (!name_in(entry->d_name, name) || is_known(all, name)) {
            continue;
        }
        snprintf(path, sizeof path, "%.200s/%.200s", folder, entry->d_name);
        if (ls__plugin_load(path, &plugin) != LS_OK) {
            printf("not usable         %s\n", ls_error_message());
            continue;
        }
        snprintf(all->name[all->count], sizeof all->name[0], "%s", name);
        snprintf(all->path[all->count], sizeof all->path[0], "%s", path);
        all->can[all->count++] = plugin.can;
        ls__plugin_unload(&plugin, false);
    }
    if (open != NULL) {
        (void)closedir(open);
    }
}

static int width_of(const backends *all, int i)
{
    const int length = (int)strlen(all->name[i]);
    return length > 8 ? length : 8;
}

/* One row: whether each backend has the bit. */
static void print_row(const backends *all, const char *what, size_t field, int bit)
{
    printf("%-22s", what);
    for (int i = 0; i < all->count; i++) {
        uint32_t set = 0;
        memcpy(&set, (const char *)&all->can[i] + field, sizeof set);
        printf("  %-*s", width_of(all, i), (set >> bit & 1) != 0 ? "yes" : "-");
    }
    printf("\n");
}

static void print_flags(const backends *all)
{
    static const char *const flags[] = {
        "canonical sums", "abort", "registered memory", "streams", "user's operators", "programs"};
    for (int f = 0; f < (int)(sizeof flags / sizeof *flags); f++) {
        print_row(all, flags[f], offsetof(ls_backend_capabilities, flags), f);
    }
    print_row(all, "host memory", offsetof(ls_backend_capabilities, memory), 0);
}

/* The plug-ins that carry the data between hosts, and why one cannot. */
void print_mpi(void)
{
    static const char *const names[] = {"openmpi", "mpich"};
    for (int i = 0; i < (int)(sizeof names / sizeof *names); i++) {
        char backend[LS__BACKEND_NAME_MAX];
        ls__plugin plugin;
        snprintf(backend, sizeof backend, LS__BACKEND_MPI "_%s", names[i]);
        const bool usable = ls__plugin_load(backend, &plugin) == LS_OK;
        printf("  mpi (%s)%*s %s%s\n", names[i], 18 - (int)strlen(names[i]), "",
               usable ? "LOCKSTEP_DATA_PLANE=mpi, " : "",
               usable ? plugin.path : ls_error_message());
        if (usable) {
            ls__plugin_unload(&plugin, false);
        }
    }
}

int print_backends(void)
{
    static backends all;
    char folder[LS__BACKEND_PATH_MAX];
    all.count = 1;
    snprintf(all.name[0], sizeof all.name[0], "%s", LS__BACKEND_NATIVE);
    snprintf(all.path[0], sizeof all.path[0], "in the library");
    all.can[0] = ls__native_can;
    for (int i = 0; ls__plugin_folder(i, folder, sizeof folder); i++) {
        printf("plug-ins in        %s\n", folder);
        add_folder(&all, folder);
    }
    for (int i = 0; i < all.count; i++) {
        printf("%-18s %s\n", all.name[i], all.path[i]);
    }
    printf("\n%-22s", "");
    for (int i = 0; i < all.count; i++) {
        printf("  %-*s", width_of(&all, i), all.name[i]);
    }
    printf("\n");
    for (int k = 0; k < LS__OP_COUNT; k++) {
        if (k != LS__OP_BARRIER) { /* control, on every backend */
            print_row(&all, ls__operation_name((ls__operation)k),
                      offsetof(ls_backend_capabilities, operations), k);
        }
    }
    for (int d = 0; d < LS_DTYPE_COUNT; d++) {
        print_row(&all, ls_dtype_name((ls_dtype)d), offsetof(ls_backend_capabilities, dtypes), d);
    }
    for (int op = 0; op < LS_REDUCE_OP_COUNT; op++) {
        if (op != LS_AVG && op != LS_PREMUL_SUM) { /* sums */
            print_row(&all, ls_reduce_op_name((ls_reduce_op)op),
                      offsetof(ls_backend_capabilities, reduce_ops), op);
        }
    }
    print_flags(&all);
    return 0;
}
