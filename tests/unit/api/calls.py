# SPDX-License-Identifier: Apache-2.0
"""Calls of every public function that takes options or fills a struct, written from the public headers for options.c.

    calls.py HEADER… > calls.h

An argument gets a plain value of its type; options.c has those that a literal cannot express (any_…). What the function
makes is freed by ls_TYPE_free where the headers declare it. So a new function, a new struct and a new field are tested
without an edit here.
"""

import pathlib
import re
import sys

DECLARATION = re.compile(r"LS_API\s+([\w *]+?)\s*\b(ls_\w+)\(([^;{]*?)\)[^;()]*(?:\([^;]*\))?;")
ALIAS = re.compile(r"typedef (ls_\w+) (ls_\w+_options);")
STRUCT = re.compile(r"typedef struct (ls_\w+) \{(\s*size_t size;[^}]*)\}")
FIELD = re.compile(r"([\w ]+?[ *]+)(\w+(?:\[[^\]]*\])*(?:, *\*?\w+(?:\[[^\]]*\])*)*);")
VALUES = {
    "ls_group *": "ls_world()", "const ls_group *": "ls_world()", "ls_module *": "any_module()", "ls_tensor *": "any_tensor()",
    "ls_tensor *const *": "any_tensors()", "ls_tensor **": "any_tensors()", "ls_reducer *": "reducer",
    "ls_reducer_param *": "&any_param", "ls_optim *": "any_optim()", "ls_dataset *": "any_dataset()",
    "const ls_sampler *": "any_sampler()", "ls_sampler *": "any_sampler()", "ls_loader *": "any_loader()",
    "const char *": "any_path()", "ls_comm_hook *": "any_hook()", "ls_select_fn": "ls_select_vectors", "ls_gradcheck_fn": "square", "ls_dtype": "LS_FLOAT32", "ls_reduce_op": "LS_SUM", "ls_work **": "NULL",
}
# Rank 0 is the only one, so a message to another one, or with no tag, is refused; there is one parameter in one bucket.
BY_NAME = {"root": "0", "peer": "7", "tag": "-1", "param": "0", "bucket": "0"}
# Calls that need more than a value for each argument.
OVERRIDES = {"ls_cast_hook_new": "ls_cast_hook_new(LS_BFLOAT16, options)", "ls_bucket_get_param": "param_of_bucket(options)", "ls_comm_hook_parse": 'ls_comm_hook_parse("int8", options)', "ls_init": "init_again(options)", "ls_reducer_begin": "begin_and_wait(options)", "ls_ddp_get_stats": "ls_ddp_get_stats(wrapper, options)"}

# Needs two ranks, and here is one.
APART = {"ls_server_get_stats"}

# Options that are a field of others.
NESTED = {"ls_outer_options": "ls_ddp_average(wrapper, LS_OPTIONS(ls_ddp_average_options, .outer = options))"}


def without_comments(text):
    return re.sub(r"/\*.*?\*/", " ", text, flags=re.DOTALL)


def parameters(text):
    """(type, name) of each."""
    for one in " ".join(text.split()).split(","):
        kind, name = re.match(r"(.*?)(\w+)(?:\[\w*\])?$", one.strip()).groups()
        yield kind.strip(), name


def fields(body):
    """(type, name) of each field."""
    for kind, names in FIELD.findall(body):
        for name in names.split(","):
            yield kind.strip(), re.sub(r"\[.*", "", name).strip(" *")


def value(kind, name, struct):
    if struct in kind.split():
        return "options"
    if re.fullmatch(r"const ls_\w+_options \*", kind):
        return "NULL"
    if kind not in VALUES and name not in BY_NAME and kind.endswith("*"):
        return "place()"
    return BY_NAME.get(name) or VALUES.get(kind) or ("0" if kind.endswith("_fn") else "1")


def body(returned, function, arguments, struct, frees):
    """The call; frees what it gave."""
    call = OVERRIDES.get(function) or f"{function}({', '.join(value(kind, name, struct) for kind, name in arguments)})"
    made = returned if returned.endswith("*") else next((kind[:-1] for kind, _ in arguments if re.fullmatch(r"ls_\w+ \*\*", kind)), "")
    free = frees.get(made)
    if returned == "ls_tensor *":
        return f"    return ls_tensor_status({call});"
    if returned.endswith("*"):
        return f"    {made}made = {call};\n    const ls_status status = LS_STATUS_OF(made);\n    {free or '(void)'}(made);\n    return status;"
    if returned == "ls_status" and free and OVERRIDES.get(function) is None:
        return (f"    const ls_status status = {call};\n    if (memory.made != NULL) {{\n        {free}(memory.made);\n    }}\n"
                "    return status;")
    if returned == "ls_status":
        return f"    return {call};"
    return f"    return {call} > 0 ? LS_OK : ls_error_status();"


def main(paths):
    texts = [(path, without_comments(path.read_text())) for path in paths]
    structs = {name: (path.parent.name == "models", list(fields(text))) for path, whole in texts
               for name, text in STRUCT.findall(whole)}
    structs |= {alias: structs[name] for _, whole in texts for name, alias in ALIAS.findall(whole)}
    declared = [found for _, text in texts for found in DECLARATION.findall(text)]
    frees = {" ".join(text.split()[:-1]) + " *": name for _, name, text in declared if name.endswith("_free")
             for text in [text.replace("*", "")]}
    rows, taken, calls = [], set(), set()
    for returned, function, text in declared:
        can_fail = returned in ("ls_status", "bool", "double") or returned.endswith("*")
        if function in APART or not can_fail or not re.search(r"ls_\w+ \*", text) or "(" in text:
            continue
        arguments = list(parameters(text))
        for kind, name in arguments:
            struct = kind.removeprefix("const ").removesuffix(" *")
            options = struct.endswith("_options") and kind.startswith("const ")
            if struct in structs and (options or name in ("out", "batch") and not kind.startswith("const ")):
                group = ("MODEL" if structs[struct][0] else "OPTIONS") if options else "FILLED"
                call = function if function not in calls else f"{function}_{name}"  # it takes options and fills a struct
                calls.add(call)
                print(f"static ls_status call_{call}(void *options)\n{{\n{body(returned, function, arguments, struct, frees)}\n}}\n")
                rows.append(f"{group}({call}, {struct})")
                taken.add(struct)
    for struct, call in NESTED.items():
        print(f"static ls_status call_{struct}(void *options)\n{{\n    return {call};\n}}\n")
        rows.append(f"OPTIONS({struct}, {struct})")
        taken.add(struct)
    of_options = [name for name in structs if name.endswith("_options")]
    missing = sorted(set(of_options) - taken)
    if missing:
        sys.exit(f"calls.py: no function with a plain declaration takes {', '.join(missing)}")
    print_list("CALLS(OPTIONS, MODEL, FILLED)", rows)
    print_list("STRUCTS(STRUCT, MODEL)", [f"{'MODEL' if structs[name][0] else 'STRUCT'}({name}, {name.removesuffix('_options')})"
                                         for name in of_options])
    print_list("FIELDS(FIELD, TEXT)",
               [f"{'TEXT' if kind == 'const char *' else 'FIELD'}({name}, {name.removesuffix('_options')}, {field})"
                for name in of_options if not structs[name][0] for kind, field in structs[name][1]])
    print_list("WORDS(WORD)", [f"WORD({row.partition('(')[2][:-1]}, {field})" for row in rows if row.startswith("OPTIONS")
                               for kind, field in structs[row.split()[1][:-1]][1] if kind == "const char *"])


def print_list(name, rows):
    print(f"#define {name} \\\n    " + " \\\n    ".join(rows))


main([pathlib.Path(path) for path in sys.argv[1:]])
