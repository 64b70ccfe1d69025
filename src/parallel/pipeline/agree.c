/* Checks that all ranks gave ls_pipeline_new the same options and the same parts of a model. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/runtime.h"
#include "comm/core/group.h"
#include "nn/parts.h"
#include "parallel/pipeline/internal.h"

/* The compared values as lines of text, so that a difference can be shown in words: the options,
 * and each part. Free with free(); NULL with the error set. */
static char *describe(const ls_pipeline *p, int parts)
{
    char options[512];
    (void)snprintf(
        options, sizeof options,
        "%s, %d micro-batches, %d chunks, replicas %.100s, recompute %d, vertical sync %d, "
        "warm-up %d, %d parts cut \"%.300s\"",
        p->set.schedule, p->set.micro_batches, p->set.chunks,
        p->set.replicas != NULL ? p->set.replicas : "1", p->set.recompute, p->set.vertical_sync,
        p->set.warm_up, parts, p->set.cut != NULL ? p->set.cut : "evenly");
    char *declared = ls__parts_print(p->net), *text = NULL;
    if (declared != NULL && asprintf(&text, "%s\n%s", options, declared) < 0) {
        text = NULL;
        (void)ls__fail(LS_ERR_MEMORY, "ls_pipeline_new: no memory");
    }
    free(declared);
    return text;
}

/* How many ranks have the same text as rank r. */
static int votes_of(const ls_bytes *all, int size, int r)
{
    int votes = 0;
    for (int q = 0; q < size; q++) {
        votes += strcmp(all[q].data, all[r].data) == 0;
    }
    return votes;
}

/* Names the first line in which rank `odd` differs from `usual`. */
static ls_status name_difference(const ls_pipeline *p, const ls_bytes *all, int odd, int usual)
{
    const char *a = all[odd].data, *b = all[usual].data;
    int x = (int)strcspn(a, "\n"), y = (int)strcspn(b, "\n");
    while (x == y && strncmp(a, b, (size_t)x) == 0) {
        a += x + 1;
        b += y + 1;
        x = (int)strcspn(a, "\n");
        y = (int)strcspn(b, "\n");
    }
    char others[48] = "";
    const int size = ls_group_size(p->group), votes = votes_of(all, size, usual);
    if (votes > 1) {
        (void)snprintf(others, sizeof others, ", as %d of %d ranks", votes, size);
    }
    return ls__fail(LS_ERR_MISMATCH,
                    "ls_pipeline_new: rank %d has %.*s; rank %d has %.*s%s; give all ranks the "
                    "same model and options",
                    p->group->member[odd].world_rank, x < 600 ? x : 600, a,
                    p->group->member[usual].world_rank, y < 600 ? y : 600, b, others);
}

/* The most common text counts as the right one; the first rank that differs from it is named. */
static ls_status judge(const ls_pipeline *p, const ls_bytes *all)
{
    const int size = ls_group_size(p->group);
    int usual = 0;
    for (int r = 1; r < size; r++) {
        usual = votes_of(all, size, r) > votes_of(all, size, usual) ? r : usual;
    }
    for (int r = 0; r < size; r++) {
        if (strcmp(all[r].data, all[usual].data) != 0) {
            return name_difference(p, all, r, usual);
        }
    }
    return LS_OK;
}

ls_status ls__pipeline_agree(ls_pipeline *p, int parts)
{
    ls_bytes *all = NULL;
    char *text = describe(p, parts);
    if (text == NULL) {
        return ls__self.status;
    }
    ls_status status =
        ls_all_gather_bytes(p->group, text, strlen(text) + 1,
                            LS_OPTIONS(ls_collective_options, .tag = "ls_pipeline_new"), &all);
    if (status == LS_OK) {
        status = judge(p, all);
    }
    free(text);
    ls_bytes_free(all);
    return status;
}
