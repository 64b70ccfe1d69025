/* SPDX-License-Identifier: Apache-2.0 */
/* First values of parameters, which are drawn when someone first reads them.
 *
 * Note [Values drawn late]
 * A parameter's stream is made of its dotted name in the model, which nobody knows while the layer
 * is built: a constructor fills its weights before the layer has a parent. So ls_fill_uniform and
 * ls_fill_normal only note the distribution and the seed at the storage. Every way to the elements
 * (ls_data, an operation's input, a gradient rule, ...) calls ls__fill_settle, which draws what is
 * noted. By then the model is put together, unless the program looked before: then the name as far
 * as it is known counts. Whoever overwrites all elements calls ls__fill_cancel, and nothing is
 * drawn.
 *
 * Note [Elements on other ranks]
 * A parameter is hollow while only a range of its elements is on this rank; its memory has room for
 * all of them. ls__fill_settle then asks the parameter's keeper (ddp/unshard.c), which brings the
 * others, or says why nobody may read them now. It is asked while they are here, too, so that it
 * knows what is still in use. */
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

/* What a storage of a parameter knows about its first values, and where its elements are. */
typedef struct ls__keeper ls__keeper;
struct ls__keeper {
    ls_status (*read)(ls__keeper *self); /* before elements are read, or changed by the program */
    bool hollow;                         /* of the elements, only these are on this rank: */
    int64_t from, count;
};

/* What products read in place of the elements of a parameter; see quantize.h, under its lock. */
typedef struct ls__rounding {
    ls_dtype dtype;   /* LS_FLOAT32: the elements themselves */
    bool turned;      /* made of a matrix [in,out] */
    uint32_t version; /* of the elements it was made of */
} ls__rounding;

typedef struct ls__initial {
    ls__fill fill;                  /* if `noted`. Under the lock of fill.c */
    bool noted;                     /* values are not drawn yet */
    ls__keeper *keeper;             /* asked before each read; NULL: there is none */
    const ls__draw_place *owner;    /* the module it was added to first; NULL: not a parameter */
    char name[LS__FILL_NAME_BYTES]; /* within the module */
    bool drawn;                     /* its values come from a fill already */
    bool optimized;                 /* an optimizer was made over it, of this size */
    ls__rounding rounding;          /* quantize.h */
    bool is_part;                   /* of a larger logical tensor: */
    ls__tensor_part part;
} ls__initial;

/* Made at first use, freed with the storage. NULL with the error set. */
ls__initial *ls__initial_of(ls__storage *storage);

/* Draws the values noted at a storage; ls__fill_drawn calls it. */
void ls__fill_draw(ls__storage *storage);
/* The same, and asks the keeper; ls__fill_settle calls it. */
ls_status ls__fill_ask(ls__storage *storage);

/* Before anyone reads elements that are on this rank. Acquire pairs with the release of whoever
 * noted or drew the values. */
static inline void ls__fill_drawn(ls__storage *storage)
{
    if (LS__UNLIKELY(atomic_load_explicit(&storage->due, memory_order_acquire))) {
        ls__fill_draw(storage);
    }
}

/* Before anyone reads elements of the storage; an error says why they cannot be read. */
static inline ls_status ls__fill_settle(ls__storage *storage)
{
    return LS__UNLIKELY(atomic_load_explicit(&storage->due, memory_order_acquire))
               ? ls__fill_ask(storage)
               : LS_OK;
}

/* Fills the elements of `record`, contiguous and float32: later when they are all elements of the
 * storage, now when not. NULL: leaves them as they are, but counts the fill of a tensor that is not
 * a parameter. */
ls_status ls__fill_note(ls__tensors *tensors, const ls__record *record, const ls__fill *fill);
/* Before all elements of `record` are overwritten; an error says why they cannot be. */
ls_status ls__fill_cancel(const ls__record *record);
/* Makes `keeper` that of a parameter; NULL: it has none. Its elements are here when it changes.
 * LS_ERR_UNSUPPORTED, without words, for a parameter that is part of a larger tensor. */
ls_status ls__fill_keep(ls_tensor *t, ls__keeper *keeper);
/* The elements that are on this rank. */
void ls__fill_here(const ls_tensor *t, int64_t *from, int64_t *count);
/* Makes the tensor a parameter of the module at `owner`, unless it is one already. Without memory
 * the tensor stays unowned. */
ls_status ls__fill_own(ls_tensor *t, const ls__draw_place *owner, const char *name);
/* The parameter's module is about to be freed. */
void ls__fill_disown(ls_tensor *t);
/* The shape of the logical tensor that fills are made for. */
ls_shape ls__fill_whole(const ls__record *record);
/* Which elements of that tensor `record` has. */
ls__tensor_part ls__fill_part(const ls__record *record);
/* Shows `visitor` each box, in the logical tensor that `t` is, of its elements [from, from +
 * count), which lie in host memory at `data`: its own, or others in its shape (an optimizer's). */
ls_status ls__fill_visit_range(const ls_tensor *t, ls_dtype dtype, void *data, int64_t from,
                               int64_t count, const char *name, const ls_state_visitor *visitor);
/* From now on its size may not change. */
void ls__fill_set_optimized(ls_tensor *t);
/* Whether the record shows all elements of its storage, in order. */
bool ls__record_covers_storage(const ls__record *record);

#endif
