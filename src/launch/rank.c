/* SPDX-License-Identifier: Apache-2.0 */
/* Starting one rank: its environment, its descriptors, its process.
 *
 * The environment is ours plus torchrun's variables and LOCKSTEP_BOOTSTRAP, which names three
 * descriptors: the rank's connection to the store, the board, and the sealed secret, opened anew
 * for each rank. Nothing secret is in the environment or on the command line.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/settings.h"
#include "launch/agent.h"

#define VARIABLES_MAX 24
#define VARIABLE_BYTES 96

extern char **environ;

typedef struct variables {
    int count;
    char text[VARIABLES_MAX][VARIABLE_BYTES];
} variables;

typedef struct start { /* what a rank is made of */
    variables variables;
    int store_fd, secret_fd;
    int output[2][2]; /* pipes of stdout and stderr; -1: none */
    int (*fn)(void *arg);
    void *arg;
} start;

/* ---- environment --------------------------------------------------------------------------- */

/* Appends NAME=VALUE. VARIABLES_MAX leaves room for all that describe_rank sets. */
static void LS__PRINTF(2, 3) set(variables *v, const char *format, ...)
{
    LS_ASSERT(v->count < VARIABLES_MAX);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(v->text[v->count++], VARIABLE_BYTES, format, arguments);
    va_end(arguments);
}

/* torchrun's variables, ours, and limits for OpenMP: N ranks must not each use all cores, nor
 * spin on them while they wait. A user's own OpenMP settings are kept. */
static void describe_rank(const ls__agent *agent, int r, const start *s, variables *v)
{
    const ls__nodes_world *world = &agent->host.world;
    int n = agent->job->ranks, size = world->world_size;
    set(v, "RANK=%d", world->first_rank + r);
    set(v, "LOCAL_RANK=%d", r);
    set(v, "WORLD_SIZE=%d", size);
    set(v, "LOCAL_WORLD_SIZE=%d", n);
    set(v, "GROUP_RANK=%d", world->node);
    set(v, "GROUP_WORLD_SIZE=%d", world->nodes);
    set(v, "ROLE_NAME=default");
    set(v, "ROLE_RANK=%d", world->first_rank + r);
    set(v, "ROLE_WORLD_SIZE=%d", size);
    set(v, "MASTER_ADDR=%s", world->master);
    set(v, "MASTER_PORT=%d", world->master_port);
    set(v, "TORCHELASTIC_RESTART_COUNT=%d", world->attempt);
    set(v, "TORCHELASTIC_MAX_RESTARTS=%d", agent->job->max_restarts);
    set(v, "TORCHELASTIC_RUN_ID=%s", world->run_id);
    set(v, "LOCKSTEP_BOOTSTRAP=v1:%d:%d:%d", s->store_fd, agent->host.board_fd, s->secret_fd);
    char number[LS__JOB_NUMBER_MAX];
    ls__agent_number(agent, number);
    set(v, "LOCKSTEP_JOB=%s", number);
    set(v, "LOCKSTEP_LIVE=%s", agent->output != NULL && ls__output_live(agent->output) ? "1" : "");
    if (ls__setting_get("OMP_NUM_THREADS") == NULL) {
        set(v, "OMP_NUM_THREADS=%d", agent->cores > n ? agent->cores / n : 1);
    }
    if (ls__setting_get("GOMP_SPINCOUNT") == NULL && ls__setting_get("OMP_WAIT_POLICY") == NULL) {
        set(v, "GOMP_SPINCOUNT=1000");
    }
}

/* Whether the rank's own variables replace this one of ours. */
static bool overridden(const variables *v, const char *entry)
{
    for (int i = 0; i < v->count; i++) {
        size_t name = strcspn(v->text[i], "=") + 1;
        if (strncmp(v->text[i], entry, name) == 0) {
            return true;
        }
    }
    return false;
}

/* Our environment with the rank's variables in place of ours: an array of pointers, which the
 * caller releases with *bytes. NULL: no memory. */
static const char **merge_environment(const ls__env *env, const variables *v, size_t *bytes)
{
    size_t count = (size_t)v->count + 1;
    for (char **entry = environ; entry != NULL && *entry != NULL; entry++) {
        count++;
    }
    *bytes = count * sizeof(char *);
    const char **merged = env->allocate(env, *bytes);
    if (merged == NULL) {
        return NULL;
    }
    int at = 0;
    for (char **entry = environ; entry != NULL && *entry != NULL; entry++) {
        if (!overridden(v, *entry)) {
            merged[at++] = *entry;
        }
    }
    for (int i = 0; i < v->count; i++) {
        merged[at++] = v->text[i];
    }
    merged[at] = NULL;
    return merged;
}

/* ---- descriptors --------------------------------------------------------------------------- */

/* Closes what is open of a pipe; a second call does nothing. */
static void close_pair(const ls__env *env, int pair[2])
{
    for (int i = 0; i < 2; i++) {
        if (pair[i] >= 0) {
            env->close(env, pair[i]);
            pair[i] = -1;
        }
    }
}

/* A second, read-only description of the secret, because ranks that shared one would share its
 * read offset. */
static int open_secret(const ls__agent *agent)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", agent->secret_fd);
    return agent->env->open(agent->env, path, O_RDONLY, 0);
}

/* Pipes only if the output passes through the agent. On failure the caller closes them. */
static int open_pipes(const ls__agent *agent, start *s)
{
    int error = 0;
    for (int i = 0; i < 2; i++) {
        s->output[i][0] = s->output[i][1] = -1;
    }
    for (int i = 0; agent->output != NULL && error >= 0 && i < 2; i++) {
        error = agent->env->pipe(agent->env, s->output[i]);
    }
    return error;
}

/* The agent's ends go to the store and the output; the ends of the rank are closed here once it
 * has them. */
static int open_descriptors(ls__agent *agent, start *s)
{
    const ls__env *env = agent->env;
    int pair[2];
    int error = open_pipes(agent, s);
    if (error < 0) {
        goto fail_pipes;
    }
    s->secret_fd = open_secret(agent);
    error = s->secret_fd;
    if (error < 0) {
        goto fail_pipes;
    }
    error = env->socket_pair(env, pair);
    if (error < 0) {
        goto fail_secret;
    }
    s->store_fd = pair[1];
    if (ls__store_server_invite(agent->host.store, pair[0]) < 0) {
        error = -ECONNREFUSED;
        goto fail_store;
    }
    return 0;

fail_store:
    env->close(env, s->store_fd);
fail_secret:
    env->close(env, s->secret_fd);
fail_pipes:
    close_pair(env, s->output[0]);
    close_pair(env, s->output[1]);
    return error;
}

/* ---- the process --------------------------------------------------------------------------- */

/* The rank's main under ls_spawn: a forked process has our environment, so its variables are set
 * here. */
static int run_function(void *arg)
{
    start *s = arg;
    for (int i = 0; i < s->variables.count; i++) {
        char *equals = strchr(s->variables.text[i], '=');
        *equals = '\0';
        (void)setenv(s->variables.text[i], equals + 1, 1);
    }
    return s->fn(s->arg);
}

/* The board must say STARTED before the process exists: it may reach ls_init before spawn
 * returns. */
static int spawn_rank(ls__agent *agent, int r, start *s)
{
    const ls__env *env = agent->env;
    size_t bytes = 0;
    const char **environment = merge_environment(env, &s->variables, &bytes);
    if (environment == NULL) {
        return -ENOMEM;
    }
    int keep[] = {s->store_fd, agent->host.board_fd, s->secret_fd};
    ls__env_spawn spawn = {.argv = agent->job->argv,
                           .envp = environment,
                           .fn = run_function,
                           .arg = s,
                           .stdout_fd = s->output[0][1],
                           .stderr_fd = s->output[1][1],
                           .keep_fds = keep,
                           .keep_count = 3};
    ls__host_agent_rank *rank = &agent->host.rank[r];
    atomic_store_explicit(&agent->host.board->rank[r].life, LS__LIFE_STARTED, memory_order_release);
    int error = env->spawn(env, &spawn, &rank->pid, &rank->pidfd);
    env->release(env, environment, bytes);
    return error;
}

/* Gives the read ends to the output if the rank was started, and closes the rest. */
static void hand_over_output(ls__agent *agent, int r, start *s, bool started)
{
    for (int i = 0; i < 2; i++) {
        if (started && s->output[i][0] >= 0) {
            ls__output_attach(agent->output, r, i, s->output[i][0]);
            s->output[i][0] = -1;
        }
        close_pair(agent->env, s->output[i]);
    }
}

/* Why a rank was not started, with the exit code that a shell would give: 127 not found, 126 not
 * executable. */
static void explain(ls__agent *agent, int r, int error)
{
    const char *program = agent->job->argv != NULL ? agent->job->argv[0] : "the function";
    if (agent->job->argv != NULL && error == -ENOENT) {
        bool path = strchr(program, '/') != NULL;
        ls__agent_fail(agent, 127, "cannot start \"%s\": no such program%s%s%s", program,
                       path ? "" : " in PATH; for one in this folder write ./", path ? "" : program,
                       path ? ", or its interpreter is missing" : "");
    } else if (agent->job->argv != NULL && (error == -EACCES || error == -ENOEXEC)) {
        ls__agent_fail(agent, 126, "cannot start \"%s\": %s; is it an executable file?", program,
                       strerror(-error));
    } else {
        ls__agent_fail(agent, 1, "cannot start rank %d of \"%s\": %s; %s",
                       agent->host.world.first_rank + r, program, strerror(-error),
                       error == -EMFILE || error == -ENFILE ? "raise the limit of open files "
                                                              "(ulimit -n), or start fewer ranks"
                                                            : "start fewer ranks");
    }
}

/* On failure the ranks that were started before keep running until the agent ends them. */
bool ls__agent_start_rank(ls__agent *agent, int r)
{
    const ls__env *env = agent->env;
    start s = {.fn = agent->job->fn, .arg = agent->job->arg};
    ls__host_agent_rank *rank = &agent->host.rank[r];
    int error = open_descriptors(agent, &s);
    if (error < 0) {
        explain(agent, r, error);
        return false;
    }
    describe_rank(agent, r, &s, &s.variables);
    error = spawn_rank(agent, r, &s);
    env->close(env, s.store_fd);
    env->close(env, s.secret_fd);
    hand_over_output(agent, r, &s, error >= 0);
    if (error < 0) {
        rank->pidfd = -1;
        explain(agent, r, error);
        return false;
    }
    int none = 0; /* the rank writes its own number in ls_init, which then stays */
    (void)atomic_compare_exchange_strong(&agent->host.board->rank[r].pid, &none, rank->pid);
    ls__host_agent_watch(&agent->host, r);
    return true;
}
