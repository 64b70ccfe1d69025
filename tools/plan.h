/* SPDX-License-Identifier: Apache-2.0 */
/* The subcommands of `lockstep plan`, a file each, and the diagrams of `plan schedule`. */
#ifndef TOOLS_PLAN_H
#define TOOLS_PLAN_H

#include <stdio.h>

#include "cost/simulate.h"

int plan_auto(int argc, char **argv);     /* plan_auto.c */
void plan_auto_print_operands(void);      /* its models, one per line */
int plan_pipeline(int argc, char **argv); /* plan_pipeline.c; these return an exit status */
int plan_profile(int argc, char **argv);  /* plan_profile.c */
int plan_schedule(int argc, char **argv); /* plan_schedule.c */
int plan_tensor(int argc, char **argv);   /* plan_profile.c */
void plan_schedule_print_operands(void);  /* its schedules, one per line */
void plan_profile_print_operands(void);

/* plan_diagram.c: a row per rank and a column per unit of time; times[stages]. */
void plan_print_diagram(const ls__schedule *s, const ls__sim_result *cost,
                        const ls__stage_times *times, double latency);
/* plan_svg.c: the same as a picture. Returns whether all was written. */
bool plan_write_svg(FILE *out, const ls__schedule *s, const ls__sim_result *cost,
                    const ls__stage_times *times);

struct ls__auto_result;
/* plan_auto_svg.c: the step of the best plan of each mesh, by what it consists of. Returns whether
 * all was written. */
bool plan_write_auto_svg(FILE *out, const struct ls__auto_result *found, const char *title);

/* plan_pipeline.c: prints why the output was not written; 1. */
int plan_fail_to_write(const char *path);

#endif
