/* SPDX-License-Identifier: Apache-2.0 */
/* From arguments to a work and its descriptor. Peers compare descriptors before they combine data,
 * so everything on which ranks must agree goes in here. */
#include <string.h>

#include "base/assert.h"
#include "base/hash.h"
#include "base/size.h"
#include "comm/algorithm/registry.h"
#include "comm/algorithm/rules.h"
#include "comm/core/collective.h"
#include "comm/core/group.h"
#include "comm/memory/heap.h"
#include "comm/operation/describe.h"
#include "comm/operation/v_counts.h"

#define OWN_TAG (-1)

/* Bytes of the input and output buffers; false when they overflow. */
bool ls__collective_bytes(const ls_group *group, const ls__collective *args, size_t *input,
                          size_t *output)
{
    const size_t element = ls_dtype_size(args->dtype);
    int64_t all = 0;
    if (!ls__mul_int64(args->count, group->size, &all)) {
        return false;
    }
    const int64_t in = ls__operation_has_blocks(args->operation, true) ? all : args->count;
    const int64_t out = ls__operation_has_blocks(args->operation, false) ? all : args->count;
    return ls__bytes_of(in, element, input) && ls__bytes_of(out, element, output);
}

/* Copies the end of a text that is too long: of a path the last part matters. */
static void put_tail(char *to, size_t room, const char *text)
{
    const size_t length = strlen(text);
    const char *from = length < room ? text : text + length - (room - 1);
    memcpy(to, from, strlen(from) + 1);
}

/* The public calls are macros that store file and line of the caller in ls__self. */
void ls__descriptor_site(ls__descriptor *d)
{
    const char *file = ls__self.file != NULL ? ls__self.file : "";
    d->line = ls__self.line;
    if (strcmp(d->file, file) != 0) { /* most calls are made where the last one was */
        put_tail(d->file, sizeof d->file, file);
    }
}

/* Copies the start of a text that is too long. */
static void put_head(char *to, size_t room, const char *text)
{
    const size_t length = strnlen(text, room - 1);
    memcpy(to, text, length);
    to[length] = '\0';
}

/* Whether all buffers that this rank uses lie in its heap; then their offsets go into the
 * descriptor. An operation that reads ahead of its writes must be staged in place. */
static bool registered(const ls_group *group, const ls__collective *args, ls__descriptor *d)
{
    size_t input = 0, output = 0;
    (void)ls__collective_bytes(group, args, &input, &output);
    const ls__heap *heap = &group->comm->heap;
    const bool in = ls__heap_offset(heap, args->input, input, &d->input);
    const bool out = ls__heap_offset(heap, args->output, output, &d->output);
    const bool ahead = ls__operation_reads_ahead(args->operation) && args->input == args->output;
    return (in || !ls__collective_uses(group, args, true)) &&
           (out || !ls__collective_uses(group, args, false)) && !ahead;
}

/* The algorithm asked for, by the call or else by the user's rules; NULL: the library chooses. A
 * rule that a group cannot follow, because its members do not share memory, is skipped. */
static const ls__algorithm *asked_for(const ls_group *group, const ls__collective *args,
                                      const char *name)
{
    if (name != NULL) {
        return ls__algorithm_find(args->operation, name);
    }
    const ls__rules *rules = &group->comm->rules;
    if (rules->hash == 0 || args->operation >= LS__OP_COUNT || group->plugin != NULL) {
        return NULL;
    }
    size_t input = 0, output = 0;
    (void)ls__collective_bytes(group, args, &input, &output);
    const ls__algorithm *found =
        ls__rules_find(rules, args->operation, (int64_t)(input > output ? input : output));
    const bool can = found != NULL && (found->exact || !ls__reduce_op_is_user(args->op)) &&
                     (!group->has_remote || (found->memories & LS__IN_MESSAGES) != 0);
    return can ? found : NULL;
}

/* What a plain call says. The call site is kept from the work's last operation where it is the
 * same. */
static void describe_plain(const ls_group *group, const ls__collective *args,
                           const ls__operation_traits *traits, ls__descriptor *d)
{
    const ls__comm *comm = group->comm;
    d->version = LS__DESCRIPTOR_VERSION;
    d->operation = (uint8_t)args->operation;
    d->reduce_op = traits->reduces ? (uint8_t)args->op : 0xff;
    d->dtype = (uint8_t)args->dtype;
    d->algorithm = 0;
    d->memory = LS__MEMORY_STAGED;
    d->forced = (uint8_t)comm->forced;
    d->generation = comm->board->generation;
    d->group = group->id;
    d->count = args->count;
    d->root = traits->has_root ? args->root : 0;
    d->tag = 0;
    d->tag_hash = 0;
    d->divisor = 0;
    d->counts_hash = 0; /* of a v-variant: v_layout.c and v_counts.c */
    d->counts_weight = 0;
    d->op_name[0] = '\0';
    d->pid = comm->runtime->pid;
    ls__descriptor_site(d);
    d->text[0] = '\0';
}

/* What else a call may say, and where its buffers lie. */
static void describe(const ls_group *group, const ls__collective *args,
                     const ls_collective_options *options, const ls__algorithm *algorithm,
                     ls__descriptor *d)
{
    const bool p2p = ls__operation_is_p2p(args->operation);
    const bool user = ls__operation_reduces(args->operation) && ls__reduce_op_is_user(args->op);
    d->algorithm = algorithm != NULL ? (uint8_t)(1 + ls__algorithm_index(algorithm)) : 0;
    d->root = p2p ? args->root : d->root;
    d->tag = !p2p ? args->mark : args->own_tag ? OWN_TAG : args->tag;
    d->divisor = options->divisor;
    if (options->tag != NULL) {
        d->tag_hash = ls__hash_text(options->tag);
        put_head(d->text, sizeof d->text, options->tag);
    }
    if (!ls__operation_is_v(args->operation) && registered(group, args, d)) {
        d->memory = LS__MEMORY_REGISTERED;
    }
    if (user) {
        d->reduce_op = LS_REDUCE_OP_USER;
        memcpy(d->op_name, args->made.name, sizeof args->made.name);
    }
    if (args->anywhere && group->comm->strict) {
        d->line = 0;
        d->file[0] = '\0';
    }
}

/* AVG is a sum that is divided; what the user's operator does is not known. */
static ls_reduce_op kernel_op(ls_reduce_op op)
{
    return op == LS_AVG || op == LS_PREMUL_SUM || ls__reduce_op_is_user(op) ? LS_SUM : op;
}

void ls__collective_fill_plain(ls_group *group, const ls__collective *args, ls_work *work)
{
    const ls__operation_traits *traits = ls__operation_traits_of(args->operation);
    atomic_store_explicit(&work->status, LS_IN_PROGRESS, memory_order_relaxed);
    work->group = group;
    work->operation = args->operation;
    work->input = args->input;
    work->output = args->output;
    work->count = args->count;
    work->element = ls_dtype_size(args->dtype);
    work->dtype = args->dtype;
    work->op = kernel_op(args->op);
    work->divisor = traits->reduces && args->op == LS_AVG ? (double)group->size : 0;
    work->channels = (uint8_t)group->channels;
    work->path = LS__PATH_OPEN;
    work->plan = NULL;
    describe_plain(group, args, traits, &work->descriptor);
}

/* The caller holds comm->lock. The work was just taken, and no other thread knows it. */
void ls__collective_fill(ls_group *group, const ls__collective *args,
                         const ls_collective_options *options, ls_work *work)
{
    LS_ASSERT(args->count >= 0);
    const ls__comm *comm = group->comm;
    const bool v = ls__operation_is_v(args->operation);
    ls__collective_fill_plain(group, args, work);
    work->done = args->done;
    work->arg = args->arg;
    work->monitored = args->monitored;
    work->watch.warned = args->idle;
    work->message.up_to = args->up_to;
    work->algorithm = asked_for(group, args, options->algorithm);
    work->pack = args->pack;
    work->plugin = (ls__work_plugin){.control = args->control,
                                     .replay = args->replay,
                                     .stream = options->stream,
                                     .factor = args->op == LS_PREMUL_SUM ? options->factor : 1,
                                     .place = args->place};
    work->divisor = work->divisor != 0 ? work->divisor : options->divisor;
    work->queued_ns = comm->env->now_ns(comm->env);
    work->deadline_ns = ls__work_deadline(group, options, work->queued_ns);
    if (ls__reduce_op_is_user(args->op)) {
        work->user = args->made.user;
    }
    describe(group, args, options, work->algorithm, &work->descriptor);
    work->has_layout = v && ls__v_layout_can(group, work);
    if (v) {
        ls__counts_fill(group, args, work);
    }
    if (work->has_layout) {
        ls__v_layout_describe(group, work);
    }
    work->by_message = ls__operation_is_p2p(args->operation);
}
