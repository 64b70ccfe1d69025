# SPDX-License-Identifier: Apache-2.0
"""What the built library exports and calls: the headers' functions, and no system behind the env."""

import functools
import pathlib
import re
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / "harness")]
from tap import BUILD, SOURCE, command, none_of, run, test

DECLARED = re.compile(r"\bLS_API\b[^;{(]*?\b(ls_\w+)\s*\(")

# What these layers must ask the env table for (docs/design.md, D11).
BEHIND_ENV = ("job_", "comm_", "launch_", "reduce_", "ddp_")
SYSTEM = set("""
poll ppoll epoll_wait epoll_create1 epoll_ctl select recv recvfrom recvmsg send sendto sendmsg
connect accept accept4 bind listen socket socketpair getsockopt setsockopt shutdown
read write pread pwrite readv writev open openat close fsync rename unlink fopen fclose fread fwrite
fgets pipe pipe2 dup dup2 fcntl ioctl stat fstat lseek ftruncate
mmap munmap madvise mprotect memfd_create shm_open
fork vfork execv execve execvp execvpe posix_spawn posix_spawnp waitpid wait4 waitid kill killpg
getpid getppid setpgid setsid prctl signal sigaction pthread_sigmask syscall
pthread_create pthread_join pthread_mutex_lock pthread_cond_wait pthread_cond_timedwait sem_wait
clock_gettime clock_nanosleep nanosleep usleep sleep gettimeofday time sched_yield sched_getaffinity
getrandom getentropy process_vm_readv process_vm_writev
""".split())
# Never in the library, except in ls_check_failed, in the children of a spawn, and where a thread is lost in a call of a
# backend's engine (src/comm/core/plugin_watch.c).
NEVER = {"abort", "exit", "_exit", "printf", "puts", "putchar", "fprintf", "vprintf", "__printf_chk",
         "__fprintf_chk", "perror"}
NEVER_EXCEPT = {"base_error", "base_env_posix_process", "comm_core_plugin_watch"}


def library(name="src/liblockstep"):
    found = sorted(p for p in BUILD.glob(f"{name}.so.*.*.*") if p.is_file())
    assert found, "no shared library in the build"
    return found[0]


def symbols_of(*nm_arguments):
    lines = command("nm", *nm_arguments).splitlines()
    return {line.split()[-1].split("@")[0] for line in lines if line.split()}


def declared(folder="include/lockstep"):
    names = set()
    for path in (SOURCE / folder).glob("*.h"):
        text = re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.DOTALL)
        names |= set(DECLARED.findall(text))
    return names


@functools.lru_cache(None)
def objects():
    """(object, what it needs) of the library; job/store/client.c is called job_store_client."""
    paths = sorted(pathlib.Path(f"{library()}.p").glob("*.c.o"))
    needs = {path.name: set() for path in paths}
    for line in command("nm", "-A", "--undefined-only", *paths).splitlines():
        path, symbol = line.rsplit(":", 1)[0], line.split()[-1]
        needs[pathlib.Path(path).name].add(symbol.split("@")[0])
    return [(name.removesuffix(".c.o"), symbols) for name, symbols in needs.items()]


@test
def exported_symbols_are_the_functions_of_the_headers():
    exported = symbols_of("-D", "--defined-only", library())
    problems = [f"{name}: declared, not exported" for name in sorted(declared() - exported)]
    problems += [f"{name}: exported, not declared" for name in sorted(exported - declared())]
    none_of(problems, f"{len(declared())} declared, {len(exported)} exported")


@test
def so_are_those_of_the_models():
    exported = symbols_of("-D", "--defined-only", library("models/liblockstep-models"))
    none_of(exported ^ declared("include/lockstep/models"), "exported or declared, not both")
    assert "ls_gpt2_new" in exported


@test
def library_and_command_link_no_engine_of_others():
    """MPI and CUDA come by plug-ins (lockstep/backend.h)."""
    for path in (library(), BUILD / "lockstep"):
        linked = command("ldd", path)
        none_of(re.findall(r"lib(?:mpi|open-pal|open-rte|pmix|pmi|ucp|ucs|cuda|cudart|nccl|cudnn|cublas)\w*\.so\S*",
                           linked), f"linked by {path.name}")
        assert "libc" in linked or "musl" in linked, linked


@test
def the_headers_declare_what_they_seem_to():
    assert {"ls_init", "ls_all_reduce", "ls_status_name", "ls_check_failed"} <= declared()


@test
def comm_launch_and_reduce_reach_the_system_through_the_env_table_only():
    none_of((f"{name}: {', '.join(sorted(needs & SYSTEM))}" for name, needs in objects()
             if name.startswith(BEHIND_ENV) and needs & SYSTEM),
            "system calls outside base/env_posix*.c")


@test
def the_env_table_itself_is_seen_to_make_system_calls():
    assert "base_env_posix_file" in [name for name, needs in objects() if needs & SYSTEM]


@test
def the_library_never_prints_exits_or_aborts():
    none_of((f"{name}: {', '.join(sorted(needs & NEVER))}" for name, needs in objects()
             if needs & NEVER and name not in NEVER_EXCEPT), "not in a library")


run()
