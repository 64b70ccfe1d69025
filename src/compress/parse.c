/* SPDX-License-Identifier: Apache-2.0 */
/* A hook from a text: "powersgd:rank=4,start=100". */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "compress/state.h"

#define WORD_MAX 64

typedef struct settings {
    double rank, start, min, density, seed, feedback;
} settings;

/* The settings that each hook has. */
static const struct named {
    const char *name, *keys;
} hooks[] = {{"plain", ""},
             {"fp16", ""},
             {"bf16", ""},
             {"powersgd", "rank start min feedback seed"},
             {"top_k", "density start feedback"},
             {"random_k", "density start feedback seed"},
             {"int8", "start feedback"},
             {"one_bit", "start feedback"}};

static ls_status fail_word(const char *text, const char *word, const char *keys)
{
    return ls__fail(LS_ERR_INVALID, "communication hook \"%s\": \"%s\" is not understood; %s%s",
                    text, word,
                    keys[0] != '\0' ? "give NAME=NUMBER of: " : "this hook has no settings", keys);
}

static double *place_of(settings *to, const char *key)
{
    const struct {
        const char *name;
        double *place;
    } all[] = {{"rank", &to->rank},       {"start", &to->start}, {"min", &to->min},
               {"density", &to->density}, {"seed", &to->seed},   {"feedback", &to->feedback}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (strcmp(all[i].name, key) == 0) {
            return all[i].place;
        }
    }
    return NULL;
}

/* Whether `key` is a word of `keys`. */
static bool has_key(const char *keys, const char *key)
{
    const size_t length = strlen(key);
    for (const char *at = keys; length > 0 && (at = strstr(at, key)) != NULL; at++) {
        if ((at == keys || at[-1] == ' ') && (at[length] == ' ' || at[length] == '\0')) {
            return true;
        }
    }
    return false;
}

/* "rank=4" */
static ls_status read_setting(const char *text, char *word, const char *keys, settings *to)
{
    char *value = strchr(word, '=');
    char *end = value;
    double number = 0.0;
    if (value != NULL) {
        *value = '\0';
        errno = 0;
        number = strtod(value + 1, &end);
    }
    const bool sound = value != NULL && has_key(keys, word) && end != value + 1 && *end == '\0' &&
                       errno == 0 && number >= 0.0 && number <= 9007199254740992.0 &&
                       (strcmp(word, "min") == 0 || strcmp(word, "density") == 0 ||
                        number == (double)(int64_t)number) &&
                       (strcmp(word, "feedback") != 0 || number <= 1.0);
    if (value != NULL) {
        *value = '=';
    }
    if (!sound) {
        return fail_word(text, word, keys);
    }
    *value = '\0';
    *place_of(to, word) = number;
    return LS_OK;
}

static ls_status read_settings(const char *text, const char *from, const char *keys, settings *to)
{
    while (*from != '\0') {
        char word[WORD_MAX];
        const size_t length = strcspn(from, ",");
        if (length >= sizeof word) {
            return fail_word(text, from, keys);
        }
        memcpy(word, from, length);
        word[length] = '\0';
        LS_TRY(read_setting(text, word, keys, to));
        from += length + (from[length] == ',');
    }
    return LS_OK;
}

static ls_status make_hook(const char *name, const settings *s, ls_comm_hook *out)
{
    const bool feedback = s->feedback != 0.0;
    const ls_sparse_options sparse =
        *LS_OPTIONS(ls_sparse_options, .density = s->density, .start_step = (int64_t)s->start,
                    .error_feedback = feedback, .seed = (uint64_t)s->seed);
    if (strcmp(name, "plain") == 0) {
        const ls_comm_hook hook = *LS_OPTIONS(ls_comm_hook, .name = "plain");
        return ls__hook_give(&hook, out, "ls_comm_hook_parse");
    }
    if (strcmp(name, "fp16") == 0 || strcmp(name, "bf16") == 0) {
        return ls_cast_hook_new(name[0] == 'f' ? LS_FLOAT16 : LS_BFLOAT16, out);
    }
    if (strcmp(name, "powersgd") == 0) {
        return ls_powersgd_new(
            LS_OPTIONS(ls_powersgd_options, .rank = s->rank <= 1e6 ? (int)s->rank : 1000000,
                       .start_step = (int64_t)s->start, .min_compression = s->min,
                       .error_feedback = feedback, .seed = (uint64_t)s->seed),
            out);
    }
    if (strcmp(name, "top_k") == 0) {
        return ls_top_k_new(&sparse, out);
    }
    if (strcmp(name, "random_k") == 0) {
        return ls_random_k_new(&sparse, out);
    }
    return ls_quantize_new(LS_OPTIONS(ls_quantize_options, .bits = name[0] == 'i' ? 8 : 1,
                                      .start_step = (int64_t)s->start, .error_feedback = feedback),
                           out);
}

ls_status ls_comm_hook_parse(const char *text, ls_comm_hook *out)
{
    if (text == NULL || out == NULL) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_comm_hook_parse: the %s is NULL; give a text and a place for the hook",
                        text == NULL ? "text" : "place");
    }
    const size_t length = strcspn(text, ":");
    for (size_t i = 0; i < sizeof hooks / sizeof *hooks; i++) {
        if (strlen(hooks[i].name) == length && memcmp(hooks[i].name, text, length) == 0) {
            settings s = {.rank = 1,
                          .start = hooks[i].name[0] == 'p' ? 10 : 0,
                          .min = 2.0,
                          .density = 0.01,
                          .feedback = 1};
            LS_TRY(read_settings(text, text + length + (text[length] == ':'), hooks[i].keys, &s));
            return make_hook(hooks[i].name, &s, out);
        }
    }
    return ls__fail(LS_ERR_INVALID,
                    "communication hook \"%s\" is unknown; give plain, fp16, bf16, powersgd, "
                    "top_k, random_k, int8 or one_bit, with settings after a colon: "
                    "powersgd:rank=4,start=100",
                    text);
}
