/* The flags that every training program has, behind its own, and what they may be. */
#include "trainer.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FLAGS_MAX 64

static const char *const schedules[] = {"constant", "linear", "cosine", NULL};
static const char *const optims[] = {"sgd", "adamw", NULL};
static const char *const feeds[] = {"split", "shared", "scatter", NULL};
static const char *const dtypes[] = {"float32", "bf16", NULL};

static void check(trainer_options *o)
{
    (void)flag_choice("schedule", o->schedule, schedules);
    (void)flag_choice("optim", o->optim, optims);
    (void)flag_choice("feed", o->feed, feeds);
    (void)flag_choice("dtype", o->dtype, dtypes);
    o->warmup = o->warmup < 0 ? (o->steps * 8 + 99) / 100 : o->warmup;
    o->min_lr = o->min_lr < 0.0 ? o->lr / 10.0 : o->min_lr;
}

void trainer_read_flags(const char *what, const flag *own, int count, trainer_options *o, int argc,
                        char **argv)
{
    const flag shared[] = {
        {"steps", FLAG_COUNT, &o->steps, 1, 1e12, "optimizer steps"},
        {"batch", FLAG_COUNT, &o->batch, 1, 1e6, "samples a rank takes per step"},
        {"accum", FLAG_COUNT, &o->accum, 1, 1e6, "micro-batches of a step"},
        {"optim", FLAG_TEXT, &o->optim, 0, 0, "sgd or adamw"},
        {"lr", FLAG_NUMBER, &o->lr, 0, 1e3, "highest learning rate"},
        {"schedule", FLAG_TEXT, &o->schedule, 0, 0, "constant, linear or cosine, to --min-lr"},
        {"min-lr", FLAG_NUMBER, &o->min_lr, -1, 1e3, "last learning rate; -1: a tenth of --lr"},
        {"warmup", FLAG_COUNT, &o->warmup, -1, 1e12, "steps of warm-up; -1: 8 % of --steps"},
        {"momentum", FLAG_NUMBER, &o->momentum, 0, 1, "of sgd"},
        {"beta2", FLAG_NUMBER, &o->beta2, 0, 0.999999999, "adamw's second-moment decay"},
        {"weight-decay", FLAG_NUMBER, &o->weight_decay, 0, 1e3, "pull of the weights to zero"},
        {"clip", FLAG_NUMBER, &o->clip, 0, 1e9, "largest gradient norm; 0: none"},
        {"dtype", FLAG_TEXT, &o->dtype, 0, 0,
         "float32, or bf16: products in bfloat16, weights in float32"},
        {"seed", FLAG_COUNT, &o->seed, 0, 9e15, "of weights, order, dropout and sample"},
        {"bucket-bytes", FLAG_COUNT, &o->bucket_bytes, 0, 1e12, "of a gradient bucket"},
        {"feed", FLAG_TEXT, &o->feed, 0, 0,
         "split: an epoch among the ranks; shared: each has all; scatter: rank 0 reads"},
        {"eval-every", FLAG_COUNT, &o->eval_every, 0, 1e12, "steps between evaluations; 0: none"},
        {"init", FLAG_TEXT, &o->init, 0, 0, "safetensors file of weights to begin with"},
        {"export", FLAG_TEXT, &o->export_to, 0, 0, "safetensors file for the weights at the end"},
        {"save", FLAG_TEXT, &o->save, 0, 0, "folder for checkpoints; the two newest are kept"},
        {"every", FLAG_COUNT, &o->every, 1, 1e12, "steps between checkpoints"},
        {"resume", FLAG_TEXT, &o->resume, 0, 0,
         "folder whose newest checkpoint to go on from; as --save: or start"},
        {"log", FLAG_TEXT, &o->log, 0, 0,
         "file for a line of JSON a step and evaluation; goes on with --resume"},
        {"tensorboard", FLAG_TEXT, &o->tensorboard, 0, 0, "folder for TensorBoard's event files"},
        {"log-losses", FLAG_TEXT, &o->log_losses, 0, 0,
         "file for each step's global mean loss; goes on with --resume"},
    };
    flag all[FLAGS_MAX];
    int more = (int)(sizeof shared / sizeof shared[0]);
    assert(count + more <= FLAGS_MAX);
    memcpy(all, own, (size_t)count * sizeof *own);
    memcpy(all + count, shared, sizeof shared);
    flags_parse(what, all, count + more, argc, argv);
    check(o);
}
