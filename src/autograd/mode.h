/* SPDX-License-Identifier: Apache-2.0 */
/* The modes of a thread that autograd changes while a user's function runs within it. */
#ifndef LS_AUTOGRAD_MODE_H
#define LS_AUTOGRAD_MODE_H

#include "base/runtime.h"

typedef struct ls__autograd_mode {
    bool no_grad, autocast;
    struct ls__draw_log *record, *replay;
    const char *file;
    int line;
} ls__autograd_mode;

static inline ls__autograd_mode ls__autograd_mode_get(void)
{
    return (ls__autograd_mode){ls__self.no_grad, ls__self.autocast, ls__self.record,
                               ls__self.replay,  ls__self.file,     ls__self.line};
}

static inline void ls__autograd_mode_set(const ls__autograd_mode *mode)
{
    ls__self.no_grad = mode->no_grad;
    ls__self.autocast = mode->autocast;
    ls__self.record = mode->record;
    ls__self.replay = mode->replay;
    ls__self.file = mode->file;
    ls__self.line = mode->line;
}

#endif
