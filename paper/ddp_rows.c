/* What experiments on DDP share: the networks, and rows of `lockstep bench ddp`. */
#include <stdio.h>

#include "ddp_rows.h"

const paper_network *paper_network_at(const paper *p, int k)
{
    static const paper_network small[] = {{"resnet18-cifar", "ResNet-18", "8"},
                                          {"gpt", "GPT 6x384", "1"}};
    static const paper_network full[] = {{"resnet50", "ResNet-50", "4"},
                                         {"bert", "BERT base", "2"}};
    static paper_network asked;
    if (p->options->model != NULL) {
        asked = (paper_network){p->options->model, p->options->model, NULL};
        return k == 0 ? &asked : NULL;
    }
    return k >= 2 ? NULL : p->options->full ? &full[k] : &small[k];
}

json_t *paper_ddp_rows(paper *p, const paper_network *n, int ranks, const char *modes,
                       const char *buckets)
{
    char steps[16], turns[16];
    (void)snprintf(steps, sizeof steps, "%d", p->options->steps > 0 ? p->options->steps : 4);
    (void)snprintf(turns, sizeof turns, "%d", p->options->turns > 0 ? p->options->turns : 5);
    const char *const arguments[] = {
        "ddp",    "--model", n->model, "--mode",   modes, "--buckets",
        buckets,  "--steps", steps,    "--rounds", turns, n->batch != NULL ? "--batch" : NULL,
        n->batch, NULL};
    return paper_bench(p, ranks, n->title, arguments);
}

json_t *paper_list(const json_t *row, const char *part)
{
    json_t *list = json_object_get(json_object_get(row, "samples_ms"), part);
    return list != NULL ? json_incref(list) : json_array();
}
