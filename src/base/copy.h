/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of much memory, and lines that two cores write in turn. */
#ifndef LS_BASE_COPY_H
#define LS_BASE_COPY_H

#include <stddef.h>

/* What is written goes to memory past the caches, which are neither asked for it first nor filled
 * with it. Faster where the destination is in no cache, and slower where it is. */
#define LS__COPY_PAST_CACHES 1u
#define LS__COPY_CLAIM 2u /* ls__claim_lines of what is read, while it is in the nearest cache */

/* As memcpy, in pieces; `how` is 0 or a sum of the above. */
void ls__copy(void *to, const void *from, size_t bytes, unsigned how);

/* Note [Claimed lines]
 * On AMD's processors a line that this core has written and another core has read since takes 8 to
 * 28 ns to write again, one after the other; a line that the other core has written takes 2.5 ns (a
 * loop over 128 KiB, two cores of one L3, Zen 4 and Zen 5; so do stores of any width, and
 * prefetching for writing does not help). So who reads shared memory that its owner will write
 * again soon claims each line it has read, by storing a word of it back: 0.6 ns a line. The word
 * keeps its value, so readers may claim a line at the same time; the owner must not write it before
 * they have ended.
 *
 * It is the one question about a processor's maker: the time needs two idle cores to be measured
 * (`measure lines`), which ranks that start together do not leave. On those of other makers, where
 * it has not been measured, nothing is claimed. */
void ls__claim_lines(const void *at, size_t bytes);

#endif
