/* The real env table: Linux. The entries stand in env_posix_{thread,file,dir,net,process}.c, the
 * only files of the library that make system calls. */
#include "base/env_posix.h"

static const ls__env posix = {
    .now_ns = ls__posix_now_ns,
    .wall_ns = ls__posix_wall_ns,
    .sleep_until = ls__posix_sleep_until,
    .random_bytes = ls__posix_random_bytes,
    .allocate = ls__posix_allocate,
    .release = ls__posix_release,
    .thread_start = ls__posix_thread_start,
    .thread_join = ls__posix_thread_join,
    .park = ls__posix_park,
    .wake = ls__posix_wake,
    .yield = ls__posix_yield,
    .cores = ls__posix_cores,
    .poll = ls__posix_poll,
    .read = ls__posix_read,
    .write = ls__posix_write,
    .open = ls__posix_open,
    .close = ls__posix_close,
    .fsync = ls__posix_fsync,
    .rename = ls__posix_rename,
    .stat = ls__posix_stat,
    .list = ls__posix_list,
    .socket_pair = ls__posix_socket_pair,
    .send = ls__posix_send,
    .recv = ls__posix_recv,
    .peer_uid = ls__posix_peer_uid,
    .shm_create = ls__posix_shm_create,
    .shm_resize = ls__posix_shm_resize,
    .shm_map = ls__posix_shm_map,
    .shm_unmap = ls__posix_shm_unmap,
    .spawn = ls__posix_spawn,
    .wait_exit = ls__posix_wait_exit,
    .kill = ls__posix_kill,
    .kill_group = ls__posix_kill_group,
    .pid = ls__posix_pid,
};

const ls__env *ls__env_posix(void)
{
    return &posix;
}
