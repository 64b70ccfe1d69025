/* SPDX-License-Identifier: Apache-2.0 */
/* A failed assertion prints its place in one write and traps, so that a debugger and the launcher
 * both see where. It allocates nothing: it may run anywhere. */
#include "base/assert.h"

#include <stdio.h>

#include "base/env.h"

void ls__assert_failed(const char *expression, const char *file, int line)
{
    char text[512];
    int length = snprintf(text, sizeof text, "lockstep: bug: %s:%d: assertion failed: %s\n", file,
                          line, expression);
    if (length > 0) {
        size_t bytes = (size_t)length < sizeof text ? (size_t)length : sizeof text - 1;
        const ls__env *env = ls__env_posix();
        (void)env->write(env, 2, text, bytes);
    }
    __builtin_trap();
}
