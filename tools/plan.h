/* The subcommands of `lockstep plan`, a file each, and the diagrams of `plan schedule`. */
#ifndef TOOLS_PLAN_H
#define TOOLS_PLAN_H

#include <stdio.h>

#include "schedule/schedule.h"

int plan_pipeline(int argc, char **argv); /* plan_pipeline.c; these return an exit status */
int plan_profile(int argc, char **argv);  /* plan_profile.c */
int plan_schedule(int argc, char **argv); /* plan_schedule.c */
void plan_schedule_print_operands(void);  /* its schedules, one per line */
void plan_profile_print_operands(void);

/* plan_units.c: "1gbit", "100mbit" (only a rate), "8g", or a number, of `length` characters, in
 * bytes; negative: it is none of these. */
double plan_parse_amount(const char *text, size_t length, bool rate);

/* plan_diagram.c: a row per rank and a column per unit of time; times[stages]. */
void plan_print_diagram(const ls__schedule *s, const ls__schedule_cost *cost,
                        const ls__stage_times *times, double latency);
/* plan_svg.c: the same as a picture. Returns whether all was written. */
bool plan_write_svg(FILE *out, const ls__schedule *s, const ls__schedule_cost *cost,
                    const ls__stage_times *times);

/* plan_pipeline.c: prints why the output was not written; 1. */
int plan_fail_to_write(const char *path);

#endif
