/* SPDX-License-Identifier: Apache-2.0 */
/* Interleaved 1F1B (Narayanan et al., SC 2021, section 2.2.2; Megatron-LM's get_schedule_table):
 * rank r has the stages r, P+r, 2P+r, …, so the bubble is V times shorter and there are V times as
 * many messages. P micro-batches pass the first stage of a rank, then the same ones the second
 * stage.
 *
 *     rank 0 of 2, V=2   0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3
 */
#include "base/error.h"
#include "schedule/generator/generator.h"

/* The i-th forward of a rank, or its i-th backward, which takes the stages in reverse order. */
static void add(ls__schedule *s, ls__action_kind kind, int rank, int i)
{
    const int chunks = s->stages / s->ranks, round = s->ranks * chunks;
    const int chunk = i % round / s->ranks;
    const int stage = (kind == LS__FORWARD ? chunk : chunks - 1 - chunk) * s->ranks + rank;
    ls__generate(s, kind, stage, i / round * s->ranks + i % s->ranks);
}

ls_status ls__generate_interleaved(ls__schedule *s, const ls__schedule_spec *spec)
{
    const int chunks = s->stages / s->ranks, count = spec->micro_batches * chunks;
    if (spec->micro_batches % spec->ranks != 0) {
        return ls__fail(
            LS_ERR_INVALID,
            "schedule interleaved: %d micro-batches on %d ranks; give a multiple of %d, "
            "because that many pass a stage before the rank goes on to its next one",
            spec->micro_batches, spec->ranks, spec->ranks);
    }
    for (int rank = 0; rank < s->ranks; rank++) {
        const int ahead = 2 * (s->ranks - 1 - rank) + (chunks - 1) * s->ranks;
        for (int i = 0; i < count + ahead; i++) {
            if (i < count) {
                add(s, LS__FORWARD, rank, i);
            }
            if (i >= ahead) {
                add(s, LS__BACKWARD, rank, i - ahead);
            }
        }
    }
    return LS_OK;
}
