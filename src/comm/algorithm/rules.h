/* SPDX-License-Identifier: Apache-2.0 */
/* Algorithms that the user asks for by operation and size:
 *
 *     LOCKSTEP_ALGORITHM="all_reduce=0-4k:recursive_doubling,4k-:direct;broadcast=chain"
 *
 * Sizes are bytes of the larger buffer of a rank, from the first to below the second; k, M, G are
 * powers of 1000, Ki, Mi, Gi of 1024. Without the second size the range has no upper end; without a
 * range the rule covers every size. For sizes that no rule covers the library chooses as usual. All
 * ranks must be given the same text (ls__comm_config). */
#ifndef LS_COMM_ALGORITHM_RULES_H
#define LS_COMM_ALGORITHM_RULES_H

#include "comm/program/program.h"

#define LS__RULES_MAX 8 /* rules of one operation */

typedef struct ls__tune_rule {
    int64_t from, below; /* bytes */
    const ls__algorithm *algorithm;
} ls__tune_rule;

typedef struct ls__rules {
    int count[LS__OP_COUNT];
    ls__tune_rule rule[LS__OP_COUNT][LS__RULES_MAX];
    uint64_t hash; /* of the text; 0: without rules */
} ls__rules;

/* LOCKSTEP_TUNE */
typedef enum ls__tune_mode { LS__TUNE_AUTO, LS__TUNE_OFF } ls__tune_mode;
ls_status ls__tune_mode_read(ls__tune_mode *mode); /* LS_ERR_INVALID */

/* LS_ERR_INVALID, LS_ERR_LIMIT: the error text says what is wrong and what may be written. */
ls_status ls__rules_read(ls__rules *rules);
ls_status ls__rules_parse(ls__rules *rules, const char *text);
/* NULL: no rule covers this size. */
const ls__algorithm *ls__rules_find(const ls__rules *rules, ls__operation operation, int64_t bytes);

#endif
