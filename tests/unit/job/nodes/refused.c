/* SPDX-License-Identifier: Apache-2.0 */
/* What a node says when it is refused, when it cannot join, and when a link breaks. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <lockstep/runtime.h>

#include "job/nodes/internal.h"
#include "job/nodes/secret.h"
#include "says.h"
#include "test.h"
#include "turns.h"

/* ---- an env table that fails, with a clock whose hands the test moves ------------------------ */

static ls__env broken;
static uint64_t hands;
static int reads_left;  /* of sockets, until one fails; -1: none does */
static int blocks_left; /* of memory, until there is none; -1: there is */

static uint64_t moved_clock(const ls__env *env)
{
    (void)env;
    return ls__env_posix()->now_ns(ls__env_posix()) + hands;
}

static ssize_t breaking_recv(const ls__env *env, int fd, void *out, size_t bytes, int *got_fd)
{
    (void)env;
    if (reads_left >= 0 && reads_left-- == 0) {
        return -ECONNRESET;
    }
    return ls__env_posix()->recv(ls__env_posix(), fd, out, bytes, got_fd);
}

static void *scarce(const ls__env *env, size_t bytes)
{
    (void)env;
    if (blocks_left >= 0 && blocks_left-- == 0) {
        return NULL;
    }
    return ls__env_posix()->allocate(ls__env_posix(), bytes);
}

static int no_poller(const ls__env *env)
{
    (void)env;
    return -EMFILE;
}

static const ls__env *broken_env(void)
{
    broken = *ls__env_posix();
    broken.now_ns = moved_clock;
    broken.recv = breaking_recv;
    broken.allocate = scarce;
    hands = 0;
    reads_left = blocks_left = -1;
    return &broken;
}

/* Warnings of the library, one behind the other. */
static char warned[8192];

static void keep(ls_log_level level, const char *text, void *arg)
{
    const size_t used = strlen(warned);
    (void)level;
    (void)arg;
    snprintf(warned + used, sizeof warned - used, "%s\n", text);
}

/* ---- refused --------------------------------------------------------------------------------- */

static const int outside[2] = {4, 1};

static void another_version(ls__nodes_spec *spec)
{
    spec->version = "1.1";
}

static void another_world(ls__nodes_spec *spec)
{
    spec->world_size = 5;
    spec->world_rank = outside;
}

static void another_count(ls__nodes_spec *spec)
{
    spec->nodes = 3;
}

static void another_number(ls__nodes_spec *spec)
{
    spec->node = 5;
}

TEST(a_node_that_does_not_fit_is_told_why)
{
    static const struct {
        void (*change)(ls__nodes_spec *spec);
        const char *says;
    } tried[] = {
        {another_version, SAYS("host %s runs lockstep %s, node 0 (host %s) lockstep %s: install "
                               "the same version on all hosts")},
        {another_world,
         SAYS("host %s expects a world of %d ranks, node 0 (host %s) one of %d (0: given by "
              "`lockstep run`): start all ranks with one launcher and one size")},
        {another_count, SAYS("host %s was started with --nnodes %d, node 0 (host %s) with "
                             "--nnodes %d: give all nodes the same")},
        {another_number, SAYS("host %s has --node-rank %d, but --nnodes %d allows only 0 to %d")},
    };
    for (size_t i = 0; i < sizeof tried / sizeof *tried; i++) {
        world s;
        prepare(&s, 2);
        tried[i].change(&s.spec[1]);
        open_all(&s);
        until_state(&s, 1, LS__NODES_FAILED);
        CHECK_SAYS(ls__nodes_error(s.nodes[1]), tried[i].says);
        CHECK_INT(ls__nodes_state_of(s.nodes[0]), LS__NODES_GATHERING); /* the right may come yet */
        close_all(&s);
    }
}

TEST(a_greeting_that_cannot_be_is_refused)
{
    world s;
    prepare(&s, 2);
    open_all(&s);
    s.nodes[1]->ranks = 0; /* before it greets */
    until_state(&s, 1, LS__NODES_FAILED);
    CHECK_SAYS(ls__nodes_error(s.nodes[1]), "the data from %s is not a HELLO of this version");
    close_all(&s);
}

TEST(a_node_with_a_rank_outside_the_world_is_told_so)
{
    world s;
    prepare(&s, 2);
    static const int ranks[2] = {0, 1};
    for (int k = 0; k < 2; k++) {
        s.spec[k].nodes = 0;
        s.spec[k].ranks = 2;
        s.spec[k].world_size = 4;
        s.spec[k].world_rank = k == 0 ? ranks : outside;
    }
    open_all(&s);
    until_state(&s, 1, LS__NODES_FAILED);
    CHECK_SAYS(ls__nodes_error(s.nodes[1]), "host %s has rank %d, but the world has ranks 0 to %d");
    close_all(&s);
}

TEST(one_node_too_many_is_told_so_before_the_job_runs_and_after)
{
    world s;
    prepare(&s, 3);
    for (int k = 0; k < 3; k++) {
        s.spec[k].nodes = 2;
        s.spec[k].node = k == 0 ? 0 : -1;
    }
    open_all(&s); /* both greet in the same turn */
    until_state(&s, 2, LS__NODES_FAILED);
    CHECK_SAYS(ls__nodes_error(s.nodes[2]),
               "host %s is one node too many: all %d nodes of the job at %s:%d have joined; give "
               "each node its own --node-rank, and each job a port of its own");
    until_state(&s, 1, LS__NODES_RUNNING);
    ls__nodes_close(s.nodes[2]);
    CHECK_OK(ls__nodes_open(&s.spec[2], &s.nodes[2]));
    until_state(&s, 2, LS__NODES_FAILED);
    CHECK_SAYS(ls__nodes_error(s.nodes[2]),
               "host %s is too late: the job at %s:%d already runs with all its nodes");
    close_all(&s);
}

/* ---- not all come ---------------------------------------------------------------------------- */

TEST(nodes_that_have_joined_learn_that_node_0_ended)
{
    world s;
    prepare(&s, 3);
    s.count = 2;
    open_all(&s);
    turn_some(&s, 20);
    ls__nodes_close(s.nodes[0]);
    s.nodes[0] = NULL;
    until_state(&s, 1, LS__NODES_FAILED);
    CHECK_SAYS(ls__nodes_error(s.nodes[1]), "node 0 ended before all nodes had joined");
    s.count = 3;
    close_all(&s);
}

TEST(while_nodes_have_no_numbers_the_missing_ones_are_counted)
{
    world s;
    prepare(&s, 3);
    s.spec[0].timeout_ms = 200;
    s.spec[1].node = -1;
    s.count = 2;
    open_all(&s);
    until_state(&s, 0, LS__NODES_FAILED);
    CHECK_SAYS(ls__nodes_error(s.nodes[0]), "%d more node%s of %d");
    s.count = 3;
    close_all(&s);
}

TEST(waiting_for_nodes_and_a_node_that_leaves_are_warned_of)
{
    world s;
    prepare(&s, 3);
    for (int k = 0; k < 3; k++) {
        s.spec[k].env = broken_env();
        s.spec[k].timeout_ms = 60000;
    }
    ls_set_log_callback(keep, NULL);
    s.count = 2;
    open_all(&s);
    turn_some(&s, 20);
    for (int i = 0; i < 3; i++) { /* between heartbeats */
        hands += 2000000000u;
        turn_some(&s, 5);
    }
    CHECK_SAYS(warned, "%s %s:%d: waiting for %s");
    CHECK_SAYS(warned, "%s %s:%d: waiting for node 0: %s");
    CHECK_SAYS(warned, "it waits for other nodes");
    ls__nodes_close(s.nodes[1]);
    s.nodes[1] = NULL;
    turn_some(&s, 20);
    CHECK_SAYS(warned, "node %d (host %s) left before all nodes had joined: %s");
    ls_set_log_callback(NULL, NULL);
    s.count = 3;
    close_all(&s);
}

/* A program that takes connections and never says a word. */
TEST(a_program_that_is_not_node_0_is_waited_for_a_while)
{
    world s;
    prepare(&s, 2);
    s.spec[1].env = broken_env();
    s.spec[1].timeout_ms = 8000;
    const int other = s.env->tcp_listen(s.env, "127.0.0.1", s.port);
    CHECK(other >= 0);
    ls_set_log_callback(keep, NULL);
    CHECK_OK(ls__nodes_open(&s.spec[1], &s.nodes[1]));
    turn_some(&s, 20);
    hands += 5100000000u; /* gives up this try, and says why it has not joined */
    turn_some(&s, 2);
    CHECK_SAYS(warned, "%s:%d does not answer (no connection within %d s)");
    hands += 3000000000u;
    until_state(&s, 1, LS__NODES_FAILED);
    s.env->close(s.env, other);
    close_all(&s);
}

TEST(a_program_that_has_not_proved_to_be_node_0_is_named_as_that)
{
    world s;
    prepare(&s, 2);
    s.spec[1].timeout_ms = 50;
    const int other = s.env->tcp_listen(s.env, "127.0.0.1", s.port);
    CHECK(other >= 0);
    CHECK_OK(ls__nodes_open(&s.spec[1], &s.nodes[1]));
    until_state(&s, 1, LS__NODES_FAILED);
    CHECK_SAYS(ls__nodes_error(s.nodes[1]),
               "a program listens there, but has not proved to be node 0 of a job (another program "
               "may use the port)");
    s.env->close(s.env, other);
    close_all(&s);
}

TEST(a_welcome_that_makes_no_sense_is_refused)
{
    world s;
    prepare(&s, 3);
    s.count = 2;
    open_all(&s);
    turn_some(&s, 20);
    ls__first_send_all(s.nodes[0], NULL, LS__NODE_WELCOME, json_pack("{s:i}", "nodes", 1));
    until_state(&s, 1, LS__NODES_FAILED);
    CHECK_SAYS(ls__nodes_error(s.nodes[1]),
               "%s %s:%d: the WELCOME of node 0 is not one of this version");
    s.count = 3;
    close_all(&s);
}

/* ---- links that end -------------------------------------------------------------------------- */

/* What node 0 says of node 1, when `how` has happened to the link between them. */
static const char *loss_after(void (*how)(world *s))
{
    static char text[1024];
    world s;
    prepare(&s, 2);
    s.spec[0].env = broken_env();
    gather(&s);
    how(&s);
    until_failure(&s, 0);
    CHECK_INT(ls__nodes_failure(s.nodes[0])->kind, LS__FAILURE_LOST);
    snprintf(text, sizeof text, "%s", ls__nodes_failure(s.nodes[0])->text);
    close_all(&s);
    return text;
}

static void time_passes(world *s)
{
    (void)s;
    hands += 6000000000u;
}

static void link_breaks(world *s)
{
    (void)s;
    reads_left = 0;
}

static void noise_comes(world *s)
{
    const ls__env_span noise = {"this is not a frame, but it is longer than a header of one", 58};
    CHECK_INT(ls__link_send(s->nodes[1]->frames.link, &noise, 1), 58);
}

TEST(the_way_in_which_a_node_is_lost_is_told)
{
    CHECK_SAYS(loss_after(time_passes), "no heartbeat arrived from it for %.1f s");
    CHECK_SAYS(loss_after(link_breaks), "the connection broke: %s");
    CHECK_SAYS(loss_after(noise_comes), "the data is not a frame of this version");
}

TEST(a_text_that_is_not_utf_8_is_replaced)
{
    world s;
    prepare(&s, 2);
    gather(&s);
    const ls__failure_record f = {
        .kind = LS__FAILURE_SIGNAL, .failed_rank = 1, .text = "rank 1 said \xff\xfe"};
    ls__nodes_report(s.nodes[1], &f);
    until_failure(&s, 0);
    CHECK_SAYS(ls__nodes_failure(s.nodes[0])->text, "(its text is not UTF-8)");
    close_all(&s);
}

/* ---- no memory, no descriptors --------------------------------------------------------------- */

TEST(without_memory_or_descriptors_a_node_does_not_open)
{
    world s;
    prepare(&s, 1);
    s.spec[0].env = broken_env();
    broken.poller_open = no_poller;
    CHECK_STATUS(ls__nodes_open(&s.spec[0], &s.nodes[0]), LS_ERR_SYSTEM);
    CHECK_SAYS(ls_error_message(), "a poller for the job's nodes: %s");
    (void)broken_env();
    blocks_left = 0;
    CHECK_STATUS(ls__nodes_open(&s.spec[0], &s.nodes[0]), LS_ERR_MEMORY);
    CHECK_SAYS(ls_error_message(), "the job's nodes");
    blocks_left = -1;
    close_all(&s);
}

/* ---- a secret without a file ----------------------------------------------------------------- */

static int another_uid(const ls__env *env, int fd, uid_t *uid)
{
    const int error = ls__env_posix()->peer_uid(ls__env_posix(), fd, uid);
    (void)env;
    *uid += 1;
    return error;
}

TEST(a_secret_is_not_taken_from_another_user)
{
    ls__env env = *ls__env_posix();
    const int port = env.free_port(&env);
    uint8_t secret[LS__SECRET_EXCHANGE_BYTES];
    const int fd = ls__secret_exchange_open(&env, port);
    CHECK(fd >= 0);
    env.peer_uid = another_uid;
    CHECK_STATUS(ls__secret_exchange_fetch(&env, port, secret), LS_ERR_AUTH);
    CHECK_SAYS(
        ls_error_message(),
        "node 0 at port %d of this host gave no secret (%s): only processes of its own user may "
        "join without one; give all nodes the same --secret-file");
    CHECK_SAYS(ls_error_message(), "it belongs to another user");
    ls__secret_exchange_close(&env, fd, port);
}

TEST_MAIN
