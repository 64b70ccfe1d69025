/* SPDX-License-Identifier: Apache-2.0 */
/* The random state of a runtime as an item. Random numbers come from counters (docs/design.md, D5),
 * so the state is a few integers; unsigned ones are passed as the int64 of the same bits. */
#include <stdio.h>

#include "base/options.h"
#include "checkpoint/internal.h"

/* One function serves saving and loading: the visitor may change the value, which is written
 * back in both cases. In both, draws are counted from the same number on, so that the run that
 * saves and the one that resumes draw the same, also where the program begins no steps. */
ls_status ls_runtime_state(ls_runtime *runtime, const char *prefix, const ls_state_visitor *visitor)
{
    if (runtime == NULL) {
        return ls__fail(LS_ERR_INVALID, "ls_runtime_state: the runtime is NULL; give "
                                        "ls_runtime_current()");
    }
    LS_TRY(ls__visitor_check(visitor, __func__));
    struct {
        const char *name;
        uint64_t *value;
    } field[] = {{"seed", &runtime->seed},
                 {"param_streams", &runtime->param_streams},
                 {"step", &runtime->step},
                 {"calls_in_step", &runtime->calls_in_step}};
    for (size_t i = 0; i < sizeof field / sizeof field[0]; i++) {
        char name[256];
        int64_t value = (int64_t)*field[i].value;
        bool has_prefix = prefix != NULL && *prefix;
        int length = snprintf(name, sizeof name, "%s%s%s", has_prefix ? prefix : "",
                              has_prefix ? "." : "", field[i].name);
        if (length < 0 || (size_t)length >= sizeof name) {
            return ls__fail(
                LS_ERR_LIMIT,
                "ls_runtime_state: the prefix \"%.80s\" is too long; give a shorter one", prefix);
        }
        LS_TRY(ls__visit_int64(visitor, name, &value));
        *field[i].value = (uint64_t)value;
    }
    ls__draws_restart(runtime, runtime->calls_in_step);
    return LS_OK;
}
