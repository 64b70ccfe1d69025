/* The configuration of this rank that all ranks of a job must share: with which settings samplers,
 * loaders and optimizers were made, as text with the call site, in the order of their making. Ranks
 * that differ in it train something else than their user thinks, though all shapes and counts
 * agree. Reducers and pipelines compare the entries when their first backward begins
 * (reduce/config_check.c). Only the user's thread adds entries, so there is no lock. */
#ifndef LS_BASE_CONFIG_H
#define LS_BASE_CONFIG_H

#include <stdint.h>

#include "base/compiler.h"

#define LS__CONFIG_ENTRIES_MAX 16 /* entries: bounds the exchange, 5.3 kB a rank */
#define LS__CONFIG_CHANGES_MAX 32 /* settings that may change: two of each optimizer */
#define LS__CONFIG_TEXT 160
#define LS__CONFIG_NAME 64
#define LS__CONFIG_FILE 60

/* Sent to peers as it is, so unused bytes are zero. */
typedef struct ls__config_entry {
    char text[LS__CONFIG_TEXT];
    char file[LS__CONFIG_FILE]; /* end of the call site's path; not compared */
    int32_t line;
    int16_t own, own_end; /* text[own … own_end) differs between the stages of a pipeline */
} ls__config_entry;

/* A setting that may change in the run, with its latest value. */
typedef struct ls__config_change {
    char name[LS__CONFIG_NAME];
    double value;
} ls__config_change;

typedef struct ls__config {
    int32_t count, changes;
    ls__config_entry entry[LS__CONFIG_ENTRIES_MAX];
    ls__config_change change[LS__CONFIG_CHANGES_MAX];
} ls__config;

/* Adds an entry to the current runtime's configuration. Does nothing without a runtime, nor once
 * the table is full: further entries are not compared. */
void ls__config_note(const char *format, ...) LS__PRINTF(1, 2);
/* Of the entry just added, the text from the first `from` up to the next `to` is about this rank's
 * parameters, so replicas must agree in it and stages of a pipeline need not. */
void ls__config_own(const char *from, const char *to);

/* Sets a setting that may change in the run: the learning rate, the number of steps, the largest
 * norm of clipping, the type of products. Every synchronised backward and every call of a pipeline
 * compares their hash, so ranks that differ are found in the step that follows. Does nothing
 * without a runtime, nor once the table is full. */
void ls__config_set(const char *name, double value);
/* Nobody has it any more. */
void ls__config_forget(const char *name);
/* Does not depend on the order in which the settings were first set. */
uint64_t ls__config_change_hash(const ls__config *config);
/* The value of a setting; NULL: it was never set. */
const double *ls__config_value(const ls__config *config, const char *name);

#endif
