/* SPDX-License-Identifier: Apache-2.0 */
/* Sharing by a file, for srun --mpi=none: Slurm gives every task of a step the same variables, but
 * none that others could not read or guess. So rank 0 writes a file that only this user can read,
 * into a folder of this user's home, which the nodes of a cluster share; the other hosts wait for
 * it.
 *
 *     ~/.lockstep/slurm-JOB.STEP.RESTART.PORT      PORT: srun's own, another one for every step
 *
 * The file is written under another name and renamed, so it is complete when it is found. Another
 * user's file, or one that others can read, is refused. Rank 0 removes it when all hosts have
 * joined. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/settings.h"
#include "job/bootstrap/share.h"

#define RETRY_MS 100
#define PATH_BYTES 512

static const char *value_of(const char *name, const char *otherwise)
{
    const char *value = ls__setting_get(name);
    return value != NULL ? value : otherwise;
}

static bool path_of(char folder[PATH_BYTES], char path[2 * PATH_BYTES], char *reason)
{
    const char *home = ls__setting_get("HOME");
    if (home == NULL || strlen(home) + 16 > PATH_BYTES) {
        snprintf(reason, LS__PMI_REASON, "HOME is not set");
        return false;
    }
    snprintf(folder, PATH_BYTES, "%s/.lockstep", home);
    snprintf(path, (size_t)2 * PATH_BYTES, "%s/slurm-%.20s.%.20s.%.20s.%.20s", folder,
             value_of("SLURM_JOB_ID", ""), value_of("SLURM_STEP_ID", ""),
             value_of("SLURM_RESTART_COUNT", "0"), value_of("SLURM_SRUN_COMM_PORT", ""));
    return true;
}

/* Whether the open file is this user's and nobody else can read it. By the descriptor, not the
 * path, because whoever may write the folder can exchange what the path names. */
static bool is_private(const ls__env *env, int fd, const char *path, char *reason)
{
    ls__env_stat found;
    const int error = ls__file_stat_open(env, fd, &found);
    if (error < 0) {
        snprintf(reason, LS__PMI_REASON, "%.180s: %s", path, strerror(-error));
        return false;
    }
    if (found.kind == LS__ENV_FILE && found.uid == env->uid(env) && (found.mode & 077) == 0) {
        return true;
    }
    snprintf(reason, LS__PMI_REASON, "%.150s is not this user's alone (mode %04o, owner %ld)", path,
             (unsigned)found.mode, (long)found.uid);
    return false;
}

static bool write_file(const ls__env *env, const char *path, const char *value, char *reason)
{
    char part[2 * PATH_BYTES + 8];
    snprintf(part, sizeof part, "%s.part", path);
    const int fd = ls__file_create(env, part, 0600);
    ssize_t put = fd < 0 ? fd : env->write(env, fd, value, strlen(value));
    if (fd >= 0) {
        const int error = env->fsync(env, fd);
        env->close(env, fd);
        put = put >= 0 && error < 0 ? error : put;
    }
    put = put >= 0 ? env->rename(env, part, path) : put;
    if (put < 0) {
        snprintf(reason, LS__PMI_REASON, "%.180s: %s", part, strerror((int)-put));
        (void)env->remove_file(env, part);
    }
    return put >= 0;
}

/* -ENOENT: not there yet. */
static ssize_t read_file(const ls__env *env, const char *path, char value[LS__PMI_VALUE],
                         char *reason)
{
    const int fd = env->open(env, path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK, 0);
    if (fd == -ENOENT) {
        return -ENOENT;
    }
    ssize_t got = fd;
    if (fd >= 0) {
        got = is_private(env, fd, path, reason) ? env->read(env, fd, value, LS__PMI_VALUE - 1)
                                                : -EPERM;
        env->close(env, fd);
    }
    if (got < 0 && got != -EPERM) {
        snprintf(reason, LS__PMI_REASON, "%.180s: %s", path, strerror((int)-got));
    }
    value[got > 0 ? got : 0] = '\0';
    return got;
}

static bool await_file(const ls__env *env, const char *path, char value[LS__PMI_VALUE],
                       uint64_t deadline_ns, char *reason)
{
    ssize_t got;
    while ((got = read_file(env, path, value, reason)) == -ENOENT) {
        if (env->now_ns(env) >= deadline_ns) {
            snprintf(reason, LS__PMI_REASON,
                     "rank 0's host did not write %.120s within the deadline, or the hosts do not "
                     "share this folder",
                     path);
            return false;
        }
        env->sleep_until(env, ls__deadline_after(env, RETRY_MS));
    }
    return got >= 0;
}

bool ls__share_file_broadcast(const ls__env *env, int rank, char value[LS__PMI_VALUE],
                              uint64_t deadline_ns, char reason[LS__PMI_REASON])
{
    char folder[PATH_BYTES], path[2 * PATH_BYTES];
    if (!path_of(folder, path, reason)) {
        return false;
    }
    if (rank != 0) {
        return await_file(env, path, value, deadline_ns, reason);
    }
    const int error = env->make_folder(env, folder);
    if (error < 0) {
        snprintf(reason, LS__PMI_REASON, "%.180s: %s", folder, strerror(-error));
        return false;
    }
    return write_file(env, path, value, reason);
}

void ls__share_file_remove(const ls__env *env)
{
    char folder[PATH_BYTES], path[2 * PATH_BYTES], reason[LS__PMI_REASON];
    if (path_of(folder, path, reason)) {
        (void)env->remove_file(env, path);
    }
}
