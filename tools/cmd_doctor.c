/* SPDX-License-Identifier: Apache-2.0 */
/* `lockstep doctor`: a line for each property of this system that jobs depend on, with a remedy. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "commands.h"
#include "tools/cli/cli.h"
#include "tools/doctor.h"

static const char *json_path;

static const cli_option options[] = {
    {"json", CLI_TEXT, &json_path, .value_name = "FILE", .help = "also write the findings to FILE"},
};

static const cli_command command = {
    .name = "lockstep doctor",
    .about = "Finds what keeps jobs from running on this system, or slows them down.",
    .options = options,
    .count = (int)(sizeof options / sizeof *options),
    .more = "A line has a property, the finding and, unless it is ok, a remedy. With advice jobs\n"
            "run, but slower or not in every form; with a fault they fail, and the status is 1.\n"
            "Run it in the same way as a job, for example mpirun -n 1 lockstep doctor.\n"};

static void print(const doctor_finding *f)
{
    printf("%-7s %-14s %s%s%s\n", doctor_grades[f->grade], f->subject, f->found,
           f->remedy != NULL ? "; " : "", f->remedy != NULL ? f->remedy : "");
}

/* NULL without memory. */
static json_t *json_of(const doctor_finding *found, int count)
{
    json_t *list = json_array();
    for (int i = 0; i < count && list != NULL; i++) {
        json_t *one = json_pack("{s:s, s:s, s:s, s:s?}", "subject", found[i].subject, "grade",
                                doctor_grades[found[i].grade], "found", found[i].found, "remedy",
                                found[i].remedy);
        if (json_array_append_new(list, one) < 0) {
            json_decref(list);
            list = NULL;
        }
    }
    return list;
}

static int write_json(const doctor_finding *found, int count)
{
    json_t *root = json_pack("{s:o}", "findings", json_of(found, count));
    const bool written = root != NULL && cli_write_json(root, json_path, JSON_INDENT(1));
    if (!written) {
        fprintf(stderr, "lockstep doctor: --json %s: cannot be written: %s\n", json_path,
                strerror(errno));
    }
    json_decref(root);
    return written ? 0 : 1;
}

int cmd_doctor(int argc, char **argv)
{
    static doctor_facts facts;
    static doctor_finding found[DOCTOR_FINDINGS_MAX];
    int of[3] = {0};
    const int first = cli_parse(&command, argc, argv);
    if (first < 0) {
        return -1 - first;
    }
    doctor_look(&facts);
    const int count = doctor_judge(&facts, found);
    for (int i = 0; i < count; i++) {
        print(&found[i]);
        of[found[i].grade]++;
    }
    printf("%d ok, %d with advice, %d fault%s\n", of[DOCTOR_GOOD], of[DOCTOR_ADVICE],
           of[DOCTOR_FAULT], of[DOCTOR_FAULT] == 1 ? "" : "s");
    const int status = json_path != NULL ? write_json(found, count) : 0;
    return of[DOCTOR_FAULT] > 0 ? 1 : status;
}
