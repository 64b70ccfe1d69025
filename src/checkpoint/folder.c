/* SPDX-License-Identifier: Apache-2.0 */
/* Names on the disk, all in the checkpoint's folder:
 *
 *   step-00000120               complete: made by a rename of a folder that was on the disk
 *   .tmp-step-00000120-<nonce>  being written, or left by a job that died
 *   .tmp-gone-00000120-<nonce>  was pruned: renamed first, so that no reader sees half of one
 *   .old-step-00000120          made way for a second save of its step; put back if that save was
 *                               not completed
 *   damaged-step-00000120       skipped by load; the newest DAMAGED_KEPT stay for people to look at
 *   lock                        held by rank 0 of the job that writes; says which process that is
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "checkpoint/internal.h"

#define STEP "step-"
#define TEMPORARY ".tmp-"
#define OLD ".old-"
#define DAMAGED "damaged-"
#define STEPS_MAX 1000000
#define DAMAGED_KEPT 2 /* each may be as large as a checkpoint */
#define OWNER_BYTES 160
/* A reader holds the lock while it cleans, and a killed job until it is gone. */
#define LOCK_TRIES 10
#define LOCK_PAUSE_MS 100
/* Names collected before they are removed, which must not happen while the folder is listed. */
#define CLEAN_ROUND 64

/* Eight digits keep the names sorted in a listing; larger steps simply get longer names.
 * `before` is one of the prefixes above or "". */
void ls__step_name(char out[64], const char *before, int64_t step)
{
    (void)snprintf(out, 64, "%s" STEP "%08lld", before, (long long)step);
}

/* Counts from 1, as Hugging Face's sharded files do. */
void ls__state_file_name(char out[LS__MANIFEST_FILE_NAME_MAX], int rank, int size)
{
    (void)snprintf(out, LS__MANIFEST_FILE_NAME_MAX, "state-%05d-of-%05d.safetensors", rank + 1,
                   size);
}

/* The path of a step's folder, or of one of its other names. */
static void step_path(const ls_checkpoint *c, char out[LS__CHECKPOINT_PATH_MAX], const char *before,
                      int64_t step)
{
    char name[64];
    ls__step_name(name, before, step);
    ls__path_join(out, c->folder, name);
}

/* The nonce distinguishes this attempt from the remains of a dead one, so make_folder fails only
 * if something is really wrong. */
void ls__folder_temporary(const ls_checkpoint *c, char out[LS__CHECKPOINT_PATH_MAX])
{
    char name[128];
    (void)snprintf(name, sizeof name, TEMPORARY STEP "%08lld-%016llx", (long long)c->step,
                   (unsigned long long)c->nonce);
    ls__path_join(out, c->folder, name);
}

/* The step of "step-00000120" behind a prefix, or -1 for another name. The spelling must be ours
 * exactly: otherwise a path built from the number would not lead back to the folder. */
static int64_t step_of(const char *name, const char *before)
{
    char again[64];
    const size_t skip = strlen(before);
    if (strncmp(name, before, skip) != 0 || strncmp(name + skip, STEP, strlen(STEP)) != 0) {
        return -1;
    }
    const long long step = strtoll(name + skip + strlen(STEP), NULL, 10);
    if (step < 0) {
        return -1;
    }
    ls__step_name(again, before, step);
    return strcmp(again, name) == 0 ? step : -1;
}

/* ---- steps -------------------------------------------------------------------------------- */

typedef struct step_list {
    const char *before; /* the prefix of the names that count */
    int64_t *list;
    int count, room;
} step_list;

/* Callback of env->list: 0 continues, a negative value ends the listing with that error. Foreign
 * names are ignored. */
static int add_step(void *arg, const char *name)
{
    step_list *s = arg;
    int64_t step = step_of(name, s->before);
    if (step < 0) {
        return 0;
    }
    if (s->count == s->room) {
        int room = s->room ? 2 * s->room : 16;
        int64_t *list = room <= STEPS_MAX ? realloc(s->list, (size_t)room * sizeof *list) : NULL;
        if (list == NULL) {
            return -ENOMEM;
        }
        s->list = list;
        s->room = room;
    }
    s->list[s->count++] = step;
    return 0;
}

/* Without a difference that could overflow. */
static int latest_first(const void *a, const void *b)
{
    const int64_t *x = a, *y = b;
    return (*x < *y) - (*x > *y);
}

/* The caller frees *steps, which is NULL if there are none. */
static ls_status steps_named(const ls_checkpoint *c, const char *before, int64_t **steps,
                             int *count)
{
    step_list s = {.before = before};
    int error = c->files->list(c->files, c->folder, add_step, &s);
    *steps = NULL;
    *count = 0;
    if (error < 0) {
        free(s.list);
        return ls__file_fail(error, "checkpoint", "cannot list", c->folder);
    }
    if (s.count > 0) {
        qsort(s.list, (size_t)s.count, sizeof *s.list, latest_first);
    }
    *steps = s.list;
    *count = s.count;
    return LS_OK;
}

ls_status ls__folder_steps(const ls_checkpoint *c, int64_t **steps, int *count)
{
    return steps_named(c, "", steps, count);
}

/* ---- making and locking ------------------------------------------------------------------- */

/* If the power fails, a new folder whose name was not synced is lost with everything in it, so
 * the folder above is synced too. A failure of that is only a warning: the user may lack
 * permission to read the folder above. */
static ls_status make_one(const ls_checkpoint *c, const char *path)
{
    char above[LS__CHECKPOINT_PATH_MAX];
    ls__env_stat found;
    const char *slash = strrchr(path, '/');
    const bool is_new = c->files->stat(c->files, path, true, &found) == -ENOENT;
    const int error = c->files->make_folder(c->files, path);
    if (error < 0) {
        return ls__file_fail(error, "checkpoint", "cannot make the folder", path);
    }
    if (!is_new) {
        return LS_OK;
    }
    const size_t length = slash == NULL ? 0 : slash == path ? 1 : (size_t)(slash - path);
    (void)snprintf(above, sizeof above, "%.*s", (int)length, path);
    const ls_status status = ls__file_sync_folder(c->files, length == 0 ? "." : above);
    if (status != LS_OK) {
        LS__WARN(
            "checkpoint: the name of the new folder \"%s\" may be lost when the power fails: %s",
            path, ls_error_message());
    }
    return LS_OK;
}

/* Like mkdir -p: each prefix that ends at a slash is made in turn. Existing folders are not an
 * error of make_folder. */
ls_status ls__folder_make(const ls_checkpoint *c)
{
    char path[LS__CHECKPOINT_PATH_MAX];
    const size_t length = strlen(c->folder);
    memcpy(path, c->folder, length + 1);
    for (size_t i = 1; i <= length; i++) {
        if (c->folder[i] != '/' && c->folder[i] != '\0') {
            continue;
        }
        path[i] = '\0';
        LS_TRY(make_one(c, path));
        path[i] = c->folder[i];
    }
    return LS_OK;
}

/* Used by load_only, which must not create anything. */
ls_status ls__folder_is_there(const ls_checkpoint *c)
{
    ls__env_stat found;
    int error = c->files->stat(c->files, c->folder, true, &found);
    if (error == 0 && found.kind != LS__ENV_FOLDER) {
        error = -ENOTDIR;
    }
    return error < 0 ? ls__file_fail(error, "checkpoint", "cannot load from", c->folder) : LS_OK;
}

/* Written over the former owner's line, which is as long, so that a reader never sees a part of
 * each. The lock holds without it: a full disk only costs the name in another job's error. Returns
 * what the write did; after -ETIMEDOUT the descriptor belongs to the call that hangs. */
static ssize_t sign_lock(const ls_checkpoint *c, int fd)
{
    char host[64] = "", line[OWNER_BYTES + 1];
    if (c->env->host_name(c->env, host, sizeof host) < 0) {
        (void)snprintf(host, sizeof host, "?");
    }
    (void)snprintf(line, sizeof line, "process %d on host %.63s", (int)c->env->pid(c->env), host);
    const size_t length = strlen(line);
    memset(line + length, ' ', OWNER_BYTES - length);
    line[OWNER_BYTES - 1] = '\n';
    return c->files->write(c->files, fd, line, OWNER_BYTES);
}

/* Who holds the lock, for an error text: the line that sign_lock wrote, without its end. */
static void read_owner(const ls_checkpoint *c, int fd, char out[OWNER_BYTES + 1])
{
    const ssize_t got = c->files->read(c->files, fd, out, OWNER_BYTES);
    size_t length = got > 0 ? (size_t)got : 0;
    for (size_t i = 0; i < length; i++) {
        out[i] = (unsigned char)out[i] < ' ' ? ' ' : out[i]; /* it may be anybody's file */
    }
    while (length > 0 && out[length - 1] == ' ') {
        length--;
    }
    out[length] = '\0';
    if (length == 0) {
        (void)snprintf(out, OWNER_BYTES + 1, "another job");
    }
}

/* 0, or why not after some time. */
static int try_lock(const ls_checkpoint *c, int fd)
{
    int error = c->files->lock_file(c->files, fd);
    for (int i = 1; i < LOCK_TRIES && error == -EAGAIN; i++) {
        c->env->sleep_until(c->env, ls__deadline_after(c->env, LOCK_PAUSE_MS));
        error = c->files->lock_file(c->files, fd);
    }
    return error;
}

/* Refused when another process holds the lock. The kernel drops the lock when its process dies, on
 * whatever host, so the lock of a dead job never refuses anybody; its line in the file is only
 * replaced. */
ls_status ls__folder_lock(ls_checkpoint *c)
{
    char path[LS__CHECKPOINT_PATH_MAX], owner[OWNER_BYTES + 1];
    ls__path_join(path, c->folder, "lock");
    const int fd = c->files->open(c->files, path, O_RDWR | O_CREAT | O_NOFOLLOW, 0666);
    if (fd == -ETIMEDOUT) {
        return ls__file_fail(fd, "checkpoint", "cannot open", path);
    }
    if (fd < 0) {
        return ls__fail(
            LS_ERR_SYSTEM,
            "ls_checkpoint_new: cannot write to \"%s\": the file \"lock\" in it: %s; give "
            "a folder that can be written to, or set load_only to read from it",
            c->folder, strerror(-fd));
    }
    const int error = try_lock(c, fd);
    if (error == 0) {
        if (sign_lock(c, fd) == -ETIMEDOUT) {
            return ls__file_fail(-ETIMEDOUT, "checkpoint", "cannot write", path);
        }
        c->lock_fd = fd;
        return LS_OK;
    }
    read_owner(c, fd, owner);
    (void)c->files->close(c->files, fd);
    return error != -EAGAIN ? ls__file_fail(error, "checkpoint", "cannot lock", path)
                            : ls__fail(LS_ERR_STATE,
                                       "ls_checkpoint_new: \"%s\" is in use: %s writes to it; wait "
                                       "until that job has ended, give another folder, or set "
                                       "load_only to read from it",
                                       c->folder, owner);
}

/* For load_only: whether no job writes to the folder, so that what a dead one left may be removed.
 * The lock is kept until the caller has done that. */
void ls__folder_try_lock(ls_checkpoint *c)
{
    char path[LS__CHECKPOINT_PATH_MAX];
    ls__path_join(path, c->folder, "lock");
    const int fd = c->files->open(c->files, path, O_RDWR | O_NOFOLLOW, 0);
    if (fd >= 0 && c->files->lock_file(c->files, fd) == 0) {
        c->lock_fd = fd;
    } else if (fd >= 0) {
        (void)c->files->close(c->files, fd);
    }
}

/* ---- removing ----------------------------------------------------------------------------- */

typedef struct names {
    char list[CLEAN_ROUND][256];
    int count;
    const char *prefix; /* only names that begin so */
} names;

/* Callback of env->list: a positive return ends the listing with a full round. Longer names than
 * ours are never ours. */
static int take_name(void *arg, const char *name)
{
    names *n = arg;
    size_t bytes = strlen(name) + 1;
    if (strncmp(name, n->prefix, strlen(n->prefix)) == 0 && bytes <= sizeof n->list[0]) {
        memcpy(n->list[n->count++], name, bytes);
    }
    return n->count == CLEAN_ROUND;
}

/* Only files are removed: a subfolder is never ours and makes the removal fail. Names are
 * collected in rounds, since removing entries while listing them gives unspecified results. */
int ls__folder_remove(const ls_checkpoint *c, const char *path)
{
    const ls__env *env = c->files;
    char file[LS__CHECKPOINT_PATH_MAX];
    names found;
    int more;
    do {
        found.count = 0;
        found.prefix = "";
        more = env->list(env, path, take_name, &found);
        for (int i = 0; more >= 0 && i < found.count; i++) {
            ls__path_join(file, path, found.list[i]);
            int error = env->remove_file(env, file);
            if (error < 0) {
                return error;
            }
        }
    } while (more > 0);
    return more < 0 ? more : env->remove_folder(env, path);
}

/* For leftovers: a failure costs disk space but no data, so it is a warning. */
static void remove_or_warn(const ls_checkpoint *c, const char *path)
{
    int error = ls__folder_remove(c, path);
    if (error < 0) {
        LS__WARN("checkpoint: \"%s\" is no longer needed but could not be removed: %s", path,
                 strerror(-error));
    }
}

/* Keeps the newest `keep` steps of a prefix, and `spared` (-1: none). A step is renamed before its
 * files are removed, so no reader finds half of one under its final name. Failures are warnings:
 * the new checkpoint is complete already. */
static void prune(const ls_checkpoint *c, const char *before, int keep, int64_t spared)
{
    int64_t *steps;
    int count;
    char name[128], from[LS__CHECKPOINT_PATH_MAX], gone[LS__CHECKPOINT_PATH_MAX];
    if (steps_named(c, before, &steps, &count) < 0) {
        LS__WARN("checkpoint: older ones were not removed: %s", ls_error_message());
        return;
    }
    for (int i = keep; i < count; i++) {
        if (steps[i] == spared) {
            continue;
        }
        step_path(c, from, before, steps[i]);
        (void)snprintf(name, sizeof name, TEMPORARY "gone-%08lld-%016llx", (long long)steps[i],
                       (unsigned long long)c->nonce);
        ls__path_join(gone, c->folder, name);
        int error = c->files->rename(c->files, from, gone);
        if (error < 0) {
            LS__WARN("checkpoint: \"%s\" is no longer needed but could not be renamed: %s", from,
                     strerror(-error));
        } else {
            remove_or_warn(c, gone);
        }
    }
    free(steps);
}

/* The newest step whose values are finite, unless this save is it; else -1: nothing is to be
 * spared. */
static int64_t newest_finite(const ls_checkpoint *c)
{
    int64_t *steps, found = -1;
    int count;
    if (c->nonfinite < 0 || ls__folder_steps(c, &steps, &count) < 0) {
        return -1; /* prune lists them again, and warns */
    }
    for (int i = 0; i < count && found < 0; i++) {
        found = ls__checkpoint_is_finite(c, steps[i]) ? steps[i] : -1;
    }
    free(steps);
    return found;
}

/* Damaged ones too: a disk that fails again and again must not fill up with them. A run that has
 * diverged and goes on saving must not push out the last checkpoint that is worth something. */
void ls__folder_prune(const ls_checkpoint *c)
{
    prune(c, "", c->set.keep, newest_finite(c));
    prune(c, DAMAGED, DAMAGED_KEPT, -1);
}

/* ---- after a job that died ---------------------------------------------------------------- */

/* A second save of a step was cut off: the first one is put back unless the second one was
 * completed. A name that is not ours is left alone. */
static void settle_old(const ls_checkpoint *c, const char *name)
{
    char old[LS__CHECKPOINT_PATH_MAX], home[LS__CHECKPOINT_PATH_MAX];
    ls__env_stat found;
    ls__path_join(old, c->folder, name);
    ls__path_join(home, c->folder, name + strlen(OLD));
    if (step_of(name + strlen(OLD), "") < 0) {
        return;
    }
    if (c->files->stat(c->files, home, false, &found) == 0) {
        remove_or_warn(c, old);
        return;
    }
    int error = c->files->rename(c->files, old, home);
    if (error < 0) {
        LS__WARN("checkpoint: \"%s\" could not be renamed back: %s", old, strerror(-error));
    }
}

/* What a job that died had not published. */
static void remove_temporary(const ls_checkpoint *c, const char *name)
{
    char path[LS__CHECKPOINT_PATH_MAX];
    ls__path_join(path, c->folder, name);
    remove_or_warn(c, path);
}

/* One round is enough: what exceeds CLEAN_ROUND names is left to the next start. `settle` runs
 * after the listing has ended. */
static void clean_names(const ls_checkpoint *c, const char *prefix,
                        void (*settle)(const ls_checkpoint *c, const char *name))
{
    names found = {.prefix = prefix};
    int error = c->files->list(c->files, c->folder, take_name, &found);
    if (error < 0) {
        LS__WARN("checkpoint: \"%s\" could not be searched for what a job left: %s", c->folder,
                 strerror(-error));
    }
    for (int i = 0; i < found.count; i++) {
        settle(c, found.list[i]);
    }
}

/* Call it only while holding the lock: the temporary folders of a living job look the same. Old
 * ones come first, since they may hold the only whole checkpoint of a step. */
void ls__folder_clean(const ls_checkpoint *c)
{
    clean_names(c, OLD, settle_old);
    clean_names(c, TEMPORARY, remove_temporary);
}

/* ---- publishing --------------------------------------------------------------------------- */

/* Whether the last load skipped this step as damaged: the interval is (after, last]. */
static bool was_skipped(const ls_checkpoint *c, int64_t step)
{
    return step > c->skipped_after && step <= c->skipped_last;
}

/* A later step that load did not skip belongs to another run; with it in place, the new
 * checkpoint would never be the newest one and pruning could remove it. */
ls_status ls__folder_check_later(const ls_checkpoint *c, int64_t step)
{
    int64_t *steps;
    int count;
    LS_TRY(ls__folder_steps(c, &steps, &count));
    int64_t later = -1;
    for (int i = 0; i < count; i++) {
        later = steps[i] > step && !was_skipped(c, steps[i]) ? steps[i] : later;
    }
    free(steps);
    if (later >= 0) {
        return ls__fail(LS_ERR_STATE,
                        "checkpoint: cannot save step %lld, because \"%s\" holds the later step "
                        "%lld, which seems to be of another run; load that one first, or give "
                        "another folder",
                        (long long)step, c->folder, (long long)later);
    }
    return LS_OK;
}

/* A rename within the folder. */
static ls_status move(const ls_checkpoint *c, const char *from, const char *to)
{
    int error = c->files->rename(c->files, from, to);
    return error < 0 ? ls__file_fail(error, "checkpoint", "cannot rename", from) : LS_OK;
}

/* A damaged checkpoint that load skipped must not come back as the newest one, nor push a complete
 * one out of `keep`. It is renamed, not removed: people may want to look at it. */
static ls_status move_skipped(const ls_checkpoint *c)
{
    char from[LS__CHECKPOINT_PATH_MAX], to[LS__CHECKPOINT_PATH_MAX];
    int64_t *steps;
    int count;
    LS_TRY(ls__folder_steps(c, &steps, &count));
    ls_status status = LS_OK;
    for (int i = 0; i < count && status == LS_OK; i++) {
        if (was_skipped(c, steps[i])) {
            step_path(c, from, "", steps[i]);
            step_path(c, to, DAMAGED, steps[i]);
            (void)ls__folder_remove(c, to); /* of an earlier time */
            status = move(c, from, to);
        }
    }
    free(steps);
    return status;
}

/* The rename is the moment when the checkpoint begins to exist. An older save of the same step
 * steps aside first and returns if the rename fails; a crash in between is repaired by
 * ls__folder_clean. */
ls_status ls__folder_publish(ls_checkpoint *c, const char *temporary)
{
    char final[LS__CHECKPOINT_PATH_MAX], old[LS__CHECKPOINT_PATH_MAX];
    ls__env_stat found;
    step_path(c, final, "", c->step);
    step_path(c, old, OLD, c->step);
    if (c->skipped_last > c->skipped_after) {
        LS_TRY(move_skipped(c));
        c->skipped_last = c->skipped_after;
    }
    bool replaces = c->files->stat(c->files, final, false, &found) == 0;
    if (replaces && c->nonfinite >= 0 && ls__checkpoint_is_finite(c, c->step)) {
        return ls__fail(LS_ERR_INVALID,
                        "checkpoint: \"%s\" is saved already and finite; it is not replaced by a "
                        "state whose \"%.200s\" is not; give another step, or stop this run",
                        final, c->shown.pieces[c->nonfinite].entry->name);
    }
    if (replaces) {
        LS_TRY(move(c, final, old));
    }
    ls_status status = move(c, temporary, final);
    if (status < 0) {
        if (replaces && c->files->rename(c->files, old, final) < 0) {
            LS__WARN("checkpoint: \"%s\" will be put back when the folder is opened next", old);
        }
        return status;
    }
    LS_TRY(ls__file_sync_folder(c->files, c->folder));
    if (replaces) {
        remove_or_warn(c, old);
    }
    return LS_OK;
}
