/* SPDX-License-Identifier: Apache-2.0 */
/* Conversions of placements, rows to ranks and ring attention on the device `cuda`: over a mesh of
 * the world, which is native, tensors of the device go by the backend `nccl`, both over their
 * fakes. Numbers of conversions are small integers, so sums in any order are those of the
 * processor. */
#include <math.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "../dist/comm/nccl_fakes.h"
#include "../fake_cuda/libraries.h"
#include "comm/core/group.h"

enum { ROWS = 6, COLUMNS = 12, NUMEL_MAX = 3 * ROWS * COLUMNS }; /* of the largest result */

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

static ls_mesh *begin(void)
{
    ls_mesh *mesh = NULL;
    name_fakes();
    load_fake_libraries();
    CHECK_OK(ls_mesh_new(ls_world(), "tp=*", &mesh));
    return mesh;
}

DIST_TESTS(conversions_on_, _gpus_are_those_of_processors_and_go_by_nccl, 2, 3)
{
    static result cpu, gpus;
    ls_mesh *mesh = begin();
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

/* A program's group of that backend carries them itself. */
DIST_TEST(conversions_over_a_group_of_nccl_need_no_group_beside_it, 2)
{
    static result cpu, gpus;
    ls_mesh *mesh = begin();
    convert("cpu", &rows[0], &cpu);
    CHECK_OK(ls_mesh_free(mesh));
    CHECK_OK(ls_device_use("cuda"));
    ls_group *nccl = group_over_nccl("gpus");
    CHECK_OK(ls_mesh_new(nccl, "tp=*", &mesh));
    convert("cuda", &rows[0], &gpus);
    CHECK(memcmp(&cpu, &gpus, sizeof cpu) == 0);
    CHECK(ls_mesh_group(mesh, "tp")->beside == NULL);
    CHECK_OK(ls_mesh_free(mesh));
    CHECK_OK(ls_group_free(nccl));
}

enum { OPENING = 2 }; /* operations in which the ranks of a group agree that it is open */

/* Operations that the group of the axis' GPUs has been given; 0: there is none. */
static uint64_t by_nccl(ls_mesh *mesh)
{
    const ls_group *beside = ls_mesh_group(mesh, "tp")->beside;
    return beside != NULL ? beside->sequence - OPENING : 0;
}

/* ---- rows ----------------------------------------------------------------------------------- */

static int64_t rows_of(int from, int to)
{
    return (from + 2 * to) % 3; /* none for one of the ranks */
}

static void exchange_rows(const char *device, result *out)
{
    int64_t counts[3], received[3], all = 0;
    LS_SCOPE;
    CHECK_OK(ls_device_use(device));
    for (int r = 0; r < ls_world_size(); r++) {
        counts[r] = rows_of(ls_rank(), r);
        received[r] = rows_of(r, ls_rank());
        all += counts[r];
    }
    ls_tensor *x = numbers(LS_SHAPE(all, COLUMNS), LS_VARYING, 1);
    CHECK_OK(ls_set_requires_grad(x, true));
    ls_tensor *y = ls_redistribute_rows(x, "tp", counts, received);
    CHECK_OK(ls_tensor_status(y));
    ls_tensor *dy = numbers(ls_shape_of(y), LS_VARYING, 2);
    CHECK_OK(ls_backward_from(&y, &dy, 1));
    *out = (result){0};
    CHECK_OK(ls_copy_out(y, out->y, (size_t)ls_numel(y) * sizeof(float)));
    CHECK_OK(ls_copy_out(ls_grad(x), out->dx, (size_t)ls_numel(x) * sizeof(float)));
}

DIST_TESTS(rows_on_, _gpus_are_those_of_processors_and_go_by_nccl, 2, 3)
{
    static result cpu, gpus;
    ls_mesh *mesh = begin();
    exchange_rows("cpu", &cpu);
    CHECK_INT(by_nccl(mesh), 0);
    exchange_rows("cuda", &gpus);
    CHECK_INT(by_nccl(mesh), 2); /* forward and backward */
    CHECK(memcmp(&cpu, &gpus, sizeof cpu) == 0);
    CHECK_OK(ls_mesh_free(mesh));
}

/* ---- ring attention ------------------------------------------------------------------------- */

enum { TIME = 6, DIM = 4, ATTENDED = 2 * TIME * DIM };

static ls_tensor *fractions(int which)
{
    float x[ATTENDED];
    for (int i = 0; i < ATTENDED; i++) {
        x[i] = (float)((i * 7 + ls_rank() * 11 + which * 5) % 31 - 15) / 16.0F;
    }
    ls_tensor *t = ls_from_data(x, LS_SHAPE(1, 2, TIME, DIM), LS_FLOAT32);
    CHECK_OK(ls_place(t, "tp", LS_VARYING));
    return t;
}

static void attend(const char *device, bool causal, result *out)
{
    ls_tensor *in[3];
    LS_SCOPE;
    CHECK_OK(ls_device_use(device));
    for (int i = 0; i < 3; i++) {
        in[i] = fractions(i);
        CHECK_OK(ls_set_requires_grad(in[i], true));
    }
    ls_tensor *y = ls_ring_attention(in[0], in[1], in[2], "tp",
                                     LS_OPTIONS(ls_attention_options, .causal = causal));
    ls_tensor *dy = fractions(3);
    CHECK_OK(ls_tensor_status(y));
    CHECK_OK(ls_backward_from(&y, &dy, 1));
    *out = (result){0};
    CHECK_OK(ls_copy_out(y, out->y, ATTENDED * sizeof(float)));
    for (int i = 0; i < 3; i++) {
        CHECK_OK(ls_copy_out(ls_grad(in[i]), &out->dx[i * ATTENDED], ATTENDED * sizeof(float)));
    }
}

DIST_TESTS(attention_in_a_ring_of_, _gpus_is_that_of_processors_and_goes_by_nccl, 2, 3)
{
    static result cpu, gpus;
    ls_mesh *mesh = begin();
    for (int causal = 0; causal < 2; causal++) {
        const uint64_t before = by_nccl(mesh);
        attend("cpu", causal == 1, &cpu);
        CHECK_INT(by_nccl(mesh), before);
        attend("cuda", causal == 1, &gpus);
        /* Keys n-1 times forward and backward, and their gradients' sums as often. */
        CHECK_INT(by_nccl(mesh) - before, 3 * (ls_world_size() - 1));
        for (int i = 0; i < 3 * ATTENDED; i++) {
            CHECK_NEAR(gpus.y[i], cpu.y[i], 2e-6);
            CHECK_NEAR(gpus.dx[i], cpu.dx[i], 2e-5);
        }
    }
    CHECK_OK(ls_mesh_free(mesh));
}

TEST_MAIN
