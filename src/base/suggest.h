/* SPDX-License-Identifier: Apache-2.0 */
/* "Did you mean": the nearest of some known words. */
#ifndef LS_BASE_SUGGEST_H
#define LS_BASE_SUGGEST_H

/* The nearest of `count` words to `word`, within an edit distance of 2 or, of long words, 3; the
 * first of equals; or NULL. */
const char *ls__suggest(const char *word, const char *const *words, int count);

#endif
