/* What experiments on DDP share. */
#ifndef PAPER_DDP_ROWS_H
#define PAPER_DDP_ROWS_H

#include "paper.h"

typedef struct paper_network {
    const char *model, *title; /* of `lockstep bench ddp`; as it is shown */
    const char *batch;         /* samples of a rank's step; NULL: the network's */
} paper_network;

/* An image network and a transformer, unless one was asked for: the k-th; NULL behind the last. */
const paper_network *paper_network_at(const paper *p, int k);
/* As paper_bench. */
json_t *paper_ddp_rows(paper *p, const paper_network *n, int ranks, const char *modes,
                       const char *buckets);
/* Milliseconds of a part ("step", "exposed") in every timed step; a new reference. */
json_t *paper_list(const json_t *row, const char *part);

#endif
