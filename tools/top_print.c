/* SPDX-License-Identifier: Apache-2.0 */
/* A job as a table: a row for each rank of this host. See top.h. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/env.h"
#include "base/text.h"
#include "job/operation.h"
#include "tools/top.h"

#define WAITS_SHOWN 6 /* ranks that another one waits for */
#define TAG_SHOWN 24  /* bytes: a table is at most 110 columns wide */

/* ---- words ---------------------------------------------------------------------------------- */

/* Numbers of a board may be any. */
static const char *phase_word(uint32_t phase)
{
    static const char *const words[] = {"user",       "start",      "data",
                                        "forward",    "backward",   "optimizer",
                                        "collective", "checkpoint", "exit"};
    return phase < sizeof words / sizeof *words ? words[phase] : "?";
}

/* Of the life of a rank, and of its process if that is unusual. */
static const char *state_word(const ls__board *board, int r)
{
    static const char *const lives[] = {"absent", "starts", "runs", "left", "dead"};
    const uint32_t life = atomic_load_explicit(&board->rank[r].life, memory_order_acquire);
    const int pid = atomic_load_explicit(&board->rank[r].pid, memory_order_relaxed);
    if (life == LS__LIFE_JOINED && pid > 0) {
        const ls__env *env = ls__env_posix();
        const int state = env->process_state(env, pid);
        return state == 'T'   ? "stopped"
               : state == 't' ? "debugged"
               : state == 'D' ? "disk"
               : state == 'Z' ? "ended"
                              : "runs";
    }
    return life < sizeof lives / sizeof *lives ? lives[life] : "?";
}

static const char *flight_word(uint32_t state)
{
    static const char *const words[] = {"", "queued", "started", "done", "failed"};
    return state < sizeof words / sizeof *words ? words[state] : "";
}

/* ---- columns -------------------------------------------------------------------------------- */

/* "all_reduce #17 started (bucket 3)" */
static void last_operation(const ls__board_rank *rank, char *out, size_t bytes)
{
    ls__text to = {out, bytes};
    const uint64_t next = atomic_load_explicit(&rank->flight_next, memory_order_acquire);
    out[0] = '\0';
    if (next == 0) {
        return;
    }
    const ls__flight_record *record = &rank->flight[(next - 1) % LS__FLIGHT_MAX];
    const uint32_t state = atomic_load_explicit(&record->state, memory_order_acquire);
    const ls__descriptor *d = &record->descriptor;
    ls__text_add(&to, "%s #%" PRIu64 " %s",
                 d->operation < LS__OP_COUNT ? ls__operation_name((ls__operation)d->operation)
                                             : "operation",
                 d->sequence, flight_word(state));
    if (d->text[0] != '\0') {
        ls__text_add(&to, " (%.*s)", TAG_SHOWN, d->text);
    }
}

/* "0 2 3": the ranks that one of its waits needs; "" where the rank is not blocked. */
static void waits_for(const ls__board_rank *rank, char *out, size_t bytes)
{
    static ls__blocked copy;
    ls__text to = {out, bytes};
    int shown = 0;
    out[0] = '\0';
    if (!ls__blocked_read(&rank->blocked, &copy) || copy.wait_count == 0) {
        return;
    }
    for (int i = 0; i < LS__BLOCKED_RANK_WORDS * 64; i++) {
        if ((copy.wait[0].needs[i / 64] >> (i % 64) & 1) != 0 && shown++ < WAITS_SHOWN) {
            ls__text_add(&to, "%s%d", shown > 1 ? " " : "", i);
        }
    }
    ls__text_add(&to, shown > WAITS_SHOWN ? " and %d more" : "", shown - WAITS_SHOWN);
}

/* Control characters of a text would move the cursor. */
static void make_plain(char *text)
{
    for (unsigned char *c = (unsigned char *)text; *c != '\0'; c++) {
        *c = *c < 0x20 || *c == 0x7f ? '?' : *c;
    }
}

/* At most `width` bytes, and no part of a character. */
static void print_cut(const char *row, int width)
{
    int bytes = (int)strlen(row);
    if (width > 0 && bytes > width) {
        for (bytes = width; bytes > 0 && ((unsigned char)row[bytes] & 0xc0) == 0x80;) {
            bytes--;
        }
    }
    printf("%.*s\n", bytes, row);
}

static void print_rank(const ls__board *board, int r, int width)
{
    const ls__board_rank *rank = &board->rank[r];
    const ls__env *env = ls__env_posix();
    char row[320], last[160], waits[64], step[24] = "-", updates[24] = "-";
    ls__activity_copy now;
    (void)ls__activity_read(&rank->activity, &now);
    const uint64_t steps = atomic_load_explicit(&rank->activity.step, memory_order_relaxed);
    const uint64_t moved = atomic_load_explicit(&rank->activity.updates, memory_order_relaxed);
    const uint64_t at = env->now_ns(env);
    if (steps > 0) {
        (void)snprintf(step, sizeof step, "%" PRIu64, steps - 1);
    }
    if (moved > 0) {
        (void)snprintf(updates, sizeof updates, "%" PRIu64, moved);
    }
    last_operation(rank, last, sizeof last);
    waits_for(rank, waits, sizeof waits);
    make_plain(last);
    (void)snprintf(row, sizeof row, "%4d %8d %-8s %7s %7s %-10s %7.1f  %-10s %s", rank->world_rank,
                   (int)atomic_load_explicit(&rank->pid, memory_order_relaxed),
                   state_word(board, r), step, updates,
                   now.since_ns > 0 ? phase_word((uint32_t)now.phase) : "-",
                   now.since_ns > 0 && at > now.since_ns ? (double)(at - now.since_ns) * 1e-9 : 0.0,
                   waits[0] != '\0' ? waits : "-", last[0] != '\0' ? last : "-");
    print_cut(row, width);
}

/* ---- the job -------------------------------------------------------------------------------- */

void top_name(const top_job *job, char *out, size_t bytes)
{
    const ls__board *b = job->board;
    (void)snprintf(out, bytes, "%d rank%s on host %.63s, launcher %d%s%s", b->ranks,
                   b->ranks == 1 ? "" : "s", b->host, job->launcher,
                   job->program[0] != '\0' ? ": " : "", job->program);
}

void top_print(const top_job *job, int width)
{
    const ls__board *b = job->board;
    char name[TOP_NAME_BYTES], heads[128];
    top_name(job, name, sizeof name);
    print_cut(name, width);
    if (b->nodes > 1) {
        printf("host %d of %d; the job has %d ranks\n", b->node, b->nodes, b->world_size);
    }
    if (ls__board_has_cause(b)) {
        char cause[sizeof b->root_cause_text];
        (void)snprintf(cause, sizeof cause, "%.*s", (int)sizeof cause - 1, b->root_cause_text);
        make_plain(cause);
        printf("failed: %s\n", cause);
    }
    (void)snprintf(heads, sizeof heads, "%4s %8s %-8s %7s %7s %-10s %7s  %-10s %s", "rank",
                   "process", "state", "step", "updates", "phase", "for s", "waits for",
                   "last operation");
    print_cut(heads, width);
    for (int r = 0; r < b->ranks; r++) {
        print_rank(b, r, width);
    }
}
