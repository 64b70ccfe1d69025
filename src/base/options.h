/* Reading an option struct that may come from a program built against an older, shorter header:
 * what the caller's struct has replaces the defaults, what it lacks keeps them. */
#ifndef LS_BASE_OPTIONS_H
#define LS_BASE_OPTIONS_H

#include <string.h>

#include <lockstep/types.h>

/* `into` holds the defaults and is at least `size` bytes; `from` may be NULL. */
static inline void ls__options_read(void *into, size_t size, const void *from)
{
    size_t given = 0;
    if (from) {
        memcpy(&given, from, sizeof given); /* every option struct starts with its size */
    }
    if (given > 0) {
        memcpy(into, from, given < size ? given : size);
    }
}

/* type name = its defaults, overlaid with *from when that is not NULL */
#define LS__OPTIONS(type, name, from)                                                              \
    type name = *LS_OPTIONS(type, .size = sizeof(type));                                           \
    ls__options_read(&name, sizeof name, from)

#endif
