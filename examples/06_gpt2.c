/* SPDX-License-Identifier: Apache-2.0 */
/* GPT-2 in its published sizes: shapes, parameters and the sum of memory first; then, where the
 * memory suffices, weights that Hugging Face's transformers saved, and one SGD step.
 *
 *     ./06_gpt2 gpt2-xl                             what it would take
 *     ./06_gpt2 gpt2 FOLDER after.safetensors       a folder with model.safetensors, or the file
 */
#include <stdio.h>

#include <lockstep/lockstep.h>
#include <lockstep/models/gpt2.h>

#define TOKENS 64
#define GIB (1024.0 * 1024.0 * 1024.0)

static void show_sum(const ls_gpt2_memory *sum)
{
    printf("parameters   %8.2f GiB\n", (double)sum->parameter_bytes / GIB);
    printf("gradients    %8.2f GiB\n", (double)sum->gradient_bytes / GIB);
    printf("activations  %8.2f GiB, about, for %d tokens\n", (double)sum->activation_bytes / GIB,
           TOKENS);
    printf("sum          %8.2f GiB for one SGD step\n", (double)sum->total_bytes / GIB);
    fflush(stdout);
}

/* Forward, backward and a step on made-up tokens; returns the loss before it. */
static double take_step(ls_module *net, ls_optim *optim, int64_t vocab)
{
    double loss = 0.0;
    LS_SCOPE;
    ls_tensor *ids = ls_empty(LS_SHAPE(1, TOKENS + 1), LS_INT32);
    int32_t *id = ls_data(ids);
    for (int64_t i = 0; i <= TOKENS; i++) {
        id[i] = (int32_t)(i * i * 31 % vocab);
    }
    ls_tensor *logits = ls_forward(net, ls_slice(ids, 1, 0, TOKENS));
    ls_tensor *mean = ls_cross_entropy(logits, ls_slice(ids, 1, 1, TOKENS + 1), NULL);
    LS_CHECK(ls_backward(mean));
    LS_CHECK(ls_item(mean, &loss));
    LS_CHECK(ls_optim_step(optim));
    ls_optim_zero_grad(optim);
    return loss;
}

/* With random weights, or those of `init`. */
static ls_module *make_net(const ls_gpt2_options *shape, const char *init)
{
    LS_SKIP_INIT(init != NULL); /* why draw weights that are then overwritten? */
    ls_module *net = ls_gpt2_new(shape);
    LS_CHECK(ls_module_status(net));
    if (init != NULL) {
        LS_CHECK(ls_gpt2_load(net, init));
    }
    return net;
}

int main(int argc, char **argv)
{
    const char *variant = argc > 1 ? argv[1] : "gpt2";
    const char *init = argc > 2 ? argv[2] : NULL, *saved = argc > 3 ? argv[3] : NULL;
    const ls_gpt2_options *shape = LS_OPTIONS(ls_gpt2_options, .variant = variant);
    const ls_gpt2_memory sum = ls_gpt2_memory_of(shape, 1, TOKENS);
    if (sum.parameters == 0 || argc > 4) {
        fprintf(stderr, "usage: 06_gpt2 gpt2|gpt2-medium|gpt2-large|gpt2-xl [WEIGHTS [SAVED]]\n");
        return 2;
    }
    LS_CHECK(ls_init(NULL));
    ls_gpt2_describe(shape, stdout);
    show_sum(&sum);
    if (ls_memory_available() >= 0 && sum.total_bytes > ls_memory_available()) {
        fprintf(stderr, "error: a step of %s takes %.2f GiB, and %.2f are available\n", variant,
                (double)sum.total_bytes / GIB, (double)ls_memory_available() / GIB);
        return 1;
    }
    ls_module *net = make_net(shape, init);
    ls_optim *optim = ls_sgd_new(net, LS_OPTIONS(ls_sgd_options, .lr = 1e-3));
    for (int step = 0; step < 2; step++) {
        printf("loss %s the step %.4f\n", step == 0 ? "before" : "after",
               take_step(net, optim, shape->vocab));
    }
    if (saved != NULL) {
        LS_CHECK(ls_module_save_safetensors(net, saved, NULL));
    }
    ls_optim_free(optim);
    ls_module_free(net);
    LS_CHECK(ls_finalize());
    return 0;
}
