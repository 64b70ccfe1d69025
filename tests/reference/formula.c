/* SPDX-License-Identifier: Apache-2.0 */
/* Weights and batches as a formula of a name and an index: the same in make.py, to the bit. Element
 * i of `name` is 24 bits: FNV-1a of the name plus i steps of a Weyl sequence, through the mixing
 * steps of lowbias32. In a float32 all of its values are exact. */
#include "reference.h"

#include <math.h>

static uint32_t bits(const char *name, int64_t i)
{
    uint32_t x = 2166136261u;
    for (; *name; name++) {
        x = (x ^ (uint8_t)*name) * 16777619u;
    }
    x += (uint32_t)i * 0x9e3779b9u;
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return (x ^ x >> 16) >> 8;
}

static double value(const char *name, int64_t i) /* [-1,1) */
{
    return bits(name, i) / 8388608.0 - 1.0;
}

static int32_t whole(const char *name, int64_t i, int64_t below) /* 0…below-1 */
{
    return (int32_t)(bits(name, i) * below >> 24);
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* Matrices and filters by their fan-in, scales of norms around 1, biases around 0. */
static float element(const ls_param *param, int64_t i)
{
    int64_t count = ls_numel(param->value), out = ls_size(param->value, 0);
    double v = value(param->name, i);
    if (ls_ndim(param->value) > 1) {
        double scale = 1.5 / sqrt((double)(count / out));
        return (float)(v * scale);
    }
    double middle = ends_with(param->name, "weight") ? 1.0 : 0.0;
    return (float)(middle + 0.25 * v);
}

void formula_params(ls_module *net)
{
    int count = ls_module_param_count(net);
    ls_param *params = calloc((size_t)count + 1, sizeof *params);
    CHECK(params != NULL);
    (void)ls_module_params(net, params, count);
    for (int p = 0; p < count; p++) {
        size_t bytes = (size_t)ls_numel(params[p].value) * sizeof(float);
        float *values = malloc(bytes + 1);
        CHECK(values != NULL);
        for (int64_t i = 0; i < ls_numel(params[p].value); i++) {
            values[i] = element(&params[p], i);
        }
        CHECK_OK(ls_copy_in(params[p].value, values, bytes));
        free(values);
    }
    free(params);
}

ls_tensor *formula_floats(const char *name, int64_t first, int64_t count, ls_shape shape)
{
    ls_shape all = {.ndim = shape.ndim + 1, .dim = {count}};
    int64_t numel = 1;
    for (int d = 0; d < shape.ndim; d++) {
        all.dim[d + 1] = shape.dim[d];
        numel *= shape.dim[d];
    }
    ls_tensor *t = ls_empty(all, LS_FLOAT32);
    CHECK_OK(ls_tensor_status(t));
    float *data = ls_data(t);
    for (int64_t i = 0; i < count * numel; i++) {
        data[i] = (float)value(name, first * numel + i);
    }
    return t;
}

ls_tensor *formula_classes(int64_t first, int64_t count, int64_t below)
{
    int32_t labels[BATCH];
    CHECK(count <= BATCH);
    for (int64_t i = 0; i < count; i++) {
        labels[i] = whole("class", first + i, below);
    }
    return ls_from_data(labels, LS_SHAPE(count), LS_INT32);
}

void formula_tokens(int32_t *out, int64_t sample, int64_t length, int64_t vocab)
{
    int64_t first = whole("first", sample, vocab), stride = 1 + whole("stride", sample, 3);
    for (int64_t t = 0; t < length; t++) {
        out[t] = (int32_t)((first + t * stride) % vocab);
    }
}
