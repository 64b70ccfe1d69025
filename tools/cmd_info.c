/* `lockstep info`: what was built, what it runs on, what it reads from the environment. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include <lockstep/version.h>

#include "base/cpu.h"
#include "base/env.h"
#include "base/settings.h"
#include "comm/tune/cache.h"
#include "comm/tune/rules.h"
#include "comm/tune/tune.h"
#include "commands.h"
#include "kernel/kernels.h"
#include "tools/build_info.h"

void processor_name(char *out, size_t bytes)
{
    snprintf(out, bytes, "unknown");
    FILE *file = fopen("/proc/cpuinfo", "r");
    char line[512];
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) == 0 && colon != NULL) {
            snprintf(out, bytes, "%s", colon + 1 + strspn(colon + 1, " \t"));
            out[strcspn(out, "\n")] = '\0';
            break;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
}

static void print_build(void)
{
    struct utsname system;
    printf("lockstep           %s\n", ls_version());
#if defined(__clang__)
    printf("compiler           clang %s\n", __clang_version__);
#else
    printf("compiler           gcc %s\n", __VERSION__);
#endif
    printf("build              %s\n", BUILD_OPTIONS);
    if (uname(&system) == 0) {
        printf("system             %s %s %s\n", system.sysname, system.release, system.machine);
    }
}

static void print_machine(void)
{
    const ls__env *env = ls__env_posix();
    char processor[256];
    processor_name(processor, sizeof processor);
    printf("processor          %s\n", processor);
    printf("cores              %d\n", env->cores(env));
    printf("kernels            %s (the processor has %s)\n", ls__cpu_name(ls__cpu_level()),
           ls__cpu_name(ls__cpu_best_level()));
    printf("matrix products    %s\n", ls__kernels_gemm_name());
    printf("transports         shm (ranks of one host)\n");
}

static void print_settings(void)
{
    int count = 0;
    const ls__setting *table = ls__settings(&count);
    printf("\nenvironment\n");
    for (int i = 0; i < count; i++) {
        const char *value = getenv(table[i].name);
        bool set = value != NULL && value[0] != '\0';
        printf("  %-24s %s\n", table[i].name, table[i].meaning);
        printf("  %-24s   now: %s", "", set ? value : "not set");
        printf("%s%s\n", table[i].fallback[0] != '\0' ? "; default: " : "", table[i].fallback);
    }
}

/* ---- --tuning ------------------------------------------------------------------------------ */

/* The three figures of the classical model, and what is beside them. */
static void print_figures(const ls__figures *f)
{
    printf("  alpha %.1f us a step, beta %.3f ns a byte of the busiest link, gamma %.3f ns a byte "
           "summed\n",
           f->of[LS__COST_STEPS] / 1e3, f->of[LS__COST_LINK], f->of[LS__COST_SUM]);
    printf("  and %.1f us a message of a rank, %.1f us a message of all, %.3f ns a byte of all, "
           "%.3f inside a host\n",
           f->of[LS__COST_RANK_MESSAGES] / 1e3, f->of[LS__COST_ALL_MESSAGES] / 1e3,
           f->of[LS__COST_ALL], f->of[LS__COST_NEAR]);
}

static void print_entry(void *arg, const char *key, const char *times)
{
    int *entries = arg;
    ls__layout layout;
    ls__timings timings;
    ls__tune_table table;
    char lines[4096] = "";
    ls__text text = {.at = lines, .room = sizeof lines};
    if (!ls__tune_key_layout(key, &layout) ||
        ls__timings_init(&timings, &layout, ls__env_posix()) != LS_OK ||
        !ls__tune_read_times(times, &timings) ||
        ls__tune_decide(&layout, &timings, ls__env_posix(), &table) != LS_OK) {
        return;
    }
    ls__tune_print(&table, &text);
    printf("\n%d ranks, %s\n", layout.size, key);
    print_figures(&table.figures);
    printf("  sums of up to %d bytes travel with the announcement\n",
           table.one_shot > 0 ? table.one_shot : 0);
    printf("%s", lines);
    ++*entries;
}

static void print_rules(void)
{
    for (int o = 0; o < LS__OP_COUNT; o++) {
        const char *name = ls__rules_variable((ls__operation)o);
        const char *value = name != NULL ? ls__setting_get(name) : NULL;
        if (value != NULL) {
            printf("asked for          %s=%s\n", name, value);
        }
    }
}

static int print_tuning(void)
{
    char path[512];
    ls__rules rules;
    ls__tune_mode mode;
    int entries = 0;
    if (ls__rules_read(&rules) != LS_OK || ls__tune_mode_read(&mode) != LS_OK) {
        fprintf(stderr, "lockstep info: %s\n", ls_error_message());
        return 1;
    }
    printf("on one host        one_shot for small data, direct for the rest: nothing to be timed\n"
           "on several hosts   %s\n",
           mode == LS__TUNE_OFF     ? "the built-in choice: LOCKSTEP_TUNE=off"
           : mode == LS__TUNE_FRESH ? "timed in every job: LOCKSTEP_TUNE=fresh"
                                    : "timed once, and kept");
    print_rules();
    if (!ls__tune_file(path, sizeof path)) {
        printf("kept in            nowhere: neither LOCKSTEP_TUNE_FILE nor HOME is set\n");
        return 0;
    }
    (void)ls__tune_each(ls__env_posix(), path, print_entry, &entries);
    printf("%skept in            %s (%d layout%s; remove it to time anew)\n",
           entries > 0 ? "\n" : "", path, entries, entries == 1 ? "" : "s");
    return 0;
}

int cmd_info(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--tuning") == 0) {
        return print_tuning();
    }
    if (argc > 1) {
        fprintf(stderr, "lockstep info: takes nothing or --tuning, not \"%s\"\n", argv[1]);
        return 2;
    }
    print_build();
    print_machine();
    print_settings();
    (void)ls__settings_check();
    return 0;
}
