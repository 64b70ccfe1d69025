/* SPDX-License-Identifier: Apache-2.0 */
/* Reading and writing the file of cache.h. Only this file formats and parses its lines:
 *
 *     from HOST, 8 cores, tls, 2 channels, hosts 0,0,1,1<TAB>ring 81000 90000 ...<TAB>direct ...
 *
 * A line that does not parse is skipped, and it is dropped when the file is next written. */
#include "comm/tune/cache.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/settings.h"
#include "base/trusted.h"
#include "comm/algorithm/rules.h"
#include "comm/core/comm.h"
#include "comm/tune/tune.h"

#define HEAD "lockstep tuning 1\n"
#define FILE_BYTES_MAX ((size_t)64 << 10) /* some 300 entries; a full file starts afresh */
#define PATH_MAX_BYTES 512
#define LINE_MAX_BYTES (LS__TUNE_KEY_MAX + LS__TUNE_TIMED_MAX * 80)

/* The first place that is set, in the order of the XDG base directory specification. */
bool ls__tune_file(char *out, size_t bytes)
{
    const char *given = ls__setting_get("LOCKSTEP_TUNE_FILE");
    const char *cache = ls__setting_get("XDG_CACHE_HOME"), *home = ls__setting_get("HOME");
    int n = -1;
    if (given != NULL) {
        n = snprintf(out, bytes, "%s", given);
    } else if (cache != NULL && cache[0] == '/') {
        n = snprintf(out, bytes, "%s/lockstep/tuning", cache);
    } else if (home != NULL && home[0] == '/') {
        n = snprintf(out, bytes, "%s/.cache/lockstep/tuning", home);
    }
    return n > 0 && (size_t)n < bytes;
}

/* The start of a key: the host that measured, its cores, and the transport between hosts. Times of
 * one configuration say nothing about another. False: it does not fit, or the host's name would
 * break the format. */
static bool head_of(const ls__comm *comm, ls__text *out)
{
    char host[LS__HOST_NAME_MAX] = "";
    const char *plane = ls__setting_get("LOCKSTEP_DATA_PLANE");
    const bool pretended = ls__setting_get("LOCKSTEP_HOSTS") != NULL;
    if (comm->env->host_name(comm->env, host, sizeof host) < 0 || strpbrk(host, "\t\n") != NULL) {
        return false;
    }
    ls__text_add(out, "from %s, %d cores, %s, %d channels, hosts", host,
                 comm->env->cores(comm->env),
                 pretended       ? "pretended"
                 : plane != NULL ? plane
                                 : "tls",
                 comm->channels);
    return out->room > 1;
}

/* A whole key: the head and the host number of every rank of the group. */
static bool key_of(const ls__comm *comm, const ls__layout *layout, ls__text *out)
{
    const bool sound = head_of(comm, out);
    for (int r = 0; r < layout->size; r++) {
        ls__text_add(out, "%s%d", r > 0 ? "," : " ", layout->host[r]);
    }
    return sound && out->room > 1;
}

/* Parses the host numbers at the end of a key. The text comes from a file that anybody may have
 * edited, so numbers and counts are checked. */
bool ls__tune_key_layout(const char *key, ls__layout *out)
{
    const char *at = strstr(key, " hosts ");
    memset(out, 0, sizeof *out);
    for (at = at != NULL ? at + 7 : NULL; at != NULL; at = *at == ',' ? at + 1 : NULL) {
        char *end = NULL;
        const long host = strtol(at, &end, 10);
        if (end == at || host < 0 || host >= LS__TUNE_RANKS_MAX ||
            out->size == LS__TUNE_RANKS_MAX) {
            return false;
        }
        out->host[out->size++] = (int)host;
        at = end;
    }
    return out->size >= 2;
}

/* Parses "NAME ns ns ns" up to the next tab and enters the times. False: the text has another form,
 * or `timings` does not hold an algorithm of this name (it may be from another version). */
static bool read_one(const char *text, ls__timings *timings)
{
    const size_t length = strcspn(text, " \t");
    int found = -1;
    for (int i = 0; i < timings->count; i++) {
        const char *name = timings->of[i].algorithm->name;
        found = strlen(name) == length && memcmp(name, text, length) == 0 ? i : found;
    }
    for (int class = 0; class < LS__TUNE_CLASSES && found >= 0; class ++) {
        char *stop = NULL;
        const double ns = class == 0 ? strtod(text + length, &stop) : strtod(text, &stop);
        if (stop == text || !(ns >= 0 && ns < 1e15)) {
            return false;
        }
        timings->of[found].ns[class] = ns;
        text = stop;
    }
    return found >= 0;
}

/* Entries of unknown algorithms are skipped; the others still count. */
bool ls__tune_read_times(const char *times, ls__timings *timings)
{
    bool any = false;
    for (const char *at = times; at != NULL; at = strchr(at, '\t')) {
        at += *at == '\t' ? 1 : 0;
        any = read_one(at, timings) || any;
    }
    return any;
}

/* Splits a line of the file into its key and its times and calls each(). A line without a key is
 * skipped. */
static void read_line(const char *line, size_t length,
                      void (*each)(void *arg, const char *key, const char *times), void *arg)
{
    char text[LINE_MAX_BYTES];
    if (length >= sizeof text) {
        return;
    }
    memcpy(text, line, length);
    text[length] = '\0';
    char *tab = strchr(text, '\t'); /* ends the key */
    if (tab != NULL && tab - text < LS__TUNE_KEY_MAX) {
        *tab = '\0';
        each(arg, text, tab + 1);
    }
}

/* Where other users cannot change the file, `real` is its path without links. They could make every
 * job of this user slow. /dev/null is a way to ask for no times, so it needs no warning. */
static bool is_trusted(const ls__env *env, const char *path, char real[LS__TRUSTED_PATH_MAX])
{
    static _Atomic bool said;
    ls__untrusted why;
    ls__env_stat found;
    if (env->stat(env, path, true, &found) < 0 || found.kind != LS__ENV_FILE) {
        return false;
    }
    const int error = ls__trusted_path(env, path, env->uid(env), real, &why);
    if (error == -EPERM && !atomic_exchange_explicit(&said, true, memory_order_relaxed)) {
        (void)ls__untrusted_fail(env, "times of `lockstep tune`", path, &why);
        LS__WARN("%s", ls_error_message());
    }
    return error == 0;
}

/* Maps the file, so it needs no buffer of the file's size. Another version of the format, known by
 * its first line, counts as no file. */
bool ls__tune_each(const ls__env *env, const char *path,
                   void (*each)(void *arg, const char *key, const char *times), void *arg)
{
    void *memory = NULL;
    size_t bytes = 0;
    char real[LS__TRUSTED_PATH_MAX];
    if (!is_trusted(env, path, real) || env->map_file(env, real, &memory, &bytes) < 0 ||
        memory == NULL) {
        return false;
    }
    const size_t head = sizeof HEAD - 1;
    const bool ours = bytes >= head && bytes <= FILE_BYTES_MAX && memcmp(memory, HEAD, head) == 0;
    const char *at = (const char *)memory + head, *end = (const char *)memory + bytes;
    while (ours && at < end) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        read_line(at, (size_t)((stop != NULL ? stop : end) - at), each, arg);
        at = stop != NULL ? stop + 1 : end;
    }
    env->unmap_file(env, memory, bytes);
    return ours;
}

/* ---- reading ------------------------------------------------------------------------------ */

/* Collects the lines whose key begins with `head`. */
typedef struct selection {
    ls__text out;
    const char *head;
} selection;

/* Takes the line if it was timed from this host with this configuration and still fits whole. */
static void add_of_head(void *arg, const char *key, const char *times)
{
    selection *s = arg;
    const size_t line = strlen(key) + strlen(times) + 2;
    if (strncmp(key, s->head, strlen(s->head)) == 0 && line < s->out.room) {
        ls__text_add(&s->out, "%s\t%s\n", key, times);
    }
}

/* Errors are not reported: without the file the model's default figures serve. */
void ls__tune_read_file(const ls__comm *comm, char *out, size_t bytes)
{
    char path[PATH_MAX_BYTES], head[LS__TUNE_KEY_MAX];
    ls__text text = {.at = head, .room = sizeof head};
    selection s = {.out = {.at = out, .room = bytes}, .head = head};
    out[0] = '\0';
    if (ls__tune_file(path, sizeof path) && head_of(comm, &text)) {
        (void)ls__tune_each(comm->env, path, add_of_head, &s);
    }
}

/* Looks for the line that fits a layout best. */
typedef struct search {
    const ls__layout *layout;
    const ls__env *env;
    ls__timings *timings;
    ls__figures *figures;
    bool found; /* a line of any layout was used */
    bool same;  /* a line of this layout was used */
} search;

/* A line of the same layout gives its times and its figures. Until one is found, the first line of
 * any layout gives its figures only. */
static void match(void *arg, const char *key, const char *times)
{
    search *s = arg;
    ls__layout layout;
    ls__timings timings;
    if (s->same || !ls__tune_key_layout(key, &layout)) {
        return;
    }
    const bool same = layout.size == s->layout->size &&
                      memcmp(layout.host, s->layout->host, sizeof layout.host) == 0;
    if ((same || !s->found) && ls__timings_init(&timings, &layout, s->env) == LS_OK &&
        ls__tune_read_times(times, &timings)) {
        s->found = true;
        s->same = same;
        ls__tune_fit(&timings, s->figures);
        if (same) {
            *s->timings = timings;
        }
    }
}

/* `text` is what rank 0 shared, so all ranks parse the same bytes and obtain the same figures. */
bool ls__tune_figures(const char *text, const ls__layout *layout, const ls__env *env,
                      ls__timings *timings, ls__figures *figures)
{
    search s = {.layout = layout, .env = env, .timings = timings, .figures = figures};
    *figures = ls__tune_default_figures;
    for (const char *at = text; *at != '\0';) {
        const size_t length = strcspn(at, "\n");
        read_line(at, length, match, &s);
        at += length + (at[length] == '\n' ? 1 : 0);
    }
    return s.found;
}

/* ---- writing ------------------------------------------------------------------------------ */

/* Copies the entries of the old file into the text of the new one. */
typedef struct copy {
    ls__text out;
    const char *except; /* the key that is not copied */
} copy;

/* Keeps an entry of the old file, except the one that is about to be replaced. */
static void add(void *arg, const char *key, const char *times)
{
    copy *c = arg;
    if (strcmp(key, c->except) != 0) {
        ls__text_add(&c->out, "%s\t%s\n", key, times);
    }
}

/* Formats the new entry in the form that read_one() parses. */
static void add_new(ls__text *out, const char *key, const ls__timings *timings)
{
    ls__text_add(out, "%s", key);
    for (int i = 0; i < timings->count; i++) {
        ls__text_add(out, "\t%s", timings->of[i].algorithm->name);
        for (int class = 0; class < LS__TUNE_CLASSES; class ++) {
            ls__text_add(out, " %.0f", timings->of[i].ns[class]);
        }
    }
    ls__text_add(out, "\n");
}

/* Creates the folders on the way to the file. Errors show when the file is opened. */
static void make_folders(const ls__env *env, const char *path)
{
    char folder[PATH_MAX_BYTES];
    for (const char *slash = strchr(path + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        memcpy(folder, path, (size_t)(slash - path));
        folder[slash - path] = '\0';
        (void)env->make_folder(env, folder);
    }
}

/* Writes a temporary file and renames it, so that another job that reads the file at the same time
 * sees either the old or the new one as a whole. */
static int replace(const ls__env *env, const char *path, const char *text)
{
    char temporary[PATH_MAX_BYTES + 32];
    snprintf(temporary, sizeof temporary, "%s.%d", path, (int)env->pid(env));
    const int fd = ls__file_create(env, temporary, 0600);
    if (fd < 0) {
        return fd;
    }
    const size_t length = strlen(text);
    const ssize_t n = env->write(env, fd, text, length);
    (void)env->close(env, fd);
    int status = n == (ssize_t)length ? env->rename(env, temporary, path)
                 : n < 0              ? (int)n
                                      : -ENOSPC;
    if (status < 0) {
        (void)env->remove_file(env, temporary);
    }
    return status;
}

/* Formats the new content of the file: the other entries, then the new one. When the old ones leave
 * no room for it, only the new one is kept. */
static void put_all(const ls__env *env, const char *path, const char *key,
                    const ls__timings *timings, char *text)
{
    copy c = {.out = {.at = text, .room = FILE_BYTES_MAX}, .except = key};
    ls__text_add(&c.out, "%s", HEAD);
    (void)ls__tune_each(env, path, add, &c);
    if (c.out.room < (size_t)LINE_MAX_BYTES) {
        c.out = (ls__text){.at = text, .room = FILE_BYTES_MAX};
        ls__text_add(&c.out, "%s", HEAD);
    }
    add_new(&c.out, key, timings);
}

ls_status ls__tune_keep(const ls__comm *comm, const ls__layout *layout, const ls__timings *timings)
{
    const ls__env *env = comm->env;
    char path[PATH_MAX_BYTES], key[LS__TUNE_KEY_MAX];
    ls__text name = {.at = key, .room = sizeof key};
    if (!ls__tune_file(path, sizeof path) || !key_of(comm, layout, &name)) {
        return ls__fail(
            LS_ERR_INVALID,
            "no file is known for the times, since HOME is not set; set LOCKSTEP_TUNE_FILE to "
            "a file");
    }
    char *text = env->allocate(env, FILE_BYTES_MAX);
    if (text == NULL) {
        return ls__fail(LS_ERR_MEMORY, "no memory (%zu bytes) for writing the tuning file",
                        FILE_BYTES_MAX);
    }
    put_all(env, path, key, timings, text);
    make_folders(env, path);
    const int status = replace(env, path, text);
    env->release(env, text, FILE_BYTES_MAX);
    return status >= 0 ? LS_OK
                       : ls__fail(LS_ERR_SYSTEM,
                                  "cannot write the times to %s: %s; set LOCKSTEP_TUNE_FILE to "
                                  "another file",
                                  path, strerror(-status));
}
