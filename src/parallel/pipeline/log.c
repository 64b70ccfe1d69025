/* SPDX-License-Identifier: Apache-2.0 */
/* The replay log of a pipeline that steps within its table: a line for each micro-batch in each
 * stage, with the versions that it read and made. A rank notes them in its report, which all ranks
 * get at the end of a call with the losses, and rank 0 writes them by micro-batch. Versions of the
 * log are counted over all calls. A job that dies leaves the calls that it has finished. */
#include <string.h>

#include "base/assert.h"
#include "base/error.h"
#include "nn/module.h"
#include "parallel/pipeline/internal.h"
#include "tensor/tensor.h"

/* Bytes of the losses and the weights in a report. */
static size_t numbers_bytes(const ls_pipeline *p)
{
    return (size_t)p->set.micro_batches * (p->set.weighted ? 2 : 1) * sizeof(double);
}

size_t ls__report_bytes(const ls_pipeline *p)
{
    const size_t notes = p->set.log != NULL ? sizeof(ls__stage_note) : 0;
    return sizeof(ls__report) + numbers_bytes(p) + (size_t)p->set.micro_batches * notes;
}

static ls__stage_note *notes_of(const ls_pipeline *p, char *report)
{
    return (ls__stage_note *)(void *)(report + sizeof(ls__report) + numbers_bytes(p));
}

ls_status ls__stage_log_begin(ls_pipeline *p)
{
    if (p->set.log == NULL) {
        return LS_OK;
    }
    p->log.notes = notes_of(p, p->reports);
    return p->rank == 0
               ? ls__replay_open(&p->log.writer, p->env, p->set.log, p->set.command, p->stages)
               : LS_OK;
}

void ls__stage_log_read(ls_pipeline *p, int micro_batch)
{
    if (p->log.notes != NULL) {
        const int read = p->bound != NULL ? p->bound->version : p->newest;
        p->log.notes[micro_batch] = (ls__stage_note){.read = read};
    }
}

ls_status ls__stage_hash(ls_tensor *param, uint64_t *hash)
{
    ls__host_view view;
    LS_TRY(ls__host_view_of(param, &view));
    *hash = ls__hash_bytes(*hash, view.data, view.bytes);
    ls__host_view_close(&view, false);
    return LS_OK;
}

/* Of the newest version, which is in place. */
static ls_status hash_params(const ls_pipeline *p, uint64_t *hash)
{
    *hash = 0;
    for (int i = 0; i < p->param_count; i++) {
        LS_TRY(ls__stage_hash(p->params[i].value, hash));
    }
    return LS_OK;
}

/* Backwards of a stage come in the order of the micro-batches. */
ls_status ls__stage_log_made(ls_pipeline *p)
{
    ls__stage_log *log = &p->log;
    if (log->notes == NULL) {
        return LS_OK;
    }
    LS_ASSERT(log->noted < p->backwards && p->backwards <= p->set.micro_batches);
    for (; log->noted < p->backwards; log->noted++) {
        log->notes[log->noted].made = p->newest;
    }
    log->notes[log->noted - 1].hashed = true;
    return hash_params(p, &log->notes[log->noted - 1].hash);
}

static ls_status write_note(ls_pipeline *p, int micro_batch, int stage, const ls__stage_note *note)
{
    const ls__replay_event event = {.kind = LS__REPLAY_STAGE,
                                    .step = p->log.micro_batches + micro_batch,
                                    .read = p->log.versions + note->read,
                                    .made = p->log.versions + note->made,
                                    .shard = stage,
                                    .hashed = note->hashed != 0,
                                    .hash = note->hash};
    return ls__replay_write(&p->log.writer, &event);
}

ls_status ls__stage_log_write(ls_pipeline *p)
{
    const size_t bytes = ls__report_bytes(p);
    for (int m = 0; p->log.writer.open && m < p->set.micro_batches; m++) {
        for (int r = 0; r < p->stages; r++) { /* a stage a rank */
            char *report = p->reports + ((size_t)r + 1) * bytes;
            LS_TRY(write_note(p, m, r, &notes_of(p, report)[m]));
        }
    }
    p->log.versions += p->newest;
    p->log.micro_batches += p->set.micro_batches;
    p->log.noted = 0;
    return LS_OK;
}
