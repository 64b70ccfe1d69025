/* SPDX-License-Identifier: Apache-2.0 */
/* What all ranks of a group must have alike. A fact has a name as users read it and a value as
 * text. The ranks compare one hash of all their facts; only where hashes differ do they exchange
 * the texts, and every rank returns the same error, which names the first fact that differs, both
 * ranks with both values, and the remedy.
 *
 *   facts                                               among             when
 *   a reducer's parameters, bucket_bytes, wire_dtype    each domain       ls_reducer_new
 *   buffers and parameters that are not trained         the reducer's     ls_ddp_new
 *   options and parts of a pipeline                     its ranks         ls_pipeline_new
 *   the seed; samplers, loaders, optimizers, shards     Note [Agreement]  the first synchronised
 *                                                                         backward, or the first
 *                                                                         call of a pipeline;
 *                                       axes of parts     the first step (optim/agree.c)
 *   learning rates, steps, norm of clipping, autocast   the same          each of these
 *   the parameters themselves                           each domain       check_every backwards
 *   their copies along other axes of the mesh           each axis         the same; without a
 *                                                                         wrapper the first step
 *                                                                         (optim/agree.c)
 *
 * Settings that may change and the parameters cost no exchange of their own: their hash goes with
 * one that is due anyway (reduce/control.c, the losses of a pipeline), and ls__agree follows only
 * where it differs. In what else the ranks of one backward must be alike, such as its kind, travels
 * in the control exchange as numbers, of which ls__agree_here lists the facts.
 *
 * To add a setting that any part of the library makes once, or changes in the run, call
 * ls__config_note or ls__config_set (base/config.h): it is compared with the others. */
#ifndef LS_DIST_AGREE_H
#define LS_DIST_AGREE_H

#include <stdbool.h>
#include <stdint.h>

#include <lockstep/comm.h>

typedef struct ls__fact {
    const char *name, *value;
    const char *own;    /* end of the value, which only replicas must have alike; or NULL */
    const char *note;   /* shown after the value, not compared; or NULL */
    const char *remedy; /* "give every rank the same" */
} ls__fact;

/* Takes the facts of one rank. */
typedef struct ls__facts ls__facts;
void ls__facts_add(ls__facts *to, const ls__fact *fact);
void ls__facts_text(ls__facts *to, const char *name, const char *value, const char *remedy);
void ls__facts_number(ls__facts *to, const char *name, double value, const char *remedy);
void ls__facts_hash(ls__facts *to, const char *name, uint64_t hash, const char *remedy);
/* Lists the facts of this rank, each time the same. Names differ from each other. */
typedef void (*ls__facts_fn)(ls__facts *to, const void *arg);

/* Who compares. */
typedef struct ls__agree_peers {
    ls_group *group;
    char who[64]; /* in messages: `reducer "ddp"` */
    bool stages;  /* of a pipeline: they have different parameters, and may lack facts that others
                     have */
    bool parts;   /* they have parts of the same parameters: only samplers and loaders may be
                     lacking, since one rank may read for the others. Neither: replicas */
    bool lack;    /* facts without `own` may be lacking; set by ls__agree_settings */
    bool trains;  /* this rank has parameters to train: settings that may change count */
    uint64_t key; /* of replicas: the group's, Note [Agreement] (base/runtime.h) */
} ls__agree_peers;

/* Collective, once or twice an all_gather. LS_ERR_MISMATCH names the first difference. */
ls_status ls__agree(const ls__agree_peers *p, ls__facts_fn list, const void *arg);
/* Of facts that this rank knows of all: lists those of a rank of the group. Local. */
typedef void (*ls__facts_of_fn)(ls__facts *to, int rank, const void *arg);
ls_status ls__agree_here(const ls__agree_peers *p, ls__facts_of_fn list, const void *arg);
/* The same of the settings of base/config.h: of those that stay, and of those that may change. The
 * former are not compared where a rank does not agree in the group. */
ls_status ls__agree_settings(const ls__agree_peers *p);
ls_status ls__agree_changes(const ls__agree_peers *p);

#endif
