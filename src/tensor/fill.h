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

#include "tensor/part.h"
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
    bool optimized;                 /* an optimizer was made over it, of this size */
    bool is_part;                   /* of a larger logical tensor: */
    ls__tensor_part part;
} ls__initial;

/* Made at first use, freed with the storage. NULL with the error set. */
ls__initial *ls__initial_of(ls__storage *storage);

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
/* Which elements of that tensor `record` has. */
ls__tensor_part ls__fill_part(const ls__record *record);
/* Shows `visitor` the boxes of the logical tensor that `t` is, of elements in host memory: its own,
 * or others in its shape (an optimizer's). */
ls_status ls__fill_visit(const ls_tensor *t, ls_dtype dtype, void *data, const char *name,
                         const ls_state_visitor *visitor);
/* The same for elements [from, from + count) of `t`, which lie at `data`: each box of them. */
ls_status ls__fill_visit_range(const ls_tensor *t, ls_dtype dtype, void *data, int64_t from,
                               int64_t count, const char *name, const ls_state_visitor *visitor);
/* From now on its size may not change. */
void ls__fill_set_optimized(ls_tensor *t);
/* Whether the record shows all elements of its storage, in order. */
bool ls__record_covers_storage(const ls__record *record);

#endif
