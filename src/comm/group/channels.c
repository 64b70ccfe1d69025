/* SPDX-License-Identifier: Apache-2.0 */
/* Channels: the number of slices of one operation over messages that are in flight at the same
 * time. Each runs the same program on lanes, scratch memory and credits of its own, so one slice is
 * reduced while another is on the wire. The cut into slices does not depend on the number of
 * channels, and neither do the resulting bits. */
#include "base/lock.h"
#include "comm/api/collective.h"
#include "comm/core/collective.h"
#include "comm/core/group.h"

/* Finds the least and the largest value that members gave, by one all-reduce with MAX: the least is
 * the largest of the negated values. */
static ls_status range_of(ls_group *group, int channels, int32_t *least, int32_t *most)
{
    int32_t both[2] = {-channels, channels};
    const ls_status status = ls__collective_start(
        group,
        &(ls__collective){.operation = LS__OP_ALL_REDUCE,
                          .input = both,
                          .output = both,
                          .count = 2,
                          .dtype = LS_INT32,
                          .op = LS_MAX,
                          .control = true,
                          .options =
                              LS_OPTIONS(ls_collective_options, .tag = "ls_group_set_channels")},
        NULL);
    *least = -both[0];
    *most = both[1];
    return status;
}

/* Takes effect with the next operation of each rank; the exchange before it makes sure that all
 * ranks change between the same two operations. */
ls_status ls_group_set_channels(ls_group *group, int channels)
{
    ls__comm *comm = ls__comm_get("ls_group_set_channels");
    int32_t least = 0, most = 0;
    if (comm == NULL) {
        return ls__self.status;
    }
    if (group == NULL) {
        (void)ls__fail(LS_ERR_INVALID, "ls_group_set_channels: the group is NULL; give one");
        return ls__fail_at_site(LS_ERR_INVALID);
    }
    /* A value that is wrong on one rank takes part as well, so that all ranks return the error
     * instead of waiting for this one. */
    const int sent = channels < -1                 ? -1
                     : channels > LS__CHANNELS_MAX ? LS__CHANNELS_MAX + 1
                                                   : channels;
    LS_TRY(range_of(group, sent, &least, &most));
    if (least < 1 || most > LS__CHANNELS_MAX || least != most) {
        (void)ls__fail(
            LS_ERR_INVALID,
            "ls_group_set_channels of group \"%s\": this rank gives %d, but the ranks must all "
            "give the same number from 1 to %d",
            group->name, channels, LS__CHANNELS_MAX);
        return ls__fail_at_site(LS_ERR_INVALID);
    }
    ls__lock_take(&comm->lock, comm->env);
    group->channels = channels;
    ls__unlock(&comm->lock, comm->env);
    return LS_OK;
}
