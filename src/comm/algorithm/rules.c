/* SPDX-License-Identifier: Apache-2.0 */
/* Parses the user's rules (LOCKSTEP_ALGORITHM). A text that does not parse stops the job at its
 * start: if a rule were skipped silently, a user would measure something else and believe it. */
#include "comm/algorithm/rules.h"
#include "comm/algorithm/registry.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/settings.h"

#define RULE_TEXT_MAX 64 /* bytes of one rule with its final 0; names are far shorter */

/* The times themselves are measured by a command, not by a job, so there are two modes only. */
ls_status ls__tune_mode_read(ls__tune_mode *mode)
{
    const char *text = ls__setting_get("LOCKSTEP_TUNE");
    *mode = text != NULL && strcmp(text, "off") == 0 ? LS__TUNE_OFF : LS__TUNE_AUTO;
    return text == NULL || *mode == LS__TUNE_OFF || strcmp(text, "auto") == 0
               ? LS_OK
               : ls__fail(LS_ERR_INVALID,
                          "LOCKSTEP_TUNE is \"%s\"; give auto or off (`lockstep tune` measures)",
                          text);
}

/* The factor of a unit; 0: the unit is unknown. */
static int64_t unit_of(const char *text, size_t length)
{
    static const struct {
        const char *name;
        int64_t unit;
    } units[] = {{"", 1},           {"k", 1000},     {"K", 1000},     {"M", 1000000},
                 {"G", 1000000000}, {"Ki", 1 << 10}, {"Mi", 1 << 20}, {"Gi", 1 << 30}};
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (strlen(units[i].name) == length && memcmp(text, units[i].name, length) == 0) {
            return units[i].unit;
        }
    }
    return 0;
}

/* Parses a size at the start of `text` that must end at `stop`. False: it is not a size. */
static bool read_size(const char *text, const char *stop, int64_t *bytes)
{
    char *end = NULL;
    errno = 0;
    const long long number = strtoll(text, &end, 10);
    const int64_t unit = end != NULL && end <= stop ? unit_of(end, (size_t)(stop - end)) : 0;
    if (end == text || errno != 0 || number < 0 || unit == 0 || number > INT64_MAX / unit) {
        return false;
    }
    *bytes = number * unit;
    return true;
}

/* Parses "FROM-BELOW:" or "FROM-:" before the name at `colon`. */
static bool read_range(const char *text, const char *colon, ls__tune_rule *rule)
{
    const char *dash = memchr(text, '-', (size_t)(colon - text));
    rule->below = INT64_MAX;
    return dash != NULL && dash != text && read_size(text, dash, &rule->from) &&
           (dash + 1 == colon || read_size(dash + 1, colon, &rule->below)) &&
           rule->from < rule->below;
}

/* The message lists the names that exist. */
static ls_status refuse_name(ls__operation operation, const char *name)
{
    char known[256];
    ls__algorithm_names(operation, known, sizeof known);
    return ls__fail(LS_ERR_INVALID,
                    "LOCKSTEP_ALGORITHM: %s has no algorithm \"%s\"; give one of %s",
                    ls__operation_name(operation), name, known);
}

/* Of two rules for one size neither is better, so a user must choose. */
static ls_status refuse_overlap(const ls__rules *rules, ls__operation operation,
                                const ls__tune_rule *rule)
{
    for (int i = 0; i < rules->count[operation]; i++) {
        const ls__tune_rule *other = &rules->rule[operation][i];
        if (rule->from < other->below && other->from < rule->below) {
            return ls__fail(
                LS_ERR_INVALID,
                "LOCKSTEP_ALGORITHM: %s: \"%s\" and \"%s\" both cover %lld bytes; let the range "
                "of one end where that of the other begins",
                ls__operation_name(operation), other->algorithm->name, rule->algorithm->name,
                (long long)(rule->from > other->from ? rule->from : other->from));
        }
    }
    return LS_OK;
}

/* Parses and adds one rule, "[FROM-BELOW:]NAME". */
static ls_status read_rule(ls__rules *rules, ls__operation operation, const char *text)
{
    const char *what = ls__operation_name(operation);
    const char *colon = strchr(text, ':');
    const char *name = colon != NULL ? colon + 1 : text;
    ls__tune_rule rule = {.below = INT64_MAX};
    if (colon != NULL && !read_range(text, colon, &rule)) {
        return ls__fail(
            LS_ERR_INVALID,
            "LOCKSTEP_ALGORITHM: %s: \"%s\" does not begin with sizes like 0-4k: or 4k-: (k, M, "
            "G are powers of 1000, Ki, Mi, Gi of 1024)",
            what, text);
    }
    rule.algorithm = ls__algorithm_find(operation, name);
    if (rule.algorithm == NULL) {
        return refuse_name(operation, name);
    }
    LS_TRY(refuse_overlap(rules, operation, &rule));
    if (rules->count[operation] == LS__RULES_MAX) {
        return ls__fail(LS_ERR_LIMIT, "LOCKSTEP_ALGORITHM: %s has more than %d rules; give fewer",
                        what, LS__RULES_MAX);
    }
    LS_ASSERT(rule.from < rule.below);
    rules->rule[operation][rules->count[operation]++] = rule;
    return LS_OK;
}

/* Parses the rules of one operation, from `text` to before `end`. */
static ls_status read_rules(ls__rules *rules, ls__operation operation, const char *text,
                            const char *end)
{
    for (const char *rest = text; rest != NULL;) {
        char item[RULE_TEXT_MAX];
        const char *comma = memchr(rest, ',', (size_t)(end - rest));
        const size_t length = (size_t)((comma != NULL ? comma : end) - rest);
        if (length >= sizeof item) {
            return ls__fail(LS_ERR_INVALID,
                            "LOCKSTEP_ALGORITHM: %s: \"%.20s…\" is too long for a rule; write "
                            "rules like 0-4k:NAME,4k-:NAME",
                            ls__operation_name(operation), rest);
        }
        memcpy(item, rest, length);
        item[length] = '\0';
        LS_TRY(read_rule(rules, operation, item));
        rest = comma != NULL ? comma + 1 : NULL;
    }
    return LS_OK;
}

/* The operation of this name among those with a choice of programs; LS__OP_COUNT: it does not
 * exist. */
static ls__operation operation_named(const char *name, size_t length)
{
    for (int o = 0; o < LS__OP_COUNT; o++) {
        const char *known = ls__operation_name((ls__operation)o);
        if (strlen(known) == length && memcmp(known, name, length) == 0 &&
            ls__algorithm_find((ls__operation)o, "direct") != NULL &&
            !ls__operation_is_v((ls__operation)o)) {
            return (ls__operation)o;
        }
    }
    return LS__OP_COUNT;
}

/* Parses "OPERATION=RULES;OPERATION=RULES". On failure `rules` is of no use. */
ls_status ls__rules_parse(ls__rules *rules, const char *text)
{
    for (const char *rest = text; rest != NULL;) {
        const char *stop = strchr(rest, ';');
        const char *end = stop != NULL ? stop : rest + strlen(rest);
        const char *equals = memchr(rest, '=', (size_t)(end - rest));
        const ls__operation operation =
            equals != NULL ? operation_named(rest, (size_t)(equals - rest)) : LS__OP_COUNT;
        if (operation == LS__OP_COUNT) {
            return ls__fail(
                LS_ERR_INVALID,
                "LOCKSTEP_ALGORITHM: \"%.40s\" does not begin with an operation and \"=\"; write "
                "all_reduce=0-4k:root,4k-:direct;broadcast=chain",
                rest);
        }
        if (rules->count[operation] > 0) {
            return ls__fail(LS_ERR_INVALID,
                            "LOCKSTEP_ALGORITHM: %s is given twice; write all its rules in one "
                            "list, separated by "
                            "commas",
                            ls__operation_name(operation));
        }
        LS_TRY(read_rules(rules, operation, equals + 1, end));
        rest = stop != NULL ? stop + 1 : NULL;
    }
    return LS_OK;
}

/* Ranks compare the hash of the text in ls_init: with different rules they would deadlock. */
ls_status ls__rules_read(ls__rules *rules)
{
    memset(rules, 0, sizeof *rules);
    const char *text = ls__setting_get("LOCKSTEP_ALGORITHM");
    if (text != NULL) {
        LS_TRY(ls__rules_parse(rules, text));
        rules->hash = ls__hash_text(text);
    }
    return LS_OK;
}

const ls__algorithm *ls__rules_find(const ls__rules *rules, ls__operation operation, int64_t bytes)
{
    for (int i = 0; i < rules->count[operation]; i++) {
        const ls__tune_rule *rule = &rules->rule[operation][i];
        if (bytes >= rule->from && bytes < rule->below) {
            return rule->algorithm;
        }
    }
    return NULL;
}
