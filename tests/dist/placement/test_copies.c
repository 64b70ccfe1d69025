/* SPDX-License-Identifier: Apache-2.0 */
/* Sharded parameters in files, and copies that must be equal: what one mesh saves, another loads,
 * and a copy that has drifted is named. */
#include <stdlib.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "says.h"
#include "sharded.h"
#include "small.h"

/* ---- checkpoints of any mesh load on any other ---------------------------------------------- */

typedef struct job {
    const char *folder, *axes;
    bool save;
} job;

typedef struct capture { /* all bytes that a walk shows */
    ls_state_visitor visitor;
    uint8_t bytes[16384];
    size_t used;
} capture;

static ls_status keep_tensor(void *self, const char *name, const ls_state_tensor *t)
{
    capture *c = self;
    size_t bytes = ls_dtype_size(t->dtype);
    (void)name;
    for (int d = 0; d < t->ndim; d++) {
        bytes *= (size_t)t->local[d];
    }
    CHECK(c->used + bytes <= sizeof c->bytes);
    memcpy(c->bytes + c->used, t->data, bytes);
    c->used += bytes;
    return LS_OK;
}

static ls_status keep_int64(void *self, const char *name, int64_t *value)
{
    const ls_state_tensor t = {.dtype = LS_INT64, .data = value};
    return keep_tensor(self, name, &t);
}

static ls_status keep_float64(void *self, const char *name, double *value)
{
    const ls_state_tensor t = {.dtype = LS_FLOAT64, .data = value};
    return keep_tensor(self, name, &t);
}

static capture *capture_of(ls_module *net, ls_optim *optim)
{
    capture *c = calloc(1, sizeof *c);
    CHECK(c != NULL);
    c->visitor = (ls_state_visitor){.size = sizeof c->visitor,
                                    .self = c,
                                    .tensor = keep_tensor,
                                    .int64 = keep_int64,
                                    .float64 = keep_float64};
    CHECK_OK(ls_module_state(net, "model", &c->visitor));
    CHECK_OK(ls_optim_state(optim, "optim", &c->visitor));
    return c;
}

/* After a step, so that the optimizer's state is not zero. */
static ls_optim *trained(ls_module *net, const ls_mesh *mesh)
{
    ls_optim *optim = ls_adamw_new(net, NULL);
    CHECK_OK(run_backward(net, mesh));
    CHECK_OK(ls_optim_step(optim));
    return optim;
}

/* What is loaded is what the same training gives on this mesh: its steps are elementwise. */
static void check_loaded(ls_checkpoint *c, const ls_mesh *mesh)
{
    int64_t step = 0;
    ls_module *net = model_of(mesh, 2), *want = model_of(mesh, 1);
    ls_optim *optim = trained(net, mesh), *wanted = trained(want, mesh);
    capture *other = capture_of(net, optim);
    CHECK_OK(ls_checkpoint_load(
        c, (const ls_checkpoint_item[]){LS_ITEM("model", net), LS_ITEM("optim", optim)}, 2, &step));
    capture *loaded = capture_of(net, optim), *expected = capture_of(want, wanted);
    CHECK(loaded->used == expected->used);
    CHECK(memcmp(other->bytes, expected->bytes, expected->used) != 0);
    CHECK(memcmp(loaded->bytes, expected->bytes, expected->used) == 0);
    free(other);
    free(loaded);
    free(expected);
    ls_optim_free(optim);
    ls_optim_free(wanted);
    ls_module_free(net);
    ls_module_free(want);
}

static int run_job(void *arg)
{
    const job *j = arg;
    ls_checkpoint *c = NULL;
    CHECK_OK(ls_init(NULL));
    ls_mesh *mesh = mesh_of(j->axes);
    CHECK_OK(ls_checkpoint_new(j->folder, ls_world(), NULL, &c));
    if (j->save) {
        ls_module *net = model_of(mesh, 1);
        ls_optim *optim = trained(net, mesh);
        CHECK_OK(ls_checkpoint_save(
            c, 1, (const ls_checkpoint_item[]){LS_ITEM("model", net), LS_ITEM("optim", optim)}, 2));
        ls_optim_free(optim);
        ls_module_free(net);
    } else {
        check_loaded(c, mesh);
    }
    CHECK_OK(ls_checkpoint_free(c));
    CHECK_OK(ls_mesh_free(mesh));
    CHECK_OK(ls_finalize());
    return 0;
}

TEST(a_checkpoint_of_any_mesh_loads_on_any_other)
{
    static const struct {
        const char *axes;
        int ranks;
    } meshes[] = {{"tp=1", 1}, {"tp=2", 2}, {"tp=4", 4}, {"dp=2,tp=2", 4}, {"ep=2,tp=2", 4}};
    enum { MESHES = sizeof meshes / sizeof meshes[0] };
    for (int i = 0; i < MESHES; i++) {
        char folder[64];
        small_folder(folder);
        CHECK_OK(ls_spawn(run_job, &(job){folder, meshes[i].axes, true}, meshes[i].ranks));
        for (int k = 0; k < MESHES; k++) {
            CHECK_OK(ls_spawn(run_job, &(job){folder, meshes[k].axes, false}, meshes[k].ranks));
        }
        small_remove(folder);
    }
}

/* ---- equal boxes that differ ---------------------------------------------------------------- */

/* dp=2,tp=2: rank 3 has another number in its part of "qkv", or of its first moment. */
static int run_differing(void *arg)
{
    const job *j = arg;
    ls_checkpoint *c = NULL;
    CHECK_OK(ls_init(NULL));
    ls_mesh *mesh = mesh_of("dp=2,tp=2");
    ls_module *net = model_of(mesh, 1);
    ls_optim *optim = trained(net, mesh);
    const ls_checkpoint_item items[] = {LS_ITEM("model", net), LS_ITEM("optim", optim)};
    if (j->save) { /* of the optimizer: a step that the others do not take */
        ls_tensor *qkv = ls_module_param(net, "qkv");
        add_float(ls_grad(qkv), 5, ls_rank() == 3 ? 1.0f : 0.0f);
        CHECK_OK(ls_optim_step(optim));
        ls_fill_constant(qkv, 1.0);
    } else if (ls_rank() == 3) {
        add_float(ls_module_param(net, "qkv"), 5, 1.0f);
    }
    CHECK_OK(ls_checkpoint_new(j->folder, ls_world(), NULL, &c));
    CHECK_STATUS(ls_checkpoint_save(c, 1, items, 2), LS_ERR_MISMATCH);
    CHECK_CONTAINS(ls_error_message(), j->save ? "\"optim.exp_avg.qkv\" (float32 [24,8]) has other"
                                               : "\"model.qkv\" (float32 [24,8]) has other");
    CHECK_CONTAINS(ls_error_message(), "on rank 3 than on rank 1");
    CHECK_OK(ls_checkpoint_free(c));
    ls_optim_free(optim);
    ls_module_free(net);
    CHECK_OK(ls_mesh_free(mesh));
    CHECK_OK(ls_finalize());
    return 0;
}

TEST(a_part_that_two_ranks_show_differently_is_not_saved)
{
    char folder[64];
    small_folder(folder);
    CHECK_OK(ls_spawn(run_differing, &(job){folder, NULL, false}, 4));
    CHECK_OK(ls_spawn(run_differing, &(job){folder, NULL, true}, 4));
    CHECK_INT(small_count(folder, "step-"), 0);
    small_remove(folder);
}

DIST_TEST(a_file_of_weights_holds_whole_tensors_only, 2)
{
    char path[64];
    ls_mesh *mesh = mesh_of("tp=2");
    ls_module *net = model_of(mesh, 1);
    (void)snprintf(path, sizeof path, "/tmp/lockstep-parts-%d", (int)getpid());
    CHECK_STATUS(ls_module_save_safetensors(net, path, NULL), LS_ERR_UNSUPPORTED);
    CHECK_CONTAINS(ls_error_message(), "this rank has only a slice of \"qkv\"; show its whole");
    ls_module *whole = model_of(NULL, 1);
    CHECK_OK(ls_module_save_safetensors(whole, path, NULL));
    CHECK_STATUS(ls_module_load_safetensors(net, path, NULL), LS_ERR_UNSUPPORTED);
    CHECK_CONTAINS(ls_error_message(), "load before the model is sharded");
    CHECK(unlink(path) == 0);
    ls_module_free(net);
    ls_module_free(whole);
    CHECK_OK(ls_mesh_free(mesh));
}

/* ---- copies --------------------------------------------------------------------------------- */

static ls_module *wrapped(const ls_mesh *mesh)
{
    ls_module *net = ls_ddp_new(model_of(mesh, 1), ls_mesh_group(mesh, "dp"),
                                LS_OPTIONS(ls_ddp_options, .check_every = 1));
    CHECK(net != NULL);
    return net;
}

DIST_TEST(equal_copies_of_a_sharded_model_pass_every_check, 4)
{
    int identical = 0;
    uint64_t hash = 0;
    ls_mesh *mesh = mesh_of("dp=2,tp=2");
    ls_module *net = wrapped(mesh);
    for (int i = 0; i < 3; i++) {
        CHECK_OK(run_backward(net, mesh));
    }
    CHECK_OK(ls_replicas_identical(net, ls_world(), &identical, &hash));
    CHECK_INT(identical, 4);
    CHECK_OK(ls_replicas_identical(net, ls_mesh_group(mesh, "tp"), &identical, &hash));
    CHECK_INT(identical, 2);
    ls_tensor *row = ls_module_param(net, "row"); /* sharded along tp: rank 2 is beside rank 0 */
    add_float(row, 1, ls_rank() == 2 ? 1.0f : 0.0f);
    CHECK_OK(ls_replicas_identical(net, ls_world(), &identical, &hash));
    CHECK_INT(identical, 3);
    ls_module_free(net);
    CHECK_OK(ls_mesh_free(mesh));
}

/* tp=1 of both batches drifts: the reducer's ranks agree, the copies do not. */
DIST_TEST(a_norm_that_drifts_on_one_rank_of_the_axis_is_named, 4)
{
    ls_mesh *mesh = mesh_of("dp=2,tp=2");
    ls_module *net = wrapped(mesh);
    CHECK_OK(run_backward(net, mesh));
    const bool odd = ls_mesh_coordinate(mesh, "tp") == 1;
    add_float(ls_module_param(net, "norm"), 2, odd ? 0.5f : 0.0f);
    CHECK_STATUS(run_backward(net, mesh), LS_ERR_MISMATCH);
    CHECK_CONTAINS(ls_error_message(), "ddp, copies along axis tp: the ranks differ in the numbers "
                                       "of norm: rank ");
    CHECK_SAYS(ls_error_message(), "ddp, copies along axis %s");
    CHECK_SAYS(ls_error_message(), "the numbers of %.200s");
    CHECK_SAYS(
        ls_error_message(),
        "a gradient lacks a conversion along this axis (ls_redistribute), a bit has flipped, "
        "or the program changed it on one rank");
    ls_module_free(net);
    (void)ls_mesh_free(mesh);
}

/* Frozen before it was wrapped, with other values on both ranks of tp=1. */
DIST_TEST(a_frozen_norm_that_differs_along_the_axis_is_named_at_the_first_step, 4)
{
    ls_mesh *mesh = mesh_of("dp=2,tp=2");
    ls_module *model = model_of(mesh, 1);
    const bool odd = ls_mesh_coordinate(mesh, "tp") == 1;
    add_float(ls_module_param(model, "norm"), 2, odd ? 0.5f : 0.0f);
    CHECK(ls_set_requires_grad(ls_module_param(model, "norm"), false) != NULL);
    ls_module *net = ls_ddp_new(model, ls_mesh_group(mesh, "dp"), NULL);
    CHECK_STATUS(run_backward(net, mesh), LS_ERR_MISMATCH);
    CHECK_CONTAINS(ls_error_message(),
                   "ddp, copies along axis tp: the ranks differ in the numbers of norm: rank ");
    CHECK_SAYS(ls_error_message(),
               SAYS("give the ranks of the axis the same values, by one seed or a checkpoint"));
    ls_module_free(net);
    (void)ls_mesh_free(mesh);
}

/* One rank of four: the ranks that do not share its reducer learn of it as well. */
DIST_TEST(a_part_that_drifts_on_one_rank_ends_the_step_on_all, 4)
{
    ls_mesh *mesh = mesh_of("dp=2,tp=2");
    ls_module *net = wrapped(mesh);
    CHECK_OK(run_backward(net, mesh));
    add_float(ls_module_param(net, "row"), 2, ls_rank() == 3 ? 0.5f : 0.0f);
    const ls_status status = run_backward(net, mesh);
    CHECK(status == LS_ERR_MISMATCH);
    if (strstr(ls_error_message(), "barrier (ls_group_free)") ==
        NULL) { /* its peer learned first */
        CHECK_CONTAINS(ls_error_message(), "the numbers of row (parameter 3)");
    }
    ls_module_free(net);
    (void)ls_mesh_free(mesh);
}

TEST_MAIN
