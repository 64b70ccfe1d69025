/* Copying what is not looked at again soon. */
#ifndef LS_BASE_COPY_H
#define LS_BASE_COPY_H

#include <stddef.h>

/* As memcpy, but what is written goes to memory past the caches, which are neither asked for it
 * first nor filled with it. Faster where the destination is in no cache, and slower where it is. */
void ls__copy_past_caches(void *to, const void *from, size_t bytes);

#endif
