# SPDX-License-Identifier: Apache-2.0
"""Lockstep's collectives beside those of MPI libraries, oneCCL and gloo, in turns in one run.

For each number of ranks and each size every contender is asked once per round (session.py: all are
alive, those whose turn it is not are asleep), in another order each round. A cell is the median of
the rounds' medians; the ratio is the peer's time over ours, the median over the rounds, with the
lowest and the highest. The peer of a row is the best of all by its median. A peer that takes more
than twice the best peer's time in the first round takes no part in the others. Rules of a sample:
contender.h; the contenders: contenders.py; their settings: settings.py. A new peer is a class in
contenders.py and a program that answers the commands of contender.h.

    compare.py [--ranks 2,4,6] [--sizes 4,64,1M] [--parts all_reduce,others,floor,launch]
               [--rounds 5] [--minutes 15] [--peers openmpi5,intelmpi,gloo] [--untuned] [--json FILE]
               [--build FOLDER] [--python INTERPRETER]
    compare.py --sweep [--ranks 2,4,6] [--peers ...] [--operations all_reduce,all_gather,...]

When the minutes are over (a busy machine), the rest is measured in fewer rounds, from 100 MB not at all.
--ranks or --sizes alone measure all_reduce only. --sweep finds the peers' best settings and writes them
into this folder's table. `make compare-collectives` installs the peers first.
"""

import argparse
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]
import conditions
import contenders
import launches
from session import Failed, Gone, Session, launch_ms
from settings import Table
import sweep

RANKS = [2, 4, 6]
SIZES = "4,64,1Ki,16Ki,64Ki,1M,10M,100M,1000M"
OTHERS = ["all_gather", "broadcast", "reduce_scatter", "all_to_all"]
OTHER_SIZES = "1M,10M"
OPERATIONS = ["all_reduce", *OTHERS]
PARTS = ["all_reduce", "others", "floor", "launch"]
WARMUPS, SAMPLES = 5, 9
SLOW = 2  # times the best peer's time: no further rounds
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
    parser.add_argument("--peers", type=list_of(one_of(contenders.PEERS)),
                        default=contenders.PEERS)
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--operations", type=list_of(one_of(OPERATIONS)), default=OPERATIONS)
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--untuned", action="store_true")
    parser.add_argument("--json")
    parser.add_argument("--build", default="build")
    parser.add_argument("--command", help="what to name in the rows as the command",
                        default=" ".join(["python3", "bench/peers/compare.py"] + sys.argv[1:]))
    parser.add_argument("--python", help="an interpreter that has torch")
    options = parser.parse_args(arguments)
    short = options.ranks or options.sizes
    options.parts = options.parts or (["all_reduce"] if short else PARTS)
    options.other_sizes = options.sizes or list_of(parse_size)(OTHER_SIZES)
    options.ranks = options.ranks or RANKS
    options.sizes = options.sizes or list_of(parse_size)(SIZES)
    options.json = options.json or f"{options.build}/compare-collectives.json"
    options.python = options.python or interpreter(options.build)
    return options


def interpreter(build):
    own = pathlib.Path(build) / "torch-venv/bin/python"
    return str(own) if own.exists() else "/usr/bin/python3"


def size_name(size):
    for unit, name in ((10**6, "MB"), (2**10, "KB")):
        if size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"


def rounds_of(size, wanted):
    """Large ones are few: a turn at a gigabyte takes ten seconds."""
    return min(wanted, 3) if size >= 10**8 else wanted


def samples_of(size):
    """Warm-ups, samples, and milliseconds after which no further sample begins."""
    return (1, 1, 0) if size >= 10**9 else (WARMUPS, SAMPLES, 800 if size >= 10**8 else 100)


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
        everybody = [contenders.ALL[key](options.build, options.python)
                     for key in ["lockstep"] + options.peers]
        for contender in everybody:
            if contender.missing():
                print(f"# without {contender.key}: {contender.missing()}", flush=True)
        self.all = [c for c in everybody if not c.missing()]
        self.labels = {c.key: c.name if c.key == "lockstep" else f"{c.name} {c.version()}"
                       for c in self.all}
        self.sessions = {}

    def key(self, contender, ranks, op, size):
        environment = contender.environment(ranks, op, size, not self.options.untuned)
        return contender.key, ranks, tuple(sorted(environment.items()))

    def session(self, contender, ranks, op, size):
        key = self.key(contender, ranks, op, size)
        if key not in self.sessions:
            command = contender.command(ranks, "FOLDER")
            self.sessions[key] = Session(command, ranks, dict(key[2]), self.scratch)
        return key, self.sessions[key]

    def keep(self, ranks, cells):
        """Ends the sessions that none of these cells needs."""
        needed = {self.key(contender, ranks, op, size) for contender in self.all for op, size in cells}
        for key in set(self.sessions) - needed:
            self.sessions.pop(key).end()

    def ask(self, contender, registered, ranks, op, size):
        """One turn: the median of its samples, or None when it cannot."""
        warmups, samples, budget = samples_of(size)
        buffers = "registered" if registered else "private"
        key, session = self.session(contender, ranks, op, size)
        try:
            found, _ = session.ask(f"{op} {size} {buffers} {warmups} {samples} {budget}")
        except Failed as failure:
            if contender.key == "lockstep":
                raise SystemExit(f"compare.py: Lockstep: {op} {ranks} x {size_name(size)}: {failure}")
            print(f"# {self.labels[contender.key]}: {op} {ranks} x {size_name(size)}: {failure}", flush=True)
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


def leave(found):
    """The peers that are too slow for further rounds."""
    peers = {key: median_ms(rounds) for key, rounds in found.items() if key[0] != "lockstep"}
    return [key for key, ms in peers.items() if ms > SLOW * min(peers.values())]


def measure(field, ranks, op, size):
    """{(contender's key, registered): one list of samples a round}; a contender that failed once is left out."""
    turns = [(c, r) for c in field.all for r in c.registered]
    found = {(c.key, r): [] for c, r in turns}
    wanted = rounds_of(size, field.options.rounds)
    for k in range(wanted if not field.late() else min(wanted, 2)):
        turns = [(c, r) for c, r in turns if (c.key, r) in found]
        slow = leave(found) if k > 0 else []
        for contender, registered in turns[k % len(turns):] + turns[:k % len(turns)]:
            key = (contender.key, registered)
            if key in slow:
                continue
            samples = field.ask(contender, registered, ranks, op, size)
            if samples is None:
                del found[key]
            else:
                found[key].append(samples)
    return found


def median_ms(rounds):
    return statistics.median(statistics.median(samples) for samples in rounds)


def paired(ours, peer):
    """Ratio, lowest, highest over the rounds."""
    ratios = [statistics.median(p) / statistics.median(o) for o, p in zip(ours, peer)]
    return statistics.median(ratios), min(ratios), max(ratios)


def make_row(name, peer, ours, theirs, **more):
    ratio, low, high = paired(ours, theirs)
    return {"name": name, "peer": peer, "ours_ms": median_ms(ours), "peer_ms": median_ms(theirs),
            "ratio": ratio, "spread": (high - low) / ratio, "ratio_low": low, "ratio_high": high,
            "rounds": len(ours), **more}


def rows_of(field, ranks, op, size, found):
    """Two rows: our buffers registered and private, each beside the best peer."""
    peers = {key: rounds for (key, registered), rounds in found.items() if key != "lockstep"}
    if not peers:
        return []
    most = max(map(len, peers.values()))
    best = min((key for key in peers if len(peers[key]) == most), key=lambda key: median_ms(peers[key]))
    all_ms = {field.labels[key]: median_ms(rounds) for key, rounds in peers.items()}
    return [make_row(f"{op} {ranks} x {size_name(size)}, {'registered' if r else 'private'}",
                     field.labels[best], found["lockstep", r], peers[best], operation=op,
                     ranks=ranks, bytes=size, buffers="registered" if r else "private",
                     peers_ms=all_ms)
            for r in (True, False)]


def time_text(ms):
    return f"{ms * 1e3:.3g} us" if ms < 0.9995 else f"{ms:.3g} ms" if ms < 999.5 else f"{ms:.0f} ms"


def ratio_text(row):
    return f"{row['ratio']:.2f} [{row['ratio_low']:.2f}, {row['ratio_high']:.2f}]"


def rounds_text(row):
    return f"({row['rounds']})"


LINE = "{:26} {:>11} {:>11} {:>11}  {:22} {:>20} {:>20} {:>4}"


def print_header():
    print("# float32, sum; medians of rounds; ratio = best peer / ours [lowest, highest of the rounds in ()]")
    print(LINE.format("# operation, ranks x size", "registered", "private", "best peer", "", "ratio registered",
                      "ratio private", "()"), flush=True)


def print_cell(rows):
    registered, private = rows
    print(LINE.format(f"{private['operation']} {private['ranks']} x {size_name(private['bytes'])}",
                      time_text(registered["ours_ms"]), time_text(private["ours_ms"]),
                      time_text(private["peer_ms"]), private["peer"], ratio_text(registered),
                      ratio_text(private), rounds_text(private)), flush=True)


def cells(options):
    found = [("all_reduce", size) for size in options.sizes if "all_reduce" in options.parts]
    if "others" in options.parts:
        found += [(op, size) for op in OTHERS for size in options.other_sizes]
    return [(op, size) for op, size in found if op in options.operations]


def compare(field, ranks):
    """All cells of one number of ranks, with the same sessions."""
    rows = []
    left = cells(field.options)
    for op, size in list(left):
        field.keep(ranks, left)
        left.pop(0)
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


def launch_row(what, peer, ours, theirs, ranks):
    row = make_row(f"launch of {ranks} ranks to the first all_reduce, {what}", peer, ours, theirs,
                   operation="launch", ranks=ranks, bytes=4, buffers="private", program=what)
    print(f"{what}: ours {time_text(row['ours_ms'])}, {peer} {time_text(row['peer_ms'])}, ratio {ratio_text(row)} "
          f"{rounds_text(row)}", flush=True)
    return row


def compare_launch(field):
    """C programs beside C programs, Python beside Python, in turns."""
    ranks, rows = 8, []
    print(f"\n# from the launcher's start to the end of the first all-reduce, {ranks} ranks; medians of "
          f"{field.options.rounds} starts")
    for what, starters in launches.of(field, ranks).items():
        found = {name: [] for name in starters}
        for _ in range(field.options.rounds):
            for name, (command, environment) in starters.items():
                try:
                    found[name].append([launch_ms(command, environment)])
                except Failed as failure:
                    print(f"# {name}: launch: {failure}", flush=True)
        ours = found.pop("Lockstep")
        rows += [launch_row(what, name, ours, times, ranks) for name, times in found.items() if len(times) == len(ours)]
    return rows


def settings_text():
    """Where the peers' settings come from."""
    machine = Table.of_this_machine().machine
    return f"best of a sweep ({machine['processor']}, {machine['cores']} cores, {machine['date']})"


def main():
    options = parse(sys.argv[1:])
    watch = conditions.Watch()
    rows = []
    with tempfile.TemporaryDirectory(prefix="lockstep-peers-") as scratch:
        field = Field(options, scratch)
        print("# " + ", ".join(field.labels.values()))
        if options.sweep:
            return sweep.sweep(field.all, options, scratch)
        print("# settings of the peers: " + ("defaults" if options.untuned else settings_text()))
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
    machine = {**watch.conditions(), "command": options.command, "peers": list(field.labels.values())[1:],
               "settings": "defaults" if options.untuned else settings_text()}
    rows = [{**row, "conditions": machine} for row in rows]
    pathlib.Path(options.json).write_text(json.dumps(rows, indent=1) + "\n")
    print(f"\n# {machine['processor']}, {machine['cores']} cores, {machine['seconds']} s; other "
          f"processes kept {machine['others_cores']} cores busy meanwhile\n# rows: {options.json}")


if __name__ == "__main__":
    main()
