/* SPDX-License-Identifier: Apache-2.0 */
/* Checks that all ranks gave ls_pipeline_new the same options and the same parts of a model. */
#include "dist/agree.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/runtime.h"
#include "nn/parts.h"
#include "parallel/pipeline/internal.h"

#define REMEDY "give all ranks the same model and options"

typedef struct declaration {
    const ls_pipeline *p;
    int parts;
    const char *text; /* of the parts: a line for each, with a zero at its end */
} declaration;

/* Of a part's line, `part 1 "head" from 0, using head`, the number is the fact's name. */
static void list_parts(ls__facts *to, const declaration *d)
{
    char name[32];
    const char *at = d->text;
    for (int i = 0; i < d->parts; i++) {
        (void)snprintf(name, sizeof name, "part %d", i);
        ls__facts_text(to, name, strchr(at, '"'), REMEDY);
        at += strlen(at) + 1;
    }
}

static void list_declaration(ls__facts *to, const void *arg)
{
    const declaration *d = arg;
    const ls_pipeline_options *set = &d->p->set;
    ls__facts_text(to, "schedule", set->schedule != NULL ? set->schedule : "NULL", REMEDY);
    ls__facts_number(to, "micro_batches", set->micro_batches, REMEDY);
    ls__facts_number(to, "chunks", set->chunks, REMEDY);
    ls__facts_text(to, "replicas", set->replicas != NULL ? set->replicas : "1", REMEDY);
    ls__facts_number(to, "recompute", set->recompute, REMEDY);
    ls__facts_number(to, "vertical_sync", set->vertical_sync, REMEDY);
    ls__facts_number(to, "warm_up", set->warm_up, REMEDY);
    ls__facts_number(to, "log", set->log != NULL, REMEDY);
    ls__facts_number(to, "weighted", set->weighted, REMEDY);
    ls__facts_text(to, "cut", set->cut != NULL ? set->cut : "evenly", REMEDY);
    ls__facts_text(to, "the backend of their device",
                   d->p->backend != NULL ? d->p->backend : "none",
                   "let all ranks make tensors on the same kind of device (ls_device_use)");
    list_parts(to, d);
}

ls_status ls__pipeline_agree(ls_pipeline *p, int parts)
{
    char *text = ls__parts_print(p->net);
    if (text == NULL) {
        return ls__self.status;
    }
    for (char *end = text; (end = strchr(end, '\n')) != NULL; end++) {
        *end = '\0';
    }
    const ls__agree_peers peers = {.group = p->group, .who = "ls_pipeline_new"};
    const ls_status status = ls__agree(&peers, list_declaration, &(declaration){p, parts, text});
    free(text);
    return status;
}
