/* SPDX-License-Identifier: Apache-2.0 */
/* The code that computes each family of kernels on this machine, and where a faster one exists the
 * reason for it: for `lockstep info` and reports of bugs. It asks the same questions as the kernels
 * do when they choose (gemm.c, gemm_bf16.c, conv.c, attention_tiles.c). */
#include <stdio.h>

#include "base/assert.h"
#include "base/crc32c.h"
#include "kernel/cpu/onednn.h"
#include "kernel/cpu/tables.h"
#include "kernel/cpu/tiles.h"

/* Instructions of the variants, and of the plain loops. */
static const char *instructions_of(ls__cpu level)
{
    switch (level) {
    case LS__CPU_REF:
        return "plain loops";
    case LS__CPU_AVX2:
        return "built-in, AVX2";
    case LS__CPU_AVX512:
    case LS__CPU_AMX:
        return "built-in, AVX-512";
    case LS__CPU_BASE:
    case LS__CPU_COUNT:
        break;
    }
    return "built-in, instructions that every processor of this kind has";
}

#define ASKED_REF "LOCKSTEP_CPU=ref"
#define ASKED_LESS "LOCKSTEP_CPU asks for no more"

/* Why not the widest variant that this build has. */
static const char *why_narrow(ls__cpu level, ls__cpu best)
{
    if (level == LS__CPU_REF) {
        return ASKED_REF;
    }
    if (level >= LS__CPU_AVX512 || ls__variant_of_isa(LS__ISA_V4) == NULL) {
        return NULL;
    }
    if (level < best) {
        return ASKED_LESS;
    }
    return level == LS__CPU_AVX2 ? "the processor has no AVX-512" : "the processor has no AVX2";
}

static const char *why_not_onednn(void)
{
    return ls__cpu_onednn() ? "this build has no oneDNN" : "LOCKSTEP_ONEDNN=0";
}

/* Why bfloat16 goes another way than through oneDNN. */
static const char *why_widened(ls__cpu level, ls__cpu best)
{
    if (level == LS__CPU_REF) {
        return ASKED_REF;
    }
    if (!ls__onednn_present()) {
        return why_not_onednn();
    }
    return level < best && level < LS__CPU_AVX512
               ? ASKED_LESS
               : "the processor has no instructions for bfloat16 (AVX-512 BF16)";
}

static const char *why_untiled(ls__cpu level, ls__cpu best)
{
    if (level == LS__CPU_REF) {
        return ASKED_REF;
    }
    if (best < LS__CPU_AMX) {
        return "the processor has no matrix tiles (AMX)";
    }
    if (level < best) {
        return ASKED_LESS;
    }
    return ls__onednn_present() ? "this build or this oneDNN does not use the tiles (AMX)"
                                : "this build has no oneDNN, which requests the tiles (AMX)";
}

/* Appends a line; `because` NULL: nothing faster is known. */
static void add(ls__kernel_path **at, const char *family, const char *path, const char *because)
{
    ls__kernel_path *p = (*at)++;
    p->family = family;
    p->because = because;
    (void)snprintf(p->path, sizeof p->path, "%s", path);
}

/* The families that oneDNN serves where it can. */
static void add_served(ls__kernel_path **at, const char *family, bool half, ls__cpu level,
                       ls__cpu best)
{
    char path[sizeof(*at)->path];
    if (level > LS__CPU_REF && ls__onednn_path(half, path, sizeof path)) {
        add(at, family, path, level < LS__CPU_AVX512 ? why_narrow(level, best) : NULL);
    } else if (half) {
        add(at, family, instructions_of(level), why_widened(level, best));
    } else {
        add(at, family, instructions_of(level),
            level == LS__CPU_REF ? ASKED_REF : why_not_onednn());
    }
}

int ls__kernels_paths(ls__kernel_path out[LS__KERNEL_PATHS])
{
    (void)ls__kernels_cpu(); /* which limits oneDNN before it is asked */
    const ls__cpu level = ls__cpu_level(), best = ls__cpu_best_level();
    const char *own = instructions_of(level), *because = why_narrow(level, best);
    const bool tiled = level == LS__CPU_AMX && ls__tiles_usable();
    ls__kernel_path *at = out;
    add_served(&at, "products, float32", false, level, best);
    add_served(&at, "products, bfloat16", true, level, best);
    add_served(&at, "convolutions, float32", false, level, best);
    add_served(&at, "convolutions, bfloat16", true, level, best);
    add(&at, "attention, float32", own, because);
    add(&at, "attention, bfloat16", tiled ? "built-in, matrix tiles (AMX)" : own,
        tiled ? NULL : why_untiled(level, best));
    add(&at, "all other operations", own, because);
    add(&at, "sums between ranks", level == LS__CPU_REF ? instructions_of(LS__CPU_BASE) : own,
        because);
    add(&at, "CRC-32C", ls__crc32c_path(), NULL);
    LS_ASSERT(at - out <= LS__KERNEL_PATHS);
    return (int)(at - out);
}
