/* SPDX-License-Identifier: Apache-2.0 */
/* The kinds of actions: their tokens, which are those of PyTorch's pipelining tables as far as it
 * has them (torch/distributed/pipelining/schedules.py), and the fields that they use. */
#include "base/assert.h"
#include "base/text.h"
#include "schedule/schedule.h"

static const ls__action_form forms[LS__ACTION_KINDS] = {
    [LS__FORWARD] = {"F", .micro_batch = true, .reads = true},
    [LS__RECOMPUTE] = {"R", .micro_batch = true, .reads = true},
    [LS__BACKWARD] = {"B", .micro_batch = true, .reads = true, .adds = true, .backward = true},
    [LS__INPUT_PART] = {"I", .micro_batch = true, .reads = true, .backward = true},
    [LS__WEIGHT_PART] = {"W", .micro_batch = true, .adds = true},
    [LS__SEND_ACTIVATION] = {"SEND_F", .micro_batch = true, .arrow = '>'},
    [LS__RECV_ACTIVATION] = {"RECV_F", .micro_batch = true, .arrow = '<'},
    [LS__SEND_GRADIENT] = {"SEND_B", .micro_batch = true, .arrow = '>'},
    [LS__RECV_GRADIENT] = {"RECV_B", .micro_batch = true, .arrow = '<'},
    [LS__REDUCE] = {.token = "REDUCE"},
    [LS__STASH] = {"STASH", .version = true},
    [LS__LOAD] = {"LOAD", .version = true},
    [LS__STEP] = {"STEP", .version = true},
};

const ls__action_form *ls__action_form_of(int kind)
{
    LS_ASSERT(kind >= 0 && kind < LS__ACTION_KINDS);
    return &forms[kind];
}

const char *ls__action_print(const ls__action *action, char *out)
{
    const ls__action_form *form = ls__action_form_of(action->kind);
    ls__text text = {out, LS__ACTION_BYTES};
    ls__text_add(&text, "%d%s", action->stage, form->token);
    if (form->micro_batch) {
        ls__text_add(&text, "%d", action->micro_batch);
    }
    if (form->arrow != 0) {
        ls__text_add(&text, "%c%d", form->arrow, action->peer);
    }
    if (form->version) {
        ls__text_add(&text, "@%d", action->version);
    }
    return out;
}
