/* SPDX-License-Identifier: Apache-2.0 */
/* Every environment variable the library reads, in one table: name, default, meaning. `lockstep
 * info` prints it; an unknown LOCKSTEP_* variable is warned about with the nearest known name. */
#ifndef LS_BASE_SETTINGS_H
#define LS_BASE_SETTINGS_H

#include <stdint.h>

typedef struct ls__setting {
    const char *name;
    const char *fallback; /* shown as the default */
    const char *meaning;
} ls__setting;

const ls__setting *ls__settings(int *count);

/* Value of a variable that stands in the table (asserted), or NULL when unset or empty. */
const char *ls__setting_get(const char *name);
/* As an integer; `otherwise` when unset; a malformed or out-of-range one is warned about and
 * ignored.*/
int64_t ls__setting_int(const char *name, int64_t otherwise, int64_t low, int64_t high);
int64_t ls__timeout_setting_ms(void); /* LOCKSTEP_TIMEOUT */

/* Warns about unknown LOCKSTEP_* variables; returns how many there were. ls_init and the launcher
 * call it once each, where one of them speaks for the whole job. */
int ls__settings_check(void);
/* Nearest known name within edit distance 3, or NULL. */
const char *ls__settings_suggest(const char *name);

#endif
