/* SPDX-License-Identifier: Apache-2.0 */
/* Other processors: one variant, for the compiler's plain target. */
#include "kernel/cpu/tables.h"

const ls__variant *ls__variant_of_isa(ls__isa isa)
{
    return isa == LS__ISA_BASE ? &ls__base_variant : NULL;
}
