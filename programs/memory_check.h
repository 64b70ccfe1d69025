/* Whether a GPT-2 of a published size fits, found out before it is made. */
#ifndef PROGRAMS_MEMORY_CHECK_H
#define PROGRAMS_MEMORY_CHECK_H

#include "decoder.h"
#include "trainer.h"

/* Rank 0 prints shapes, the number of parameters and the memory that a rank takes. Unless all hosts
 * have it for their ranks, the program ends on all of them. Collective. */
void memory_check(const decoder_shape *shape, const trainer_options *train);

#endif
