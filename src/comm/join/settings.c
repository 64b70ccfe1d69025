/* SPDX-License-Identifier: Apache-2.0 */
/* Names the setting in which two ranks differ. Settings are items separated by ", "; a rank lists
 * an item only if it was given, so the lists may have different lengths. */
#include "comm/join/arrival.h"

#include <string.h>

#include "base/assert.h"

#define SEPARATOR ", "
#define UNSET "no further setting"
#define UNSET_BYTES ((int)sizeof UNSET - 1)

static size_t item_bytes(const char *at)
{
    const char *end = strstr(at, SEPARATOR);
    return end != NULL ? (size_t)(end - at) : strlen(at);
}

/* Whether two items are of one setting: they agree up to "=". */
static bool same_name(const char *a, const char *b)
{
    const size_t name = strcspn(a, "=");
    return name < item_bytes(a) && strncmp(a, b, name + 1) == 0;
}

/* Moves both past the items that they share. */
static void skip_equal(const char **a, const char **b)
{
    while (**a != '\0' && item_bytes(*a) == item_bytes(*b) &&
           strncmp(*a, *b, item_bytes(*a)) == 0) {
        const size_t bytes = item_bytes(*a);
        *a += bytes + ((*a)[bytes] != '\0' ? strlen(SEPARATOR) : 0);
        *b += bytes + ((*b)[bytes] != '\0' ? strlen(SEPARATOR) : 0);
    }
}

ls_status ls__settings_differ(ls__settings_side a, ls__settings_side b)
{
    const ls__settings_side low = a.rank < b.rank ? a : b, high = a.rank < b.rank ? b : a;
    const char *x = low.settings, *y = high.settings;
    LS_ASSERT(a.rank != b.rank);
    skip_equal(&x, &y);
    /* Items of other settings: one of the ranks lacks an item, so all that is left is shown. */
    const bool whole = !same_name(x, y);
    const int x_bytes = (int)(whole ? strlen(x) : item_bytes(x));
    const int y_bytes = (int)(whole ? strlen(y) : item_bytes(y));
    return ls__fail(LS_ERR_MISMATCH,
                    "ls_init: ranks are set up differently: rank %d has %.*s, rank %d has %.*s; "
                    "start all ranks with the same build and LOCKSTEP_* settings",
                    low.rank, x_bytes > 0 ? x_bytes : UNSET_BYTES, x_bytes > 0 ? x : UNSET,
                    high.rank, y_bytes > 0 ? y_bytes : UNSET_BYTES, y_bytes > 0 ? y : UNSET);
}
