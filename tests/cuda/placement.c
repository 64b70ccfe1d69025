/* SPDX-License-Identifier: Apache-2.0 */
/* Conversions of placements on the device `cuda`: over a mesh of the world, which is native,
 * tensors of the device go by the backend `nccl`, both over their fakes. Numbers are small
 * integers, so sums in any order are those of the processor. */
#include <dlfcn.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "../dist/comm/nccl_fakes.h"
#include "comm/core/group.h"

enum { ROWS = 6, COLUMNS = 12, NUMEL_MAX = 3 * ROWS * COLUMNS };

typedef struct row {
    ls_placement from, to;
} row;

static const row rows[] = {
    {LS_PARTIAL, LS_INVARIANT},     {LS_PARTIAL, LS_REPLICATED},    {LS_PARTIAL, LS_SHARDED(0)},
    {LS_PARTIAL, LS_SHARDED(1)},    {LS_SHARDED(0), LS_REPLICATED}, {LS_SHARDED(1), LS_INVARIANT},
    {LS_SHARDED(0), LS_SHARDED(1)}, {LS_SHARDED(1), LS_SHARDED(0)}, {LS_INVARIANT, LS_SHARDED(0)},
    {LS_REPLICATED, LS_SHARDED(1)},
};

typedef struct result {
    float y[NUMEL_MAX], dx[NUMEL_MAX];
} result;

static ls_placement dual(ls_placement p)
{
    return p == LS_PARTIAL ? LS_REPLICATED : p == LS_REPLICATED ? LS_PARTIAL : p;
}

/* Terms of a sum, and parts, differ from rank to rank. */
static ls_tensor *numbers(ls_shape shape, ls_placement p, int factor)
{
    float x[NUMEL_MAX];
    const bool alike = p == LS_INVARIANT || p == LS_REPLICATED;
    const int64_t numel = shape.dim[0] * shape.dim[1];
    CHECK(numel <= NUMEL_MAX);
    for (int64_t i = 0; i < numel; i++) {
        x[i] = (float)(factor * ((i * 7 + (alike ? 0 : ls_rank() * 11)) % 31 - 15));
    }
    ls_tensor *t = ls_from_data(x, shape, LS_FLOAT32);
    CHECK_OK(ls_place(t, "tp", p));
    return t;
}

static void convert(const char *device, const row *c, result *out)
{
    ls_shape shape = LS_SHAPE(ROWS, COLUMNS);
    LS_SCOPE;
    CHECK_OK(ls_device_use(device));
    ls_tensor *x = numbers(shape, c->from, 1);
    CHECK_OK(ls_set_requires_grad(x, true));
    ls_tensor *y = ls_redistribute(x, "tp", c->from, c->to);
    CHECK_OK(ls_tensor_status(y));
    ls_tensor *dy = numbers(ls_shape_of(y), dual(c->to), 2);
    CHECK_OK(ls_backward_from(&y, &dy, 1));
    *out = (result){0};
    CHECK_OK(ls_copy_out(y, out->y, (size_t)ls_numel(y) * sizeof(float)));
    CHECK_OK(ls_copy_out(ls_grad(x), out->dx, (size_t)ls_numel(x) * sizeof(float)));
}

DIST_TESTS(conversions_on_, _gpus_are_those_of_processors_and_go_by_nccl, 2, 3)
{
    static result cpu, gpus;
    ls_mesh *mesh = NULL;
    name_fakes();
    (void)dlopen(test_build_path("tests/fake_cuda/libcublasLt.so.13"), RTLD_NOW | RTLD_GLOBAL);
    CHECK_OK(ls_mesh_new(ls_world(), "tp=*", &mesh));
    const ls_group *axis = ls_mesh_group(mesh, "tp");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        convert("cpu", &rows[i], &cpu);
        CHECK(i > 0 || axis->beside == NULL);
        convert("cuda", &rows[i], &gpus);
        if (memcmp(&cpu, &gpus, sizeof cpu) != 0) {
            test_fail(__FILE__, __LINE__, "conversion %zu has other numbers on the GPU", i);
        }
    }
    CHECK(axis->beside != NULL && strcmp(ls_group_backend(axis->beside), "nccl") == 0);
    CHECK(strcmp(ls_group_backend(axis), "native") == 0);
    CHECK_OK(ls_mesh_free(mesh));
}

TEST_MAIN
