/* SPDX-License-Identifier: Apache-2.0 */
/* A walk from the root, one component at a time, with the links resolved here rather than by the
 * system: each one is checked before it is followed. */
#include "base/trusted.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define LINKS_MAX 40 /* as the kernel's */
#define WRITE_GROUP 020
#define WRITE_OTHERS 002
#define STICKY 01000

typedef struct walk {
    const ls__env *env;
    uid_t self, also, root; /* root: the owner of "/" */
    bool below_sticky;      /* everybody could make the next component */
    const char *program;    /* the folders above it are not looked at; NULL: all are */
    int links;
    char *at;                        /* [LS__TRUSTED_PATH_MAX] without links; "" is the root */
    char rest[LS__TRUSTED_PATH_MAX]; /* to be walked */
} walk;

static bool is_trusted_owner(const walk *w, uid_t uid)
{
    return uid == 0 || uid == w->self || (!w->below_sticky && (uid == w->also || uid == w->root));
}

/* The permissions of a link have no meaning. */
static bool is_closed(const ls__env_stat *found)
{
    const bool sticky = found->kind == LS__ENV_FOLDER && (found->mode & STICKY) != 0;
    const bool open = (found->mode & WRITE_OTHERS) != 0 ||
                      ((found->mode & WRITE_GROUP) != 0 && found->gid != (gid_t)found->uid);
    return found->kind == LS__ENV_LINK || sticky || !open;
}

static const char *shown(const char *at)
{
    return at[0] != '\0' ? at : "/";
}

/* Whether w->at is a folder above the program. */
static bool is_above(const walk *w)
{
    const size_t length = strlen(w->at);
    return w->program != NULL && strncmp(w->program, w->at, length) == 0 &&
           w->program[length] == '/';
}

/* Checks the component at w->at. */
static int check(walk *w, ls__env_stat *found, ls__untrusted *why)
{
    const int error = w->env->stat(w->env, shown(w->at), false, found);
    if (error < 0) {
        return error;
    }
    if (w->at[0] == '\0') {
        w->root = found->uid;
    }
    if (is_above(w)) {
        w->also = is_trusted_owner(w, found->uid) ? w->also : found->uid;
    } else if (!is_trusted_owner(w, found->uid) || !is_closed(found)) {
        why->uid = found->uid;
        why->mode = found->mode;
        (void)snprintf(why->path, sizeof why->path, "%s", shown(w->at));
        return -EPERM;
    }
    w->below_sticky = found->kind == LS__ENV_FOLDER && (found->mode & WRITE_OTHERS) != 0;
    return 0;
}

/* Back to the folder above, or to the root. It has been checked on the way down. */
static int leave(walk *w, bool to_root, ls__untrusted *why)
{
    ls__env_stat found;
    char *slash = to_root ? w->at : strrchr(w->at, '/');
    if (slash != NULL) {
        *slash = '\0';
    }
    w->below_sticky = false;
    return check(w, &found, why);
}

/* Puts the target of the link at w->at before what is still to be walked. */
static int follow(walk *w, ls__untrusted *why)
{
    char target[2 * LS__TRUSTED_PATH_MAX];
    const int length = w->env->read_link(w->env, w->at, target, LS__TRUSTED_PATH_MAX);
    if (length < 0 || ++w->links > LINKS_MAX) {
        return length < 0 ? length : -ELOOP;
    }
    const int all = length + snprintf(target + length, LS__TRUSTED_PATH_MAX, "/%s", w->rest);
    if (all >= LS__TRUSTED_PATH_MAX) {
        return -ENAMETOOLONG;
    }
    memcpy(w->rest, target, (size_t)all + 1);
    return leave(w, target[0] == '/', why);
}

/* Takes the next component of w->rest. */
static int step(walk *w, ls__untrusted *why)
{
    char name[LS__TRUSTED_PATH_MAX];
    ls__env_stat found;
    const size_t length = strcspn(w->rest, "/"), used = strlen(w->at);
    (void)snprintf(name, sizeof name, "%.*s", (int)length, w->rest);
    const size_t gone = length + (w->rest[length] == '/' ? 1 : 0);
    memmove(w->rest, w->rest + gone, strlen(w->rest + gone) + 1);
    if (name[0] == '\0' || strcmp(name, ".") == 0) {
        return 0;
    }
    if (strcmp(name, "..") == 0) {
        return leave(w, false, why);
    }
    if (used + length + 2 > LS__TRUSTED_PATH_MAX) {
        return -ENAMETOOLONG;
    }
    (void)snprintf(w->at + used, LS__TRUSTED_PATH_MAX - used, "/%s", name);
    const int error = check(w, &found, why);
    return error == 0 && found.kind == LS__ENV_LINK ? follow(w, why) : error;
}

static int walk_to(walk *w, const char *path, ls__untrusted *why)
{
    ls__env_stat found;
    const int length =
        snprintf(w->rest, sizeof w->rest, "%s%s", path[0] == '/' ? "" : "/proc/self/cwd/", path);
    w->at[0] = '\0';
    int error = length < 0 || length >= (int)sizeof w->rest ? -ENAMETOOLONG : check(w, &found, why);
    while (error == 0 && w->rest[0] != '\0') {
        error = step(w, why);
    }
    if (error == 0 && w->at[0] == '\0') {
        (void)snprintf(w->at, LS__TRUSTED_PATH_MAX, "/");
    }
    return error;
}

int ls__trusted_path(const ls__env *env, const char *path, uid_t also,
                     char real[LS__TRUSTED_PATH_MAX], ls__untrusted *why)
{
    walk w = {.env = env, .self = env->uid(env), .also = also, .at = real};
    return walk_to(&w, path, why);
}

int ls__trusted_beside(const ls__env *env, const char *path, const char *program,
                       char real[LS__TRUSTED_PATH_MAX], ls__untrusted *why)
{
    const uid_t self = env->uid(env);
    walk w = {.env = env, .self = self, .also = self, .program = program, .at = real};
    return walk_to(&w, path, why);
}
