/* SPDX-License-Identifier: Apache-2.0 */
/* What the generators share: each adds the computations of every rank in their order, F, B or I and
 * W, to an empty table. Passes add the rest (lower.c). */
#ifndef LS_SCHEDULE_GENERATOR_GENERATOR_H
#define LS_SCHEDULE_GENERATOR_GENERATOR_H

#include "schedule/schedule.h"

/* Checks what of the spec is its own, sets per_step and delay, and adds the computations. */
typedef ls_status (*ls__generator_fn)(ls__schedule *s, const ls__schedule_spec *spec);

ls_status ls__generate_naive(ls__schedule *s, const ls__schedule_spec *spec);
ls_status ls__generate_gpipe(ls__schedule *s, const ls__schedule_spec *spec);
ls_status ls__generate_1f1b(ls__schedule *s, const ls__schedule_spec *spec);
ls_status ls__generate_interleaved(ls__schedule *s, const ls__schedule_spec *spec);
ls_status ls__generate_zb_h1(ls__schedule *s, const ls__schedule_spec *spec);
ls_status ls__generate_pipedream(ls__schedule *s, const ls__schedule_spec *spec);
ls_status ls__generate_pipedream_2bw(ls__schedule *s, const ls__schedule_spec *spec);

#endif
