/* SPDX-License-Identifier: Apache-2.0 */
/* The options that `lockstep bench ddp` and `lockstep bench replay` share; see ddp.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/compression.h>

#include "ddp.h"
#include "tools/cli/cli.h"

typedef struct reading { /* lists within lists: a contender for each combination */
    ls__bench_ddp *bench;
    const ls__bench_ddp_asked *asked;
    const cli_command *command;
    ls__bench_ddp_contender next;
} reading;

static int add(reading *r, int mode, size_t bytes)
{
    ls__bench_ddp *b = r->bench;
    if (b->count == BENCH_DDP_CONTENDERS) {
        return cli_wrong(r->command, "--mode and --buckets: more than %d rows",
                         BENCH_DDP_CONTENDERS);
    }
    b->contender[b->count] = r->next;
    b->contender[b->count].mode = mode;
    b->contender[b->count++].bucket_bytes = bytes;
    return 0;
}

/* One item of --buckets. */
static int add_size(reading *r, const char *text)
{
    const int mode = r->next.mode;
    char *end = NULL;
    const double mb = strtod(text, &end);
    if (strcmp(text, "auto") == 0) {
        return add(r, mode, LS_BUCKET_BYTES_AUTO);
    }
    if (end == text || *end != '\0' || !(mb >= 0.0) || mb > 1e6) {
        return cli_wrong(r->command,
                         "--buckets: \"%s\" is not a size; give MB, as 0.5 or 25, or auto", text);
    }
    return add(r, mode, (size_t)(mb * 1e6));
}

/* Calls `item` for each part of "a,b,c", or of another separator. */
static int each(reading *r, const char *list, char separator,
                int (*item)(reading *r, const char *text))
{
    char copy[512];
    (void)snprintf(copy, sizeof copy, "%s", list);
    char *rest = copy;
    while (rest != NULL) {
        char *at = rest;
        rest = strchr(rest, separator);
        if (rest != NULL) {
            *rest++ = '\0';
        }
        const int status = item(r, at);
        if (status != 0) {
            return status;
        }
    }
    return 0;
}

static int add_mode(reading *r, const char *text)
{
    /* Without communication there is one row, not one for each way of it. */
    const bool first = r->next.wire == LS_FLOAT32 && r->next.skip == 1 && r->next.groups == 1 &&
                       strncmp(r->asked->comms, r->next.comm, strlen(r->next.comm)) == 0;
    switch (cli_choice("overlap|bucketed|flat|naive|local", text)) {
    case LS_REDUCE_OVERLAP:
        r->next.mode = LS_REDUCE_OVERLAP;
        return each(r, r->asked->sizes, ',', add_size);
    case LS_REDUCE_BUCKETED:
        r->next.mode = LS_REDUCE_BUCKETED;
        return each(r, r->asked->sizes, ',', add_size);
    case LS_REDUCE_FLAT:
        return add(r, LS_REDUCE_FLAT, 0);
    case LS_REDUCE_NAIVE:
        return add(r, LS_REDUCE_NAIVE, 0);
    case LS_REDUCE_NAIVE + 1:
        return first ? add(r, BENCH_DDP_LOCAL, 0) : 0;
    default:
        return cli_wrong(r->command,
                         "--mode: \"%s\" is not known; there is naive, flat, bucketed, overlap, "
                         "local",
                         text);
    }
}

/* A hook, checked before the ranks start. Its text is kept to the end of the program. */
static int add_comm(reading *r, const char *text)
{
    ls_comm_hook hook = {.size = sizeof hook};
    if (ls_comm_hook_parse(text, &hook) < 0) {
        return cli_wrong(r->command, "--comm: %s", ls_error_message());
    }
    if (hook.free != NULL) {
        hook.free(hook.state);
    }
    if (hook.before != NULL && r->next.wire != LS_FLOAT32) {
        return cli_wrong(r->command,
                         "--comm %s and --wire bfloat16: a hook says itself what is "
                         "sent; leave one of them out",
                         text);
    }
    r->next.comm = strdup(text);
    return r->next.comm != NULL ? each(r, r->asked->modes, ',', add_mode)
                                : cli_wrong(r->command, "no memory");
}

static int add_wire(reading *r, const char *text)
{
    const int choice = cli_choice("float32|bfloat16", text);
    if (choice < 0) {
        return cli_wrong(r->command, "--wire: \"%s\" is not known; there is float32, bfloat16",
                         text);
    }
    r->next.wire = choice == 0 ? LS_FLOAT32 : LS_BFLOAT16;
    return each(r, r->asked->comms, ' ', add_comm);
}

/* A number from 1 to `most`; 0: it is not one. */
static int number_of(const char *text, int most)
{
    char *end = NULL;
    const long number = strtol(text, &end, 10);
    return end != text && *end == '\0' && number >= 1 && number <= most ? (int)number : 0;
}

static int add_groups(reading *r, const char *text)
{
    r->next.groups = number_of(text, 16);
    return r->next.groups > 0
               ? each(r, r->asked->wires, ',', add_wire)
               : cli_wrong(r->command, "--groups: \"%s\" is not a number from 1 to 16", text);
}

static int add_skip(reading *r, const char *text)
{
    r->next.skip = number_of(text, 100);
    return r->next.skip > 0
               ? each(r, r->asked->groups, ',', add_groups)
               : cli_wrong(r->command, "--skip: \"%s\" is not a number from 1 to 100", text);
}

int ls__bench_ddp_ask(ls__bench_ddp *b, const ls__bench_ddp_asked *asked,
                      const cli_command *command)
{
    reading r = {.bench = b, .asked = asked, .command = command};
    b->ranks = (int)asked->ranks;
    b->steps = (int)asked->steps;
    b->rounds = (int)asked->rounds;
    b->warmups = (int)asked->warmups;
    b->untimed = (int)asked->untimed;
    b->transport = asked->transport;
    b->json = asked->json;
    return each(&r, asked->skips, ',', add_skip);
}
