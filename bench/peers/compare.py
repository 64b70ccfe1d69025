"""Lockstep's collectives beside Open MPI, MPICH and gloo, in turns in one run.

For each number of ranks and each size every contender is asked once per round (session.py: all are
alive, those whose turn it is not are asleep), in another order each round. A cell is the median of
the rounds' medians; the ratio is the peer's time over ours, the median over the rounds, with the
lowest and the highest. The peer of a row is the best one by its median. Rules of a sample:
contender.h; settings: contenders.py. A new peer is a class there and a program that answers the commands of
contender.h.

    compare.py [--ranks 2,4,6] [--sizes 4,64,1M] [--parts all_reduce,others,floor,launch]
               [--rounds 5] [--minutes 12] [--peers openmpi,mpich,gloo] [--untuned] [--json FILE]
               [--build FOLDER] [--python INTERPRETER]

When the minutes are over (a busy machine), what is left is measured in one round, from 100 MB not at all.
--ranks or --sizes alone measure all_reduce only. `make compare-collectives` installs the peers first.
"""

import argparse
import json
import os
import pathlib
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time

import contenders
from session import Failed, Gone, Session, launch_ms

HERE = pathlib.Path(__file__).resolve().parent
RANKS = [2, 4, 6]
SIZES = "4,64,1Ki,16Ki,64Ki,1M,10M,100M,1000M"
OTHERS = ["all_gather", "broadcast", "reduce_scatter"]
OTHER_SIZES = "1M,10M"
PARTS = ["all_reduce", "others", "floor", "launch"]
WARMUPS, SAMPLES = 5, 9
UNITS = {"": 1, "B": 1, "K": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}


def parse_size(text):
    match = re.fullmatch(r"(\d+)([A-Za-z]*)", text)
    if not match or match.group(2) not in UNITS or int(match.group(1)) == 0:
        raise argparse.ArgumentTypeError(f"'{text}' is not a size; give bytes like 4, 64Ki, 1M or 100M")
    size = int(match.group(1)) * UNITS[match.group(2)]
    if size % 4 != 0:
        raise argparse.ArgumentTypeError(f"{text} is not a multiple of 4 bytes, the size of a float32")
    return size


def list_of(kind):
    return lambda text: [kind(item) for item in text.split(",")]


def one_of(names):
    def choose(text):
        if text not in names:
            raise argparse.ArgumentTypeError(f"'{text}' is not one of {', '.join(names)}")
        return text
    return choose


def parse(arguments):
    parser = argparse.ArgumentParser(prog="compare.py", usage=__doc__)
    parser.add_argument("--ranks", type=list_of(int))
    parser.add_argument("--sizes", type=list_of(parse_size))
    parser.add_argument("--parts", type=list_of(one_of(PARTS)))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", type=list_of(one_of(list(contenders.ALL)[1:])),
                        default=list(contenders.ALL)[1:])
    parser.add_argument("--minutes", type=float, default=12.0)
    parser.add_argument("--untuned", action="store_true")
    parser.add_argument("--json")
    parser.add_argument("--build", default="build")
    parser.add_argument("--command", help="what to name in the rows as the command",
                        default=" ".join(["python3", "bench/peers/compare.py"] + sys.argv[1:]))
    parser.add_argument("--python", help="an interpreter that has torch")
    options = parser.parse_args(arguments)
    short = options.ranks or options.sizes
    options.parts = options.parts or (["all_reduce"] if short else PARTS)
    options.ranks = options.ranks or RANKS
    options.sizes = options.sizes or list_of(parse_size)(SIZES)
    options.json = options.json or f"{options.build}/compare-collectives.json"
    options.python = options.python or interpreter(options.build)
    return options


def interpreter(build):
    own = pathlib.Path(build) / "peers/venv/bin/python"
    return str(own) if own.exists() else "/usr/bin/python3"


def size_name(size):
    for unit, name in ((10**6, "MB"), (2**10, "KB")):
        if size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"


def rounds_of(op, size, wanted):
    """Large ones are few: one round of a gigabyte takes a minute."""
    few = size >= 10**8 or op in OTHERS
    return min(wanted, 1 if size >= 10**9 else 3 if few else wanted)


def samples_of(size):
    return (3, 0) if size >= 10**9 else (SAMPLES, 800 if size >= 10**8 else 100)


def has_memory(ranks, size):
    """Every rank's buffer, and as much again that a peer may take for itself."""
    with open("/proc/meminfo") as file:
        free = int(re.search(r"MemAvailable: *(\d+) kB", file.read()).group(1)) * 1024
    return ranks * size * 2.2 < free


class Field:
    """All contenders, and their sessions for one number of ranks."""

    def __init__(self, options, scratch):
        self.options, self.scratch = options, scratch
        self.deadline = time.monotonic() + options.minutes * 60
        everybody = [contenders.ALL[name](options.build, options.python)
                     for name in ["lockstep"] + options.peers]
        for contender in everybody:
            if contender.missing():
                print(f"# without {contender.name}: {contender.missing()}", flush=True)
        self.all = [c for c in everybody if not c.missing()]
        self.labels = {c.name: c.name if c.name == "Lockstep" else f"{c.name} {c.version()}"
                       for c in self.all}
        self.sessions = {}

    def session(self, contender, ranks, size):
        environment = contender.environment(ranks, size, not self.options.untuned)
        key = (contender.name, ranks, tuple(sorted(environment.items())))
        if key not in self.sessions:
            command = contender.command(ranks, "FOLDER")
            self.sessions[key] = Session(command, ranks, environment, self.scratch)
        return key, self.sessions[key]

    def ask(self, contender, registered, ranks, op, size):
        """One turn: the median of its samples, or None when it cannot."""
        samples, budget = samples_of(size)
        buffers = "registered" if registered else "private"
        key, session = self.session(contender, ranks, size)
        try:
            found, _ = session.ask(f"{op} {size} {buffers} {WARMUPS} {samples} {budget}")
        except Failed as failure:
            if contender.name == "Lockstep":
                raise SystemExit(f"compare.py: Lockstep: {op} {ranks} x {size_name(size)}: {failure}")
            print(f"# {contender.name}: {op} {ranks} x {size_name(size)}: {failure}", flush=True)
            if isinstance(failure, Gone):
                self.sessions.pop(key).end()
            return None
        return found

    def late(self):
        return time.monotonic() > self.deadline

    def end(self):
        for session in self.sessions.values():
            session.end()
        self.sessions.clear()


def measure(field, ranks, op, size):
    """{(contender, registered): one list of samples a round}; who failed once is left out."""
    turns = [(c, r) for c in field.all for r in c.registered]
    found = {(c.name, r): [] for c, r in turns}
    rounds = 1 if field.late() else rounds_of(op, size, field.options.rounds)
    for k in range(rounds):
        for contender, registered in turns[k % len(turns):] + turns[:k % len(turns)]:
            key = (contender.name, registered)
            if key in found:
                samples = field.ask(contender, registered, ranks, op, size)
                if samples is None:
                    del found[key]
                else:
                    found[key].append(samples)
    return found


def median_ms(rounds):
    return statistics.median(statistics.median(samples) for samples in rounds)


def paired(ours, peer):
    """Ratio, lowest, highest: of rounds, or with a single round of all samples."""
    if len(ours) == 1:
        ratio = statistics.median(peer[0]) / statistics.median(ours[0])
        return ratio, min(peer[0]) / max(ours[0]), max(peer[0]) / min(ours[0])
    ratios = [statistics.median(p) / statistics.median(o) for o, p in zip(ours, peer)]
    return statistics.median(ratios), min(ratios), max(ratios)


def make_row(name, peer, ours, theirs, **more):
    ratio, low, high = paired(ours, theirs)
    return {"name": name, "peer": peer, "ours_ms": median_ms(ours), "peer_ms": median_ms(theirs),
            "ratio": ratio, "spread": (high - low) / ratio, "ratio_low": low, "ratio_high": high,
            "rounds": len(ours), **more}


def rows_of(field, ranks, op, size, found):
    """Two rows: our buffers registered and private, each beside the best peer."""
    peers = {name: rounds for (name, registered), rounds in found.items() if name != "Lockstep"}
    if not peers:
        return []
    best = min(peers, key=lambda name: median_ms(peers[name]))
    all_ms = {field.labels[name]: median_ms(rounds) for name, rounds in peers.items()}
    return [make_row(f"{op} {ranks} x {size_name(size)}, {'registered' if r else 'private'}",
                     field.labels[best], found["Lockstep", r], peers[best], operation=op,
                     ranks=ranks, bytes=size, buffers="registered" if r else "private",
                     peers_ms=all_ms)
            for r in (True, False)]


def time_text(ms):
    return f"{ms * 1e3:.3g} us" if ms < 0.9995 else f"{ms:.3g} ms" if ms < 999.5 else f"{ms:.0f} ms"


def ratio_text(row):
    return f"{row['ratio']:.2f} [{row['ratio_low']:.2f}, {row['ratio_high']:.2f}]"


LINE = "{:26} {:>11} {:>11} {:>11}  {:22} {:>20} {:>20}"


def print_header():
    print("# float32, sum; medians of rounds; ratio = best peer / ours [lowest, highest round]")
    print(LINE.format("# operation, ranks x size", "registered", "private", "best peer", "", "ratio registered",
                      "ratio private"), flush=True)


def print_cell(rows):
    registered, private = rows
    print(LINE.format(f"{private['operation']} {private['ranks']} x {size_name(private['bytes'])}",
                      time_text(registered["ours_ms"]), time_text(private["ours_ms"]),
                      time_text(private["peer_ms"]), private["peer"], ratio_text(registered),
                      ratio_text(private)), flush=True)


def cells(options):
    found = [("all_reduce", size) for size in options.sizes if "all_reduce" in options.parts]
    if "others" in options.parts:
        found += [(op, size) for op in OTHERS for size in list_of(parse_size)(OTHER_SIZES)]
    return found


def compare(field, ranks):
    """All cells of one number of ranks, with the same sessions."""
    rows = []
    for op, size in cells(field.options):
        if not has_memory(ranks, size):
            print(f"# {op} {ranks} x {size_name(size)}: left out, too little memory", flush=True)
            continue
        if field.late() and size >= 10**8:
            print(f"# {op} {ranks} x {size_name(size)}: left out, the time is over", flush=True)
            continue
        cell = rows_of(field, ranks, op, size, measure(field, ranks, op, size))
        if cell:
            print_cell(cell)
        else:
            print(f"# {op} {ranks} x {size_name(size)}: no peer could", flush=True)
        rows += cell
    field.end()
    return rows


def compare_floor(field):
    """What memory allows: the bench command's own floor, in turns with the all-reduce."""
    print("\n# all_reduce in registered memory beside the same memory traffic without communication")
    rows = []
    size = 10**8
    for ranks in field.options.ranks:
        path = f"{field.scratch}/floor.json"
        subprocess.run([f"{field.options.build}/lockstep", "bench", "all-reduce", "-n", str(ranks),
                        "--sizes", str(size), "--samples", "9", "--json", path], check=True,
                       stdout=subprocess.DEVNULL)
        found = json.loads(pathlib.Path(path).read_text())[0]
        ratio = found["floor_ms"] / found["time_ms"]
        rows.append({"name": f"all_reduce {ranks} x {size_name(size)}, registered",
                     "peer": "memory floor", "ours_ms": found["time_ms"],
                     "peer_ms": found["floor_ms"], "ratio": ratio, "spread": found["spread"],
                     "operation": "floor", "ranks": ranks, "bytes": size, "buffers": "registered"})
        print(f"{ranks} x {size_name(size)}: ours {time_text(found['time_ms'])}, floor "
              f"{time_text(found['floor_ms'])}, {found['time_ms'] / found['floor_ms']:.2f} x the floor",
              flush=True)
    return rows


def compare_launch(field):
    ranks, rounds = 8, field.options.rounds
    print(f"\n# from the launcher's start to the first finished all-reduce, {ranks} ranks")
    found = {contender.name: [] for contender in field.all}
    for k in range(rounds):
        for contender in field.all:
            if contender.name == "gloo" and k > 0:
                continue  # it takes seconds
            environment = contender.environment(ranks, 4, not field.options.untuned)
            try:
                found[contender.name].append([launch_ms(contender.command(ranks, "--once"),
                                                        environment)])
            except Failed as failure:
                print(f"# {contender.name}: launch: {failure}", flush=True)
    rows = []
    for name, times in found.items():
        if times and name != "Lockstep":
            rows.append(make_row(f"launch of {ranks} ranks to the first all_reduce",
                                 field.labels[name], found["Lockstep"][:len(times)], times,
                                 operation="launch", ranks=ranks, bytes=4, buffers="private"))
            print(f"ours {time_text(rows[-1]['ours_ms'])}, {field.labels[name]} "
                  f"{time_text(rows[-1]['peer_ms'])}, ratio {ratio_text(rows[-1])}", flush=True)
    return rows


def busy_s():
    """Seconds of all cores that were not idle since the machine started."""
    with open("/proc/stat") as file:
        user, nice, system, _, _, irq, softirq, steal = map(int, file.readline().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def own_s():
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def processor():
    with open("/proc/cpuinfo") as file:
        found = re.search(r"model name\s*: (.*)", file.read())
    return found.group(1) if found else "unknown processor"


def conditions(start, busy, own, options):
    """What the rows must be read with: the machine, and how much others used of it meanwhile."""
    passed = time.monotonic() - start
    others = max(0.0, (busy_s() - busy - (own_s() - own)) / passed)
    return {"processor": processor(), "cores": os.cpu_count(), "others_cores": round(others, 2),
            "seconds": round(passed), "date": time.strftime("%Y-%m-%d"),
            "command": options.command,
            "settings": "defaults" if options.untuned else "best known"}


def main():
    options = parse(sys.argv[1:])
    start, busy, own = time.monotonic(), busy_s(), own_s()
    rows = []
    with tempfile.TemporaryDirectory(prefix="lockstep-peers-") as scratch:
        field = Field(options, scratch)
        print("# " + ", ".join(field.labels.values()))
        try:
            if cells(options):
                print_header()
                for ranks in options.ranks:
                    rows += compare(field, ranks)
        finally:
            field.end()
        if "floor" in options.parts:
            rows += compare_floor(field)
        if "launch" in options.parts:
            rows += compare_launch(field)
    machine = conditions(start, busy, own, options)
    rows = [{**row, "conditions": machine} for row in rows]
    pathlib.Path(options.json).write_text(json.dumps(rows, indent=1) + "\n")
    print(f"\n# {machine['processor']}, {machine['cores']} cores, {machine['seconds']} s; other "
          f"processes kept {machine['others_cores']} cores busy meanwhile\n# rows: {options.json}")


if __name__ == "__main__":
    main()
