/* SPDX-License-Identifier: Apache-2.0 */
/* The entries of the simulated env table that stand in files of their own; see base/env.h. */
#ifndef LS_SIM_ENTRIES_H
#define LS_SIM_ENTRIES_H

#include "sim/sim.h"

/* memory.c */
void *ls__sim_env_allocate(const ls__env *env, size_t bytes);
void ls__sim_env_release(const ls__env *env, void *memory, size_t bytes);

/* object.c */
int ls__sim_env_close(const ls__env *env, int fd);
int ls__sim_env_poll(const ls__env *env, ls__env_poll *items, int count, uint64_t deadline_ns);
int ls__sim_env_poller_open(const ls__env *env);
int ls__sim_env_poller_add(const ls__env *env, int poller, int fd, uint64_t tag);
int ls__sim_env_poller_remove(const ls__env *env, int poller, int fd);
int ls__sim_env_poller_wait(const ls__env *env, int poller, ls__env_ready *out, int room,
                            uint64_t deadline_ns);
int ls__sim_env_event_open(const ls__env *env);
void ls__sim_env_event_set(const ls__env *env, int fd);
void ls__sim_env_event_clear(const ls__env *env, int fd);

/* stream.c */
int ls__sim_env_socket_pair(const ls__env *env, int out[2]);
int ls__sim_env_pipe(const ls__env *env, int out[2]);
int ls__sim_env_host_listen(const ls__env *env, const char *name);
void ls__sim_env_host_unlisten(const ls__env *env, int fd, const char *name);
int ls__sim_env_name_folder(const ls__env *env, ls__env_folder *out);
int ls__sim_env_host_accept(const ls__env *env, int fd);
int ls__sim_env_host_connect(const ls__env *env, const char *name);
int ls__sim_env_tcp_listen(const ls__env *env, const char *address, int port);
int ls__sim_env_tcp_accept(const ls__env *env, int fd, char *address, size_t bytes);
int ls__sim_env_tcp_connect(const ls__env *env, const char *address, int port, const char *from);
int ls__sim_env_tcp_connected(const ls__env *env, int fd);
int ls__sim_env_tcp_name(const ls__env *env, int fd, bool peer, char *address, size_t bytes,
                         int *port);
ssize_t ls__sim_env_send(const ls__env *env, int fd, const void *in, size_t bytes, int pass_fd);
ssize_t ls__sim_env_recv(const ls__env *env, int fd, void *out, size_t bytes, int *got_fd);
ssize_t ls__sim_env_send_spans(const ls__env *env, int fd, const ls__env_span *spans, int count);
ssize_t ls__sim_env_recv_rooms(const ls__env *env, int fd, const ls__env_room *rooms, int count);

/* process.c */
int ls__sim_env_spawn(const ls__env *env, const ls__env_spawn *spawn, pid_t *pid, int *pidfd);
int ls__sim_env_wait_exit(const ls__env *env, pid_t pid, ls__env_exit *out);
int ls__sim_env_wait_any(const ls__env *env, ls__env_exit *out);
int ls__sim_env_kill(const ls__env *env, int pidfd, int signal);
int ls__sim_env_kill_group(const ls__env *env, pid_t pid, int signal);
int ls__sim_env_kill_children(const ls__env *env, int signal);
int ls__sim_env_kill_marked(const ls__env *env, const char *variable, int signal);
int ls__sim_env_watch_process(const ls__env *env, pid_t pid);
int ls__sim_env_watch_parent(const ls__env *env, pid_t parent);
int ls__sim_env_signals_open(const ls__env *env, const int *signals, int count, uint64_t *saved);
void ls__sim_env_signals_close(const ls__env *env, int fd, uint64_t saved);
int ls__sim_env_signal_next(const ls__env *env, int fd);

/* file.c */
int ls__sim_file_open(const char *path, int flags, int mode);
ssize_t ls__sim_file_read(ls__sim_object *file, void *out, size_t bytes);
ssize_t ls__sim_file_write(ls__sim_object *file, const void *in, size_t bytes);
void ls__sim_file_gone(ls__sim_object *file);
int ls__sim_env_fsync(const ls__env *env, int fd);
int ls__sim_env_rename(const ls__env *env, const char *from, const char *to);
int ls__sim_env_stat(const ls__env *env, const char *path, bool follow, ls__env_stat *out);
int ls__sim_env_list(const ls__env *env, const char *path, int (*each)(void *arg, const char *name),
                     void *arg);
int ls__sim_env_remove_file(const ls__env *env, const char *path);
int ls__sim_env_remove_folder(const ls__env *env, const char *path);
int ls__sim_env_lock_file(const ls__env *env, int fd);
int ls__sim_env_map_file(const ls__env *env, const char *path, void **out, size_t *bytes);
void ls__sim_env_unmap_file(const ls__env *env, void *memory, size_t bytes);
int ls__sim_env_make_folder(const ls__env *env, const char *path);
int ls__sim_env_free_bytes(const ls__env *env, const char *path, uint64_t *out);

/* Of the instrumented library: see instrument.h. */
void ls__sim_atomic_point(void);
extern int ls__sim_fuel;
extern char **ls__sim_environ;
char *ls__sim_getenv(const char *name);
int ls__sim_setenv(const char *name, const char *value, int overwrite);
void *ls__sim_malloc(size_t bytes);
void *ls__sim_calloc(size_t count, size_t bytes);
void *ls__sim_realloc(void *memory, size_t bytes);
void ls__sim_free(void *memory);

#endif
