/* The state visitor: how everything that must survive a restart shows itself (docs/design.md, D16).
 *
 * A stateful object has one `state` function that walks its members in a fixed order and calls the
 * visitor for each: named logical tensors (global shape and the local slice of it) and scalars. The
 * same walk saves and loads: `data` and `value` point at the live members, a saving visitor reads
 * them, a loading one writes them. Names are joined with dots ("exp_avg.layers.0.weight"); no name
 * contains a rank, a bucket or an address, so a checkpoint loads on another layout.
 */
#ifndef LOCKSTEP_STATE_H
#define LOCKSTEP_STATE_H

#include <lockstep/status.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LS_DIMS_MAX 8

/* A logical tensor: `data` holds the slice [start, start+local) of the global shape, contiguous. The
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
struct ls_state_visitor {
    size_t size; /* of this struct: functions that it does not reach are not called */
    void *self;
    ls_status (*tensor)(void *self, const char *name, const ls_state_tensor *tensor);
    ls_status (*int64)(void *self, const char *name, int64_t *value);
    ls_status (*float64)(void *self, const char *name, double *value);
};

#ifdef __cplusplus
}
#endif
#endif
