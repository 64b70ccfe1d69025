/* First values of parameters, which are drawn when someone first reads them.
 *
 * Note [Values drawn late]
 * A parameter's stream is made of its dotted name in the model, which nobody knows while the layer
 * is built: a constructor fills its weights before the layer has a parent. So ls_fill_uniform and
 * ls_fill_normal only note the distribution and the seed at the storage. Every way to the elements
 * (ls_data, an operation's input, ...) calls ls__fill_settle, which draws what is noted. By then
 * the model is put together, unless the program looked before: then the name as far as it is known
 * counts. Whoever overwrites all elements calls ls__fill_cancel, and nothing is drawn. */
#ifndef LS_TENSOR_FILL_H
#define LS_TENSOR_FILL_H

#include <lockstep/state.h>

#include "tensor/tensor.h"

typedef struct ls__fill {
    bool normal;         /* else uniform */
    double from, to;     /* uniform: low, high; normal: mean, standard deviation */
    uint64_t seed;       /* when the fill was asked for */
    uint64_t unowned_id; /* the stream of a tensor that is not a parameter */
} ls__fill;

#define LS__FILL_NAME_BYTES 64

/* What a storage of a parameter knows about its first values. */
typedef struct ls__initial {
    ls__fill fill;                  /* noted, while the storage is `unfilled` */
    const ls__draw_place *owner;    /* the module it was added to first; NULL: not a parameter */
    char name[LS__FILL_NAME_BYTES]; /* within the module */
    bool drawn;                     /* its values come from a fill already */
    bool part;                      /* of a larger logical tensor: */
    ls_shape shape, whole, first;   /* its own, the whole's, and where it begins there */
} ls__initial;

/* Draws the values noted at a storage; ls__fill_settle calls it. */
void ls__fill_draw(ls__storage *storage);

/* Before anyone reads elements of the storage. Acquire pairs with the release of whoever noted or
 * drew the values. */
static inline void ls__fill_settle(ls__storage *storage)
{
    if (LS__UNLIKELY(atomic_load_explicit(&storage->unfilled, memory_order_acquire))) {
        ls__fill_draw(storage);
    }
}

/* Fills the elements of `record`, contiguous and float32: later when they are all elements of the
 * storage, now when not. NULL: leaves them as they are, but counts the fill of a tensor that is not
 * a parameter. */
ls_status ls__fill_note(ls__tensors *tensors, const ls__record *record, const ls__fill *fill);
/* Before all elements of `record` are overwritten. */
void ls__fill_cancel(const ls__record *record);
/* Makes the tensor a parameter of the module at `owner`, unless it is one already. Without memory
 * the tensor stays unowned. */
ls_status ls__fill_own(ls_tensor *t, const ls__draw_place *owner, const char *name);
/* The parameter's module is about to be freed. */
void ls__fill_disown(ls_tensor *t);
/* The shape of the logical tensor that fills are made for. */
ls_shape ls__fill_whole(const ls__record *record);
/* Sets ndim and the three rows of indices: which box of its logical tensor `t` is. Local = global
 * unless ls_tensor_set_part was called. */
ls_status ls__fill_box(const ls_tensor *t, ls_state_tensor *out);

#endif
