/* Timing, deciding and sharing, as operations of the group:
 *
 *     broadcast of rank 0's table ▸ if it knows nothing: small ones ▸ longest times ▸ middle ones ▸
 *     longest times ▸ large ones ▸ longest times ▸ broadcast of the table rank 0 has made of them
 *
 * All are queued in one go, since the user may have queued more behind; those that turn out not to
 * be needed are skipped, by all ranks alike. All name an algorithm of messages: data that travels
 * with the announcement would leave before it is there. A rank takes the median of its times of an
 * operation, the group the greatest of these.
 *
 * Note [No idle moment]
 * A rank cannot know without asking that the others are idle, but all of them know a place in the
 * queue, and no other operation of the group runs beside it. So the timing operations follow the
 * user's 8th. They take 10 to 100 ms once for a layout of ranks and hosts, up to a second on slow
 * links (a class of sizes is cut to 0.3 s: first fewer turns, then fewer programs). They have
 * numbers of their own, so reports and counters show the user's operations only.
 */
#include "comm/tune/run.h"

#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/options.h"
#include "comm/api/collective.h"
#include "comm/engine/progress_lock.h"
#include "comm/group/group.h"
#include "comm/memory/control.h"
#include "comm/remote/remote.h"
#include "comm/tune/cache.h"
#include "comm/tune/tune.h"

#define LONGEST_NS 300e6 /* that a class may be expected to take */
#define HOPELESS 3.0     /* so much slower than the best one: not timed at larger sizes */
#define TIMES_MAX 7
static const int times[LS__TUNE_CLASSES] = {7, 5, 5, 3}; /* how often each is timed, at most */
#define LEFT_MIN 2                                       /* programs worth timing */
#define TIMINGS (LS__TUNE_CLASSES * LS__TUNE_TIMED_MAX)
#define BUFFER_BYTES ((size_t)ls__tune_bytes[LS__TUNE_CLASSES - 1])

typedef struct slot { /* what a callback is given */
    struct ls__tuning *tuning;
    int index;
} slot;

struct ls__tuning {
    ls_group *group;
    ls__layout layout;
    ls__tune_table wire;  /* token: sent by rank 0, received by others */
    ls__tune_table table; /* token: in use */
    uint64_t queued;      /* lock: number of the first operation of the tuner; 0: not yet */
    uint64_t last;        /* lock: of the last one */
    /* Of the first table, of the second. Written by the token's holder when it comes; read under
     * the lock for operations so much later that all ranks have finished it (Note [Deciding]). */
    _Atomic int32_t one_shot[2];
    bool measuring; /* token: nothing was known */
    bool stopped;   /* token: all is timed, or what is left would take too long */
    uint64_t began_ns;
    ls__timings timings;
    double sample[TIMINGS][TIMES_MAX]; /* this rank's, sorted */
    int samples[TIMINGS];
    double ns[TIMINGS]; /* by class, then algorithm: this rank's median, then the longest of all */
    bool hopeless[LS__TUNE_TIMED_MAX];
    int turns; /* of the class under way: less than `times` where links are slow */
    slot slots[TIMINGS + LS__TUNE_CLASSES];
    float *buffer; /* of the largest class */
};

static ls__layout layout_of(const ls_group *group)
{
    ls__layout layout = {.size = group->size};
    if (layout.size > LS__TUNE_RANKS_MAX) {
        layout.size = LS__TUNE_RANKS_MAX;
    }
    /* Hosts are numbered as they come, so that equal layouts look equal. */
    int host[LS__TUNE_RANKS_MAX];
    for (int r = 0, next = 0; r < layout.size; r++) {
        host[r] = ls__comm_host_of(group->comm, group->member[r].world_rank);
        layout.host[r] = -1;
        for (int s = 0; s < r && layout.host[r] < 0; s++) {
            layout.host[r] = host[s] == host[r] ? layout.host[s] : -1;
        }
        layout.host[r] = layout.host[r] < 0 ? next++ : layout.host[r];
    }
    return layout;
}

ls_status ls__tuning_open(ls_group *group)
{
    ls__comm *comm = group->comm;
    ls__tuning *t = comm->env->allocate(comm->env, sizeof *t);
    if (t == NULL) {
        return ls__fail(LS_ERR_MEMORY, "no memory for a group of %d ranks", group->size);
    }
    memset(t, 0, sizeof *t);
    t->group = group;
    group->tuning = t;
    return LS_OK;
}

static void release_buffer(ls__tuning *t)
{
    const ls__env *env = t->group->comm->env;
    if (t->buffer != NULL) {
        env->release(env, t->buffer, BUFFER_BYTES);
        t->buffer = NULL;
    }
}

void ls__tuning_close(ls_group *group)
{
    const ls__env *env = group->comm->env;
    if (group->tuning != NULL) {
        release_buffer(group->tuning);
        env->release(env, group->tuning, sizeof *group->tuning);
        group->tuning = NULL;
    }
}

void ls__tuning_join(ls_group *group)
{
    if (group->tuning != NULL && !group->has_remote) {
        ls__tuning_close(group);
    }
    if (group->tuning != NULL) {
        group->tuning->layout = layout_of(group);
    }
}

/* ---- what follows when an operation ends (token) ------------------------------------------ */

static uint64_t now(const ls__tuning *t)
{
    return t->group->comm->env->now_ns(t->group->comm->env);
}

static void adopt(ls__tuning *t, int which)
{
    char text[1024];
    ls__text out = {.at = text, .room = sizeof text};
    t->table = t->wire;
    atomic_store_explicit(&t->one_shot[which], t->table.one_shot, memory_order_relaxed);
    if (t->group->rank == 0) {
        text[0] = '\0';
        ls__tune_print(&t->table, &out);
        LS__INFO("group \"%s\" uses, by bytes (%s):\n%s", t->group->name,
                 which == 0 ? "as measured before" : "measured now", text);
    }
}

static void table_came(void *arg, ls_status status)
{
    ls__tuning *t = arg;
    if (status != LS_OK) {
        return;
    }
    t->measuring = t->wire.known == 0;
    t->turns = times[0];
    if (!t->measuring) {
        adopt(t, 0);
        release_buffer(t);
    }
    t->began_ns = now(t);
}

static void second_came(void *arg, ls_status status)
{
    ls__tuning *t = arg;
    if (status == LS_OK && t->measuring) {
        if (t->wire.known != 0) {
            adopt(t, 1);
        }
        t->measuring = false;
        release_buffer(t);
    }
}

static bool needed(const slot *s)
{
    const ls__tuning *t = s->tuning;
    return t->measuring && !t->stopped &&
           (s->index >= TIMINGS ||
            (!t->hopeless[s->index % LS__TUNE_TIMED_MAX] && t->samples[s->index] < t->turns));
}

static void note_sample(ls__tuning *t, int index, double ns)
{
    double *sorted = t->sample[index];
    int at = t->samples[index]++;
    for (; at > 0 && sorted[at - 1] > ns; at--) {
        sorted[at] = sorted[at - 1];
    }
    sorted[at] = ns;
    t->ns[index] = sorted[t->samples[index] / 2];
}

static void timed(void *arg, ls_status status)
{
    const slot *s = arg;
    ls__tuning *t = s->tuning;
    if (status != LS_OK || !needed(s)) {
        return;
    }
    const uint64_t at = now(t);
    const double ns = (double)(at - t->began_ns);
    note_sample(t, s->index, ns > 1 ? ns : 1);
    t->began_ns = at;
}

static void conclude(ls__tuning *t)
{
    const ls__comm *comm = t->group->comm;
    for (int i = 0; i < TIMINGS; i++) {
        t->timings.of[i % LS__TUNE_TIMED_MAX].ns[i / LS__TUNE_TIMED_MAX] = t->ns[i];
    }
    if (ls__tune_decide(&t->layout, &t->timings, comm->env, &t->wire) != LS_OK) {
        t->wire.known = 0; /* out of memory: everybody keeps the default */
        return;
    }
    ls__tune_keep(comm, &t->layout, &t->timings);
}

/* The slowest that may still be left out; -1: none. Never the one that puts least on a link: where
 * bytes are few they may hide in buffers on the way, and larger sizes show what they cost. */
static int slowest(const ls__tuning *t, const double *ns)
{
    int thrifty = 0, found = -1;
    for (int i = 1; i < t->timings.count; i++) {
        thrifty = t->timings.of[i].counts.of[LS__COST_LINK] <
                          t->timings.of[thrifty].counts.of[LS__COST_LINK]
                      ? i
                      : thrifty;
    }
    for (int i = 0; i < t->timings.count; i++) {
        const bool may = !t->hopeless[i] && i != thrifty;
        found = may && (found < 0 || ns[i] > ns[found]) ? i : found;
    }
    return found;
}

/* Notes who is not timed at the next class: who is too slow, and if that is not enough to keep
 * within LONGEST_NS, the slowest of the others. Returns how often the rest is timed; 0: no more.
 * Small operations mostly wait, the others mostly carry bytes. */
static int turns_ahead(ls__tuning *t, int class)
{
    const double *ns = &t->ns[class * LS__TUNE_TIMED_MAX];
    const double grows =
        class == 0 ? 1 : (double)(ls__tune_bytes[class + 1] / ls__tune_bytes[class]);
    double least = 0, once = 0;
    int left = 0;
    for (int i = 0; i < t->timings.count; i++) {
        least = ns[i] > 0 && (least == 0 || ns[i] < least) ? ns[i] : least;
    }
    for (int i = 0; i < t->timings.count; i++) {
        t->hopeless[i] = t->hopeless[i] || (class > 0 && ns[i] > HOPELESS * least);
        once += t->hopeless[i] ? 0 : ns[i] * grows;
        left += t->hopeless[i] ? 0 : 1;
    }
    for (int i = slowest(t, ns); once > LONGEST_NS && left > LEFT_MIN && i >= 0;
         i = slowest(t, ns)) {
        t->hopeless[i] = true;
        once -= ns[i] * grows;
        left--;
    }
    const double turns = once > 0 ? LONGEST_NS / once : times[class + 1];
    return turns < times[class + 1] ? (int)turns : times[class + 1];
}

/* The longest times of a class are known to all: all go on alike. */
static void class_came(void *arg, ls_status status)
{
    const slot *s = arg;
    ls__tuning *t = s->tuning;
    const int class = s->index - TIMINGS;
    if (status != LS_OK || !needed(s)) {
        return;
    }
    t->turns = class + 1 < LS__TUNE_CLASSES ? turns_ahead(t, class) : 0;
    t->stopped = t->turns == 0;
    if (t->stopped && t->group->rank == 0) {
        conclude(t);
    }
    t->began_ns = now(t);
}

/* ---- queueing (lock) ---------------------------------------------------------------------- */

static ls_status queue(ls_group *group, ls__collective args, ls__tuner_part part,
                       const char *algorithm)
{
    args.tuner = (uint8_t)part;
    return ls__collective_queue(
        group, &args, LS_OPTIONS(ls_collective_options, .algorithm = algorithm, .tag = "tuning"));
}

static ls_status queue_table(ls__tuning *t, ls__tuner_part part,
                             void (*done)(void *arg, ls_status status))
{
    return queue(t->group,
                 (ls__collective){.operation = LS__OP_BROADCAST,
                                  .input = &t->wire,
                                  .output = &t->wire,
                                  .count = sizeof t->wire,
                                  .dtype = LS_UINT8,
                                  .done = done,
                                  .arg = t},
                 part, "binomial");
}

static ls_status queue_timed(ls__tuning *t, int index)
{
    return queue(t->group,
                 (ls__collective){.operation = LS__OP_ALL_REDUCE,
                                  .input = t->buffer,
                                  .output = t->buffer,
                                  .count = ls__tune_bytes[index / LS__TUNE_TIMED_MAX] /
                                           (int64_t)sizeof(float),
                                  .dtype = LS_FLOAT32,
                                  .op = LS_SUM,
                                  .done = timed,
                                  .arg = &t->slots[index]},
                 LS__TUNER_TIMED, t->timings.of[index % LS__TUNE_TIMED_MAX].algorithm->name);
}

static ls_status queue_class(ls__tuning *t, int class)
{
    for (int i = 0; i < times[class] * t->timings.count; i++) {
        LS_TRY(queue_timed(t, class * LS__TUNE_TIMED_MAX + i % t->timings.count));
    }
    double *ns = &t->ns[class * LS__TUNE_TIMED_MAX];
    return queue(t->group,
                 (ls__collective){.operation = LS__OP_ALL_REDUCE,
                                  .input = ns,
                                  .output = ns,
                                  .count = LS__TUNE_TIMED_MAX,
                                  .dtype = LS_FLOAT64,
                                  .op = LS_MAX,
                                  .done = class_came,
                                  .arg = &t->slots[TIMINGS + class]},
                 LS__TUNER_TIMED, "recursive_doubling");
}

ls_status ls__tuning_queue(ls_group *group)
{
    ls__tuning *t = group->tuning;
    const ls__env *env = group->comm->env;
    t->buffer = env->allocate(env, BUFFER_BYTES);
    if (t->buffer == NULL) {
        return LS_ERR_MEMORY;
    }
    memset(t->buffer, 0, BUFFER_BYTES);
    LS_TRY(ls__timings_init(&t->timings, &t->layout, env));
    for (int i = 0; i < TIMINGS + LS__TUNE_CLASSES; i++) {
        t->slots[i] = (slot){.tuning = t, .index = i};
    }
    if (group->rank == 0) {
        ls__timings known = t->timings;
        if (!ls__tune_known(group->comm, &t->layout, &known) ||
            ls__tune_decide(&t->layout, &known, env, &t->wire) != LS_OK) {
            t->wire.known = 0;
        }
    }
    t->queued = group->sequence + 1;
    LS_TRY(queue_table(t, LS__TUNER_FIRST, table_came));
    for (int c = 0; c < LS__TUNE_CLASSES; c++) {
        LS_TRY(queue_class(t, c));
    }
    LS_TRY(queue_table(t, LS__TUNER_SECOND, second_came));
    t->last = group->sequence;
    return LS_OK;
}

/* ---- what the engine asks ----------------------------------------------------------------- */

bool ls__tuning_skips(const ls_group *group, const ls_work *work)
{
    const ls__tuning *t = group->tuning;
    return (work->tuner == LS__TUNER_TIMED && !needed(work->arg)) ||
           (work->tuner == LS__TUNER_SECOND && !t->measuring);
}

const ls__algorithm *ls__tuning_find(const ls_group *group, const ls_work *work)
{
    const ls__tuning *t = group->tuning;
    if (t == NULL || t->table.known == 0 || work->algorithm != NULL) {
        return work->algorithm;
    }
    const int64_t blocks = ls__operation_has_blocks(work->operation, true) ||
                                   ls__operation_has_blocks(work->operation, false)
                               ? group->size
                               : 1;
    return ls__tune_find(&t->table, work->operation, work->count * blocks * (int64_t)work->element);
}

bool ls__tuning_one_shot(const ls_group *group, uint64_t sequence, size_t bytes)
{
    const ls__tuning *t = group->tuning;
    const uint64_t ahead = 2 * LS__SMALL_SLOTS;
    if (t == NULL || t->queued == 0 || sequence < t->queued + ahead) {
        return true;
    }
    int32_t most = atomic_load_explicit(&t->one_shot[0], memory_order_relaxed);
    if (most == 0 && sequence >= t->last + ahead) {
        most = atomic_load_explicit(&t->one_shot[1], memory_order_relaxed);
    }
    return most == 0 || (most > 0 && bytes <= (size_t)most);
}

/* ---- what the user asks ------------------------------------------------------------------- */

const char *ls__tuning_name(ls_group *group, ls__operation operation, int64_t bytes)
{
    const char *name = "(built in)";
    if (group->tuning != NULL) {
        ls__progress_take(group->comm);
        const ls__tune_table *table = &group->tuning->table;
        const ls__algorithm *found = ls__tune_find(table, operation, bytes);
        name = bytes <= table->one_shot ? "(with announcement)"
               : found != NULL          ? found->name
                                        : name;
        ls__progress_release(group->comm);
    }
    return name;
}

ls_status ls_group_get_tuning(ls_group *group, char *out, size_t bytes)
{
    ls__comm *comm = ls__comm_get("ls_group_get_tuning");
    if (comm == NULL) {
        return ls__self.status;
    }
    if (group == NULL || out == NULL || bytes == 0) {
        (void)ls__fail(LS_ERR_INVALID,
                       "ls_group_get_tuning: %s; give a group and memory for the text",
                       group == NULL ? "the group is NULL" : "there is no memory for the text");
        return ls__fail_at_site(LS_ERR_INVALID);
    }
    ls__text text = {.at = out, .room = bytes};
    ls__text_add(&text, "%s", "");
    if (group->tuning != NULL) {
        ls__progress_take(comm);
        const ls__tune_table table = group->tuning->table;
        ls__progress_release(comm);
        ls__tune_print(&table, &text);
    }
    return LS_OK;
}
