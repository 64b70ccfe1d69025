/* SPDX-License-Identifier: Apache-2.0 */
/* A model and its AdamW on four pipeline stages, saved, loaded by two processes or by one that have
 * several stages each, saved by these, and loaded by four again: every bit of parameters, moments
 * and step counts comes back. Each part is a job of its own, with other initial values. */
#include "work.h"

enum { STAGES = 4 };

typedef struct stage_net { /* layers [first, last) of the model */
    ls_module base;
    int first, last;
    ls_module *layer[STAGES];
} stage_net;

static ls_tensor *stage_forward(ls_module *m, ls_tensor *x)
{
    stage_net *self = (stage_net *)m;
    for (int i = self->first; i < self->last; i++) {
        x = ls_relu(ls_forward(self->layer[i], x));
    }
    return x;
}

static const ls_module_class stage_class =
    LS_MODULE_CLASS(.name = "stage", .forward = stage_forward);

typedef struct pass {
    const char *from, *to; /* folders; NULL: none */
    const char *folder;    /* of the files of hashes */
    int steps;
} pass;

/* The hash of what the rank shows is written by the first job, and compared by the last one. */
static void hash_file(const pass *p, const ls_checkpoint_item *items)
{
    char path[256];
    uint64_t hash = work_hash_of(items, 2), before = 0;
    (void)snprintf(path, sizeof path, "%s/hash.%d", p->folder, ls_rank());
    FILE *f = fopen(path, p->to != NULL ? "wb" : "rb");
    CHECK(f != NULL);
    if (p->to != NULL) {
        CHECK(fwrite(&hash, sizeof hash, 1, f) == 1);
    } else {
        CHECK(fread(&before, sizeof before, 1, f) == 1 && before == hash);
    }
    (void)fclose(f);
}

static void train(ls_module *net, ls_optim *optim, int steps)
{
    for (int i = 0; i < steps; i++) {
        LS_SCOPE;
        CHECK_OK(ls_backward(ls_mean(ls_forward(net, ls_randn(LS_SHAPE(5, WORK_HIDDEN))))));
        CHECK_OK(ls_optim_step(optim));
        ls_optim_zero_grad(optim);
    }
}

static int run_pass(void *arg)
{
    const pass *p = arg;
    int64_t step = 0;
    ls_checkpoint *c = NULL;
    CHECK_OK(ls_init(NULL));
    CHECK_OK(ls_manual_seed((uint64_t)ls_rank() + (p->from == NULL ? 1 : 99)));
    stage_net *n = ls_module_new(sizeof *n, &stage_class);
    n->first = STAGES * ls_rank() / ls_world_size();
    n->last = STAGES * (ls_rank() + 1) / ls_world_size();
    for (int i = n->first; i < n->last; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "fc%d", i);
        n->layer[i] = ls_module_add(&n->base, name, ls_linear_new(WORK_HIDDEN, WORK_HIDDEN, NULL));
    }
    ls_optim *optim = ls_adamw_new(&n->base, LS_OPTIONS(ls_adamw_options, .lr = 1e-2));
    const ls_checkpoint_item items[] = {LS_ITEM("model", &n->base), LS_ITEM("optim", optim)};
    if (p->from != NULL) {
        CHECK_OK(ls_checkpoint_new(p->from, ls_world(), NULL, &c));
        CHECK_OK(ls_checkpoint_load(c, items, 2, &step));
        CHECK_OK(ls_checkpoint_free(c));
    }
    train(&n->base, optim, p->from == NULL ? p->steps + ls_rank() : 0); /* each its own count */
    if (p->to != NULL) {
        CHECK_OK(ls_checkpoint_new(p->to, ls_world(), NULL, &c));
        CHECK_OK(ls_checkpoint_save(c, 1, items, 2));
        CHECK_OK(ls_checkpoint_free(c));
    }
    if (ls_world_size() == STAGES) {
        hash_file(p, items);
    }
    ls_optim_free(optim);
    ls_module_free(&n->base);
    CHECK_OK(ls_finalize());
    return 0;
}

TEST(model_and_optimizer_of_four_stages_come_back_through_two_and_one)
{
    for (int between = 1; between <= 2; between++) {
        char first[128], second[128];
        const char *folder = folder_new();
        (void)snprintf(first, sizeof first, "%s/first", folder);
        (void)snprintf(second, sizeof second, "%s/second", folder);
        CHECK_OK(ls_spawn(run_pass, &(pass){NULL, first, folder, 2}, STAGES));
        CHECK_OK(ls_spawn(run_pass, &(pass){first, second, folder, 0}, between));
        CHECK_OK(ls_spawn(run_pass, &(pass){second, NULL, folder, 0}, STAGES));
        folder_remove(folder);
    }
}

TEST_MAIN
