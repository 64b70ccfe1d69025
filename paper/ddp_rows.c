/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the experiments on DDP: the networks, and rows of `lockstep bench ddp` or `replay`. */
#include <stdio.h>
#include <string.h>

#include "bench/bench.h"
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

const char *paper_computed(const paper *p)
{
    const char *compute = p->options->compute;
    return compute != NULL && strcmp(compute, "replay") == 0 ? "replayed" : "computed";
}

void paper_note_once(paper *p, const char *text)
{
    const json_t *notes = json_object_get(p->result, "notes");
    for (size_t i = 0; i < json_array_size(notes); i++) {
        if (strcmp(json_string_value(json_array_get(notes, i)), text) == 0) {
            return;
        }
    }
    paper_note(p, "%s", text);
}

static void note_source(paper *p, const paper_network *n, const json_t *rows)
{
    char text[512], changed[64] = "";
    const json_t *row = json_array_get(rows, 0);
    const double speed = paper_number(row, "speed");
    if (strcmp(paper_text(row, "compute"), "replay") != 0) {
        (void)snprintf(text, sizeof text, "%s: computed on this machine.", n->title);
    } else {
        if (speed != 1.0) {
            (void)snprintf(changed, sizeof changed, "; %g times as fast", speed);
        }
        (void)snprintf(text, sizeof text,
                       "%s: replayed (timeline %.100s, batch %.0f, recorded on %.250s%s).",
                       n->title, paper_text(row, "model"), paper_number(row, "batch"),
                       paper_text(row, "recorded"), changed);
    }
    paper_note_once(p, text);
}

enum { WORDS = 40 };

/* Rows of `first` (ddp --model NAME, replay NAME) with what both commands know, and `more`. */
static json_t *rows_of(paper *p, const paper_network *n, int ranks, const char *const *first,
                       const char *modes, const char *buckets, const char *const *more)
{
    char steps[16], turns[16];
    const char *words[WORDS + 1] = {NULL};
    const paper_options *o = p->options;
    const bool few = o->quick || p->link != NULL ||
                     (p->medium > 0 && o->transport == NULL); /* 5 minutes are to suffice */
    /* The networks above are larger than caches: a turn's first step takes no longer than the
     * next. */
    const bool large = n->batch != NULL && strcmp(first[0], "ddp") == 0;
    const char *const untimed = few && large ? "0" : "1";
    const char *const common[] = {"--mode",   modes, "--buckets", buckets, "--steps", steps,
                                  "--rounds", turns, "--untimed", untimed, NULL};
    const char *const *const lists[] = {first, common, more};
    int count = 0;
    (void)snprintf(steps, sizeof steps, "%d", o->steps > 0 ? o->steps : few ? 2 : 4);
    (void)snprintf(turns, sizeof turns, "%d", o->turns > 0 ? o->turns : few ? 3 : 5);
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        for (const char *const *w = lists[i]; w != NULL && *w != NULL && count < WORDS; w++) {
            words[count++] = *w;
        }
    }
    json_t *rows = paper_bench(p, ranks, n->title, words);
    if (rows != NULL) {
        note_source(p, n, rows);
    }
    return rows;
}

json_t *paper_replayed_rows(paper *p, const paper_network *n, int ranks, const char *modes,
                            const char *buckets, const char *const *more)
{
    char speed[32];
    (void)snprintf(speed, sizeof speed, "%g", p->options->speed > 0.0 ? p->options->speed : 1.0);
    const char *const first[] = {"replay", n->model, "--speed", speed, NULL};
    return rows_of(p, n, ranks, first, modes, buckets, more);
}

json_t *paper_ddp_rows(paper *p, const paper_network *n, int ranks, const char *modes,
                       const char *buckets)
{
    if (strcmp(paper_computed(p), "replayed") == 0) {
        return paper_replayed_rows(p, n, ranks, modes, buckets, NULL);
    }
    const char *const first[] = {"ddp",    "--model", n->model, n->batch != NULL ? "--batch" : NULL,
                                 n->batch, NULL};
    return rows_of(p, n, ranks, first, modes, buckets, NULL);
}

bool paper_over_medium(const paper *p, int k, int turns, paper_over *out)
{
    static const char *const media[] = {"shm", "tcp"};
    const bool asked = p->transport != NULL || p->link != NULL, one = asked || p->options->quick;
    turns = p->options->quick ? 3 : turns;
    out->options = *p->options;
    out->options.turns = out->options.turns > 0 ? out->options.turns : turns;
    out->p = *p;
    out->p.options = &out->options;
    if (!asked && k < 2) {
        out->p.transport = media[k];
    }
    return k < (one ? 1 : 2) && !paper_stopped();
}

bool paper_over_media(const paper *p, int turns, bool (*run)(paper *p))
{
    paper_over of;
    bool good = true;
    for (int k = 0; good && paper_over_medium(p, k, turns, &of); k++) {
        good = run(&of.p);
    }
    return good;
}

json_t *paper_list(const json_t *row, const char *part)
{
    json_t *list = json_object_get(json_object_get(row, "samples_ms"), part);
    return list != NULL ? json_incref(list) : json_array();
}

enum { SAMPLES = 10000 }; /* of --steps 1000 --turns 10 */

double paper_quantile(const json_t *list, double share)
{
    double numbers[SAMPLES];
    size_t count = json_array_size(list);
    count = count < SAMPLES ? count : SAMPLES;
    for (size_t i = 0; i < count; i++) {
        numbers[i] = json_number_value(json_array_get(list, i));
    }
    ls__bench_sort(numbers, (int)count);
    return count > 0 ? numbers[(size_t)(share * (double)(count - 1) + 0.5)] : 0.0;
}
