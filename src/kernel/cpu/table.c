/* SPDX-License-Identifier: Apache-2.0 */
/* Which fast table this processor gets: that of the best instruction set (base/cpu.h), or of the
 * level that LOCKSTEP_CPU names. */
#include "kernel/cpu/onednn.h"
#include "kernel/cpu/tables.h"
#include "kernel/cpu/threads.h"

/* The table of the processor's best level, or of LOCKSTEP_CPU. Callers keep the pointer; it is
 * static. */
const ls__kernels *ls__kernels_cpu(void)
{
    const ls__cpu level = ls__cpu_level();
    if (level == LS__CPU_REF) {
        return ls__kernels_ref();
    }
    ls__onednn_allow(ls__cpu_onednn());
    if (level < ls__cpu_best_level()) {
        ls__onednn_limit(level);
    }
    const ls__variant *variant = ls__variant_of_isa(ls__cpu_isa());
    return variant != NULL ? variant->kernels : ls__base_variant.kernels;
}

/* For the calling thread's kernels, as OpenMP has it; at least one. */
void ls__kernels_set_threads(int threads)
{
    ls__threads_set(threads > 1 ? threads : 1);
}
