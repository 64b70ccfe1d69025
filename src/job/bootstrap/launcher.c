/* SPDX-License-Identifier: Apache-2.0 */
/* Joining a world of our own launcher: LOCKSTEP_BOOTSTRAP=v1:STORE_FD:BOARD_FD:SECRET_FD.
 *
 * A child of the rank inherits the variable too, perhaps without the descriptors, or with them
 * while another process uses the same rank. So everything is checked before it is used, and a
 * rank's place on the board is claimed by compare-and-swap, once per run:
 *
 *     STARTED ──claim──▶ JOINED ──ls_finalize──▶ LEFT
 *        ◀──unclaim──┘   if the rest of joining fails */
#include "job/bootstrap/methods.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/settings.h"

typedef struct inherited {
    int store, board, secret;
    int rank, world_size, local_rank, local_size;
} inherited;

/* ---- the environment ----------------------------------------------------------------------- */

/* One text for all defects of the variable, since the remedy is the same. */
static ls_status malformed(const char *text, const char *why)
{
    return ls__fail(LS_ERR_INVALID,
                    "ls_init: LOCKSTEP_BOOTSTRAP=%.60s %s: it is set by `lockstep run` for its own "
                    "children; unset it to run alone",
                    text, why);
}

/* A whole decimal number in [0, 2^30]; *end is where it stopped. */
static bool number(const char *text, char **end, int *out)
{
    errno = 0;
    long value = strtol(text, end, 10);
    *out = (int)value;
    return *end != text && errno == 0 && value >= 0 && value <= 1 << 30 && text[0] >= '0' &&
           text[0] <= '9';
}

/* The three descriptors; whether they are open is checked where they are used. */
static ls_status parse_bootstrap(const char *text, inherited *out)
{
    if (strncmp(text, "v1:", 3) != 0) {
        return malformed(text, "is not of version v1 (launcher and library differ)");
    }
    char *end = NULL;
    bool sound = number(text + 3, &end, &out->store) && *end == ':' &&
                 number(end + 1, &end, &out->board) && *end == ':' &&
                 number(end + 1, &end, &out->secret) && *end == '\0';
    return sound ? LS_OK : malformed(text, "is not of the form v1:STORE_FD:BOARD_FD:SECRET_FD");
}

/* torchrun's variables, which our launcher sets as well. */
static ls_status parse_variable(const char *name, int *out)
{
    char *end = NULL;
    const char *text = ls__setting_get(name);
    if (text == NULL || !number(text, &end, out) || *end != '\0') {
        return ls__fail(LS_ERR_INVALID,
                        "ls_init: LOCKSTEP_BOOTSTRAP is set, but %s=%.40s is not a number: do not "
                        "change the variables that the launcher sets",
                        name, text == NULL ? "" : text);
    }
    return LS_OK;
}

/* Numbers only; check_ranks compares them with the board. */
static ls_status read_environment(const char *text, inherited *out)
{
    LS_TRY(parse_bootstrap(text, out));
    LS_TRY(parse_variable("RANK", &out->rank));
    LS_TRY(parse_variable("WORLD_SIZE", &out->world_size));
    LS_TRY(parse_variable("LOCAL_RANK", &out->local_rank));
    LS_TRY(parse_variable("LOCAL_WORLD_SIZE", &out->local_size));
    return LS_OK;
}

/* ---- the board ----------------------------------------------------------------------------- */

/* A program may have changed the variables, or inherited those of another job: the board, which
 * only the launcher writes, decides. */
static ls_status check_ranks(const ls__board *board, const inherited *in)
{
    if (board->ranks != in->local_size || board->world_size != in->world_size ||
        in->local_rank >= board->ranks || board->rank[in->local_rank].world_rank != in->rank) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_init: RANK=%d WORLD_SIZE=%d LOCAL_RANK=%d LOCAL_WORLD_SIZE=%d do not "
                        "match the job, which has %d ranks, %d of them on this host, numbered from "
                        "%d: do not change the variables that the launcher sets",
                        in->rank, in->world_size, in->local_rank, in->local_size, board->world_size,
                        board->ranks, board->first_rank);
    }
    return LS_OK;
}

/* Takes the rank's place on the board, unless another process holds it or held it in this run. A
 * rank that joined twice would disturb the operations of its own former self. */
static ls_status claim(const ls__env *env, ls__board *board, int r)
{
    ls__board_rank *rank = &board->rank[r];
    uint32_t life = LS__LIFE_STARTED;
    if (atomic_compare_exchange_strong_explicit(&rank->life, &life, LS__LIFE_JOINED,
                                                memory_order_acq_rel, memory_order_acquire)) {
        atomic_store_explicit(&rank->pid, (int)env->pid(env), memory_order_relaxed);
        return LS_OK;
    }
    int pid = atomic_load_explicit(&rank->pid, memory_order_relaxed);
    if (life == LS__LIFE_JOINED) {
        return ls__fail(LS_ERR_STATE,
                        "ls_init: process %d has already joined as rank %d, and each rank is one "
                        "process: start only one Lockstep program per rank, and others with "
                        "LOCKSTEP_BOOTSTRAP, RANK and WORLD_SIZE unset",
                        pid, board->rank[r].world_rank);
    }
    return ls__fail(LS_ERR_STATE,
                    "ls_init: rank %d has already joined this run and left it (process %d), and a "
                    "rank joins once: start `lockstep run` for each program, or unset "
                    "LOCKSTEP_BOOTSTRAP, RANK and WORLD_SIZE to run alone",
                    board->rank[r].world_rank, pid);
}

/* Gives the place back when joining fails after claim, so that the program may try again. */
static void unclaim(ls__board *board, int r)
{
    atomic_store_explicit(&board->rank[r].life, LS__LIFE_STARTED, memory_order_release);
}

/* ---- the store ----------------------------------------------------------------------------- */

/* The secret's memfd is opened anew through /proc, because processes that inherited the
 * descriptor share its read offset. Its size is checked first: the number may belong to another
 * file by now. */
static ls_status read_secret(const ls__env *env, int fd, uint8_t secret[LS__SECRET_BYTES])
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    bool ours = env->shm_size(env, fd) == LS__SECRET_BYTES;
    int file = ours ? env->open(env, path, O_RDONLY, 0) : -EINVAL;
    ssize_t got = file < 0 ? file : env->read(env, file, secret, LS__SECRET_BYTES);
    if (file >= 0) {
        env->close(env, file);
    }
    if (got != LS__SECRET_BYTES) {
        return ls__fail(LS_ERR_AUTH,
                        "ls_init: descriptor %d should hold the job's secret, but it is closed, "
                        "used by something else or was read before: only the process that the "
                        "launcher started can join",
                        fd);
    }
    return LS_OK;
}

/* The descriptor must be a socket (peer_uid fails otherwise) before the secret is sent over it. */
static ls_status connect_store(const ls__env *env, const inherited *in,
                               uint8_t secret[LS__SECRET_BYTES], int64_t timeout_ms, ls_store **out)
{
    uid_t uid;
    if (env->peer_uid(env, in->store, &uid) < 0) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_init: descriptor %d should be the connection to the launcher, but it "
                        "is closed or used by something else: only the process that the launcher "
                        "started can join",
                        in->store);
    }
    LS_TRY(read_secret(env, in->secret, secret));
    return ls__store_connect(env, in->store, secret, timeout_ms, out);
}

/* Closes the descriptors of board and secret only on success: after a failure the program may
 * correct its variables and call ls_init again. */
ls_status ls__bootstrap_launcher(const ls__env *env, int64_t timeout_ms, ls__boot *out)
{
    const char *text = ls__setting_get("LOCKSTEP_BOOTSTRAP");
    const char *chosen = ls__setting_get("LOCKSTEP_LAUNCHER");
    inherited in = {0};
    if (text == NULL || (chosen != NULL && strcmp(chosen, "lockstep") != 0)) {
        return LS_IN_PROGRESS;
    }
    LS_TRY(read_environment(text, &in));
    ls__board *board = NULL;
    ls_status status = ls__board_open(env, in.board, &board);
    if (status < 0) {
        return ls__fail_within(status, "ls_init");
    }
    status = check_ranks(board, &in);
    if (status < 0) {
        goto fail_board;
    }
    status = claim(env, board, in.local_rank);
    if (status < 0) {
        goto fail_board;
    }
    status = connect_store(env, &in, out->secret, timeout_ms, &out->store);
    if (status < 0) {
        goto fail_claim;
    }
    env->close(env, in.secret);
    env->close(env, in.board);
    out->rank = in.rank;
    out->world_size = in.world_size;
    out->local_rank = in.local_rank;
    out->local_size = in.local_size;
    out->board = board;
    out->plain = board->plain != 0;
    memcpy(out->address, board->address, sizeof out->address);
    out->address[sizeof out->address - 1] = '\0';
    return LS_OK;

fail_claim:
    ls__boot_record_failure(env, &board->rank[in.local_rank], status);
    unclaim(board, in.local_rank);
fail_board:
    ls__board_close(env, board);
    return status;
}
