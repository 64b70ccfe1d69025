/* SPDX-License-Identifier: Apache-2.0 */
/* How a plug-in is found, loaded, checked and shown; and what is said of one that cannot be
 * used. */
#include "test.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <lockstep/backend.h>
#include <lockstep/comm.h>

#include "comm/backend/mpi_choice.h"
#include "comm/backend/plugin.h"
#include "comm/core/group.h"
#include "comm/core/wake.h"
#include "job/operation.h"
#include "says.h"

#define LOOP test_build_path("tests/plugins/ls_backend_loop.so")

/* ---- what is printed ----------------------------------------------------------------------- */

/* The first two columns of a row: "yes" or "-". Those of MPIs follow. */
static void check_row(const char *text, const char *what, bool native, bool loop)
{
    char row[64];
    snprintf(row, sizeof row, "\n%-22s  %-8s  %-8s", what, native ? "yes" : "-",
             loop ? "yes" : "-");
    CHECK_CONTAINS(text, row);
}

TEST(info_prints_what_each_backend_promises)
{
    char command[1024];
    ls__plugin plugin;
    CHECK_OK(ls__plugin_load(LOOP, &plugin));
    snprintf(command, sizeof command, "LOCKSTEP_BACKEND_PATH=%s %s info --backends",
             test_build_path("tests/plugins"), test_build_path("lockstep"));
    test_output run = test_run(command, 30);
    CHECK_INT(run.status, 0);
    for (ls__operation k = 0; k < LS__OP_COUNT; k++) {
        if (k != LS__OP_BARRIER) {
            check_row(run.text, ls__operation_name(k), true, plugin.can.operations >> k & 1);
        }
    }
    for (ls_dtype d = 0; d < LS_DTYPE_COUNT; d++) {
        check_row(run.text, ls_dtype_name(d), true, plugin.can.dtypes >> d & 1);
    }
    check_row(run.text, "canonical sums", true, false);
    check_row(run.text, "abort", true, false);
    check_row(run.text, "registered memory", true, false);
    check_row(run.text, "host memory", true, true);
    CHECK_CONTAINS(run.text, "not usable         backend \""); /* ls_backend_empty.so */
    free(run.text);
}

/* The rule is tested in tests/unit/base/trusted.c. */
static void check_refused_once(const char *text)
{
    static const char *const refusal = "is not used, since another user could change it: ";
    const char *first = strstr(text, refusal);
    CHECK(first != NULL);
    CHECK(strstr(first + 1, refusal) == NULL);
}

/* Without a setting: the plug-ins beside the build's library, from a current folder that pretends
 * to be a build or an installation; and none beside a command in a folder that others can
 * change. */
TEST(plug_ins_are_looked_for_beside_the_library_only)
{
    static const char *const script =
        "set -e; cd $(mktemp -d); trap 'rm -rf $PWD' EXIT\n"
        "mkdir -p lockstep/backends src/lockstep/backends bin/src/lockstep/backends\n"
        "for at in . lockstep/backends src/lockstep/backends bin/src/lockstep/backends\n"
        "do cp %s $at/ls_backend_bad.so; done\n"
        "echo BUILD; %s info --backends; echo COPY; cp %s bin/; bin/lockstep info --backends\n"
        "echo OPEN; chmod 777 bin; bin/lockstep info --backends";
    char command[4096], plug_in[512], own[512], lockstep[512];
    snprintf(plug_in, sizeof plug_in, "%s", LOOP);
    snprintf(lockstep, sizeof lockstep, "%s", test_build_path("lockstep"));
    snprintf(command, sizeof command, script, plug_in, lockstep, lockstep);
    test_output run = test_run(command, 30);
    CHECK_INT(run.status, 0);
    char *copy = strstr(run.text, "COPY\n"), *open = strstr(run.text, "OPEN\n");
    CHECK(copy != NULL && open != NULL);
    check_refused_once(open);
    CHECK_CONTAINS(open, "/bin belongs to uid ");
    CHECK_CONTAINS(open, "and has mode 0777");
    CHECK(strstr(open, "ls_backend_bad.so") == NULL);
    *open = '\0';
    CHECK_CONTAINS(copy, "/bin/src/lockstep/backends/ls_backend_bad.so");
    *copy = '\0';
    CHECK(strstr(run.text, "ls_backend_bad.so") == NULL);
    int built = 0;
    for (int k = 0; k < 2; k++) {
        snprintf(own, sizeof own, "%s/ls_backend_mpi_%s.so",
                 test_build_path("src/lockstep/backends"), k == 0 ? "openmpi" : "mpich");
        if (access(own, F_OK) == 0) {
            CHECK_CONTAINS(run.text, own);
            built++;
        }
    }
    if (built == 0) {
        test_skip_part("no plug-in of an MPI is built");
    }
    free(run.text);
}

/* A command below a folder in which everybody may make others, as /tmp, looks for plug-ins beside
 * its own folder. A setting, a path and a link lead to the same folder. */
TEST(a_plug_in_that_another_user_has_put_beside_the_command_is_not_loaded)
{
    static const char *const script =
        "cd $(mktemp -d); trap 'rm -rf $PWD' EXIT; mkdir me; chmod 1777 .; cp %s me/\n"
        "B=$(me/lockstep info --backends | sed -n 's/^plug-ins in *//p'); mkdir -p $B\n"
        "cp %s $B/ls_backend_mpi_openmpi.so; chown -R 65534 lib; ln -s "
        "$B/ls_backend_mpi_openmpi.so me/ls_backend_linked.so\n"
        "me/lockstep info --backends; echo INFO; me/lockstep info | grep 'mpi (openmpi)'\n"
        "echo LINK; LOCKSTEP_BACKEND_PATH=$PWD/me me/lockstep info --backends\n"
        "echo PATH; LOCKSTEP_MPI=$B/ls_backend_mpi_openmpi.so LOCKSTEP_BACKEND=mpi "
        "me/lockstep run -n 1 %s helper_connect\n"
        "echo TRAIN; mkdir -p libexec/lockstep; printf '#!/bin/sh\\necho executed\\n' > "
        "libexec/lockstep/train_gpt\n"
        "chmod 755 libexec/lockstep/train_gpt; me/lockstep train gpt; chown -R 65534 libexec\n"
        "echo TRAIN; me/lockstep train gpt";
    char command[4096], lockstep[512], plug_in[512];
    if (geteuid() != 0) {
        SKIP("only root can make another user's files");
    }
    snprintf(lockstep, sizeof lockstep, "%s", test_build_path("lockstep"));
    snprintf(plug_in, sizeof plug_in, "%s", LOOP);
    snprintf(command, sizeof command, script, lockstep, plug_in,
             test_build_path("tests/dist/comm/comm_test_backend_loading"));
    test_output run = test_run(command, 30);
    char *info = strstr(run.text, "INFO\n"), *link = strstr(run.text, "LINK\n");
    char *path = strstr(run.text, "PATH\n");
    CHECK(info != NULL && link != NULL && path != NULL);
    char *own = strstr(run.text, "TRAIN\n"), *others = strstr(own + 1, "TRAIN\n");
    CHECK(others != NULL);
    *info = *link = *path = *own = *others = '\0';
    CHECK_CONTAINS(own + 1, "executed");
    CHECK(strstr(others + 1, "executed") == NULL);
    check_refused_once(others + 1);
    check_refused_once(run.text);
    CHECK_CONTAINS(run.text, "/lib belongs to uid 65534");
    CHECK(strstr(run.text, "\nmpi_openmpi ") == NULL);
    check_refused_once(info + 1);
    CHECK(strstr(info + 1, "LOCKSTEP_DATA_PLANE=mpi") == NULL);
    CHECK_CONTAINS(link + 1, "ls_backend_linked.so is not used, since another user could");
    CHECK_CONTAINS(path + 1, "/lib belongs to uid 65534");
    free(run.text);
}

/* Runs a test of this program with variables. */
static test_output run_helper(const char *variables, const char *helper)
{
    char command[1024];
    snprintf(command, sizeof command, "%s %s %s", variables,
             test_build_path("tests/dist/comm/comm_test_backend_loading"), helper);
    return test_run(command, 60);
}

/* ---- a plug-in that cannot be used --------------------------------------------------------- */

static const char *refusal(const char *backend, const char *broken, ls_status want)
{
    ls_group *group = NULL;
    setenv("LOOP_BROKEN", broken, 1);
    CHECK_STATUS(
        ls_group_create(ls_world(), LS_OPTIONS(ls_group_options, .backend = backend), &group),
        want);
    CHECK(group == NULL);
    return ls_error_message();
}

DIST_TEST(a_plug_in_that_cannot_be_used_is_named_with_its_path, 2)
{
    CHECK_SAYS(refusal(LOOP, "version", LS_ERR_UNSUPPORTED),
               "backend \"%s\": %s is of another version than %d; build it with this library's "
               "lockstep/backend.h");
    CHECK_SAYS(refusal(LOOP, "half", LS_ERR_UNSUPPORTED),
               "backend \"%s\": %s is incomplete, it lacks %s; install a complete build");
    CHECK_SAYS(refusal(LOOP, "short", LS_ERR_UNSUPPORTED), "the end of its table");
    CHECK_SAYS(refusal(LOOP, "abort", LS_ERR_UNSUPPORTED),
               "promises to abort, and has no \"abort\"");
    CHECK_SAYS(refusal(LOOP, "memory", LS_ERR_UNSUPPORTED),
               "promises registered memory, and has no \"alloc\" or no \"dealloc\"");
    CHECK_SAYS(refusal(LOOP, "programs", LS_ERR_UNSUPPORTED),
               "promises to run programs, and has no whole \"transport\"");
    CHECK_SAYS(refusal(LOOP, "transport", LS_ERR_UNSUPPORTED),
               "promises to run programs, and has no whole \"transport\"");
    CHECK_SAYS(refusal(LOOP, "streams", LS_ERR_UNSUPPORTED),
               "promises streams, and lacks one of \"mark\", \"unmark\", \"follow\" and \"zero\"");
    CHECK_SAYS(refusal(LOOP, "device", LS_ERR_UNSUPPORTED),
               "has no host memory, and does not promise to scale");
    CHECK_SAYS(refusal(LOOP, "messages", LS_ERR_UNSUPPORTED),
               "carries one of send and recv without the other");
    CHECK_SAYS(refusal(LOOP, "address", LS_ERR_UNSUPPORTED),
               "needs more bytes for an address than LS_BACKEND_ADDRESS_MAX");
    CHECK_SAYS(ls_error_message(), "backend \"%s\": %s %s; install a complete build");
    CHECK_SAYS(refusal(LOOP, "absent", LS_ERR_NOT_FOUND),
               "backend \"%s\" (%s) cannot be used by this process: %s");
    CHECK_SAYS(
        refusal(test_build_path("tests/plugins/ls_backend_empty.so"), "", LS_ERR_UNSUPPORTED),
        "backend \"%s\": %s is no plug-in, it does not export ls_backend_plugin");
    CHECK_SAYS(refusal("/nowhere/ls_backend_loop.so", "", LS_ERR_NOT_FOUND),
               "%s cannot be loaded: %.300s");
    CHECK_SAYS(
        refusal("MPI", "", LS_ERR_INVALID),
        "backend \"%.100s\" is neither a name (lower-case letters, digits and _) nor a path with "
        "a \"/\"");
    CHECK_SAYS(ls_error_message(), "group \"%s\" cannot have backend \"%s\": rank %d: %s");
    CHECK_SAYS(
        refusal(LOOP, ls_rank() == 1 ? "other" : "", LS_ERR_MISMATCH),
        "group \"%s\" cannot have backend \"%s\": it promises something else on rank %d than on "
        "rank %d; install the same plug-in on all hosts");
    int32_t x = 1; /* the world goes on */
    CHECK_OK(ls_all_reduce(ls_world(), &x, &x, 1, LS_INT32, LS_SUM, NULL, NULL));
}

#define NO_STATUS                                                                                  \
    "%s returned %d, which is neither LS_OK nor an error; return LS_OK, or a negative ls_status"

static void check_positive(const char *text, const char *what)
{
    CHECK_SAYS(text, NO_STATUS);
    CHECK_CONTAINS(text, what);
}

/* Functions that open a group. */
DIST_TEST(a_plug_in_that_returns_a_positive_number_has_failed, 2)
{
    check_positive(refusal(LOOP, "positive_describe", LS_ERR_INVALID), "): describe returned 5");
    check_positive(refusal(LOOP, "positive_open", LS_ERR_INVALID), ": open returned 5");
    check_positive(refusal(LOOP, "positive_connect", LS_ERR_INVALID), ": connect returned 5");
}

static ls_status carried(const char *broken, const char *promises)
{
    ls_group *group = NULL;
    void *memory = NULL;
    float x = 1;
    setenv("LOOP_PROMISES", promises, 1);
    CHECK_OK(ls_group_create(ls_world(), LS_OPTIONS(ls_group_options, .backend = LOOP), &group));
    setenv("LOOP_BROKEN", broken, 1);
    return strstr(broken, "alloc") != NULL
               ? ls_group_alloc(group, 64, &memory)
               : ls_all_reduce(group, &x, &x, 1, LS_FLOAT32, LS_SUM, NULL, NULL);
}

DIST_TEST(an_operation_whose_start_returns_a_positive_number_has_failed, 2)
{
    CHECK(carried("positive_start", "abort") < 0);
    check_positive(ls_error_message(), "\": start returned 5");
}

/* Rank 1 has claimed the failure and not told it yet, so nothing stops rank 0's engine. */
DIST_TEST(an_operation_whose_start_fails_waits_for_the_failure_of_another_rank, 2)
{
    ls_group *group = NULL;
    ls_work *work = NULL;
    float x = 1;
    setenv("LOOP_PROMISES", "abort", 1);
    CHECK_OK(ls_group_create(ls_world(), LS_OPTIONS(ls_group_options, .backend = LOOP), &group));
    if (group->has_remote) { /* between hosts messages decide whose failure it is */
        CHECK_OK(ls_group_free(group));
        return;
    }
    if (ls_rank() == 0) {
        setenv("LOOP_BROKEN", "positive_start", 1);
        atomic_store(&group->own->claim, 2);
    }
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
    CHECK_OK(ls_all_reduce(group, &x, &x, 1, LS_FLOAT32, LS_SUM, NULL, &work));
    if (ls_rank() == 1) {
        usleep(300000); /* of rank 0's engine */
        snprintf(group->own->failed_text, sizeof group->own->failed_text, "rank 1 tells it late");
        group->own->failed_by = 1;
        atomic_store(&group->own->failed, (uint32_t)-LS_ERR_SYSTEM);
        ls__ring_members(group);
    }
    CHECK_STATUS(ls_work_wait(work), LS_ERR_SYSTEM);
    CHECK_CONTAINS(ls_error_message(), "rank 1 tells it late");
}

DIST_TEST(an_operation_whose_test_returns_a_positive_number_has_failed, 2)
{
    CHECK(carried("positive_test", "abort") < 0);
    check_positive(ls_error_message(), "\": test returned 5");
}

DIST_TEST(memory_whose_alloc_returns_a_positive_number_has_failed, 2)
{
    CHECK(carried("positive_alloc", "registered") < 0);
    check_positive(ls_error_message(), "\": alloc returned 5");
}

DIST_TEST(helper_connect, 2)
{
    ls_group *group = NULL;
    CHECK_STATUS(ls_group_create(ls_world(), LS_OPTIONS(ls_group_options, .backend = LOOP), &group),
                 LS_ERR_TIMEOUT);
    CHECK_SAYS(ls_error_message(), "it has not connected the ranks within %.1f s");
}

TEST(a_plug_in_that_does_not_connect_ends_at_the_deadline)
{
    test_output run = run_helper("LOCKSTEP_TIMEOUT=2 LOOP_BROKEN=connect", "helper_connect");
    if (run.status != 0) {
        test_fail(__FILE__, __LINE__, "%s", run.text);
    }
    free(run.text);
}

TEST(a_file_of_the_right_name_that_is_no_library_is_named)
{
    char folder[] = "/tmp/lockstep-bogus-XXXXXX", path[64];
    CHECK(mkdtemp(folder) != NULL);
    snprintf(path, sizeof path, "%s/ls_backend_bogus.so", folder);
    FILE *file = fopen(path, "w");
    CHECK(file != NULL && fputs("no library", file) >= 0 && fclose(file) == 0);
    ls__plugin plugin;
    setenv("LOCKSTEP_BACKEND_PATH", folder, 1);
    const ls_status status = ls__plugin_load("bogus", &plugin);
    (void)remove(path);
    (void)remove(folder);
    CHECK_INT(status, LS_ERR_UNSUPPORTED);
    CHECK_SAYS(ls_error_message(), "backend \"%s\": %s cannot be loaded: %.300s");
}

static void world_is_carried(void)
{
    double x = ls_rank() + 1;
    CHECK(strcmp(ls_group_backend(ls_world()), "loop") == 0);
    CHECK_OK(ls_all_reduce(ls_world(), &x, &x, 1, LS_FLOAT64, LS_SUM, NULL, NULL));
    CHECK(x == 3.0);
    bool stop = true;
    CHECK_OK(ls_stop_agree(ls_world(), &stop)); /* control: int32 max */
    CHECK(!stop);
}

DIST_TEST(helper_world, 2)
{
    world_is_carried();
}

TEST(the_environment_chooses_the_backend_of_the_world)
{
    char variables[600];
    snprintf(variables, sizeof variables,
             "TEST_VERBOSE=1 LOCKSTEP_BACKEND=loop LOCKSTEP_BACKEND_PATH=/nowhere:%s",
             test_build_path("tests/plugins"));
    test_output run = run_helper(variables, "helper_world");
    if (run.status != 0) {
        test_fail(__FILE__, __LINE__, "%s", run.text);
    }
    free(run.text);
    run = run_helper("TEST_VERBOSE=1 LOCKSTEP_BACKEND=loop LOCKSTEP_BACKEND_PATH=/nowhere",
                     "helper_world");
    CHECK(run.status != 0);
    CHECK_SAYS(run.text, "backend \"%s\": there is no ls_backend_%s.so in %s; install the plug-in, "
                         "or give its folder in LOCKSTEP_BACKEND_PATH, or its path as the backend");
    free(run.text);
}

/* ---- which MPI ------------------------------------------------------------------------------- */

TEST(the_launchers_variables_say_which_mpi_it_is)
{
    static const struct {
        const char *variable, *choice; /* the last one set is first asked for */
    } cases[] = {{"MPI_LOCALRANKID", "mpi_mpich"},
                 {"PMIX_RANK", "mpi_openmpi"},
                 {"PMI_RANK", "mpi_mpich"},
                 {"OMPI_COMM_WORLD_RANK", "mpi_openmpi"},
                 {"LOCKSTEP_MPI", "mpi_mpich"}};
    char choice[64];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        unsetenv(cases[i].variable);
    }
    CHECK_STATUS(ls__mpi_choose(choice, sizeof choice), LS_ERR_NOT_FOUND);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        setenv(cases[i].variable, "mpich", 1);
        CHECK_OK(ls__mpi_choose(choice, sizeof choice));
        CHECK_STR(choice, cases[i].choice);
    }
}

TEST_MAIN
