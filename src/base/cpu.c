/* SPDX-License-Identifier: Apache-2.0 */
/* CPU features, asked of the compiler's run-time support, which also asks the operating system
 * whether it saves the wide registers. It does not know tiles: the processor is asked for those. */
#include "base/cpu.h"

#include <stdbool.h>
#include <string.h>

#include "base/error.h"
#include "base/settings.h"
#include "base/suggest.h"

#if defined(__x86_64__)
#include <cpuid.h>

#define FEATURES_LEAF 7
#define STATE_LEAF 13
#define AMX_BF16 (1u << 22)
#define AMX_TILE (1u << 24)
#define TILE_STATE (3u << 17) /* tile configuration and data: what the system saves */

/* The instructions that the files built for x86-64-v3 may use. */
static bool has_v3(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
}

/* Those for x86-64-v4. */
static bool has_v4(void)
{
    return has_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}

/* The processor must offer tiles, and the operating system must save them. */
static bool has_tiles(void)
{
    unsigned a, b, c, d, saved;
    return __get_cpuid_count(FEATURES_LEAF, 0, &a, &b, &c, &d) && (d & AMX_BF16) != 0 &&
           (d & AMX_TILE) != 0 && __get_cpuid_count(STATE_LEAF, 0, &saved, &b, &c, &d) &&
           (saved & TILE_STATE) == TILE_STATE;
}

ls__isa ls__cpu_best(void)
{
    __builtin_cpu_init();
    if (has_v4()) {
        return LS__ISA_V4;
    }
    return has_v3() ? LS__ISA_V3 : LS__ISA_BASE;
}
#else
static bool has_tiles(void)
{
    return false;
}

ls__isa ls__cpu_best(void)
{
    return LS__ISA_BASE;
}
#endif

static const char *const names[LS__CPU_COUNT] = {"ref", "base", "avx2", "avx512", "amx"};

/* `level` may come from a table of another version, so it is checked. */
const char *ls__cpu_name(ls__cpu level)
{
    unsigned row = (unsigned)level;
    return row < LS__CPU_COUNT ? names[row] : "invalid";
}

/* Variants bear the names of the levels that use them. */
const char *ls__isa_name(ls__isa isa)
{
    unsigned row = (unsigned)isa;
    return row < LS__ISA_COUNT ? names[LS__CPU_BASE + row] : "invalid";
}

/* Tiles are a level above the widest variant, not a variant: only single kernels use them. */
ls__cpu ls__cpu_best_level(void)
{
    ls__isa best = ls__cpu_best();
    return best == LS__ISA_V4 && has_tiles() ? LS__CPU_AMX : (ls__cpu)(LS__CPU_BASE + best);
}

/* LOCKSTEP_CPU's row among the names; LS__CPU_COUNT when it is not one of them. */
static ls__cpu row_of(const char *asked)
{
    int row = 0;
    while (row < LS__CPU_COUNT && strcmp(asked, names[row]) != 0) {
        row++;
    }
    return (ls__cpu)row;
}

/* A value that is unknown or beyond this processor counts as the best: ls__cpu_check reports it at
 * the start. */
ls__cpu ls__cpu_level(void)
{
    const ls__cpu best = ls__cpu_best_level();
    const char *asked = ls__setting_get("LOCKSTEP_CPU");
    if (asked == NULL) {
        return best;
    }
    const ls__cpu level = row_of(asked);
    return level < best ? level : best;
}

/* Tiles are chosen by single kernels; everything else in that level runs with AVX-512. */
ls__isa ls__cpu_isa(void)
{
    switch (ls__cpu_level()) {
    case LS__CPU_AMX:
    case LS__CPU_AVX512:
        return LS__ISA_V4;
    case LS__CPU_AVX2:
        return LS__ISA_V3;
    case LS__CPU_REF:
    case LS__CPU_BASE:
    case LS__CPU_COUNT:
        break;
    }
    return LS__ISA_BASE;
}

/* Any other value of the variable is refused at the start, by ls__cpu_check. */
bool ls__cpu_strict(void)
{
    const char *asked = ls__setting_get("LOCKSTEP_DETERMINISTIC");
    return asked != NULL && strcmp(asked, "strict") == 0;
}

/* Any value but these two is refused at the start, too. */
bool ls__cpu_onednn(void)
{
    const char *asked = ls__setting_get("LOCKSTEP_ONEDNN");
    return asked == NULL || strcmp(asked, "0") != 0;
}

/* Refuses a level that this processor lacks: running a lower one silently would mislead a
 * comparison. */
static ls_status check_level(void)
{
    const char *asked = ls__setting_get("LOCKSTEP_CPU");
    if (asked == NULL) {
        return LS_OK;
    }
    const ls__cpu level = row_of(asked), best = ls__cpu_best_level();
    if (level == LS__CPU_COUNT) {
        const char *near = ls__suggest(asked, names, LS__CPU_COUNT);
        return ls__fail(LS_ERR_INVALID,
                        "LOCKSTEP_CPU=%s is not one of ref, base, avx2, avx512, amx%s%s%s", asked,
                        near != NULL ? "; did you mean " : "", near != NULL ? near : "",
                        near != NULL ? "?" : "; unset it for the best of this processor");
    }
    if (level > best) {
        return ls__fail(LS_ERR_UNSUPPORTED,
                        "LOCKSTEP_CPU=%s: this processor offers no more than %s; ask for that, or "
                        "unset it",
                        asked, names[best]);
    }
    return LS_OK;
}

/* Called once, by ls_init; the getters above then need not report anything. */
ls_status ls__cpu_check(void)
{
    const char *asked = ls__setting_get("LOCKSTEP_DETERMINISTIC");
    if (asked != NULL && !ls__cpu_strict()) {
        return ls__fail(LS_ERR_INVALID,
                        "LOCKSTEP_DETERMINISTIC=%s is not strict, the only value; unset it if "
                        "equal bits for a fixed number of threads are enough",
                        asked);
    }
    asked = ls__setting_get("LOCKSTEP_ONEDNN");
    if (asked != NULL && strcmp(asked, "0") != 0 && strcmp(asked, "1") != 0) {
        return ls__fail(LS_ERR_INVALID,
                        "LOCKSTEP_ONEDNN=%s is neither 0 nor 1; unset it to use oneDNN where this "
                        "build has it",
                        asked);
    }
    return check_level();
}
