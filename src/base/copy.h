/* Copies of much memory, and lines that two cores write in turn. */
#ifndef LS_BASE_COPY_H
#define LS_BASE_COPY_H

#include <stdbool.h>
#include <stddef.h>

/* What is written goes to memory past the caches, which are neither asked for it first nor filled
 * with it. Faster where the destination is in no cache, and slower where it is. */
#define LS__COPY_PAST_CACHES 1u
#define LS__COPY_CLAIM 2u /* ls__claim_lines of what is read, while it is in the nearest cache */

/* As memcpy, in pieces, on Zen 5 by the string instruction (Note [String copies]); `how` is 0 or a
 * sum of the above. */
void ls__copy(void *to, const void *from, size_t bytes, unsigned how);

/* Note [Claimed lines]
 * On AMD's Zen 4 a line that this core has written and another core has read since takes 28 ns to
 * write again, one after the other; a line that the other core has written takes 2.5 ns (a loop
 * over 128 KiB, two cores of one L3; so do stores of any width, and prefetching for writing does
 * not help). So who reads shared memory that its owner will write again soon claims each line it
 * has read, by storing a word of it back: 0.6 ns a line. The word keeps its value, so readers may
 * claim a line at the same time; the owner must not write it before they have ended.
 *
 * Processors of other makers do not need it: there it does nothing. */
void ls__claim_lines(const void *at, size_t bytes);

/* Note [String copies]
 * On Zen 5 ordinary stores into lines that another core has read since are slow as well (8 to 23 ns
 * a line), but the string instruction (rep movsb) writes such lines as fast as any others; on Zen 4
 * strings are as slow as vectors (`measure lines`). A bare loop of the broadcast between 2 ranks, 1
 * MB through 4 slices of 256 KiB, Zen 5: vectors 380 us, vectors and claims 50, strings and claims
 * 45, strings 33. So there ls__copy uses that instruction, which the C library's memcpy does in
 * some versions only (glibc 2.39 stopped), and whoever reads what ls__copy will write again need
 * not claim it. */
bool ls__copies_need_claims(void);

#endif
