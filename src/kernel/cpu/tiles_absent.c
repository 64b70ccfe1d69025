/* SPDX-License-Identifier: Apache-2.0 */
/* No matrix tiles: another processor, or a compiler that knows none. */
#include "kernel/cpu/tiles.h"

bool ls__tiles_usable(void)
{
    return false;
}

void ls__tiles_begin(void)
{
}

void ls__tiles_end(void)
{
}

void ls__tiles_run(const ls__tiles_product *p)
{
    (void)p;
}
