/* The configuration of this rank that all ranks of a job must share: with which settings samplers,
 * loaders and optimizers were made, as text with the call site, in the order of their making. Ranks
 * that differ in it train something else than their user thinks, though all shapes and counts
 * agree. The reducer compares the entries when the first synchronised backward begins
 * (reduce/config_check.c). Only the user's thread adds entries, so there is no lock. */
#ifndef LS_BASE_CONFIG_H
#define LS_BASE_CONFIG_H

#include <stdint.h>

#include "base/compiler.h"

#define LS__CONFIG_ENTRIES_MAX 16 /* entries: bounds the exchange, 3.6 kB a rank */
#define LS__CONFIG_TEXT 160
#define LS__CONFIG_FILE 60

/* Sent to peers as it is, so unused bytes are zero. */
typedef struct ls__config_entry {
    char text[LS__CONFIG_TEXT];
    char file[LS__CONFIG_FILE]; /* end of the call site's path; not compared */
    int32_t line;
} ls__config_entry;

typedef struct ls__config {
    int32_t count;
    ls__config_entry entry[LS__CONFIG_ENTRIES_MAX];
} ls__config;

/* Adds an entry to the current runtime's configuration. Does nothing without a runtime, nor once
 * the table is full: further entries are not compared. */
void ls__config_note(const char *format, ...) LS__PRINTF(1, 2);

#endif
