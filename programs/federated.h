/* SPDX-License-Identifier: Apache-2.0 */
/* Federated rounds of the trainer: --clients, --per-round. */
#ifndef PROGRAMS_FEDERATED_H
#define PROGRAMS_FEDERATED_H

#include <stdbool.h>
#include <stdint.h>

struct trainer;
struct trainer_options;

typedef struct federated {
    int64_t *drawn;   /* [per round] the clients of the round; NULL: no federated rounds */
    int64_t *rounds;  /* [clients] in which each has taken part so far */
    double *sum;      /* [numel] weighted sums of the parameters of this rank's clients */
    float *start;     /* [numel] the parameters at the start of the round */
    uint64_t batches; /* of the client that trains, for its random numbers … */
    int64_t offset;   /* … and its samples in the round's batch */
} federated;

/* Ends the program if options do not fit each other. */
void federated_check(const struct trainer_options *o);
void federated_open(struct trainer *t); /* after the checkpoint was loaded */
void federated_close(struct trainer *t);
bool federated_is_on(const struct trainer *t);
/* After a batch was read: draws of random operations are the client's. */
void federated_context(struct trainer *t);

/* One round of --local-steps steps. Returns whether a stop was requested. */
bool federated_round(struct trainer *t);

#endif
