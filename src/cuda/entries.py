# SPDX-License-Identifier: Apache-2.0
"""Writes the CUDA device's part of the kernel table from the prototypes in kernels.h: entries.py HEADER ARGS.h PROTOTYPES.h TABLE.c

An entry of LAUNCHED copies its arguments into a struct, cuda_NAME_args, and starts the kernel cuda_NAME on as many blocks as
the line says; the others are functions ls__cuda_NAME, written by hand.
"""

import re
import sys

# Blocks: per_element(n), a thread for each of n elements; per_row(n), a block for each of n rows, whose threads work together.
LAUNCHED = {
    "unary": "per_element(count)", "unary_bf16": "per_element(count)", "unary_backward": "per_element(count)",
    "unary_backward_bf16": "per_element(count)", "map": "per_element(count)", "map_backward": "per_element(count)",
    "where": "per_element(numel(ndim, shape))", "compare": "per_element(numel(args->ndim, args->shape))",
    "binary": "per_element(numel(ndim, shape))", "binary_bf16": "per_element(count)", "axpby": "per_element(count)",
    "axpby_bf16": "per_element(count)", "axpby_by": "per_element(count)", "axpby_bf16_by": "per_element(count)",
    "add_scalar": "per_element(count)", "fill": "per_element(count)", "fill_by": "per_element(count)", "increment": "per_element(1)",
    "add_rows": "per_element(rows * n)",
    "bfloat16_widen": "per_element(count)", "bfloat16_narrow": "per_element(count)", "gather": "per_element(numel(ndim, shape))",
    "scatter": "per_element(distinct(&out_strides, ndim, shape))", "pick": "per_element(numel(args->ndim, args->shape))",
    "put_add": "per_element(lines(args))", "dropout": "per_element(count)", "dropout_bf16": "per_element(count)",
    "random_uniform": "per_element(count)", "random_normal": "per_element(count)", "cumsum": "per_element(outer * inner)",
    "top": "per_element(rows)", "lstm_step": "per_element(rows * n)", "lstm_step_backward": "per_element(rows * n)",
    "gru_step": "per_element(rows * n)", "gru_step_backward": "per_element(rows * n)",
    "rotary": "per_element(args->batch * args->heads * args->time * (args->dim / 2))",
    "embedding": "per_element(at->count * at->dim)", "variance_backward": "per_row(rows)",
    "batch_norm_rstd": "per_element(channels)", "batch_norm": "per_element(n->batch * n->pixels * n->channels)",
    "max_pool2d": "per_element(p->batch * p->out_height * p->out_width * p->channels)",
    "avg_pool2d": "per_element(p->batch * p->out_height * p->out_width * p->channels)",
    "max_pool2d_backward": "per_element(p->batch * p->height * p->width * p->channels)",
    "avg_pool2d_backward": "per_element(p->batch * p->height * p->width * p->channels)",
    "sum_cols": "per_row(rows)", "extreme": "per_row(outer * inner)",
    "variance": "per_row(rows)", "softmax": "per_row(rows)", "softmax_bf16": "per_row(rows)", "softmax_backward": "per_row(rows)",
    "softmax_backward_bf16": "per_row(rows)", "layer_norm": "per_row(rows)", "layer_norm_bf16": "per_row(rows)",
    "rms_norm": "per_row(rows)", "rms_norm_bf16": "per_row(rows)", "embedding_backward": "per_row(at->count)",
    "vocab_max": "per_row(args->rows)", "vocab_sums": "per_row(args->rows)", "sum_rows": "per_row(tiles(n))",
    "sum_rows_bf16": "per_row(tiles(n))", "vocab_loss": "per_row(1)",
    "linear_rounded": "per_row(args->m * args->n)",
}
# Arrays of the host among the arguments of an entry, and how many elements of them are used.
ARRAYS = {"shape": ("LS__KERNEL_DIMS_MAX", "ndim"), "keep": ("LS__KERNEL_DIMS_MAX", "ndim"), "arg": ("2", "2")}
# Those that a struct points to.
WITHIN = {"ls__comparison": "shape", "ls__pick": "shape"}


def entries(text):
    table = text[text.index("typedef struct ls__kernels {"):text.index("} ls__kernels;")]
    table = re.sub(r"/\*.*?\*/", "", table, flags=re.DOTALL)
    for kind, name, args in re.findall(r"(\w+) \(\*(\w+)\)\(([^;]*)\);", table):
        args = [re.match(r"(.*?)(\w+)$", " ".join(arg.split())).groups() for arg in args.split(",")]
        yield kind, name, [(kind_of.strip(), arg) for kind_of, arg in args]


def struct_of(kind):
    found = re.match(r"const (ls__\w+) \*$", kind)
    return found.group(1) if found and found.group(1) != "ls__bfloat16" else None


def launched(name, args):
    fields, fill = [], []
    for kind, arg in args[:-1]:
        struct = struct_of(kind)
        if struct:
            fields.append(f"{struct} {arg};")
            fill.append(f"given.{arg} = *{arg};")
            if struct in WITHIN:
                at = WITHIN[struct]
                fields.append(f"int64_t {at}[LS__KERNEL_DIMS_MAX];")
                fill.append(f"memcpy(given.{at}, {arg}->{at}, (size_t){arg}->ndim * sizeof *given.{at});")
        elif arg in ARRAYS and kind.endswith("*"):
            room, used = ARRAYS[arg]
            fields.append(f"{kind.removeprefix('const ').removesuffix('*')} {arg}[{room}];")
            fill.append(f"memcpy(given.{arg}, {arg}, (size_t){used} * sizeof *{arg});")
        else:
            fields.append(f"{kind} {arg};")
            fill.append(f"given.{arg} = {arg};")
    struct = f"struct cuda_{name}_args {{ {' '.join(fields)} }};\n"
    parameters = ", ".join(f"{kind} {arg}" for kind, arg in args)
    function = f"""
static void {name}({parameters})
{{
    struct cuda_{name}_args given;
    memset(&given, 0, sizeof given);
    {" ".join(fill)}
    ls__cuda_launch(CUDA_{name}, {LAUNCHED[name]}, &given, stream);
}}
"""
    return struct, function


def main(header, args_h, prototypes_h, table_c):
    structs, functions, prototypes, table, together, alone = [], [], [], [], [], []
    for kind, name, args in entries(open(header).read()):
        if name in LAUNCHED:
            struct, function = launched(name, args)
            structs.append(struct)
            functions.append(function)
            table.append(f"    to->{name} = {name};")
            (together if LAUNCHED[name].startswith("per_row") else alone).append(name)
        else:
            parameters = ", ".join(f"{kind_of} {arg}" for kind_of, arg in args)
            prototypes.append(f"{kind} ls__cuda_{name}({parameters});\n")
            table.append(f"    to->{name} = ls__cuda_{name};")
    assert len(together) + len(alone) == len(LAUNCHED), set(LAUNCHED) - set(together) - set(alone)
    listed = " ".join([f"X({name}, 1)" for name in together] + [f"X({name}, 0)" for name in alone])
    open(args_h, "w").write("/* Written by src/cuda/entries.py. */\n" + "".join(structs)
                           + f"/* Whether threads of a block wait for each other. */\n#define CUDA_ENTRIES(X) {listed}\n")
    open(prototypes_h, "w").write("/* Written by src/cuda/entries.py. */\n" + "".join(prototypes))
    open(table_c, "w").write('/* Written by src/cuda/entries.py. */\n#include <string.h>\n\n#include "cuda/entries.h"\n'
                           + "".join(functions) + "\nvoid ls__cuda_table(ls__kernels *to)\n{\n" + "\n".join(table)
                           + '\n    to->name = "cuda";\n}\n')


main(*sys.argv[1:])
