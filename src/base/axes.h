/* SPDX-License-Identifier: Apache-2.0 */
/* The axes of the mesh in force, as tensors know them (dist/mesh.c puts it in force). */
#ifndef LS_BASE_AXES_H
#define LS_BASE_AXES_H

#include <stdint.h>

#define LS__AXES_MAX 8
#define LS__AXIS_NAME_BYTES 16

typedef struct ls__axis_in_force {
    char name[LS__AXIS_NAME_BYTES];
    int size, coordinate;
    void *group;      /* ls_group */
    int batches;      /* reducers that know the divisor of a loss that varies along it */
    uint64_t sent[6]; /* all-reduces, all-gathers, reduce-scatters, all-to-alls; bytes; messages */
} ls__axis_in_force;

typedef struct ls__axes_in_force {
    int count;
    ls__axis_in_force axis[LS__AXES_MAX];
    void *mesh;     /* ls_mesh */
    uint8_t layout; /* a hash of its names and sizes; never 0 */
} ls__axes_in_force;

#endif
