/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of the real env table; env_posix.c puts them together. */
#ifndef LS_BASE_ENV_POSIX_H
#define LS_BASE_ENV_POSIX_H

#include "base/env.h"

/* thread: clock, threads, memory, random */
uint64_t ls__posix_now_ns(const ls__env *env);
uint64_t ls__posix_wall_ns(const ls__env *env);
void ls__posix_sleep_until(const ls__env *env, uint64_t deadline_ns);
int ls__posix_random_bytes(const ls__env *env, void *out, size_t bytes);
void *ls__posix_allocate(const ls__env *env, size_t bytes);
void ls__posix_release(const ls__env *env, void *memory, size_t bytes);
int ls__posix_thread_start(const ls__env *env, const char *name, void (*fn)(void *arg), void *arg,
                           ls__env_thread **out);
void ls__posix_thread_join(const ls__env *env, ls__env_thread *thread);
int ls__posix_park(const ls__env *env, _Atomic uint32_t *word, uint32_t expected,
                   uint64_t deadline_ns);
void ls__posix_wake(const ls__env *env, _Atomic uint32_t *word, int count);
void ls__posix_yield(const ls__env *env);
int ls__posix_cores(const ls__env *env);

/* file: descriptors, files, shared memory */
/* Descriptors 0-2 stay the standard ones, even in a program that was started with one of them
 * closed: else what it prints lands in memory that peers read. Takes fd (-1: errno) and returns it,
 * or its copy above 2, or -errno. */
int ls__posix_above_standard(int fd);
int ls__posix_pair_above_standard(int pair[2]); /* 0, or -errno with both closed */
int ls__posix_poll(const ls__env *env, ls__env_poll *items, int count, uint64_t deadline_ns);
ssize_t ls__posix_read(const ls__env *env, int fd, void *out, size_t bytes);
ssize_t ls__posix_write(const ls__env *env, int fd, const void *in, size_t bytes);
int ls__posix_open(const ls__env *env, const char *path, int flags, int mode);
int ls__posix_close(const ls__env *env, int fd);
int ls__posix_fsync(const ls__env *env, int fd);
int ls__posix_rename(const ls__env *env, const char *from, const char *to);
int ls__posix_shm_create(const ls__env *env, const char *name, size_t bytes);
int ls__posix_shm_resize(const ls__env *env, int fd, size_t bytes);
int64_t ls__posix_shm_size(const ls__env *env, int fd);
int ls__posix_shm_seal(const ls__env *env, int fd);
int ls__posix_shm_map(const ls__env *env, int fd, size_t reserve, size_t phase, void **out);
void ls__posix_shm_unmap(const ls__env *env, void *memory, size_t reserve);
void ls__posix_shm_forget(const ls__env *env, void *memory, size_t bytes);
size_t ls__posix_address_space(const ls__env *env);

/* dir: kinds of files, folders */
int ls__posix_stat(const ls__env *env, const char *path, bool follow, ls__env_stat *out);
int ls__posix_read_link(const ls__env *env, const char *path, char *out, size_t bytes);
int ls__posix_list(const ls__env *env, const char *path, int (*each)(void *arg, const char *name),
                   void *arg);

int ls__posix_remove_file(const ls__env *env, const char *path);
int ls__posix_remove_folder(const ls__env *env, const char *path);
int ls__posix_lock_file(const ls__env *env, int fd);
int ls__posix_map_file(const ls__env *env, const char *path, void **out, size_t *bytes);
void ls__posix_unmap_file(const ls__env *env, void *memory, size_t bytes);

/* net: connections of this host */
int ls__posix_socket_pair(const ls__env *env, int out[2]);
ssize_t ls__posix_send(const ls__env *env, int fd, const void *in, size_t bytes, int pass_fd);
ssize_t ls__posix_recv(const ls__env *env, int fd, void *out, size_t bytes, int *got_fd);
int ls__posix_peer_uid(const ls__env *env, int fd, uid_t *uid);
int ls__posix_peer_pid(const ls__env *env, int fd, pid_t *pid);
int ls__posix_host_listen(const ls__env *env, const char *name);
void ls__posix_host_unlisten(const ls__env *env, int fd, const char *name);
int ls__posix_name_folder(const ls__env *env, ls__env_folder *out);
int ls__posix_host_accept(const ls__env *env, int fd);
int ls__posix_host_connect(const ls__env *env, const char *name);

/* tcp: streams between hosts, pollers, events */
int ls__posix_tcp_listen(const ls__env *env, const char *address, int port);
int ls__posix_tcp_accept(const ls__env *env, int fd, char *address, size_t bytes);
int ls__posix_tcp_connect(const ls__env *env, const char *address, int port, const char *from);
int ls__posix_tcp_connected(const ls__env *env, int fd);
int64_t ls__posix_tcp_unanswered_ms(const ls__env *env, int fd);
int ls__posix_tcp_name(const ls__env *env, int fd, bool peer, char *address, size_t bytes,
                       int *port);
ssize_t ls__posix_send_spans(const ls__env *env, int fd, const ls__env_span *spans, int count);
ssize_t ls__posix_recv_rooms(const ls__env *env, int fd, const ls__env_room *rooms, int count);
int ls__posix_resolve(const ls__env *env, const char *name, char (*out)[LS__ADDRESS_MAX], int room);
int ls__posix_interfaces(const ls__env *env, ls__env_interface *out, int room);
int ls__posix_poller_open(const ls__env *env);
int ls__posix_poller_add(const ls__env *env, int poller, int fd, uint64_t tag);
int ls__posix_poller_remove(const ls__env *env, int poller, int fd);
int ls__posix_poller_wait(const ls__env *env, int poller, ls__env_ready *out, int room,
                          uint64_t deadline_ns);
int ls__posix_event_open(const ls__env *env);
void ls__posix_event_set(const ls__env *env, int fd);
void ls__posix_event_clear(const ls__env *env, int fd);

/* process: children */
int ls__posix_spawn(const ls__env *env, const ls__env_spawn *spawn, pid_t *pid, int *pidfd);
int ls__posix_wait_exit(const ls__env *env, pid_t pid, ls__env_exit *out);
int ls__posix_kill(const ls__env *env, int pidfd, int signal);
int ls__posix_kill_group(const ls__env *env, pid_t pid, int signal);
pid_t ls__posix_pid(const ls__env *env);
pid_t ls__posix_starter(const ls__env *env, const char *name);
uid_t ls__posix_uid(const ls__env *env);
int ls__posix_watch_process(const ls__env *env, pid_t pid);
bool ls__posix_process_traced(const ls__env *env, pid_t pid);
int ls__posix_process_state(const ls__env *env, pid_t pid);

/* stop: SIGINT and SIGTERM as a wish */
void ls__posix_catch_stop(const ls__env *env, const _Atomic uint32_t *no_more);
void ls__posix_release_stop(const ls__env *env);
int ls__posix_caught_stop(const ls__env *env);

/* launch: what only the launcher asks for */
int ls__posix_pipe(const ls__env *env, int out[2]);
int ls__posix_signals_open(const ls__env *env, const int *signals, int count, uint64_t *saved);
void ls__posix_signals_close(const ls__env *env, int fd, uint64_t saved);
int ls__posix_signal_next(const ls__env *env, int fd);
int ls__posix_watch_parent(const ls__env *env, pid_t parent);
int ls__posix_adopt_orphans(const ls__env *env);
int ls__posix_wait_any(const ls__env *env, ls__env_exit *out);
void ls__posix_stop_self(const ls__env *env);
int ls__posix_kill_children(const ls__env *env, int signal);
int ls__posix_mark(const ls__env *env, const char *variable);
int ls__posix_kill_marked(const ls__env *env, const char *variable, int signal);
int ls__posix_allow_descriptors(const ls__env *env, int count);
int ls__posix_make_folder(const ls__env *env, const char *path);
int ls__posix_free_bytes(const ls__env *env, const char *path, uint64_t *out);
int ls__posix_host_name(const ls__env *env, char *out, size_t bytes);
int ls__posix_free_port(const ls__env *env);
bool ls__posix_is_terminal(const ls__env *env, int fd);

#endif
