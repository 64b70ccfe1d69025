/* SPDX-License-Identifier: Apache-2.0 */
/* Modules on a device whose kernels do not reach memory of the program. Over a backend that moves
 * memory of the device (`nccl`) buckets lie there as well: backward writes gradients to them, and
 * the reducer follows the device's stream, for which nobody waits. Else backward writes gradients
 * to memory of the device; each is copied to its bucket when it is final, and its average back.
 *
 * The data's device chooses: the reducer's groups have the backend of the parameters' device, and
 * the group of the program keeps its own, for what the program exchanges on the host. */
#ifndef LS_DDP_APART_H
#define LS_DDP_APART_H

#include "ddp/wrapper.h"

bool ls__ddp_is_apart(const ls_tensor *param);
/* Sets d->backend and d->on_host as this rank asks for them, with the parameters listed. Refuses a
 * backend that it cannot load, and parameters that the backend does not reach. */
ls_status ls__ddp_ask_backend(ls__ddp *d, const ls_ddp_options *options);
/* All ranks have asked for the same: the device's is used where all of them can load it.
 * Collective. */
ls_status ls__ddp_settle_backend(ls__ddp *d, const ls_ddp_options *options);
/* The stream of the device in whose memory the buckets lie; NULL: they lie in the program's. */
ls_stream *ls__ddp_stream(const ls__ddp *d);
/* Whether the gradient lies in memory of its own, and not in its bucket. */
bool ls__ddp_copies(const ls__ddp *d, const ls_tensor *param);
/* Before the reducer begins: averages that it will set aside go to their buckets, and the device
 * has zeros in their place. */
ls_status ls__ddp_carry_averages(const ls__ddp *d);
/* The gradient of parameter i, if it is present, to its bucket. */
ls_status ls__ddp_carry_out(const ls__ddp *d, int i);
/* From the buckets, those of params[count], or of all for NULL, that are present there. */
ls_status ls__ddp_carry_back(const ls__ddp *d, const int *params, int count);
/* Multiplies the gradients that were accumulated on this rank and not averaged. */
ls_status ls__ddp_scale_local(const ls__ddp *d, double factor);

#endif
