# SPDX-License-Identifier: Apache-2.0
"""The pages tell of what is there: files, folders, names of the code, targets and flags that they name exist."""

import pathlib
import re
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / "harness")]
from tap import SOURCE, none_of, run, test
from trees import source_files as files

PAGES = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "STYLE.md", "SECURITY.md",
         *(p.relative_to(SOURCE).as_posix() for p in sorted((SOURCE / "docs").rglob("*.md"))))
# STYLE.md names files that imitate others' and come later.
PAGES_OF_NOW = tuple(name for name in PAGES if name != "STYLE.md")


def page(name):
    return (SOURCE / name).read_text()


def exists(name, known):
    """A path from the root, or the end of one: `exec.c`, `algorithm/`."""
    if name.endswith("/"):
        return any(("/" + f).find("/" + name) >= 0 for f in known)
    return any(("/" + f).endswith("/" + name) for f in known)


@test
def files_and_folders_that_the_pages_name_exist():
    known, problems = files(), []
    for name in PAGES_OF_NOW:
        for path in re.findall(r"`([\w./-]+(?:\.(?:c|h|py|md)|/))`", page(name)):
            if not path.startswith(("/", "build/")) and not exists(path, known):
                problems.append(f"{name}: {path}")
    none_of(problems, "named, not there")


@test
def the_check_sees_what_is_missing():
    known = ["src/comm/engine/exec.c"]
    assert exists("exec.c", known) and exists("comm/", known) and exists("src/comm/engine/exec.c", known)
    assert not exists("xec.c", known) and not exists("omm/", known)


OF_CODE = re.compile(r"\b(?:ls_|ls__|LS_|LS__|LOCKSTEP_)\w*[^\W_]\b")
PLACES = re.compile(r"ls_(?:set_)?(?:noun|thing)")  # docs/api.md shows with these how names are made


def code_of(text):
    """What a page prints as code: `words` and blocks."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    blocks += re.findall(r"^    .*$", text, re.MULTILINE)
    return "\n".join(blocks + re.findall(r"`([^`\n]+)`", text))


def unknown_names(text, known):
    return sorted({name for name in OF_CODE.findall(code_of(text)) if name not in known and not PLACES.match(name)})


@test
def names_of_the_code_that_the_pages_use_exist():
    # The changelog also names what was removed.
    sources = [f for f in files() if f.endswith((".c", ".h", ".hpp", ".py", ".build"))]
    known = {word for f in sources for word in re.findall(r"\w+", (SOURCE / f).read_text())}
    none_of((f"{name}: {word}" for name in PAGES_OF_NOW if name != "CHANGELOG.md"
             for word in unknown_names(page(name), known)), "named, not there")


@test
def the_check_of_names_sees_what_is_missing():
    text = "`ls_was(x)` and `ls_is`\n```c\nLS_GONE;\n```\nls_prose"
    assert unknown_names(text, {"ls_is"}) == ["LS_GONE", "ls_was"], unknown_names(text, {"ls_is"})


@test
def links_between_pages_lead_somewhere():
    none_of((f"{name}: {link}" for name in PAGES
             for link in re.findall(r"\]\(([^)#:]+)\)", page(name))
             if not ((SOURCE / name).parent / link).exists()), "dead links")


@test
def decisions_that_sources_cite_exist():
    decided = set(re.findall(r"^\*\*D(\d+)\. ", page("docs/design.md"), re.MULTILINE))
    assert len(decided) == 19, sorted(decided)
    sources = [f for f in files() if f.endswith((".c", ".h", ".py")) and f.startswith(("src/", "include/"))]
    cited = {(f, d) for f in sources for d in re.findall(r"docs/design\.md, D(\d+)", page(f))}
    assert cited, "no source cites a decision"
    none_of((f"{f}: D{d}" for f, d in sorted(cited) if d not in decided), "no such decision")


@test
def the_map_names_every_top_folder():
    folders = {f.split("/")[0] for f in files() if "/" in f and not f.startswith(".")}
    none_of((f"{folder}/" for folder in sorted(folders) if f"{folder}/" not in page("ARCHITECTURE.md")),
            "not in the map of ARCHITECTURE.md")


@test
def every_layer_stands_in_the_map():
    layers = {f.split("/")[1] for f in files() if f.startswith("src/") and f.count("/") > 1}
    none_of((f"src/{layer}/" for layer in sorted(layers) if f"src/{layer}/" not in page("ARCHITECTURE.md")),
            "not in the map")


@test
def make_targets_and_flags_that_the_readme_names_exist():
    makefile = (SOURCE / "Makefile").read_text()
    targets = set(re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE).group(1).split())
    none_of(set(re.findall(r"`make ([a-z-]+)`", page("README.md"))) - targets, "no such target")
    sources = "".join((SOURCE / f).read_text() for f in files() if f.startswith(("tools/", "bench/", "programs/")))
    flags = set(re.findall(r"^lockstep .*$", page("README.md"), re.MULTILINE))
    flags = {flag for line in flags for flag in re.findall(r"--[a-z-]+", line)}
    assert flags, "no command line found"
    none_of((flag for flag in sorted(flags) if f'{{"{flag[2:]}", CLI_' not in sources), "no such flag")


run()
