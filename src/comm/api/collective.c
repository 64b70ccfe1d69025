/* The public operations: arguments are checked, described, numbered and handed to the engine. */
#include "comm/api/collective.h"

#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/options.h"
#include "base/size.h"
#include "comm/engine/engine.h"
#include "comm/engine/fast_path.h"
#include "comm/memory/cma.h"
#include "comm/tune/run.h"

#define OWN_TAG (-1)

/* ---- checking ----------------------------------------------------------------------------- */

static bool is_letter(ls__operation operation)
{
    return operation == LS__OP_SEND || operation == LS__OP_RECV;
}

static bool is_float(ls_dtype dtype)
{
    return dtype <= LS_BFLOAT16;
}

/* Bytes of the input and output buffers; false when they overflow. */
static bool buffer_bytes(const ls_group *group, const ls__collective *args, size_t *input,
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

/* By ls_reduce_op_new. */
static bool is_made(ls_reduce_op op)
{
    return op >= LS_REDUCE_OP_USER && op <= LS_REDUCE_OP_USER_LAST;
}

static ls_status check_reduction(const char *what, const ls_group *group,
                                 const ls__collective *args, double divisor)
{
    const bool made = is_made(args->op);
    if (made ? args->made.user.fn == NULL : (unsigned)args->op >= LS_REDUCE_OP_COUNT) {
        return ls__fail(
            LS_ERR_INVALID,
            "%s on group \"%s\": %d is no reduce-op; give LS_SUM, another of its enum or one of "
            "ls_reduce_op_new",
            what, group->name, (int)args->op);
    }
    if (!made && !ls__reduce_supported(args->dtype, args->op)) {
        return ls__fail(LS_ERR_INVALID,
                        "%s on group \"%s\": %s of %s has no meaning; averages and "
                        "premultiplied sums need numbers, bit operators integers",
                        what, group->name, ls_reduce_op_name(args->op), ls_dtype_name(args->dtype));
    }
    if (args->op == LS_AVG && ls__operation_scans(args->operation)) {
        return ls__fail(LS_ERR_INVALID,
                        "%s on group \"%s\": an average over all ranks of a sum over some has no "
                        "meaning; give LS_SUM, and a divisor if you want one",
                        what, group->name);
    }
    if (divisor != 0 && (args->op != LS_SUM || !is_float(args->dtype))) {
        return ls__fail(LS_ERR_INVALID,
                        "%s on group \"%s\": a divisor needs LS_SUM of floats, not %s of %s", what,
                        group->name, ls_reduce_op_name(args->op), ls_dtype_name(args->dtype));
    }
    return LS_OK;
}

/* Whether this rank's input (else output) counts: some exist on the root only. */
static bool uses(const ls_group *group, const ls__collective *args, bool input)
{
    if (is_letter(args->operation)) {
        return (args->operation == LS__OP_SEND) == input;
    }
    return ls__operation_uses(args->operation, input, group->rank, args->root);
}

static ls_status check_buffers(const char *what, const ls_group *group, const ls__collective *args)
{
    const bool reads = uses(group, args, true) && args->operation != LS__OP_BARRIER;
    const bool writes = uses(group, args, false) && args->operation != LS__OP_BARRIER;
    if (args->count > 0 && ((reads && args->input == NULL) || (writes && args->output == NULL))) {
        return ls__fail(
            LS_ERR_INVALID,
            "%s on group \"%s\": the buffer is NULL and count %lld; give memory, or count 0", what,
            group->name, (long long)args->count);
    }
    size_t input = 0, output = 0;
    if (ls__operation_is_v(args->operation) && args->count >= 0) {
        LS_TRY(ls__counts_check(what, group, args));
    } else if (args->count < 0 || !buffer_bytes(group, args, &input, &output)) {
        return ls__fail(LS_ERR_INVALID,
                        "%s on group \"%s\": count is %lld; it must be from 0 to "
                        "what fits in memory",
                        what, group->name, (long long)args->count);
    }
    return reads && writes ? ls__overlap_check(what, group, args) : LS_OK;
}

static ls_status check_factor(const char *what, const ls_group *group, const ls__collective *args,
                              double factor)
{
    if (args->op != LS_PREMUL_SUM || is_float(args->dtype) ||
        (factor > -9e15 && factor < 9e15 && factor == (double)(int64_t)factor)) {
        return LS_OK;
    }
    return ls__fail(LS_ERR_INVALID,
                    "%s on group \"%s\": %s are multiplied by %g; give a whole number, or floats",
                    what, group->name, ls_dtype_name(args->dtype), factor);
}

/* What keeps the order of ranks, which the user's operators may need. */
static ls_status check_order(const char *what, const ls_group *group, const ls__collective *args,
                             const char *name)
{
    const ls__algorithm *found = name != NULL ? ls__algorithm_find(args->operation, name) : NULL;
    return !ls__operation_reduces(args->operation) || !is_made(args->op) || found == NULL ||
                   found->exact
               ? LS_OK
               : ls__fail(LS_ERR_UNSUPPORTED,
                          "%s on group \"%s\": an operator of the user's is applied in the order "
                          "of ranks, which \"%s\" does not keep; use another algorithm (NULL: "
                          "chosen)",
                          what, group->name, name);
}

static ls_status check_algorithm(const char *what, const ls_group *group, ls__operation operation,
                                 const char *name)
{
    const ls__algorithm *found = name != NULL ? ls__algorithm_find(operation, name) : NULL;
    if (found != NULL && group->has_remote && (found->memories & LS__IN_MESSAGES) == 0) {
        return ls__fail(LS_ERR_UNSUPPORTED,
                        "%s on group \"%s\": algorithm \"%s\" needs memory that all members share, "
                        "but they are on several hosts; use another (NULL: chosen)",
                        what, group->name, name);
    }
    if (name == NULL || found != NULL) {
        return LS_OK;
    }
    char known[256];
    ls__algorithm_names(operation, known, sizeof known);
    return ls__fail(LS_ERR_INVALID,
                    "%s on group \"%s\": there is no algorithm \"%s\"; there is %s (NULL: chosen)",
                    what, group->name, name, known);
}

static ls_status check(const char *what, const ls_group *group, const ls__collective *args,
                       const ls_collective_options *options)
{
    if (args->operation != LS__OP_BARRIER && (unsigned)args->dtype >= LS_DTYPE_COUNT) {
        return ls__fail(
            LS_ERR_INVALID,
            "%s on group \"%s\": %d is no dtype; give LS_FLOAT32 or another of its enum", what,
            group->name, (int)args->dtype);
    }
    const bool rooted = ls__operation_has_root(args->operation) || is_letter(args->operation);
    const bool any = args->operation == LS__OP_RECV && args->root == LS_ANY_SOURCE;
    if (rooted && !any && (args->root < 0 || args->root >= group->size)) {
        return ls__fail(LS_ERR_INVALID, "%s on group \"%s\": %s %d is no rank of it; use 0 to %d",
                        what, group->name, is_letter(args->operation) ? "peer" : "root", args->root,
                        group->size - 1);
    }
    LS_TRY(check_buffers(what, group, args));
    if (ls__operation_reduces(args->operation)) {
        LS_TRY(check_reduction(what, group, args, options->divisor));
        LS_TRY(check_factor(what, group, args, options->factor));
    }
    LS_TRY(check_algorithm(what, group, args->operation, options->algorithm));
    LS_TRY(check_order(what, group, args, options->algorithm));
    if (is_letter(args->operation) && args->tag < 0) {
        return ls__fail(LS_ERR_INVALID,
                        "%s on group \"%s\": tag %d is negative; give one from 0 on", what,
                        group->name, args->tag);
    }
    if (options->stream != NULL) {
        return ls__fail(LS_ERR_UNSUPPORTED,
                        "%s on group \"%s\": streams need a device; pass stream = NULL", what,
                        group->name);
    }
    if (options->timeout_ms < 0) {
        return ls__fail(LS_ERR_INVALID,
                        "%s on group \"%s\": timeout_ms is %lld; 0 means the default", what,
                        group->name, (long long)options->timeout_ms);
    }
    return LS_OK;
}

/* ---- describing --------------------------------------------------------------------------- */

/* FNV-1a */
uint64_t ls__tag_hash(const char *text)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *text != '\0'; text++) {
        hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
    }
    return hash;
}

/* The end of a path matters, its root does not. */
static void put_tail(char *to, size_t room, const char *text)
{
    const size_t length = strlen(text);
    const char *from = length < room ? text : text + length - (room - 1);
    memcpy(to, from, strlen(from) + 1);
}

void ls__descriptor_site(ls__descriptor *d)
{
    const char *file = ls__self.file != NULL ? ls__self.file : "";
    d->line = ls__self.line;
    if (strcmp(d->file, file) != 0) { /* most calls are made where the last one was */
        put_tail(d->file, sizeof d->file, file);
    }
}

static void put_head(char *to, size_t room, const char *text)
{
    const size_t length = strnlen(text, room - 1);
    memcpy(to, text, length);
    to[length] = '\0';
}

static bool registered(const ls_group *group, const ls__collective *args, ls__descriptor *d)
{
    size_t input = 0, output = 0;
    (void)buffer_bytes(group, args, &input, &output);
    const ls__heap *heap = &group->comm->heap;
    const bool in = ls__heap_offset(heap, args->input, input, &d->input);
    const bool out = ls__heap_offset(heap, args->output, output, &d->output);
    const bool ahead = ls__operation_reads_ahead(args->operation) && args->input == args->output;
    return (in || !uses(group, args, true)) && (out || !uses(group, args, false)) && !ahead;
}

/* Private buffers that peers may read where they are; else they are staged. */
static bool readable(const ls_group *group, const ls__collective *args,
                     const ls__algorithm *algorithm, ls__descriptor *d)
{
    size_t input = 0, output = 0;
    (void)buffer_bytes(group, args, &input, &output);
    if (is_letter(args->operation) ||
        !ls__choose_reading(group, args->operation, algorithm,
                            args->count * (int64_t)ls_dtype_size(args->dtype)) ||
        (uses(group, args, true) && !ls__cma_can_show(group->comm, args->input, input))) {
        return false;
    }
    d->input = (uintptr_t)args->input;
    d->output = (uintptr_t)args->output;
    return true;
}

static ls__memory memory_of(const ls_group *group, const ls__collective *args,
                            const ls__algorithm *algorithm, ls__descriptor *d)
{
    return registered(group, args, d)            ? LS__MEMORY_REGISTERED
           : readable(group, args, algorithm, d) ? LS__MEMORY_READABLE
                                                 : LS__MEMORY_STAGED;
}

/* The algorithm asked for, by the call or else by the user's rules; NULL: to be chosen. A rule
 * that a group cannot follow, for want of shared memory, does not count there. */
static const ls__algorithm *asked_for(const ls_group *group, const ls__collective *args,
                                      const char *name)
{
    if (name != NULL) {
        return ls__algorithm_find(args->operation, name);
    }
    const ls__rules *rules = &group->comm->rules;
    if (rules->hash == 0 || args->operation >= LS__OP_COUNT) {
        return NULL;
    }
    size_t input = 0, output = 0;
    (void)buffer_bytes(group, args, &input, &output);
    const ls__algorithm *found =
        ls__rules_find(rules, args->operation, (int64_t)(input > output ? input : output));
    const bool can = found != NULL && (found->exact || !is_made(args->op)) &&
                     (!group->has_remote || (found->memories & LS__IN_MESSAGES) != 0);
    return can ? found : NULL;
}

static void describe(ls_group *group, const ls__collective *args,
                     const ls_collective_options *options, const ls__algorithm *algorithm,
                     ls__descriptor *d)
{
    const ls__comm *comm = group->comm;
    const bool letter = is_letter(args->operation);
    d->version = LS__DESCRIPTOR_VERSION;
    d->operation = (uint8_t)args->operation;
    d->reduce_op = ls__operation_reduces(args->operation) ? (uint8_t)args->op : 0xff;
    d->op_name[0] = '\0';
    d->dtype = (uint8_t)args->dtype;
    d->algorithm = algorithm != NULL ? (uint8_t)(1 + ls__algorithm_index(algorithm)) : 0;
    d->forced = (uint8_t)comm->forced;
    d->generation = comm->board->generation;
    d->group = group->id;
    d->count = args->count;
    d->root = ls__operation_has_root(args->operation) || letter ? args->root : 0;
    d->tag = !letter ? args->mark : args->own_tag ? OWN_TAG : args->tag;
    d->tag_hash = options->tag != NULL ? ls__tag_hash(options->tag) : 0;
    d->divisor = options->divisor;
    const bool v = ls__operation_is_v(args->operation); /* shown.c says where they lie */
    d->counts_hash = 0;
    d->counts_weight = 0;
    d->memory = v ? LS__MEMORY_STAGED : (uint8_t)memory_of(group, args, algorithm, d);
    d->pid = comm->runtime->pid;
    d->file[0] = '\0';
    ls__descriptor_site(d);
    put_head(d->text, sizeof d->text, options->tag != NULL ? options->tag : "");
}

void ls__collective_fill(ls_group *group, const ls__collective *args,
                         const ls_collective_options *options, ls_work *work)
{
    const ls__comm *comm = group->comm;
    const int64_t timeout_ms =
        options->timeout_ms > 0 ? options->timeout_ms : comm->runtime->timeout_ms;
    atomic_store_explicit(&work->status, LS_IN_PROGRESS, memory_order_relaxed);
    work->group = group;
    work->done = args->done;
    work->arg = args->arg;
    work->operation = args->operation;
    work->monitored = args->monitored;
    work->tuner = args->tuner;
    work->algorithm = asked_for(group, args, options->algorithm);
    work->input = args->input;
    work->output = args->output;
    work->count = args->count;
    work->element = ls_dtype_size(args->dtype);
    work->dtype = args->dtype;
    work->op =
        args->op == LS_AVG || args->op == LS_PREMUL_SUM || is_made(args->op) ? LS_SUM : args->op;
    work->pack = args->pack;
    work->channels = (uint8_t)group->channels;
    work->divisor = ls__operation_reduces(args->operation) && args->op == LS_AVG
                        ? (double)group->size
                        : options->divisor;
    work->queued_ns = comm->env->now_ns(comm->env);
    work->deadline_ns = ls__time_after(work->queued_ns, timeout_ms);
    describe(group, args, options, work->algorithm, &work->descriptor);
    if (ls__operation_reduces(args->operation) && is_made(args->op)) {
        work->user = args->made.user;
        work->descriptor.reduce_op = LS_REDUCE_OP_USER;
        memcpy(work->descriptor.op_name, args->made.name, sizeof args->made.name);
    }
    const bool v = ls__operation_is_v(args->operation);
    const bool only_messages =
        work->algorithm != NULL && (work->algorithm->memories & LS__IN_STAGED) == 0;
    work->shown = v && !only_messages && ls__v_layout_can(group);
    if (v) {
        ls__counts_fill(group, args, work);
    }
    if (work->shown) {
        ls__v_layout_describe(group, work);
    }
    const bool needs_messages =
        comm->forced == LS__WAY_MESSAGES || (v && !work->shown) || only_messages;
    const bool by_message = needs_messages && group->size > 1;
    work->way = (by_message || (v && !work->shown)) && !is_letter(args->operation)
                    ? LS__WAY_MESSAGES
                    : LS__WAY_UNDECIDED;
    work->by_message = by_message || is_letter(args->operation);
}

/* ---- submitting --------------------------------------------------------------------------- */

/* lock. Returns whether somebody must drive it now. */
static bool enqueue(ls_group *group, ls_work *work)
{
    ls__comm *comm = group->comm;
    const bool letter = is_letter(work->operation);
    work->descriptor.sequence = letter ? ++group->letters_made : ++group->sequence;
    group->tuner_operations += work->tuner != LS__TUNER_NONE ? 1 : 0;
    work->descriptor.number = work->descriptor.sequence - (letter ? 0 : group->tuner_operations);
    work->flight = ls__flight_open(comm, group, &work->descriptor, work->queued_ns);
    if (work->by_message) {
        atomic_fetch_add_explicit(&comm->by_message, 1, memory_order_seq_cst);
    }
    /* Sync: seq_cst; counted before anybody is looked for who might sleep. */
    atomic_fetch_add_explicit(&comm->pending, 1, memory_order_seq_cst);
    atomic_fetch_add_explicit(&group->pending, 1, memory_order_seq_cst);
    if (letter) {
        ls__list_push_back(&group->mail, &work->link);
        /* Sync: release; pairs with the acquire in collect_mail. */
        atomic_fetch_add_explicit(&group->mailed, 1, memory_order_seq_cst);
        return true;
    }
    ls__list_push_back(&group->queue, &work->link);
    return group->backend->submit(group, work);
}

/* The peers would wait for this rank: the group fails, so that they hear why. */
ls_status ls__collective_no_memory(ls_group *group, const ls__collective *args)
{
    char text[LS__FAILURE_MAX];
    snprintf(text, sizeof text, "%s on group \"%s\": rank %d has no memory for the operation",
             ls__operation_name(args->operation), group->name, group->comm->runtime->rank);
    ls__group_fail(group, LS_ERR_MEMORY, text);
    return ls__fail(LS_ERR_MEMORY, "%s", text);
}

ls_status ls__collective_queue(ls_group *group, const ls__collective *args,
                               const ls_collective_options *options)
{
    ls_work *work = ls__work_take(group->comm);
    if (work == NULL) {
        return LS_ERR_MEMORY;
    }
    ls__collective_fill(group, args, options, work);
    work->detached = true;
    const ls_status status = group->backend->prepare(group, work);
    if (status != LS_OK) {
        ls__work_give(group->comm, work);
        return status;
    }
    (void)enqueue(group, work);
    return LS_OK;
}

/* lock; what the tuner puts behind the user's operation. */
static ls_status queue_tuner(ls_group *group, const ls_work *work)
{
    return group->tuning != NULL && group->sequence == LS__TUNE_AT && !is_letter(work->operation)
               ? ls__tuning_queue(group)
               : LS_OK;
}

static ls_status submit(ls_group *group, const ls__collective *args,
                        const ls_collective_options *options, bool detached, ls_work **out,
                        bool *ready)
{
    ls__comm *comm = group->comm;
    ls_status status = LS_OK;
    ls__lock_take(&comm->lock, comm->env);
    const int32_t failed = atomic_load_explicit(&group->failed, memory_order_acquire);
    ls_work *work = failed == 0 ? ls__work_take(comm) : NULL;
    if (work != NULL && ls__operation_is_v(args->operation) && !ls__counts_room(comm, work)) {
        ls__work_give(comm, work);
        work = NULL;
    }
    if (work != NULL) {
        /* Peers have read these lines: they come back while the operation is described. */
        LS__PREFETCH_WRITE(ls__post_slot(group, group->rank, group->sequence + 1));
        LS__PREFETCH_WRITE(ls__small_stage(group, group->rank, group->sequence + 1));
        ls__collective_fill(group, args, options, work);
        work->detached = detached;
        status = is_letter(args->operation) ? LS_OK : group->backend->prepare(group, work);
    }
    if (work != NULL && status == LS_OK) {
        group->handles += detached ? 0 : 1;
        *ready = enqueue(group, work);
        ls__small_learn(group, args, work);
        *out = work;
        status = queue_tuner(group, work);
    } else if (work != NULL) {
        ls__work_give(comm, work);
    } else {
        status = LS_ERR_MEMORY;
    }
    ls__unlock(&comm->lock, comm->env);
    if (failed != 0) {
        return ls__fail_again((ls_status)failed, ls__group_hear(group));
    }
    return status == LS_OK ? LS_OK : ls__collective_no_memory(group, args);
}

ls_status ls__collective_start(ls_group *group, const ls__collective *args, ls_work **work)
{
    const char *what = ls__operation_name(args->operation);
    if (work != NULL) {
        *work = NULL;
    }
    ls__comm *comm = ls__comm_get(what);
    if (comm == NULL) {
        return ls__self.status;
    }
    if (group == NULL) {
        (void)ls__fail(LS_ERR_INVALID,
                       "%s: the group is NULL; a rank outside a group must not "
                       "call its operations",
                       what);
        return ls__fail_at_site(LS_ERR_INVALID);
    }
    const bool blocking = work == NULL && args->done == NULL;
    ls_status status = LS_OK;
    if (blocking && !ls__self.in_callback && ls__small_call(group, args, &status)) {
        return status;
    }
    LS_READ_OPTIONS(ls_collective_options, options, args->options, what,
                    ls__fail_at_site(LS_ERR_INVALID));
    ls_group *const handle = group;
    group = ls__turns_group(handle, is_letter(args->operation));
    ls__collective call = *args;
    if (is_made(args->op)) { /* the user may free it from now on */
        call.made = ls__operator_of(comm, args->op);
    }
    const ls_status sound = check(what, group, &call, &options);
    if (sound < 0) {
        return ls__fail_at_site(sound);
    }
    if (blocking) {
        LS_TRY(ls__work_may_wait(what));
    }
    if (ls__operation_reduces(args->operation) && args->op == LS_PREMUL_SUM) {
        LS_TRY(ls__premultiply(group, &call, options.factor));
    }
    ls__turns_pass(handle, is_letter(args->operation));
    ls_work *made = NULL;
    bool ready = false;
    status = submit(group, &call, &options, work == NULL && !blocking, &made, &ready);
    if (status != LS_OK) {
        if (call.pack != NULL && made == NULL) {
            ls__pack_give(call.pack);
        }
        return status;
    }
    if (blocking) {
        if (ready) { /* for a driver that sleeps */
            ls__ring(comm, comm->runtime->local_rank);
        }
        return ls_work_wait(made);
    }
    if (work != NULL) {
        *work = made;
    }
    ls__engine_notify(comm, ready);
    return LS_OK;
}
