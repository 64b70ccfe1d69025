/* SPDX-License-Identifier: Apache-2.0 */
/* The tasks: what `lockstep bench digits` and `lockstep bench learn` train on. */
#include "tasks.h"

#include <stdlib.h>
#include <string.h>

#include <lockstep/models/gpt.h>

#include "base/splitmix64.h"
#include "timeline.h"

/* ---- digits -------------------------------------------------------------------------------- */

enum { HELD_OUT = 5, HIDDEN = 512 }; /* of the digits every fifth one */

/* A line: the label, a blank, a character for each pixel from '0' to 'g'. */
ls__digits *ls__digits_read(void)
{
    ls__digits *d = calloc(1, sizeof *d);
    const char *at = ls__digits_texts[0].text;
    for (int line = 0; d != NULL && *at != '\0'; line++, at += LS__DIGITS_PIXELS + 3) {
        const int part = line % HELD_OUT == 0, k = d->count[part]++;
        d->label[part][k] = at[0] - '0';
        for (int i = 0; i < LS__DIGITS_PIXELS; i++) {
            const char pixel = at[2 + i];
            d->pixels[part][k][i] = (float)(pixel <= '9' ? pixel - '0' : pixel - 'a' + 10) / 16.0f;
        }
    }
    return d;
}

static void *digits_read(void)
{
    return ls__digits_read();
}

static void digits_sample(const void *data, bool held_out, uint64_t k, void *x, int32_t *y)
{
    const ls__digits *d = data;
    k %= (uint64_t)d->count[held_out];
    memcpy(x, d->pixels[held_out][k], sizeof d->pixels[held_out][k]);
    *y = d->label[held_out][k];
}

static ls_module *digits_build(void)
{
    const ls_linear_options *with_relu =
        LS_OPTIONS(ls_linear_options, .activation = LS_ACTIVATION_RELU);
    ls_module *layers[] = {ls_linear_new(LS__DIGITS_PIXELS, HIDDEN, with_relu),
                           ls_linear_new(HIDDEN, HIDDEN, with_relu),
                           ls_linear_new(HIDDEN, 10, NULL)};
    return ls_sequential_new(layers, 3);
}

static ls_optim *digits_optim(ls_module *net)
{
    return ls_sgd_new(net, LS_OPTIONS(ls_sgd_options, .lr = 0.05, .momentum = 0.9));
}

/* ---- text ---------------------------------------------------------------------------------- */

enum { CONTEXT = 32, VOCAB = 128, WINDOWS = 64 }; /* bytes; a larger one loses its highest bit */

typedef struct text {
    const char *at[2]; /* to train on; the last fifth, held out */
    size_t bytes[2];
} text;

static void *text_read(void)
{
    text *t = calloc(1, sizeof *t);
    const ls__timeline_text *novel = &ls__novel_texts[0];
    if (t != NULL) {
        t->bytes[1] = novel->bytes / HELD_OUT;
        t->bytes[0] = novel->bytes - t->bytes[1];
        t->at[0] = novel->text;
        t->at[1] = novel->text + t->bytes[0];
    }
    return t;
}

/* A window anywhere, and the byte after each of its bytes. Those held out are spread evenly. */
static void text_sample(const void *data, bool held_out, uint64_t k, void *x, int32_t *y)
{
    const text *t = data;
    const size_t places = t->bytes[held_out] - CONTEXT;
    const char *at = t->at[held_out] + (held_out ? k * places / WINDOWS : k % places);
    for (int i = 0; i < CONTEXT; i++) {
        ((int32_t *)x)[i] = at[i] & (VOCAB - 1);
        y[i] = at[i + 1] & (VOCAB - 1);
    }
}

static ls_module *text_build(void)
{
    return ls_gpt_new(LS_OPTIONS(ls_gpt_options, .layers = 1, .context = CONTEXT, .vocab = VOCAB));
}

static ls_optim *text_optim(ls_module *net)
{
    return ls_adamw_new(net, LS_OPTIONS(ls_adamw_options, .lr = 1e-3));
}

/* ---- the table ----------------------------------------------------------------------------- */

static const ls__task tasks[] = {
    {.name = "digits",
     .about = "MLP 64-512-512-10, SGD with momentum",
     .target = 0.2,
     .build = digits_build,
     .optim = digits_optim,
     .batch = 16,
     .held_out = 360,
     .inputs = LS__DIGITS_PIXELS,
     .dtype = LS_FLOAT32,
     .targets = 1,
     .sample = digits_sample,
     .read = digits_read},
    {.name = "text",
     .about = "GPT 1 layer, d 128, T 32, bytes, AdamW",
     .target = 2.4,
     .build = text_build,
     .optim = text_optim,
     .batch = 8,
     .held_out = WINDOWS,
     .inputs = CONTEXT,
     .dtype = LS_INT32,
     .targets = CONTEXT,
     .sample = text_sample,
     .read = text_read},
};

const ls__task *ls__task_find(const char *name)
{
    for (size_t i = 0; i < sizeof tasks / sizeof *tasks; i++) {
        if (strcmp(tasks[i].name, name) == 0) {
            return &tasks[i];
        }
    }
    return NULL;
}

/* ---- samples ------------------------------------------------------------------------------- */

uint64_t ls__task_first(const ls__task *task, int64_t seed, int64_t step, int worker, int workers)
{
    return (uint64_t)(seed - 1) * LS__SPLITMIX64_GAMMA +
           (uint64_t)((step * workers + worker) * task->batch);
}

ls_tensor *ls__task_loss(const ls__task *task, const void *data, ls_module *net, bool held_out,
                         uint64_t first)
{
    const int64_t count = held_out ? task->held_out : task->batch;
    ls_tensor *x = ls_empty(LS_SHAPE(count, task->inputs), task->dtype);
    ls_tensor *y =
        ls_empty(task->targets == 1 ? LS_SHAPE(count) : LS_SHAPE(count, task->targets), LS_INT32);
    float *to = ls_tensor_status(x) == LS_OK ? ls_data(x) : NULL;
    int32_t *targets = ls_tensor_status(y) == LS_OK ? ls_data(y) : NULL;
    for (int64_t i = 0; i < count && to != NULL && targets != NULL; i++) {
        const uint64_t k = held_out ? (uint64_t)i : ls__splitmix64(first + (uint64_t)i);
        task->sample(data, held_out, k, to + i * task->inputs, targets + i * task->targets);
    }
    return ls_cross_entropy(ls_forward(net, x), y, NULL);
}
