/* Which files are mapped where, for the last words of a process that reads beyond the end of one.
 *
 * A file that is shortened while it is mapped, or whose disk fails, kills whoever reads the pages that
 * are gone by SIGBUS. The process cannot go on, but it can say which file it was: a handler looks the
 * address up here, writes a line to standard error, and lets the signal do what it would have done. */
#ifndef LS_BASE_MAPPED_H
#define LS_BASE_MAPPED_H

#include <stddef.h>

/* Nothing is noted without memory. The first call installs the handler, unless the program has one. */
void ls__mapped_add(const void *memory, size_t bytes, const char *path);
void ls__mapped_remove(const void *memory);

#endif
