/* SPDX-License-Identifier: Apache-2.0 */
/* The table of networks, their batches and their weights; see nets.h. */
#include "nets.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/models/alexnet.h>
#include <lockstep/models/bert.h>
#include <lockstep/models/gpt.h>
#include <lockstep/models/gpt2.h>
#include <lockstep/models/lstm.h>
#include <lockstep/models/resnet.h>
#include <lockstep/models/vit.h>

/* ---- the table ---------------------------------------------------------------------------- */

static ls_module *mlp_of(int64_t in, int64_t wide, int64_t out)
{
    const ls_linear_options *with_relu =
        LS_OPTIONS(ls_linear_options, .activation = LS_ACTIVATION_RELU);
    /* The places between are those of the peers' ReLUs: parameters have their names. */
    ls_module *layers[] = {ls_linear_new(in, wide, with_relu), ls_identity_new(),
                           ls_linear_new(wide, wide, with_relu), ls_identity_new(),
                           ls_linear_new(wide, out, NULL)};
    return ls_sequential_new(layers, 5);
}

static ls_module *mlp(void)
{
    return mlp_of(784, 512, 10);
}

static ls_module *mlp_tiny(void)
{
    return mlp_of(12, 8, 4);
}

static ls_module *gpt_of(int layers, int heads, int64_t dim, int64_t context, int64_t vocab)
{
    return ls_gpt_new(LS_OPTIONS(ls_gpt_options, .layers = layers, .heads = heads, .dim = dim,
                                 .context = context, .vocab = vocab));
}

static ls_module *gpt(void)
{
    return gpt_of(6, 6, 384, 256, 8192);
}

static ls_module *gpt_tiny(void)
{
    return gpt_of(2, 2, 32, 16, 64);
}

static ls_module *gpt2(void)
{
    return ls_gpt2_new(LS_OPTIONS(ls_gpt2_options, .variant = "gpt2"));
}

static ls_module *gpt2_medium(void)
{
    return ls_gpt2_new(LS_OPTIONS(ls_gpt2_options, .variant = "gpt2-medium"));
}

static ls_module *gpt2_xl(void)
{
    return ls_gpt2_new(LS_OPTIONS(ls_gpt2_options, .variant = "gpt2-xl"));
}

static ls_module *bert(void)
{
    return ls_bert_new(NULL);
}

static ls_module *lstm(void)
{
    return ls_lstm_model_new(
        LS_OPTIONS(ls_lstm_model_options, .dim = 512, .hidden = 512, .vocab = 8192));
}

static ls_module *vit(void)
{
    return ls_vit_new(NULL);
}

static ls_module *resnet18_cifar(void)
{
    return ls_resnet_new(18, 10, true);
}

static ls_module *resnet18(void)
{
    return ls_resnet_new(18, 1000, false);
}

static ls_module *resnet50(void)
{
    return ls_resnet_new(50, 1000, false);
}

static ls_module *resnet152(void)
{
    return ls_resnet_new(152, 1000, false);
}

static ls_module *alexnet(void)
{
    return ls_alexnet_new(1000, 0.0);
}

static const net nets[] = {
    {"mlp", "MLP 784-512-512-10", mlp, NET_VECTORS, 64, {784}, 10, false},
    {"gpt", "GPT 6 layers, d 384, T 256, V 8192", gpt, NET_TOKENS, 8, {256}, 8192, false},
    {"gpt2", "GPT-2 small, T 512", gpt2, NET_TOKENS, 1, {512}, 50257, false},
    {"gpt2-medium", "GPT-2 medium, T 512", gpt2_medium, NET_TOKENS, 1, {512}, 50257, false},
    {"gpt2-xl", "GPT-2 xl, T 128, SGD", gpt2_xl, NET_TOKENS, 1, {128}, 50257, true},
    {"bert", "BERT base, s 128", bert, NET_MASKED, 2, {128}, 30522, false},
    {"lstm", "LSTM 2 layers, d 512, T 64, V 8192", lstm, NET_TOKENS, 16, {64}, 8192, false},
    {"vit", "ViT B/16", vit, NET_IMAGES, 2, {3, 224, 224}, 1000, false},
    {"resnet18-cifar",
     "ResNet-18, CIFAR stem",
     resnet18_cifar,
     NET_IMAGES,
     32,
     {3, 32, 32},
     10,
     true},
    {"resnet18", "ResNet-18, 224 x 224", resnet18, NET_IMAGES, 8, {3, 224, 224}, 1000, true},
    {"resnet50", "ResNet-50, 224 x 224", resnet50, NET_IMAGES, 4, {3, 224, 224}, 1000, true},
    {"resnet152", "ResNet-152, 224 x 224", resnet152, NET_IMAGES, 2, {3, 224, 224}, 1000, true},
    {"alexnet", "AlexNet, 224 x 224", alexnet, NET_IMAGES, 16, {3, 224, 224}, 1000, true},
    {"mlp-tiny", "MLP 12-8-8-4", mlp_tiny, NET_VECTORS, 4, {12}, 4, false},
    {"gpt-tiny", "GPT 2 layers, d 32, T 16, V 64", gpt_tiny, NET_TOKENS, 2, {16}, 64, false},
};

enum { NETS = sizeof nets / sizeof *nets };

const net *net_at(int i)
{
    return i < NETS ? &nets[i] : NULL;
}

const net *net_find(const char *name)
{
    for (int i = 0; i < NETS; i++) {
        if (strcmp(nets[i].name, name) == 0) {
            return &nets[i];
        }
    }
    return NULL;
}

/* ---- the formula -------------------------------------------------------------------------- */

static uint32_t hash_of(const char *name) /* FNV-1a */
{
    uint32_t x = 2166136261u;
    for (; *name != '\0'; name++) {
        x = (x ^ (uint8_t)*name) * 16777619u;
    }
    return x;
}

/* 24 bits of element i: a Weyl sequence through the mixing steps of lowbias32. */
static uint32_t bits(uint32_t hash, int64_t i)
{
    uint32_t x = hash + (uint32_t)i * 0x9e3779b9u;
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return (x ^ x >> 16) >> 8;
}

static bool ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* Matrices and filters by their fan-in, scales of norms around 1, biases around 0. */
static void fill(const ls_param *param, float *values)
{
    const int64_t count = ls_numel(param->value), out = ls_size(param->value, 0);
    const bool matrix = ls_ndim(param->value) > 1;
    const double scale = matrix ? 1.5 / sqrt((double)(count / out)) : 0.25;
    const double middle = !matrix && ends_with(param->name, "weight") ? 1.0 : 0.0;
    const uint32_t hash = hash_of(param->name);
    for (int64_t i = 0; i < count; i++) {
        values[i] = (float)(middle + scale * (bits(hash, i) / 8388608.0 - 1.0));
    }
}

static ls_status fill_all(ls_module *model)
{
    const int count = ls_module_param_count(model);
    ls_param *params = calloc((size_t)count + 1, sizeof *params);
    if (params == NULL) {
        return ls_fail(LS_ERR_MEMORY, "no memory");
    }
    (void)ls_module_params(model, params, count);
    ls_status status = LS_OK;
    for (int p = 0; p < count && status == LS_OK; p++) {
        const size_t bytes = (size_t)ls_numel(params[p].value) * sizeof(float);
        float *values = malloc(bytes + 1);
        if (values == NULL) {
            status = ls_fail(LS_ERR_MEMORY, "no memory");
            break;
        }
        fill(&params[p], values);
        status = ls_copy_in(params[p].value, values, bytes);
        free(values);
    }
    free(params);
    return status;
}

/* ---- batches ------------------------------------------------------------------------------ */

static bool is_text(const net *n)
{
    return n->input == NET_TOKENS || n->input == NET_MASKED;
}

static int64_t sample_numel(const net *n)
{
    return n->dim[0] * (n->input == NET_IMAGES ? n->dim[1] * n->dim[2] : 1);
}

static ls_tensor *tokens(const net *n, const char *name, int64_t batch, ls_shape shape)
{
    ls_tensor *t = ls_keep(ls_empty(shape, LS_INT32));
    int32_t *data = ls_tensor_status(t) == LS_OK ? ls_data(t) : NULL;
    const uint32_t hash = hash_of(name);
    const int64_t count = data != NULL ? batch * (is_text(n) ? n->dim[0] : 1) : 0;
    for (int64_t i = 0; i < count; i++) {
        data[i] = (int32_t)(bits(hash, i) * n->classes >> 24);
    }
    return t;
}

static ls_tensor *make_x(const net *n, int64_t batch)
{
    if (is_text(n)) {
        return tokens(n, "x", batch, LS_SHAPE(batch, n->dim[0]));
    }
    const ls_shape shape = n->input == NET_VECTORS
                               ? LS_SHAPE(batch, n->dim[0])
                               : LS_SHAPE(batch, n->dim[0], n->dim[1], n->dim[2]);
    ls_tensor *x = ls_keep(ls_empty(shape, LS_FLOAT32));
    float *data = ls_tensor_status(x) == LS_OK ? ls_data(x) : NULL;
    const uint32_t hash = hash_of("x");
    for (int64_t i = 0; data != NULL && i < batch * sample_numel(n); i++) {
        data[i] = (float)(bits(hash, i) / 8388608.0 - 1.0);
    }
    return x;
}

static ls_tensor *make_y(const net *n, int64_t batch)
{
    ls_tensor *y = tokens(n, "y", batch, is_text(n) ? LS_SHAPE(batch, n->dim[0]) : LS_SHAPE(batch));
    int32_t *data = n->input == NET_MASKED && ls_tensor_status(y) == LS_OK ? ls_data(y) : NULL;
    for (int64_t i = 0; data != NULL && i < batch * n->dim[0]; i++) {
        data[i] = i % 7 == 3 ? data[i] : -100;
    }
    return y;
}

/* ---- training ----------------------------------------------------------------------------- */

ls_optim *net_optim(const net *n, ls_module *model)
{
    return n->sgd ? ls_sgd_new(model, LS_OPTIONS(ls_sgd_options, .lr = 2e-5, .momentum = 0.9))
                  : ls_adamw_new(model, LS_OPTIONS(ls_adamw_options, .lr = 1e-4));
}

ls_status net_open_model(net_run *run, const net *n, int64_t batch, bool formula)
{
    *run = (net_run){.net = n};
    run->x = make_x(n, batch);
    run->y = make_y(n, batch);
    ls_status status = ls_tensor_status(run->x);
    status = status < 0 ? status : ls_tensor_status(run->y);
    run->model = status < 0 ? NULL : n->build();
    if (run->model == NULL) {
        return status < 0 ? status : LS_ERR_INVALID;
    }
    status = ls_module_status(run->model);
    return status < 0 || !formula ? status : fill_all(run->model);
}

ls_status net_open(net_run *run, const net *n, int64_t batch, bool formula)
{
    const ls_status status = net_open_model(run, n, batch, formula);
    run->optim = status < 0 ? NULL : net_optim(n, run->model);
    return status == LS_OK && run->optim == NULL ? LS_ERR_INVALID : status;
}

void net_close(net_run *run)
{
    ls_optim_free(run->optim);
    ls_module_free(run->model);
    ls_free(run->x);
    ls_free(run->y);
    *run = (net_run){0};
}

ls_tensor *net_loss(const net_run *run)
{
    ls_tensor *loss = NULL;
    {
        LS_AUTOCAST(run->bfloat16);
        ls_tensor *logits = ls_forward(run->model, run->x);
        loss = ls_cross_entropy(logits, run->y, NULL);
    }
    return loss;
}

ls_status net_step(net_run *run, double *loss)
{
    ls_status status = LS_OK;
    {
        LS_SCOPE;
        ls_optim_zero_grad(run->optim);
        ls_tensor *of = net_loss(run);
        status = ls_backward(of);
        status = status < 0 ? status : ls_optim_step(run->optim);
        status = status < 0 ? status : ls_item(of, loss);
    }
    return status;
}
