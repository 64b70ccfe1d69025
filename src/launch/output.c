/* SPDX-License-Identifier: Apache-2.0 */
/* Whole lines, "[2] " before each, from many pipes to one terminal.
 *
 *     rank 0 out ─▶ stream ─┐            ┌─▶ sink 1 ─▶ our stdout
 *     rank 0 err ─▶ stream ─┼─ lines ────┼─▶ sink 2 ─▶ our stderr
 *     rank 1 out ─▶ stream ─┘            └─▶ files, tails
 *
 * A sink writes at most PIPE_PIECE bytes and only when poll says that it can, so a reader that
 * stands still does not stop the agent. When a sink is full its ranks are not read: they wait, as
 * they would on a pipe of their own. When its reader is gone their pipes are closed, and they get
 * SIGPIPE, as they would.
 *
 * Live lines. On a terminal a carriage return begins an update of the line: the last such line is
 * kept at the bottom, other ranks' lines are put above it.
 */
#include "launch/output.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/file.h"
#include "base/log.h"

#define LINE_BYTES_MAX ((size_t)64 << 10) /* a longer one is written in several */
#define LINE_BYTES_FIRST 1024             /* of memory; doubled as lines require it */
#define PREFIX_BYTES_MAX 16
#define READ_BYTES 8192
#define SINK_BYTES_MAX ((size_t)1 << 20)
#define SINK_BYTES_FULL ((size_t)256 << 10) /* above it ranks are not read */
#define PIPE_PIECE 4096                     /* PIPE_BUF: a pipe that polls writable takes it */
#define TAIL_BYTES 2048
#define PATH_BYTES 4096
#define LIVE_BYTES 512
#define CLEAR_LINE "\r\033[K"

/* One pipe of a rank: the line that is being read, and the log of all bytes. */
typedef struct stream {
    int fd;     /* -1: ended */
    int log_fd; /* -1: none */
    int rank, which;
    size_t length;
    bool returned;  /* a carriage return stands at the end of `line` */
    bool live;      /* this line has been updated */
    bool displayed; /* what stands in `line` is the live line */
    size_t room;    /* of `line` */
    char *line;
} stream;

/* One of our outputs: the bytes that wait to be written, data[start, end), and the live line
 * that stands at the bottom of the terminal. */
typedef struct sink {
    int fd;
    bool terminal, broken, warned;
    size_t start, end;
    char *data;              /* [SINK_BYTES_MAX] */
    const stream *live_from; /* whose live line stands at the bottom; NULL: none */
    char live[LIVE_BYTES];
} sink;

struct ls__output {
    const ls__env *env;
    int ranks, first_rank;
    bool prefix;
    bool cut; /* a log is not whole */
    char log_dir[PATH_BYTES];
    sink sink[2];
    stream *streams; /* [ranks * 2] */
    char (*tails)[TAIL_BYTES];
};

/* ---- life ---------------------------------------------------------------------------------- */

/* A descriptor, or -errno. */
static int open_log(const ls__env *env, const char *folder, int r, int which)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%d", folder, r);
    int error = env->make_folder(env, path);
    if (error < 0) {
        return error;
    }
    int length =
        snprintf(path, sizeof path, "%s/%d/%s.log", folder, r, which ? "stderr" : "stdout");
    if (length < 0 || (size_t)length >= sizeof path) {
        return -ENAMETOOLONG;
    }
    return ls__file_create(env, path, 0666);
}

/* Makes a folder with its parents, as mkdir -p. */
static int make_path(const ls__env *env, const char *folder)
{
    char path[4096];
    int error = 0;
    size_t length = strlen(folder);
    if (length >= sizeof path) {
        return -ENAMETOOLONG;
    }
    for (size_t end = 1; error >= 0 && end <= length; end++) {
        if (folder[end] == '/' || end == length) {
            snprintf(path, sizeof path, "%.*s", (int)end, folder);
            error = env->make_folder(env, path);
        }
    }
    return error;
}

/* Opens the log of every stream. On failure ls__output_free closes those that are open. */
static ls_status open_logs(ls__output *output, const char *folder)
{
    const ls__env *env = output->env;
    int error = make_path(env, folder);
    snprintf(output->log_dir, sizeof output->log_dir, "%s", folder);
    for (int i = 0; error >= 0 && i < 2 * output->ranks; i++) {
        stream *s = &output->streams[i];
        s->log_fd = open_log(env, folder, output->first_rank + s->rank, s->which);
        error = s->log_fd < 0 ? s->log_fd : 0;
    }
    return error < 0
               ? ls__fail(LS_ERR_SYSTEM, "--log-dir %s: %s; give a folder that can be written",
                          folder, strerror(-error))
               : LS_OK;
}

/* Streams of one rank are neighbours: standard output, then standard error. False: no memory. */
static bool init_stream(const ls__env *env, stream *s, int index)
{
    s->fd = s->log_fd = -1;
    s->rank = index / 2;
    s->which = index % 2;
    s->line = env->allocate(env, LINE_BYTES_FIRST);
    s->room = LINE_BYTES_FIRST;
    return s->line != NULL;
}

/* The env table's memory is not cleared. */
static void *zeroed(const ls__env *env, size_t bytes)
{
    void *memory = env->allocate(env, bytes);
    if (memory != NULL) {
        memset(memory, 0, bytes);
    }
    return memory;
}

/* On failure ls__output_free releases the parts that exist. */
static bool allocate_parts(ls__output *output)
{
    const ls__env *env = output->env;
    size_t count = 2 * (size_t)output->ranks;
    output->streams = zeroed(env, count * sizeof(stream));
    output->tails = zeroed(env, (size_t)output->ranks * TAIL_BYTES);
    for (int i = 0; i < 2; i++) {
        sink *s = &output->sink[i];
        s->fd = i + 1;
        s->terminal = env->is_terminal(env, s->fd);
        s->data = env->allocate(env, SINK_BYTES_MAX);
        s->broken = s->data == NULL;
    }
    bool all = output->streams != NULL && output->tails != NULL && !output->sink[0].broken &&
               !output->sink[1].broken;
    for (size_t i = 0; output->streams != NULL && i < count; i++) {
        all = init_stream(env, &output->streams[i], (int)i) && all;
    }
    return all;
}

/* All or nothing: on failure everything is released, and *out is not set. */
ls_status ls__output_new(const ls__env *env, const ls__output_spec *spec, ls__output **out)
{
    int ranks = spec->ranks;
    ls__output *output = zeroed(env, sizeof *output);
    if (output == NULL) {
        return ls__fail(LS_ERR_MEMORY, "no memory for the output of %d ranks", ranks);
    }
    output->env = env;
    output->ranks = ranks;
    output->first_rank = spec->first_rank;
    output->prefix = spec->prefix;
    ls_status status = LS_OK;
    if (!allocate_parts(output)) {
        status = ls__fail(LS_ERR_MEMORY, "no memory for the output of %d ranks", ranks);
    }
    if (status == LS_OK && spec->log_dir != NULL) {
        status = open_logs(output, spec->log_dir);
    }
    if (status < 0) {
        ls__output_free(output);
        return status;
    }
    *out = output;
    return LS_OK;
}

/* Closes descriptors without writing what is pending: ls__output_end comes first. */
void ls__output_free(ls__output *output)
{
    if (output == NULL) {
        return;
    }
    const ls__env *env = output->env;
    size_t count = 2 * (size_t)output->ranks;
    for (size_t i = 0; output->streams != NULL && i < count; i++) {
        stream *s = &output->streams[i];
        if (s->fd >= 0) {
            env->close(env, s->fd);
        }
        if (s->log_fd >= 0) {
            env->close(env, s->log_fd);
        }
        if (s->line != NULL) {
            env->release(env, s->line, s->room);
        }
    }
    for (int i = 0; i < 2; i++) {
        if (output->sink[i].data != NULL) {
            env->release(env, output->sink[i].data, SINK_BYTES_MAX);
        }
    }
    if (output->streams != NULL) {
        env->release(env, output->streams, count * sizeof(stream));
    }
    if (output->tails != NULL) {
        env->release(env, output->tails, (size_t)output->ranks * TAIL_BYTES);
    }
    env->release(env, output, sizeof *output);
}

/* Once per stream: a rank is started once per attempt, and each attempt has its own output. */
void ls__output_attach(ls__output *output, int r, int which, int fd)
{
    LS_ASSERT(r >= 0 && r < output->ranks && output->streams[2 * r + which].fd < 0);
    output->streams[2 * r + which].fd = fd;
}

bool ls__output_live(const ls__output *output)
{
    return output->sink[0].terminal;
}

/* ---- sinks --------------------------------------------------------------------------------- */

/* Where the lines of a stream go. If both outputs are terminals they share one sink, so that a
 * live line stays at the bottom. */
static sink *sink_of(ls__output *output, const stream *s)
{
    bool one = output->sink[0].terminal && output->sink[1].terminal;
    return &output->sink[one ? 0 : s->which];
}

/* Appends to a sink. There is room, because streams are not read above SINK_BYTES_FULL; if not,
 * bytes are dropped rather than memory overwritten. */
static void put(sink *k, const char *text, size_t bytes)
{
    if (k->start > 0 && k->end + bytes > SINK_BYTES_MAX) {
        memmove(k->data, k->data + k->start, k->end - k->start);
        k->end -= k->start;
        k->start = 0;
    }
    if (k->broken || k->end + bytes > SINK_BYTES_MAX) {
        return;
    }
    memcpy(k->data + k->end, text, bytes);
    k->end += bytes;
}

/* "[2] ", with the rank in the world. */
static void put_prefix(const ls__output *output, sink *k, int rank)
{
    char prefix[PREFIX_BYTES_MAX];
    int length = snprintf(prefix, sizeof prefix, "[%d] ", output->first_rank + rank);
    put(k, prefix, output->prefix ? (size_t)length : 0);
}

/* Keeps the last lines of a rank for the report. The oldest lines give way; a long line is cut. */
static void remember(ls__output *output, const stream *s)
{
    LS_ASSERT(s->rank >= 0 && s->rank < output->ranks);
    char *tail = output->tails[s->rank];
    size_t bytes = s->length < TAIL_BYTES / 4 ? s->length : TAIL_BYTES / 4;
    size_t held = strlen(tail);
    while (held > 0 && held + bytes + 2 > TAIL_BYTES) { /* forget the oldest line */
        size_t first = strcspn(tail, "\n") + 1;
        memmove(tail, tail + first, held - first + 1);
        held -= first;
    }
    memcpy(tail + held, s->line, bytes);
    memcpy(tail + held + bytes, "\n", 2);
}

/* Writes a complete line. A live line at the bottom is erased first and, if it is another
 * rank's, written again below. */
static void put_line(ls__output *output, stream *s)
{
    sink *k = sink_of(output, s);
    if (k->live_from != NULL) {
        put(k, CLEAR_LINE, sizeof CLEAR_LINE - 1);
        k->live_from = k->live_from == s ? NULL : k->live_from;
    }
    put_prefix(output, k, s->rank);
    put(k, s->line, s->length);
    put(k, "\n", 1);
    if (k->live_from != NULL) {
        put(k, k->live, strlen(k->live));
    }
    remember(output, s);
    s->length = 0;
    s->returned = s->live = s->displayed = false;
}

/* Displays the present state of a line that is being updated, at the bottom of the terminal. */
static void put_live(ls__output *output, stream *s)
{
    sink *k = sink_of(output, s);
    if (s->length == 0 || s->displayed) {
        return;
    }
    s->displayed = true;
    int prefix =
        output->prefix ? snprintf(k->live, LIVE_BYTES, "[%d] ", output->first_rank + s->rank) : 0;
    size_t room = LIVE_BYTES - 1 - (size_t)prefix;
    size_t bytes = s->length < room ? s->length : room;
    memcpy(k->live + prefix, s->line, bytes);
    k->live[(size_t)prefix + bytes] = '\0';
    k->live_from = s;
    put(k, CLEAR_LINE, sizeof CLEAR_LINE - 1);
    put(k, k->live, (size_t)prefix + bytes);
}

/* Above the live line, as a line of a rank would be. */
void ls__output_say(ls__output *output, const char *line)
{
    stream own = {.rank = -1, .which = 1};
    sink *k = sink_of(output, &own);
    if (k->live_from != NULL) {
        put(k, CLEAR_LINE, sizeof CLEAR_LINE - 1);
    }
    put(k, line, strlen(line));
    put(k, "\n", 1);
    if (k->live_from != NULL) {
        put(k, k->live, strlen(k->live));
    }
}

/* ---- streams ------------------------------------------------------------------------------- */

/* Makes room for one more byte of the line. What has reached LINE_BYTES_MAX, or cannot grow for
 * lack of memory, is written as a line of its own. */
static void make_room(ls__output *output, stream *s)
{
    const ls__env *env = output->env;
    const size_t room = 2 * s->room;
    char *line = room <= LINE_BYTES_MAX ? env->allocate(env, room) : NULL;
    if (line == NULL) {
        put_line(output, s);
        return;
    }
    memcpy(line, s->line, s->length);
    env->release(env, s->line, s->room);
    s->line = line;
    s->room = room;
}

/* The state machine of a line: bytes collect in `line`, a newline writes it, a carriage return
 * on a terminal makes it a live line, whose next byte starts it anew. */
static void take_byte(ls__output *output, stream *s, char byte, bool terminal)
{
    if (byte == '\n') {
        put_line(output, s);
        return;
    }
    if (s->returned) {
        put_live(output, s);
        s->length = 0;
        s->returned = false;
    }
    if (byte == '\r' && terminal) {
        s->returned = s->live = true;
        return;
    }
    if (s->length == s->room) {
        make_room(output, s);
    }
    s->line[s->length++] = byte;
    s->displayed = false;
}

/* Closes the log of a stream. One that cannot be written does not end the job, but its status. */
static void close_log(ls__output *output, stream *s, ssize_t error)
{
    const int closed = s->log_fd >= 0 ? output->env->close(output->env, s->log_fd) : 0;
    error = error < 0 ? error : closed;
    s->log_fd = -1;
    if (error < 0) {
        output->cut = true;
        LS__WARN("--log-dir: \"%s/%d/%s.log\": %s; the rest of this output is not in the file",
                 output->log_dir, output->first_rank + s->rank, s->which ? "stderr" : "stdout",
                 strerror((int)-error));
    }
}

/* Logs hold the bytes as they came. */
static void write_log(ls__output *output, stream *s, const char *data, size_t bytes)
{
    const ls__env *env = output->env;
    for (size_t done = 0; s->log_fd >= 0 && done < bytes;) {
        const ssize_t written = env->write(env, s->log_fd, data + done, bytes - done);
        if (written <= 0) {
            close_log(output, s, written < 0 ? written : -EIO);
            return;
        }
        done += (size_t)written;
    }
}

/* The end of a pipe. An incomplete last line is written as a line. */
static void end_stream(ls__output *output, stream *s)
{
    if (s->fd < 0) {
        return;
    }
    output->env->close(output->env, s->fd);
    s->fd = -1;
    close_log(output, s, 0);
    if (s->length > 0) {
        put_line(output, s);
    }
}

/* One read per turn and stream, so that no rank can occupy the loop. */
static void read_stream(ls__output *output, stream *s)
{
    char data[READ_BYTES];
    ssize_t got = output->env->read(output->env, s->fd, data, sizeof data);
    bool terminal = sink_of(output, s)->terminal;
    if (got == -EAGAIN) {
        return;
    }
    if (got <= 0) {
        end_stream(output, s);
        return;
    }
    write_log(output, s, data, (size_t)got);
    for (ssize_t i = 0; i < got; i++) {
        take_byte(output, s, data[i], terminal);
    }
    if (s->live) {
        put_live(output, s);
    }
}

/* ---- the owner's loop ---------------------------------------------------------------------- */

/* Bytes of a sink that are not written yet. */
static size_t pending(const sink *k)
{
    return k->end - k->start;
}

/* Whether all that a read may bring fits: the line until now, and each byte a line of its own. */
static bool has_room(ls__output *output, const stream *s)
{
    const size_t most =
        s->length + (size_t)READ_BYTES * (PREFIX_BYTES_MAX + 2) + LIVE_BYTES + sizeof CLEAR_LINE;
    return SINK_BYTES_MAX - pending(sink_of(output, s)) >= most;
}

/* Sinks with pending bytes first, then the streams whose sink has room. ls__output_turn expects
 * the same order. */
int ls__output_poll(ls__output *output, ls__env_poll *items, int room)
{
    int count = 0;
    for (int i = 0; i < 2 && count < room; i++) {
        if (pending(&output->sink[i]) > 0) {
            items[count++] = (ls__env_poll){.fd = output->sink[i].fd, .want_write = true};
        }
    }
    for (int i = 0; i < 2 * output->ranks && count < room; i++) {
        stream *s = &output->streams[i];
        if (s->fd >= 0 && pending(sink_of(output, s)) < SINK_BYTES_FULL) {
            items[count++] = (ls__env_poll){.fd = s->fd, .want_read = true};
        }
    }
    return count;
}

/* Writes one piece. If the reader is gone the sink is broken for good; another error, such as a
 * full disk, loses the bytes, is reported once, and is tried again with the next bytes. */
static void write_sink(ls__output *output, sink *k)
{
    size_t bytes = pending(k) < PIPE_PIECE ? pending(k) : PIPE_PIECE;
    ssize_t done = output->env->write(output->env, k->fd, k->data + k->start, bytes);
    if (done == -EAGAIN) {
        return;
    }
    if (done < 0) {
        k->broken = done == -EPIPE;
        k->start = k->end = 0;
        if (!k->broken && !k->warned) {
            LS__WARN(
                "standard %s: %s; the output of the ranks is lost until it can be written again",
                k->fd == 1 ? "output" : "error", strerror((int)-done));
            k->warned = true;
        }
        return;
    }
    k->start += (size_t)done;
    if (k->start == k->end) {
        k->start = k->end = 0;
    }
}

/* Matches the items with sinks and streams by their order; those that were not polled are
 * skipped. A stream whose sink is broken, and which has no log, is closed: its rank gets
 * SIGPIPE. */
void ls__output_turn(ls__output *output, const ls__env_poll *items, int count)
{
    int at = 0;
    for (int i = 0; i < 2; i++) {
        sink *k = &output->sink[i];
        if (at < count && items[at].want_write && items[at].fd == k->fd) {
            if (items[at].can_write || items[at].hangup) {
                write_sink(output, k);
            }
            at++;
        }
    }
    for (int i = 0; i < 2 * output->ranks && at < count; i++) {
        stream *s = &output->streams[i];
        if (s->fd == items[at].fd) {
            if ((items[at].can_read || items[at].hangup) && has_room(output, s)) {
                read_stream(output, s);
            }
            at++;
        }
        if (sink_of(output, s)->broken && s->log_fd < 0) {
            end_stream(output, s);
        }
    }
}

bool ls__output_is_cut(const ls__output *output)
{
    return output->cut;
}

bool ls__output_reading(const ls__output *output)
{
    for (int i = 0; i < 2 * output->ranks; i++) {
        if (output->streams[i].fd >= 0) {
            return true;
        }
    }
    return false;
}

bool ls__output_writing(const ls__output *output)
{
    return pending(&output->sink[0]) > 0 || pending(&output->sink[1]) > 0;
}

/* A live line stays on the terminal; the shell's prompt begins below it. */
void ls__output_end(ls__output *output)
{
    for (int i = 0; i < 2 * output->ranks; i++) {
        end_stream(output, &output->streams[i]);
    }
    for (int i = 0; i < 2; i++) {
        if (output->sink[i].live_from != NULL) {
            put(&output->sink[i], "\n", 1);
            output->sink[i].live_from = NULL;
        }
    }
}

/* The newest lines are kept if not all fit. */
void ls__output_tail(const ls__output *output, int r, char *out, size_t bytes)
{
    const char *tail = output->tails[r];
    size_t length = strlen(tail);
    snprintf(out, bytes, "%s", length < bytes ? tail : tail + length - bytes + 1);
}
