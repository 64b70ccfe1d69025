# SPDX-License-Identifier: Apache-2.0
"""Links for a job of two ranks: shared memory and TCP of one host, and a cable of a given rate between two network
namespaces with `tc tbf`, which are made and removed here. Peers' ranks, which are started one by one, begin with
`prefix(rank)`."""

import os
import pathlib
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parent.parent
PORT = 29417
# What passes at once after a rest: small beside a message, and large enough to reach the rate.
BURSTS = {"100mbit": "16k", "10gbit": "128k"}


class Refused(Exception):
    """This link cannot be measured here."""


def run(command, **more):
    done = subprocess.run(command, text=True, capture_output=True, **more)
    if done.returncode != 0:
        raise Refused(f"{' '.join(map(str, command[:4]))}: {done.stderr.strip()[-300:]}")
    return done.stdout


class Job:
    """Commands that run at the same time; the first one's status is the job's."""

    def __init__(self, commands, env=None):
        self.said = tempfile.TemporaryFile(mode="w+")
        self.processes = [subprocess.Popen(list(map(str, command)), env=env, stdin=subprocess.DEVNULL,
                                           stdout=subprocess.DEVNULL, stderr=self.said) for command in commands]

    def __enter__(self):
        return self

    def check(self):
        """Refused: one has failed."""
        if any(process.poll() for process in self.processes):
            self.said.seek(0)
            raise Refused(f"{self.processes[0].args[0]}: {self.said.read().strip()[-600:]}")

    def wait(self):
        for process in self.processes:
            process.wait()
            self.check()

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.wait()
        self.said.close()


class OneHost:
    address, device = "127.0.0.1", "lo"

    def __init__(self, title, transport):
        self.title, self.transport = title, transport

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def jobs(self, _, command, plane="tls"):
        """The commands of a `lockstep bench` of two ranks. plane: tls or plain, between hosts."""
        return [[*command, "-n", "2", "--transport", self.transport]]

    def prefix(self, _):
        return []

    def port(self):
        with socket.socket() as found:
            found.bind((self.address, 0))
            return found.getsockname()[1]


class Wire:
    """Two network namespaces with a link between them that carries no more than the rate. Each has half of the cores:
    else the scheduler may put the protocols of both hosts on one core, whose rank then is late (by 90 ms of a step of
    1.1 s; ranks of two machines would not be)."""

    address, device = "10.98.2.1", "wire"

    def __init__(self, title, rate):
        self.names = [f"lswire{os.getpid()}h{k}" for k in range(2)]
        self.title, self.rate, self.folder = title, rate, None

    def __enter__(self):
        missing = [tool for tool in ("ip", "tc", "nsenter", "taskset") if shutil.which(tool) is None]
        if missing or os.geteuid() != 0:
            raise Refused(f"needs root and {', '.join(missing) or 'ip, tc, nsenter, taskset'}")
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # through __exit__
        try:
            self.make()
        except Refused:
            self.__exit__()
            raise
        return self

    def make(self):
        a, b = self.names
        for name in self.names:
            run(["ip", "netns", "add", name])
            run(["ip", "-n", name, "link", "set", "lo", "up"])
        run(["ip", "-n", a, "link", "add", "wire", "type", "veth", "peer", "name", "wire", "netns", b])
        for k, name in enumerate(self.names):
            run(["ip", "-n", name, "addr", "add", f"10.98.2.{k + 1}/24", "dev", "wire"])
            run(["ip", "-n", name, "link", "set", "wire", "up"])
            run(["ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "wire", "root", "tbf", "rate", self.rate,
                 "burst", BURSTS.get(self.rate, "32k"), "latency", "20ms"])

    def __exit__(self, *_):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
        if self.folder is not None:
            self.folder.cleanup()

    def jobs(self, build, command, plane="tls"):
        self.folder = self.folder or tempfile.TemporaryDirectory(prefix="lockstep-wire-")
        secret = pathlib.Path(self.folder.name) / "secret"
        if not secret.exists():
            run([build / "lockstep", "secret", secret])
        return [[*self.prefix(k), build / "lockstep", "run", "--nnodes", "2", "--node-rank", k, "--rendezvous",
                 f"{self.address}:{PORT}", "--secret-file", secret, "--data-plane", plane, "-n", "1", *command] for k in range(2)]

    def prefix(self, k):
        half = max(1, os.cpu_count() // 2)
        first = k * half % os.cpu_count()
        return ["nsenter", f"--net=/run/netns/{self.names[k]}", "taskset", "-c", f"{first}-{first + half - 1}"]

    def port(self):
        return PORT + 1  # namespaces of our own


LINKS = {"shm": ("shared memory, 2 ranks", OneHost, "shm"), "tcp": ("TCP of one host, 2 ranks", OneHost, "tcp"),
         "1gbit": ("1 Gbit/s, 2 hosts", Wire, "1gbit")}


def link_of(name):
    title, kind, detail = LINKS[name]
    return kind(title, detail)


# ---- the wire floor -----------------------------------------------------------------------------

STREAM = """
import socket, sys, threading, time
address, port, rank, count, turns = sys.argv[1], *map(int, sys.argv[2:])
if rank == 0:
    listener = socket.create_server((address, port))
    peer = listener.accept()[0]
else:
    end = time.monotonic() + 10
    while True:
        try:
            peer = socket.create_connection((address, port))
            break
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
data, into = memoryview(bytearray(count)), memoryview(bytearray(count))
def receive(left):
    while left > 0:
        left -= peer.recv_into(into[:left])
for _ in range(turns):
    peer.sendall(b".")
    receive(1)
    begin = time.perf_counter()
    receiver = threading.Thread(target=receive, args=(count,))
    receiver.start()
    peer.sendall(data)
    receiver.join()
    print((time.perf_counter() - begin) * 1e3)
"""


def stream_ms(link, count, turns=3):
    """Milliseconds in which a bare TCP stream takes `count` bytes from each end to the other, both at once."""
    port = link.port()
    ends = [subprocess.Popen([*link.prefix(rank), sys.executable, "-c", STREAM, link.address, str(port), str(rank),
                              str(count), str(turns)], text=True, stdout=subprocess.PIPE) for rank in range(2)]
    texts = [end.communicate(timeout=60)[0].split() for end in ends]
    if any(end.returncode for end in ends):
        raise Refused(f"{link.title}: no stream of TCP")
    return statistics.median(max(map(float, pair)) for pair in zip(*texts))
