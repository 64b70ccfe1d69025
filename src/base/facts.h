/* Facts: settings of this rank that all ranks of a job are to share, as text with the call site:
 * what samplers and optimizers were made with. Ranks that differ in them train something else than
 * their user thinks, without any shape or count telling so; the reducer compares facts when the
 * first synchronised backward begins. Noted by the user's thread; what does not fit is left out. */
#ifndef LS_BASE_FACTS_H
#define LS_BASE_FACTS_H

#include <stdint.h>

#include "base/compiler.h"

#define LS__FACTS_MAX 16
#define LS__FACT_TEXT 160
#define LS__FACT_FILE 60

typedef struct ls__fact { /* sent to peers as it is */
    char text[LS__FACT_TEXT];
    char file[LS__FACT_FILE]; /* tail of the call site's; not compared */
    int32_t line;
} ls__fact;

typedef struct ls__facts {
    int count;
    ls__fact fact[LS__FACTS_MAX];
} ls__facts;

/* Of the current runtime; nothing without one. */
void ls__fact_note(const char *format, ...) LS__PRINTF(1, 2);

#endif
