/* SPDX-License-Identifier: Apache-2.0 */
/* "Did you mean": the nearest known word, by Levenshtein's distance. */
#include "base/suggest.h"

#include <string.h>

#define WORD_MAX 64

static int least(int a, int b)
{
    return a < b ? a : b;
}

/* Levenshtein's distance, with one row of the table; `b` has at most WORD_MAX characters. */
static int distance(const char *a, const char *b)
{
    int row[WORD_MAX + 1];
    int width = (int)strlen(b);
    for (int j = 0; j <= width; j++) {
        row[j] = j;
    }
    for (int i = 1; a[i - 1] != '\0'; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= width; j++) {
            int above = row[j];
            row[j] = least(diagonal + (a[i - 1] != b[j - 1]), least(above, row[j - 1]) + 1);
            diagonal = above;
        }
    }
    return row[width];
}

/* A short word is near to almost any other, so its letters decide, without leading dashes: none of
 * one letter, 2 changes of a word, 3 of a long one. */
static int distance_max(const char *word)
{
    const size_t letters = strlen(word + strspn(word, "-"));
    return letters < 2 ? 0 : letters < 9 ? 2 : 3;
}

/* NULL when no word is near. A word that would have to be replaced entirely is not near. */
const char *ls__suggest(const char *word, const char *const *words, int count)
{
    const char *best = NULL;
    int nearest = distance_max(word) + 1;
    for (int i = 0; i < count && strlen(word) <= WORD_MAX; i++) {
        int d = strlen(words[i]) <= WORD_MAX ? distance(word, words[i]) : nearest;
        if (d < nearest && d < (int)strlen(words[i])) {
            nearest = d;
            best = words[i];
        }
    }
    return best;
}
