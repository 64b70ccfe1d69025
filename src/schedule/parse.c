/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the text form of a table (schedule.h). Only what the table cannot hold is refused here; the
 * verifier refuses the rest. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "schedule/schedule.h"

#define LINE_MAX 1000000
#define FOUND_BYTES 40

typedef struct word {
    const char *at;
    int length; /* 0: the line has ended */
} word;

typedef enum field {
    NAME,
    RANKS,
    STAGES,
    MICRO_BATCHES,
    PER_STEP,
    DELAY,
    RECOMPUTE,
    WARM_UP,
    REPLICAS,
    FIELDS
} field;

static const struct {
    const char *word;
    int low, high;
} fields[FIELDS] = {
    [NAME] = {"schedule", 0, 0},
    [RANKS] = {"ranks", 1, LS__SCHEDULE_RANKS_MAX},
    [STAGES] = {"stages", 1, LS__SCHEDULE_STAGES_MAX},
    [MICRO_BATCHES] = {"micro-batches", 1, LS__SCHEDULE_MICRO_BATCHES_MAX},
    [PER_STEP] = {"per-step", 1, LS__SCHEDULE_MICRO_BATCHES_MAX},
    [DELAY] = {"delay", 0, LS__SCHEDULE_MICRO_BATCHES_MAX},
    [RECOMPUTE] = {"recompute", 0, 0},
    [WARM_UP] = {"warm-up", 1, LS__SCHEDULE_MICRO_BATCHES_MAX},
    [REPLICAS] = {"replicas", 0, 0},
};

typedef struct reader {
    const ls__env *env;
    const char *what, *at, *end;
    int line;
    bool given[FIELDS];
    int value[FIELDS];
    char name[LS__SCHEDULE_NAME_BYTES];
    int replicas[LS__SCHEDULE_RANKS_MAX]; /* of value[REPLICAS] stages */
    bool placed;
    ls__schedule *s; /* from the first line behind the fields on */
} reader;

/* ---- words ----------------------------------------------------------------------------------- */

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

static word next_word(reader *r)
{
    while (r->at < r->end && is_blank(*r->at)) {
        r->at++;
    }
    word w = {r->at, 0};
    while (r->at < r->end && *r->at != '\n' && *r->at != '#' && !is_blank(*r->at)) {
        r->at++;
    }
    const ptrdiff_t length = r->at - w.at;
    w.length = length < LINE_MAX ? (int)length : LINE_MAX;
    return w;
}

static bool is(word w, const char *text)
{
    return strlen(text) == (size_t)w.length && memcmp(w.at, text, (size_t)w.length) == 0;
}

static ls_status expected(const reader *r, word w, const char *what)
{
    char found[FOUND_BYTES + 1] = "the end of the line";
    for (int i = 0; i < w.length && i < FOUND_BYTES; i++) {
        found[i] = isprint((unsigned char)w.at[i]) && w.at[i] != '"' ? w.at[i] : '?';
        found[i + 1] = '\0';
    }
    return ls__fail(LS_ERR_FORMAT, "%s, line %d: found %s; expected %s", r->what, r->line, found,
                    what);
}

/* All of w is a number up to `high`. */
static bool read_number(word w, int high, int *out)
{
    int64_t number = 0;
    for (int i = 0; i < w.length; i++) {
        if (!isdigit((unsigned char)w.at[i]) || number > high) {
            return false;
        }
        number = 10 * number + (w.at[i] - '0');
    }
    *out = (int)number;
    return w.length > 0 && number <= high;
}

/* ---- fields ---------------------------------------------------------------------------------- */

static ls_status read_name(reader *r, word w)
{
    bool good = w.length > 0 && w.length < LS__SCHEDULE_NAME_BYTES;
    for (int i = 0; good && i < w.length; i++) {
        good = isalnum((unsigned char)w.at[i]) || w.at[i] == '-' || w.at[i] == '_';
    }
    if (!good) {
        return expected(r, w, "a name of at most 31 letters, digits, - and _");
    }
    memcpy(r->name, w.at, (size_t)w.length);
    return LS_OK;
}

static ls_status read_value(reader *r, field f)
{
    const word w = next_word(r);
    char range[80];
    if (f == NAME) {
        return read_name(r, w);
    }
    if (f == RECOMPUTE) {
        r->value[f] = is(w, "yes");
        return is(w, "yes") || is(w, "no") ? LS_OK : expected(r, w, "yes or no");
    }
    if (f == REPLICAS) {
        r->value[f] = ls__schedule_parse_replicas(r->what, w.at, (size_t)w.length, r->replicas);
        return r->value[f] < 0 ? (ls_status)r->value[f] : LS_OK;
    }
    if (f == DELAY && is(w, "by-stage")) {
        r->value[f] = LS__DELAY_BY_STAGE;
        return LS_OK;
    }
    if (!read_number(w, fields[f].high, &r->value[f]) || r->value[f] < fields[f].low) {
        (void)snprintf(range, sizeof range,
                       f == DELAY ? "a number from %d to %d, or by-stage"
                                  : "a number from %d to %d",
                       fields[f].low, fields[f].high);
        return expected(r, w, range);
    }
    return LS_OK;
}

static ls_status read_field(reader *r, field f)
{
    if (r->given[f] || r->s != NULL) {
        return ls__fail(LS_ERR_FORMAT,
                        "%s, line %d: %s stands here a second time, or behind placement or ranks' "
                        "lists; give it once, before them",
                        r->what, r->line, fields[f].word);
    }
    r->given[f] = true;
    return read_value(r, f);
}

/* A stage with replicas takes part in one step only: others would reduce in the middle of the
 * lists. */
static ls_status check_replicas(const reader *r)
{
    if (r->value[REPLICAS] != r->value[STAGES]) {
        return ls__fail(LS_ERR_FORMAT, "%s: the replicas are those of %d stages, and there are %d",
                        r->what, r->value[REPLICAS], r->value[STAGES]);
    }
    if (r->value[DELAY] != 0 ||
        (r->given[PER_STEP] && r->value[PER_STEP] != r->value[MICRO_BATCHES])) {
        return ls__fail(LS_ERR_FORMAT,
                        "%s: replicas need one step of all micro-batches, so no delay and no "
                        "other per-step",
                        r->what);
    }
    return LS_OK;
}

/* The fields are complete. */
static ls_status make_table(reader *r)
{
    for (field f = NAME; f <= MICRO_BATCHES; f++) {
        if (!r->given[f]) {
            return ls__fail(LS_ERR_FORMAT,
                            "%s, line %d: there is no line \"%s ...\" before this one", r->what,
                            r->line, fields[f].word);
        }
    }
    if (r->given[REPLICAS]) {
        LS_TRY(check_replicas(r));
    }
    LS_TRY(ls__schedule_empty(r->env, r->what, r->name, r->value[RANKS], r->value[STAGES],
                              r->value[MICRO_BATCHES], r->given[REPLICAS] ? r->replicas : NULL,
                              &r->s));
    if (r->given[PER_STEP]) {
        r->s->per_step = r->value[PER_STEP];
    }
    r->s->delay = r->value[DELAY];
    r->s->recompute = r->value[RECOMPUTE] != 0;
    r->s->warm_up = r->given[WARM_UP] ? r->value[WARM_UP] : 1;
    if (r->s->micro_batches % r->s->per_step != 0) {
        return ls__fail(LS_ERR_FORMAT,
                        "%s: %d micro-batches are no whole number of steps of %d; change per-step",
                        r->what, r->s->micro_batches, r->s->per_step);
    }
    return LS_OK;
}

/* ---- lists ----------------------------------------------------------------------------------- */

static ls_status read_placement(reader *r)
{
    if (r->placed) {
        return ls__fail(LS_ERR_FORMAT, "%s, line %d: a second placement", r->what, r->line);
    }
    r->placed = true;
    for (int i = 0; i < r->s->stages; i++) {
        const word w = next_word(r);
        if (!read_number(w, r->s->ranks - r->s->replicas[i], &r->s->rank_of[i])) {
            return expected(r, w, "a rank for each stage");
        }
    }
    return LS_OK;
}

/* Takes a number that fits into a field of an action off the beginning of w. */
static bool take_number(word *w, uint16_t *out)
{
    word digits = {w->at, 0};
    int number = 0;
    while (digits.length < w->length && isdigit((unsigned char)w->at[digits.length])) {
        digits.length++;
    }
    if (!read_number(digits, UINT16_MAX, &number)) {
        return false;
    }
    *out = (uint16_t)number;
    *w = (word){w->at + digits.length, w->length - digits.length};
    return true;
}

static bool take_char(word *w, char c)
{
    if (w->length == 0 || *w->at != c) {
        return false;
    }
    *w = (word){w->at + 1, w->length - 1};
    return true;
}

static bool take_kind(word *w, uint8_t *kind)
{
    word token = {w->at, 0};
    while (token.length < w->length &&
           (isupper((unsigned char)w->at[token.length]) || w->at[token.length] == '_')) {
        token.length++;
    }
    *w = (word){w->at + token.length, w->length - token.length};
    for (int i = 0; i < LS__ACTION_KINDS; i++) {
        if (is(token, ls__action_form_of(i)->token)) {
            *kind = (uint8_t)i;
            return true;
        }
    }
    return false;
}

static bool read_action(word w, ls__action *a)
{
    if (!take_number(&w, &a->stage) || !take_kind(&w, &a->kind)) {
        return false;
    }
    const ls__action_form *form = ls__action_form_of(a->kind);
    return (!form->micro_batch || take_number(&w, &a->micro_batch)) &&
           (form->arrow == 0 || (take_char(&w, form->arrow) && take_number(&w, &a->peer))) &&
           (!form->version || (take_char(&w, '@') && take_number(&w, &a->version))) &&
           w.length == 0;
}

static ls_status read_rank(reader *r)
{
    word w = next_word(r);
    int rank = 0;
    const word number = {w.at, w.length > 0 ? w.length - 1 : 0};
    if (w.length < 2 || w.at[w.length - 1] != ':' || !read_number(number, r->s->ranks - 1, &rank)) {
        return expected(r, w, "a rank and a colon, as in \"rank 0:\"");
    }
    for (w = next_word(r); w.length > 0; w = next_word(r)) {
        ls__action action = {0};
        if (!read_action(w, &action)) {
            return expected(r, w, "an action such as 2F3, 2SEND_F3>1 or 2STEP@1");
        }
        ls__schedule_push(r->s, rank, action);
    }
    return r->s->no_memory ? ls__fail(LS_ERR_MEMORY, "%s: no memory for a schedule", r->what)
                           : LS_OK;
}

/* ---- lines ----------------------------------------------------------------------------------- */

static ls_status read_line(reader *r)
{
    const word key = next_word(r);
    if (key.length == 0) {
        return LS_OK;
    }
    for (field f = NAME; f < FIELDS; f++) {
        if (is(key, fields[f].word)) {
            return read_field(r, f);
        }
    }
    if (!is(key, "placement") && !is(key, "rank")) {
        return expected(
            r, key,
            "schedule, ranks, stages, micro-batches, per-step, delay, recompute, warm-up, "
            "replicas, placement or rank");
    }
    if (r->s == NULL) {
        LS_TRY(make_table(r));
    }
    return is(key, "rank") ? read_rank(r) : read_placement(r);
}

static ls_status read_lines(reader *r)
{
    while (r->at < r->end) {
        r->line++;
        LS_TRY(read_line(r));
        const word surplus = next_word(r);
        if (surplus.length > 0) {
            return expected(r, surplus, "the end of the line");
        }
        const char *newline = memchr(r->at, '\n', (size_t)(r->end - r->at));
        r->at = newline != NULL ? newline + 1 : r->end;
    }
    r->line++;
    return r->s != NULL ? LS_OK : make_table(r);
}

ls_status ls__schedule_parse(const ls__env *env, const char *what, const char *text, size_t bytes,
                             ls__schedule **out)
{
    reader r = {.env = env, .what = what, .at = text, .end = text + bytes};
    const ls_status status = read_lines(&r);
    *out = NULL;
    if (status < 0) {
        ls__schedule_free(r.s);
        return status;
    }
    *out = r.s;
    return LS_OK;
}
