/* SPDX-License-Identifier: Apache-2.0 */
/* A folder of a test's own, for files that it writes and reads. */
#ifndef TEST_SCRATCH_H
#define TEST_SCRATCH_H

#include "test.h"

void scratch_begin(void); /* makes an empty one */
void scratch_end(void);   /* removes it with all that lies in it */
const char *scratch_folder(void);
/* The path of `name` in it: one of four buffers, in turns. */
const char *scratch_at(const char *name);
/* Writes a file there; returns its path, as scratch_at does. */
const char *scratch_write(const char *name, const void *data, size_t bytes);

#endif
