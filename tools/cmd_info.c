/* `lockstep info`: what was built, what it runs on, what it reads from the environment. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include <lockstep/version.h>

#include "base/cpu.h"
#include "base/env.h"
#include "base/settings.h"
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
    printf("kernels            %s (the processor has %s)\n", ls__isa_name(ls__cpu_isa()),
           ls__isa_name(ls__cpu_best()));
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

int cmd_info(int argc, char **argv)
{
    if (argc > 1) {
        fprintf(stderr, "lockstep info: takes no arguments, not \"%s\"\n", argv[1]);
        return 2;
    }
    print_build();
    print_machine();
    print_settings();
    (void)ls__settings_check();
    return 0;
}
