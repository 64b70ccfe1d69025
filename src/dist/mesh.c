/* SPDX-License-Identifier: Apache-2.0 */
/* A mesh's groups. All ranks make them in one order, that of the axes; the groups of one axis have
 * no rank in common and are made at once (group.h). */
#include <string.h>

#include "base/axes.h"
#include "base/hash.h"
#include "base/options.h"
#include "base/runtime.h"
#include "comm/api/control.h"
#include "comm/core/group.h"
#include "comm/diagnose/fail.h"
#include "comm/group/make.h"
#include "dist/axes.h"
#include "dist/mesh.h"

struct ls_mesh {
    ls_group *group; /* the user's */
    const ls__env *env;
    ls__runtime_guest guest; /* tells that the runtime, and with it the groups, has ended */
    ls__axes axes;
    ls_group *along[LS_MESH_AXES_MAX];
    uint32_t crossing; /* bit a: axis a has a group with ranks on two hosts */
    ls__axes_in_force in_force;
    char text[LS__AXES_TEXT_MAX];
    int ranks[]; /* [axes.ranks]; scratch */
};

/* Every rank compares all texts with rank 0's, so all return the same. `all` is [size]. */
static ls_status compare(ls_group *group, const char *text, char (*all)[LS__AXES_TEXT_MAX])
{
    char own[LS__AXES_TEXT_MAX] = "";
    memcpy(own, text, strlen(text));
    LS_TRY(ls__control_all_gather(group, own, all, sizeof own, LS_UINT8,
                                  LS_OPTIONS(ls_collective_options, .tag = "ls_mesh_new")));
    for (int r = 1; r < ls_group_size(group); r++) {
        if (memcmp(all[r], all[0], sizeof all[0]) != 0) {
            return ls__fail(
                LS_ERR_MISMATCH,
                "ls_mesh_new: rank %d of group \"%s\" gives the axes \"%.200s\", rank 0 "
                "\"%.200s\"; give the same on all ranks",
                r, ls_group_name(group), all[r], all[0]);
        }
    }
    return LS_OK;
}

/* The other ranks wait for this one, so the group fails. */
static ls_status no_memory(ls_group *group)
{
    const ls_status status = ls__fail(LS_ERR_MEMORY, "ls_mesh_new: no memory");
    ls__group_fail(group, status, ls_error_message());
    return status;
}

static ls_status agree_on_axes(ls_group *group, const char *text)
{
    const ls__env *env = group->comm->env;
    const size_t bytes = (size_t)group->size * LS__AXES_TEXT_MAX;
    char(*all)[LS__AXES_TEXT_MAX] = env->allocate(env, bytes);
    if (all == NULL) {
        return no_memory(group);
    }
    const ls_status status = compare(group, text, all);
    env->release(env, all, bytes);
    return status;
}

/* Collective over the mesh's group, whose ranks make different groups: hence the tag. */
static ls_status make_group(ls_mesh *mesh, uint32_t mask, const char *name, ls_group **out)
{
    ls_group *parent = mesh->group;
    const int count = ls__axes_ranks(&mesh->axes, mask, parent->rank, mesh->ranks);
    LS_TRY(ls__group_begin_making(parent));
    const ls_status status = ls__group_create(
        parent,
        &(ls__group_creation){
            .ranks = mesh->ranks, .count = count, .name = name, .tag = "ls_mesh_groups"},
        out);
    ls__group_end_making(parent->comm);
    return status;
}

/* On failure the caller frees the mesh with the groups made so far. */
static ls_status make_groups(ls_mesh *mesh)
{
    for (int a = 0; a < mesh->axes.count; a++) {
        LS_TRY(make_group(mesh, UINT32_C(1) << a, mesh->axes.axis[a].name, &mesh->along[a]));
        mesh->crossing |= (uint32_t)mesh->along[a]->has_remote << a;
    }
    int32_t crossing[LS_MESH_AXES_MAX];
    for (int a = 0; a < LS_MESH_AXES_MAX; a++) {
        crossing[a] = (int32_t)(mesh->crossing >> a & 1);
    }
    LS_TRY(ls__control_all_reduce(mesh->group, crossing, LS_MESH_AXES_MAX, LS_INT32, LS_MAX,
                                  LS_OPTIONS(ls_collective_options, .tag = "ls_mesh_new")));
    for (int a = 0; a < LS_MESH_AXES_MAX; a++) {
        mesh->crossing |= (uint32_t)crossing[a] << a;
    }
    return LS_OK;
}

/* Takes its groups (change 1), or gives them back (-1). */
static void use_groups(ls_mesh *mesh, int change)
{
    ls__group_use(mesh->group, LS__USER_MESH, change);
    for (int a = 0; a < mesh->axes.count; a++) {
        if (mesh->along[a] != NULL) { /* not all were made */
            ls__group_use(mesh->along[a], LS__USER_MESH, change);
        }
    }
}

static size_t bytes_of(int ranks)
{
    return sizeof(ls_mesh) + (size_t)ranks * sizeof(int);
}

/* The error of a failed part is kept. */
static ls_status give_up(ls_mesh *mesh, ls_status status)
{
    char message[LS__MESSAGE_MAX];
    memcpy(message, ls__self.message, sizeof message);
    (void)ls_mesh_free(mesh);
    return ls__fail_again(status, message);
}

/* For tensors. */
static void describe(ls_mesh *mesh)
{
    mesh->in_force = (ls__axes_in_force){.count = mesh->axes.count, .mesh = mesh};
    uint64_t hash = LS__HASH_START;
    for (int a = 0; a < mesh->axes.count; a++) {
        ls__axis_in_force *axis = &mesh->in_force.axis[a];
        memcpy(axis->name, mesh->axes.axis[a].name, sizeof axis->name);
        axis->size = mesh->axes.axis[a].size;
        axis->coordinate = mesh->along[a]->rank;
        axis->group = mesh->along[a];
        hash = ls__hash_bytes(hash, axis->name, sizeof axis->name);
        hash = ls__hash_bytes(hash, &axis->size, sizeof axis->size);
    }
    mesh->in_force.layout = (uint8_t)(1 + hash % UINT8_MAX);
}

ls_status(ls_mesh_new)(ls_group *group, const char *axes, ls_mesh **out)
{
    ls__axes parsed;
    if (group == NULL || axes == NULL || out == NULL) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_mesh_new: the group, the axes or the place for the mesh are missing; "
                        "give all three");
    }
    *out = NULL;
    LS_TRY(ls__axes_check_length(axes));
    LS_TRY(agree_on_axes(group, axes)); /* first: then all ranks refuse bad axes alike */
    LS_TRY(ls__axes_parse(axes, group->size, &parsed));
    const ls__env *env = group->comm->env;
    ls_mesh *mesh = env->allocate(env, bytes_of(group->size));
    if (mesh == NULL) {
        return no_memory(group);
    }
    *mesh = (ls_mesh){.group = group, .env = env, .axes = parsed};
    memcpy(mesh->text, axes, strlen(axes) + 1);
    ls__runtime_enter(group->comm->runtime, &mesh->guest);
    const ls_status status = make_groups(mesh);
    use_groups(mesh, 1);
    if (status < 0) {
        return give_up(mesh, status);
    }
    describe(mesh);
    if (group->comm->runtime->axes == NULL) {
        group->comm->runtime->axes = &mesh->in_force;
    }
    *out = mesh;
    return LS_OK;
}

ls_status ls_mesh_use(ls_mesh *mesh)
{
    ls_runtime *runtime = ls__runtime_get("ls_mesh_use");
    if (runtime == NULL) {
        return ls__self.status;
    }
    runtime->axes = mesh != NULL ? &mesh->in_force : NULL;
    return LS_OK;
}

ls_mesh *ls_mesh_in_force(void)
{
    const ls_runtime *runtime = ls__runtime_get("ls_mesh_in_force");
    return runtime != NULL && runtime->axes != NULL ? runtime->axes->mesh : NULL;
}

static ls_status check_unused(const ls_mesh *mesh)
{
    for (int a = 0; a < mesh->axes.count; a++) {
        if (mesh->along[a] != NULL) {
            LS_TRY(ls__group_check_unused(mesh->along[a], "ls_mesh_free"));
        }
    }
    return LS_OK;
}

static ls_status free_groups(ls_mesh *mesh)
{
    ls_status status = LS_OK;
    for (int a = mesh->axes.count - 1; a >= 0; a--) {
        const ls_status freed = ls_group_free(mesh->along[a]);
        status = status < 0 ? status : freed;
    }
    return status;
}

/* Frees all of its groups, or none while something still uses one. */
ls_status ls_mesh_free(ls_mesh *mesh)
{
    ls_status status = LS_OK;
    if (mesh == NULL) {
        return LS_OK;
    }
    if (mesh->guest.runtime != NULL) {
        use_groups(mesh, -1);
        status = check_unused(mesh);
        if (status < 0) {
            use_groups(mesh, 1);
            return status;
        }
        status = free_groups(mesh);
        if (mesh->guest.runtime->axes == &mesh->in_force) {
            mesh->guest.runtime->axes = NULL;
        }
        ls__runtime_leave(&mesh->guest);
    }
    mesh->env->release(mesh->env, mesh, bytes_of(mesh->axes.ranks));
    return status;
}

/* ---- looking ------------------------------------------------------------------------------ */

/* -1 with the error set. */
static int find(const ls_mesh *mesh, const char *axis, size_t length, const char *what)
{
    if (mesh == NULL || axis == NULL) {
        (void)ls__fail(LS_ERR_INVALID, "%s: the mesh or the axis is NULL; give both", what);
        return -1;
    }
    const int found = ls__axes_find(&mesh->axes, axis, length);
    if (found < 0) {
        (void)ls__fail(LS_ERR_NOT_FOUND, "%s: the mesh \"%s\" has no axis \"%.*s\"", what,
                       mesh->text, (int)(length < 40 ? length : 40), axis);
    }
    return found;
}

bool ls_mesh_has(const ls_mesh *mesh, const char *axis)
{
    return mesh != NULL && axis != NULL && ls__axes_find(&mesh->axes, axis, strlen(axis)) >= 0;
}

ls_group *ls_mesh_group(const ls_mesh *mesh, const char *axis)
{
    const int a = find(mesh, axis, axis != NULL ? strlen(axis) : 0, "ls_mesh_group");
    return a < 0 ? NULL : mesh->along[a];
}

int ls_mesh_size(const ls_mesh *mesh, const char *axis)
{
    const int a = find(mesh, axis, axis != NULL ? strlen(axis) : 0, "ls_mesh_size");
    return a < 0 ? 0 : mesh->axes.axis[a].size;
}

int ls_mesh_coordinate(const ls_mesh *mesh, const char *axis)
{
    const int a = find(mesh, axis, axis != NULL ? strlen(axis) : 0, "ls_mesh_coordinate");
    return a < 0 ? -1 : mesh->along[a]->rank;
}

bool ls_mesh_crosses_hosts(const ls_mesh *mesh, const char *axis)
{
    const int a = find(mesh, axis, axis != NULL ? strlen(axis) : 0, "ls_mesh_crosses_hosts");
    return a >= 0 && (mesh->crossing >> a & 1) != 0;
}

/* Seen from this rank: all ranks that differ from it in the axes found must be in the group, and no
 * others. */
int ls__mesh_axes_of(const ls_mesh *mesh, const ls_group *group)
{
    const ls__axes *axes = &mesh->axes;
    const int own = mesh->group->rank;
    int mask = 0, ranks = 1, inside = 0;
    for (int a = 0; a < axes->count; a++) {
        const int size = axes->axis[a].size, at = ls__axes_coordinate(axes, a, own);
        const int other = own + ((at + 1) % size - at) * axes->axis[a].stride;
        if (size > 1 && ls__member_of(group, mesh->group->member[other].world_rank) >= 0) {
            mask |= 1 << a;
            ranks *= size;
        }
    }
    const int count =
        ls__axes_ranks(axes, (uint32_t)mask, own, ((ls_mesh *)(uintptr_t)mesh)->ranks);
    for (int i = 0; i < count; i++) {
        const int world = mesh->group->member[mesh->ranks[i]].world_rank;
        inside += ls__member_of(group, world) >= 0;
    }
    return inside == ranks && group->size == ranks ? mask : -1;
}

bool ls__axis_leads_out(const ls__axis_in_force *axis, const ls_group *group)
{
    const ls_group *along = axis->group;
    const int next = (axis->coordinate + 1) % axis->size;
    return axis->size > 1 &&
           (group == NULL || ls__member_of(group, along->member[next].world_rank) < 0);
}

ls_status(ls_mesh_group_new)(const ls_mesh *mesh, const char *axes, ls_group **out)
{
    uint32_t mask = 0;
    if (out == NULL) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_mesh_group_new: out is NULL; give a place for the group");
    }
    *out = NULL;
    for (const char *at = axes; at == axes || *at++ == ',';) {
        const size_t length = at != NULL ? strcspn(at, ",") : 0;
        const int a = find(mesh, at, length, "ls_mesh_group_new");
        if (a < 0) {
            return ls__self.status;
        }
        mask |= UINT32_C(1) << a;
        at += length;
    }
    return make_group((ls_mesh *)(uintptr_t)mesh, mask, axes, out);
}
