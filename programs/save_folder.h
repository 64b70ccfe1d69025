/* SPDX-License-Identifier: Apache-2.0 */
/* The folder of --save before the first step: whose checkpoints it holds. */
#ifndef PROGRAMS_SAVE_FOLDER_H
#define PROGRAMS_SAVE_FOLDER_H

#include <stdbool.h>
#include <stdint.h>

/* Whether two names, which may be NULL, are of one folder, also through a link or with another
 * spelling. */
bool save_folder_is(const char *save, const char *resume);

/* Ends the program if `save` holds a checkpoint of a step after `start`, from which this run goes
 * on (-1: from none): it is of another run, and run.json says that run's flags. Collective over all
 * ranks: rank 0 looks. */
void save_folder_must_take(const char *save, int64_t start);

#endif
