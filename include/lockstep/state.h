/* SPDX-License-Identifier: Apache-2.0 */
/* The state visitor, through which an object saves and loads its state (docs/design.md, D16).
 *
 * A stateful object has one `state` function, which walks its members in a fixed order and calls
 * the visitor for each of them: named logical tensors (a global shape and this rank's slice) and
 * scalars. The same walk saves and loads: `data` and `value` point to the members, a saving visitor
 * reads them, and a loading visitor writes them. Names are joined with dots
 * ("exp_avg.layers.0.weight"). No name contains a rank, a bucket or an address, so a checkpoint can
 * be loaded with another number of ranks.
 *
 * Ranks may show different names (a pipeline stage those of its own layers) and different slices of
 * a tensor. A name may be shown several times, each time with another slice of the same tensor (a
 * shard that begins and ends in the middle of a row is up to three boxes).
 */
#ifndef LOCKSTEP_STATE_H
#define LOCKSTEP_STATE_H

#include <lockstep/status.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LS_DIMS_MAX 8

/* A logical tensor: `data` is the contiguous slice [start, start+local) of the global shape. The
 * struct has no size because it does not grow: more about a tensor would be the arguments of a
 * further function in ls_state_visitor, whose size says which functions it has. */
typedef struct ls_state_tensor {
    ls_dtype dtype;
    int ndim;
    int64_t global[LS_DIMS_MAX];
    int64_t start[LS_DIMS_MAX];
    int64_t local[LS_DIMS_MAX];
    void *data; /* borrowed for the call */
} ls_state_tensor;

typedef struct ls_state_visitor ls_state_visitor;
/* Each function returns LS_OK or an error, which ends the walk and is returned by `state`. */
struct ls_state_visitor {
    size_t size; /* of this struct: functions beyond it are not called */
    void *self;
    ls_status (*tensor)(void *self, const char *name, const ls_state_tensor *tensor);
    ls_status (*int64)(void *self, const char *name, int64_t *value);
    ls_status (*float64)(void *self, const char *name, double *value);
    /* A number that older files do not contain: a loading visitor leaves it as it is if it does not
     * find it. NULL: float64 is called instead. */
    ls_status (*optional_float64)(void *self, const char *name, double *value);
};

#ifdef __cplusplus
}
#endif
#endif
