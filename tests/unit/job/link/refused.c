/* SPDX-License-Identifier: Apache-2.0 */
/* What a link says when the system refuses it memory, descriptors, random numbers or a way. */
#include <errno.h>

#include "job/link/listener.h"
#include "meet.h"
#include "says.h"
#include "test.h"

static void *no_memory(const ls__env *env, size_t bytes)
{
    (void)env;
    (void)bytes;
    return NULL;
}

static int no_random(const ls__env *env, void *out, size_t bytes)
{
    (void)env;
    (void)out;
    (void)bytes;
    return -EIO;
}

static int no_poller(const ls__env *env)
{
    (void)env;
    return -EMFILE;
}

static int no_route(const ls__env *env, const char *address, int port, const char *from)
{
    (void)env;
    (void)address;
    (void)port;
    (void)from;
    return -ENETUNREACH;
}

TEST(what_the_system_refuses_a_link_is_said)
{
    ls__env env = *ls__env_posix();
    ls__link_spec spec = spec_of(LS__LINK_PLAIN, right_secret, "data", 7);
    ls__link *link = NULL;
    ls__listener *listener = NULL;
    const int port = env.free_port(&env);
    spec.env = &env;
    env.poller_open = no_poller;
    CHECK_STATUS(ls__listener_open(&spec, "127.0.0.1", port, &listener), LS_ERR_SYSTEM);
    CHECK_SAYS(ls_error_message(), "cannot listen on %s port %d: %s");
    env.random_bytes = no_random;
    int pair[2];
    CHECK_INT(env.socket_pair(&env, pair), 0);
    CHECK_STATUS(ls__link_accept(&spec, pair[0], &link), LS_ERR_SYSTEM);
    CHECK_SAYS(ls_error_message(), "cannot draw random numbers for the proof of the job's secret");
    env.close(&env, pair[1]);
    env.allocate = no_memory;
    CHECK_STATUS(ls__listener_open(&spec, "127.0.0.1", port, &listener), LS_ERR_MEMORY);
    CHECK_SAYS(ls_error_message(), "no memory to listen on %s");
    CHECK_STATUS(ls__link_connect(&spec, "127.0.0.1", port, NULL, &link), LS_ERR_MEMORY);
    CHECK_SAYS(ls_error_message(), "no memory for a connection to %s");
    CHECK_INT(env.socket_pair(&env, pair), 0);
    CHECK_STATUS(ls__link_accept(&spec, pair[0], &link), LS_ERR_MEMORY);
    CHECK_SAYS(ls_error_message(), "no memory for a connection");
    env.close(&env, pair[1]);
    env.tcp_connect = no_route;
    CHECK_STATUS(ls__link_connect(&spec, "127.0.0.1", port, NULL, &link), LS_ERR_PEER);
    CHECK_SAYS(ls_error_message(), "cannot connect to %s port %d: %s");
    CHECK(link == NULL && listener == NULL);
}

static int blocks; /* of memory, until there is none */

static void *scarce(const ls__env *env, size_t bytes)
{
    (void)env;
    return blocks-- > 0 ? ls__env_posix()->allocate(ls__env_posix(), bytes) : NULL;
}

TEST(a_connection_that_cannot_be_encrypted_for_want_of_memory_says_so)
{
    if (!has_tls()) {
        SKIP("built without TLS");
    }
    ls__env env = *ls__env_posix();
    const ls__link_spec spec = spec_of(LS__LINK_TLS, right_secret, "data", 7);
    ls__link_spec poor = spec;
    ls__listener *listener = listener_of(&spec);
    ls__link *client = NULL, *in = NULL;
    env.allocate = scarce;
    poor.env = &env;
    blocks = 1; /* the link itself */
    CHECK_OK(ls__link_connect(&poor, "127.0.0.1", ls__listener_port(listener), NULL, &client));
    CHECK_STATUS(meet(listener, client, &in), LS_ERR_MEMORY);
    CHECK_SAYS(ls_error_message(), "no memory to encrypt the connection with %s");
    ls__link_close(client);
    ls__link_close(in);
    ls__listener_close(listener);
}

TEST_MAIN
