/* SPDX-License-Identifier: Apache-2.0 */
/* x86-64: three variants, named after the levels of its psABI. */
#include "kernel/cpu/tables.h"

const ls__variant *ls__variant_of_isa(ls__isa isa)
{
    switch (isa) {
    case LS__ISA_BASE:
        return &ls__base_variant;
    case LS__ISA_V3:
        return &ls__v3_variant;
    case LS__ISA_V4:
        return &ls__v4_variant;
    case LS__ISA_COUNT:
        break;
    }
    return NULL;
}
