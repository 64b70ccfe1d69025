/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses, interfaces, the secret's file: what hosts meet by. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "job/bootstrap/share.h"
#include "job/name_folder.h"
#include "job/nodes/rendezvous.h"
#include "job/nodes/secret.h"
#include "says.h"
#include "test.h"

/* ---- HOST:PORT ------------------------------------------------------------------------------- */

TEST(a_place_is_a_host_and_a_port)
{
    ls__rendezvous_place p;
    CHECK_OK(ls__place_parse("node0:29400", "--rendezvous", &p));
    CHECK_STR(p.host, "node0");
    CHECK_INT(p.port, 29400);
    CHECK_OK(ls__place_parse("[fd00::1]:1", "--rendezvous", &p));
    CHECK_STR(p.host, "fd00::1");
    CHECK_OK(ls__place_parse("10.0.0.1:65535", "--rendezvous", &p));
}

TEST(what_is_no_place_is_refused_with_its_flag)
{
    static const char *const wrong[] = {"",        "node0",      "node0:",   ":29400",  "node0:0",
                                        "n:65536", "n:-1",       "n:1x",     "fd00::1", "[fd00::1]",
                                        "[]:5",    "[fd00::1:5", "fd00::1:5"};
    ls__rendezvous_place p;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        CHECK_STATUS(ls__place_parse(wrong[i], "MASTER_ADDR", &p), LS_ERR_INVALID);
        CHECK_CONTAINS(ls_error_message(), "MASTER_ADDR");
        CHECK_CONTAINS(ls_error_message(), "HOST:PORT");
    }
}

/* A system of one host "debian" on two networks, whose own name is the loopback's, as Debian's
 * installer writes it. */
static int resolve(const ls__env *env, const char *name, char (*out)[LS__ADDRESS_MAX], int room)
{
    (void)env;
    const char *address = strcmp(name, "debian") == 0     ? "127.0.1.1"
                          : strcmp(name, "10.0.0.9") == 0 ? "10.0.0.9"
                          : strcmp(name, "10.0.0.1") == 0 ? "10.0.0.1"
                                                          : NULL;
    if (address == NULL || room < 1) {
        return -2;
    }
    snprintf(out[0], LS__ADDRESS_MAX, "%s", address);
    return 1;
}

static const ls__env_interface there[] = {{"lo", "127.0.0.1", true},
                                          {"eth0", "10.0.0.1", false},
                                          {"eth0", "fe80::1%eth0", false},
                                          {"ib0", "10.1.0.1", false},
                                          {"docker0", "172.17.0.1", false}};

static int interfaces(const ls__env *env, ls__env_interface *out, int room)
{
    (void)env;
    (void)room;
    memcpy(out, there, sizeof there);
    return (int)(sizeof there / sizeof *there);
}

static ls__env debian(void)
{
    ls__env env = *ls__env_posix();
    env.resolve = resolve;
    env.interfaces = interfaces;
    return env;
}

static int own(const ls__env *env, const char *host, char (*out)[LS__ADDRESS_MAX])
{
    ls__rendezvous_place p;
    CHECK_OK(ls__place_parse(host, "--rendezvous", &p));
    CHECK_OK(ls__place_resolve(env, &p, -1, NULL, NULL));
    return ls__place_own(env, &p, out, 4);
}

TEST(a_name_that_is_only_known_as_127_0_1_1_stands_for_the_hosts_other_addresses)
{
    const ls__env env = debian();
    char out[4][LS__ADDRESS_MAX];
    CHECK_INT(own(&env, "debian:4000", out), 4);
    CHECK_STR(out[0], "127.0.1.1");
    CHECK_STR(out[1], "10.0.0.1");
    CHECK_STR(out[2], "10.1.0.1");
}

/* As in a container, where /etc/hosts lists ::1 and the kernel has no IPv6. */
static int resolve_both(const ls__env *env, const char *name, char (*out)[LS__ADDRESS_MAX],
                        int room)
{
    (void)env;
    CHECK(strcmp(name, "localhost") == 0 && room >= 2);
    snprintf(out[0], LS__ADDRESS_MAX, "::1");
    snprintf(out[1], LS__ADDRESS_MAX, "127.0.0.1");
    return 2;
}

static int interfaces_of_both(const ls__env *env, ls__env_interface *out, int room)
{
    CHECK(room >= 2);
    (void)interfaces(env, out, room);
    out[1] = (ls__env_interface){"lo", "::1", true};
    return 2;
}

static int interfaces_unknown(const ls__env *env, ls__env_interface *out, int room)
{
    (void)env, (void)out, (void)room;
    return -1;
}

TEST(the_loopback_of_version_6_is_own_only_where_an_interface_has_it)
{
    ls__env env = debian();
    char out[4][LS__ADDRESS_MAX];
    env.resolve = resolve_both;
    CHECK_INT(own(&env, "localhost:4000", out), 1);
    CHECK_STR(out[0], "127.0.0.1");
    env.interfaces = interfaces_of_both;
    CHECK_INT(own(&env, "localhost:4000", out), 2);
    CHECK_STR(out[0], "::1");
    env.interfaces = interfaces_unknown; /* then the attempt to listen decides */
    CHECK_INT(own(&env, "localhost:4000", out), 2);
}

TEST(node_0_listens_on_the_address_that_was_named_and_no_other)
{
    const ls__env env = debian();
    char out[4][LS__ADDRESS_MAX];
    ls__rendezvous_place p;
    CHECK_INT(own(&env, "10.0.0.1:4000", out), 1);
    CHECK_STR(out[0], "10.0.0.1");
    CHECK_INT(own(&env, "10.0.0.9:4000", out), 0); /* of another host */
    CHECK_OK(ls__place_parse("nowhere:1", "--rendezvous", &p));
    CHECK_STATUS(ls__place_resolve(&env, &p, -1, NULL, NULL), LS_ERR_SYSTEM);
    CHECK_CONTAINS(ls_error_message(), "the name \"nowhere\" cannot be resolved");
}

TEST(links_are_plain_only_where_the_place_is_named_as_the_loopback)
{
    ls__rendezvous_place p;
    CHECK_OK(ls__place_parse("127.0.0.1:1", "x", &p));
    CHECK_INT(ls__place_mode(&p, false), LS__LINK_PLAIN);
    CHECK_OK(ls__place_parse("localhost:1", "x", &p));
    CHECK_INT(ls__place_mode(&p, false), LS__LINK_PLAIN);
    CHECK_OK(ls__place_parse("debian:1", "x", &p)); /* elsewhere it is another address */
    CHECK_INT(ls__place_mode(&p, false), LS__LINK_TLS);
    CHECK_INT(ls__place_mode(&p, true), LS__LINK_PLAIN);
}

/* ---- interfaces ------------------------------------------------------------------------------ */

static const char *chosen(const char *wanted)
{
    static ls__env_interface out;
    ls_status status = ls__interface_choose("LOCKSTEP_IFNAME", wanted, there,
                                            (int)(sizeof there / sizeof *there), &out);
    return status == LS_OK ? out.address : ls_status_name(status);
}

TEST(interfaces_are_chosen_in_nccls_syntax)
{
    CHECK_STR(chosen("eth0"), "10.0.0.1"); /* not its link-local address */
    CHECK_STR(chosen("eth"), "10.0.0.1");
    CHECK_STR(chosen("ib,eth"), "10.0.0.1");
    CHECK_STR(chosen("=ib0"), "10.1.0.1");
    CHECK_STR(chosen("=ib"), "LS_ERR_INVALID");
    CHECK_STR(chosen("^lo,docker,eth"), "10.1.0.1");
    CHECK_STR(chosen("^=eth0,docker0"), "10.1.0.1");
    CHECK_STR(chosen("lo"), "127.0.0.1");
    CHECK_STR(chosen("wlan"), "LS_ERR_INVALID");
    CHECK_CONTAINS(ls_error_message(), "the interfaces are: lo (127.0.0.1), eth0 (10.0.0.1)");
}

TEST(gloos_and_nccls_variables_are_honoured_after_ours)
{
    const ls__env env = debian();
    ls__env_interface out;
    bool set = true;
    CHECK_OK(ls__interface_wanted(&env, &set, &out));
    CHECK(!set);
    setenv("NCCL_SOCKET_IFNAME", "^lo,docker,eth", 1);
    CHECK_OK(ls__interface_wanted(&env, &set, &out));
    CHECK(set);
    CHECK_STR(out.name, "ib0");
    setenv("GLOO_SOCKET_IFNAME", "eth0", 1);
    CHECK_OK(ls__interface_wanted(&env, &set, &out));
    CHECK_STR(out.name, "eth0");
    setenv("LOCKSTEP_IFNAME", "=docker0", 1);
    CHECK_OK(ls__interface_wanted(&env, &set, &out));
    CHECK_STR(out.name, "docker0");
    setenv("LOCKSTEP_IFNAME", "nope", 1);
    CHECK_STATUS(ls__interface_wanted(&env, &set, &out), LS_ERR_INVALID);
}

static int no_interfaces(const ls__env *env, ls__env_interface *out, int room)
{
    (void)env;
    (void)out;
    (void)room;
    return 0;
}

TEST(a_host_without_any_address_is_told_what_to_set)
{
    ls__env env = *ls__env_posix();
    ls__detected d = {.launcher = "mpich", .rank = 0, .size = 2, .local_size = 1};
    env.interfaces = no_interfaces;
    setenv("PMI_FD", "9", 1); /* by which it would be shared */
    CHECK_STATUS(ls__share_rendezvous(&env, ls__deadline_after(&env, 100), &d), LS_ERR_SYSTEM);
    CHECK_SAYS(ls_error_message(), "ls_init: this host has no network address: set "
                                   "LOCKSTEP_RENDEZVOUS=HOST:PORT for all ranks");
}

/* ---- the secret ------------------------------------------------------------------------------ */

static void write_file(const char *path, const char *text, size_t bytes)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    CHECK(fd >= 0 && write(fd, text, bytes) == (ssize_t)bytes && close(fd) == 0);
}

/* Another user who may change the folder could give this one another secret. */
TEST(a_secret_in_a_folder_of_others_is_refused)
{
    const ls__env *env = ls__env_posix();
    char folder[] = "/tmp/lockstep-secret-XXXXXX", path[64], link[64];
    uint8_t a[32];
    CHECK(mkdtemp(folder) != NULL);
    snprintf(path, sizeof path, "%s/s", folder);
    snprintf(link, sizeof link, "%s/l", folder);
    CHECK_OK(ls__secret_create(env, path));
    CHECK(symlink("s", link) == 0);
    CHECK_OK(ls__secret_read(env, link, "--secret-file", a));
    CHECK(chmod(folder, 0777) == 0);
    CHECK_STATUS(ls__secret_read(env, path, "--secret-file", a), LS_ERR_SYSTEM);
    CHECK_CONTAINS(ls_error_message(), "is not used, since another user could change it: ");
    CHECK(unlink(path) == 0);
    CHECK_STATUS(ls__secret_create(env, path), LS_ERR_SYSTEM); /* no job would take it */
    CHECK(access(path, F_OK) != 0);
    CHECK(chmod(folder, 0700) == 0);
    CHECK(mkfifo(path, 0600) == 0); /* without a writer */
    CHECK_STATUS(ls__secret_read(env, path, "--secret-file", a), LS_ERR_INVALID);
    CHECK(unlink(path) == 0 && unlink(link) == 0 && rmdir(folder) == 0);
}

/* The checks are about the file that is read: it is exchanged for one that others can read when it
 * is opened, after any look at its path. */
static char exchanged[64];

static int open_exchanged(const ls__env *env, const char *path, int flags, int mode)
{
    (void)env;
    CHECK(chmod(exchanged, 0644) == 0);
    return ls__env_posix()->open(ls__env_posix(), path, flags, mode);
}

TEST(a_secret_is_checked_on_the_descriptor_that_is_read)
{
    ls__env env = *ls__env_posix();
    char folder[] = "/tmp/lockstep-secret-XXXXXX";
    uint8_t a[32];
    CHECK(mkdtemp(folder) != NULL);
    snprintf(exchanged, sizeof exchanged, "%s/s", folder);
    CHECK_OK(ls__secret_create(&env, exchanged));
    env.open = open_exchanged;
    CHECK_STATUS(ls__secret_read(&env, exchanged, "--secret-file", a), LS_ERR_AUTH);
    CHECK(unlink(exchanged) == 0 && rmdir(folder) == 0);
}

/* The stack of a thread that makes a secret and reads it. */
static char stack[256 << 10] __attribute__((aligned(4096)));

static void *make_and_read(void *arg)
{
    uint8_t *secret = arg;
    CHECK_OK(ls__secret_create(ls__env_posix(), exchanged));
    CHECK_OK(ls__secret_read(ls__env_posix(), exchanged, "--secret-file", secret));
    return NULL;
}

TEST(no_copy_of_a_secret_stays_on_the_stack)
{
    char folder[] = "/tmp/lockstep-secret-XXXXXX", text[66] = "";
    static uint8_t secret[32];
    pthread_attr_t on_it;
    pthread_t thread;
    CHECK(mkdtemp(folder) != NULL);
    snprintf(exchanged, sizeof exchanged, "%s/s", folder);
    CHECK(pthread_attr_init(&on_it) == 0 &&
          pthread_attr_setstack(&on_it, stack, sizeof stack) == 0);
    CHECK(pthread_create(&thread, &on_it, make_and_read, secret) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    FILE *file = fopen(exchanged, "r");
    CHECK(file != NULL && fread(text, 1, 65, file) == 65 && fclose(file) == 0);
    CHECK(memmem(stack, sizeof stack, secret, sizeof secret) == NULL);
    CHECK(memmem(stack, sizeof stack, text, 64) == NULL);
    CHECK(unlink(exchanged) == 0 && rmdir(folder) == 0);
}

TEST(a_secret_is_read_back_and_only_from_a_sound_file)
{
    const ls__env *env = ls__env_posix();
    char folder[] = "/tmp/lockstep-secret-XXXXXX", path[64];
    uint8_t a[32], b[32];
    struct stat info;
    CHECK(mkdtemp(folder) != NULL);
    snprintf(path, sizeof path, "%s/s", folder);
    CHECK_STATUS(ls__secret_read(env, path, "--secret-file", a), LS_ERR_SYSTEM);
    CHECK_OK(ls__secret_create(env, path));
    CHECK(stat(path, &info) == 0 && (info.st_mode & 0777) == 0600);
    CHECK_OK(ls__secret_read(env, path, "--secret-file", a));
    CHECK_OK(ls__secret_read(env, path, "--secret-file", b));
    CHECK(memcmp(a, b, sizeof a) == 0);
    CHECK_STATUS(ls__secret_create(env, path), LS_ERR_SYSTEM);
    static const char digits[] =
        "00112233445566778899aabbccddeeff00112233445566778899AABBCCDDEEFF\n";
    write_file(path, digits, 65);
    CHECK_OK(ls__secret_read(env, path, "--secret-file", a));
    CHECK_INT(a[1], 0x11);
    CHECK_INT(a[31], 0xff);
    write_file(path, digits, 64);
    CHECK_OK(ls__secret_read(env, path, "--secret-file", a));
    for (size_t bytes = 0; bytes < 64; bytes++) {
        write_file(path, digits, bytes);
        CHECK_STATUS(ls__secret_read(env, path, "--secret-file", a), LS_ERR_FORMAT);
    }
    write_file(path, "xx112233445566778899aabbccddeeff00112233445566778899AABBCCDDEEFF\n", 65);
    CHECK_STATUS(ls__secret_read(env, path, "--secret-file", a), LS_ERR_FORMAT);
    write_file(path, "00112233445566778899aabbccddeeff00112233445566778899AABBCCDDEEFF\n\n", 66);
    CHECK_STATUS(ls__secret_read(env, path, "--secret-file", a), LS_ERR_FORMAT);
    CHECK(chmod(path, 0604) == 0);
    CHECK_STATUS(ls__secret_read(env, path, "--secret-file", a), LS_ERR_AUTH);
    CHECK_CONTAINS(ls_error_message(), "mode 0604");
    CHECK(unlink(path) == 0 && rmdir(folder) == 0);
}

static void keep(ls_log_level level, const char *text, void *arg)
{
    (void)level;
    (void)snprintf(arg, 256, "%s", text);
}

TEST(an_interface_that_another_library_was_told_is_used_and_logged)
{
    bool set = false;
    char text[256] = "";
    ls__env_interface found;
    CHECK(setenv("GLOO_SOCKET_IFNAME", "lo", 1) == 0 && setenv("LOCKSTEP_DEBUG", "info", 1) == 0);
    ls_set_log_callback(keep, text);
    CHECK_OK(ls__interface_wanted(ls__env_posix(), &set, &found));
    ls_set_log_callback(NULL, NULL);
    CHECK(set);
    CHECK_STR(found.name, "lo");
    CHECK_SAYS(text, "%s=%s selects the interface %s, because LOCKSTEP_IFNAME is not set");
}

/* ---- the folder of names --------------------------------------------------------------------- */

static int no_folder(const ls__env *env, ls__env_folder *out)
{
    (void)env;
    *out = (ls__env_folder){.path = "/run/user/1"};
    return -EIO;
}

static int anothers_folder(const ls__env *env, ls__env_folder *out)
{
    (void)env;
    *out = (ls__env_folder){.path = "/tmp/lockstep-1", .uid = 4711, .mode = 0777};
    return -EPERM;
}

TEST(a_folder_of_names_that_cannot_be_used_is_said_with_its_path)
{
    ls__env env = *ls__env_posix();
    env.name_folder = no_folder;
    CHECK_STATUS(ls__name_folder_fail(&env, "ls_init"), LS_ERR_SYSTEM);
    CHECK_CONTAINS(ls_error_message(), "/run/user/1");
    CHECK_SAYS(ls_error_message(), "%s: the folder %s, which holds the socket names of this user, "
                                   "cannot be used: %s");
    env.name_folder = anothers_folder;
    CHECK_STATUS(ls__name_folder_fail(&env, "ls_init"), LS_ERR_SYSTEM);
    CHECK_CONTAINS(ls_error_message(), "belongs to uid 4711 and has mode 0777");
    CHECK_SAYS(
        ls_error_message(),
        "%s: the folder %s, which holds the socket names of this user (uid %ld), belongs to uid "
        "%ld and has mode %04o; it must belong to this user and have mode 0700: remove it, or "
        "set XDG_RUNTIME_DIR to a folder of this user for all ranks");
}

TEST_MAIN
