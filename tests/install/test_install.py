# SPDX-License-Identifier: Apache-2.0
"""Installs the build into a scratch folder and builds a small outside program against it."""

import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / "harness")]
from printed import commands, ddp_listing, exports, listings
from sentences import says
from tap import BUILD, SOURCE, Skip, command, none_of, run, test
from trees import install_below

OUTSIDE = SOURCE / "tests/install/outside"
SCRATCH = tempfile.TemporaryDirectory(prefix="lockstep-install-")
ROOT = pathlib.Path(SCRATCH.name) / "root"
LOG = pathlib.Path(SCRATCH.name) / "build/meson-logs/install-log.txt"  # a build folder as `make uninstall` reads it
EXPECTED = "rank 0 of 1: 1 2 3\n"
# As a program started by hand: no job's variables.
PLAIN = {name: value for name, value in os.environ.items()
         if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")}


def one(pattern):
    found = sorted(ROOT.rglob(pattern))
    assert len(found) == 1, f"{pattern}: {found}"
    return found[0]


def prefix():
    return one("lockstep.h").parent.parent.parent


def library_folder():
    return one("liblockstep.so").parent


def pkg_config(*arguments, package="lockstep"):
    where = dict(PLAIN, PKG_CONFIG_PATH=str(one("lockstep.pc").parent))
    return command("pkg-config", f"--define-variable=prefix={prefix()}", *arguments, package,
                   env=where)


def where_it_is_found():
    """The environment of a program that is linked with the installed library. With the prefix /usr it has no path, and the
    loader looks into the system's folders; here the installation is not one of them."""
    return PLAIN if "rpath" in pkg_config("--libs") else dict(PLAIN, LD_LIBRARY_PATH=str(library_folder()))


def run_outside(program):
    output = command(program, env=where_it_is_found())
    assert output == EXPECTED, output


@test
def meson_installs_into_a_scratch_root():
    """Stripped as by `make install`."""
    LOG.parent.mkdir(parents=True)
    LOG.write_text(install_below(ROOT))
    code = command(SOURCE / "scripts/installed", BUILD, "--code").split()
    command("strip", "--strip-debug", *(f"{ROOT}{path}" for path in code))
    told = command("make", "-n", "install", f"BUILD={BUILD}", cwd=SOURCE)
    assert f"strip --strip-debug $(scripts/installed {BUILD} --code)" in told, told
    headers = {str(p.relative_to(SOURCE)) for p in (SOURCE / "include").rglob("*.h*")}
    none_of(headers ^ {str(p.relative_to(prefix())) for p in (prefix() / "include").rglob("*.h*")},
            "headers of the tree and headers installed differ")
    assert one("lockstepConfig.cmake") and one("lockstepConfigVersion.cmake")


@test
def make_install_asks_for_the_prefix_it_is_given():
    told = command("make", "-n", "install", "PREFIX=/some/where", "LIBDIR=lib64", f"BUILD={BUILD}",
                   cwd=SOURCE)
    assert "-Dprefix=/some/where -Dlibdir=lib64" in told, told


@test
def an_installation_takes_less_than_25_MB():
    if "release" not in command(BUILD / "lockstep", "info"):
        raise Skip("not a release build")
    sizes = {path: path.stat().st_blocks * 512 for path in ROOT.rglob("*") if path.is_file() and not path.is_symlink()}
    assert sum(sizes.values()) < 25e6, sorted(sizes.items(), key=lambda item: -item[1])[:10]


@test
def the_licence_and_the_pages_are_installed_and_their_links_lead_somewhere():
    folder = prefix() / "share/doc/lockstep"
    assert (folder / "LICENSE").read_bytes() == (SOURCE / "LICENSE").read_bytes()
    pages = {p for p in folder.rglob("*.md")}
    assert {folder / "README.md", folder / "docs/ddp.md", folder / "docs/guide/overlap.md"} <= pages, pages
    links = {(page, link) for page in pages for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())}
    kept = ("include/", "python/", "bench/", "Dockerfile", "examples/data/", "examples/kubernetes/")  # of the sources alone
    none_of((f"{page}: {link}" for page, link in links if not (page.parent / link).exists()
             and not os.path.relpath(page.parent / link, folder).startswith(kept)), "leads nowhere")


@test
def no_installed_text_names_the_build_or_the_source_folder():
    problems = []
    for path in ROOT.rglob("*"):
        if path.suffix in (".pc", ".cmake", ".h"):
            text = path.read_text()
            problems += [path.name for folder in (BUILD, SOURCE) if f"{folder}/" in text]
    none_of(problems, "a place of this machine is written in")


@test
def the_installed_command_runs():
    found = [p for p in ROOT.rglob("bin/lockstep")]
    if not found:
        raise Skip("the build has no lockstep command yet")
    output = command(found[0], "info", "--variables", env=dict(PLAIN, LD_LIBRARY_PATH=str(library_folder())))
    assert "LOCKSTEP_TIMEOUT" in output, output
    done = subprocess.run([found[0], "doctor"], text=True, env=dict(PLAIN, LD_LIBRARY_PATH=str(library_folder())), timeout=60,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    assert "Open MPI" in done.stdout and "/../" not in done.stdout, done.stdout


@test
def a_program_is_built_with_pkg_config_and_runs():
    program = pathlib.Path(SCRATCH.name) / "with-pkg-config"
    command("gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", OUTSIDE / "main.c", "-o", program,
            *pkg_config("--cflags", "--libs").split())
    assert pkg_config("--modversion").strip() == "0.2.0"
    run_outside(program)


@test
def a_program_in_cpp_is_built_and_trains():
    program = pathlib.Path(SCRATCH.name) / "training"
    command("g++", "-std=c++17", "-Wall", "-Wextra", "-Wpedantic", "-Werror", OUTSIDE / "training.cpp",
            "-o", program, *pkg_config("--cflags", "--libs").split())
    said = command(program, env=where_it_is_found())
    assert "ok 1 - a_program_in_cpp_trains" in said, said


def compile_example(source):
    """As the page says, in a folder where nothing else of the tree is: one file, one line."""
    folder = pathlib.Path(SCRATCH.name) / "copied-out" / source.stem
    folder.mkdir(parents=True)
    shutil.copy(source, folder)
    package = "lockstep-models" if "<lockstep/models/" in source.read_text() else "lockstep"
    flags = pkg_config("--cflags", "--libs", package=package).split()
    compiler = "mpicc" if "<lockstep/mpi.h>" in source.read_text() else "gcc"
    if shutil.which(compiler) is None:
        return None
    command(compiler, "-Wall", "-Wextra", "-Werror", source.name, "-o", source.stem, *flags,
            cwd=folder)
    return folder / source.stem


@test
def each_example_copied_out_compiles_against_the_installed_library():
    examples = sorted((prefix() / "share/doc/lockstep/examples").glob("*.c"))
    assert [p.name for p in examples] == sorted(p.name for p in (SOURCE / "examples").glob("*.c"))
    programs = {source.stem: compile_example(source) for source in examples}
    assert "1 of 1 ranks hold the right sums" in command(programs["01_hello_all_reduce"], env=where_it_is_found())
    said = command(programs["03_gpt_text"], "--data", SOURCE / "LICENSE", "--steps", 2, "--sample-bytes",
                   3, env=where_it_is_found())
    assert "replicas identical: 1 of 1" in said, said


@test
def each_model_copied_out_compiles_against_the_installed_headers():
    models = sorted((prefix() / "share/doc/lockstep/models").glob("*.c"))
    assert [p.name for p in models] == sorted(p.name for p in (SOURCE / "models").glob("*.c"))
    command("gcc", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", *models, *pkg_config("--cflags").split())


@test
def a_program_is_linked_statically_and_runs_without_the_shared_library():
    program = pathlib.Path(SCRATCH.name) / "static"
    flags = pkg_config("--static", "--cflags", "--libs").split()
    libraries = [f for f in flags if f != "-llockstep"]
    command("gcc", OUTSIDE / "main.c", "-o", program, one("liblockstep.a"), *libraries)
    output = command(program, env=PLAIN)
    assert output == EXPECTED, output


@test
def a_program_is_built_with_cmake_and_runs():
    if shutil.which("cmake") is None:
        raise Skip("no cmake (apt-get install cmake)")
    build = pathlib.Path(SCRATCH.name) / "with-cmake"
    command("cmake", "-S", OUTSIDE, "-B", build, f"-DCMAKE_PREFIX_PATH={prefix()}", env=PLAIN)
    command("cmake", "--build", build, env=PLAIN)
    run_outside(build / "outside")


@test
def cmake_finds_the_headers_through_a_link_to_the_folder_of_libraries():
    """As where /lib is a link to /usr/lib, and /bin comes before /usr/bin in PATH."""
    if shutil.which("cmake") is None:
        raise Skip("no cmake (apt-get install cmake)")
    root = pathlib.Path(SCRATCH.name) / "merged"
    root.mkdir()
    (root / "lib").symlink_to(prefix() / "lib")
    command("cmake", "-S", OUTSIDE, "-B", root / "build", f"-DCMAKE_PREFIX_PATH={root}", env=PLAIN)
    command("cmake", "--build", root / "build", env=PLAIN)
    run_outside(root / "build/outside")


@test
def cmake_refuses_another_minor_version():
    if shutil.which("cmake") is None:
        raise Skip("no cmake (apt-get install cmake)")
    project = pathlib.Path(SCRATCH.name) / "other"
    project.mkdir()
    text = (OUTSIDE / "CMakeLists.txt").read_text()
    (project / "CMakeLists.txt").write_text(text.replace("lockstep 0.2 REQUIRED", "lockstep 0.3")
                                            .replace("add_exec", "# ").replace("target_", "# ") +
                                            'message(STATUS "found=${lockstep_FOUND}")\n')
    output = command("cmake", "-S", project, "-B", project / "build",
                     f"-DCMAKE_PREFIX_PATH={prefix()}", env=PLAIN)
    assert "found=0" in output, output


def as_printed(name, setup, **variables):
    """Runs the lines of the pages below `setup`, in a folder with the programs that they are about."""
    folder = pathlib.Path(SCRATCH.name) / name
    folder.mkdir()
    (folder / "build").symlink_to(BUILD)
    (folder / "ddp.c").write_text(ddp_listing())
    (folder / "pi.c").write_text(listings("docs/coming-from-mpi.md")["pi.c"])
    lines = commands("README.md", "cc ddp.c") + commands("docs/coming-from-mpi.md", "cc pi.c")
    said = command("sh", "-e", "-c", f"{setup}\n{lines}", cwd=folder, env=dict(PLAIN, **variables))
    assert "pi 3.1416, ranks add up to 6" in said, said


@test
def the_lines_of_the_pages_run_as_printed_from_the_build_folder():
    as_printed("from-build", exports("docs/guide/README.md"))


@test
def the_lines_of_the_pages_run_as_printed_from_a_private_prefix():
    """pkg-config answers as if the build had been set up with this prefix."""
    home, tools = pathlib.Path(SCRATCH.name) / "home", pathlib.Path(SCRATCH.name) / "tools"
    home.mkdir()
    tools.mkdir()
    (home / "lockstep").symlink_to(prefix())
    if not (home / "lockstep/lib/pkgconfig").exists():
        raise Skip("the build's libdir is not lib")
    (tools / "pkg-config").write_text(f'#!/bin/sh\nexec {shutil.which("pkg-config")} '
                                      f'--define-variable=prefix={home}/lockstep "$@"\n')
    (tools / "pkg-config").chmod(0o755)
    as_printed("from-prefix", exports("README.md"), **dict(where_it_is_found(), HOME=str(home), PATH=f"{tools}:{PLAIN['PATH']}"))


@test
def a_program_that_does_not_find_the_library_is_told_what_to_do():
    program = pathlib.Path(SCRATCH.name) / "without-a-path"
    command("gcc", OUTSIDE / "main.c", "-o", program, "-I", prefix() / "include", f"-L{library_folder()}", "-llockstep")
    done = subprocess.run([prefix() / "bin/lockstep", "run", "-n", "2", program], text=True, env=PLAIN, timeout=30,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 127, done.stdout
    says(done.stdout, "lockstep: link the program with the flags of `pkg-config --libs lockstep`, which name the library's "
         "folder, or put that folder into LD_LIBRARY_PATH")


def rank_script(other):
    """A program for two ranks, of which rank 1 loads another library."""
    path = pathlib.Path(SCRATCH.name) / "two-ranks"
    path.write_text(f"""#!/bin/sh
LD_LIBRARY_PATH={library_folder()}
[ "$RANK" = 1 ] && LD_LIBRARY_PATH={other}
export LD_LIBRARY_PATH
exec {pathlib.Path(SCRATCH.name) / "joins"}
""")
    path.chmod(0o755)
    return path


JOINS = """#include <stdio.h>
#include <lockstep/lockstep.h>
int main(void)
{
    if (ls_init(NULL) != LS_OK) {
        puts(ls_error_message());
        return 1;
    }
    return ls_finalize() != LS_OK;
}
"""


@test
def ranks_with_libraries_of_two_versions_are_told_both():
    other = pathlib.Path(SCRATCH.name) / "other-version"
    other.mkdir()
    source = pathlib.Path(SCRATCH.name) / "joins.c"
    source.write_text(JOINS)
    command("gcc", source, "-o", source.with_suffix(""), *pkg_config("--cflags", "--libs").split())
    image = one("liblockstep.so").resolve().read_bytes()
    assert image.count(b"\0" + b"0.2.0\0") >= 1
    (other / one("liblockstep.so.0.2").name).write_bytes(image.replace(b"\0" + b"0.2.0\0",
                                                                    b"\0" + b"0.0.9\0"))
    for hosts in ("1", "2"):  # through shared memory, through the store
        done = subprocess.run([BUILD / "lockstep", "run", "-n", "2", rank_script(other)], text=True,
                              env=dict(PLAIN, LOCKSTEP_HOSTS=hosts), timeout=30,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert done.returncode != 0, done.stdout
        assert "ranks are set up differently" in done.stdout, done.stdout
        assert "version=0.2.0" in done.stdout and "version=0.0.9" in done.stdout, done.stdout


# ---- training with what is installed ---------------------------------------------------------


def installed(*arguments, cwd, status=0):
    """What the installed command prints; nothing else of the tree is on the path."""
    where = dict(PLAIN, PATH=f"{prefix()}/bin:/usr/bin:/bin")
    done = subprocess.run(["lockstep", *map(str, arguments)], cwd=cwd, env=where, text=True, timeout=120,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          errors="replace", executable=prefix() / "bin/lockstep")
    assert done.returncode == status, done.stdout
    return done.stdout


def work_folder():
    folder = pathlib.Path(SCRATCH.name) / "work"
    if not folder.exists():
        folder.mkdir()
        shutil.copy(SOURCE / "LICENSE", folder / "text")
        idx(folder)
    return folder


def idx(folder):
    """40 images of 4 x 4 with labels 0 to 9, as MNIST's files are."""
    for name, magic, shape, values in (("train-images-idx3-ubyte", 0x803, (40, 4, 4), (i * 37 % 256 for i in range(640))),
                                       ("train-labels-idx1-ubyte", 0x801, (40,), (i % 10 for i in range(40)))):
        (folder / name).write_bytes(struct.pack(f">{1 + len(shape)}i", magic, *shape) + bytes(values))


SMALL = ("--steps", 5, "--batch", 2, "--layers", 1, "--dim", 16, "--heads", 2)


@test
def a_gpt_is_trained_and_writes_with_what_is_installed():
    folder = work_folder()
    said = installed("train", "gpt", "--data", "text", *SMALL, "--context", 16, "--eval-windows", 4, "--save", "run",
                     cwd=folder)
    assert "trained 5 steps" in said and "replicas identical: 1 of 1" in said, said
    said = installed("generate", "--checkpoint", "run", *SMALL[4:], "--context", 16, "--tokens", 5, "--prompt", "You",
                     cwd=folder)
    assert said.startswith("You") and "5 tokens" in said, said


@test
def ranks_train_by_both_ways_to_say_it():
    folder = work_folder()
    flags = ("--data", "text", *SMALL, "--context", 16, "--eval-windows", 4)
    for words in (("train", "gpt", "-n", 2), ("train", "gpt", "-n2"), ("run", "-n", 2, prefix() / "bin/lockstep", "train", "gpt")):
        said = installed(*words, *flags, cwd=folder)
        assert "replicas identical: 2 of 2" in said, said


@test
def a_bert_and_a_classifier_of_images_are_trained():
    folder = work_folder()
    said = installed("train", "bert", "--data", "text", *SMALL, "--context", 16, "--eval-windows", 4, cwd=folder)
    assert "trained 5 steps" in said, said
    said = installed("train", "image", "--data", ".", "--steps", 5, "--batch", 2, "--hidden", 8, "--flip", cwd=folder)
    assert "trained 5 steps" in said, said


@test
def nothing_of_the_build_is_needed():
    """The command contains the library; programs find the installed one wherever the prefix is, as the runs above show."""
    programs = [*(prefix() / "libexec/lockstep").iterdir()]
    assert len(programs) == 4, programs
    for file in (prefix() / "bin/lockstep", *programs, *prefix().rglob("*.so.0.2.0"), *prefix().rglob("*_*.so")):
        dynamic = command("readelf", "-d", file)
        assert "(NEEDED)" in dynamic and str(BUILD) not in dynamic and "../src" not in dynamic, dynamic
        assert ("Shared library: [liblockstep.so.0.2]" in dynamic) == (file in programs or file.name.startswith(
            ("liblockstep_pmpi", "liblockstep-models"))), dynamic


@test
def an_installation_without_a_program_says_so():
    missing = prefix() / "libexec/lockstep/train_bert"
    missing.rename(missing.with_name("away"))
    said = installed("train", "bert", cwd=work_folder(), status=1)
    missing.with_name("away").rename(missing)
    assert 'train_bert"' in said, said
    says(said, 'lockstep: "%s" is missing; install Lockstep again, not as a wheel, which has no programs that train')


@test
def every_command_has_a_page_and_the_pages_have_the_options():
    pages = {p.name: p.read_text() for p in (prefix() / "share/man/man1").iterdir()}
    for line in installed("help", cwd=work_folder()).splitlines():
        if line.startswith("  ") and line.split()[0] != "help":
            assert f"lockstep-{line.split()[0]}.1" in pages, line
    sources = [path for folder in ("bench", "paper", "programs", "tools") for path in (SOURCE / folder).glob("*.c")]
    names = {name for path in sources for name in re.findall(r'\.name = "lockstep ([^"]+)"', path.read_text())}
    assert {"bench ddp", "train gpt", "run"} <= names, names
    wanted = {f"lockstep-{name.replace(' ', '-')}" for name in names}
    none_of((name for name in sorted(wanted) if not pages.get(f"{name}.1", "").replace("\\-", "-")
             .startswith(f".TH {name.upper()} ")), "no page of")
    assert "\\-\\-steps" in pages["lockstep-train-gpt.1"] and "\\-\\-max\\-restarts" in pages["lockstep-run.1"]
    if shutil.which("groff") is None:
        raise Skip("no groff to read the pages (apt-get install groff-base)")
    for name, text in pages.items():
        done = subprocess.run(["groff", "-man", "-ww", "-Tutf8", "-z"], input=text, text=True, capture_output=True)
        assert done.returncode == 0 and not done.stderr, (name, done.stderr)


@test
def bash_completes_commands_options_and_their_choices():
    script = prefix() / "share/bash-completion/completions/lockstep"
    assert (prefix() / "share/zsh/site-functions/_lockstep").exists()
    assert (prefix() / "share/fish/vendor_completions.d/lockstep.fish").exists()
    where = dict(PLAIN, PATH=f"{prefix()}/bin:/usr/bin:/bin")
    for words, wanted in ((("ge",), "generate"), (("train", "im"), "image"), (("train", "gpt", "--eval-e"), "--eval-every"),
                          (("train", "gpt", "--optim", "ad"), "adamw"), (("run", "--max"), "--max-restarts"),
                          (("bench", "all-reduce", "--alg"), "--algorithm"), (("data", "tokens", "--held"), "--held-out")):
        line = f"source {script}; COMP_WORDS=(lockstep {' '.join(words)}); COMP_CWORD={len(words)}; _lockstep; echo ${{COMPREPLY[@]}}"
        said = command("bash", "-c", line, env=where)
        assert said.split() == [wanted], (words, said)


@test
def a_fresh_folder_builds_what_it_installs_and_no_tests():
    """Asked of ninja and of meson's plan, since a fresh build takes minutes."""
    targets = command(SOURCE / "scripts/installed", BUILD).split()
    inputs = {*targets, *command("ninja", "-C", BUILD, "-t", "inputs", *targets).split()}
    rules = command("ninja", "-C", BUILD, "-t", "targets", "all").splitlines()
    built = {rule.split(": ")[0] for rule in rules}
    plan = json.loads(command("meson", "introspect", BUILD, "--installed"))
    wanted = {os.path.relpath(path, BUILD) for path in plan} & built
    none_of(wanted - inputs, "installed, but not built for `make install`")
    none_of((name for name in inputs if name.startswith("tests/")), "built for `make install`")
    assert f"scripts/installed {BUILD}" in command("make", "-n", "install", f"BUILD={BUILD}", cwd=SOURCE)
    assert {"lockstep", "programs/train_gpt", "src/liblockstep.a"} <= wanted, wanted


@test
def any_target_alone_builds_in_a_fresh_folder():
    """No file is compiled before the headers that it includes are generated."""
    said = command("ninja", "-C", BUILD, "-t", "missingdeps")
    assert "No missing dependencies" in said, said


# ---- removing it ---------------------------------------------------------------------------------


def uninstall(*settings, status=0):
    done = subprocess.run(["make", "--no-print-directory", "uninstall", f"BUILD={LOG.parents[1]}", *settings], cwd=SOURCE, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert (done.returncode == 0) == (status == 0), done.stdout
    return done.stdout


@test
def a_prefix_is_removed_if_the_installation_made_it():
    build, there = pathlib.Path(SCRATCH.name) / "small", pathlib.Path(SCRATCH.name) / "prefix"
    log = build / "meson-logs/install-log.txt"
    log.parent.mkdir(parents=True)
    for made in ([there / "bin", there], []):
        (there / "bin").mkdir(parents=True)
        (there / "bin/lockstep").touch()
        log.write_text("\n".join(map(str, ["# a comment", there / "bin/lockstep", *made])))
        command(SOURCE / "scripts/uninstall", build, there)
        assert there.exists() == (not made) and not (there / "bin").exists(), made


@test
def what_was_installed_is_removed_and_nothing_else():
    """The last test: it takes the installation of the others away."""
    where = f"/{prefix().relative_to(ROOT)}"
    said = uninstall(f"PREFIX={where}/other", f"DESTDIR={ROOT}", status=1)
    assert "which is not below" in said and "give the PREFIX" in said, said
    assert one("lockstep.h").exists()
    kept = prefix() / "share/man/man1/other.1"
    kept.write_text("another program's\n")
    uninstall(f"PREFIX={where}", f"DESTDIR={ROOT}")
    assert [p for p in ROOT.rglob("*") if not p.is_dir()] == [kept], list(ROOT.rglob("*"))
    none_of((p for p in ROOT.rglob("*") if p.is_dir() and p not in kept.parents), "empty folders are left")


run()
