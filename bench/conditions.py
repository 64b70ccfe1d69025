# SPDX-License-Identifier: Apache-2.0
"""The conditions of a comparison, which its rows carry: the machine, the commit, and how many cores other
programs kept busy during it."""

import os
import pathlib
import re
import resource
import subprocess
import time


def processor():
    with open("/proc/cpuinfo") as file:
        found = re.search(r"model name\s*: (.*)", file.read())
    return found.group(1) if found else "unknown processor"


def commit():
    """Of the source tree, with a + where files differ from it."""
    done = subprocess.run(["git", "describe", "--always", "--dirty=+", "--exclude=*"], capture_output=True, text=True,
                          cwd=pathlib.Path(__file__).parent)
    return done.stdout.strip() or "?"


def busy_s():
    """Seconds of all cores that were not idle since the machine started."""
    with open("/proc/stat") as file:
        user, nice, system, _, _, irq, softirq, steal = map(int, file.readline().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def own_s():
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


class Watch:
    """Begins when it is made."""

    def __init__(self):
        self.start, self.busy, self.own = time.monotonic(), busy_s(), own_s()

    def conditions(self):
        passed = time.monotonic() - self.start
        others = max(0.0, (busy_s() - self.busy - (own_s() - self.own)) / passed)
        return {"processor": processor(), "cores": os.cpu_count(), "others_cores": round(others, 2),
                "seconds": round(passed), "minutes": round(passed / 60), "date": time.strftime("%Y-%m-%d"),
                "commit": commit()}
