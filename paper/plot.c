/* SPDX-License-Identifier: Apache-2.0 */
/* A result's files: NAME.json, and its plots by gnuplot as NAME.svg and NAME.png (NAME-2.svg …
 * where there are several). */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "paper.h"
#include "tools/cli/cli.h"

/* What stands below a plot: its spread, and under which conditions it was measured. */
static const char *below_of(const json_t *result, const json_t *plot, char out[800])
{
    char conditions[PAPER_CONDITIONS];
    const json_t *machine = json_object_get(result, "machine");
    (void)snprintf(out, 800, "%.200s\n%s (%.100s, %.0f cores)", paper_text(plot, "says"),
                   paper_conditions(result, conditions), paper_text(machine, "cpu"),
                   paper_number(machine, "cores"));
    return out;
}

/* Draws OUT/STEM.svg and .png; "files" of the plot names them. */
static bool draw(json_t *plot, const json_t *table, const char *below, const char *out,
                 const char *stem)
{
    static const struct {
        const char *ending, *terminal;
    } forms[] = {{"svg", "svg size 820,530 dynamic background rgb 'white'"},
                 {"png", "pngcairo size 820,530"}};
    char script[512], file[512], set[700], name[128];
    (void)snprintf(script, sizeof script, "%s/%s.gnuplot", out, stem);
    bool drawn = paper_script(plot, table, below, script);
    for (size_t f = 0; f < sizeof forms / sizeof *forms && drawn; f++) {
        (void)snprintf(name, sizeof name, "%s.%s", stem, forms[f].ending);
        (void)snprintf(file, sizeof file, "%s/%s", out, name);
        (void)snprintf(set, sizeof set, "set terminal %s; set output '%s'", forms[f].terminal,
                       file);
        const char *const argv[] = {"gnuplot", "-e", set, script, NULL};
        drawn = paper_finish(argv) == 0;
        if (drawn) {
            json_array_append_new(json_object_get(plot, "files"), json_string(name));
        }
    }
    if (!drawn) {
        fprintf(
            stderr,
            "lockstep paper: %s was not drawn; gnuplot (Debian: gnuplot-nox) draws it from %s\n",
            stem, script);
    }
    return drawn;
}

bool paper_make_folder(const char *out)
{
    char path[512];
    if (mkdir(out, 0777) != 0 && errno != EEXIST) {
        fprintf(stderr, "lockstep paper: the folder \"%s\" cannot be made: %s\n", out,
                strerror(errno));
        return false;
    }
    (void)snprintf(path, sizeof path, "%s/index.html", out);
    if (!cli_can_create(path)) {
        fprintf(stderr, "lockstep paper: \"%s\" cannot be written: %s\n", path, strerror(errno));
        return false;
    }
    return true;
}

bool paper_write(json_t *result, const char *out)
{
    const char *name = paper_text(result, "experiment");
    const json_t *tables = json_object_get(result, "tables");
    char path[512], stem[64], below[800];
    size_t i;
    json_t *plot;
    json_array_foreach(json_object_get(result, "plots"), i, plot)
    {
        const json_t *table = json_array_get(tables, (size_t)paper_number(plot, "table"));
        (void)snprintf(stem, sizeof stem, i == 0 ? "%s" : "%s-%zu", name, i + 1);
        if (json_array_size(json_object_get(table, "rows")) > 0) {
            (void)draw(plot, table, below_of(result, plot, below), out, stem);
        }
    }
    (void)snprintf(path, sizeof path, "%s/%s.json", out, name);
    if (!cli_write_json(result, path, JSON_INDENT(2))) {
        fprintf(stderr, "lockstep paper: \"%s\" cannot be written: %s\n", path, strerror(errno));
        return false;
    }
    return true;
}

void paper_keep(json_t *result, const char *out)
{
    char path[512];
    if (!paper_has_rows(result)) {
        return;
    }
    (void)snprintf(path, sizeof path, "%s/%s.json", out, paper_text(result, "experiment"));
    json_object_set_new(result, "incomplete", json_string("it ended in the middle"));
    (void)cli_write_json(result, path, JSON_INDENT(2)); /* paper_write says what is wrong */
    (void)json_object_del(result, "incomplete");
}
