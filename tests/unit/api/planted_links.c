/* SPDX-License-Identifier: Apache-2.0 */
/* Whoever may write to a folder puts a link to another file of this user's where the library is
 * about to make one, at the last moment each time: no call writes to that other file. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>
#include <lockstep/checkpoint.h>

#include "../checkpoint/small.h"
#include "base/file.h"
#include "comm/core/comm.h"
#include "comm/core/group.h"
#include "comm/tune/cache.h"
#include "job/nodes/secret.h"
#include "launch/agent.h"
#include "launch/output.h"
#include "plan/plan.h"
#include "scratch.h"

#define PRECIOUS "what must not be written to\n"

static const char *where; /* a part of the paths that get a link */
static int planted;

/* The path of the file that the links lead to. */
static const char *victim(void)
{
    static char path[256];
    (void)snprintf(path, sizeof path, "%s", scratch_at("victim"));
    return path;
}

static int open_behind_a_link(const ls__env *env, const char *path, int flags, int mode)
{
    (void)env;
    if ((flags & O_CREAT) != 0 && strstr(path, where) != NULL) {
        planted += symlink(victim(), path) == 0;
    }
    return ls__env_posix()->open(ls__env_posix(), path, flags, mode);
}

static const ls__env *begin(const char *part)
{
    static ls__env planting;
    scratch_begin();
    (void)scratch_write("victim", PRECIOUS, strlen(PRECIOUS));
    where = part;
    planting = *ls__env_posix();
    planting.open = open_behind_a_link;
    return &planting;
}

static void end(void)
{
    char text[64] = "";
    FILE *file = fopen(victim(), "rb");
    CHECK(file != NULL);
    CHECK_INT(fread(text, 1, sizeof text - 1, file), strlen(PRECIOUS));
    CHECK_STR(text, PRECIOUS);
    CHECK(fclose(file) == 0);
    CHECK(planted > 0);
    scratch_end();
}

TEST(the_lock_of_a_checkpoint_is_no_link)
{
    ls_checkpoint *c = NULL;
    const ls__env *env = begin("/lock");
    CHECK_OK(ls__init_with(env, NULL));
    CHECK_STATUS(ls_checkpoint_new(scratch_at("c"), ls_world(), NULL, &c), LS_ERR_SYSTEM);
    CHECK_CONTAINS(ls_error_message(), "the file \"lock\" in it: ");
    CHECK_OK(ls_finalize());
    end();
}

/* One that only loads tidies up when it has the lock, and a link is not the lock. */
TEST(a_link_in_the_place_of_the_lock_is_not_locked)
{
    ls_checkpoint *c = NULL;
    char folder[256], left[300];
    (void)begin("nowhere");
    (void)snprintf(folder, sizeof folder, "%s", scratch_at("c"));
    CHECK_OK(ls_init(NULL));
    CHECK_OK(ls_checkpoint_new(folder, ls_world(), NULL, &c));
    CHECK_OK(small_save(c, 1));
    CHECK_OK(ls_checkpoint_free(c));
    (void)snprintf(left, sizeof left, "%s/lock", folder);
    CHECK(unlink(left) == 0);
    planted += symlink(victim(), left) == 0;
    (void)snprintf(left, sizeof left, "%s/.tmp-step-00000009-1", folder);
    CHECK(mkdir(left, 0700) == 0);
    CHECK_OK(ls_checkpoint_new(folder, ls_world(),
                               LS_OPTIONS(ls_checkpoint_options, .load_only = true), &c));
    CHECK(access(left, F_OK) == 0);
    CHECK_OK(ls_checkpoint_free(c));
    CHECK_OK(ls_finalize());
    end();
}

TEST(no_file_of_a_checkpoint_is_written_through_a_link)
{
    ls_checkpoint *c = NULL;
    const ls__env *env = begin("/.tmp-");
    CHECK_OK(ls__init_with(env, NULL));
    CHECK_OK(ls_checkpoint_new(scratch_at("c"), ls_world(), NULL, &c));
    ls_status status = small_save(c, 1);
    status = status == LS_OK ? ls_checkpoint_wait(c) : status;
    CHECK_STATUS(status, LS_ERR_SYSTEM);
    CHECK_CONTAINS(ls_error_message(), "cannot make \"");
    CHECK_OK(ls_checkpoint_free(c));
    CHECK_OK(ls_finalize());
    end();
}

TEST(weights_are_not_written_through_a_link)
{
    small s;
    const ls__env *env = begin(".part");
    small_fill(&s, 1);
    CHECK_OK(ls__init_with(env, NULL));
    CHECK_STATUS(ls_safetensors_save(scratch_at("w.safetensors"), SMALL_ITEM(&s), NULL),
                 LS_ERR_SYSTEM);
    CHECK_CONTAINS(ls_error_message(), "cannot make \"");
    CHECK_OK(ls_finalize());
    end();
}

TEST(a_secret_is_not_written_through_a_link)
{
    const ls__env *env = begin("secret");
    CHECK_STATUS(ls__secret_create(env, scratch_at("secret")), LS_ERR_SYSTEM);
    CHECK_CONTAINS(ls_error_message(), "an existing secret is not replaced");
    end();
}

TEST(times_of_the_tuner_are_not_written_through_a_link)
{
    const ls__env *env = begin("times.");
    ls__layout layout = {.size = 2, .host = {0, 1}};
    ls__timings timings;
    CHECK(setenv("LOCKSTEP_TUNE_FILE", scratch_at("times"), 1) == 0);
    CHECK_OK(ls__init_with(env, NULL));
    CHECK_OK(ls__timings_init(&timings, &layout, env));
    CHECK_STATUS(ls__tune_keep(ls_world()->comm, &layout, &timings), LS_ERR_SYSTEM);
    CHECK_CONTAINS(ls_error_message(), "cannot write the times to ");
    CHECK_OK(ls_finalize());
    end();
}

TEST(logs_are_not_written_through_a_link)
{
    ls__output *output = NULL;
    const ls__env *env = begin(".log");
    const ls__output_spec spec = {.ranks = 1, .log_dir = scratch_at("logs")};
    CHECK_STATUS(ls__output_new(env, &spec, &output), LS_ERR_SYSTEM);
    CHECK_CONTAINS(ls_error_message(), "--log-dir ");
    end();
}

TEST(the_list_of_processes_is_not_written_through_a_link)
{
    static ls__agent agent;
    const ls__env *env = begin("pids.json");
    const ls__job job = {.ranks = 1, .log_dir = scratch_folder()};
    agent.env = env;
    agent.job = &job;
    ls__agent_write_pids(&agent); /* warns only: the job does not need it */
    CHECK(access(scratch_at("pids.json"), F_OK) != 0);
    end();
}

TEST(plans_are_not_written_through_a_link)
{
    const ls__env *env = begin("plan.json");
    json_t *root = json_object();
    CHECK_STATUS(ls__plan_save(env, "plan", root, scratch_at("plan.json")), LS_ERR_SYSTEM);
    CHECK_CONTAINS(ls_error_message(), "cannot write \"");
    json_decref(root);
    end();
}

/* A link that was there before is replaced, and so is a pipe; the file behind a second name
 * stays. */
TEST(what_lies_in_the_place_of_a_new_file_is_replaced)
{
    char path[256];
    const ls__env *env = begin("nowhere");
    (void)snprintf(path, sizeof path, "%s", scratch_at("new"));
    for (int kind = 0; kind < 3; kind++) {
        (void)unlink(path);
        planted += (kind == 0   ? symlink(victim(), path)
                    : kind == 1 ? link(victim(), path)
                                : mkfifo(path, 0600)) == 0;
        const int fd = ls__file_create(env, path, 0600);
        CHECK(fd >= 0);
        CHECK_INT(env->write(env, fd, "new", 3), 3);
        CHECK_INT(env->close(env, fd), 0);
    }
    end();
}

TEST_MAIN
