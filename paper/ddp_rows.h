/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the experiments on DDP. */
#ifndef PAPER_DDP_ROWS_H
#define PAPER_DDP_ROWS_H

#include "paper.h"

typedef struct paper_network {
    const char *model, *title; /* of `lockstep bench ddp`; as it is shown */
    const char *batch;         /* samples of a rank's step; NULL: the network's */
} paper_network;

/* An image network and a transformer, unless one was asked for: the k-th; NULL after the last. */
const paper_network *paper_network_at(const paper *p, int k);
/* Rows of `lockstep bench ddp`, or with --compute replay of `lockstep bench replay`: as
 * paper_bench. A note says which, and where the timeline was recorded. */
json_t *paper_ddp_rows(paper *p, const paper_network *n, int ranks, const char *modes,
                       const char *buckets);
/* The same, replayed whatever was asked for. `more`: further options of lockstep bench replay, the
 * last NULL; NULL: none. */
json_t *paper_replayed_rows(paper *p, const paper_network *n, int ranks, const char *modes,
                            const char *buckets, const char *const *more);
/* On this host: shared memory, then TCP, unless a medium was asked for. The k-th, as an experiment
 * into the same result; false after the last. Without --turns a row has `turns` turns. */
typedef struct paper_over {
    paper p;
    paper_options options;
} paper_over;
bool paper_over_medium(const paper *p, int k, int turns, paper_over *out);
/* Runs it over each of them; false when it failed. */
bool paper_over_media(const paper *p, int turns, bool (*run)(paper *p));
/* Once, however often it is said. */
void paper_note_once(paper *p, const char *text);
/* "computed" or "replayed": of rows of paper_ddp_rows, for titles. */
const char *paper_computed(const paper *p);
/* Milliseconds of a part ("step", "exposed") in every timed step; a new reference. */
json_t *paper_list(const json_t *row, const char *part);
/* At `share` of a sorted list of numbers: 0.5 is its median. */
double paper_quantile(const json_t *list, double share);

#endif
