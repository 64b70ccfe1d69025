/* SPDX-License-Identifier: Apache-2.0 */
/* run.json in a folder of checkpoints: the flags of the run that saves there, so that a run that
 * goes on from it, or writes text with it, needs none of them again and cannot silently be another
 * network.
 *
 *     {"program": "lockstep train gpt", "flags": {"heads": 2, "dropout": 0.1, …},
 *      "data": {"samples": 3625, "hash": 71…}}
 *
 * A flag that is not on the command line takes the value of the file. One that is there and differs
 * is an error if it makes another model, else both values are printed. Where a run computes (mesh,
 * buckets) and what it writes are not in the file. A folder of an earlier version has no such
 * file. */
#ifndef PROGRAMS_RUN_FILE_H
#define PROGRAMS_RUN_FILE_H

#include <lockstep/lockstep.h>

#include "common.h"

typedef struct run_file run_file;

/* Copies the command's table; the values that it points to must live as long as the run_file. */
run_file *run_file_new(const cli_command *command);
void run_file_free(run_file *run);

/* Takes over what `folder`'s file says; `model`: only what makes the model and its tokenizer. Ends
 * the program at a contradiction. False: there is no file. */
bool run_file_read(run_file *run, const char *folder, bool model, char **argv);

/* Notes the values of the flags after the first `from`, for run_file_write: defaults that follow
 * from other flags are not filled in yet. */
void run_file_note(run_file *run, int from);

/* The value that run_file_write writes in place of that of a noted flag. */
void run_file_set(run_file *run, const char *flag, int64_t value);

/* Replaces the file as a whole. */
void run_file_write(const run_file *run, const char *folder, ls_dataset *data);

/* Says it if `data` is not that of the run in the file, though the flags are the same. */
void run_file_compare_data(const run_file *run, ls_dataset *data);

/* A text flag of the file; NULL: it has none. Borrowed. */
const char *run_file_text(const run_file *run, const char *flag);

#endif
