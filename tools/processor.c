/* SPDX-License-Identifier: Apache-2.0 */
/* The processor's name, for `lockstep info` and for tables of measurements. */
#include <stdio.h>
#include <string.h>

#include "tools/commands.h"

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
