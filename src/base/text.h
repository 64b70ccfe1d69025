/* SPDX-License-Identifier: Apache-2.0 */
/* A text that grows in the caller's buffer. Text that does not fit is cut; it is always
 * terminated. */
#ifndef LS_BASE_TEXT_H
#define LS_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>

#include <lockstep/status.h>

#include "base/compiler.h"

typedef struct ls__text {
    char *at;    /* where the next piece goes */
    size_t room; /* from there on, at least 1 */
} ls__text;

void ls__text_add(ls__text *text, const char *format, ...) LS__PRINTF(2, 3);

/* "PREFIX.KIND.NAME", as it stands in a checkpoint. Empty ones and their dots are left out, as of a
 * NULL prefix. LS_ERR_LIMIT when it does not fit: cut names could become equal. */
ls_status ls__state_name(char *out, size_t bytes, const char *prefix, const char *kind,
                         const char *name);

/* Bytes of the UTF-8 character that begins at `at`, of which `room` bytes can be read (RFC 3629:
 * the shortest form, no surrogates, nothing above U+10FFFF); 0 when there is no valid one. */
size_t ls__utf8_bytes(const char *at, size_t room);
bool ls__utf8_valid(const char *text);

#endif
