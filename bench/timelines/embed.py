"""embed.py OUT.c TIMELINE.json ...: the timelines as arrays of C, so that the command finds them wherever it is."""

import pathlib
import sys

out, paths = pathlib.Path(sys.argv[1]), sorted(map(pathlib.Path, sys.argv[2:]))
lines = ["/* Made by bench/timelines/embed.py. */", '#include "bench/timeline.h"', ""]
for k, path in enumerate(paths):
    data = path.read_bytes()
    lines += [f"static const char text{k}[] = {{"]
    lines += [",".join(map(str, data[at:at + 32])) + "," for at in range(0, len(data), 32)]
    lines += ["0};", ""]
lines += ["const ls__timeline_text ls__timeline_texts[] = {"]
lines += [f'    {{"{path.stem}", text{k}, sizeof text{k} - 1}},' for k, path in enumerate(paths)]
lines += ["};", "const int ls__timeline_text_count = (int)(sizeof ls__timeline_texts / sizeof *ls__timeline_texts);", ""]
out.write_text("\n".join(lines))
