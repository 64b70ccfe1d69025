/* SPDX-License-Identifier: Apache-2.0 */
/* The names of operations that the library itself calls: a rank ends after one, and the report of
 * the others names it as that rank's last operation. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <lockstep/lockstep.h>

#include "says.h"
#include "scratch.h"
#include "test.h"

typedef struct call {
    ls_status (*run)(ls_module *net);
    const char *name;
} call;

static char *said; /* by rank 0, shared with the test */

static ls_status convert(ls_module *net)
{
    return ls_sync_batch_norm_convert(net, ls_world());
}

static ls_tensor *forward_of(ls_module *net)
{
    return ls_forward(net, ls_set_requires_grad(ls_ones(LS_SHAPE(2, 3, 4, 4), LS_FLOAT32), true));
}

static ls_status forward(ls_module *net)
{
    LS_SCOPE;
    LS_TRY(convert(net));
    return ls_tensor_status(forward_of(net));
}

static ls_status backward(ls_module *net)
{
    LS_SCOPE;
    LS_TRY(convert(net));
    return ls_backward(ls_mean(forward_of(net)));
}

static ls_status clip(ls_module *net)
{
    LS_SCOPE;
    LS_TRY(ls_backward(ls_mean(forward_of(net))));
    return ls_clip_grad_norm(net, 1.0, LS_OPTIONS(ls_clip_grad_norm_options, .group = ls_world()),
                             NULL);
}

static ls_status load(ls_module *net)
{
    int64_t step;
    ls_checkpoint *c = NULL;
    const ls_checkpoint_item items[] = {LS_ITEM("model", net)};
    LS_TRY(ls_checkpoint_new(scratch_folder(), ls_world(), NULL, &c));
    const ls_status status = ls_checkpoint_load(c, items, 1, &step);
    return status == LS_ERR_NOT_FOUND ? LS_OK : status;
}

static ls_status split(ls_module *net)
{
    ls_group *half = NULL;
    (void)net;
    return ls_group_split(ls_world(), 0, 0, "half", &half);
}

static const call calls[] = {
    {convert, SAYS("batch norm")},
    {forward, SAYS("statistics of batch norm")},
    {backward, SAYS("gradients of batch norm")},
    {clip, SAYS("norm of the gradients")},
    {load, SAYS("checkpoint: which step")},
    {split, SAYS("ls_group_split: groups")},
};

static int run(void *arg)
{
    const call *c = arg;
    CHECK_OK(ls_init(NULL));
    ls_module *net = ls_batch_norm2d_new(3, 1e-5, 0.1);
    CHECK_OK(ls_module_status(net));
    ls_status status = c->run(net); /* on rank 0 it may still be under way when rank 1 ends */
    if (ls_rank() == 1) {
        _exit(status == LS_OK ? 7 : 8);
    }
    status = status == LS_OK ? ls_barrier(ls_world(), NULL, NULL) : status;
    (void)snprintf(said, 2048, "%s: %s", ls_status_name(status), ls_error_message());
    return status < 0 ? 1 : 0;
}

TEST(operations_of_the_library_are_named)
{
    said = mmap(NULL, 2048, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(said != MAP_FAILED);
    scratch_begin();
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        said[0] = '\0';
        CHECK(ls_spawn(run, (void *)(uintptr_t)&calls[i], 2) < 0);
        CHECK_CONTAINS(said, "exited with code 7");
        CHECK_SAYS(said, calls[i].name);
    }
    scratch_end();
}

TEST_MAIN
