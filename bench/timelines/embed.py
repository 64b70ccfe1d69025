# SPDX-License-Identifier: Apache-2.0
"""embed.py OUT.c TABLE FILE ...: the files as arrays of C, so that the command finds them wherever it is."""

import pathlib
import sys

out, table, paths = pathlib.Path(sys.argv[1]), sys.argv[2], sorted(map(pathlib.Path, sys.argv[3:]))
lines = ["/* Made by bench/timelines/embed.py. */", '#include "bench/timeline.h"', ""]
for k, path in enumerate(paths):
    data = path.read_bytes()
    lines += [f"static const char text{k}[] = {{"]
    lines += [",".join(str((byte ^ 128) - 128) for byte in data[at:at + 32]) + "," for at in range(0, len(data), 32)]
    lines += ["0};", ""]
lines += [f"const ls__timeline_text {table}s[] = {{"]
lines += [f'    {{"{path.stem}", text{k}, sizeof text{k} - 1}},' for k, path in enumerate(paths)]
lines += ["};", f"const int {table}_count = (int)(sizeof {table}s / sizeof *{table}s);", ""]
out.write_text("\n".join(lines))
