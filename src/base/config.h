/* SPDX-License-Identifier: Apache-2.0 */
/* The settings of this rank that all ranks of a job must share: with which options samplers,
 * loaders and optimizers were made, with the call site, and what may change in the run, such as
 * the learning rate. Ranks that differ in one train something else than their user thinks, though
 * all shapes and counts agree. Reducers and pipelines compare them (dist/agree.h). Threads that
 * train models of their own have settings of their own: they change in no common order. */
#ifndef LS_BASE_CONFIG_H
#define LS_BASE_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "base/compiler.h"
#include "base/lock.h"

#define LS__CONFIG_ENTRIES_MAX 16 /* settings that stay: of each kind the first are compared */
#define LS__CONFIG_CHANGES_MAX 48 /* settings that may change: three of each optimizer */
#define LS__CONFIG_TEXT 160
#define LS__CONFIG_NAME 64
#define LS__CONFIG_OWN 128
#define LS__CONFIG_FILE 60

/* Whose entry it is: it goes with ls__config_drop. `shared` says whether other ranks train with the
 * object, too (dist/agree.c). */
typedef struct ls__config_of {
    const void *object;
    bool (*shared)(const void *object);
} ls__config_of;

typedef struct ls__config_entry {
    ls__config_of of; /* zero: of none, and compared always */
    const char *kind; /* "optimizer"; borrowed for good */
    char text[LS__CONFIG_TEXT];
    char own[LS__CONFIG_OWN];   /* what is about this rank's parameters: " (2 parameters)" */
    char file[LS__CONFIG_FILE]; /* end of the call site's path; not compared */
    int line;                   /* of that file */
    const void *thread;         /* that has made it */
} ls__config_entry;

/* A setting that may change in the run, with its latest value. Unused bytes are zero. */
typedef struct ls__config_change {
    char name[LS__CONFIG_NAME];
    double value;
    const void *thread; /* that has set it; its address is not compared */
} ls__config_change;

typedef struct ls__config {
    ls__lock lock;
    int count, changes;
    ls__config_entry entry[LS__CONFIG_ENTRIES_MAX];
    ls__config_change change[LS__CONFIG_CHANGES_MAX];
} ls__config;

/* Adds an entry to the current runtime's settings: the next one of its kind ("optimizer"). `of` may
 * be NULL. In `own` replicas must agree, and stages of a pipeline need not. Does nothing without a
 * runtime, nor once the table is full: further entries are not compared. */
void ls__config_note(const ls__config_of *of, const char *kind, const char *own, const char *format,
                     ...) LS__PRINTF(4, 5);
/* The object goes, and its entries with it. */
void ls__config_drop(const void *object);

/* Sets a setting that may change in the run: the learning rate, the number of steps, the largest
 * norm of clipping, the type of products. Every synchronised backward and every call of a pipeline
 * compares their hash, so ranks that differ are found in the step that follows. Does nothing
 * without a runtime, nor once the table is full. */
void ls__config_set(const char *name, double value);
/* It is unset from now on. */
void ls__config_forget(const char *name);
/* Of the settings of this thread, in whichever order they were first set. */
uint64_t ls__config_change_hash(void);
/* Setting i of this thread into *out; false: it has fewer. */
bool ls__config_change_at(int i, ls__config_change *out);
bool ls__config_has(const char *name); /* this thread has set it */
/* Entry i of this thread into *out; false: it has fewer. */
bool ls__config_entry_at(int i, ls__config_entry *out);

#endif
