/* SPDX-License-Identifier: Apache-2.0 */
/* PMI-1: one line per request and answer, over a socket that the process manager has left open.
 *
 *     rank                                          process manager
 *     cmd=init pmi_version=1 pmi_subversion=1       cmd=response_to_init … rc=0
 *     cmd=get_my_kvsname                            cmd=my_kvsname kvsname=K
 *     cmd=put kvsname=K key=… value=…               cmd=put_result rc=0        rank 0
 *     cmd=barrier_in                                cmd=barrier_out            once all are in it
 *     cmd=get kvsname=K key=…                       cmd=get_result rc=0 … value=…
 *
 * Source: "PMI: A Scalable Parallel Process-Management Interface for Extreme-Scale Systems" (Balaji
 * et al., EuroMPI 2010), and the requests of MPICH's own client.
 *
 * After `finalize` the process manager closes the socket: an MPI in this process could no longer
 * use it. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/compiler.h"
#include "job/pmi/pmi.h"

#define LINE 2048

typedef struct wire {
    const ls__env *env;
    int fd;
    uint64_t deadline_ns;
    char line[LINE]; /* the last answer, without its newline */
    char *reason;    /* [LS__PMI_REASON] */
} wire;

static bool fail(wire *w, const char *request, const char *why)
{
    snprintf(w->reason, LS__PMI_REASON, "%.40s: %.180s", request, why);
    return false;
}

/* Reads byte by byte, so that nothing behind the line is taken from a later reader of the
 * socket. */
static bool read_line(wire *w, const char *request)
{
    size_t used = 0;
    while (used + 1 < sizeof w->line) {
        ls__env_poll item = {.fd = w->fd, .want_read = true};
        (void)w->env->poll(w->env, &item, 1, w->deadline_ns);
        const bool late = !item.can_read && !item.hangup;
        const ssize_t got = late ? -ETIMEDOUT : w->env->read(w->env, w->fd, w->line + used, 1);
        if (got <= 0) {
            return fail(w, request,
                        got == 0 ? "the process manager has closed the connection"
                        : late   ? "no answer within the deadline"
                                 : strerror((int)-got));
        }
        if (w->line[used] == '\n') {
            w->line[used] = '\0';
            return true;
        }
        used++;
    }
    return fail(w, request, "the answer is too long");
}

/* The value of `name=` in the answer, up to a space; "": not there. */
static const char *field(const wire *w, const char *name, char *out, size_t bytes)
{
    const size_t length = strlen(name);
    out[0] = '\0';
    for (const char *at = w->line; at != NULL; at = strchr(at, ' ')) {
        at += strspn(at, " ");
        if (strncmp(at, name, length) == 0 && at[length] == '=') {
            const char *value = at + length + 1;
            snprintf(out, bytes, "%.*s", (int)strcspn(value, " "), value);
            break;
        }
    }
    return out;
}

/* Sends one line and reads the answer, which must be of the kind `answer` and without an error. */
LS__PRINTF(3, 4) static bool ask(wire *w, const char *answer, const char *format, ...)
{
    char text[LINE], kind[64], rc[16];
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    const ssize_t put = w->env->write(w->env, w->fd, text, (size_t)length);
    text[strcspn(text, " \n")] = '\0';
    explicit_bzero(text + strlen(text), sizeof text - strlen(text)); /* it may hold the secret */
    if (put != length) {
        return fail(w, text, put < 0 ? strerror((int)-put) : "the request was cut");
    }
    if (!read_line(w, text)) {
        return false;
    }
    field(w, "rc", rc, sizeof rc);
    if (strcmp(field(w, "cmd", kind, sizeof kind), answer) != 0 ||
        (rc[0] != '\0' && strcmp(rc, "0") != 0)) {
        return fail(w, text, w->line);
    }
    return true;
}

static bool broadcast(wire *w, int rank, const char *key, char value[LS__PMI_VALUE])
{
    char space[256];
    if (!ask(w, "response_to_init", "cmd=init pmi_version=1 pmi_subversion=1\n") ||
        !ask(w, "my_kvsname", "cmd=get_my_kvsname\n")) {
        return false;
    }
    field(w, "kvsname", space, sizeof space);
    if (rank == 0 &&
        !ask(w, "put_result", "cmd=put kvsname=%s key=%s value=%s\n", space, key, value)) {
        return false;
    }
    if (!ask(w, "barrier_out", "cmd=barrier_in\n") ||
        !ask(w, "get_result", "cmd=get kvsname=%s key=%s\n", space, key)) {
        return false;
    }
    field(w, "value", value, LS__PMI_VALUE);
    return true;
}

bool ls__pmi_wire_broadcast(const ls__env *env, int fd, int rank, const char *key,
                            char value[LS__PMI_VALUE], uint64_t deadline_ns,
                            char reason[LS__PMI_REASON])
{
    wire w = {.env = env, .fd = fd, .deadline_ns = deadline_ns, .reason = reason};
    const bool sound = broadcast(&w, rank, key, value);
    explicit_bzero(w.line, sizeof w.line); /* it holds the secret */
    return sound;
}

void ls__pmi_wire_end(const ls__env *env, int fd, uint64_t deadline_ns)
{
    char reason[LS__PMI_REASON];
    wire w = {.env = env, .fd = fd, .deadline_ns = deadline_ns, .reason = reason};
    (void)ask(&w, "finalize_ack", "cmd=finalize\n");
}
