/* SPDX-License-Identifier: Apache-2.0 */
/* The lines of PMI-1, against a process manager whose answers were written before. */
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "job/pmi/pmi.h"
#include "says.h"

#define OPENING                                                                                    \
    "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\ncmd=my_kvsname kvsname=k_1\n"

typedef struct talk {
    bool done;
    char value[LS__PMI_VALUE], reason[LS__PMI_REASON];
    char requests[4096]; /* that the rank has sent */
} talk;

/* One broadcast of `rank`; `answers` is all that the process manager says, NULL: it hangs up. */
static void run(talk *t, int rank, const char *value, const char *answers, bool hangup)
{
    const ls__env *env = ls__env_posix();
    int ends[2];
    memset(t, 0, sizeof *t);
    CHECK_INT(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    CHECK_INT(write(ends[1], answers, strlen(answers)), (long)strlen(answers));
    if (hangup) {
        shutdown(ends[1], SHUT_WR);
    }
    snprintf(t->value, sizeof t->value, "%s", value);
    t->done = ls__pmi_wire_broadcast(env, ends[0], rank, "key", t->value,
                                     ls__deadline_after(env, 200), t->reason);
    close(ends[0]);
    CHECK(read(ends[1], t->requests, sizeof t->requests - 1) > 0);
    close(ends[1]);
}

TEST(rank_0_puts_and_all_ranks_get)
{
    talk t;
    run(&t, 0, "v1/7",
        OPENING "cmd=put_result rc=0 msg=success\ncmd=barrier_out\n"
                "cmd=get_result rc=0 msg=success value=v1/7\n",
        false);
    CHECK(t.done);
    CHECK_SAYS(t.requests, "cmd=init pmi_version=1 pmi_subversion=1\n");
    CHECK_SAYS(t.requests, "cmd=put kvsname=%s key=%s value=%s\n");
    CHECK_SAYS(t.requests, "cmd=get kvsname=%s key=%s\n");
    CHECK_STR(t.requests, "cmd=init pmi_version=1 pmi_subversion=1\ncmd=get_my_kvsname\n"
                          "cmd=put kvsname=k_1 key=key value=v1/7\ncmd=barrier_in\n"
                          "cmd=get kvsname=k_1 key=key\n");
    run(&t, 1, "", OPENING "cmd=barrier_out\ncmd=get_result rc=0 value=v1/7 msg=success\n", false);
    CHECK(t.done);
    CHECK_STR(t.value, "v1/7");
    CHECK(strstr(t.requests, "cmd=put") == NULL);
}

TEST(answers_that_do_not_fit_are_told)
{
    static const struct {
        const char *answers;
        bool hangup;
        const char *reason;
    } cases[] = {
        {"cmd=response_to_init rc=-1\n", false, "cmd=response_to_init rc=-1"},
        {OPENING "cmd=put_result rc=0\n", false, "cmd=put_result rc=0"},
        {OPENING, true, SAYS("the process manager has closed the connection")},
        {OPENING, false, SAYS("no answer within the deadline")},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        talk t;
        run(&t, 1, "", cases[i].answers, cases[i].hangup);
        CHECK(!t.done);
        CHECK_SAYS(t.reason, cases[i].reason);
    }
}

TEST(an_answer_without_an_end_is_refused)
{
    static char line[4096];
    talk t;
    memset(line, 'x', sizeof line - 1);
    run(&t, 1, "", line, false);
    CHECK(!t.done);
    CHECK_SAYS(t.reason, "the answer is too long");
}

static ssize_t write_all_but_one(const ls__env *env, int fd, const void *in, size_t bytes)
{
    (void)env;
    return ls__env_posix()->write(ls__env_posix(), fd, in, bytes - 1);
}

TEST(a_request_that_is_cut_is_told)
{
    ls__env env = *ls__env_posix();
    char value[LS__PMI_VALUE] = "", reason[LS__PMI_REASON];
    int ends[2];
    CHECK_INT(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    env.write = write_all_but_one;
    CHECK(!ls__pmi_wire_broadcast(&env, ends[0], 1, "key", value, ls__deadline_after(&env, 200),
                                  reason));
    CHECK_SAYS(reason, "the request was cut");
    close(ends[0]);
    close(ends[1]);
}

TEST_MAIN
