/* Recording an entry of the configuration. See config.h. */
#include "base/config.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/runtime.h"

/* Of a path that is too long the end is kept, which names the file. */
void ls__config_note(const char *format, ...)
{
    ls_runtime *runtime = ls__self.runtime;
    if (runtime == NULL || runtime->config.count == LS__CONFIG_ENTRIES_MAX) {
        return;
    }
    LS_ASSERT(runtime->config.count >= 0 && runtime->config.count < LS__CONFIG_ENTRIES_MAX);
    ls__config_entry *entry = &runtime->config.entry[runtime->config.count++];
    const char *file = ls__self.file != NULL ? ls__self.file : "";
    const size_t length = strlen(file);
    const char *tail = length < LS__CONFIG_FILE ? file : file + length - (LS__CONFIG_FILE - 1);
    memset(entry, 0, sizeof *entry);
    va_list args;
    va_start(args, format);
    (void)vsnprintf(entry->text, sizeof entry->text, format, args);
    va_end(args);
    (void)snprintf(entry->file, sizeof entry->file, "%s", tail);
    entry->line = ls__self.line;
}
