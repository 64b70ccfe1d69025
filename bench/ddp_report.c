/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of `lockstep bench ddp`, for people and as JSON. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "ddp.h"

enum { STEP, FORWARD, BACKWARD, WIRE, EXPOSED, OPTIMIZER };
const char *const ls__bench_ddp_parts[BENCH_DDP_PARTS] = {"step", "forward", "backward",
                                                          "wire", "exposed", "optimizer"};

const char *ls__bench_ddp_mode(const ls__bench_ddp_contender *c)
{
    static const char *const names[] = {"overlap", "bucketed", "flat", "naive"};
    static const char *const halves[] = {"overlap/bf16", "bucketed/bf16", "flat/bf16",
                                         "naive/bf16"};
    static char hooked[160];
    if (c->mode != BENCH_DDP_LOCAL && strcmp(c->comm, "plain") != 0) {
        (void)snprintf(hooked, sizeof hooked, "%s/%s", names[c->mode], c->comm);
        return hooked;
    }
    return c->mode == BENCH_DDP_LOCAL ? "local"
           : c->wire == LS_BFLOAT16   ? halves[c->mode]
                                      : names[c->mode];
}

const char *ls__bench_ddp_size(const ls__bench_ddp_contender *c, char out[32])
{
    const bool has_size = c->mode == LS_REDUCE_OVERLAP || c->mode == LS_REDUCE_BUCKETED;
    if (!has_size || c->bucket_bytes == LS_BUCKET_BYTES_AUTO) {
        return has_size ? "auto" : "-";
    }
    (void)snprintf(out, 32, "%g", (double)c->bucket_bytes * 1e-6);
    return out;
}

/* The part of the wire's time after backward. */
static double hidden_share(const ls__bench_ddp_contender *c)
{
    return c->mean[WIRE] > c->mean[EXPOSED] ? 1.0 - c->mean[EXPOSED] / c->mean[WIRE] : 0.0;
}

static double comm_frac(const ls__bench_ddp_contender *c)
{
    return c->mean[STEP] > 0.0 ? c->mean[EXPOSED] / c->mean[STEP] : 0.0;
}

/* Columns of a mode's name, which a hook's text makes longer. */
static int width_of_modes(const ls__bench_ddp *b)
{
    int width = 14;
    for (int i = 0; i < b->count; i++) {
        const int length = (int)strlen(ls__bench_ddp_mode(&b->contender[i]));
        width = length > width ? length : width;
    }
    return width;
}

void ls__bench_ddp_print(const ls__bench_ddp *b)
{
    const int width = width_of_modes(b);
    printf("# %s: %s, batch %d, %.1f million parameters, %d rank%s%s%s; means and standard "
           "deviations of %d steps in %d turns\n",
           b->model, b->about, b->batch, b->parameters * 1e-6, b->ranks, b->ranks == 1 ? "" : "s",
           b->transport != NULL ? ", over " : "", b->transport != NULL ? b->transport : "",
           b->steps * b->rounds, b->rounds);
    printf("# %-*s %7s %5s", width, "mode", "size", "count");
    if (b->more != NULL) {
        printf(" %5s %6s", "skip", "groups");
    }
    for (int p = 0; p < BENCH_DDP_PARTS; p++) {
        printf(" %10s %7s", ls__bench_ddp_parts[p], "dev");
    }
    printf(" %7s %7s %9s\n# %-*s %7s %5s", "hidden", "comm", "sent", width, "", "(MB)", "");
    if (b->more != NULL) {
        printf(" %12s", "");
    }
    for (int p = 0; p < BENCH_DDP_PARTS; p++) {
        printf(" %10s %7s", "(ms)", "(ms)");
    }
    printf(" %7s %7s %9s\n", "(%)", "(%)", "(MB)");
    for (int i = 0; i < b->count; i++) {
        const ls__bench_ddp_contender *c = &b->contender[i];
        char size[32];
        printf("  %-*s %7s %5d", width, ls__bench_ddp_mode(c), ls__bench_ddp_size(c, size),
               c->buckets);
        if (b->more != NULL) {
            printf(" %5d %6d", c->skip, c->groups);
        }
        for (int p = 0; p < BENCH_DDP_PARTS; p++) {
            printf(" %10.3f %7.3f", c->mean[p] * 1e3, c->deviation[p] * 1e3);
        }
        printf(" %7.1f %7.1f %9.3f\n", hidden_share(c) * 100.0, comm_frac(c) * 100.0,
               (double)c->sent * 1e-6);
    }
}

/* Milliseconds of `count` seconds, `stride` doubles apart. */
static json_t *list_of(const double *seconds, int count, int stride)
{
    json_t *list = json_array();
    for (int i = 0; i < count; i++) {
        json_array_append_new(list, json_real(seconds[i * stride] * 1e3));
    }
    return list;
}

static json_t *row_of(const ls__bench_ddp *b, const ls__bench_ddp_contender *c, json_t *machine)
{
    char size[32];
    json_t *bytes = json_array();
    for (int i = 0; i < c->buckets && i < BENCH_DDP_BUCKETS; i++) {
        json_array_append_new(bytes, json_integer((json_int_t)c->bytes[i]));
    }
    json_t *row = json_pack(
        "{s:s, s:s, s:s, s:i, s:i, s:s, s:s, s:s, s:i, s:i, s:i, s:i, s:o, s:f, s:f, "
        "s:o, s:o, s:{}, s:O, s:s, s:I}",
        "name", "ddp", "model", b->model, "compute", b->compute, "batch", b->batch, "ranks",
        b->ranks, "transport", b->transport != NULL ? b->transport : "default", "mode",
        ls__bench_ddp_mode(c), "buckets", ls__bench_ddp_size(c, size), "warmup", b->warmups,
        "untimed", b->untimed, "steps", b->steps, "rounds", b->rounds, "bucket_bytes", bytes,
        "hidden_share", hidden_share(c), "comm_frac", comm_frac(c), "round_ms",
        list_of(c->medians, b->rounds, 1), "slowest_ms", list_of(c->slowest, b->rounds, 1),
        "samples_ms", "machine", machine, "comm", c->comm, "sent_bytes", (json_int_t)c->sent);
    if (row != NULL && b->more != NULL) {
        json_object_update(row, b->more);
        json_object_set_new(row, "skip", json_integer(c->skip));
        json_object_set_new(row, "groups", json_integer(c->groups));
        json_object_set_new(row, "synchronised", json_integer(c->reducer != NULL ? c->samples : 0));
    }
    for (int p = 0; row != NULL && p < BENCH_DDP_PARTS; p++) {
        json_object_set_new(row, ls__bench_ddp_parts[p],
                            json_pack("{s:f, s:f}", "mean_ms", c->mean[p] * 1e3, "deviation_ms",
                                      c->deviation[p] * 1e3));
        json_object_set_new(json_object_get(row, "samples_ms"), ls__bench_ddp_parts[p],
                            list_of(&c->seconds[0][p], c->samples, BENCH_DDP_PARTS));
    }
    return row;
}

static json_t *rows_of(const ls__bench_ddp *b)
{
    json_t *list = json_array(), *machine = ls__bench_machine();
    for (int i = 0; i < b->count; i++) {
        json_array_append_new(list, row_of(b, &b->contender[i], machine));
    }
    json_decref(machine);
    return list;
}

bool ls__bench_ddp_write(const ls__bench_ddp *b)
{
    return ls__bench_dump(rows_of(b), b->count, b->json);
}

void ls__bench_ddp_keep(const ls__bench_ddp *b)
{
    ls__bench_keep(rows_of(b), b->json);
}
