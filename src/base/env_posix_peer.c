/* Cross-memory attach: private memory of another process, copied by the kernel. */
#include <errno.h>
#include <sys/uio.h>

#include "base/compiler.h"
#include "base/env_posix.h"

/* An address of another process: nothing here looks at what is there. */
static void *theirs(uint64_t at)
{
    return (void *)(uintptr_t)at;
}

ssize_t ls__posix_peer_read(const ls__env *env LS__UNUSED, pid_t pid, uint64_t from, void *to,
                            size_t bytes)
{
    const struct iovec here = {to, bytes}, there = {theirs(from), bytes};
    const ssize_t got = process_vm_readv(pid, &here, 1, &there, 1, 0);
    return got < 0 ? -errno : got;
}

ssize_t ls__posix_peer_write(const ls__env *env LS__UNUSED, pid_t pid, uint64_t to,
                             const void *from, size_t bytes, uint64_t mark_at, uint64_t mark)
{
    const struct iovec here[] = {{(void *)(uintptr_t)from, bytes}, {&mark, sizeof mark}};
    const struct iovec there[] = {{theirs(to), bytes}, {theirs(mark_at), sizeof mark}};
    const ssize_t got = process_vm_writev(pid, here, 2, there, 2, 0);
    return got < 0 ? -errno : got;
}
