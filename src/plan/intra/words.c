/* SPDX-License-Identifier: Apache-2.0 */
/* Placements of parameters as words for ls_tensor_parallel: each parameter's role, then one word
 * for equal roles: of a layer, whose path names its parameters, and of layers whose paths differ in
 * numbers only. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "plan/intra/search.h"

#define PATH_MAX_BYTES 512
#define ROLE_BYTES 24

/* Of a parameter, and of whatever reads it. */
typedef struct role {
    char text[ROLE_BYTES]; /* "" where it stays whole */
    int groups;            /* parts one after the other, each of which is cut */
    bool table, shares;    /* rows of a table; its gradient is this rank's share */
} role;

typedef struct word { /* a word */
    struct word *next;
    int form;
    char pattern[PATH_MAX_BYTES];
    const char *role;
} word;

typedef struct naming {
    ls__graph *g;
    role *of; /* [params] */
    word *words;
} naming;

/* Finds each parameter's placement from the operators that read it. */
static void read_uses(naming *n, const ls__intra_plan *plan, int axis)
{
    for (int i = 0; i < n->g->count; i++) {
        const ls__graph_op *op = &n->g->op[i];
        const ls__graph_kind *k = &n->g->kind[op->kind];
        for (int in = 0; in < k->count; in++) {
            if (op->from[in] != LS__GRAPH_PARAM) {
                continue;
            }
            role *r = &n->of[op->param[in]];
            const bool layer = k->how == LS__FOLLOW_LINEAR;
            r->groups = layer && k->groups > 1 ? k->groups : 1;
            r->table = r->table || (k->how == LS__FOLLOW_EMBEDS && in == 0);
            r->shares =
                r->shares || (!layer && plan->op[i].way[axis].in[in] == LS__PLACED_REPLICATED);
        }
    }
}

static void name_role(role *r, int place, bool sequence)
{
    const int d = ls__place_dim(place);
    if (d == 0 && r->groups > 1) {
        (void)snprintf(r->text, sizeof r->text, "column(%d)", r->groups);
    } else if (d == 0) {
        (void)snprintf(r->text, sizeof r->text, "%s", r->table ? "vocab" : "column");
    } else if (d == 1 && r->groups <= 1) {
        (void)snprintf(r->text, sizeof r->text, "row");
    } else if (d > 0) {
        (void)snprintf(r->text, sizeof r->text, "shard(%d,%d)", d, r->groups);
    } else if (sequence && r->shares) {
        (void)snprintf(r->text, sizeof r->text, "sequence");
    }
}

/* The path with * for components that are numbers; without the last one where `layer`. */
static void pattern_of(const char *name, bool layer, bool stars, char *out)
{
    const char *dot = strrchr(name, '.');
    const char *end = layer && dot != NULL ? dot : name + strlen(name);
    size_t at = 0;
    for (const char *p = name; p < end && at + 1 < PATH_MAX_BYTES;) {
        const size_t digits = strspn(p, "0123456789");
        const bool number =
            digits > 0 && (p == name || p[-1] == '.') && (p[digits] == '.' || p + digits == end);
        if (number && stars) {
            out[at++] = '*';
            p += digits;
        } else {
            out[at++] = *p++;
        }
    }
    out[at] = '\0';
}

static bool is_layer(int form, const char *name)
{
    return form < 2 && strchr(name, '.') != NULL;
}

/* The widest first: layers of any number, a layer, parameters of any number, a parameter. */
static void in_form(const char *name, int form, char *out)
{
    pattern_of(name, is_layer(form, name), form % 2 == 0, out);
}

/* Whether the role holds for all parameters that the pattern names. A row's bias stays whole in any
 * case. */
static bool role_holds(const naming *n, const char *pattern, int form, const char *text)
{
    char other[PATH_MAX_BYTES];
    for (int i = 0; i < n->g->params; i++) {
        const ls_param *p = &n->g->param[i];
        const char *own = n->of[i].text;
        in_form(p->name, form, other);
        const bool bias = is_layer(form, p->name) && ls_ndim(p->value) < 2 && own[0] == '\0' &&
                          strcmp(text, "row") == 0;
        if (strcmp(other, pattern) == 0 && strcmp(own, text) != 0 && !bias) {
            return false;
        }
    }
    return true;
}

static bool has_word(const naming *n, const char *name)
{
    char own[PATH_MAX_BYTES];
    for (const word *w = n->words; w != NULL; w = w->next) {
        in_form(name, w->form, own);
        if (strcmp(own, w->pattern) == 0) {
            return true;
        }
    }
    return false;
}

static bool add_word(naming *n, int param, ls__text *out)
{
    word *w = ls__arena_alloc(&n->g->arena, sizeof *w);
    if (w == NULL) {
        return false;
    }
    *w = (word){.next = n->words, .role = n->of[param].text};
    in_form(n->g->param[param].name, w->form, w->pattern);
    while (w->form < 3 && !role_holds(n, w->pattern, w->form, w->role)) {
        in_form(n->g->param[param].name, ++w->form, w->pattern);
    }
    ls__text_add(out, "%s%s=%s", n->words != NULL ? " " : "", w->pattern, w->role);
    n->words = w;
    return true;
}

ls_status ls__intra_words(ls__graph *g, const ls__intra_plan *plan, int axis, ls__text *out)
{
    naming n = {.g = g};
    n.of = ls__arena_alloc(&g->arena, ((size_t)g->params + 1) * sizeof *n.of);
    bool enough = n.of != NULL;
    if (enough) {
        read_uses(&n, plan, axis);
    }
    for (int i = 0; i < g->params && enough; i++) {
        name_role(&n.of[i], plan->param[i].way[axis].in[0], plan->sequence[axis]);
    }
    for (int i = 0; i < g->params && enough && !plan->data[axis]; i++) {
        if (n.of[i].text[0] != '\0' && !has_word(&n, g->param[i].name)) {
            enough = add_word(&n, i, out);
        }
    }
    return enough ? LS_OK : ls__fail(LS_ERR_MEMORY, "plan: no memory to find it");
}
