/* SPDX-License-Identifier: Apache-2.0 */
/* A GPT, a Llama or a Mixtral by its sizes: parameters, the operators of a layer, and kept
 * activations, on each of the ranks that divide its matrices (Megatron-LM: Shoeybi et al. 2019). */
#ifndef LS_COST_GPT_H
#define LS_COST_GPT_H

#include "cost/processor.h"
#include "schedule/schedule.h"

/* With experts, every second layer of a GPT and every layer of a Llama, which then is a Mixtral,
 * has `experts` MLPs, and a token visits top_k of them. */
typedef struct ls__gpt {
    int64_t layers, dim, heads, vocab, context;
    int64_t experts, top_k; /* 0: none */
    bool untied;            /* the head has weights of its own, not the token embedding */
    int64_t mlp;            /* the width of an MLP or an expert; 0: 4 dim */
    /* MLPs of three matrices with a gate, rotary positions, norms without a shift, no biases. */
    bool llama;
    int64_t kv_heads, head_dim; /* 0: heads, dim / heads */
    int64_t positions;          /* rows of a GPT's table of them; 0: context */
} ls__gpt;

/* "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"; false: there is none. */
bool ls__gpt_find(const char *name, ls__gpt *out);

/* Layer i has experts. */
static inline bool ls__gpt_has_experts(const ls__gpt *g, int64_t i)
{
    return g->experts > 0 && (g->llama || i % 2 == 1);
}

/* Of the layers from `first` to before `end`, those that have. */
static inline int64_t ls__gpt_mixed(const ls__gpt *g, int64_t first, int64_t end)
{
    return g->experts == 0 ? 0 : g->llama ? end - first : end / 2 - first / 2;
}

static inline bool ls__gpt_has_mlps(const ls__gpt *g)
{
    return ls__gpt_mixed(g, 0, g->layers) < g->layers;
}

/* Sizes that may be left out. */
static inline int64_t ls__gpt_mlp(const ls__gpt *g)
{
    return g->mlp > 0 ? g->mlp : 4 * g->dim;
}

static inline int64_t ls__gpt_kv_heads(const ls__gpt *g)
{
    return g->kv_heads > 0 ? g->kv_heads : g->heads;
}

static inline int64_t ls__gpt_head_dim(const ls__gpt *g)
{
    return g->head_dim > 0 ? g->head_dim : g->dim / g->heads;
}

double ls__gpt_layer_parameters(const ls__gpt *g);  /* of a layer without experts */
double ls__gpt_expert_parameters(const ls__gpt *g); /* of one expert */
double ls__gpt_position_parameters(const ls__gpt *g);
double ls__gpt_last_norm_parameters(const ls__gpt *g);
double ls__gpt_parameters(const ls__gpt *g);

/* What tp divides, as bits: heads, the width of the MLP, the tokens of embedding and head, and the
 * width of the experts, which ls_tensor_parallel leaves whole: each rank computes them. */
enum {
    LS__GPT_ATTENTION = 1,
    LS__GPT_MLP = 2,
    LS__GPT_TOKENS = 4,
    LS__GPT_HEAD = 8,
    LS__GPT_EXPERTS = 16
};
#define LS__GPT_DIVISIONS 4 /* those of a model without experts */

/* How a micro-batch is computed. */
typedef struct ls__gpt_use {
    ls__gpt model;
    int64_t batch; /* sequences */
    int tp;
    int whole;     /* what each rank of tp has nevertheless, as bits; 0: Megatron-LM's division */
    int cp, ep;    /* ranks that share a sequence, and the experts; 0 and 1: none */
    bool sequence; /* activations between the matrices are divided, too (Korthikanti et al. 2022) */
    int width;     /* bytes of an element: 4 or 2 */
    bool recompute; /* blocks keep their input only, and run again in backward */
} ls__gpt_use;

/* Ranks that divide a part. */
static inline int ls__gpt_ranks(const ls__gpt_use *u, int part)
{
    return u->whole & part ? 1 : u->tp;
}

/* Parameters of a rank: a layer, of one with experts all but these, and the embedding or the
 * head. */
double ls__gpt_layer_share(const ls__gpt_use *u, bool experts);
double ls__gpt_table_share(const ls__gpt_use *u, int part);
/* Of a layer, weights of the keys and values whose heads are fewer than the ranks: these have all
 * of them, and add their gradients up. */
double ls__gpt_shared_keys(const ls__gpt_use *u);

/* Elements of the activations between two layers, of all tp ranks, and one of cp. */
double ls__gpt_activation(const ls__gpt_use *u);
/* Elements of the keys of a layer, of a rank. */
double ls__gpt_keys(const ls__gpt_use *u);
/* Seconds of the computation alone, on the rank with most heads. */
ls__stage_times ls__gpt_layer_times(const ls__gpt_use *u, const ls__processor *d, bool experts);
double ls__gpt_attention_time(const ls__gpt_use *u, const ls__processor *d); /* forward */
ls__stage_times ls__gpt_embedding_times(const ls__gpt_use *u, const ls__processor *d);
ls__stage_times ls__gpt_head_times(const ls__gpt_use *u, const ls__processor *d);
/* Floating-point operations of a micro-batch in all, forward and backward, but those of gates. */
double ls__gpt_flops(const ls__gpt_use *u);

/* Bytes that a layer keeps from forward to backward: in float32 what Lockstep keeps, in 16 bits
 * the formula of Korthikanti et al. 2022, section 4, without the scores, which attention makes
 * again. */
double ls__gpt_layer_kept(const ls__gpt_use *u, bool experts);
double ls__gpt_layer_again(const ls__gpt_use *u, bool experts); /* with `recompute`, of one layer */
double ls__gpt_head_kept(const ls__gpt_use *u);

/* Bytes of what training keeps of `count` parameters, divided over n ranks by ZeRO's stage 0 to 3
 * (Rajbhandari et al. 2020, figure 1), with AdamW. */
typedef struct ls__state_bytes {
    double parameters, gradients, optimizer;
} ls__state_bytes;
ls__state_bytes ls__state_bytes_of(double count, int width, int stage, int n);

#endif
