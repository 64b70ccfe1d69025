/* SPDX-License-Identifier: Apache-2.0 */
/* Storms: random operations of all kinds and sizes, on private and registered memory, on several
 * groups from several threads, some waited for at once and some in random order, compared bit for
 * bit with a plain loop in the canonical association. The same while ranks are stopped and go on at
 * random, and with a rank killed, when all others must end soon and report the same. TEST_LONG=1
 * runs minutes of it, TEST_SEED repeats one. */
#include "test.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <lockstep/comm.h>

#include "random.h"

enum { RANKS_MAX = 8, THREADS = 3, CHECKED = 600 };

#ifdef __SANITIZE_THREAD__ /* ten times slower, and over TCP at its deadline on a busy machine */
enum { ROUNDS = 50 };
#else
enum { ROUNDS = 150 };
#endif

/* In flight at a time: few large operations, and more small ones than the small stage has slots. */
enum { LARGE_FLIGHTS = 4, FLIGHTS = 28, LARGE_ELEMENTS = 1 << 18, SMALL_ELEMENTS = 1 << 12 };

typedef struct shared { /* with all ranks and with who disturbs them */
    uint64_t seed;
    int ranks, rounds;
    _Atomic int pid[RANKS_MAX];
    _Atomic int begun, over;
    int victim; /* -1: nobody is killed */
    _Atomic int killed;
    double killed_at;
    double ended[RANKS_MAX];
    int status[RANKS_MAX][THREADS];
    char text[RANKS_MAX][THREADS][1024];
} shared;

/* ---- one operation ------------------------------------------------------------------------ */

typedef enum kind {
    REDUCE, /* for all */
    DIVIDED,
    DOUBLED, /* by messages, between operations that are not */
    SCATTER,
    GATHER,
    BROADCAST,
    BINOMIAL,
    TO_ROOT, /* reduce */
    COLLECT, /* gather */
    DEAL,    /* scatter */
    BARRIER,
    TRADE,  /* all_to_all */
    PREFIX, /* scan */
    BEFORE, /* exscan */
    MANY,   /* two halves, backwards */
    UNEVEN, /* all_gather_v: odd ranks give something */
    EXCHANGE,
    KINDS
} kind;

typedef struct flight {
    uint64_t id; /* 0: none */
    kind kind;
    int root, distance;
    int64_t count;
    float *in, *out; /* in use */
    float *private[2], *registered[2];
    ls_work *work, *other; /* other: of the receive */
} flight;

typedef struct player { /* a thread of a rank with a group of its own */
    shared *shared;
    ls_runtime *runtime;
    ls_group *group;
    int index, rank, size;
    uint64_t common, own; /* random states: the same on all ranks; of this one */
    flight flight[FLIGHTS];
    ls_status status;
} player;

static int64_t draw_count(player *p)
{
    const uint64_t h = draw(&p->common);
    return (int64_t)(h % ((uint64_t)1 << (h >> 32) % 19)); /* all magnitudes alike */
}

static int64_t in_count(const player *p, const flight *f)
{
    return f->kind == SCATTER || f->kind == DEAL || f->kind == TRADE ? f->count * p->size
           : f->kind == BARRIER                                      ? 0
                                                                     : f->count;
}

static int64_t out_count(const player *p, const flight *f)
{
    const bool none = ((f->kind == TO_ROOT || f->kind == COLLECT) && p->rank != f->root) ||
                      (f->kind == BEFORE && p->rank == 0);
    const bool blocks =
        f->kind == GATHER || f->kind == COLLECT || f->kind == TRADE || f->kind == UNEVEN;
    return blocks && !none ? f->count * p->size : none || f->kind == BARRIER ? 0 : f->count;
}

static bool in_place(const flight *f)
{
    return f->kind == REDUCE || f->kind == DIVIDED || f->kind == DOUBLED || f->kind == BROADCAST ||
           f->kind == BINOMIAL || f->kind == MANY;
}

/* The next operation of the group, the same on all ranks. */
static flight plan(player *p)
{
    flight f = {.id = draw(&p->common) | 1};
    f.kind = (kind)(draw(&p->common) % KINDS);
    f.count = draw_count(p);
    if (f.kind == SCATTER || f.kind == GATHER || f.kind == COLLECT || f.kind == DEAL ||
        f.kind == TRADE || f.kind == UNEVEN) {
        f.count /= p->size;
    }
    f.root = f.distance = (int)(draw(&p->common) % (uint64_t)p->size);
    return f;
}

static flight *place_for(player *p, const flight *f)
{
    const bool large = f->count * p->size > SMALL_ELEMENTS;
    const uint64_t h = draw(&p->own);
    return &p->flight[large ? h % LARGE_FLIGHTS : LARGE_FLIGHTS + h % (FLIGHTS - LARGE_FLIGHTS)];
}

static void prepare_flight(player *p, flight *f, const flight *drawn)
{
    const uint64_t how = draw(&p->own);
    f->id = drawn->id;
    f->kind = drawn->kind;
    f->count = drawn->count;
    f->root = drawn->root;
    f->distance = drawn->distance;
    f->in = how & 1 ? f->private[0] : f->registered[0];
    f->out = how & 2 ? f->private[1] : f->registered[1];
    if ((how & 4) != 0 && f->count * p->size + 3 < SMALL_ELEMENTS) { /* on no cache line's border */
        f->in += 1 + (how >> 3 & 1);
        f->out += 1 + (how >> 4 & 1);
    }
    f->out =
        in_place(f) || (f->kind >= TRADE && f->kind <= BEFORE && (how & 32) != 0) ? f->in : f->out;
    for (int64_t i = 0; i < in_count(p, f); i++) {
        f->in[i] = value_of(f->id, p->rank, i);
    }
}

static float wanted(const player *p, const flight *f, int64_t i)
{
    switch (f->kind) {
    case REDUCE:
    case MANY:
    case TO_ROOT:
        return tree(f->id, i, 0, p->size);
    case PREFIX:
    case BEFORE:
        return tree(f->id, i, 0, p->rank + (f->kind == PREFIX));
    case TRADE:
        return value_of(f->id, (int)(i / f->count), p->rank * f->count + i % f->count);
    case UNEVEN: /* of even ranks nothing comes */
        return i / f->count % 2 == 0 ? f->out[i]
                                     : value_of(f->id, (int)(i / f->count), i % f->count);
    case DIVIDED:
    case DOUBLED:
        return tree(f->id, i, 0, p->size) / 3.0f;
    case SCATTER:
        return tree(f->id, p->rank * f->count + i, 0, p->size);
    case GATHER:
    case COLLECT:
        return value_of(f->id, (int)(i / f->count), i % f->count);
    case BROADCAST:
    case BINOMIAL:
        return value_of(f->id, f->root, i);
    case DEAL:
        return value_of(f->id, f->root, p->rank * f->count + i);
    default: /* EXCHANGE */
        return value_of(f->id, (p->rank + p->size - f->distance) % p->size, i);
    }
}

static ls_status start_rooted(player *p, flight *f)
{
    switch (f->kind) {
    case TO_ROOT:
        return ls_reduce(p->group, f->in, f->out, f->count, LS_FLOAT32, LS_SUM, f->root, NULL,
                         &f->work);
    case COLLECT:
        return ls_gather(p->group, f->in, f->out, f->count, LS_FLOAT32, f->root, NULL, &f->work);
    case DEAL:
        return ls_scatter(p->group, f->in, f->out, f->count, LS_FLOAT32, f->root, NULL, &f->work);
    default:
        return ls_broadcast(
            p->group, f->out, f->count, LS_FLOAT32, f->root,
            LS_OPTIONS(ls_collective_options, .algorithm = f->kind == BINOMIAL ? "binomial" : NULL),
            &f->work);
    }
}

static ls_status start_others(player *p, flight *f)
{
    const int64_t count = f->count, half = count / 2;
    void *const halves[] = {f->out + half, f->out};
    const int64_t lengths[] = {count - half, half};
    int64_t given[RANKS_MAX], places[RANKS_MAX];
    for (int r = 0; r < RANKS_MAX; r++) {
        given[r] = r % 2 == 1 ? count : 0;
        places[r] = r * count;
    }
    switch (f->kind) {
    case TRADE:
        return ls_all_to_all(p->group, f->in, f->out, count, LS_FLOAT32, NULL, &f->work);
    case PREFIX:
        return ls_scan(p->group, f->in, f->out, count, LS_FLOAT32, LS_SUM, NULL, &f->work);
    case BEFORE:
        return ls_exscan(p->group, f->in, f->out, count, LS_FLOAT32, LS_SUM, NULL, &f->work);
    case MANY:
        return ls_all_reduce_many(p->group, halves, lengths, 2, LS_FLOAT32, LS_SUM, NULL, &f->work);
    default:
        return ls_all_gather_v(p->group, f->in, given[p->rank], f->out, given, places, LS_FLOAT32,
                               NULL, &f->work);
    }
}

static ls_status start(player *p, flight *f)
{
    const int to = (p->rank + f->distance) % p->size;
    const int from = (p->rank + p->size - f->distance) % p->size;
    const int tag = (int)(f->id >> 40);
    f->work = f->other = NULL;
    if (f->kind >= BROADCAST && f->kind < BARRIER) {
        return start_rooted(p, f);
    }
    if (f->kind >= TRADE && f->kind < EXCHANGE) {
        return start_others(p, f);
    }
    switch (f->kind) {
    case REDUCE:
    case DIVIDED:
    case DOUBLED:
        return ls_all_reduce(
            p->group, f->out, f->out, f->count, LS_FLOAT32, LS_SUM,
            LS_OPTIONS(ls_collective_options, .divisor = f->kind == REDUCE ? 0 : 3,
                       .algorithm = f->kind == DOUBLED ? "recursive_doubling" : NULL),
            &f->work);
    case SCATTER:
        return ls_reduce_scatter(p->group, f->in, f->out, f->count, LS_FLOAT32, LS_SUM, NULL,
                                 &f->work);
    case GATHER:
        return ls_all_gather(p->group, f->in, f->out, f->count, LS_FLOAT32, NULL, &f->work);
    case BARRIER:
        return ls_barrier(p->group, NULL, draw(&p->own) % 2 ? &f->work : NULL);
    default: {
        const ls_status sent =
            ls_send(p->group, f->in, f->count, LS_FLOAT32, to, tag, NULL, &f->work);
        return sent != LS_OK
                   ? sent
                   : ls_recv(p->group, f->out, f->count, LS_FLOAT32, from, tag, NULL, &f->other);
    }
    }
}

static void check_result(const player *p, const flight *f)
{
    const int64_t count = out_count(p, f);
    const int64_t step = count / CHECKED + 1;
    for (int64_t i = 0; i < count; i += i + step < count || i == count - 1 ? step : 1) {
        const float want = wanted(p, f, i);
        if (memcmp(&f->out[i], &want, sizeof want) != 0) {
            test_fail(__FILE__, __LINE__,
                      "kind %d of %lld elements on group %d of %d: element %lld is %.9g, want %.9g",
                      f->kind, (long long)f->count, p->index, p->size, (long long)i,
                      (double)f->out[i], (double)want);
        }
    }
}

static void keep_error(player *p, ls_status status)
{
    const int rank = ls_rank();
    if (p->status == LS_OK && status != LS_OK) {
        p->status = status;
        p->shared->status[rank][p->index] = status;
        snprintf(p->shared->text[rank][p->index], sizeof p->shared->text[0][0], "%s",
                 ls_error_message());
    }
}

static void land(player *p, flight *f)
{
    ls_status status = f->work != NULL ? ls_work_wait(f->work) : LS_OK;
    if (f->other != NULL) {
        const ls_status received = ls_work_wait(f->other);
        status = status == LS_OK ? received : status;
    }
    keep_error(p, status);
    if (p->status == LS_OK) {
        check_result(p, f);
    }
    f->id = 0;
}

/* ---- a thread ----------------------------------------------------------------------------- */

static void dawdle(player *p)
{
    if (draw(&p->own) % 32 == 0) {
        usleep((useconds_t)(draw(&p->own) % 2000));
    }
}

static void play(player *p)
{
    for (int round = 0; round < p->shared->rounds && p->status == LS_OK; round++) {
        const flight drawn = plan(p);
        flight *f = place_for(p, &drawn);
        if (f->id != 0) {
            land(p, f);
        }
        if (p->status == LS_OK) {
            prepare_flight(p, f, &drawn);
            keep_error(p, start(p, f));
        }
        if (p->status == LS_OK && draw(&p->own) % 8 == 0) {
            land(p, f);
        }
        dawdle(p);
        if (round == 10) {
            atomic_fetch_add(&p->shared->begun, 1);
        }
    }
    for (int i = 0; i < FLIGHTS; i++) {
        if (p->flight[i].id != 0) {
            land(p, &p->flight[i]);
        }
    }
}

static void *play_main(void *arg)
{
    player *p = arg;
    CHECK_OK(ls_runtime_attach(p->runtime));
    play(p);
    (void)ls_runtime_attach(NULL);
    return NULL;
}

static void *memory(size_t bytes)
{
    void *p = malloc(bytes);
    CHECK(p != NULL);
    return p;
}

/* Group 0: all ranks. Group 1: in another order. Group 2: the odd and the even ranks. */
static void make_group(player *p)
{
    int ranks[RANKS_MAX], count = 0;
    const int n = ls_world_size(), parity = p->index == 2 ? ls_rank() % 2 : 0;
    for (int half = 0; half < 2 && p->index == 2; half++) {
        ls_group *made = NULL;
        count = 0;
        for (int r = half; r < n; r += 2) {
            ranks[count++] = r;
        }
        if (count > 0) {
            CHECK_OK(ls_group_new(ls_world(), ranks, count, "half", &made));
        }
        p->group = half == parity ? made : p->group;
    }
    for (int r = 0; r < n && p->index != 2; r++) {
        ranks[count++] = p->index == 0 ? r : n - 1 - r;
    }
    if (p->index != 2) {
        CHECK_OK(ls_group_new(ls_world(), ranks, count, NULL, &p->group));
    }
    p->rank = ls_group_rank(p->group);
    p->size = ls_group_size(p->group);
    p->common = ls__splitmix64(p->shared->seed + (uint64_t)(p->index * 2 + parity));
    p->own = ls__splitmix64(p->common ^ ls__splitmix64((uint64_t)ls_rank()));
}

static void prepare(player *p, shared *s, int index)
{
    *p = (player){.shared = s, .runtime = ls_runtime_current(), .index = index};
    make_group(p);
    for (int i = 0; i < FLIGHTS; i++) {
        for (int k = 0; k < 2; k++) {
            const size_t bytes =
                (i < LARGE_FLIGHTS ? LARGE_ELEMENTS : SMALL_ELEMENTS) * sizeof(float);
            void *registered = NULL;
            p->flight[i].private[k] = memory(bytes);
            CHECK_OK(ls_group_alloc(p->group, bytes, &registered));
            p->flight[i].registered[k] = registered;
        }
    }
}

static void clean_up(player *p)
{
    for (int i = 0; i < FLIGHTS; i++) {
        for (int k = 0; k < 2; k++) {
            free(p->flight[i].private[k]);
            CHECK_OK(ls_group_dealloc(p->group, p->flight[i].registered[k]));
        }
    }
    const ls_status status = ls_group_free(p->group);
    CHECK(p->shared->victim >= 0 || status == LS_OK);
}

static int rank_main(void *arg)
{
    shared *s = arg;
    static player players[THREADS];
    pthread_t thread[THREADS];
    CHECK_OK(ls_init(NULL));
    for (int t = 0; t < THREADS; t++) {
        prepare(&players[t], s, t);
    }
    atomic_store(&s->pid[ls_rank()], getpid());
    for (int t = 1; t < THREADS; t++) {
        CHECK(pthread_create(&thread[t], NULL, play_main, &players[t]) == 0);
    }
    play(&players[0]);
    for (int t = 1; t < THREADS; t++) {
        CHECK(pthread_join(thread[t], NULL) == 0);
    }
    s->ended[ls_rank()] = ls_time();
    for (int t = 0; t < THREADS; t++) {
        clean_up(&players[t]);
        CHECK(s->victim >= 0 || players[t].status == LS_OK);
    }
    CHECK_OK(ls_finalize());
    return 0;
}

/* ---- who disturbs ------------------------------------------------------------------------- */

static void stop_and_go(shared *s, uint64_t *random)
{
    const int pid = atomic_load(&s->pid[draw(random) % (uint64_t)s->ranks]);
    usleep((useconds_t)(draw(random) % 5000));
    if (pid > 0) {
        kill(pid, SIGSTOP);
        usleep((useconds_t)(draw(random) % 20000));
        kill(pid, SIGCONT);
    }
}

static void kill_one(shared *s, uint64_t *random)
{
    /* a group of one rank begins without the victim */
    while ((atomic_load(&s->begun) == 0 || atomic_load(&s->pid[s->victim]) == 0) &&
           !atomic_load(&s->over)) {
        usleep(200);
    }
    usleep((useconds_t)(draw(random) % 20000));
    const int pid = atomic_load(&s->pid[s->victim]);
    if (pid > 0 && !atomic_load(&s->over)) {
        s->killed_at = ls_time();
        atomic_store(&s->killed, kill(pid, SIGKILL) == 0);
    }
}

static pid_t disturb(shared *s, bool stops)
{
    const pid_t helper = fork();
    CHECK(helper >= 0);
    if (helper == 0) {
        uint64_t random = s->seed ^ 77;
        if (s->victim >= 0) {
            kill_one(s, &random);
        }
        while (stops && !atomic_load(&s->over)) {
            stop_and_go(s, &random);
        }
        _exit(0);
    }
    return helper;
}

static shared *shared_new(void)
{
    shared *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(s != MAP_FAILED);
    return s;
}

static bool is_long(void)
{
    return getenv("TEST_LONG") != NULL;
}

static void storm(int ranks, int rounds, bool stops, uint64_t seed)
{
    shared *s = shared_new();
    s->seed = seed;
    s->ranks = ranks;
    s->rounds = rounds;
    s->victim = -1;
    const pid_t helper = disturb(s, stops);
    const ls_status status = ls_spawn(rank_main, s, ranks);
    atomic_store(&s->over, 1);
    CHECK(waitpid(helper, NULL, 0) == helper);
    CHECK_OK(status);
    CHECK(munmap(s, sizeof *s) == 0);
}

TEST(random_operations_have_the_bits_of_the_tree)
{
    for (int n = 1; n <= RANKS_MAX; n++) {
        storm(n, ROUNDS, false, test_seed() + (uint64_t)n);
    }
}

TEST(random_operations_survive_ranks_that_stop_and_go_on)
{
    for (int n = 2; n <= RANKS_MAX; n += 3) {
        storm(n, ROUNDS, true, test_seed() + (uint64_t)n);
    }
}

TEST_OF(a_long_storm, 0, 600)
{
    if (!is_long()) {
        SKIP("TEST_LONG=1 runs it");
    }
    const double begin = ls_time();
    for (uint64_t i = 0; ls_time() - begin < 240; i++) {
        storm(2 + (int)(i % 7), 500, i % 3 == 2, test_seed() + 1000 * i);
    }
}

/* ---- kills -------------------------------------------------------------------------------- */

static void check_survivors(const shared *s)
{
    const char *text = NULL;
    for (int r = 0; r < s->ranks; r++) {
        for (int t = 0; t < THREADS && r != s->victim; t++) {
            const bool finished = s->status[r][t] == LS_OK; /* all its operations came through */
            CHECK(finished || s->status[r][t] == LS_ERR_PEER);
            text = text == NULL && !finished ? s->text[r][t] : text;
            if (!finished && strcmp(text, s->text[r][t]) != 0) {
                test_fail(__FILE__, __LINE__, "rank %d reports \"%s\", another \"%s\"", r,
                          s->text[r][t], text);
            }
        }
        if (r != s->victim && !test_is_within(s->ended[r] - s->killed_at, 1)) {
            test_fail(__FILE__, __LINE__, "rank %d ended %.3f s after the kill", r,
                      s->ended[r] - s->killed_at);
        }
    }
    if (text != NULL) {
        CHECK_CONTAINS(text, "was killed by signal 9 (SIGKILL)");
    }
}

static void kill_storm(int ranks, uint64_t seed)
{
    shared *s = shared_new();
    s->seed = seed;
    s->ranks = ranks;
    s->rounds = 1000000;
    s->victim = (int)(ls__splitmix64(seed) % (uint64_t)ranks);
    const pid_t helper = disturb(s, false);
    const ls_status status = ls_spawn(rank_main, s, ranks);
    const double ended = ls_time();
    atomic_store(&s->over, 1);
    CHECK(waitpid(helper, NULL, 0) == helper);
    CHECK(atomic_load(&s->killed));
    CHECK_STATUS(status, LS_ERR_PEER);
    CHECK_WITHIN(ended - s->killed_at, 1.5);
    check_survivors(s);
    for (int r = 0; r < ranks; r++) {
        const int pid = atomic_load(&s->pid[r]);
        CHECK(pid == 0 || kill(pid, 0) != 0); /* nobody is left */
    }
    CHECK(munmap(s, sizeof *s) == 0);
}

TEST_OF(a_kill_at_any_moment_is_reported_alike_and_soon, 0, 600)
{
    const int times = is_long() ? 200 : 8;
    for (int i = 0; i < times; i++) {
        kill_storm(2 + i % 5, test_seed() + (uint64_t)i);
    }
}

TEST_MAIN
