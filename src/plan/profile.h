/* SPDX-License-Identifier: Apache-2.0 */
/* The profile of a model: what its parts take, measured (measure.c) or read from a file
 * (profile.c).
 *
 *     {"format": "lockstep profile", "version": 1, "model": "gpt", "batch": 2,
 *      "machine": {"cpu": "AMD EPYC", "cores": 2, "threads": 1, ..}, "repeats": 25,
 *      "parts": [{"name": "embed", "from": [-1],
 *                 "forward_ms": 0.8, "input_ms": 0.1, "weight_ms": 0.4,
 *                 "output_bytes": 786432, "gradient_bytes": 786432, "kept_bytes": 900000,
 *                 "weight_bytes": 12976128}, ..],
 *      "shared": [{"name": "tokens.weight", "bytes": 12582912, "parts": [0, 7]}]}
 *
 * "from" are earlier parts, or inputs of the module (-1, -2, ..). "shared" are parameters that
 * several parts use; "weight_bytes" are those of the others.
 */
#ifndef LS_PLAN_PROFILE_H
#define LS_PLAN_PROFILE_H

#include <lockstep/plan.h>

#include "base/arena.h"
#include "plan/partition.h"

#define LS__PROFILE_FORMAT "lockstep profile"
#define LS__PROFILE_VERSION 1

typedef struct ls__profile_part {
    const char *name;
    int from[LS_PART_FROM_MAX], from_count;
    double forward, input, weight; /* seconds */
    int64_t output_bytes, gradient_bytes, kept_bytes, weight_bytes;
} ls__profile_part;

typedef struct ls__profile_shared {
    const char *name; /* of the first one */
    int64_t bytes;    /* of all parameters that just these parts use */
    bool *used_by;    /* [part_count] */
} ls__profile_shared;

typedef struct ls__profile {
    ls__arena arena; /* owns all of it */
    const char *model;
    int64_t batch; /* samples of the micro-batch */
    int repeats, threads, cores;
    const char *cpu;
    ls__profile_part *parts;
    int part_count;
    ls__profile_shared *shared;
    int shared_count;
} ls__profile;

/* An empty profile with room for `parts` of them. NULL: no memory. */
ls__profile *ls__profile_new(const ls__env *env, int parts);
void ls__profile_free(ls__profile *profile); /* NULL is allowed */

/* profile.c; *out is NULL on an error. `what` begins the messages. */
ls_status ls__profile_parse(const ls__env *env, const char *what, const char *text, size_t bytes,
                            ls__profile **out);
ls_status ls__profile_read(const ls__env *env, const char *path, ls__profile **out);
ls_status ls__profile_save(const ls__env *env, const ls__profile *profile, const char *path);

/* The chain that the partitioner takes, in memory of the profile. LS_ERR_MEMORY. A value crosses
 * every cut between its part and the last one that takes it. */
ls_status ls__profile_chain(ls__profile *profile, ls__chain *out);

/* The processor's name according to the kernel; "unknown" if there is none. machine.c */
void ls__processor_name(const ls__env *env, char *out, size_t bytes);

#endif
