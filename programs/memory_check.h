/* SPDX-License-Identifier: Apache-2.0 */
/* Checks whether a GPT-2 of a published size fits into memory, before it is made. */
#ifndef PROGRAMS_MEMORY_CHECK_H
#define PROGRAMS_MEMORY_CHECK_H

#include "decoder.h"
#include "trainer.h"

/* Rank 0 prints the shapes, the number of parameters and the memory of a rank. If a host has less
 * memory than its ranks need, the program ends on all ranks. Returns these bytes. Collective. */
int64_t memory_check(const decoder_shape *shape, const trainer_options *train);

#endif
