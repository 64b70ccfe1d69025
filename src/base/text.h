/* A text that grows in the caller's buffer. Text that does not fit is cut; it is always terminated. */
#ifndef LS_BASE_TEXT_H
#define LS_BASE_TEXT_H

#include <stddef.h>

#include "base/compiler.h"

typedef struct ls__text {
    char *at;    /* where the next piece goes */
    size_t room; /* from there on, at least 1 */
} ls__text;

void ls__text_add(ls__text *text, const char *format, ...) LS__PRINTF(2, 3);

#endif
