/* SPDX-License-Identifier: Apache-2.0 */
/* Who has a port, from /proc: the socket's inode stands in net/tcp, and its owner has a descriptor
 * that is a link to "socket:[inode]". Of other users' processes the descriptors cannot be seen. */
#include "port_owner.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LINE_MAX_BYTES 512
#define LISTENS 0x0a
#define COMMAND_MAX 160

typedef struct search {
    const ls__env *env;
    char wanted[48]; /* "socket:[123]" */
    char folder[64]; /* of descriptors that is looked through */
    long pid;        /* 0: not found yet */
} search;

/* "  0: 0100007F:1F90 00000000:0000 0A … inode": the inode, if the line is a listener's at `port`.
 */
static unsigned long listener_inode(const char *line, int port)
{
    unsigned at = 0, state = 0;
    unsigned long inode = 0;
    if (sscanf(line, " %*d: %*[0-9A-Fa-f]:%x %*[0-9A-Fa-f]:%*x %x %*s %*s %*s %*s %*s %lu", &at,
               &state, &inode) != 3) {
        return 0;
    }
    return state == LISTENS && at == (unsigned)port ? inode : 0;
}

static unsigned long find_inode(const ls__env *env, const char *path, int port)
{
    char line[LINE_MAX_BYTES];
    unsigned long inode = 0;
    size_t held = 0;
    const int fd = env->open(env, path, O_RDONLY | O_CLOEXEC, 0);
    for (ssize_t got = fd < 0 ? 0 : 1; got > 0 && inode == 0;) {
        got = env->read(env, fd, line + held, sizeof line - 1 - held);
        held += got > 0 ? (size_t)got : 0;
        line[held] = '\0';
        for (char *end = strchr(line, '\n'); end != NULL && inode == 0; end = strchr(line, '\n')) {
            *end = '\0';
            inode = listener_inode(line, port);
            held -= (size_t)(end + 1 - line);
            memmove(line, end + 1, held + 1);
        }
        held = held == sizeof line - 1 ? 0 : held; /* no line is that long */
    }
    if (fd >= 0) {
        env->close(env, fd);
    }
    return inode;
}

static int look_at_descriptor(void *arg, const char *name)
{
    search *s = arg;
    char path[96], target[64] = "";
    snprintf(path, sizeof path, "%s/%.16s", s->folder, name);
    return readlink(path, target, sizeof target - 1) >= 0 && strcmp(target, s->wanted) == 0;
}

static int look_at_process(void *arg, const char *name)
{
    search *s = arg;
    const long pid = strtol(name, NULL, 10);
    if (pid > 0) {
        snprintf(s->folder, sizeof s->folder, "/proc/%ld/fd", pid);
        s->pid = s->env->list(s->env, s->folder, look_at_descriptor, s) > 0 ? pid : 0;
    }
    return s->pid != 0;
}

/* Its arguments, separated by spaces. */
static void read_command(const ls__env *env, long pid, char out[COMMAND_MAX])
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%ld/cmdline", pid);
    const int fd = env->open(env, path, O_RDONLY | O_CLOEXEC, 0);
    const ssize_t got = fd < 0 ? 0 : env->read(env, fd, out, COMMAND_MAX - 1);
    const size_t bytes = got > 0 ? (size_t)got : 0;
    for (size_t i = 0; i < bytes; i++) {
        out[i] = out[i] < ' ' || out[i] == 0x7f ? ' ' : out[i]; /* nothing that moves a terminal */
    }
    out[bytes] = '\0';
    for (size_t end = bytes; end > 0 && out[end - 1] == ' '; end--) {
        out[end - 1] = '\0';
    }
    if (fd >= 0) {
        env->close(env, fd);
    }
}

const char *ls__port_owner(const ls__env *env, int port, char *out, size_t bytes)
{
    search s = {.env = env};
    char command[COMMAND_MAX];
    unsigned long inode = find_inode(env, "/proc/net/tcp", port);
    inode = inode != 0 ? inode : find_inode(env, "/proc/net/tcp6", port);
    snprintf(s.wanted, sizeof s.wanted, "socket:[%lu]", inode);
    if (inode != 0) {
        (void)env->list(env, "/proc", look_at_process, &s);
    }
    if (s.pid == 0) {
        snprintf(out, bytes, "a process this user cannot see (as root, `ss -ltnp` names it)");
        return out;
    }
    read_command(env, s.pid, command);
    snprintf(out, bytes, "process %ld (%s)", s.pid, command);
    return out;
}
