/* Noting a fact. See facts.h. */
#include "base/facts.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/runtime.h"

/* Facts beyond the table's end are not compared; without a runtime nothing is. Unused bytes are
 * zero, because ranks send the struct as it is. */
void ls__fact_note(const char *format, ...)
{
    ls_runtime *runtime = ls__self.runtime;
    if (runtime == NULL || runtime->facts.count == LS__FACTS_MAX) {
        return;
    }
    ls__fact *fact = &runtime->facts.fact[runtime->facts.count++];
    const char *file = ls__self.file != NULL ? ls__self.file : "";
    const size_t length = strlen(file);
    const char *tail = length < LS__FACT_FILE ? file : file + length - (LS__FACT_FILE - 1);
    memset(fact, 0, sizeof *fact);
    va_list args;
    va_start(args, format);
    (void)vsnprintf(fact->text, sizeof fact->text, format, args);
    va_end(args);
    (void)snprintf(fact->file, sizeof fact->file, "%s", tail);
    fact->line = ls__self.line;
}
