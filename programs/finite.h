/* SPDX-License-Identifier: Apache-2.0 */
/* Values that are not finite, in what a run loads and in what it has trained. */
#ifndef PROGRAMS_FINITE_H
#define PROGRAMS_FINITE_H

#include <lockstep/lockstep.h>

/* Ends the program if a tensor of the items holds NaN or infinity: training from it would only
 * spread them. `from`: "--resume run7", with which the error begins. */
void must_be_finite(const ls_checkpoint_item *items, int count, const char *from);

/* Ends the program if the module has such a tensor on any rank after `step` steps. Collective over
 * all ranks. `checkpoint`: is completed first; NULL: there is none. */
void must_end_finite(ls_module *net, int64_t step, ls_checkpoint *checkpoint);

#endif
