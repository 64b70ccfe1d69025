/* SPDX-License-Identifier: Apache-2.0 */
/* Hooks of the user's as a kind of exchange; see hook.c. */
#ifndef LS_REDUCE_HOOK_H
#define LS_REDUCE_HOOK_H

#include "reduce/internal.h"

/* Frees the hook, if there is one, with its state. */
void ls__hook_free(ls_reducer *r);

/* Shows the state of the hook to a visitor; without one, nothing. */
ls_status ls__reducer_hook_state(ls_reducer *r, const char *prefix,
                                 const ls_state_visitor *visitor);

#endif
