/* SPDX-License-Identifier: Apache-2.0 */
/* A rank under a debugger: its peers wait beyond their deadlines, with a warning. */
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <lockstep/comm.h>

#include "comm/core/group.h"
#include "says.h"
#include "test.h"

/* A tracer that neither stops the process nor reads it. Returns its number; 0: not allowed. */
static pid_t trace_me(int seconds)
{
    int said[2];
    char byte = 0;
    CHECK(pipe(said) == 0);
    const pid_t tracer = fork();
    CHECK(tracer >= 0);
    if (tracer == 0) {
        byte = ptrace(PTRACE_SEIZE, getppid(), NULL, NULL) == 0;
        (void)!write(said[1], &byte, 1);
        sleep(byte ? (unsigned)seconds : 0);
        _exit(0);
    }
    CHECK(read(said[0], &byte, 1) == 1);
    close(said[0]);
    close(said[1]);
    return byte ? tracer : 0;
}

static char warned[1000];

static void keep_warning(ls_log_level level, const char *text, void *arg)
{
    (void)arg;
    if (level == LS_LOG_WARN) {
        (void)snprintf(warned, sizeof warned, "%s", text);
    }
}

DIST_TEST(the_deadline_begins_anew_while_a_debugger_is_attached, 2)
{
    int traced = 1;
    pid_t tracer = 0;
    if (ls_rank() == 1) {
        (void)prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
        tracer = trace_me(4);
        traced = tracer != 0;
    }
    CHECK_OK(ls_broadcast(ls_world(), &traced, 1, LS_INT32, 1, NULL, NULL));
    if (!traced) {
        SKIP("this system does not allow ptrace");
    }
    if (ls_rank() == 1) {
        sleep(1); /* at a breakpoint, say */
    }
    ls_set_log_callback(keep_warning, NULL);
    CHECK_OK(ls_barrier(ls_world(), LS_OPTIONS(ls_collective_options, .timeout_ms = 300), NULL));
    ls_set_log_callback(NULL, NULL);
    if (ls_rank() == 0 && !ls_world()->has_remote) {
        CHECK_SAYS(warned, "a debugger is attached to %s: the deadline of %s #%llu begins anew");
    }
    if (tracer > 0) { /* a leak checker cannot look at a process that is traced */
        CHECK(kill(tracer, SIGKILL) == 0 && waitpid(tracer, NULL, 0) == tracer);
    }
}

TEST_MAIN
