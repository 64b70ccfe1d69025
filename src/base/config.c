/* SPDX-License-Identifier: Apache-2.0 */
/* Recording the settings of this rank. See config.h. */
#include "base/config.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/hash.h"
#include "base/runtime.h"

/* NULL without a runtime. */
static ls__config *locked(void)
{
    ls_runtime *runtime = ls__self.runtime;
    if (runtime != NULL) {
        ls__lock_take(&runtime->config.lock, runtime->env);
    }
    return runtime != NULL ? &runtime->config : NULL;
}

static void unlock(ls__config *config)
{
    ls__unlock(&config->lock, ls__self.runtime->env);
}

/* Of a path that is too long the end is kept, which names the file. */
static void LS__PRINTF(5, 0)
    add_entry(ls__config *config, const ls__config_of *of, const char *kind, const char *own,
              const char *format, va_list args)
{
    ls__config_entry *entry = &config->entry[config->count++];
    const char *file = ls__self.file != NULL ? ls__self.file : "";
    const size_t length = strlen(file);
    const char *tail = length < LS__CONFIG_FILE ? file : file + length - (LS__CONFIG_FILE - 1);
    (void)vsnprintf(entry->text, sizeof entry->text, format, args);
    (void)snprintf(entry->own, sizeof entry->own, "%s", own);
    (void)snprintf(entry->file, sizeof entry->file, "%s", tail);
    entry->line = ls__self.line;
    entry->kind = kind;
    entry->of = of != NULL ? *of : (ls__config_of){0};
    entry->thread = &ls__self;
}

void ls__config_note(const ls__config_of *of, const char *kind, const char *own, const char *format,
                     ...)
{
    ls__config *config = locked();
    if (config != NULL && config->count < LS__CONFIG_ENTRIES_MAX) {
        va_list args;
        va_start(args, format);
        add_entry(config, of, kind, own, format, args);
        va_end(args);
    }
    if (config != NULL) {
        unlock(config);
    }
}

void ls__config_drop(const void *object)
{
    ls__config *config = locked();
    int kept = 0;
    for (int i = 0; config != NULL && i < config->count; i++) {
        if (config->entry[i].of.object != object) {
            config->entry[kept++] = config->entry[i];
        }
    }
    if (config != NULL) {
        config->count = kept;
        unlock(config);
    }
}

/* Under the lock. The place of this thread's setting in the table; -1: it was never set. */
static int find(const ls__config *config, const char *name)
{
    for (int i = 0; i < config->changes; i++) {
        const ls__config_change *change = &config->change[i];
        if (change->thread == &ls__self && strncmp(change->name, name, LS__CONFIG_NAME) == 0) {
            return i;
        }
    }
    return -1;
}

bool ls__config_has(const char *name)
{
    ls__config *config = locked();
    const bool has = config != NULL && find(config, name) >= 0;
    if (config != NULL) {
        unlock(config);
    }
    return has;
}

void ls__config_set(const char *name, double value)
{
    LS_ASSERT(strlen(name) < LS__CONFIG_NAME);
    ls__config *config = locked();
    if (config == NULL) {
        return;
    }
    const int at = find(config, name);
    if (at >= 0) {
        config->change[at].value = value;
    } else if (config->changes < LS__CONFIG_CHANGES_MAX) {
        ls__config_change *change = &config->change[config->changes++];
        *change = (ls__config_change){.value = value, .thread = &ls__self};
        (void)snprintf(change->name, sizeof change->name, "%s", name);
    }
    unlock(config);
}

void ls__config_forget(const char *name)
{
    ls__config *config = locked();
    if (config == NULL) {
        return;
    }
    const int at = find(config, name);
    if (at >= 0) {
        config->change[at] = config->change[--config->changes];
    }
    unlock(config);
}

bool ls__config_change_at(int index, ls__config_change *out)
{
    ls__config *config = locked();
    bool found = false;
    for (int i = 0; config != NULL && i < config->changes && !found; i++) {
        if (config->change[i].thread == &ls__self && index-- == 0) {
            *out = config->change[i];
            found = true;
        }
    }
    if (config != NULL) {
        unlock(config);
    }
    return found;
}

bool ls__config_entry_at(int index, ls__config_entry *out)
{
    ls__config *config = locked();
    bool found = false;
    for (int i = 0; config != NULL && i < config->count && !found; i++) {
        if (config->entry[i].thread == &ls__self && index-- == 0) {
            *out = config->entry[i];
            found = true;
        }
    }
    if (config != NULL) {
        unlock(config);
    }
    return found;
}

uint64_t ls__config_change_hash(void)
{
    uint64_t sum = 0;
    ls__config_change change;
    for (int i = 0; ls__config_change_at(i, &change); i++) {
        sum += ls__hash_bytes(LS__HASH_START, &change, offsetof(ls__config_change, thread));
    }
    return sum;
}
