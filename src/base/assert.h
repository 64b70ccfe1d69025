/* SPDX-License-Identifier: Apache-2.0 */
/* LS_ASSERT: what must be so. A failure is a bug of the library, never a user's mistake: it prints
 * the place and traps, in every build. */
#ifndef LS_BASE_ASSERT_H
#define LS_BASE_ASSERT_H

#include "base/compiler.h"

LS__NORETURN void ls__assert_failed(const char *expression, const char *file, int line);

#define LS_ASSERT(x)                                                                               \
    do {                                                                                           \
        if (LS__UNLIKELY(!(x))) {                                                                  \
            ls__assert_failed(#x, __FILE__, __LINE__);                                             \
        }                                                                                          \
    } while (0)

#endif
