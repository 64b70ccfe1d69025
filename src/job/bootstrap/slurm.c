/* SPDX-License-Identifier: Apache-2.0 */
/* Slurm's compressed lists of hosts and tasks, expanded here: scontrol, which does it otherwise,
 * is not installed on every host, and a process for it would cost time at each start. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "job/bootstrap/detect.h"

#define TASKS_MAX 65536

/* Each part of the list is text with brackets: "node[01-03,7]", also several of them
 * (a[1-2]b[3]). The first host takes the first number of each bracket, with its leading zeros.
 * Stops at the first comma outside of brackets. */
bool ls__slurm_first_host(const char *list, char *out, int bytes)
{
    int used = 0;
    const char *at = list;
    while (*at != '\0' && *at != ',') {
        if (*at != '[') {
            if (used + 1 >= bytes || *at == ']') {
                return false;
            }
            out[used++] = *at++;
            continue;
        }
        const char *end = strchr(at, ']');
        size_t digits = strspn(at + 1, "0123456789");
        if (end == NULL || digits == 0 || strchr("-,]", at[1 + digits]) == NULL ||
            used + (int)digits >= bytes) {
            return false;
        }
        memcpy(out + used, at + 1, digits);
        used += (int)digits;
        at = end + 1;
    }
    out[used] = '\0';
    return used > 0;
}

/* The list is run-length coded: "2(x3),1" means 2, 2, 2, 1 tasks on four nodes. Every number is
 * checked, because a wrong count would make ranks wait for peers that do not exist. */
int ls__slurm_tasks(const char *list, int index)
{
    int node = 0;
    for (const char *at = list; *at != '\0';) {
        char *end = NULL;
        long tasks = strtol(at, &end, 10), times = 1;
        if (end == at || tasks < 1 || tasks > TASKS_MAX) {
            return 0;
        }
        if (strncmp(end, "(x", 2) == 0) {
            const char *count = end + 2;
            times = strtol(count, &end, 10);
            if (end == count || times < 1 || times > TASKS_MAX || *end++ != ')') {
                return 0;
            }
        }
        if (index < node + (int)times) {
            return (int)tasks;
        }
        node += (int)times;
        if (*end != ',' && *end != '\0') {
            return 0;
        }
        at = end + (*end == ',');
    }
    return 0;
}
