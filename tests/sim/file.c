/* SPDX-License-Identifier: Apache-2.0 */
/* The file system of the simulated hosts: one, shared by all of them, in memory.
 *
 * What was not brought to the disk may be lost when the power fails (ls__sim_power_failure): of a
 * file, what was written since its last fsync; of a folder, a tail of the names made, removed and
 * renamed in it since its own. So a program that forgets an fsync is found out.
 */
#include "sim/entries.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

typedef struct ls__sim_inode {
    ls__list link; /* in the world's inodes, while it has a name */
    bool linked;
    char path[512];
    bool folder;
    unsigned char *data, *synced;
    size_t bytes, room, synced_bytes;
    bool dirty;
    int mode;
    const ls__sim_object *locked; /* by this description */
} inode;

typedef enum change_kind { MADE, REMOVED, RENAMED } change_kind;

typedef struct change { /* of a name, not on the disk yet */
    ls__list link;
    change_kind kind;
    inode *node;
    char from[512];
    inode *replaced;
    char folder[512];
} change;

/* ---- names --------------------------------------------------------------------------------- */

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

/* Relative names are taken from the root. */
static void clean_path(const char *path, char out[512])
{
    size_t used = 0;
    for (const char *c = path; *c != '\0' && used + 2 < 512; c++) {
        if (*c == '.' && used > 0 && out[used - 1] == '/' && (c[1] == '/' || c[1] == '\0')) {
            continue;
        }
        if (*c != '/' || used == 0 || out[used - 1] != '/') {
            if (used == 0 && *c != '/') {
                out[used++] = '/';
            }
            out[used++] = *c;
        }
    }
    while (used > 1 && out[used - 1] == '/') {
        used--;
    }
    out[used] = '\0';
}

static void folder_of(const char *path, char out[512])
{
    const size_t length = (size_t)(base_name(path) - path);
    memcpy(out, path, length);
    out[length > 1 ? length - 1 : length] = '\0';
}

static inode *find(const char *path)
{
    LS__LIST_EACH (at, &ls__sim->inodes) {
        inode *n = LS__LIST_ITEM(at, inode, link);
        if (strcmp(n->path, path) == 0) {
            return n;
        }
    }
    return NULL;
}

static bool is_folder(const char *path)
{
    const inode *n = find(path);
    return strcmp(path, "/") == 0 || (n != NULL && n->folder);
}

static void link_node(inode *n)
{
    if (!n->linked) {
        n->linked = true;
        ls__list_push_back(&ls__sim->inodes, &n->link);
    }
}

static void unlink_node(inode *n)
{
    if (n->linked) {
        n->linked = false;
        ls__list_remove(&n->link);
    }
}

static change *note_change(change_kind kind, inode *n, const char *from, inode *replaced)
{
    change *c = ls__sim_alloc(sizeof *c);
    c->kind = kind;
    c->node = n;
    c->replaced = replaced;
    snprintf(c->from, sizeof c->from, "%s", from);
    folder_of(from, c->folder);
    ls__list_push_back(&ls__sim->changes, &c->link);
    return c;
}

static inode *make_node(const char *path, bool folder, int mode)
{
    inode *n = ls__sim_alloc(sizeof *n);
    snprintf(n->path, sizeof n->path, "%s", path);
    n->folder = folder;
    n->mode = mode & ~022;
    ls__list_init(&n->link);
    link_node(n);
    (void)note_change(MADE, n, path, NULL);
    return n;
}

/* Of a folder, with all in it. */
static void move_node(inode *n, const char *to)
{
    char from[512];
    snprintf(from, sizeof from, "%s", n->path);
    const size_t length = strlen(from);
    LS__LIST_EACH (at, &ls__sim->inodes) {
        inode *inner = LS__LIST_ITEM(at, inode, link);
        if (strncmp(inner->path, from, length) == 0 && inner->path[length] == '/') {
            char moved[1024];
            snprintf(moved, sizeof moved, "%s%s", to, inner->path + length);
            snprintf(inner->path, sizeof inner->path, "%.511s", moved);
        }
    }
    snprintf(n->path, sizeof n->path, "%s", to);
}

/* ---- faults -------------------------------------------------------------------------------- */

/* A call that touches the disk: 0, or the error it is to have. */
static int disk_call(void)
{
    ls__sim_point();
    if (ls__sim->power_fails_in > 0 && --ls__sim->power_fails_in == 0) {
        ls__sim_power_failure();
        ls__sim_switch(); /* never comes back */
    }
    if (ls__sim->disk_fault_in > 0 && --ls__sim->disk_fault_in == 0) {
        ls__sim_note("the disk fails: %s", strerror(-ls__sim->disk_error));
        ls__sim->disk_failed = true;
        return ls__sim->disk_error;
    }
    return 0;
}

static void sync_node(inode *n)
{
    if (n->dirty) {
        n->synced = ls__sim_alloc(n->bytes + 1);
        memcpy(n->synced, n->data, n->bytes);
        n->synced_bytes = n->bytes;
        n->dirty = false;
    }
}

/* What a file that was not brought to the disk holds after the power came back. */
static void lose_bytes(inode *n)
{
    const uint64_t how = ls__sim_below(&ls__sim->random, 4);
    if (!n->dirty || how == 0) {
        n->dirty = false;
        return;
    }
    if (how == 1) { /* the length, and zeros */
        memset(n->data, 0, n->bytes);
    } else if (how == 2) { /* some */
        n->bytes = (size_t)ls__sim_below(&ls__sim->random, n->bytes + 1);
    } else {
        n->data = n->synced;
        n->bytes = n->room = n->synced_bytes;
    }
    n->dirty = false;
}

static void undo(change *c)
{
    ls__list_remove(&c->link);
    switch (c->kind) {
    case MADE:
        unlink_node(c->node);
        break;
    case REMOVED:
        link_node(c->node);
        break;
    case RENAMED:
        move_node(c->node, c->from);
        if (c->replaced != NULL) {
            link_node(c->replaced);
        }
        break;
    }
}

void ls__sim_power_failure(void)
{
    ls__sim_note("the power fails");
    ls__sim->power_failed = true;
    for (int i = 0; i < ls__sim->processes; i++) {
        ls__sim_die(ls__sim->process[i], (ls__env_exit){.signal = SIGKILL});
    }
    /* Of each folder a tail of its changes: whoever is undone takes all later ones along. */
    bool tail = false;
    char folder[512] = "";
    for (ls__list *at = ls__sim->changes.prev; at != &ls__sim->changes;) {
        change *c = LS__LIST_ITEM(at, change, link);
        at = at->prev;
        if (strcmp(folder, c->folder) != 0) {
            snprintf(folder, sizeof folder, "%s", c->folder);
            tail = ls__sim_below(&ls__sim->random, 2) == 0;
        }
        tail = tail && ls__sim_below(&ls__sim->random, 4) != 0;
        if (tail) {
            ls__sim_note("lost: a change of \"%s\" in \"%s\"", base_name(c->from), c->folder);
            undo(c);
        }
    }
    ls__list_init(&ls__sim->changes);
    LS__LIST_EACH (at, &ls__sim->inodes) {
        inode *n = LS__LIST_ITEM(at, inode, link);
        char above[512];
        folder_of(n->path, above);
        if (!is_folder(above)) {
            unlink_node(n); /* its folder is gone */
        } else if (!n->folder) {
            lose_bytes(n);
        }
    }
}

/* ---- open files ---------------------------------------------------------------------------- */

int ls__sim_file_open(const char *given, int flags, int mode)
{
    char path[512], folder[512];
    clean_path(given, path);
    folder_of(path, folder);
    const int error = disk_call();
    inode *n = find(path);
    if (error != 0) {
        return error;
    }
    if (n == NULL && (flags & O_CREAT) == 0) {
        return -ENOENT;
    }
    if (n != NULL && (flags & O_EXCL) != 0) {
        return -EEXIST;
    }
    if (n == NULL && !is_folder(folder)) {
        return -ENOENT;
    }
    if (n != NULL && !n->folder && (flags & O_DIRECTORY) != 0) {
        return -ENOTDIR;
    }
    n = n != NULL ? n : make_node(path, false, mode);
    if ((flags & O_TRUNC) != 0) {
        n->bytes = 0;
        n->dirty = true;
    }
    ls__sim_object *o = ls__sim_object_new(LS__SIM_FILE);
    o->inode = n;
    o->flags = flags;
    return ls__sim_fd_new(ls__sim_current(), o);
}

ssize_t ls__sim_file_read(ls__sim_object *o, void *out, size_t bytes)
{
    const inode *n = o->inode;
    const int error = disk_call();
    if (error != 0 || n->folder) {
        return error != 0 ? error : -EISDIR;
    }
    const size_t left = o->offset < n->bytes ? n->bytes - (size_t)o->offset : 0;
    const size_t take = bytes < left ? bytes : left;
    if (take > 0) {
        memcpy(out, n->data + o->offset, take);
        o->offset += take;
    }
    return (ssize_t)take;
}

static void make_room(inode *n, size_t bytes)
{
    if (bytes > n->room) {
        size_t room = n->room == 0 ? 1024 : n->room;
        while (room < bytes) {
            room *= 2;
        }
        unsigned char *data = ls__sim_alloc(room);
        if (n->bytes > 0) {
            memcpy(data, n->data, n->bytes);
        }
        n->data = data;
        n->room = room;
    }
}

ssize_t ls__sim_file_write(ls__sim_object *o, const void *in, size_t bytes)
{
    inode *n = o->inode;
    const int error = disk_call();
    if (error != 0) {
        return error;
    }
    if (ls__sim->pace.short_transfers && bytes > 1 && ls__sim_below(&ls__sim->choice, 4) == 0) {
        bytes = 1 + (size_t)ls__sim_below(&ls__sim->choice, bytes);
    }
    make_room(n, (size_t)o->offset + bytes);
    memcpy(n->data + o->offset, in, bytes);
    o->offset += bytes;
    n->bytes = o->offset > n->bytes ? (size_t)o->offset : n->bytes;
    n->dirty = true;
    return (ssize_t)bytes;
}

void ls__sim_file_gone(ls__sim_object *o)
{
    if (o->inode->locked == o) {
        o->inode->locked = NULL;
    }
}

/* ---- the table's entries ------------------------------------------------------------------- */

int ls__sim_env_fsync(const ls__env *env LS__UNUSED, int fd)
{
    const int error = disk_call();
    const ls__sim_object *o = ls__sim_fd(fd, LS__SIM_FILE);
    if (o == NULL || error != 0) {
        return o == NULL ? -EBADF : error;
    }
    sync_node(o->inode);
    LS__LIST_EACH (at, &ls__sim->changes) {
        change *c = LS__LIST_ITEM(at, change, link);
        if (o->inode->folder && strcmp(c->folder, o->inode->path) == 0) {
            ls__list_remove(&c->link);
        }
    }
    return 0;
}

int ls__sim_env_rename(const ls__env *env LS__UNUSED, const char *given, const char *target)
{
    char from[512], to[512];
    clean_path(given, from);
    clean_path(target, to);
    const int error = disk_call();
    inode *n = find(from), *there = find(to);
    if (error != 0 || n == NULL) {
        return error != 0 ? error : -ENOENT;
    }
    if (there != NULL && there->folder) {
        return -ENOTEMPTY;
    }
    if (there != NULL) {
        unlink_node(there);
    }
    (void)note_change(RENAMED, n, from, there);
    move_node(n, to);
    return 0;
}

/* The file at a path, also by "/proc/self/fd/N". */
static const inode *find_open(const char *path)
{
    int fd = -1;
    if (sscanf(path, "/proc/self/fd/%d", &fd) != 1) {
        return find(path);
    }
    const ls__sim_object *o = ls__sim_fd(fd, LS__SIM_FILE);
    return o != NULL ? o->inode : NULL;
}

int ls__sim_env_stat(const ls__env *env LS__UNUSED, const char *given, bool follow LS__UNUSED,
                     ls__env_stat *out)
{
    char path[512];
    clean_path(given, path);
    const int error = disk_call();
    const inode *n = find_open(path);
    if (error != 0 || (n == NULL && strcmp(path, "/") != 0)) {
        return error != 0 ? error : -ENOENT;
    }
    *out = (ls__env_stat){.kind = n == NULL || n->folder ? LS__ENV_FOLDER : LS__ENV_FILE,
                          .bytes = n != NULL ? (int64_t)n->bytes : 0,
                          .mode = n != NULL ? n->mode : 0755,
                          .uid = 1000};
    return 0;
}

int ls__sim_env_list(const ls__env *env LS__UNUSED, const char *given,
                     int (*each)(void *arg, const char *name), void *arg)
{
    char path[512], folder[512];
    clean_path(given, path);
    int error = disk_call();
    if (error != 0 || !is_folder(path)) {
        return error != 0 ? error : -ENOENT;
    }
    LS__LIST_EACH (at, &ls__sim->inodes) {
        const inode *n = LS__LIST_ITEM(at, inode, link);
        folder_of(n->path, folder);
        if (strcmp(folder, path) == 0 && strcmp(n->path, "/") != 0) {
            error = each(arg, base_name(n->path));
            if (error != 0) {
                return error;
            }
        }
    }
    return 0;
}

static int remove_node(const char *given, bool folder)
{
    char path[512], above[512];
    clean_path(given, path);
    const int error = disk_call();
    inode *n = find(path);
    if (error != 0 || n == NULL) {
        return error != 0 ? error : -ENOENT;
    }
    if (n->folder != folder) {
        return folder ? -ENOTDIR : -EISDIR;
    }
    LS__LIST_EACH (at, &ls__sim->inodes) {
        folder_of(LS__LIST_ITEM(at, inode, link)->path, above);
        if (folder && strcmp(above, path) == 0) {
            return -ENOTEMPTY;
        }
    }
    unlink_node(n);
    (void)note_change(REMOVED, n, path, NULL);
    return 0;
}

int ls__sim_env_remove_file(const ls__env *env LS__UNUSED, const char *path)
{
    return remove_node(path, false);
}

int ls__sim_env_remove_folder(const ls__env *env LS__UNUSED, const char *path)
{
    return remove_node(path, true);
}

int ls__sim_env_lock_file(const ls__env *env LS__UNUSED, int fd)
{
    const int error = disk_call();
    const ls__sim_object *o = ls__sim_fd(fd, LS__SIM_FILE);
    if (o == NULL || error != 0) {
        return o == NULL ? -EBADF : error;
    }
    if (o->inode->locked != NULL && o->inode->locked != o) {
        return -EAGAIN;
    }
    o->inode->locked = o;
    return 0;
}

int ls__sim_env_map_file(const ls__env *env LS__UNUSED, const char *given, void **out,
                         size_t *bytes)
{
    char path[512];
    clean_path(given, path);
    const int error = disk_call();
    const inode *n = find(path);
    if (error != 0 || n == NULL || n->folder) {
        return error != 0 ? error : n == NULL ? -ENOENT : -EINVAL;
    }
    *bytes = n->bytes;
    *out = NULL;
    if (n->bytes > 0) {
        *out = ls__sim_alloc(n->bytes);
        memcpy(*out, n->data, n->bytes);
    }
    return 0;
}

void ls__sim_env_unmap_file(const ls__env *env LS__UNUSED, void *memory LS__UNUSED,
                            size_t bytes LS__UNUSED)
{
    ls__sim_point();
}

/* A simulated disk is full only by a fault. */
int ls__sim_env_free_bytes(const ls__env *env LS__UNUSED, const char *path LS__UNUSED,
                           uint64_t *out)
{
    *out = 0;
    return 0;
}

int ls__sim_env_make_folder(const ls__env *env LS__UNUSED, const char *given)
{
    char path[512], above[512];
    clean_path(given, path);
    folder_of(path, above);
    const int error = disk_call();
    const inode *n = find(path);
    if (error != 0 || n != NULL || strcmp(path, "/") == 0) {
        return error != 0 ? error : n == NULL || n->folder ? 0 : -ENOTDIR;
    }
    if (!is_folder(above)) {
        return -ENOENT;
    }
    (void)make_node(path, true, 0777);
    return 0;
}

/* ---- for scenarios ------------------------------------------------------------------------- */

void ls__sim_put_file(const char *path, const void *data, size_t bytes, int mode)
{
    if (find("/") == NULL) {
        (void)make_node("/", true, 0755);
    }
    inode *n = make_node(path, false, mode);
    n->mode = mode;
    make_room(n, bytes);
    memcpy(n->data, data, bytes);
    n->bytes = bytes;
    n->dirty = true;
    sync_node(n);
    ls__list_init(&ls__sim->changes); /* called before anything else is on the disk */
}
