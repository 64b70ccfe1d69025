/* CPU features, asked of the compiler's run-time support, which also asks the operating system
 * whether it saves the wide registers. */
#include "base/cpu.h"

#include <stdbool.h>
#include <string.h>

#include "base/log.h"
#include "base/settings.h"

#if defined(__x86_64__)
static bool has_v3(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
}

static bool has_v4(void)
{
    return has_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
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
ls__isa ls__cpu_best(void)
{
    return LS__ISA_BASE;
}
#endif

static const char *const names[LS__ISA_COUNT] = {"base", "v3", "v4"};

const char *ls__isa_name(ls__isa isa)
{
    unsigned row = (unsigned)isa;
    return row < LS__ISA_COUNT ? names[row] : "invalid";
}

ls__isa ls__cpu_isa(void)
{
    const ls__isa best = ls__cpu_best();
    const char *asked = ls__setting_get("LOCKSTEP_ISA");
    for (int i = 0; asked != NULL && i < (int)best; i++) {
        if (strcmp(asked, names[i]) == 0) {
            return (ls__isa)i;
        }
    }
    return best;
}

void ls__cpu_check(void)
{
    const ls__isa best = ls__cpu_best();
    const char *asked = ls__setting_get("LOCKSTEP_ISA");
    if (asked == NULL || strcmp(asked, names[ls__cpu_isa()]) == 0) {
        return;
    }
    for (int i = 0; i < LS__ISA_COUNT; i++) {
        if (strcmp(asked, names[i]) == 0) {
            LS__WARN("LOCKSTEP_ISA=%s: this processor offers no more than %s, which is used", asked,
                     names[best]);
            return;
        }
    }
    LS__WARN("LOCKSTEP_ISA=%s is none of base, v3, v4; %s is used", asked, names[best]);
}
