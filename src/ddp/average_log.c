/* SPDX-License-Identifier: Apache-2.0 */
/* Each average is one version of the model, made by all ranks: a line a rank, in the order in which
 * parameters are added, with its weight and its steps so far. The last has the hash of the module,
 * which is the same on all ranks. */

#include <string.h>

#include "comm/api/control.h"
#include "ddp/wrapper.h"
#include "reduce/reducer.h"

/* A rank's part of an average. */
typedef struct share {
    double weight;
    int64_t step;
} share;

static ls_status begin(ls__ddp *d, const char *path, const char *command)
{
    ls__average_log *log = &d->log;
    log->bytes = strlen(path) + 1;
    log->path = d->env->allocate(d->env, log->bytes);
    if (log->path == NULL) {
        return ls__fail(LS_ERR_MEMORY, "ls_ddp_average: no memory for the path of the log");
    }
    memcpy(log->path, path, log->bytes);
    return ls_group_rank(d->group) == 0
               ? ls__replay_open(&log->writer, d->env, log->path, command, 1)
               : LS_OK;
}

static ls_status write_lines(ls__ddp *d, const share *shares, int ranks)
{
    const uint64_t hash = ls_module_hash(d->inner);
    for (int r = 0; r < ranks; r++) {
        const ls__replay_event event = {.kind = LS__REPLAY_AVERAGE,
                                        .round = (int64_t)d->averages,
                                        .worker = r,
                                        .step = shares[r].step,
                                        .weight = shares[r].weight,
                                        .made = (int64_t)d->averages + 1,
                                        .hashed = r == ranks - 1,
                                        .hash = hash};
        LS_TRY(ls__replay_write(&d->log.writer, &event));
    }
    return LS_OK;
}

/* All ranks wait until the lines are written, so a full disk fails this call on all of them. */
static ls_status gather_and_write(ls__ddp *d, const ls_ddp_average_options *o, share *all)
{
    const share mine = {o->weight, o->step};
    const ls_collective_options options = {.size = sizeof options, .tag = "the log"};
    ls_group *group = ls__reducer_group(d->reducer);
    uint64_t written = d->averages;
    LS_TRY(ls__control_all_gather(group, &mine, all, sizeof mine, LS_UINT8, &options));
    LS_TRY(d->log.writer.open ? write_lines(d, all, ls_group_size(d->group)) : LS_OK);
    return ls__control_broadcast(group, &written, 1, LS_UINT64, 0, &options);
}

ls_status ls__average_log_add(ls__ddp *d, const ls_ddp_average_options *o)
{
    const size_t bytes = (size_t)ls_group_size(d->group) * sizeof(share);
    if (d->log.path == NULL) {
        LS_TRY(begin(d, o->log, o->command));
    } else if (strcmp(d->log.path, o->log) != 0) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_ddp_average: the log is \"%.200s\", and was \"%.200s\"; give the same "
                        "in all calls",
                        o->log, d->log.path);
    }
    share *all = d->env->allocate(d->env, bytes);
    if (all == NULL) {
        return ls__fail(LS_ERR_MEMORY, "ls_ddp_average: no memory for a line of the log");
    }
    const ls_status status = gather_and_write(d, o, all);
    d->env->release(d->env, all, bytes);
    return status;
}

void ls__average_log_drop(ls__ddp *d)
{
    (void)ls__replay_close(&d->log.writer);
    if (d->log.path != NULL) {
        d->env->release(d->env, d->log.path, d->log.bytes);
    }
    d->log = (ls__average_log){0};
}
