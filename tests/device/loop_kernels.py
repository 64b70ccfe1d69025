# SPDX-License-Identifier: Apache-2.0
"""Writes the loop device's kernel table from the prototypes in kernels.h: loop_kernels.py HEADER OUT

An entry copies its arguments, as a launch does, and puts the call into the stream's queue; its pointers are translated
there. Host arrays among the arguments (shapes, parts of an optimizer step) are copied with them.
"""

import re
import sys

# Arrays of the host among the arguments of an entry, and their length.
ARRAYS = {"shape": "LS__KERNEL_DIMS_MAX", "keep": "LS__KERNEL_DIMS_MAX", "arg": "2"}
USED = {"shape": "ndim", "keep": "ndim", "arg": "2"}
# Those that a struct points to: (field, how many).
WITHIN = {"ls__comparison": [("shape", "ndim")], "ls__pick": [("shape", "ndim")],
          "ls__upsample2d": [("rows", "out_height"), ("columns", "out_width")],
          "ls__adamw_args": [("parts", "part_count")], "ls__sgd_args": [("parts", "part_count")],
          "ls__rmsprop_args": [("parts", "part_count")]}


def entries(text):
    table = text[text.index("typedef struct ls__kernels {"):text.index("} ls__kernels;")]
    table = re.sub(r"/\*.*?\*/", "", table, flags=re.DOTALL)
    for kind, name, args in re.findall(r"(\w+) \(\*(\w+)\)\(([^;]*)\);", table):
        args = [re.match(r"(.*?)(\w+)$", " ".join(arg.split())).groups() for arg in args.split(",")]
        yield kind, name, [(kind_of.strip(), arg) for kind_of, arg in args]


def struct_of(kind):
    found = re.match(r"const (ls__\w+) \*$", kind)
    return found.group(1) if found and found.group(1) != "ls__bfloat16" else None


PROGRAMS = ("plans",)  # fields that point to memory of the program


def pointers_of(struct, text):
    """The fields of a struct of kernels.h that point to elements."""
    found = re.search(r"typedef struct\s+%s \{(.*?)\n\} %s;" % (struct, struct), text, re.DOTALL)
    body = re.sub(r"/\*.*?\*/", "", found.group(1), flags=re.DOTALL) if found else ""
    names = [name for line in body.split(";") for name in re.findall(r"\*(\w+)", line)]
    return [name for name in names if name not in PROGRAMS + tuple(field for field, _ in WITHIN.get(struct, []))]


def wrapper(name, args, text):
    assert args[-1] == ("ls_stream *", "stream"), name
    fields, fill, extras, call, pointers = [], [], [], [], []
    for kind, arg in args[:-1]:
        struct = struct_of(kind)
        if struct:
            fields.append(f"{struct} {arg};")
            fill.append(f"copied.{arg} = *{arg};")
            extras += [(f"{arg}.{field}", f"(size_t){arg}->{count}") for field, count in WITHIN.get(struct, [])]
            call.append(f"&a->{arg}")
            pointers += [f"{arg}.{field}" for field in pointers_of(struct, text)]
        elif arg in ARRAYS and kind.endswith("*"):
            fields.append(f"{kind.removeprefix('const ').removesuffix('*')} {arg}[{ARRAYS[arg]}];")
            fill.append(f"memcpy(copied.{arg}, {arg}, (size_t){USED[arg]} * sizeof *{arg});")
            call.append(f"a->{arg}")
        else:
            fields.append(f"{kind} {arg};")
            fill.append(f"copied.{arg} = {arg};")
            call.append(f"a->{arg}")
            pointers += [arg] if kind.endswith("*") else []
    places = "".join(f"offsetof(struct {name}_args, {at}), " for at in pointers) + "0"
    copies = ", ".join(f"{{offsetof(struct {name}_args, {at}), {count} * sizeof *copied.{at}}}" for at, count in extras)
    given = f"(const loop_array[]){{{copies}}}, {len(extras)}" if extras else "NULL, 0"
    return f"""
struct {name}_args {{ {" ".join(fields)} }};
static void {name}_run(void *at)
{{
    const struct {name}_args *a = at;
    loop_real->{name}({", ".join(call + ["NULL"])});
}}
static void {name}_start({", ".join(f"{kind} {arg}" for kind, arg in args)})
{{
    struct {name}_args copied;
    memset(&copied, 0, sizeof copied);
    {" ".join(fill)}
    loop_check_pointers("{name}", &copied, (const size_t[]){{{places}}}, {len(pointers)});
    loop_start(stream, "{name}", {name}_run, &copied, sizeof copied, {given});
}}
"""


def main(header, out):
    parts = ['/* Written by tests/device/loop_kernels.py. */\n#include <stddef.h>\n#include <string.h>\n\n#include "loop.h"\n']
    table = []
    text = open(header).read()
    for kind, name, args in entries(text):
        if kind == "void":
            parts.append(wrapper(name, args, text))
            table.append(f"    to->{name} = {name}_start;")
        else:
            table.append(f"    to->{name} = loop_real->{name};")
    parts.append("\nvoid loop_kernels(ls__kernels *to)\n{\n" + "\n".join(table) + '\n    to->name = "loop";\n}\n')
    open(out, "w").write("".join(parts))


main(*sys.argv[1:])
