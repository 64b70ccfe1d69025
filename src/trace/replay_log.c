/* SPDX-License-Identifier: Apache-2.0 */
/* Writes and reads a replay log. A table says which fields the lines of a kind have, in their
 * order; writing and reading follow it. */
#include "trace/replay_log.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/error.h"
#include "base/text.h"

#define MARK "# lockstep replay 1"
#define COMMAND "# command "
#define SHARDS "# shards "
#define END "# end " /* and how many events stand before it */
#define SHARDS_MAX 65536
#define LINE_MAX_BYTES 512 /* of an event; a header may be longer */
#define FILE_MAX_BYTES ((size_t)4 << 30)

typedef enum field_type {
    FIELD_INT,
    FIELD_COUNT,
    FIELD_VERSION,
    FIELD_WEIGHT,
    FIELD_HASH
} field_type;

typedef struct field {
    const char *name;
    field_type type;
    size_t at; /* in ls__replay_event */
} field;

#define AT(member) offsetof(ls__replay_event, member)

/* The fields of all kinds, and which of them each kind has: bit i is fields[i]. */
static const field fields[] = {
    {"round", FIELD_COUNT, AT(round)}, {"worker", FIELD_INT, AT(worker)},
    {"step", FIELD_COUNT, AT(step)},   {"weight", FIELD_WEIGHT, AT(weight)},
    {"read", FIELD_COUNT, AT(read)},   {"made", FIELD_VERSION, AT(made)},
    {"shard", FIELD_INT, AT(shard)},   {"hash", FIELD_HASH, AT(hash)},
};
#define FIELDS ((int)(sizeof fields / sizeof *fields))

static const struct {
    const char *name;
    unsigned has;
} kinds[] = {
    [LS__REPLAY_PUSH] = {"push", 0xf6},       /* all but round and weight */
    [LS__REPLAY_AVERAGE] = {"average", 0xaf}, /* all but read and shard */
    [LS__REPLAY_STAGE] = {"stage", 0xf4},     /* all but round, worker and weight */
};
#define KINDS ((int)(sizeof kinds / sizeof *kinds))

static bool has(ls__replay_kind kind, int index)
{
    return (kinds[kind].has >> index & 1) != 0;
}

/* ---- writing ------------------------------------------------------------------------------- */

static ls_status put(const ls__replay_writer *w, const char *text, size_t bytes)
{
    for (size_t at = 0; at < bytes;) {
        const ssize_t written = w->env->write(w->env, w->fd, text + at, bytes - at);
        if (written <= 0) {
            return ls__file_fail(written < 0 ? (int)written : -EIO, "replay log", "cannot write",
                                 w->path);
        }
        at += (size_t)written;
    }
    return LS_OK;
}

/* Of one line: a newline in a command is written as \n, and a backslash as two. */
static ls_status put_command(const ls__replay_writer *w, const char *command)
{
    LS_TRY(put(w, COMMAND, strlen(COMMAND)));
    while (*command != '\0') {
        const size_t plain = strcspn(command, "\\\n");
        LS_TRY(put(w, command, plain));
        command += plain;
        if (*command != '\0') {
            LS_TRY(put(w, *command == '\n' ? "\\n" : "\\\\", 2));
            command++;
        }
    }
    return put(w, "\n", 1);
}

static ls_status put_header(const ls__replay_writer *w, const char *command, int shards)
{
    char text[64];
    LS_TRY(put(w, MARK "\n", strlen(MARK "\n")));
    if (command != NULL) {
        LS_TRY(put_command(w, command));
    }
    (void)snprintf(text, sizeof text, SHARDS "%d\n", shards);
    return put(w, text, strlen(text));
}

ls_status ls__replay_open(ls__replay_writer *w, const ls__env *env, const char *path,
                          const char *command, int shards)
{
    int fd = -1;
    *w = (ls__replay_writer){.env = env, .path = path, .fd = fd};
    LS_TRY(ls__file_create_held(env, "replay log", path, &fd));
    w->fd = fd;
    w->open = true;
    const ls_status status = put_header(w, command, shards);
    if (status < 0) {
        env->close(env, fd);
        w->open = false;
    }
    return status;
}

static void add_field(ls__text *text, const field *f, const ls__replay_event *event)
{
    const char *at = (const char *)event + f->at;
    ls__text_add(text, " %s=", f->name);
    switch (f->type) {
    case FIELD_INT:
        ls__text_add(text, "%d", *(const int *)(const void *)at);
        return;
    case FIELD_WEIGHT: /* enough digits for the same number */
        ls__text_add(text, "%.17g", event->weight);
        return;
    case FIELD_HASH:
        if (event->hashed) {
            ls__text_add(text, "%016" PRIx64, event->hash);
        } else {
            ls__text_add(text, "-");
        }
        return;
    case FIELD_VERSION:
        if (event->made == LS__REPLAY_NONE) {
            ls__text_add(text, "-");
            return;
        }
        break;
    case FIELD_COUNT:
        break;
    }
    ls__text_add(text, "%" PRId64, *(const int64_t *)(const void *)at);
}

ls_status ls__replay_write(ls__replay_writer *w, const ls__replay_event *event)
{
    char line[LINE_MAX_BYTES] = "";
    ls__text text = {line, sizeof line};
    LS_ASSERT(w->open);
    ls__text_add(&text, "%s", kinds[event->kind].name);
    for (int i = 0; i < FIELDS; i++) {
        if (has(event->kind, i)) {
            add_field(&text, &fields[i], event);
        }
    }
    ls__text_add(&text, "\n");
    const ls_status status = put(w, line, strlen(line));
    if (status < 0) { /* the line may be there in part */
        ls__replay_leave(w);
    }
    w->events++;
    return status;
}

ls_status ls__replay_close(ls__replay_writer *w)
{
    char line[64];
    (void)snprintf(line, sizeof line, END "%" PRId64 "\n", w->events);
    const ls_status status = w->open ? put(w, line, strlen(line)) : LS_OK;
    ls__replay_leave(w);
    return status;
}

void ls__replay_leave(ls__replay_writer *w)
{
    if (w->open) {
        w->env->close(w->env, w->fd);
    }
    w->open = false;
}

/* ---- reading ------------------------------------------------------------------------------- */

typedef struct reading {
    const char *path;
    int64_t line;
    char *at, *end; /* what is left of the file */
    ls__replay_log *log;
} reading;

static ls_status fail_line(const reading *r, const char *what, const char *found,
                           const char *wanted)
{
    return ls__fail(LS_ERR_INVALID,
                    "replay log %s, line %lld: %s \"%.40s\"; %s: the file was cut or changed, "
                    "record it again",
                    r->path, (long long)r->line, what, found, wanted);
}

/* Takes the next line off, terminated; NULL with *status LS_OK: no whole line is left. */
static char *next_line(reading *r, ls_status *status)
{
    *status = LS_OK;
    if (r->at == r->end) {
        return NULL;
    }
    char *line = r->at, *newline = memchr(line, '\n', (size_t)(r->end - line));
    if (newline == NULL) {
        return NULL;
    }
    r->line++;
    *newline = '\0';
    r->at = newline + 1;
    if (memchr(line, '\0', (size_t)(newline - line)) != NULL) {
        *status = fail_line(r, "a byte 0 after", line, "a log is text");
        return NULL;
    }
    return line;
}

/* Digits only, so that each number has one spelling. */
static bool read_count(const char *text, int64_t most, int64_t *out)
{
    int64_t value = 0;
    if (*text == '\0' || strlen(text) > 18) { /* below 2^63 */
        return false;
    }
    for (; *text != '\0'; text++) {
        if (*text < '0' || *text > '9') {
            return false;
        }
        value = value * 10 + (*text - '0');
    }
    *out = value;
    return value <= most;
}

static bool read_hash(const char *text, ls__replay_event *event)
{
    event->hashed = strcmp(text, "-") != 0;
    if (!event->hashed) {
        return true;
    }
    event->hash = strtoull(text, NULL, 16);
    return strlen(text) == 16 && strspn(text, "0123456789abcdef") == 16;
}

static bool read_weight(const char *text, double *out)
{
    char *end = NULL;
    *out = strtod(text, &end);
    return end != text && *end == '\0' && *out >= 0.0 && !isinf(*out);
}

static bool read_value(const field *f, const char *text, ls__replay_event *event)
{
    char *at = (char *)event + f->at;
    int64_t number = 0;
    bool good = false;
    switch (f->type) {
    case FIELD_INT:
        good = read_count(text, INT32_MAX, &number);
        *(int *)(void *)at = (int)number;
        return good;
    case FIELD_WEIGHT:
        return read_weight(text, &event->weight);
    case FIELD_HASH:
        return read_hash(text, event);
    case FIELD_VERSION:
        if (strcmp(text, "-") == 0) {
            event->made = LS__REPLAY_NONE;
            return true;
        }
        break;
    case FIELD_COUNT:
        break;
    }
    return read_count(text, INT64_MAX, (int64_t *)(void *)at);
}

/* Takes the next word off; NULL at the end of the line. */
static char *next_word(char **line)
{
    char *word = *line, *space = word != NULL ? strchr(word, ' ') : NULL;
    if (space != NULL) {
        *space = '\0';
    }
    *line = space != NULL ? space + 1 : NULL;
    return word;
}

static ls_status read_field(const reading *r, const field *f, char *word, ls__replay_event *event)
{
    char wanted[64];
    const size_t name = strlen(f->name);
    (void)snprintf(wanted, sizeof wanted, "%s=… comes next", f->name);
    if (word == NULL || strncmp(word, f->name, name) != 0 || word[name] != '=') {
        return fail_line(r, "found", word != NULL ? word : "", wanted);
    }
    return read_value(f, word + name + 1, event)
               ? LS_OK
               : fail_line(r, "no value in", word, "counts are digits, and a hash has 16");
}

static ls_status read_event(const reading *r, char *line, ls__replay_event *event)
{
    const char *name = next_word(&line);
    int kind = 0;
    while (kind < KINDS && strcmp(kinds[kind].name, name) != 0) {
        kind++;
    }
    if (kind == KINDS) {
        return fail_line(r, "unknown event", name, "this version knows push, average and stage");
    }
    *event = (ls__replay_event){.kind = (ls__replay_kind)kind, .line = r->line};
    for (int i = 0; i < FIELDS; i++) {
        if (has(event->kind, i)) {
            LS_TRY(read_field(r, &fields[i], next_word(&line), event));
        }
    }
    if (line != NULL) {
        return fail_line(r, "found", line, "the event ends before it");
    }
    if (event->shard >= r->log->shards) {
        return fail_line(r, "too large a shard in", name, "the header says how many there are");
    }
    return LS_OK;
}

/* In place. */
static void unescape(char *text)
{
    char *to = text;
    for (; *text != '\0'; text++) {
        if (text[0] == '\\' && text[1] != '\0') {
            text++;
            *to++ = *text == 'n' ? '\n' : *text;
        } else {
            *to++ = *text;
        }
    }
    *to = '\0';
}

static ls_status read_header(reading *r)
{
    static char none[] = "";
    ls_status status = LS_OK;
    int64_t shards = 0;
    const char *mark = next_line(r, &status);
    LS_TRY(status);
    if (mark == NULL || strcmp(mark, MARK) != 0) {
        return ls__fail(
            LS_ERR_INVALID,
            "replay log %s: it begins with \"%.40s\", not with \"%s\"; give the file that "
            "--log-replay or ls_server_options.log named",
            r->path, mark != NULL ? mark : "", MARK);
    }
    char *line = next_line(r, &status);
    r->log->command = none;
    if (line != NULL && strncmp(line, COMMAND, strlen(COMMAND)) == 0) {
        r->log->command = line + strlen(COMMAND);
        unescape(r->log->command);
        line = next_line(r, &status);
    }
    LS_TRY(status);
    if (line == NULL || strncmp(line, SHARDS, strlen(SHARDS)) != 0 ||
        !read_count(line + strlen(SHARDS), SHARDS_MAX, &shards) || shards == 0) {
        return fail_line(r, "found", line != NULL ? line : "", "\"# shards N\" comes next");
    }
    r->log->shards = (int)shards;
    return LS_OK;
}

static ls_status read_end(const reading *r, const char *line)
{
    int64_t events = 0;
    const bool good = read_count(line + strlen(END), INT64_MAX, &events);
    if (!good || events != r->log->count) {
        return fail_line(r, "found", line, "as many events stand before it");
    }
    r->log->ended = true;
    return LS_OK;
}

static ls_status read_events(reading *r)
{
    ls__replay_log *log = r->log;
    ls_status status = LS_OK;
    size_t lines = 0;
    for (const char *at = r->at; at < r->end; at++) {
        lines += *at == '\n' ? 1 : 0;
    }
    log->bytes = (lines + 1) * sizeof *log->events;
    log->events = log->env->allocate(log->env, log->bytes);
    if (log->events == NULL) {
        return ls__fail(LS_ERR_MEMORY, "replay log %s: no memory for %zu events", r->path, lines);
    }
    for (char *line = next_line(r, &status); line != NULL; line = next_line(r, &status)) {
        if (log->ended) {
            return fail_line(r, "found", line, "the log has ended before it");
        }
        if (strncmp(line, END, strlen(END)) == 0) {
            LS_TRY(read_end(r, line));
            continue;
        }
        LS_TRY(read_event(r, line, &log->events[log->count]));
        log->count++;
    }
    return status;
}

static ls_status read_lines(reading *r)
{
    LS_TRY(read_header(r));
    return read_events(r);
}

ls_status ls__replay_read(const ls__env *env, const char *path, ls__replay_log *out)
{
    reading r = {.path = path, .log = out};
    *out = (ls__replay_log){.env = env};
    LS_TRY(ls__file_read(env, "replay log", path, FILE_MAX_BYTES, &out->file));
    r.at = (char *)out->file.data;
    r.end = r.at + out->file.bytes;
    const ls_status status = read_lines(&r);
    if (status < 0) {
        ls__replay_release(out);
    }
    return status;
}

void ls__replay_release(ls__replay_log *log)
{
    if (log->events != NULL) {
        log->env->release(log->env, log->events, log->bytes);
    }
    if (log->env != NULL) {
        ls__file_release(log->env, &log->file);
    }
    *log = (ls__replay_log){0};
}
