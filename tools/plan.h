/* The subcommands of `lockstep plan`, a file each, and the diagrams of `plan schedule`. */
#ifndef TOOLS_PLAN_H
#define TOOLS_PLAN_H

#include <stdio.h>

#include "schedule/schedule.h"

int plan_schedule(int argc, char **argv); /* plan_schedule.c; returns an exit status */
void plan_schedule_print_operands(void);  /* its schedules, one per line */

/* plan_diagram.c: a row per rank and a column per unit of time; times[stages]. */
void plan_print_diagram(const ls__schedule *s, const ls__schedule_cost *cost,
                        const ls__stage_times *times, double latency);
/* plan_svg.c: the same as a picture. Returns whether all was written. */
bool plan_write_svg(FILE *out, const ls__schedule *s, const ls__schedule_cost *cost,
                    const ls__stage_times *times);

#endif
