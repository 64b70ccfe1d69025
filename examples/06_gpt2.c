/* GPT-2 in its published sizes: shapes, parameters and the sum of memory first; then, where that is
 * there, weights from a file that Hugging Face's transformers saved, and one SGD step.
 *
 *     build/examples/06_gpt2 --model gpt2-xl                     # what it would take
 *     build/examples/06_gpt2 --init model.safetensors --save after.safetensors
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "common.h"
#include <lockstep/models/gpt2.h>

#define GIB (1024.0 * 1024.0 * 1024.0)

/* The number behind `key` in a small file, or the file's only one without a key; -1: none. */
static double number_in(const char *path, const char *key)
{
    char line[256];
    double number = -1.0;
    FILE *file = fopen(path, "r");
    while (file && number < 0.0 && fgets(line, sizeof line, file)) {
        size_t skip = strlen(key);
        char *end = line;
        if (strncmp(line, key, skip) == 0) {
            double found = strtod(line + skip, &end);
            number = end > line + skip ? found : -1.0;
        }
    }
    if (file) {
        (void)fclose(file);
    }
    return number;
}

/* What this process may still take: of the machine, and of its container; in GiB. */
static double memory_there(void)
{
    double machine = number_in("/proc/meminfo", "MemAvailable:") * 1024.0;
    double limit = number_in("/sys/fs/cgroup/memory.max", "");
    double used = number_in("/sys/fs/cgroup/memory.current", "");
    double rest = limit >= 0.0 && used >= 0.0 ? limit - used : machine;
    return (rest < machine ? rest : machine) / GIB;
}

static void show_sum(const ls_gpt2_memory *sum, int64_t tokens)
{
    printf("parameters   %8.2f GiB\n", (double)sum->parameter_bytes / GIB);
    printf("gradients    %8.2f GiB\n", (double)sum->gradient_bytes / GIB);
    printf("activations  %8.2f GiB, about, for %lld tokens\n", (double)sum->activation_bytes / GIB,
           (long long)tokens);
    printf("sum          %8.2f GiB for one SGD step\n", (double)sum->total_bytes / GIB);
}

/* Forward, backward and a step on made-up tokens; returns the loss before it. */
static double take_step(ls_module *net, ls_optim *optim, int64_t tokens, int64_t vocab)
{
    double loss = 0.0;
    {
        LS_SCOPE;
        ls_tensor *ids = ls_empty(LS_SHAPE(1, tokens + 1), LS_INT32);
        int32_t *id = ls_data(ids);
        for (int64_t i = 0; i <= tokens; i++) {
            id[i] = (int32_t)(i * i * 31 % vocab);
        }
        ls_tensor *logits = ls_forward(net, ls_slice(ids, 1, 0, tokens));
        ls_tensor *mean = ls_cross_entropy(logits, ls_slice(ids, 1, 1, tokens + 1));
        LS_CHECK(ls_backward(mean));
        LS_CHECK(ls_item(mean, &loss));
    }
    LS_CHECK(ls_optim_step(optim));
    ls_optim_zero_grad(optim);
    return loss;
}

int main(int argc, char **argv)
{
    const char *model = "gpt2", *init = NULL, *save = NULL;
    int64_t tokens = 64;
    double memory = 0.0, rate = 1e-3;
    const flag flags[] = {
        {"model", FLAG_TEXT, &model, 0, 0, "gpt2, gpt2-medium, gpt2-large or gpt2-xl"},
        {"init", FLAG_TEXT, &init, 0, 0, "safetensors file, its index, or a folder with one"},
        {"save", FLAG_TEXT, &save, 0, 0, "where to write the weights after the step"},
        {"tokens", FLAG_COUNT, &tokens, 1, 1023, "tokens of the step"},
        {"lr", FLAG_NUMBER, &rate, 0, 10, "learning rate"},
        {"memory", FLAG_NUMBER, &memory, 0, 1e6, "GiB that may be taken; 0: what is there"}};
    flags_parse("Shows GPT-2's shapes and memory, then takes one step where that is there.", flags,
                sizeof flags / sizeof flags[0], argc, argv);
    const ls_gpt2_options *shape = LS_OPTIONS(ls_gpt2_options, .variant = model);
    const ls_gpt2_memory sum = ls_gpt2_memory_of(shape, 1, tokens);
    if (sum.parameters > 0) {
        ls_gpt2_describe(shape, stdout);
        show_sum(&sum, tokens);
        fflush(stdout);
    }
    memory = memory > 0.0 ? memory : memory_there();
    if ((double)sum.total_bytes / GIB > memory) {
        give_up(1,
                "%s: one step takes %.2f GiB and %.2f are there; take fewer --tokens, a smaller "
                "--model, or say --memory",
                model, (double)sum.total_bytes / GIB, memory);
    }
    LS_CHECK(ls_init(NULL));
    ls_module *net = NULL;
    {
        LS_SKIP_INIT(init != NULL);
        net = ls_gpt2_new(shape);
    }
    if (!net) {
        give_up(1, "%s", ls_error_message());
    }
    if (init) {
        LS_CHECK(ls_gpt2_load(net, init));
    }
    ls_optim *optim = ls_sgd_new(net, LS_OPTIONS(ls_sgd_options, .lr = rate));
    for (int step = 0; step < 2; step++) {
        printf("loss %s the step %.4f\n", step == 0 ? "before" : "after",
               take_step(net, optim, tokens, shape->vocab));
    }
    if (save) {
        LS_CHECK(ls_module_save_safetensors(net, save, NULL));
    }
    ls_optim_free(optim);
    ls_module_free(net);
    LS_CHECK(ls_finalize());
    return 0;
}
