/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks report to each other how their part went. One all_gather of a kilobyte a rank: the status,
 * some words, and the message of a failure; so a full disk on one rank is the same error on all.
 *
 * Note [Deadline of the disk]
 * Calls about files go through a patient table (base/patient.h), because those on a file system
 * that hangs never return. Between two agreements a rank works on files alone while the others may
 * wait for it already, so all its calls from one agreement to the next share a deadline that is
 * earlier than theirs: all ranks then return the error that names the file.
 */
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "checkpoint/internal.h"
#include "comm/api/control.h"
#include "comm/core/cause.h"

/* Every operation on the checkpoint's group carries its timeout; `tag` names the operation in
 * reports of a hang or mismatch. The string is borrowed for the call. */
ls_collective_options ls__checkpoint_options_of(const ls_checkpoint *c, const char *tag)
{
    return *LS_OPTIONS(ls_collective_options, .tag = tag, .timeout_ms = c->set.timeout_ms);
}

/* Load skips a checkpoint that is damaged or missing, so those two are no failures of the job. */
static bool fails_job(ls_status status)
{
    return status < 0 && status != LS_ERR_FORMAT && status != LS_ERR_NOT_FOUND;
}

/* Rank r has failed, and every rank returns its error. The board has it only now: a failure that
 * was recorded before the gather would count as survived. */
static ls_status fail_with(const ls_checkpoint *c, int r)
{
    const ls__checkpoint_report *v = &c->reports[r];
    const ls_status status = (ls_status)v->status;
    if (fails_job(status)) {
        ls__comm_record_found(c->group->comm, status, c->group->member[r].world_rank, v->message);
    }
    return c->size == 1 ? ls__fail(status, "%s", v->message)
                        : ls__fail(status, "rank %d: %s", r, v->message);
}

/* Collective: a rank that failed must still call this function, or the others wait until the
 * timeout. The message is copied before the all_gather, because the gather may overwrite this
 * thread's error. */
ls_status ls__checkpoint_agree(ls_checkpoint *c, ls_status mine, const uint64_t *words, int count)
{
    LS_ASSERT(count <= LS__REPORT_WORDS);
    ls__checkpoint_report report = {.status = mine};
    const ls_collective_options options = ls__checkpoint_options_of(c, "checkpoint");
    for (int i = 0; i < count; i++) {
        report.word[i] = words[i];
    }
    if (mine < 0) {
        (void)snprintf(report.message, sizeof report.message, "%s", ls_error_message());
    }
    if (fails_job(mine)) {
        ls__group_record_failure(c->group, mine, report.message);
    }
    LS_TRY(ls__control_all_gather(c->group, &report, c->reports, (int64_t)sizeof report, LS_UINT8,
                                  &options));
    ls__patient_renew(c->patient);
    for (int r = 0; r < c->size; r++) {
        ls__checkpoint_report *v = &c->reports[r];
        v->message[sizeof v->message - 1] = '\0';
        if (v->status < 0) {
            return fail_with(c, r);
        }
    }
    return LS_OK;
}
