/* The order in which divisions are timed, and the choice among them.
 *
 *     tried    A B C  C B A  …          measured; others are found from them
 *     compared A B C D E  E D C B A …   all of them
 *              A D  D A  …              those that were not clearly slower; then one stays
 *
 * A round is a backward with each division, and the next round goes back, so that a slow moment of the
 * machine meets all of them, and one that becomes slower is no advantage to the first. A pair of rounds,
 * there and back, is therefore one comparison.
 */
#include "reduce/turns.h"

#include "base/assert.h"

/* So much of a division's time takes the one that replaces it. Above, that is noise, and a division
 * that was searched for stays. */
#define FASTER 0.985f

/* Rounds of a stage that count, and by what ratio a division is slower than the fastest if it takes
 * part in no further stage. */
static const struct {
    int rounds;
    double slower;
} stages[] = {
    {LS__DIVISION_SAMPLES, 0.0}, {LS__DIVISION_SAMPLES, 1.05}, {LS__COMPARED_SAMPLES, 1.0}};
enum { STAGES = sizeof stages / sizeof *stages };

float ls__samples_median(const float *samples, int count)
{
    float sorted[LS__COMPARED_SAMPLES];
    LS_ASSERT(count > 0 && count <= LS__COMPARED_SAMPLES);
    for (int i = 0; i < count; i++) {
        int at = i;
        for (; at > 0 && sorted[at - 1] > samples[i]; at--) {
            sorted[at] = sorted[at - 1];
        }
        sorted[at] = samples[i];
    }
    return sorted[count / 2];
}

float ls__turns_median(const ls__turns *t)
{
    return ls__samples_median(t->took[t->division], stages[t->stage].rounds);
}

double ls__turns_cost(const ls__turns *t)
{
    return t->seconds - t->backwards * (double)ls__turns_median(t);
}

void ls__turns_start(ls__turns *t)
{
    *t = (ls__turns){0};
    for (int d = 0; d < LS__TRIED; d++) {
        t->kept[d] = true;
    }
}

int ls__turns_sample(const ls__turns *t)
{
    return t->round - 1;
}

/* The first of the kept divisions from this one on, up or down; -1: there is none. */
static int kept_from(const ls__turns *t, int division, int step)
{
    while (division >= 0 && division < LS__DIVISIONS && !t->kept[division]) {
        division += step;
    }
    return division < LS__DIVISIONS ? division : -1;
}

bool ls__turns_took(ls__turns *t, float seconds)
{
    const int sample = ls__turns_sample(t);
    t->backwards++;
    t->seconds += (double)seconds;
    if (sample >= 0) {
        t->took[t->division][sample] = seconds;
    }
    const int step = t->round % 2 == 0 ? 1 : -1;
    const int next = kept_from(t, t->division + step, step);
    if (next >= 0) {
        t->division = next;
        return false;
    }
    return ++t->round > stages[t->stage].rounds; /* the next round begins with the same division */
}

/* By what the division's backwards take longer than another's: the median over pairs of rounds, there
 * and back. */
static double ratio(const float *took, const float *other, int rounds)
{
    float ratios[LS__COMPARED_SAMPLES / 2];
    for (int s = 0; s < rounds / 2; s++) {
        const float whole = other[2 * s] + other[2 * s + 1];
        ratios[s] = whole > 0.0f ? (took[2 * s] + took[2 * s + 1]) / whole : 1.0f;
    }
    return (double)ls__samples_median(ratios, rounds / 2);
}

/* Returns the division that is fastest, and takes the clearly slower ones out. */
static int compare(ls__turns *t, int *kept)
{
    const int rounds = stages[t->stage].rounds;
    int best = kept_from(t, LS__TRIED, 1);
    best = best >= 0 ? best : kept_from(t, 0, 1);
    for (int d = 0; d < LS__DIVISIONS; d++) {
        best = t->kept[d] && ratio(t->took[d], t->took[best], rounds) < (double)FASTER ? d : best;
    }
    *kept = 0;
    for (int d = 0; d < LS__DIVISIONS; d++) {
        t->kept[d] = t->kept[d] && (d == best || ratio(t->took[d], t->took[best], rounds) <=
                                                     stages[t->stage].slower);
        *kept += t->kept[d];
    }
    return best;
}

void ls__turns_choose(ls__turns *t)
{
    if (t->stage > 0) {
        int kept;
        t->division = compare(t, &kept);
        t->settled = t->stage == STAGES - 1 || kept == 1;
    }
    for (int d = LS__TRIED; d < LS__DIVISIONS && t->stage == 0; d++) {
        t->kept[d] = true;
    }
    if (!t->settled) {
        t->stage++;
        t->round = 0;
        t->division = kept_from(t, 0, 1);
    }
}
