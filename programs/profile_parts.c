/* SPDX-License-Identifier: Apache-2.0 */
/* --profile: measures the parts of the model on a micro-batch of its training data, with its loss,
 * and ends the program. `lockstep plan profile` is this. */
#include "trainer_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void trainer_profile(trainer *t)
{
    ls_batch batch = {.size = sizeof batch};
    const trainer_options *s = t->set;
    if (ls_world_size() > 1 || s->mesh != NULL || s->accum > 1) {
        give_up(EXIT_USAGE, "--profile measures the whole model on one micro-batch in one process; "
                            "leave -n, --mesh, --plan and --accum out");
    }
    if (!cli_can_create(s->profile)) {
        give_up(EXIT_FAILURE, "--profile: \"%s\" cannot be written: %s", s->profile,
                strerror(errno));
    }
    trainer_next_batch(t, &batch);
    {
        LS_AUTOCAST(trainer_in_bf16(t));
        must(ls_profile_write(
            t->task.net, &batch.x, 1, batch.y,
            LS_OPTIONS(ls_profile_options, .loss = t->task.loss, .arg = t->task.arg), s->profile));
    }
    (void)printf("%s: %d parts, %lld parameters; lockstep plan pipeline makes a plan of it\n",
                 s->profile, ls_module_part_count(t->task.net),
                 (long long)ls_module_numel(t->task.net));
    exit(cli_end(EXIT_SUCCESS));
}
