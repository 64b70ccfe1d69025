/* SPDX-License-Identifier: Apache-2.0 */
/* `lockstep plan`: what a job would take, before it runs. */
#include <stdio.h>
#include <string.h>

#include "commands.h"
#include "tools/cli/cli.h"
#include "tools/plan.h"

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    void (*print_operands)(void);
} plans[] = {
    {"auto", plan_auto, plan_auto_print_operands},
    {"profile", plan_profile, plan_profile_print_operands},
    {"pipeline", plan_pipeline, NULL}, /* a file */
    {"schedule", plan_schedule, plan_schedule_print_operands},
    {"tensor", plan_tensor, plan_profile_print_operands},
};
#define PLANS ((int)(sizeof plans / sizeof *plans))

static const cli_command command = {
    .name = "lockstep plan",
    .about = "Says what a job would take before it runs.",
    .operands = "auto|profile|pipeline|tensor|schedule ...",
    .more =
        "  lockstep plan auto gpt --cluster 4:10gbit,2:1gbit --memory 2g --out plan.json     all "
        "of it\n"
        "  lockstep plan profile gpt --data book.txt --batch 2 --out gpt.json     measures its "
        "parts\n"
        "  lockstep plan pipeline gpt.json --workers 4 --bandwidth 1gbit --out plan.json     its "
        "stages\n"
        "  lockstep plan tensor gpt --data book.txt --mesh tp=4     which matrices its ranks cut\n"
        "  lockstep plan schedule 1f1b -p 4 -m 8     a pipeline of 4 ranks and 8 micro-batches\n"
        "  lockstep plan schedule --help             its options\n"};

static int index_of(const char *name)
{
    for (int i = 0; i < PLANS; i++) {
        if (strcmp(name, plans[i].name) == 0) {
            return i;
        }
    }
    return -1;
}

void plan_print_names(void)
{
    for (int i = 0; i < PLANS; i++) {
        printf("%s\n", plans[i].name);
    }
}

void plan_print_operands(const char *name)
{
    if (index_of(name) >= 0 && plans[index_of(name)].print_operands != NULL) {
        plans[index_of(name)].print_operands();
    }
}

int cmd_plan(int argc, char **argv)
{
    cli_leave_job();
    const int index = argc > 1 ? index_of(argv[1]) : -1;
    if (index >= 0) {
        return plans[index].run(argc - 1, argv + 1);
    }
    const int first = cli_parse(&command, argc, argv);
    if (first < 0) {
        return -1 - first;
    }
    return first < argc
               ? cli_wrong(&command,
                           "there is no \"%s\"; give auto, profile, pipeline, tensor or schedule",
                           argv[first])
               : cli_wrong(&command,
                           "the plan is missing; give auto, profile, pipeline, tensor or schedule");
}
