# SPDX-License-Identifier: Apache-2.0
"""docs/guide: its commands are ones, those whose output it shows print it, and `make docs` builds a site of pages and
headers in which every link leads somewhere."""

import functools
import html.parser
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import urllib.parse

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / "harness")]
from tap import BUILD, SOURCE, Skip, command, none_of, run, test

sys.path[:0] = [str(SOURCE / "docs/images")]
import guide as drawings

GUIDE = SOURCE / "docs/guide"
PAGES = {path.name: path.read_text() for path in sorted(GUIDE.glob("*.md"))}
BLOCK = re.compile(r"^```sh\n(.*?)^```\n(?:\n```\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)
SCRATCH = tempfile.TemporaryDirectory(prefix="lockstep-guide-")
NO_MKDOCS = 77  # status of docs/site/build
PLAIN = {name: value for name, value in os.environ.items()
         if not name.startswith(("LOCKSTEP_", "OMPI_", "PMI_", "SLURM_", "TORCH_"))
         and name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")}


# ---- commands ----------------------------------------------------------------------------------


def commands_of(text):
    """The lines of blocks, and what stands as code in sentences and tables and begins like a command."""
    for script, _ in BLOCK.findall(text):
        yield from (line for line in script.splitlines() if not line.startswith("export "))
    inline = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
    yield from (code for code in inline if re.match(r"(?:\w+=\S+ )?(?:lockstep|make|\./\S+|build/\S+|docs/\S+) ", code))


@functools.cache
def targets():
    return re.search(r"^\.PHONY: (.*)$", (SOURCE / "Makefile").read_text(), re.MULTILINE).group(1).split()


@functools.cache
def experiments():
    return [line.split()[0] for line in command(BUILD / "lockstep", "paper", "list").splitlines()]


@functools.cache
def operations():
    return set(re.findall(r"[\w-]+", command(BUILD / "lockstep", "bench", "--help").split("OPERATION:")[1]))


@functools.cache
def made_by_default():
    """The programs of a plain `make`; others may lie in the build folder, too, since somebody has asked for them."""
    targets = json.loads((BUILD / "meson-info/intro-targets.json").read_text())
    return {pathlib.Path(name) for target in targets if target["build_by_default"] for name in target["filename"]}


def mistake_in(line):
    """Why a line is no command; None: it is one. --help is read last, so all other options are checked by the parser."""
    words = [word for word in shlex.split(line) if not re.match(r"[A-Z_]+=", word)]
    program, *rest = words
    if program == "make":
        return None if not rest or rest[0] in targets() else "no such target"
    if program != "lockstep":
        place = BUILD / program.removeprefix("build/") if program.startswith("build/") else SOURCE / program
        if program.startswith("build/") and place not in made_by_default():
            return "no program of a default build"
        return None if os.access(place, os.X_OK) else "no such program"
    if rest[0] == "run":
        return mistake_in(shlex.join(rest[next(k for k, word in enumerate(rest) if "/" in word):]))
    if rest[0] == "paper" and rest[1] not in (*experiments(), "list", "all"):
        return "no such experiment"
    if rest[0] == "bench" and not set(rest[1:2]) <= operations():
        return "no such operation"
    done = subprocess.run([BUILD / "lockstep", *rest, "--help"], text=True, capture_output=True, env=PLAIN, timeout=60)
    return None if done.returncode == 0 and done.stdout.startswith("usage") else done.stderr


@test
def every_command_of_the_guide_is_one():
    lines = {(name, line) for name, text in PAGES.items() for line in commands_of(text)}
    assert len(lines) > 40, lines
    none_of((f"{name}: {line}: {why}" for name, line in sorted(lines) if (why := mistake_in(line))), "no commands")


@test
def the_check_of_commands_finds_mistakes():
    for wrong in ("make dcos", "lockstep paper fig99", "lockstep bench all-reduce --algoritm ring", "lockstep bench nothing",
                  "lockstep run -n 2 build/examples/99_nothing", "build/bench/dev/kernels 256 256 128 8388608", "lockstep paper fig7 --link 2gbit", "lockstep nothing --x"):
        assert mistake_in(wrong), wrong
    assert [*commands_of("`lockstep env` and `x`\n```sh\nexport A=b\nmake\n```\n")] == ["make", "lockstep env"]


@test
def commands_whose_output_is_shown_print_it():
    if shutil.which("pkg-config") is None:
        raise Skip("no pkg-config")
    tree = pathlib.Path(SCRATCH.name) / "tree"
    tree.mkdir()
    (tree / "build").symlink_to(BUILD)
    (tree / "docs").symlink_to(SOURCE / "docs")
    environment = dict(PLAIN, PATH=f"{BUILD}:{PLAIN['PATH']}", PKG_CONFIG_PATH=str(BUILD / "meson-uninstalled"))
    shown = [(name, script, output) for name, text in PAGES.items() for script, output in BLOCK.findall(text) if output]
    assert len(shown) > 10, shown
    problems = []
    for name, script, output in shown:
        done = subprocess.run(["sh", "-e", "-c", script], cwd=tree, env=environment, text=True, timeout=120,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        said = re.sub(" +", " ", done.stdout)
        if script.startswith("docs/troubleshooting/reproduce "):
            done.returncode = 0  # it ends with what the mistake ended with
        problems += [f"{name}: {script}{line}\n{done.stdout}" for line in output.splitlines()
                     if done.returncode != 0 or re.sub(" +", " ", line).strip() not in said]
    none_of(problems, "not printed")


# ---- pages -------------------------------------------------------------------------------------


@test
def every_page_has_a_picture_a_formula_a_command_and_exercises():
    none_of((f"{name}: {part}" for name, text in PAGES.items() if name != "README.md"
             for part in ("](../images/guide/", "## Formula", "## See it", "```sh", "## Exercises") if part not in text),
            "missing")
    none_of((name for name in PAGES if f"]({name})" not in PAGES["README.md"] and name != "README.md"), "not in the index")


@test
def the_pictures_are_those_that_the_program_draws():
    for name, text in drawings.draw().items():
        assert (SOURCE / "docs/images/guide" / name).read_text() == text, "run docs/images/guide.py"
        assert any(f"images/guide/{name})" in page for page in PAGES.values()), f"{name} is in no page"


@test
def every_experiment_stands_in_the_guide_or_on_its_page():
    text = "".join(PAGES.values()) + (SOURCE / "docs/paper.md").read_text()
    none_of((name for name in experiments() if f"lockstep paper {name}" not in text and f"`{name}`" not in text),
            "not in docs/guide or docs/paper.md")


# ---- the site ----------------------------------------------------------------------------------


class Page(html.parser.HTMLParser):
    """The ids, the links, and the paragraphs of a page of the site."""

    def __init__(self, path):
        super().__init__()
        self.ids, self.links, self.paragraphs = set(), [], []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        names = dict(attributes)
        self.ids |= {names["id"]} if names.get("id") else set()
        self.links += [names[k] for k in ("href", "src") if names.get(k)]
        if tag == "p":
            self.paragraphs.append("")

    def handle_data(self, data):
        if self.paragraphs:
            self.paragraphs[-1] += data


def built(tree, folder):
    """(status, output) of the build of a source tree's site."""
    done = subprocess.run([tree / "docs/site/build", BUILD, folder], text=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=280)
    if done.returncode == NO_MKDOCS:
        raise Skip(done.stdout.strip().splitlines()[-1].removeprefix("SKIP: "))
    return done.returncode, done.stdout


@functools.cache
def site():
    """{path from the root of the site: Page}"""
    folder = pathlib.Path(SCRATCH.name) / "site"
    status, said = built(SOURCE, folder)
    assert status == 0, said
    return {path.relative_to(folder).as_posix(): Page(path) for path in folder.rglob("*.html")}


@test
def links_of_the_site_lead_somewhere():
    folder, pages, problems = pathlib.Path(SCRATCH.name) / "site", site(), []
    for name, page in pages.items():
        for link in page.links:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc or name == "404.html":
                continue
            target = (folder / name).parent / urllib.parse.unquote(parts.path) if parts.path else folder / name
            inside = os.path.relpath(target, folder)
            if not target.is_file() or (parts.fragment and inside in pages and parts.fragment not in pages[inside].ids):
                problems.append(f"{name}: {link}")
    none_of(sorted(set(problems)), "lead nowhere")
    assert "docs/guide/overlap.html" in pages and len(pages) > 40, sorted(pages)


@test
def a_link_that_leads_nowhere_fails_the_build():
    tree = pathlib.Path(SCRATCH.name) / "copy"
    for part in ("docs", "include", "examples", "python"):
        shutil.copytree(SOURCE / part, tree / part, ignore=shutil.ignore_patterns("__pycache__", "*venv*"))
    for path in (*SOURCE.glob("*.md"), SOURCE / "LICENSE"):
        shutil.copy(path, tree)
    page = tree / "docs/guide/why.md"
    text = page.read_text()
    wrong = ("nothing.md", "costs.md#nothing", "../../include/lockstep/nothing.h")
    page.write_text(text + "".join(f"\n[x]({link})\n" for link in wrong))
    status, said = built(tree, tree / "site")
    assert status == 1 and all(word in said for word in ("nothing.md", "#nothing", "nothing.h")), said


@test
def formulas_are_typeset_code_has_colours_and_the_first_page_has_cards():
    folder, pages = pathlib.Path(SCRATCH.name) / "site", site()
    formulas = {f"docs/guide/{name[:-3]}.html": text.count("```math") for name, text in PAGES.items()}
    assert sum(formulas.values()) > 15, formulas
    none_of((f"{name}: {count}" for name, count in formulas.items()
             if count and (folder / name).read_text().count('<math xmlns="http://www.w3.org/1998/Math/MathML" display="block"') != count),
            "formulas that are not MathML")
    assert '<span class="cp">#include</span>' in (folder / "index.html").read_text()
    assert {"docs/guide/index.html", "docs/performance.html"} <= {link for link in pages["index.html"].links}
    assert 'class="cards"' in (folder / "index.html").read_text()


@test
def nothing_of_the_site_comes_from_elsewhere():
    folder = pathlib.Path(SCRATCH.name) / "site"
    none_of((f"{name}: {found}" for name in site()
             for found in re.findall(r"<(?:script|link|img)[^>]*(?:https?:)?//[^>]*>", (folder / name).read_text())
             if 'rel="canonical"' not in found), "is fetched")


@test
def every_function_of_the_headers_has_its_place():
    pages = site()
    for header in sorted((SOURCE / "include/lockstep").glob("*.h")):
        names = re.findall(r"^LS_API[^;(]*?\b(ls_\w+)\(", header.read_text(), re.MULTILINE)
        none_of((name for name in names if name not in pages[f"include/lockstep/{header.name}.html"].ids),
                f"{header.name}: no place for")
    assert "../include/lockstep/ddp.h.html#ls_ddp_join" in pages["docs/ddp.html"].links


@test
def cells_of_tables_wrap_on_every_page():
    """The site's rule comes after the theme's and has its selector, so it holds."""
    pages, folder = site(), pathlib.Path(SCRATCH.name) / "site"
    cells = r"\.wy-table-responsive table td,\s*\.wy-table-responsive table th\s*{\s*white-space:\s*(\w+)"
    for name in pages.keys() - {"404.html"}:
        sheets = [(folder / name).parent / link for link in pages[name].links if link.endswith(".css")]
        rules = [value for sheet in sheets for value in re.findall(cells, sheet.read_text())]
        assert rules == ["nowrap", "normal"], (name, rules)


@test
def lists_and_tables_are_lists_and_tables():
    none_of((f"{name}: {line}" for name, page in site().items() for paragraph in page.paragraphs
             for line in paragraph.splitlines()[1:] if re.match(r"(?:- |[01]\. |\|)|.*\\\*", line)), "a paragraph holds them")


run()
