/* SPDX-License-Identifier: Apache-2.0 */
/* The file of a plan of auto.h. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "plan/auto.h"
#include "plan/plan.h"

#define PART_BYTES 64

static const ls__auto_names gpt = {.blocks = "blocks.",
                                   .embedding = "tokens=vocab",
                                   .sequence = "positions=sequence blocks.*.norm*=sequence",
                                   .attention = "blocks.*.qkv=column(3) blocks.*.proj=row",
                                   .mlp = "blocks.*.up=column blocks.*.down=row",
                                   .last_norm = "norm=sequence",
                                   .head = "head=column"};

#define H "transformer.h.*."
static const ls__auto_names gpt2 = {
    .blocks = "transformer.h.",
    .embedding = "transformer.wte=vocab", /* and the head's */
    .sequence = "transformer.wpe=sequence " H "ln_*=sequence " H "*.c_proj.bias=sequence",
    .attention = H "attn.c_attn.weight=shard(1,3) " H "attn.c_attn.bias=shard(0,3) " H
                   "attn.c_proj.weight=shard(0)",
    .mlp = H "mlp.c_fc.weight=shard(1) " H "mlp.c_fc.bias=shard(0) " H "mlp.c_proj.weight=shard(0)",
    .last_norm = "transformer.ln_f=sequence",
    .head = ""};

#define L "model.layers.*."
static const ls__auto_names llama = {
    .blocks = "model.layers.",
    .embedding = "model.embed_tokens=vocab",
    .sequence = L "*_layernorm=sequence",
    .attention = L "self_attn.q_proj=column " L "self_attn.o_proj=row",
    .keys = {L "self_attn.k_proj", L "self_attn.v_proj"},
    .mlp = L "mlp.gate_proj=column " L "mlp.up_proj=column " L "mlp.down_proj=row",
    .last_norm = "model.norm=sequence",
    .head = "lm_head=column"};

/* A Mixtral calls its parts as a Llama does. */
const ls__auto_names *ls__auto_names_of(const char *model)
{
    return strncmp(model, "gpt2", strlen("gpt2")) == 0                    ? &gpt2
           : strcmp(model, "llama") == 0 || strcmp(model, "mixtral") == 0 ? &llama
                                                                          : &gpt;
}

/* Ranks may share a head of keys and values, so their words have its number. */
static void add_keys(ls__text *text, const ls__auto_names *names, const ls__gpt *g)
{
    for (int i = 0; i < 2 && names->keys[i] != NULL; i++) {
        ls__text_add(text, " %s=column(heads=%lld)", names->keys[i],
                     (long long)ls__gpt_kv_heads(g));
    }
}

char *ls__auto_words(const ls__auto_names *names, const ls__gpt *g, const ls__auto_plan *p,
                     char out[LS__AUTO_WORDS_BYTES])
{
    const int divided = p->tp.size > 1 ? ~p->whole : 0;
    const struct {
        bool said;
        const char *words;
    } all[] = {{divided & LS__GPT_TOKENS, names->embedding},
               {p->sequence, names->sequence},
               {divided & LS__GPT_ATTENTION, names->attention},
               {divided & LS__GPT_MLP, names->mlp},
               {p->sequence, names->last_norm},
               {divided & LS__GPT_HEAD && g->untied, names->head}};
    ls__text text = {out, LS__AUTO_WORDS_BYTES};
    out[0] = '\0';
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (all[i].said && all[i].words[0] != '\0') {
            ls__text_add(&text, "%s%s", out[0] != '\0' ? " " : "", all[i].words);
            if (all[i].words == names->attention) {
                add_keys(&text, names, g);
            }
        }
    }
    return out;
}

/* Parts are the embedding, the layers and the head. */
static const char *part_name(const ls__auto_names *names, int64_t layers, int64_t part,
                             char out[PART_BYTES])
{
    if (part == 0 || part > layers) {
        return part == 0 ? "embed" : "head";
    }
    (void)snprintf(out, PART_BYTES, "%.32s%lld", names->blocks, (long long)(part - 1));
    return out;
}

static json_t *parts_json(const ls__auto_names *names, int64_t layers)
{
    char name[PART_BYTES];
    json_t *parts = json_array();
    for (int64_t i = 0; i < layers + 2; i++) {
        (void)json_array_append_new(parts, json_string(part_name(names, layers, i, name)));
    }
    return parts;
}

/* The part with which a stage begins; evenly where the plan does not cut by itself. */
static int64_t first_part(const ls__auto_plan *p, int64_t layers, int stage)
{
    const int64_t layer =
        p->stages == p->pp.size ? p->first_layer[stage] : layers * stage / p->stages;
    return stage == 0 ? 0 : layer + 1;
}

static json_t *stages_json(const ls__auto_names *names, const ls__auto_plan *p, int64_t layers)
{
    char name[PART_BYTES];
    json_t *stages = json_array();
    for (int i = 0; i < p->stages; i++) {
        (void)json_array_append_new(
            stages,
            json_pack("{s:s, s:i}", "first",
                      part_name(names, layers, first_part(p, layers, i), name), "replicas", 1));
    }
    return stages;
}

static json_t *predicted_json(const ls__auto_plan *p)
{
    return json_pack(
        "{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:{s:f, s:f, s:f, s:f, s:f}}",
        "step_ms", 1e3 * p->step, "compute_ms", 1e3 * p->compute, "tp_ms", 1e3 * p->tp_seconds,
        "cp_ms", 1e3 * p->cp_seconds, "ep_ms", 1e3 * p->ep_seconds, "pp_ms", 1e3 * p->pp_seconds,
        "bubble_ms", 1e3 * p->bubble, "dp_ms", 1e3 * p->dp_seconds, "optimizer_ms",
        1e3 * p->optimizer, "gather_ms", 1e3 * p->gather, "memory_bytes", p->memory, "sent_bytes",
        "tp", p->tp_bytes, "cp", p->cp_bytes, "ep", p->ep_bytes, "pp", p->pp_bytes, "dp",
        p->dp_bytes);
}

static json_t *shape_json(const ls__gpt *g)
{
    json_t *shape = json_pack("{s:I, s:I, s:I, s:I, s:I}", "layers", (json_int_t)g->layers, "dim",
                              (json_int_t)g->dim, "heads", (json_int_t)g->heads, "vocab",
                              (json_int_t)g->vocab, "context", (json_int_t)g->context);
    if (g->experts > 0) {
        (void)json_object_set_new(shape, "experts", json_integer((json_int_t)g->experts));
        (void)json_object_set_new(shape, "top_k", json_integer((json_int_t)g->top_k));
    }
    if (g->llama) {
        json_t *more =
            json_pack("{s:I, s:I, s:I, s:i}", "kv_heads", (json_int_t)ls__gpt_kv_heads(g),
                      "head_dim", (json_int_t)ls__gpt_head_dim(g), "hidden",
                      (json_int_t)ls__gpt_mlp(g), "tied", (int)!g->untied);
        (void)json_object_update_new(shape, more);
    }
    return shape;
}

ls_status ls__auto_write(const ls__env *env, const ls__auto_ask *ask, const ls__auto_plan *p,
                         const char *model, const char *cluster, const char *path)
{
    char mesh[LS__AUTO_MESH_BYTES], words[LS__AUTO_WORDS_BYTES];
    const ls__auto_names *names = ls__auto_names_of(model);
    const ls__gpt *g = &ask->job.use.model;
    json_t *root = json_pack(
        "{s:s, s:i, s:s, s:o, s:s, s:i, s:I, s:i, s:s, s:i, s:i, s:i, s:b, s:b, s:o, s:o, s:s, "
        "s:f, s:o}",
        "format", LS__PLAN_FORMAT, "version", LS__PLAN_VERSION, "model", model, "shape",
        shape_json(g), "mesh", ls__auto_mesh_text(p, mesh), "workers", ask->ranks, "batch",
        (json_int_t)p->batch, "micro_batches", p->micro_batches, "schedule", p->schedule, "chunks",
        p->chunks, "warm_up", p->warm_up, "zero", p->zero, "recompute", p->recompute, "sequence",
        p->sequence, "parts", parts_json(names, g->layers), "stages",
        stages_json(names, p, g->layers), "cluster", cluster, "memory_bytes", ask->memory_bytes,
        "predicted", predicted_json(p));
    if (ls__auto_words(names, g, p, words)[0] != '\0') {
        (void)json_object_set_new(root, "tensor_plan", json_string(words));
    }
    const ls_status status = ls__plan_save(env, "plan", root, path);
    json_decref(root);
    return status;
}
