/* SPDX-License-Identifier: Apache-2.0 */
/* The calls of oneDNN that its versions 2 and 3 spell differently: onednn_2.c or onednn_3.c, of
 * which the build takes the one that the library needs. Version 3 hands descriptions of layouts
 * out as handles that are destroyed, version 2 keeps them by value; version 3 knows no description
 * of an operation beside that of its primitive. All other calls are alike and made directly.
 *
 * A layout that is zero bytes is empty; ls__layout_fini may be called for it and more than once.
 * All functions return false where oneDNN refuses or memory is out, and leave their output empty.
 */
#ifndef LS_KERNEL_CPU_ONEDNN_API_H
#define LS_KERNEL_CPU_ONEDNN_API_H

#include <stdbool.h>
#include <stdint.h>

#include <oneapi/dnnl/dnnl.h>

/* For onednn_2.c and onednn_3.c: whether oneDNN did it; if not it has left *out alone, which may
 * hold anything. */
#define LS__DNNL_MADE(out, call) ((call) == dnnl_success || (*(out) = NULL, false))

typedef struct ls__layout_shape { /* dims[ndims], of numbers of `type` */
    int ndims;
    dnnl_dims_t dims;
    dnnl_data_type_t type;
} ls__layout_shape;

bool ls__layout_strided(dnnl_memory_desc_t *out, const ls__layout_shape *shape,
                        const dnnl_dims_t strides); /* in elements */
bool ls__layout_tagged(dnnl_memory_desc_t *out, const ls__layout_shape *shape,
                       dnnl_format_tag_t tag);
/* The layout that a primitive wants for an operand; `which` is dnnl_query_src_md or its like. */
bool ls__layout_chosen(dnnl_memory_desc_t *out, dnnl_primitive_desc_t of, dnnl_query_t which);
bool ls__layout_equal(const dnnl_memory_desc_t *a, const dnnl_memory_desc_t *b);
size_t ls__layout_bytes(const dnnl_memory_desc_t *layout);
void ls__layout_fini(dnnl_memory_desc_t *layout);

/* A handle without memory; each call sets its address. */
bool ls__memory_new(dnnl_memory_t *out, const dnnl_memory_desc_t *layout, dnnl_engine_t engine);
/* The output is added to, not overwritten. */
bool ls__append_sum(dnnl_post_ops_t to);

typedef struct ls__matmul_layouts {
    const dnnl_memory_desc_t *a, *b, *bias, *c; /* bias NULL: none */
} ls__matmul_layouts;

bool ls__describe_matmul(dnnl_primitive_desc_t *out, const ls__matmul_layouts *of,
                         dnnl_primitive_attr_t attributes, dnnl_engine_t engine);
bool ls__describe_reorder(dnnl_primitive_desc_t *out, const dnnl_memory_desc_t *from,
                          const dnnl_memory_desc_t *to, dnnl_primitive_attr_t attributes,
                          dnnl_engine_t engine);

typedef struct ls__conv_layouts {
    const dnnl_memory_desc_t *x, *w, *bias, *y; /* bias: forward; NULL: none */
    dnnl_dims_t stride, gaps, padding;          /* gaps: one less than the dilation */
} ls__conv_layouts;

bool ls__describe_conv_forward(dnnl_primitive_desc_t *out, const ls__conv_layouts *of,
                               dnnl_primitive_attr_t attributes, dnnl_engine_t engine);
/* `forward`: the pass that these are the gradients of */
bool ls__describe_conv_backward_x(dnnl_primitive_desc_t *out, const ls__conv_layouts *of,
                                  dnnl_primitive_desc_t forward, dnnl_primitive_attr_t attributes,
                                  dnnl_engine_t engine);
bool ls__describe_conv_backward_w(dnnl_primitive_desc_t *out, const ls__conv_layouts *of,
                                  dnnl_primitive_desc_t forward, dnnl_primitive_attr_t attributes,
                                  dnnl_engine_t engine);

#endif
