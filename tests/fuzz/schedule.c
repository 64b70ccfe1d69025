/* SPDX-License-Identifier: Apache-2.0 */
/* The text form of pipeline schedules. */
#include <string.h>

#include "base/assert.h"
#include "base/env_posix.h"
#include "cost/simulate.h"
#include "schedule/schedule.h"
#include "targets.h"

/* What the verifier accepts is printed, read again, measured and timed. */
static void use(ls__schedule *s)
{
    static ls__schedule_peak peaks[LS__SCHEDULE_RANKS_MAX];
    static const ls__stage_times times[LS__SCHEDULE_STAGES_MAX];
    ls__sim_result cost;
    ls__schedule *again = NULL;
    const char *text = ls__schedule_print(s);
    LS_ASSERT(text != NULL);
    LS_ASSERT(ls__schedule_parse(ls__env_posix(), "fuzz", text, strlen(text), &again) == LS_OK);
    LS_ASSERT(ls__schedule_verify(again) == LS_OK);
    LS_ASSERT(ls__schedule_peaks(again, NULL, peaks) == LS_OK);
    LS_ASSERT(ls__simulate(again, &(ls__sim_spec){.times = times, .latency = 1.0}, &cost) == LS_OK);
    ls__schedule_free(again);
}

bool fuzz_schedule(const uint8_t *data, size_t bytes)
{
    ls__schedule *s = NULL;
    if (ls__schedule_parse(ls__env_posix(), "fuzz", (const char *)data, bytes, &s) < 0) {
        return false;
    }
    const bool accepted = ls__schedule_verify(s) == LS_OK;
    if (accepted) {
        use(s);
    }
    ls__schedule_free(s);
    return accepted;
}
