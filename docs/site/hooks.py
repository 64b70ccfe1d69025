# SPDX-License-Identifier: Apache-2.0
"""What MkDocs does not do by itself: pages outside docs/, public headers as pages, names of the code as links, formulas.

Doxygen reads only comments that are marked for it, and the headers' are plain. A header is prose and declarations in
turns, so it becomes a page by taking the comments out of the code: a heading for each block, with its names as anchors.
"""

import html
import pathlib
import re

import latex2mathml.converter
from mkdocs.structure.files import File, Files

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEADERS = sorted((ROOT / "include/lockstep").rglob("*.h"))
PAGES = [ROOT / f"{name}.md" for name in ("README", "ARCHITECTURE", "CONTRIBUTING", "STYLE", "SECURITY", "CHANGELOG")]
PAGES += sorted((ROOT / "docs").rglob("*.md")) + [ROOT / "python/README.md", ROOT / "examples/data/README.md"]
CARDS = (  # of the landing page, which is the README: where a reader may want to go first
    ("Install", "docs/install.md", "packages, containers, tested systems"),
    ("Guide", "docs/guide/README.md", "the paper and the lectures, a command for each figure"),
    ("Models", "docs/models.md", "GPT, BERT, ResNets: training and generating from the command line"),
    ("Data parallelism", "docs/ddp.md", "uneven data, local steps, sizes of buckets"),
    ("All axes", "docs/parallelism.md", "pipelines, tensors, sequences, experts, ZeRO in one mesh"),
    ("Interface", "docs/api.md", "errors, ownership, options, threads, C++"),
    ("Failures", "docs/troubleshooting.md", "how to read a report; the mistakes of other systems"),
    ("Performance", "docs/performance.md", "measurements, and the command that repeats each"),
)
LINK = re.compile(r"\]\(([^)#:\s]+)(#[^)\s]*)?\)")
DECLARED = re.compile(r"^(?:LS_API|static inline)[^;{]*?\b(ls_\w+)\(|^\} (ls_\w+);|^typedef \w+ (?:\w+ )?(ls_\w+);|"
                      r"^#define (LS_\w+)|^typedef [^;{]*\(\*(ls_\w+)\)", re.MULTILINE)
LEFT_OUT = re.compile(r"/\* SPDX-[^\n]*\n|#include [^\n]*\n|#ifdef __cplusplus\n.*?#endif\n|#(?:ifndef|define) LOCKSTEP_\w+_H\n|"
                      r"#if !defined\(LS_NO_SITES\)\n.*?\n#endif\n|#endif\n\Z", re.DOTALL)
anchors = {}  # "ls_all_reduce": the page of its header


def name_of(path):
    return path.relative_to(ROOT).as_posix()


# ---- headers -----------------------------------------------------------------------------------


def words(text):
    """Prose as Markdown: names of the code become code, and a star is one unless it emphasises a word."""
    text = re.sub(r"(?<![\w*])(\*\w+\*)(?!\w)|\*", lambda star: star.group(1) or r"\*", html.escape(text, quote=False))
    return re.sub(r"(?<![\w/])((?:ls_|LS_|LOCKSTEP_)\w+)|_", lambda name: f"`{name.group(1)}`" if name.group(1) else r"\_", text)


def prose(comment):
    """The text of a comment as Markdown. Indented lines outside lists are code."""
    lines, item, code = [], False, False
    for line in re.sub(r"^/\*|\*/$", "  ", comment).splitlines():
        line = re.sub(r"^ {0,2}\*? ?", "", line.rstrip())
        line = line.strip() if line.startswith("  - ") else line
        item = line.startswith("- ") or (item and line.startswith("  "))
        if line.startswith("  ") and not item:
            lines += ([] if code else [""]) + ["    " + line]
            code = True
        else:
            lines.append("".join(part if k % 2 else words(part) for k, part in enumerate(re.split(r"(`[^`]*`)", line))))
            code = code and not line
    return "\n".join(lines).strip("\n")


def blocks(text):
    """(comment, code) of each block; blocks stand between blank lines, a long comment may hold some."""
    text = LEFT_OUT.sub("", text)
    while text := text.lstrip("\n"):
        comment = re.match(r"/\*.*?\*/(?=\n)", text, re.DOTALL)
        comment = comment.group(0) if comment else ""
        text = text[len(comment):].removeprefix("\n")
        code, _, text = (text + "\n\n").partition("\n\n") if not text.startswith("\n") else ("", "", text)
        yield comment, code.strip("\n")


def names_in(code):
    return list(dict.fromkeys(name for found in DECLARED.findall(code) for name in found
                              if name and not name.startswith("LS_DEFAULTS_")))


def header_page(path):
    parts = [f"# lockstep/{path.relative_to(ROOT / 'include/lockstep')}\n"]
    for comment, code in blocks(path.read_text()):
        if section := re.match(r"/\* -{4} (.*?) -* ?\*/", comment):
            parts.append(f"## {section.group(1)}\n")
            comment = ""
        names = names_in(code)
        heading = ", ".join(names[:3]) + (" …" if len(names) > 3 else "")
        parts += [f"### {heading}\n"] if names else []
        parts += ["".join(f'<a id="{name}"></a>' for name in names if name != heading.lower()) + "\n"]
        parts += [prose(comment) + "\n"] if comment else []
        parts += [f"```c\n{code}\n```\n"] if code else []
        anchors.update((name, name_of(path) + ".md") for name in names)
    return "\n".join(parts)


# ---- pages -------------------------------------------------------------------------------------


def landing(markdown):
    """The README with cards after its first sentence."""
    title, sentence, rest = markdown.split("\n\n", 2)
    cards = "\n".join(f"- **[{name}]({page})**<br>{about}" for name, page, about in CARDS)
    return f'{title}\n\n{sentence}\n\n<div class="cards" markdown="1">\n\n{cards}\n\n</div>\n\n{rest}'


def typeset(markdown):
    """Blocks of ```math, which GitHub typesets in the browser, as MathML."""
    def formula(block):
        return f'<div class="formula">{latex2mathml.converter.convert(block.group(1).strip(), display="block")}</div>'
    return re.sub(r"^```math\n(.*?)^```$", formula, markdown, flags=re.MULTILINE | re.DOTALL)


# ---- what MkDocs calls -------------------------------------------------------------------------


def on_config(config):
    """The menu: the README, the guide in the order of its table, the pages in the order of docs/README.md, headers."""
    def linked(page, below):
        text = (ROOT / page).read_text()
        found = [(ROOT / page).parent / link for link in re.findall(r"^\|.*?\]\(([\w./-]+\.md)\)", text, re.MULTILINE)]
        return [name_of(path.resolve()) for path in dict.fromkeys(found) if path.resolve().is_relative_to(ROOT / below)]
    guide = linked("docs/guide/README.md", "docs/guide")
    pages = [p for p in linked("docs/README.md", "") if p not in ("README.md", "docs/guide/README.md")]
    config["nav"] = [{"Lockstep": "README.md"}, {"Guide": ["docs/guide/README.md", *guide]},
                     {"Pages": ["docs/README.md", *pages]},
                     {"Headers": [{name_of(h).removeprefix("include/"): name_of(h) + ".md"} for h in HEADERS]}]
    return config


def on_files(files, config):
    def file(path):
        return File(path, str(ROOT), config["site_dir"], config["use_directory_urls"])
    found = {name_of(page) for page in PAGES} | set(config["extra_css"])
    for page in PAGES:
        for link, _ in LINK.findall(page.read_text()):
            target = (page.parent / link).resolve()
            if target.is_file() and target.is_relative_to(ROOT) and target not in HEADERS:
                found.add(name_of(target))
    generated = [File.generated(config, name_of(h) + ".md", content=header_page(h)) for h in HEADERS]
    themes = [f for f in files if f.src_dir != config["docs_dir"]]
    return Files([file(path) for path in sorted(found)] + generated + themes)


def on_page_markdown(markdown, page, config, files):
    """Links to headers lead to their pages, and so do the names that they declare. Lists and tables need no empty line
    before them, as on GitHub."""
    here = page.file.src_uri
    up = "../" * here.count("/")

    def named(match):
        target = anchors.get(match.group(1))
        return f"[{match.group(0)}]({up}{target}#{match.group(1)})" if target else match.group(0)
    markdown = typeset(landing(markdown) if here == "README.md" else markdown)
    markdown = markdown.replace("<details>", '<details markdown="1">')
    markdown = re.sub(r"(\]\([\w./-]*include/lockstep/[\w/]+\.h)\)", r"\1.md)", markdown)
    parts = re.split(r"(^```.*?^```$|^ {4}[^\n]*$|^#[^\n]*$|\[[^\]]*\]\()", markdown, flags=re.MULTILINE | re.DOTALL)
    markdown = "".join(part if k % 2 else re.sub(r"`((?:ls_|LS_)\w+)(?:\([^`]*\))?`", named, part)
                       for k, part in enumerate(parts))
    return re.sub(r"^(?!- |\d+\. |\|)(\S.*)\n(?=- |0\. |1\. |\|)", r"\1\n\n", markdown, flags=re.MULTILINE)
