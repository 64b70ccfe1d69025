/* SPDX-License-Identifier: Apache-2.0 */
/* Which paths other users can change: a made-up file system of which every row is one fact. */
#include "test.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/trusted.h"
#include "says.h"

#define SELF 1000
#define OTHER 2000
#define NOBODY 65534

typedef struct row {
    const char *path;
    ls__env_kind kind;
    uid_t uid;
    gid_t gid;
    int mode;
    const char *target; /* of a link */
} row;

static const row rows[] = {
    {"/", LS__ENV_FOLDER, 0, 0, 0755, NULL},
    {"/usr", LS__ENV_FOLDER, 0, 0, 0775, NULL}, /* the group root */
    {"/usr/x.so", LS__ENV_FILE, 0, 0, 0644, NULL},
    {"/users", LS__ENV_FOLDER, 0, 0, 0755, NULL},
    {"/users/me", LS__ENV_FOLDER, SELF, SELF, 0775, NULL}, /* the private group */
    {"/users/me/x.so", LS__ENV_FILE, SELF, SELF, 0664, NULL},
    {"/users/me/open.so", LS__ENV_FILE, SELF, SELF, 0666, NULL},
    {"/users/me/team.so", LS__ENV_FILE, SELF, 77, 0664, NULL},
    {"/users/me/link", LS__ENV_LINK, SELF, SELF, 0777, "x.so"},
    {"/users/me/away", LS__ENV_LINK, SELF, SELF, 0777, "/team/me"},
    {"/users/me/round", LS__ENV_LINK, SELF, SELF, 0777, "round"},
    {"/users/you", LS__ENV_FOLDER, OTHER, OTHER, 0755, NULL},
    {"/users/you/mine.so", LS__ENV_FILE, SELF, SELF, 0644, NULL},
    {"/users/you/usr", LS__ENV_LINK, OTHER, OTHER, 0777, "/usr"},
    {"/team", LS__ENV_FOLDER, 0, 77, 0775, NULL},
    {"/team/me", LS__ENV_FOLDER, SELF, SELF, 0755, NULL},
    {"/team/me/x.so", LS__ENV_FILE, SELF, SELF, 0644, NULL},
    {"/open", LS__ENV_FOLDER, 0, 0, 0777, NULL},
    {"/open/x.so", LS__ENV_FILE, 0, 0, 0644, NULL},
    {"/tmp", LS__ENV_FOLDER, 0, 0, 01777, NULL},
    {"/tmp/me", LS__ENV_FOLDER, SELF, SELF, 0700, NULL},
    {"/tmp/me/x.so", LS__ENV_FILE, SELF, SELF, 0644, NULL},
    {"/tmp/lib", LS__ENV_FOLDER, OTHER, OTHER, 0755, NULL},
    {"/tmp/lib/x.so", LS__ENV_FILE, OTHER, OTHER, 0644, NULL},
    {"/tmp/to_lib", LS__ENV_LINK, SELF, SELF, 0777, "lib"},
    {"/tmp/usr", LS__ENV_LINK, OTHER, OTHER, 0777, "/usr"},
    {"/sw", LS__ENV_FOLDER, OTHER, OTHER, 0755, NULL},
    {"/sw/x.so", LS__ENV_FILE, OTHER, OTHER, 0644, NULL},
    {"/proc/self/cwd", LS__ENV_LINK, SELF, SELF, 0777, "/users/me"},
    {"/proc", LS__ENV_FOLDER, 0, 0, 0555, NULL},
    {"/proc/self", LS__ENV_FOLDER, SELF, SELF, 0555, NULL},
};

static uid_t owner_of_root; /* instead of 0 in all rows */

static const row *find(const char *path)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (strcmp(rows[i].path, path) == 0) {
            return &rows[i];
        }
    }
    return NULL;
}

static int made_up_stat(const ls__env *env, const char *path, bool follow, ls__env_stat *out)
{
    (void)env;
    const row *r = find(path);
    CHECK(!follow);
    if (r == NULL) {
        return -ENOENT;
    }
    *out = (ls__env_stat){.kind = r->kind, .mode = r->mode, .uid = r->uid, .gid = r->gid};
    if (owner_of_root != 0) {
        out->uid = r->uid == SELF ? SELF : owner_of_root; /* all others seem to be one */
        out->gid = r->gid == SELF ? SELF : owner_of_root;
    }
    return 0;
}

static int made_up_link(const ls__env *env, const char *path, char *out, size_t bytes)
{
    (void)env;
    return snprintf(out, bytes, "%s", find(path)->target);
}

static uid_t made_up_uid(const ls__env *env)
{
    (void)env;
    return SELF;
}

static const ls__env made_up = {
    .stat = made_up_stat, .read_link = made_up_link, .uid = made_up_uid};

static char real[LS__TRUSTED_PATH_MAX];
static ls__untrusted why;

static int trust(const char *path, uid_t also)
{
    return ls__trusted_path(&made_up, path, also, real, &why);
}

static void allowed(const char *path, const char *want)
{
    CHECK_INT(trust(path, SELF), 0);
    CHECK_STR(real, want);
}

static void refused(const char *path, const char *because)
{
    CHECK_INT(trust(path, SELF), -EPERM);
    CHECK_STR(why.path, because);
}

TEST(what_only_root_and_this_user_can_change_is_trusted)
{
    allowed("/", "/");
    allowed("/usr/x.so", "/usr/x.so");
    allowed("/users/me/x.so", "/users/me/x.so");
    allowed("//users/./me/../me//x.so", "/users/me/x.so");
    allowed("/users/me/link", "/users/me/x.so");
    allowed("x.so", "/users/me/x.so"); /* in the current folder */
    allowed("/tmp/me/x.so", "/tmp/me/x.so");
    CHECK_INT(trust("/users/me/none", SELF), -ENOENT);
    CHECK_INT(trust("/users/me/round", SELF), -ELOOP);
}

TEST(what_another_user_can_change_is_refused_with_the_place)
{
    refused("/tmp/lib/x.so", "/tmp/lib"); /* made by another user beside the program's folder */
    refused("/tmp/me/../lib/x.so", "/tmp/lib");
    refused("/tmp/to_lib/x.so", "/tmp/lib");
    refused("/tmp/usr/x.so", "/tmp/usr"); /* its owner may turn the link elsewhere */
    refused("/users/you/usr/x.so", "/users/you");
    refused("/users/you/mine.so", "/users/you"); /* who owns the folder may exchange it */
    refused("/team/me/x.so", "/team");
    refused("/users/me/away/x.so", "/team");
    refused("/open/x.so", "/open");
    refused("/users/me/open.so", "/users/me/open.so");
    refused("/users/me/team.so", "/users/me/team.so");
    CHECK_STATUS(ls__untrusted_fail(&made_up, "backend \"x\"", "/users/me/team.so", &why),
                 LS_ERR_SYSTEM);
    CHECK_SAYS(ls_error_message(),
               "%s: %s is not used, since another user could change it: %s belongs to uid %ld and "
               "has mode %04o; it must belong to root or to this user (uid %ld), and others must "
               "not be able to write there: correct this by chown and chmod go-w, or move the file "
               "to a folder of this user");
}

TEST(the_programs_owner_is_trusted_where_not_everybody_may_write)
{
    CHECK_INT(trust("/sw/x.so", OTHER), 0);
    CHECK_INT(trust("/tmp/lib/x.so", OTHER), -EPERM);
    CHECK_INT(trust("/tmp/to_lib/x.so", OTHER), -EPERM);
    CHECK_INT(trust("/tmp/me/../lib/x.so", OTHER), -EPERM);
}

/* Whoever can change a folder above the program can exchange the program. */
TEST(files_beside_a_program_are_trusted_as_far_as_it_is)
{
    CHECK_INT(ls__trusted_beside(&made_up, "/open/x.so", "/open/program", real, &why), 0);
    CHECK_INT(ls__trusted_beside(&made_up, "/open/x.so", "/opened/program", real, &why), -EPERM);
    CHECK_INT(ls__trusted_beside(&made_up, "/sw/x.so", "/sw/bin/program", real, &why), 0);
    CHECK_INT(ls__trusted_beside(&made_up, "/tmp/me/../me/x.so", "/tmp/me/program", real, &why), 0);
    CHECK_INT(ls__trusted_beside(&made_up, "/tmp/lib/x.so", "/tmp/me/program", real, &why), -EPERM);
    CHECK_STR(why.path, "/tmp/lib");
}

/* All other users seem to be one. */
TEST(without_a_root_of_its_own_a_namespace_trusts_the_owner_of_its_root_folder)
{
    owner_of_root = NOBODY;
    allowed("/usr", "/usr");
    allowed("/users/me/x.so", "/users/me/x.so");
    refused("/tmp/lib/x.so", "/tmp/lib");
    allowed("/tmp/me/x.so", "/tmp/me/x.so");
}

TEST(paths_that_are_too_long_are_an_error)
{
    static char path[2 * LS__TRUSTED_PATH_MAX];
    memset(path, '/', sizeof path - 1);
    CHECK_INT(trust(path, SELF), -ENAMETOOLONG);
    path[LS__TRUSTED_PATH_MAX - 1] = '\0';
    CHECK_INT(trust(path, SELF), 0);
}

TEST_MAIN
