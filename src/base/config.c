/* Recording the settings of this rank. See config.h. */
#include "base/config.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/hash.h"
#include "base/runtime.h"

/* Of a path that is too long the end is kept, which names the file. */
void ls__config_note(const char *kind, const char *own, const char *format, ...)
{
    ls_runtime *runtime = ls__self.runtime;
    if (runtime == NULL || runtime->config.count == LS__CONFIG_ENTRIES_MAX) {
        return;
    }
    LS_ASSERT(runtime->config.count >= 0 && runtime->config.count < LS__CONFIG_ENTRIES_MAX);
    ls__config_entry *entry = &runtime->config.entry[runtime->config.count];
    const char *file = ls__self.file != NULL ? ls__self.file : "";
    const size_t length = strlen(file);
    const char *tail = length < LS__CONFIG_FILE ? file : file + length - (LS__CONFIG_FILE - 1);
    va_list args;
    va_start(args, format);
    (void)vsnprintf(entry->text, sizeof entry->text, format, args);
    va_end(args);
    (void)snprintf(entry->own, sizeof entry->own, "%s", own);
    (void)snprintf(entry->file, sizeof entry->file, "%s", tail);
    entry->line = ls__self.line;
    entry->kind = kind;
    entry->number = 1;
    for (int i = 0; i < runtime->config.count; i++) {
        entry->number += strcmp(runtime->config.entry[i].kind, kind) == 0;
    }
    runtime->config.count++;
}

/* The place of a setting in the table; -1: it was never set. */
static int find(const ls__config *config, const char *name)
{
    for (int i = 0; i < config->changes; i++) {
        if (strncmp(config->change[i].name, name, LS__CONFIG_NAME) == 0) {
            return i;
        }
    }
    return -1;
}

const double *ls__config_value(const ls__config *config, const char *name)
{
    const int at = find(config, name);
    return at >= 0 ? &config->change[at].value : NULL;
}

void ls__config_set(const char *name, double value)
{
    ls_runtime *runtime = ls__self.runtime;
    LS_ASSERT(strlen(name) < LS__CONFIG_NAME);
    if (runtime == NULL) {
        return;
    }
    ls__config *config = &runtime->config;
    const int at = find(config, name);
    if (at >= 0) {
        config->change[at].value = value;
    } else if (config->changes < LS__CONFIG_CHANGES_MAX) {
        ls__config_change *change = &config->change[config->changes++];
        (void)snprintf(change->name, sizeof change->name, "%s", name);
        change->value = value;
    }
}

void ls__config_forget(const char *name)
{
    ls__config *config = ls__self.runtime != NULL ? &ls__self.runtime->config : NULL;
    const int at = config != NULL ? find(config, name) : -1;
    if (at >= 0) {
        config->change[at] = config->change[--config->changes];
    }
}

uint64_t ls__config_change_hash(const ls__config *config)
{
    uint64_t sum = 0;
    for (int i = 0; i < config->changes; i++) {
        sum += ls__hash_bytes(LS__HASH_START, &config->change[i], sizeof config->change[i]);
    }
    return sum;
}
