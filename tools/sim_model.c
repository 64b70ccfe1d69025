/* SPDX-License-Identifier: Apache-2.0 */
/* The shape of a Llama or a Mixtral by options, or of a model by the config.json beside its
 * weights: read and checked by the same code as for `lockstep train` (programs/decoder.h). */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tools/sim.h"

bool sim_reads_model(const sim_model *m, const char *model)
{
    return m->init != NULL || decoder_is_llama(model) || decoder_is_mixtral(model);
}

ls__gpt sim_gpt_of(const decoder_shape *s)
{
    ls__gpt g = {.layers = s->layers,
                 .dim = s->dim,
                 .heads = s->heads,
                 .vocab = s->vocab,
                 .context = s->context,
                 .positions = s->positions};
    if (!decoder_is_gpt2(s->model)) {
        const ls_mixtral_options o = decoder_mixtral_options(s); /* a Llama's are among them */
        g.llama = true;
        g.untied = !s->tied;
        g.mlp = o.hidden;
        g.kv_heads = o.kv_heads;
        g.head_dim = o.head_dim;
    }
    if (decoder_has_experts(s->model)) {
        g.experts = s->experts;
        g.top_k = s->top_k;
    }
    return g;
}

/* A config.json is held to the limits of the options. */
static int check_limits(const cli_command *command, const char *init, const decoder_shape *s)
{
    const struct {
        const char *option;
        int64_t found;
    } sizes[] = {{"layers", s->layers},     {"dim", s->dim},         {"heads", s->heads},
                 {"kv-heads", s->kv_heads}, {"hidden", s->hidden},   {"vocab", s->vocab},
                 {"context", s->context},   {"experts", s->experts}, {"top-k", s->top_k}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        for (int k = 0; k < command->count; k++) {
            const cli_option *o = &command->options[k];
            if (o->name != NULL && strcmp(o->name, sizes[i].option) == 0 &&
                (double)sizes[i].found > o->high) {
                return cli_wrong(command,
                                 "\"%s\": its config.json says %" PRId64
                                 " where --%s is at most %.0f; is it damaged?",
                                 init, sizes[i].found, o->name, o->high);
            }
        }
    }
    return 0;
}

static int read_folder(const cli_command *command, char *const *argv, const char *init,
                       decoder_shape *s)
{
    if (!decoder_read_config(init, s, argv)) {
        return cli_wrong(command,
                         "--init \"%s\": there is no config.json; give the folder of a model, as "
                         "transformers writes it",
                         init);
    }
    s->context = s->context > 0 ? s->context : s->positions;
    if (s->context > s->positions) {
        return cli_wrong(
            command, "--context is %" PRId64 ", the model of --init knows %" PRId64 " positions",
            s->context, s->positions);
    }
    return check_limits(command, init, s);
}

int sim_read_model(const cli_command *command, char *const *argv, const sim_model *m,
                   decoder_shape *asked, ls__gpt *out)
{
    asked->kv_heads = m->kv_heads;
    asked->hidden = m->hidden;
    asked->tied = m->tied;
    asked->top_k_flag = "top-k";
    if (m->init != NULL) {
        const int status = read_folder(command, argv, m->init, asked);
        if (status != 0) {
            return status;
        }
    } else {
        decoder_check(asked, argv);
    }
    *out = sim_gpt_of(asked);
    return 0;
}

int sim_refuse_ignored(const cli_command *command, const sim_model *m, const char *model)
{
    const char *given = m->kv_heads > 0 ? "kv-heads"
                        : m->hidden > 0 ? "hidden"
                        : m->tied       ? "tied"
                                        : NULL;
    return given == NULL
               ? 0
               : cli_wrong(command, "--%s is for llama and mixtral, and this is %s; leave it out",
                           given, model);
}

void sim_print_model(const char *model, const ls__gpt *g, const char *dtype)
{
    printf("%s: %" PRId64 " layers, dim %" PRId64 ", %" PRId64 " heads, ", model, g->layers, g->dim,
           g->heads);
    if (g->llama) {
        printf("%" PRId64 " of keys, MLPs of %" PRId64 ", ", ls__gpt_kv_heads(g), ls__gpt_mlp(g));
    }
    printf("vocabulary %" PRId64 ", context %" PRId64, g->vocab, g->context);
    if (g->experts > 0) {
        printf("; %" PRId64 " experts, %" PRId64 " a token", g->experts, g->top_k);
    }
    printf("; %.1f M parameters, %s\n", ls__gpt_parameters(g) * 1e-6, dtype);
}
