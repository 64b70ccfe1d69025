/* SPDX-License-Identifier: Apache-2.0 */
/* Finding, loading and checking a plug-in. A table is used only if it is whole: nothing that it
 * promises may be missing, so no call has to look for a NULL again.
 *
 * Libraries are never unloaded from memory: those that plug-ins are made for (MPI) leave threads
 * and handlers behind. */
#include "comm/backend/plugin.h"
#include "comm/backend/mpi_choice.h"
#include "comm/backend/plugin_folder.h"
#include "comm/core/backend.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <lockstep/runtime.h>

#include "base/assert.h"
#include "base/error.h"
#include "base/runtime.h"
#include "base/settings.h"
#include "base/text.h"

#define LOAD (RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)
#define EVERY_KIND ((1u << (LS_BACKEND_SCATTER_V + 1)) - 1)

const ls_backend_capabilities ls__native_can = {
    .size = sizeof ls__native_can,
    .flags = LS_BACKEND_CANONICAL | LS_BACKEND_ABORTABLE | LS_BACKEND_REGISTERED |
             LS_BACKEND_USER_OPS | LS_BACKEND_PROGRAMS,
    .memory = LS_BACKEND_HOST,
    .operations = EVERY_KIND & ~(1u << 4), /* 4 is the barrier */
    .dtypes = (1u << LS_DTYPE_COUNT) - 1,
    .reduce_ops = (1u << LS_REDUCE_OP_COUNT) - 1};

/* ---- finding ------------------------------------------------------------------------------ */

/* Whether this is the folder of a build, which has its library in "src". */
static bool is_build(const char *folder)
{
    char inner[LS__BACKEND_PATH_MAX];
    snprintf(inner, sizeof inner, "%s/src/" LS__PLUGIN_FOLDER, folder);
    return access(inner, F_OK) == 0;
}

/* The file that holds this code: the library, or a program that contains it, such as the
 * command. */
static bool own_file(char *out, size_t bytes, bool *library)
{
    Dl_info info = {0};
    (void)dladdr((const void *)&ls__native_can, &info);
    *library = info.dli_fname != NULL && strstr(info.dli_fname, ".so") != NULL;
    if (*library) {
        snprintf(out, bytes, "%s", info.dli_fname);
        return true;
    }
    const ssize_t length = readlink("/proc/self/exe", out, bytes - 1);
    out[length > 0 ? length : 0] = '\0';
    return length > 0;
}

/* The folder "lockstep/backends" beside the library; for a program that contains the library, where
 * the installation or the build has it. Resolved, since messages show it. */
static bool own_folder(char *out, size_t bytes)
{
    char self[LS__BACKEND_PATH_MAX - 64], beside[LS__BACKEND_PATH_MAX];
    bool library = false;
    if (!own_file(self, sizeof self, &library)) {
        return false;
    }
    char *slash = strrchr(self, '/');
    if (slash == NULL) {
        return false;
    }
    *slash = '\0';
    const char *inner = library ? "" : is_build(self) ? "src/" : LS__PROGRAM_TO_LIBRARY "/";
    (void)snprintf(beside, sizeof beside, "%s/%s", self, inner);
    char *resolved = realpath(beside, NULL);
    const int length = snprintf(out, bytes, "%s/" LS__PLUGIN_FOLDER, resolved ? resolved : beside);
    free(resolved);
    return length < (int)bytes;
}

/* First those of LOCKSTEP_BACKEND_PATH, separated by colons, then the library's own. */
bool ls__plugin_folder(int i, char *out, size_t bytes)
{
    const char *at = ls__setting_get("LOCKSTEP_BACKEND_PATH");
    for (; at != NULL && *at != '\0'; at += at[0] == ':' ? 1 : 0) {
        const size_t length = strcspn(at, ":");
        if (length > 0 && length < bytes && i-- == 0) {
            memcpy(out, at, length);
            out[length] = '\0';
            return true;
        }
        at += length;
    }
    return i == 0 && own_folder(out, bytes);
}

/* ---- whom to trust ------------------------------------------------------------------------ */

/* Who owns the running code can do all that a plug-in can. A path that depends on the current
 * folder says nothing about the owner. */
static uid_t owner_of_code(void)
{
    char self[LS__BACKEND_PATH_MAX];
    struct stat about;
    bool library = false;
    const bool known =
        own_file(self, sizeof self, &library) && self[0] == '/' && stat(self, &about) == 0;
    return known ? about.st_uid : geteuid();
}

ls_status ls__plugin_check_place(const char *what, const char *path,
                                 char real[LS__TRUSTED_PATH_MAX])
{
    ls__untrusted why;
    const ls__env *env = ls__env_posix();
    const int error = ls__trusted_path(env, path, owner_of_code(), real, &why);
    if (error == -EPERM) {
        return ls__untrusted_fail(env, what, path, &why);
    }
    return error < 0
               ? ls__fail(LS_ERR_NOT_FOUND, "%s cannot be loaded: %.300s", what, strerror(-error))
               : LS_OK;
}

/* Opens a file that other users cannot change; NULL with the reason. */
static void *open_file(const char *asked, const char *path)
{
    char real[LS__TRUSTED_PATH_MAX], what[LS__BACKEND_PATH_MAX + 16];
    void *library = NULL;
    snprintf(what, sizeof what, "backend \"%s\"", asked);
    if (ls__plugin_check_place(what, path, real) == LS_OK) {
        library = dlopen(real, LOAD);
        if (library == NULL) {
            (void)ls__fail(LS_ERR_UNSUPPORTED, "backend \"%s\": %s cannot be loaded: %.300s", asked,
                           path, dlerror());
        }
    }
    return library;
}

/* ---- opening ------------------------------------------------------------------------------ */

static bool is_name(const char *asked)
{
    const size_t length = strspn(asked, "abcdefghijklmnopqrstuvwxyz0123456789_");
    return length > 0 && length < LS__BACKEND_NAME_MAX && asked[length] == '\0';
}

/* Opens the first file of the name that exists. A file that exists and cannot be loaded is an error
 * of its own: looking further would hide it. */
static void *open_named(const char *name, ls__plugin *out)
{
    char folder[LS__BACKEND_PATH_MAX - 64], looked[512] = "";
    ls__text list = {looked, sizeof looked};
    for (int i = 0; ls__plugin_folder(i, folder, sizeof folder); i++) {
        snprintf(out->path, sizeof out->path, "%s/" LS__BACKEND_FILE, folder, name);
        if (access(out->path, F_OK) == 0) {
            return open_file(name, out->path);
        }
        ls__text_add(&list, "%s%s", i == 0 ? "" : ", ", folder);
    }
    (void)ls__fail(LS_ERR_NOT_FOUND,
                   "backend \"%s\": there is no ls_backend_%s.so in %s; install the plug-in, or "
                   "give its folder in LOCKSTEP_BACKEND_PATH, or its path as the backend",
                   name, name, looked);
    return NULL;
}

static void *open_library(const char *asked, ls__plugin *out)
{
    if (strchr(asked, '/') == NULL) {
        if (is_name(asked)) {
            return open_named(asked, out);
        }
        (void)ls__fail(
            LS_ERR_INVALID,
            "backend \"%.100s\" is neither a name (lower-case letters, digits and _) nor "
            "a path with a \"/\"",
            asked);
        return NULL;
    }
    snprintf(out->path, sizeof out->path, "%s", asked);
    return open_file(asked, asked);
}

/* ---- checking ----------------------------------------------------------------------------- */

/* The first function that the table lacks though every plug-in has it; NULL: it is whole. */
static const char *missing(const ls_backend *t)
{
    return t->name == NULL       ? "name"
           : t->describe == NULL ? "describe"
           : t->open == NULL     ? "open"
           : t->connect == NULL  ? "connect"
           : t->close == NULL    ? "close"
           : t->start == NULL    ? "start"
           : t->test == NULL     ? "test"
                                 : NULL;
}

static bool is_whole(const ls_backend_transport *t)
{
    return t != NULL && t->size >= sizeof *t && t->open != NULL && t->connect != NULL &&
           t->send != NULL && t->receive != NULL && t->poll != NULL && t->close != NULL;
}

/* A promise that the table cannot keep; NULL: there is none. */
static const char *broken_promise(const ls_backend *t, const ls_backend_capabilities *can)
{
    const uint32_t messages = 1u << LS_BACKEND_SEND | 1u << LS_BACKEND_RECV;
    const uint32_t both = can->operations & messages;
    if ((can->flags & LS_BACKEND_ABORTABLE) != 0 && t->abort == NULL) {
        return "promises to abort, and has no \"abort\"";
    }
    if ((can->flags & LS_BACKEND_REGISTERED) != 0 && (t->alloc == NULL || t->dealloc == NULL)) {
        return "promises registered memory, and has no \"alloc\" or no \"dealloc\"";
    }
    if ((can->flags & LS_BACKEND_STREAMS) != 0 &&
        (t->mark == NULL || t->unmark == NULL || t->follow == NULL || t->zero == NULL)) {
        return "promises streams, and lacks one of \"mark\", \"unmark\", \"follow\" and \"zero\"";
    }
    if ((can->memory & LS_BACKEND_HOST) == 0 && (can->flags & LS_BACKEND_SCALES) == 0) {
        return "has no host memory, and does not promise to scale";
    }
    if ((can->flags & LS_BACKEND_PROGRAMS) != 0 && !is_whole(t->transport)) {
        return "promises to run programs, and has no whole \"transport\"";
    }
    if (both != 0 && both != messages) {
        return "carries one of send and recv without the other";
    }
    return can->address_bytes > LS_BACKEND_ADDRESS_MAX ? "needs more bytes for an address than "
                                                         "LS_BACKEND_ADDRESS_MAX"
                                                       : NULL;
}

/* `t` is what the plug-in returned. */
static ls_status check_table(const char *asked, const ls__plugin *p, const ls_backend *t)
{
    if (t == NULL || t->version != LS_BACKEND_VERSION) {
        return ls__fail(LS_ERR_UNSUPPORTED,
                        "backend \"%s\": %s is of another version than %d; build it with this "
                        "library's lockstep/backend.h",
                        asked, p->path, LS_BACKEND_VERSION);
    }
    const char *lacks = t->size < LS_BACKEND_LEAST_SIZE ? "the end of its table" : missing(t);
    if (lacks != NULL) {
        return ls__fail(LS_ERR_UNSUPPORTED,
                        "backend \"%s\": %s is incomplete, it lacks %s; install a complete build",
                        asked, p->path, lacks);
    }
    return LS_OK;
}

static uint32_t clamp(uint32_t value, uint32_t least, uint32_t most)
{
    return value < least ? least : value > most ? most : value;
}

static ls_status ask(const char *asked, ls__plugin *p)
{
    char error[LS_BACKEND_ERROR_MAX] = "";
    p->can = (ls_backend_capabilities){.size = sizeof p->can};
    const ls_status status = p->table->describe(&p->can, error);
    if (status > 0) {
        return ls__user_status(status, "backend \"%s\" (%s): describe", asked, p->path);
    }
    if (status != LS_OK) {
        return ls__fail(status, "backend \"%s\" (%s) cannot be used by this process: %s", asked,
                        p->path, error);
    }
    const char *broken = broken_promise(p->table, &p->can);
    if (broken != NULL) {
        return ls__fail(LS_ERR_UNSUPPORTED, "backend \"%s\": %s %s; install a complete build",
                        asked, p->path, broken);
    }
    p->can.poll_us = clamp(p->can.poll_us, LS__BACKEND_POLL_MIN_US, LS__BACKEND_POLL_MAX_US);
    return LS_OK;
}

ls_status ls__plugin_load(const char *asked, ls__plugin *out)
{
    char chosen[LS__BACKEND_PATH_MAX];
    LS_ASSERT(!ls__backend_is_native(asked));
    memset(out, 0, sizeof *out);
    snprintf(out->asked, sizeof out->asked, "%s", asked);
    if (strcmp(asked, LS__BACKEND_MPI) == 0) {
        LS_TRY(ls__mpi_choose(chosen, sizeof chosen));
        asked = chosen;
    }
    void *library = open_library(asked, out);
    if (library == NULL) {
        return ls__self.status;
    }
    ls_backend_plugin_fn plugin = NULL;
    void *symbol = dlsym(library, LS_BACKEND_SYMBOL);
    if (symbol == NULL) {
        return ls__fail(LS_ERR_UNSUPPORTED,
                        "backend \"%s\": %s is no plug-in, it does not export ls_backend_plugin",
                        asked, out->path);
    }
    memcpy(&plugin, &symbol, sizeof plugin); /* ISO C does not convert them */
    const ls_backend *table = plugin(LS_BACKEND_VERSION);
    LS_TRY(check_table(asked, out, table));
    memcpy(&out->filled, table, table->size < sizeof *table ? table->size : sizeof *table);
    out->table = &out->filled;
    return ask(asked, out);
}

void ls__plugin_unload(ls__plugin *plugin, bool failed)
{
    if (plugin->table->unload != NULL) {
        plugin->table->unload(failed);
    }
}
