/* Copies of parameters along axes of the mesh over which no reducer adds their gradients: a norm's
 * weight on the ranks of tensor parallelism. Every rank of the axis computes the same gradient and
 * takes the same step, so they stay equal to the bit, unless a conversion of the gradient is
 * missing or a bit flips. Over its own axes the reducer compares them (reduce/compare.h). */
#ifndef LS_DDP_COPIES_H
#define LS_DDP_COPIES_H

#include <lockstep/status.h>

struct ls__ddp;

/* After a backward for which the parameters were hashed: LS_ERR_MISMATCH names parameter, ranks and
 * axis. Collective over each axis along which any parameter has copies: one all_gather of 16 bytes
 * a rank. `reduced`: what the reducer says; if it failed, the ranks that would wait are told. */
ls_status ls__ddp_copies_check(struct ls__ddp *d, ls_status reduced);

#endif
