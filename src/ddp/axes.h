/* SPDX-License-Identifier: Apache-2.0 */
/* A wrapper and the axes of the mesh in force: over which of them each parameter's gradient is
 * summed, and which of them are axes of batches.
 *
 * Without a mesh, or with a group that is not all ranks along some of its axes, nothing of this
 * applies. Else every axis of the group is one of batches, unless ls_ddp_options.batch_axes names
 * them; over the others only parameters that ls_place made replicated there are summed. */
#ifndef LS_DDP_AXES_H
#define LS_DDP_AXES_H

#include <lockstep/ddp.h>

#define LS__DDP_GROUPS_MAX 8

struct ls__ddp;

typedef struct ls__ddp_axes {
    bool known;                         /* a mesh is in force and the group is made of axes of it */
    int group;                          /* bit a: the group extends along axis a */
    int batches;                        /* … and its ranks have different samples there */
    ls_group *made[LS__DDP_GROUPS_MAX]; /* for sums over some axes only */
    int made_mask[LS__DDP_GROUPS_MAX], made_count;
    bool compared; /* the inputs of the first forward pass */
    bool counted;  /* the mesh counts this wrapper's axes of batches */
} ls__ddp_axes;

/* Collective where groups have to be made. */
ls_status ls__ddp_axes_init(struct ls__ddp *d, const ls_ddp_options *options);
/* The groups of a parameter that ls_ddp_options.place leaves open. Collective as above. */
ls_status ls__ddp_axes_place(struct ls__ddp *d, const ls_param *param, ls_ddp_place *place);
/* The ranks of the wrapper's group that have the same part of a parameter; NULL: all of them.
 * Collective as above. */
ls_status ls__ddp_axes_copies(struct ls__ddp *d, const ls_param *param, ls_group **out);
/* Tells the parameter over which axes its gradient is summed. */
ls_status ls__ddp_axes_note(struct ls__ddp *d, const ls_param *param, const ls_group *sums);
/* Losses may vary along the axes of batches from now on (begin), or no longer. */
void ls__ddp_axes_count(struct ls__ddp *d, bool begin);
/* Inputs of a forward pass without a placement vary along the axes of batches. */
void ls__ddp_axes_mark(const struct ls__ddp *d, ls_tensor *const *inputs, int count);
/* At the first forward pass: ranks along the axes of the model must have the same inputs.
 * Collective along these. */
ls_status ls__ddp_axes_check_inputs(struct ls__ddp *d, ls_tensor *const *inputs, int count);
/* Whether a communication hook can keep state for the parameters. */
ls_status ls__ddp_axes_check_hook(const struct ls__ddp *d);
ls_status ls__ddp_axes_fini(struct ls__ddp *d); /* collective */

#endif
