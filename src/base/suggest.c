/* "Did you mean": the nearest known word, by Levenshtein's distance. */
#include "base/suggest.h"

#include <string.h>

#define WORD_MAX 64
#define DISTANCE_MAX 3 /* a word with more mistakes is another word */

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

/* NULL when no word is near. A word that would have to be replaced entirely is not near. */
const char *ls__suggest(const char *word, const char *const *words, int count)
{
    const char *best = NULL;
    int nearest = DISTANCE_MAX + 1;
    for (int i = 0; i < count && strlen(word) <= WORD_MAX; i++) {
        int d = strlen(words[i]) <= WORD_MAX ? distance(word, words[i]) : nearest;
        if (d < nearest && d < (int)strlen(words[i])) {
            nearest = d;
            best = words[i];
        }
    }
    return best;
}
