/* SPDX-License-Identifier: Apache-2.0 */
/* oneDNN 2: layouts are values; an operation is described before its primitive. See
 * onednn_api.h. */
#include "kernel/cpu/onednn_api.h"

bool ls__layout_strided(dnnl_memory_desc_t *out, const ls__layout_shape *shape,
                        const dnnl_dims_t strides)
{
    return dnnl_memory_desc_init_by_strides(out, shape->ndims, shape->dims, shape->type, strides) ==
           dnnl_success;
}

bool ls__layout_tagged(dnnl_memory_desc_t *out, const ls__layout_shape *shape,
                       dnnl_format_tag_t tag)
{
    return dnnl_memory_desc_init_by_tag(out, shape->ndims, shape->dims, shape->type, tag) ==
           dnnl_success;
}

bool ls__layout_chosen(dnnl_memory_desc_t *out, dnnl_primitive_desc_t of, dnnl_query_t which)
{
    const dnnl_memory_desc_t *lent = dnnl_primitive_desc_query_md(of, which, 0);
    if (lent != NULL) {
        *out = *lent;
    }
    return lent != NULL;
}

bool ls__layout_equal(const dnnl_memory_desc_t *a, const dnnl_memory_desc_t *b)
{
    return dnnl_memory_desc_equal(a, b) != 0;
}

size_t ls__layout_bytes(const dnnl_memory_desc_t *layout)
{
    return dnnl_memory_desc_get_size(layout);
}

void ls__layout_fini(dnnl_memory_desc_t *layout)
{
    (void)layout;
}

bool ls__memory_new(dnnl_memory_t *out, const dnnl_memory_desc_t *layout, dnnl_engine_t engine)
{
    return LS__DNNL_MADE(out, dnnl_memory_create(out, layout, engine, DNNL_MEMORY_NONE));
}

bool ls__append_sum(dnnl_post_ops_t to)
{
    return dnnl_post_ops_append_sum(to, 1.0f) == dnnl_success;
}

bool ls__describe_matmul(dnnl_primitive_desc_t *out, const ls__matmul_layouts *of,
                         dnnl_primitive_attr_t attributes, dnnl_engine_t engine)
{
    dnnl_matmul_desc_t wanted;
    return dnnl_matmul_desc_init(&wanted, of->a, of->b, of->bias, of->c) == dnnl_success &&
           LS__DNNL_MADE(out, dnnl_primitive_desc_create(out, &wanted, attributes, engine, NULL));
}

bool ls__describe_reorder(dnnl_primitive_desc_t *out, const dnnl_memory_desc_t *from,
                          const dnnl_memory_desc_t *to, dnnl_primitive_attr_t attributes,
                          dnnl_engine_t engine)
{
    return LS__DNNL_MADE(
        out, dnnl_reorder_primitive_desc_create(out, from, engine, to, engine, attributes));
}

bool ls__describe_conv_forward(dnnl_primitive_desc_t *out, const ls__conv_layouts *of,
                               dnnl_primitive_attr_t attributes, dnnl_engine_t engine)
{
    dnnl_convolution_desc_t wanted;
    return dnnl_dilated_convolution_forward_desc_init(
               &wanted, dnnl_forward_training, dnnl_convolution_direct, of->x, of->w, of->bias,
               of->y, of->stride, of->gaps, of->padding, of->padding) == dnnl_success &&
           LS__DNNL_MADE(out, dnnl_primitive_desc_create(out, &wanted, attributes, engine, NULL));
}

bool ls__describe_conv_backward_x(dnnl_primitive_desc_t *out, const ls__conv_layouts *of,
                                  dnnl_primitive_desc_t forward, dnnl_primitive_attr_t attributes,
                                  dnnl_engine_t engine)
{
    dnnl_convolution_desc_t wanted;
    return dnnl_dilated_convolution_backward_data_desc_init(
               &wanted, dnnl_convolution_direct, of->x, of->w, of->y, of->stride, of->gaps,
               of->padding, of->padding) == dnnl_success &&
           LS__DNNL_MADE(out,
                         dnnl_primitive_desc_create(out, &wanted, attributes, engine, forward));
}

bool ls__describe_conv_backward_w(dnnl_primitive_desc_t *out, const ls__conv_layouts *of,
                                  dnnl_primitive_desc_t forward, dnnl_primitive_attr_t attributes,
                                  dnnl_engine_t engine)
{
    dnnl_convolution_desc_t wanted;
    return dnnl_dilated_convolution_backward_weights_desc_init(
               &wanted, dnnl_convolution_direct, of->x, of->w, NULL, of->y, of->stride, of->gaps,
               of->padding, of->padding) == dnnl_success &&
           LS__DNNL_MADE(out,
                         dnnl_primitive_desc_create(out, &wanted, attributes, engine, forward));
}
