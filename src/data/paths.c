/* SPDX-License-Identifier: Apache-2.0 */
/* Finding files: folders wait in a list, so there is no recursion over what a user's disk holds. */
#include "data/paths.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"

#define PATHS_MAX (1 << 20) /* bounds what a mistyped path such as "/" can cost */

/* Entries that a caller has taken are NULL, which free accepts. */
void ls__paths_free(ls__paths *list)
{
    for (int i = 0; i < list->count; i++) {
        free(list->path[i]);
    }
    free(list->path);
    *list = (ls__paths){0};
}

/* Takes `path`, also when it fails. NULL stands for a failed copy, so callers can pass strdup's
 * result directly. */
ls_status ls__paths_add(ls__paths *list, const char *what, char *path)
{
    if (path == NULL) {
        return ls__fail(LS_ERR_MEMORY, "%s: no memory for a path", what);
    }
    if (list->count == PATHS_MAX) {
        ls_status status = ls__fail(LS_ERR_LIMIT,
                                    "%s: more than %d files or folders at \"%s\"; name a folder "
                                    "that holds only the data",
                                    what, PATHS_MAX, path);
        free(path);
        return status;
    }
    if (list->count == list->capacity) {
        int capacity = list->capacity ? 2 * list->capacity : 16;
        char **grown = realloc(list->path, (size_t)capacity * sizeof *grown);
        if (grown == NULL) {
            free(path);
            return ls__fail(LS_ERR_MEMORY, "%s: no memory for %d paths", what, capacity);
        }
        list->path = grown;
        list->capacity = capacity;
    }
    list->path[list->count++] = path;
    return LS_OK;
}

/* Trailing slashes of the folder are dropped, except that of "/" itself. */
char *ls__paths_join(const char *folder, const char *name)
{
    size_t folder_length = strlen(folder), name_length = strlen(name);
    while (folder_length > 1 && folder[folder_length - 1] == '/') {
        folder_length--;
    }
    char *path = malloc(folder_length + name_length + 2);
    if (path != NULL) {
        memcpy(path, folder, folder_length);
        path[folder_length] = '/';
        memcpy(path + folder_length + 1, name, name_length + 1);
    }
    return path;
}

/* Points into `path`. */
const char *ls__paths_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

/* Argument of list_entry; regular files and folders go to separate lists. */
typedef struct listing {
    const ls__env *env;
    const char *what, *folder;
    ls__paths *files, *folders;
    ls_status status; /* of the entry that stopped the listing */
} listing;

/* Callback of env->list: 1 stops the listing, with the reason in `status`. Links are not
 * followed, so a circle of folders cannot occur. */
static int list_entry(void *arg, const char *name)
{
    listing *at = arg;
    char *path = ls__paths_join(at->folder, name);
    ls__env_stat stat;
    int error = path != NULL ? at->env->stat(at->env, path, false, &stat) : 0;
    if (error < 0) {
        at->status = ls__file_fail(error, at->what, "cannot read", path);
        free(path);
        return 1;
    }
    if (path != NULL && stat.kind != LS__ENV_FILE && stat.kind != LS__ENV_FOLDER) {
        free(path); /* links, sockets, devices */
        return 0;
    }
    bool folder = path != NULL && stat.kind == LS__ENV_FOLDER;
    at->status = ls__paths_add(folder ? at->folders : at->files, at->what, path);
    return at->status < 0;
}

/* By bytes, which does not depend on the locale. */
static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Breadth first: `folders` grows while it is walked. The sort makes the order independent of the
 * file system, so all ranks number the samples alike. */
ls_status ls__paths_find(const ls__env *env, const char *what, const char *root, ls__paths *files)
{
    ls__paths folders = {0};
    ls_status status = ls__paths_add(&folders, what, strdup(root));
    for (int i = 0; status == LS_OK && i < folders.count; i++) {
        listing at = {env, what, folders.path[i], files, &folders, LS_OK};
        int error = env->list(env, folders.path[i], list_entry, &at);
        status = error < 0 ? ls__file_fail(error, what, "cannot read", folders.path[i]) : at.status;
    }
    ls__paths_free(&folders);
    if (status == LS_OK && files->count > 1) {
        qsort(files->path, (size_t)files->count, sizeof *files->path, by_name);
    }
    return status;
}
