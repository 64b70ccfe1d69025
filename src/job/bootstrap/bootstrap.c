/* SPDX-License-Identifier: Apache-2.0 */
/* The bootstrap methods, tried in order; the first that applies wins.
 *
 *     LOCKSTEP_BOOTSTRAP set      the launcher's descriptors                         launcher.c
 *     another launcher's          a local rendezvous by name, one of hosts by address  join.c
 *     half of its variables       refused
 *     nothing                     a world of one: no socket, a private board */
#include "job/bootstrap/methods.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/settings.h"
#include "job/pmi/pmi.h"
#include "job/store/store.h"
#include "trace/file.h"

/* ---- a number of ranks, but no rank -------------------------------------------------------- */

/* Half of a launcher's variables: a process that has a world size but no rank must not train
 * alone, as if it were the whole world. N such processes would overwrite each other's results. */
static ls_status refuse_halves(const ls__env *env, int64_t timeout_ms, ls__boot *out)
{
    static const char *const halves[][2] = {{"WORLD_SIZE", "RANK"},
                                            {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
                                            {"PMI_SIZE", "PMI_RANK"}};
    const char *launcher = ls__setting_get("LOCKSTEP_LAUNCHER");
    (void)env;
    (void)timeout_ms;
    (void)out;
    for (size_t i = 0; launcher == NULL && i < sizeof halves / sizeof *halves; i++) {
        const char *size = ls__setting_get(halves[i][0]);
        if (size != NULL && strtol(size, NULL, 10) > 1 && ls__setting_get(halves[i][1]) == NULL) {
            return ls__fail(LS_ERR_INVALID,
                            "ls_init: %s=%s asks for a world of several ranks, but %s is not set: "
                            "start the program with `lockstep run -n %s PROGRAM`, or unset %s to "
                            "run alone",
                            halves[i][0], size, halves[i][1], size, halves[i][0]);
        }
    }
    return LS_IN_PROGRESS;
}

/* ---- a world of one ------------------------------------------------------------------------ */

/* A process without a launcher: the same board and store as in a job, but private, so the rest
 * of the library needs no special case. */
static ls_status world_of_one(const ls__env *env, int64_t timeout_ms, ls__boot *out)
{
    (void)timeout_ms;
    int fd = -1;
    ls__board_job job = {.ranks = 1, .world_size = 1, .launcher_pid = (int)env->pid(env)};
    char host[64] = "";
    if (env->host_name(env, host, sizeof host) < 0) {
        snprintf(host, sizeof host, "localhost");
    }
    job.host = host;
    (void)env->random_bytes(env, &job.number, sizeof job.number);
    LS_TRY(ls__board_new(env, &job, &fd, &out->board));
    env->close(env, fd); /* the mapping stays */
    out->board_private = true;
    out->world_size = out->local_size = 1;
    ls__board_rank *own = &out->board->rank[0];
    atomic_store(&own->pid, (int)env->pid(env));
    atomic_store(&own->life, LS__LIFE_JOINED);
    ls_status status = ls__store_local(env, &out->store);
    if (status < 0) {
        ls__board_close(env, out->board);
    }
    return status;
}

/* ---- the table ----------------------------------------------------------------------------- */

/* LS_IN_PROGRESS: this method does not apply. */
typedef ls_status (*method)(const ls__env *env, int64_t timeout_ms, ls__boot *out);
static const method methods[] = {ls__bootstrap_launcher, ls__bootstrap_others, refuse_halves,
                                 world_of_one};

/* On failure *out is zeros: a method closes what it had opened before it returns an error. */
ls_status ls__bootstrap(const ls__env *env, int64_t timeout_ms, ls__boot *out)
{
    ls_status status = LS_IN_PROGRESS;
    for (size_t i = 0; status == LS_IN_PROGRESS; i++) {
        LS_ASSERT(i < sizeof methods / sizeof *methods); /* the last one applies always */
        memset(out, 0, sizeof *out);
        status = methods[i](env, timeout_ms, out);
    }
    if (status < 0) {
        memset(out, 0, sizeof *out);
    }
    LS_ASSERT(status < 0 || (out->store != NULL && out->board != NULL));
    return status;
}

static int trace_part(void *arg, int rank)
{
    (void)rank; /* the only one */
    return ls__store_local_fd(arg, "trace/0");
}

void ls__boot_record_failure(const ls__env *env, ls__board_rank *place, ls_status status)
{
    const ls__board_failure f = {
        .status = status, .by = place->world_rank, .text = ls_error_message()};
    ls__board_record_failure(place, env, &f);
}

/* The order matters: first the board shows that this rank has left, so that its end is not taken
 * for a failure, unless it never joined; the agent ends last, because others still use it; the
 * board is unmapped when no thread of this process reads it any more. */
void ls__bootstrap_close(const ls__env *env, ls__boot *boot)
{
    if (boot->board != NULL) {
        uint32_t joined = LS__LIFE_JOINED;
        (void)atomic_compare_exchange_strong_explicit(&boot->board->rank[boot->local_rank].life,
                                                      &joined, LS__LIFE_LEFT, memory_order_acq_rel,
                                                      memory_order_relaxed);
    }
    if (boot->board_private) {
        const ls__trace_job job = {.world_size = 1, .part = trace_part, .arg = boot->store};
        ls__trace_collect(env, &job);
    }
    ls__store_close(boot->store);
    ls__parent_watch_end(boot->watch);
    ls__agent_thread_end(boot->agent);
    ls__board_close(env, boot->board);
    ls__pmi_end(env);
    explicit_bzero(boot, sizeof *boot);
}
