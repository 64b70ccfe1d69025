/* SPDX-License-Identifier: Apache-2.0 */
/* What other folders need of a mesh. */
#ifndef LS_DIST_MESH_H
#define LS_DIST_MESH_H

#include <stdbool.h>

#include <lockstep/mesh.h>

#include "base/axes.h"

/* Bit a: the group has this rank's neighbours along axis a, of more than one rank. -1: its ranks
 * are not all those along some axes. Local. */
int ls__mesh_axes_of(const ls_mesh *mesh, const ls_group *group);
/* Whether other ranks of the axis are not in `group` (NULL: none are). */
bool ls__axis_leads_out(const ls__axis_in_force *axis, const ls_group *group);

#endif
