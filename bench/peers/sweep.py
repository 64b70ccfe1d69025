# SPDX-License-Identifier: Apache-2.0
"""The sweep that finds the peers' settings (`compare.py --sweep`): settings.py says what is tried.

A candidate's time is the fastest of its samples, so that what else the machine does weighs little; it
takes the place of the best one only if it is 3 % faster. Candidates that fail or hang are left out.
"""

import os
import time

import conditions
from session import Failed, Session
import settings

SIZES = {"all_reduce": (64, 2**10, 2**14, 2**16, 10**6, 10**7, 10**8)}
OTHER_SIZES = (10**6, 10**7)
FASTER = 0.97
ANSWER_S = 15
WARMUPS, SAMPLES, BUDGET_MS = 3, 7, 60


def sizes_of(operation):
    return SIZES.get(operation, OTHER_SIZES)


def time_all(contender, ranks, operation, sizes, variables, scratch):
    """{size: milliseconds} in one start of the contender; sizes that failed are missing."""
    session = Session(contender.command(ranks, "FOLDER"), ranks, {**contender.always(), **variables}, scratch,
                      ANSWER_S)
    found = {}
    try:
        for size in sizes:
            samples, _ = session.ask(f"{operation} {size} private {WARMUPS} {SAMPLES} {BUDGET_MS}")
            found[size] = min(samples)
    except Failed:
        pass  # what is slower than ANSWER_S at one size is not tried at larger ones
    finally:
        session.end(2)
    return found


def improve(best, candidates, measure):
    """Each candidate on top of the best settings so far, at the sizes it is for.

    `best` is {size: (milliseconds, variables)}; sizes with equal settings share a start."""
    for more, (low, high) in candidates:
        groups = {}
        for size in best:
            if low <= size <= high:
                groups.setdefault(tuple(sorted({**best[size][1], **more}.items())), []).append(size)
        for variables, sizes in groups.items():
            for size, ms in measure(sizes, dict(variables)).items():
                if ms < best[size][0] * FASTER:
                    best[size] = (ms, dict(variables))


def sweep_operation(contender, ranks, operation, scratch):
    """Rows of the table."""
    def measure(sizes, variables):
        return time_all(contender, ranks, operation, sizes, variables, scratch)
    defaults = measure(sizes_of(operation), {})
    best = {size: (ms, {}) for size, ms in defaults.items()}
    improve(best, settings.huge_pages(), measure)
    base = dict(best)
    for candidate in settings.ALGORITHMS[contender.key](operation):  # they exclude each other: each on the base
        found = dict(base)
        improve(found, [candidate], measure)
        best = {size: min(best[size], found[size], key=lambda pair: pair[0]) for size in best}
    improve(best, settings.OTHERS[contender.key](), measure)
    for size, (ms, variables) in best.items():
        yield {"peer": contender.key, "operation": operation, "ranks": ranks, "bytes": size, "settings": variables,
               "us": round(ms * 1e3, 3), "default_us": round(defaults[size] * 1e3, 3)}


def sweep(contenders, options, scratch):
    """All peers that have settings; the table is written after each operation, so a sweep may be ended."""
    start = time.monotonic()
    table = settings.Table.of_this_machine()
    if table.machine.get("processor") != conditions.processor():
        table = settings.Table(table.path)
    table.machine = {"processor": conditions.processor(), "cores": os.cpu_count(), "date": time.strftime("%Y-%m-%d"),
                     "commit": conditions.commit(), "command": "bench/peers/compare.py --sweep", "versions": table.machine.get("versions", {})}
    for contender in contenders:
        if contender.key not in settings.ALGORITHMS:
            continue
        table.machine["versions"][contender.key] = contender.version()
        for ranks in options.ranks:
            for operation in options.operations:
                for row in sweep_operation(contender, ranks, operation, scratch):
                    table.put(row)
                    print(f"{contender.key:9} {operation:14} {ranks} x {row['bytes']:<9} {row['us']:11.1f} us, default "
                          f"{row['default_us']:11.1f}  {settings.short(row['settings'])}", flush=True)
                table.write()
    print(f"# {time.monotonic() - start:.0f} s; {table.path}")
