/* SPDX-License-Identifier: Apache-2.0 */
/* The table of mapped files, from which a process that SIGBUS ends learns the file to name.
 *
 * A process that reads pages of a mapped file gets SIGBUS if the file was shortened meanwhile, or
 * if its disk fails. It cannot go on, but it can name the file: a handler looks the address up
 * here, writes a line to standard error, and lets the signal take its course. env_posix_dir.c adds
 * and removes files as it maps and unmaps them. */
#ifndef LS_BASE_MAPPED_H
#define LS_BASE_MAPPED_H

#include <stddef.h>

/* Without memory the file is not named. The first call installs the handler, unless the program has
 * one. */
void ls__mapped_add(const void *memory, size_t bytes, const char *path);
void ls__mapped_remove(const void *memory);

#endif
