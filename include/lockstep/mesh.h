/* SPDX-License-Identifier: Apache-2.0 */
/* A mesh: the ranks of a group in a grid with named axes, and the groups along them
 * (torch.distributed's init_device_mesh; Megatron-LM's RankGenerator).
 *
 *     ls_mesh_new(ls_world(), "pp=2,dp=4", &mesh)
 *
 *             dp 0  1  2  3
 *       pp 0     0  1  2  3      group "dp" of rank 5: {4 5 6 7}
 *       pp 1     4  5  6  7      group "pp" of rank 5: {1 5}
 *
 * The last axis varies fastest, so ranks that differ in it only are neighbours, and share a host
 * where hosts have consecutive ranks. Names in use: dp (data), pp (pipeline stages), tp (tensor),
 * ep (experts), cp (context). `lockstep info --mesh AXES` draws a mesh.
 */
#ifndef LOCKSTEP_MESH_H
#define LOCKSTEP_MESH_H

#include <lockstep/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LS_MESH_AXES_MAX 8

typedef struct ls_mesh ls_mesh;

/* `axes` is a list of name=size with sizes of 1 or more, whose product is the size of `group`; one
 * size may be * for the ranks that remain ("dp=*,pp=2"). A name has up to 15 letters, digits and
 * underscores. Makes the group along each axis, in the order of `axes` on every rank; groups have
 * their axis's name. Collective over `group`, which is borrowed until ls_mesh_free. LS_ERR_INVALID
 * for bad axes, LS_ERR_MISMATCH when ranks pass different ones. */
LS_API ls_status ls_mesh_new(ls_group *group, const char *axes, ls_mesh **out);
/* Frees the mesh and its groups. Collective; NULL is allowed. LS_ERR_STATE, with nothing freed,
 * while something else still uses one of these (ls_group_free). */
LS_API ls_status ls_mesh_free(ls_mesh *mesh);

/* Local calls. Of an axis that the mesh does not have: NULL, 0, -1 and false with the error set
 * (LS_ERR_NOT_FOUND), except for ls_mesh_has. */
LS_API bool ls_mesh_has(const ls_mesh *mesh, const char *axis);
/* The ranks that differ from this one in `axis` at most, ordered by it; borrowed until
 * ls_mesh_free. The rank in this group is this rank's coordinate. */
LS_API ls_group *ls_mesh_group(const ls_mesh *mesh, const char *axis);
LS_API int ls_mesh_size(const ls_mesh *mesh, const char *axis);
LS_API int ls_mesh_coordinate(const ls_mesh *mesh, const char *axis);
/* Whether any group along this axis, of whichever ranks, has ranks on two hosts. The same on all
 * ranks. */
LS_API bool ls_mesh_crosses_hosts(const ls_mesh *mesh, const char *axis);

/* Makes a group of the ranks that differ from this one in the listed axes at most ("dp,cp"), in the
 * order of the mesh; for example the ranks that share one sum of gradients. Collective over the
 * mesh's group; all ranks pass the same list. Free it with ls_group_free before the mesh. */
LS_API ls_status ls_mesh_group_new(const ls_mesh *mesh, const char *axes, ls_group **out);

/* Puts `mesh` in force for the tensors of this process (placement.h); NULL: none. ls_mesh_new does
 * so with the first mesh of a process, ls_mesh_free ends it. Placements belong to a mesh: use one
 * for a model. Local call; all ranks make the same. */
LS_API ls_status ls_mesh_use(ls_mesh *mesh);
LS_API ls_mesh *ls_mesh_in_force(void); /* NULL: none */

#if !defined(LS_NO_SITES)
#define ls_mesh_new(...) LS_AT(ls_mesh_new(__VA_ARGS__))
#define ls_mesh_group_new(...) LS_AT(ls_mesh_group_new(__VA_ARGS__))
#endif

#ifdef __cplusplus
}
#endif
#endif
