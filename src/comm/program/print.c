/* SPDX-License-Identifier: Apache-2.0 */
/* Programs as text, one step a line, in lane order:
 *
 *     lane 0: fence 0
 *     lane 0: peer_reduce output[*].2 = input[0].2 + input[1].2 + input[2].2
 *     lane 1: recv scratch[2].3 from 3 (after lane 0 step 4)
 *
 * A ref is buffer[rank].chunk; for scratch the number behind the dot is the slot. `[*]` stands for
 * all ranks.
 */
#include <stdarg.h>
#include <stdio.h>

#include "base/error.h"
#include "comm/program/check.h"

#define OPERANDS_SHOWN 4

typedef struct text {
    char *out;
    size_t room, used; /* used also counts the text that did not fit */
} text;

static void put(text *t, const char *format, ...) LS__PRINTF(2, 3);
/* Counts text that does not fit, so that the caller learns how much room is needed. */
static void put(text *t, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    const size_t left = t->used < t->room ? t->room - t->used : 0;
    const int bytes = vsnprintf(left ? t->out + t->used : NULL, left, format, args);
    va_end(args);
    t->used += bytes > 0 ? (size_t)bytes : 0;
}

/* In lower case, as in program.h. */
const char *ls__step_kind_name(ls__step_kind kind)
{
    static const char *const names[] = {"send",      "recv",        "copy", "reduce",
                                        "peer_copy", "peer_reduce", "fence"};
    return (unsigned)kind <= LS__STEP_FENCE ? names[kind] : "invalid";
}

/* In lower case, as in program.h. */
const char *ls__buffer_name(ls__program_buffer buffer)
{
    static const char *const names[] = {"input", "output", "stage", "scratch"};
    return (unsigned)buffer <= LS__BUFFER_SCRATCH ? names[buffer] : "invalid";
}

/* Scratch is shown by slot; the chunk that it holds follows from the operation. */
static void put_ref(text *t, const ls__program *p, const ls__ref *ref)
{
    const int chunk = ref->buffer == LS__BUFFER_SCRATCH ? ref->chunk / p->chunks : ref->chunk;
    put(t, "%s[%d].%d", ls__buffer_name((ls__program_buffer)ref->buffer), ref->rank, chunk);
}

/* Whether the refs are the same chunk of the same buffer of every rank, in order; shown as
 * "output[*].2". */
static bool is_everyone(const ls__program *p, const ls__ref *refs, int count)
{
    for (int i = 0; i < count; i++) {
        if (refs[i].rank != i || refs[i].buffer != refs[0].buffer ||
            refs[i].chunk != refs[0].chunk) {
            return false;
        }
    }
    return count == p->size && count > 1;
}

/* Of many operands the first ones and the last. */
static void put_refs(text *t, const ls__program *p, int first, int count, const char *separator)
{
    const ls__ref *refs = &p->refs[first];
    const int shown = count > OPERANDS_SHOWN ? OPERANDS_SHOWN - 1 : count;
    for (int i = 0; i < shown; i++) {
        put(t, "%s", i ? separator : "");
        put_ref(t, p, &refs[i]);
    }
    if (shown < count) {
        put(t, "%s…%s", separator, separator);
        put_ref(t, p, &refs[count - 1]);
    }
}

/* Nothing for steps without a destination. */
static void put_dst(text *t, const ls__program *p, const ls__step *step)
{
    const ls__ref *refs = &p->refs[step->first_dst];
    if (is_everyone(p, refs, step->dst_count)) {
        put(t, " %s[*].%d", ls__buffer_name((ls__program_buffer)refs->buffer), refs->chunk);
    } else if (step->dst_count > 0) {
        put(t, " ");
        put_refs(t, p, step->first_dst, step->dst_count, ", ");
    }
}

/* One line. */
static void put_step(text *t, const ls__program *p, const ls__step *step)
{
    put(t, "lane %d: %s", step->lane, ls__step_kind_name((ls__step_kind)step->kind));
    put_dst(t, p, step);
    if (step->src_count > 0) {
        put(t, step->dst_count > 0 ? " = " : " ");
        put_refs(t, p, step->first_src, step->src_count, " + ");
    }
    if (step->kind == LS__STEP_FENCE) {
        put(t, " %d", step->fence);
    } else if (step->peer >= 0) {
        put(t, step->kind == LS__STEP_SEND ? " to %d" : " from %d", step->peer);
    }
    if (step->wait_lane >= 0) {
        put(t, " (after lane %d step %d)", step->wait_lane, step->wait_step);
    }
    put(t, "\n");
}

/* LS_ERR_LIMIT if the text does not fit; it is cut then. */
ls_status ls__program_print(const ls__program *program, char *out, size_t bytes)
{
    text t = {out, bytes, 0};
    put(&t, "%s %s: rank %d of %d, %d chunks, %d steps\n", program->algorithm,
        ls__operation_name(program->operation), program->rank, program->size, program->chunks,
        program->step_count);
    for (int s = 0; s < program->step_count; s++) {
        put_step(&t, program, &program->steps[s]);
    }
    if (t.used >= bytes) {
        return ls__fail(LS_ERR_LIMIT, "the program's text has %zu bytes, room is for %zu",
                        t.used + 1, bytes);
    }
    return LS_OK;
}
