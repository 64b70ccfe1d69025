/* Recording an entry of the configuration. See config.h. */
#include "base/config.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/hash.h"
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

/* A table that is full has no entry for the caller's text, and no place of the last one is lost. */
void ls__config_own(const char *from, const char *to)
{
    ls_runtime *runtime = ls__self.runtime;
    if (runtime == NULL || runtime->config.count == 0) {
        return;
    }
    ls__config_entry *entry = &runtime->config.entry[runtime->config.count - 1];
    const char *begin = strstr(entry->text, from);
    const char *end = begin != NULL ? strstr(begin, to) : NULL;
    if (begin != NULL && entry->own_end == 0) {
        entry->own = (int16_t)(begin - entry->text);
        entry->own_end = (int16_t)(end != NULL ? (size_t)(end - entry->text) : strlen(entry->text));
    }
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
