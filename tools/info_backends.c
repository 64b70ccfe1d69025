/* SPDX-License-Identifier: Apache-2.0 */
/* `lockstep info --backends`: what each backend promises. tests/dist/comm/test_backend.c runs every
 * function, dtype and operator of this table on a group of the backend, and all that stands here as
 * promised has to give the native results. */
#include <dirent.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "comm/backend/mpi_choice.h"
#include "comm/backend/plugin.h"
#include "comm/core/backend.h"
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

/* Adds the plug-ins of one folder; with `speaks` those that cannot be used are printed with their
 * reason. */
static void add_folder(backends *all, const char *folder, bool speaks)
{
    char real[LS__TRUSTED_PATH_MAX];
    DIR *open = opendir(folder);
    if (open != NULL && ls__plugin_check_place("*", folder, real) != LS_OK) {
        (void)closedir(open);
        open = NULL;
        if (speaks) {
            printf("not usable         %s\n", ls_error_message());
        }
    }
    const struct dirent *entry = NULL;
    while (open != NULL && all->count < BACKENDS_MAX && (entry = readdir(open)) != NULL) {
        char name[LS__BACKEND_NAME_MAX], path[LS__BACKEND_PATH_MAX];
        ls__plugin plugin;
        if (!name_in(entry->d_name, name) || is_known(all, name)) {
            continue;
        }
        snprintf(path, sizeof path, "%.200s/%.200s", folder, entry->d_name);
        if (ls__plugin_load(path, &plugin) != LS_OK) {
            if (speaks) {
                printf("not usable         %s\n", ls_error_message());
            }
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

typedef struct visit { /* of the rows, in their order */
    const backends *all;
    backends_row_fn fn;
    void *arg;
} visit;

/* One row: whether each backend has the bit. */
static void row(const visit *v, const char *what, size_t field, int bit)
{
    const char *names[BACKENDS_MAX];
    bool has[BACKENDS_MAX];
    for (int i = 0; i < v->all->count; i++) {
        uint32_t set = 0;
        memcpy(&set, (const char *)&v->all->can[i] + field, sizeof set);
        names[i] = v->all->name[i];
        has[i] = (set >> bit & 1) != 0;
    }
    v->fn(v->arg, what, v->all->count, names, has);
}

static void each_row(const visit *v)
{
    static const char *const flags[] = {
        "canonical sums", "abort",  "registered memory", "streams", "user's operators",
        "programs",       "scaling"};
    for (int k = 0; k < LS__OP_COUNT; k++) {
        if (k != LS__OP_BARRIER) { /* control, on every backend */
            row(v, ls__operation_name((ls__operation)k),
                offsetof(ls_backend_capabilities, operations), k);
        }
    }
    for (int d = 0; d < LS_DTYPE_COUNT; d++) {
        row(v, ls_dtype_name((ls_dtype)d), offsetof(ls_backend_capabilities, dtypes), d);
    }
    for (int op = 0; op < LS_REDUCE_OP_COUNT; op++) {
        if (op != LS_AVG && op != LS_PREMUL_SUM) { /* sums */
            row(v, ls_reduce_op_name((ls_reduce_op)op),
                offsetof(ls_backend_capabilities, reduce_ops), op);
        }
    }
    for (int f = 0; f < (int)(sizeof flags / sizeof *flags); f++) {
        row(v, flags[f], offsetof(ls_backend_capabilities, flags), f);
    }
    row(v, "host memory", offsetof(ls_backend_capabilities, memory), 0);
    row(v, "device memory", offsetof(ls_backend_capabilities, memory), 1);
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

/* Native and the plug-ins; with `speaks` prints where it looks for them. */
static void find_all(backends *all, bool speaks)
{
    char folder[LS__BACKEND_PATH_MAX];
    all->count = 1;
    snprintf(all->name[0], sizeof all->name[0], "%s", LS__BACKEND_NATIVE);
    snprintf(all->path[0], sizeof all->path[0], "in the library");
    all->can[0] = ls__native_can;
    for (int i = 0; ls__plugin_folder(i, folder, sizeof folder); i++) {
        if (speaks) {
            printf("plug-ins in        %s\n", folder);
        }
        add_folder(all, folder, speaks);
    }
}

void backends_each(backends_row_fn fn, void *arg)
{
    static backends all;
    find_all(&all, false);
    each_row(&(visit){&all, fn, arg});
}

static int width_of(const char *name)
{
    const int length = (int)strlen(name);
    return length > 8 ? length : 8;
}

static void print_row(void *arg, const char *what, int count, const char *const *names,
                      const bool *has)
{
    (void)arg;
    printf("%-22s", what);
    for (int i = 0; i < count; i++) {
        printf("  %-*s", width_of(names[i]), has[i] ? "yes" : "-");
    }
    printf("\n");
}

int print_backends(void)
{
    static backends all;
    find_all(&all, true);
    for (int i = 0; i < all.count; i++) {
        printf("%-18s %s\n", all.name[i], all.path[i]);
    }
    printf("\n%-22s", "");
    for (int i = 0; i < all.count; i++) {
        printf("  %-*s", width_of(all.name[i]), all.name[i]);
    }
    printf("\n");
    each_row(&(visit){&all, print_row, NULL});
    return 0;
}
