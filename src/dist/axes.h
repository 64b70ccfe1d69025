/* SPDX-License-Identifier: Apache-2.0 */
/* Named axes of a mesh, and which ranks stand where. No group is needed. */
#ifndef LS_DIST_AXES_H
#define LS_DIST_AXES_H

#include <lockstep/mesh.h>

#define LS__AXIS_NAME_MAX 16  /* with its end */
#define LS__AXES_TEXT_MAX 256 /* of the text that is parsed, with its end */

typedef struct ls__axis {
    char name[LS__AXIS_NAME_MAX];
    int size;
    int stride; /* between ranks that are neighbours along this axis */
} ls__axis;

typedef struct ls__axes {
    ls__axis axis[LS_MESH_AXES_MAX];
    int count, ranks;
} ls__axes;

ls_status ls__axes_check_length(const char *text); /* below LS__AXES_TEXT_MAX */
/* Of a text as ls_mesh_new takes it. `ranks` 0: as many as the sizes make, none of which is *. */
ls_status ls__axes_parse(const char *text, int ranks, ls__axes *out);
/* The index of the axis whose name has these `length` characters; -1: there is none. */
int ls__axes_find(const ls__axes *axes, const char *name, size_t length);
int ls__axes_coordinate(const ls__axes *axes, int axis, int rank);
/* The ranks that differ from `rank` in the axes of `mask` at most, in order, into ranks[]; returns
 * how many. */
int ls__axes_ranks(const ls__axes *axes, uint32_t mask, int rank, int *ranks);

#endif
