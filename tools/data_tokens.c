/* SPDX-License-Identifier: Apache-2.0 */
/* Texts to shards of tokens, on several threads.
 *
 *     files, cut into chunks        threads                   this one, in order
 *     │0│1│2│3│  │4│  │5│6│  ─▶  take the next chunk  ─▶  slot  ─▶ shards
 *
 * Where a chunk begins depends on the text alone (ls__tokenizer_cut), and chunks are written in
 * their order, so the shards do not depend on the number of threads. There are more slots than
 * threads; a thread that is far ahead waits. Two words of a slot say which chunk may be put into it
 * and which chunk it contains. Sync: `turn` is stored with release by the writer when it has read
 * the slot, `done` by a thread when it has filled it; each loads the other's with acquire.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/foreign.h"
#include "data/paths.h"
#include "tokenizer/tokenizer.h"
#include "tools/data.h"

#define CHUNK_BYTES ((int64_t)1 << 20)
#define THREADS_MAX 256
#define CHUNKS_MAX (UINT32_MAX - 2 * THREADS_MAX)
#define STOPPED UINT32_MAX /* value of `turn`: the job has ended */
#define PROGRESS_MS 200
#define WAIT_MS 1000 /* a wait looks again after this time even if no thread wakes it */
#define WHAT "data tokens"

typedef struct slot {
    _Atomic uint32_t turn; /* the chunk that may be put here */
    _Atomic uint32_t done; /* 1 + the chunk that is here */
    ls__encoder encoder;   /* its result is the chunk's tokens */
    int64_t bytes;         /* of text */
    ls_status status;
    char message[LS__MESSAGE_MAX];
} slot;

typedef struct source {
    const char *path;
    int64_t bytes;      /* of the file */
    int64_t begin, end; /* the part of it that is converted, in bytes */
    uint32_t first;     /* its first chunk */
} source;

typedef struct maker {
    const tokens_job *job;
    const ls__env *env;
    ls_tokenizer *tokenizer;
    int32_t begin; /* -1: none */
    ls__paths paths;
    source *sources; /* [count]: files that are not empty */
    int count;
    uint32_t chunks;
    int64_t bytes;
    _Atomic uint32_t next; /* the chunk that the next thread takes. Sync: relaxed */
    slot *slots;           /* [2 * threads] */
    uint32_t slot_count;
    ls__env_thread *threads[THREADS_MAX];
    int thread_count;
    shards shards;
} maker;

/* ---- the texts ---------------------------------------------------------------------------- */

/* A folder stands for all files in it. */
static ls_status add_text(maker *m, const char *path)
{
    ls__env_stat stat;
    LS_TRY(ls__file_stat(m->env, WHAT, path, &stat));
    return stat.kind == LS__ENV_FOLDER ? ls__paths_find(m->env, WHAT, path, &m->paths)
                                       : ls__paths_add(&m->paths, WHAT, strdup(path));
}

/* Where the held-out part of a file begins: a place at which the tokenizer may be cut. */
static ls_status find_cut(maker *m, const char *path, int64_t *cut)
{
    ls__file file;
    LS_TRY(ls__file_map(m->env, WHAT, path, &file));
    const size_t share = (size_t)((double)file.bytes * (1.0 - m->job->held_out));
    const size_t nominal = share > 0 ? share : 1;
    *cut = (int64_t)ls__tokenizer_cut(m->tokenizer, (const char *)file.data, file.bytes, nominal,
                                      file.bytes);
    ls__file_release(m->env, &file);
    return LS_OK;
}

static ls_status check_text(const maker *m, const char *path)
{
    ls__file head;
    bool named = false;
    for (int i = 0; i < m->job->text_count; i++) {
        named = named || strcmp(m->job->texts[i], path) == 0;
    }
    LS_TRY(ls__file_read(m->env, WHAT, path, LS__FOREIGN_BYTES, &head));
    const ls_status status = ls__foreign_check_text(WHAT, path, head.data, head.bytes, named);
    ls__file_release(m->env, &head);
    return status;
}

/* Adds a file as chunks; an empty file adds none. */
static ls_status add_source(maker *m, const char *path)
{
    ls__env_stat stat;
    LS_TRY(ls__file_stat(m->env, WHAT, path, &stat));
    if (stat.kind != LS__ENV_FILE) {
        return ls__fail(LS_ERR_INVALID, WHAT ": \"%s\" is neither a file nor a folder", path);
    }
    LS_TRY(check_text(m, path));
    int64_t begin = 0, end = stat.bytes;
    if (m->job->part != TOKENS_ALL && stat.bytes > 0) {
        LS_TRY(find_cut(m, path, m->job->part == TOKENS_VAL ? &begin : &end));
    }
    const int64_t chunks = (end - begin + CHUNK_BYTES - 1) / CHUNK_BYTES;
    if (chunks > (int64_t)CHUNKS_MAX - m->chunks) {
        return ls__fail(LS_ERR_LIMIT, WHAT ": too much text; give fewer files at a time");
    }
    if (chunks > 0) {
        m->sources[m->count++] = (source){path, stat.bytes, begin, end, m->chunks};
        m->chunks += (uint32_t)chunks;
        m->bytes += end - begin;
    }
    return LS_OK;
}

/* Lists all files before the first is read, so that the number of chunks is known. */
static ls_status find_sources(maker *m)
{
    for (int i = 0; i < m->job->text_count; i++) {
        LS_TRY(add_text(m, m->job->texts[i]));
    }
    m->sources = calloc((size_t)m->paths.count + 1, sizeof *m->sources);
    if (!m->sources) {
        return ls__fail(LS_ERR_MEMORY, WHAT ": no memory");
    }
    for (int i = 0; i < m->paths.count; i++) {
        LS_TRY(add_source(m, m->paths.path[i]));
    }
    return m->count > 0
               ? LS_OK
               : ls__fail(LS_ERR_INVALID,
                          WHAT ": \"%s\"%s: there is no text; name files that are not "
                               "empty",
                          m->job->texts[0], m->job->text_count > 1 ? " and the others" : "");
}

/* The file of a chunk, by bisection over the first chunks. */
static const source *source_of(const maker *m, uint32_t chunk)
{
    int low = 0, high = m->count - 1; /* the last one whose first chunk is not after this one */
    while (low < high) {
        int middle = low + (high - low + 1) / 2;
        if (m->sources[middle].first <= chunk) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return &m->sources[low];
}

/* Finds the token that is written before each file. */
static ls_status find_begin(maker *m)
{
    const char *asked = m->job->begin;
    m->begin = -1;
    if (asked == NULL || strcmp(asked, "none") != 0) {
        m->begin = ls_tokenizer_id(m->tokenizer, asked ? asked : "<|endoftext|>");
    }
    return asked != NULL && strcmp(asked, "none") != 0 && m->begin < 0
               ? ls__fail(LS_ERR_NOT_FOUND,
                          WHAT
                          ": --begin \"%s\" is not a token of \"%s\"; give one that is, or none",
                          asked, m->job->tokenizer)
               : LS_OK;
}

/* ---- encoding ----------------------------------------------------------------------------- */

/* Encodes the chunk between two places at which the tokenizer may be cut; the file must not have
 * changed since it was listed. */
static ls_status encode_chunk(maker *m, slot *s, const source *from, const ls__file *file,
                              uint32_t chunk)
{
    const char *text = (const char *)file->data + from->begin;
    const size_t bytes = (size_t)(from->end - from->begin);
    const size_t nominal = (size_t)CHUNK_BYTES * (chunk - from->first);
    if ((int64_t)file->bytes != from->bytes) {
        return ls__fail(LS_ERR_STATE,
                        "it had %lld bytes and has %zu now; is it still being written?",
                        (long long)from->bytes, file->bytes);
    }
    size_t step = (size_t)CHUNK_BYTES;
    size_t begin = ls__tokenizer_cut(m->tokenizer, text, bytes, nominal, nominal + step);
    size_t end = ls__tokenizer_cut(m->tokenizer, text, bytes, nominal + step, nominal + 2 * step);
    s->bytes = (int64_t)(end - begin);
    s->encoder.offset = (size_t)from->begin + begin;
    return ls__encoder_run(&s->encoder, text + begin, end - begin,
                           from->begin + (int64_t)begin == 0);
}

/* An error goes into the slot, and the writer reports it when it comes to that chunk, so the first
 * one in the order of the text wins. */
static void fill(maker *m, slot *s, uint32_t chunk)
{
    ls__file file;
    const source *from = source_of(m, chunk);
    s->status = ls__file_map(m->env, WHAT, from->path, &file);
    if (s->status == LS_OK) {
        s->status = encode_chunk(m, s, from, &file, chunk);
        if (s->status < 0) {
            s->status = ls__fail_within(s->status, WHAT ": \"%s\"", from->path);
        }
        ls__file_release(m->env, &file);
    }
    if (s->status < 0) {
        (void)snprintf(s->message, sizeof s->message, "%s", ls_error_message());
    }
}

/* A thread: takes chunks until none is left or the job has stopped. */
static void work(void *arg)
{
    maker *m = arg;
    const ls__env *env = m->env;
    for (;;) {
        uint32_t turn, chunk = atomic_fetch_add_explicit(&m->next, 1, memory_order_relaxed);
        if (chunk >= m->chunks) {
            return;
        }
        slot *s = &m->slots[chunk % m->slot_count];
        while ((turn = atomic_load_explicit(&s->turn, memory_order_acquire)) != chunk) {
            if (turn == STOPPED) {
                return;
            }
            (void)env->park(env, &s->turn, turn, ls__deadline_after(env, WAIT_MS));
        }
        fill(m, s, chunk);
        atomic_store_explicit(&s->done, chunk + 1, memory_order_release);
        env->wake(env, &s->done, 1);
    }
}

/* Two slots for each thread, so that a thread can work while its last chunk waits for the
 * writer. */
static ls_status start(maker *m)
{
    int wanted = m->job->threads < THREADS_MAX ? m->job->threads : THREADS_MAX;
    m->slot_count = 2 * (uint32_t)wanted;
    m->slots = calloc(m->slot_count, sizeof *m->slots);
    if (!m->slots) {
        return ls__fail(LS_ERR_MEMORY, WHAT ": no memory");
    }
    for (uint32_t i = 0; i < m->slot_count; i++) {
        atomic_store_explicit(&m->slots[i].turn, i, memory_order_relaxed);
        LS_TRY(ls__encoder_init(&m->slots[i].encoder, m->tokenizer));
    }
    for (; m->thread_count < wanted; m->thread_count++) {
        int error =
            m->env->thread_start(m->env, "ls-tokens", work, m, &m->threads[m->thread_count]);
        if (error < 0) {
            return ls__fail(LS_ERR_SYSTEM, WHAT ": a thread: %s", strerror(-error));
        }
    }
    return LS_OK;
}

/* Also ends threads that wait for a slot, after an error. */
static void stop(maker *m)
{
    for (uint32_t i = 0; m->slots && i < m->slot_count; i++) {
        atomic_store_explicit(&m->slots[i].turn, STOPPED, memory_order_release);
        m->env->wake(m->env, &m->slots[i].turn, 1);
    }
    for (int i = 0; i < m->thread_count; i++) {
        m->env->thread_join(m->env, m->threads[i]);
    }
}

/* ---- writing ------------------------------------------------------------------------------ */

static void tell(const maker *m, const tokens_made *made)
{
    if (m->job->progress) {
        m->job->progress(m->job->arg, made->bytes, m->bytes, made->tokens);
    }
}

/* Writes a chunk's tokens, with the begin token before the first chunk of a file. */
static ls_status write_chunk(maker *m, const slot *s, uint32_t chunk, tokens_made *made)
{
    bool first = source_of(m, chunk)->first == chunk;
    if (s->status < 0) {
        return ls__fail_again(s->status, s->message);
    }
    if (first && m->begin >= 0) {
        LS_TRY(shards_add(&m->shards, &m->begin, 1));
        made->tokens++;
    }
    made->files += first;
    made->bytes += s->bytes;
    made->tokens += s->encoder.count;
    return shards_add(&m->shards, s->encoder.ids, s->encoder.count);
}

/* This thread's loop: writes the chunks in their order and gives each slot free for the chunk that
 * is `slot_count` later. */
static ls_status write_all(maker *m, tokens_made *made)
{
    const ls__env *env = m->env;
    for (uint32_t chunk = 0; chunk < m->chunks; chunk++) {
        uint32_t done;
        slot *s = &m->slots[chunk % m->slot_count];
        tell(m, made);
        while ((done = atomic_load_explicit(&s->done, memory_order_acquire)) != chunk + 1) {
            (void)env->park(env, &s->done, done, ls__deadline_after(env, PROGRESS_MS));
            tell(m, made);
        }
        LS_TRY(write_chunk(m, s, chunk, made));
        atomic_store_explicit(&s->turn, chunk + m->slot_count, memory_order_release);
        env->wake(env, &s->turn, 1);
    }
    tell(m, made);
    LS_TRY(shards_end(&m->shards));
    made->shards = m->shards.count;
    return LS_OK;
}

static ls_status make_shards(maker *m, tokens_made *made)
{
    static const char *const prefixes[] = {"tokens_", "tokens_train_", "tokens_val_"};
    LS_TRY(ls__tokenizer_open(m->env, m->job->tokenizer, &m->tokenizer));
    LS_TRY(find_begin(m));
    LS_TRY(find_sources(m));
    LS_TRY(shards_begin(&m->shards, m->env, m->job->folder, prefixes[m->job->part],
                        ls_tokenizer_count(m->tokenizer) > 1 << 16 ? 4 : 2, m->job->shard_tokens,
                        m->job->force));
    LS_TRY(start(m));
    return write_all(m, made);
}

/* Also for a maker of which only a part was made. */
static void maker_free(maker *m)
{
    stop(m);
    for (uint32_t i = 0; m->slots && i < m->slot_count; i++) {
        ls__encoder_fini(&m->slots[i].encoder);
    }
    free(m->slots);
    free(m->sources);
    ls__paths_free(&m->paths);
    shards_free(&m->shards);
    ls_tokenizer_free(m->tokenizer);
    free(m);
}

ls_status tokens_make(const tokens_job *job, tokens_made *out)
{
    *out = (tokens_made){0};
    maker *m = calloc(1, sizeof *m);
    if (m == NULL) {
        return ls__fail(LS_ERR_MEMORY, WHAT ": no memory");
    }
    m->job = job;
    m->env = m->shards.env = job->env;
    m->shards.fd = m->shards.lock = -1;
    ls_status status = make_shards(m, out);
    maker_free(m);
    return status;
}
