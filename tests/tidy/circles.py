# SPDX-License-Identifier: Apache-2.0
"""Which files of the library call each other in a circle, by the symbols of the objects.

A circle is a strongly connected component of the graph "file a uses a symbol that file b defines".
"""

import collections


def parse(lines):
    """nm -A's lines -> {object: (defined, needed)}, global symbols only."""
    files = collections.defaultdict(lambda: (set(), set()))
    for line in lines:
        path, _, rest = line.partition(".c.o:")
        fields = rest.split()
        if len(fields) < 2:
            continue
        kind, symbol = fields[-2], fields[-1]
        name = path.replace(":", "/").rsplit("/", 1)[-1]
        if kind in "UwvW" and kind == "U":
            files[name][1].add(symbol)
        elif kind.isupper() and kind not in "UN":
            files[name][0].add(symbol)
    return files


def graph(files):
    """{object: {object it uses: symbols}}; a symbol that several define (instruction sets) counts
    for none of them."""
    home = collections.defaultdict(set)
    for name, (defined, _) in files.items():
        for symbol in defined:
            home[symbol].add(name)
    arrows = {name: collections.defaultdict(set) for name in files}
    for name, (_, needed) in files.items():
        for symbol in needed:
            if len(home[symbol]) == 1:
                (to,) = home[symbol]
                if to != name:
                    arrows[name][to].add(symbol)
    return arrows


def components(arrows):
    """Strongly connected components of more than one file, largest first (Tarjan, without
    recursion)."""
    index, low, stack, on, found = {}, {}, [], set(), []
    for root in sorted(arrows):
        if root in index:
            continue
        work = [(root, iter(sorted(arrows[root])))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on.add(root)
        while work:
            node, rest = work[-1]
            for to in rest:
                if to not in index:
                    index[to] = low[to] = len(index)
                    stack.append(to)
                    on.add(to)
                    work.append((to, iter(sorted(arrows[to]))))
                    break
                if to in on:
                    low[node] = min(low[node], index[to])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    circle = []
                    while True:
                        member = stack.pop()
                        on.discard(member)
                        circle.append(member)
                        if member == node:
                            break
                    if len(circle) > 1:
                        found.append(sorted(circle))
    return sorted(found, key=len, reverse=True)


if __name__ == "__main__":
    import pathlib
    import subprocess
    import sys

    # python3 tests/tidy/circles.py build/src/liblockstep.a [file …]: also why these are in it
    lines = subprocess.run(["nm", "-A", sys.argv[1]], capture_output=True, text=True).stdout.splitlines()
    arrows = graph(parse(lines))
    for circle in components(arrows):
        print(len(circle), " ".join(circle))
        for name in circle:
            if name in sys.argv[2:] or "all" in sys.argv[2:]:
                for to in sorted(arrows[name]):
                    if to in circle:
                        print("   ", name, "->", to, ":", " ".join(sorted(arrows[name][to])))
