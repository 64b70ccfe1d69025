/* SPDX-License-Identifier: Apache-2.0 */
/* Every plan of a small GPT: each as a file that `lockstep train gpt --plan` follows, and a line
 * with its prediction. bench/plan_regret.py trains them.
 *
 *     build/bench/dev/plans FOLDER RANKS BATCH LAYERS DIM HEADS CONTEXT CLUSTER CORES DEVICE
 *
 * DEVICE is the text of a device. The choices are those of `lockstep plan auto` (plan/auto.h), and
 * all cuts; this enumeration shares none of its code, so it also has the plans that the search
 * left out. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/env_posix.h"
#include "base/error.h"
#include "plan/auto.h"

enum { VOCABULARY = 256, WHOLE_ALL = 15 };

typedef struct schedule_of {
    const char *name;
    int chunks, warm_up;
} schedule_of;

static const schedule_of schedules[] = {
    {"1f1b", 0, 1}, {"1f1b", 0, 2}, {"zb-h1", 0, 0}, {"gpipe", 0, 0}, {"interleaved", 2, 0}};

typedef struct every {
    ls__auto_ask ask;
    ls__auto_plan plan;
    const char *folder, *cluster;
    int count;
} every;

static void give_up(const char *why)
{
    fprintf(stderr, "plans: %s\n", why);
    exit(1);
}

/* Those that a job cannot have are left out. */
static void write_plan(every *e)
{
    char path[512];
    ls__sim_step step;
    ls__auto_plan *p = &e->plan;
    const ls__sim_job job = ls__auto_job(&e->ask, p);
    if (ls__simulate_job(ls__env_posix(), &job, &step) < 0) {
        return;
    }
    double memory = 0.0;
    for (int r = 0; r < p->pp.size; r++) {
        memory = fmax(memory, step.rank[r].parameters + step.rank[r].gradients +
                                  step.rank[r].optimizer + step.rank[r].activations);
    }
    p->step = step.step;
    p->memory = memory;
    ls__sim_step_free(&step);
    (void)snprintf(path, sizeof path, "%s/%05d.json", e->folder, e->count++);
    if (ls__auto_write(ls__env_posix(), &e->ask, p, "gpt", e->cluster, path) < 0) {
        give_up(ls_error_message());
    }
    printf("%s %.6g %.0f\n", path, 1e3 * p->step, p->memory);
}

/* First layers of the stages after the `known`; no deeper than there are ranks. */
static void every_cut(every *e, int known)
{
    ls__auto_plan *p = &e->plan;
    if (known >= p->pp.size || p->stages != p->pp.size) {
        write_plan(e);
        return;
    }
    const int layers = (int)e->ask.job.use.model.layers;
    for (int first = known > 1 ? p->first_layer[known - 1] + 1 : 0; first <= layers; first++) {
        p->first_layer[known] = first;
        every_cut(e, known + 1);
    }
}

static void every_memory(every *e)
{
    ls__auto_plan *p = &e->plan;
    const int most = p->dp.size * p->cp.size == 1 ? 0 : p->pp.size == 1 && p->tp.size == 1 ? 3 : 2;
    for (int recompute = 0; recompute <= 1; recompute++) {
        for (p->zero = 0; p->zero <= most; p->zero++) {
            p->recompute = recompute == 1;
            every_cut(e, 1);
        }
    }
}

static void every_schedule(every *e)
{
    ls__auto_plan *p = &e->plan;
    const int pp = p->pp.size;
    for (size_t k = 0; k < (pp > 1 ? sizeof schedules / sizeof *schedules : 1); k++) {
        p->schedule = schedules[k].name;
        p->chunks = schedules[k].chunks;
        p->warm_up = schedules[k].warm_up;
        p->stages = pp * (p->chunks > 0 ? p->chunks : 1);
        if (p->chunks == 0 ||
            (p->micro_batches % pp == 0 && p->stages <= e->ask.job.use.model.layers)) {
            every_memory(e);
        }
    }
}

static bool divides(const every *e, int whole, bool sequence)
{
    const ls__gpt *g = &e->ask.job.use.model;
    const int tp = e->plan.tp.size;
    return (whole & LS__GPT_ATTENTION || g->heads % tp == 0) &&
           (whole & LS__GPT_MLP || 4 * g->dim % tp == 0) &&
           ((whole & LS__GPT_TOKENS && whole & LS__GPT_HEAD) || VOCABULARY % tp == 0) &&
           (!sequence || ((whole & (LS__GPT_ATTENTION | LS__GPT_MLP)) == 0 && tp > 1 &&
                          g->context % (tp * e->plan.cp.size) == 0));
}

static void every_placement(every *e)
{
    for (int whole = 0; whole < (e->plan.tp.size > 1 ? WHOLE_ALL : 1); whole++) {
        for (int sequence = 0; sequence <= 1; sequence++) {
            if (divides(e, whole, sequence == 1)) {
                e->plan.whole = whole;
                e->plan.sequence = sequence == 1;
                every_schedule(e);
            }
        }
    }
}

static void every_micro_batch(every *e)
{
    const int64_t own = e->ask.batch / e->plan.dp.size;
    for (int64_t batch = 1; batch <= own; batch++) {
        if (own % batch == 0) {
            e->plan.batch = batch;
            e->plan.micro_batches = (int)(own / batch);
            every_placement(e);
        }
    }
}

/* In both orders of pp and dp. */
static void every_order(every *e, int pp, int dp, int cp)
{
    const int tp = e->ask.ranks / (pp * dp * cp), within = cp * tp;
    if (e->ask.batch % dp != 0 || (cp > 1 && e->ask.job.use.model.context % (2 * cp) != 0)) {
        return;
    }
    for (int inside = 0; inside <= (pp > 1 && dp > 1); inside++) {
        e->plan.pp = (ls__sim_axis){pp, inside ? within : dp * within};
        e->plan.dp = (ls__sim_axis){dp, inside ? pp * within : within};
        e->plan.ep = (ls__sim_axis){1, within};
        e->plan.cp = (ls__sim_axis){cp, tp};
        e->plan.tp = (ls__sim_axis){tp, 1};
        every_micro_batch(e);
    }
}

static void every_mesh(every *e)
{
    const int n = e->ask.ranks;
    for (int pp = 1; pp <= n; pp++) {
        for (int dp = 1; n % pp == 0 && dp <= n / pp; dp++) {
            for (int cp = 1; n / pp % dp == 0 && cp <= n / pp / dp; cp++) {
                if (n / pp / dp % cp == 0) {
                    every_order(e, pp, dp, cp);
                }
            }
        }
    }
}

int main(int argc, char **argv)
{
    static every e;
    if (argc != 11) {
        give_up("give FOLDER RANKS BATCH LAYERS DIM HEADS CONTEXT CLUSTER CORES DEVICE");
    }
    e.folder = argv[1];
    e.cluster = argv[8];
    e.ask = (ls__auto_ask){.ranks = atoi(argv[2]), .batch = atoi(argv[3])};
    e.ask.job = (ls__sim_job){.use = {.model = {.layers = atoi(argv[4]),
                                                .dim = atoi(argv[5]),
                                                .heads = atoi(argv[6]),
                                                .vocab = VOCABULARY,
                                                .context = atoi(argv[7]),
                                                .untied = true},
                                      .width = sizeof(float)},
                              .bucket_bytes = 25 << 20,
                              .cores = atof(argv[9])};
    if (ls__cluster_parse("cluster", argv[8], strlen(argv[8]), &e.ask.job.cluster) < 0 ||
        ls__processor_parse("device", argv[10], strlen(argv[10]), sizeof(float),
                            &e.ask.job.device) < 0) {
        give_up(ls_error_message());
    }
    (void)ls__cluster_extend(&e.ask.job.cluster, e.ask.ranks);
    every_mesh(&e);
    return 0;
}
