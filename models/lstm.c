/* SPDX-License-Identifier: Apache-2.0 */
/* A language model of long short-term memory, written with public headers only.
 *
 *     tokens [B,T] -> embedding -> cells x layers, over time -> linear -> logits [B,T,V]
 */
#include <lockstep/models/lstm.h>

typedef struct lstm {
    ls_module base;
    ls_module *encoder, *rnn, *decoder, *drop, *rnn_drop;
} lstm;

static ls_tensor *encode(ls_module *m, ls_tensor *const *x) /* [B,T] -> [B,T,C] */
{
    lstm *self = (lstm *)m;
    return ls_forward(self->drop, ls_forward(self->encoder, x[0]));
}

static ls_tensor *run_rnn(ls_module *m, ls_tensor *const *x) /* [B,T,C] -> [B,T,hidden] */
{
    lstm *self = (lstm *)m;
    return ls_forward(self->rnn_drop, ls_forward(self->rnn, x[0]));
}

static ls_tensor *lstm_forward(ls_module *m, ls_tensor *x) /* [B,T] -> [B,T,V] */
{
    x = encode(m, &x);
    x = run_rnn(m, &x);
    return ls_forward(((lstm *)m)->decoder, x);
}

static void lstm_parts(ls_module *m, ls_parts *parts)
{
    ls_parts_add(parts, &LS_PART(.name = "encoder", .run = encode, .uses = "encoder drop"));
    ls_parts_add(parts, &LS_PART(.name = "rnn", .run = run_rnn, .uses = "rnn rnn_drop"));
    ls_parts_add(parts, &LS_PART(.module = ((lstm *)m)->decoder));
}

static const ls_module_class lstm_class =
    LS_MODULE_CLASS(.name = "lstm", .forward = lstm_forward, .parts = lstm_parts);

/* Uniform in ±0.1, as the example begins. */
static void begin_near_zero(ls_module *layer)
{
    ls_param params[2]; /* weight, bias */
    int count = layer != NULL ? ls_module_params(layer, params, 2) : 0;
    for (int i = 0; i < count; i++) { /* cannot fail: the layer just did the same */
        (void)(i == 0 ? ls_fill_uniform(params[i].value, -0.1, 0.1)
                      : ls_fill_constant(params[i].value, 0.0));
    }
}

static void build(lstm *self, const ls_lstm_model_options *o)
{
    ls_module *m = &self->base;
    {
        LS_SKIP_INIT(true);
        self->encoder = ls_module_add(m, "encoder", ls_embedding_new(o->vocab, o->dim));
    }
    begin_near_zero(self->encoder);
    self->drop = ls_module_add(m, "drop", ls_dropout_new(o->dropout));
    /* One of its own, so that a stage draws what the whole model does. */
    self->rnn_drop = ls_module_add(m, "rnn_drop", ls_dropout_new(o->dropout));
    self->rnn = ls_module_add(m, "rnn", ls_lstm_new(o->dim, o->hidden, o->layers));
    {
        LS_SKIP_INIT(true);
        self->decoder = ls_module_add(m, "decoder", ls_linear_new(o->hidden, o->vocab, NULL));
    }
    begin_near_zero(self->decoder);
}

ls_module *ls_lstm_model_new(const ls_lstm_model_options *options)
{
    LS_READ_OPTIONS(ls_lstm_model_options, given, options, __func__, NULL);
    const ls_lstm_model_options *o = &given;
    lstm *self = ls_module_new(sizeof *self, &lstm_class);
    if (self == NULL) {
        return NULL;
    }
    build(self, o);
    if (ls_module_status(&self->base) < 0) {
        ls_module_free(&self->base);
        return NULL;
    }
    return &self->base;
}
