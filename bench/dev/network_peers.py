# SPDX-License-Identifier: Apache-2.0
"""All-reduce of Lockstep, MPI and gloo between the two hosts that network.sh made, in turns in one run.

    network_peers.py BUILD NAMES SECRET RANKS ROUNDS SIZE...

NAMES: of the hosts' network namespaces without the number at their end. Private buffers, as MPI and gloo
have no others. Needs the contenders of bench/peers/prepare; peers that are missing are left out. MPI
starts its daemons through a script that enters a host's namespaces; it has TCP with its defaults there.
"""

import pathlib
import statistics
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "peers"), str(HERE.parent)]
import contenders
from compare import interpreter, size_name, time_text
from session import Failed, Session

ADDRESSES = ("10.98.1.1", "10.98.1.2")
WARMUPS, SAMPLES, BUDGET_MS = 2, 5, 300
ENTER = """#!/bin/sh
# [OPTION...] ADDRESS COMMAND...: what ssh would be. Each host has a name of its own, by which MPI tells hosts apart.
while [ "${{1#-}}" != "$1" ]; do shift; done
case $1 in {first} | lockstep0) k=0 ;; *) k=1 ;; esac
shift
exec nsenter --net=/run/netns/{names}h$k unshare --uts sh -c "hostname lockstep$k; $*"
"""


def lockstep(build, names, secret, ranks, plane):
    """Both hosts' launchers; the second one ends with the first."""
    def node(k):
        return (f"nsenter --net=/run/netns/{names}h{k} {build}/lockstep run --nnodes 2 --node-rank {k} --rendezvous "
                f"{ADDRESSES[0]}:29400 --secret-file {secret} --data-plane {plane} -n {ranks} "
                f"{build}/peers/lockstep FOLDER")
    return ["sh", "-c", f"{node(1)} & {node(0)}; wait"], {}


def openmpi(contender, enter, ranks):
    agent = {"openmpi4": ["--mca", "plm_rsh_agent"], "openmpi5": ["--prtemca", "plm_ssh_agent"]}[contender.key]
    if contender.key == "openmpi4":
        interface = ["--mca", "oob_tcp_if_include", "10.98.1.0/24"]
    else:
        interface = ["--prtemca", "prte_if_include", "10.98.1.0/24"]
    hosts = ",".join(f"{address}:{ranks}" for address in ADDRESSES)
    return [enter, ADDRESSES[0], contender.launcher, *agent, enter, *interface, "--mca", "btl_tcp_if_include",
            "10.98.1.0/24", "--mca", "pml", "ob1", "--host", hosts, "--map-by", f"ppr:{ranks}:node", "--bind-to", "none",
            "-n", str(2 * ranks), contender.program(), "FOLDER"], contender.always()


def hydra(contender, enter, ranks):
    more = {"FI_PROVIDER": "tcp", "FI_TCP_IFACE": "wire", "MPIR_CVAR_CH4_NETMOD": "ofi"}
    return [enter, ADDRESSES[0], contender.launcher, "-launcher", "ssh", "-launcher-exec", enter, "-iface", "wire", "-hosts",
            ",".join(ADDRESSES), "-ppn", str(ranks), "-n", str(2 * ranks), contender.program(),
            "FOLDER"], {**contender.always(), **more}


def gloo(contender, names, ranks):
    return [contender.python, str(HERE.parent / "peers/gloo.py"), "FOLDER", str(2 * ranks),
            *(f"/run/netns/{names}h{k}:wire" for k in range(2))], {}


def field(build, names, secret, ranks, enter):
    """{name: (command, environment)}, ours first."""
    found = {f"Lockstep, {plane}": lockstep(build, names, secret, ranks, plane) for plane in ("plain", "tls")}
    for key in contenders.PEERS:
        contender = contenders.ALL[key](build, interpreter(build))
        start = {"openmpi4": openmpi, "openmpi5": openmpi, "intelmpi": hydra, "mpich5": hydra}.get(key)
        if contender.missing() or (start is None and key != "gloo"):
            print(f"# without {key}: {contender.missing() or 'it is not tried between hosts'}", flush=True)
        else:
            found[f"{contender.name} {contender.version()}"] = \
                start(contender, enter, ranks) if start else gloo(contender, names, ranks)
    return found


def main():
    build, names, secret, ranks, rounds, *sizes = sys.argv[1:]
    build, ranks = str(pathlib.Path(build).resolve()), int(ranks)
    with tempfile.TemporaryDirectory(prefix="lockstep-network-") as scratch:
        enter = pathlib.Path(scratch) / "enter"
        enter.write_text(ENTER.format(first=ADDRESSES[0], names=names))
        enter.chmod(0o755)
        everybody = field(build, names, secret, ranks, str(enter))
        print(f"# beside MPI and gloo, private buffers: median (lowest to highest) of {rounds} rounds")
        for size in map(int, sizes):
            compare(everybody, ranks, size, int(rounds), scratch)


def compare(everybody, ranks, size, rounds, scratch):
    """One contender after the other, each with a start of its own: MPI's daemons poll while they wait."""
    found = {name: [] for name in everybody}
    for _ in range(rounds):
        for name in list(found):
            session = Session(everybody[name][0], 2 * ranks, everybody[name][1], scratch, 60)
            try:
                samples, _ = session.ask(f"all_reduce {size} private {WARMUPS} {SAMPLES} {BUDGET_MS}")
                found[name].append(statistics.median(samples))
            except Failed as failure:
                del found[name]
                print(f"# {name}: {failure}", flush=True)
            finally:
                session.end(5)
    ours = statistics.median(found["Lockstep, plain"])
    for name, times in found.items():
        middle = statistics.median(times)
        print(f"{size_name(size):>12} {name:28} {time_text(middle):>9} ({time_text(min(times))} to "
              f"{time_text(max(times))}) {middle / ours:6.2f} x Lockstep, plain", flush=True)


if __name__ == "__main__":
    main()
