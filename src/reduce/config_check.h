/* Whether all ranks of a group have the same seed, samplers and optimizers; see config_check.c.
 * Used by reducers and by pipelines. */
#ifndef LS_REDUCE_CONFIG_CHECK_H
#define LS_REDUCE_CONFIG_CHECK_H

#include <stdbool.h>
#include <stdint.h>

#include <lockstep/comm.h>

/* Who compares. */
typedef struct ls__config_peers {
    ls_group *group;
    char name[64];      /* in messages: `reducer "ddp"` */
    bool stages;        /* of a pipeline, with different parameters; else replicas */
    bool trains;        /* this rank has parameters to train, so its settings count */
    uint64_t agreement; /* of replicas: the group's key, Note [Agreement] */
} ls__config_peers;

/* Collective; LS_ERR_MISMATCH names the first difference. */
ls_status ls__config_check(const ls__config_peers *peers);
/* Names the setting that may change in the run and differs, after hashes did. Collective; returns
 * LS_ERR_MISMATCH, or the failure of the exchange; for stages LS_OK if those that several ranks
 * have are alike. */
ls_status ls__config_name_change(const ls__config_peers *peers);

#endif
