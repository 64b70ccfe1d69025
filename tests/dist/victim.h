/* SPDX-License-Identifier: Apache-2.0 */
/* Programs that train on a mesh while one rank dies or hangs at a chosen place; ending.h runs them.
 *
 *     PROGRAM PLACE RANK
 *     PLACE: forward, backward: killed by SIGKILL where `bomb` stands in that pass
 *            hang: sleeps there in forward
 *            others are the program's
 * At the moment of death or of the hang the victim writes "DYING <monotonic seconds>" to stderr. */
#ifndef DIST_VICTIM_H
#define DIST_VICTIM_H

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <lockstep/lockstep.h>

enum { STEPS = 12, FATAL_STEP = 5 };

static const char *place = "none";
static int victim, step;

static bool is_at(const char *here)
{
    return strcmp(place, here) == 0;
}

static void strike(const char *here)
{
    if (step != FATAL_STEP || ls_rank() != victim || !is_at(here)) {
        return;
    }
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    (void)fprintf(stderr, "DYING %.3f\n", (double)t.tv_sec + (double)t.tv_nsec * 1e-9);
    if (strcmp(here, "hang") != 0) {
        (void)kill(getpid(), SIGKILL);
    }
    for (;;) {
        (void)pause();
    }
}

static ls_status pass(ls_function_call *call, ls_tensor *const *in, int n, ls_tensor **out, int m,
                      void *arg)
{
    (void)call, (void)n, (void)m, (void)arg;
    strike("forward");
    strike("hang");
    out[0] = ls_clone(in[0]);
    return LS_OK;
}

static ls_status pass_back(ls_function_call *call, ls_tensor *const *dout, int m, ls_tensor **din,
                           int n)
{
    (void)call, (void)n, (void)m;
    strike("backward");
    din[0] = ls_clone(dout[0]);
    return LS_OK;
}

static const ls_function bomb = LS_FUNCTION(.name = "bomb", .forward = pass, .backward = pass_back,
                                            .placing = LS_PLACING_POINTWISE);

typedef struct victim_program {
    const char *mesh;
    const char *copies; /* the axis along which parameters are copies; NULL: they are everywhere */
    ls_module *(*net)(void);
    /* One backward of this rank; *more: false where the data have ended. */
    ls_status (*backward)(ls_module *net, const ls_mesh *mesh, bool *more);
} victim_program;

static int victim_main(const victim_program *p, int argc, char **argv)
{
    ls_mesh *mesh = NULL;
    place = argc > 1 ? argv[1] : place;
    victim = argc > 2 ? atoi(argv[2]) : 0;
    LS_CHECK(ls_init(NULL));
    LS_CHECK(ls_mesh_new(ls_world(), p->mesh, &mesh));
    ls_module *net = p->net();
    ls_optim *optim = ls_sgd_new(net, LS_OPTIONS(ls_sgd_options, .lr = 0.1));
    bool more = true;
    for (step = 0; step < STEPS && more; step++) {
        LS_SCOPE;
        LS_CHECK(p->backward(net, mesh, &more));
        if (more) {
            LS_CHECK(ls_optim_step(optim));
            ls_optim_zero_grad(optim);
        }
    }
    int identical = 0;
    uint64_t hash = 0;
    ls_group *alike = p->copies != NULL ? ls_mesh_group(mesh, p->copies) : ls_world();
    LS_CHECK(ls_replicas_identical(net, alike, &identical, &hash));
    (void)printf("rank %d: %d steps, %d identical\n", ls_rank(), step, identical);
    ls_optim_free(optim);
    ls_module_free(net);
    LS_CHECK(ls_mesh_free(mesh));
    return ls_finalize() == LS_OK ? 0 : 1;
}

#endif
