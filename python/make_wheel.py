# SPDX-License-Identifier: Apache-2.0
"""Builds the package: a wheel is a zip archive of the files and a few notes about them.

There are two kinds. `pip install ./python` (PEP 517) packs the Python files alone, so nothing is
compiled or downloaded; the library is found where it was built or installed. `python3
python/make_wheel.py [FOLDER]` also builds the library and the command `lockstep` and packs them, so
that the one file is all that another machine has to install.

That build has what the collectives need: OpenSSL (TLS between hosts, hashes), linked statically, and
Jansson, whose shared library lies beside it, because Debian's static one is not for shared libraries.
It leaves out OpenMP, oneDNN, PCRE2, utf8proc and zlib, which only training in C uses.
"""

import base64
import hashlib
import io
import os
import pathlib
import platform
import re
import subprocess
import sys
import tarfile
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
NAME = "lockstep"
METADATA = """Metadata-Version: 2.1
Name: lockstep
Version: {version}
Summary: Lockstep's collectives for Python, NumPy and PyTorch
License: Apache-2.0
Requires-Python: >=3.8
Provides-Extra: numpy
Requires-Dist: numpy; extra == "numpy"
Provides-Extra: torch
Requires-Dist: torch; extra == "torch"
Description-Content-Type: text/markdown

{readme}"""
WHEEL = "Wheel-Version: 1.0\nGenerator: make_wheel\nRoot-Is-Purelib: {pure}\nTag: {tag}\n"
# PyTorch from 2.5 on calls it at `import torch`, so that it knows the backend's name.
ENTRY_POINTS = "[torch.backends]\nlockstep = lockstep.torch:register\n"
COMMAND = "\n[console_scripts]\nlockstep = lockstep._command:main\n"  # where the wheel brings it
PURE = "py3-none-any"

SETUP = ["--buildtype=release", "-Dprefer_static=true", "-Dtests=false",
         "-Dc_link_args=-Wl,--exclude-libs,ALL,-rpath,$ORIGIN,-s", "-Dtls=enabled", "-Dopenmp=disabled",
         "-Donednn=disabled", "-Dpcre2=disabled", "-Dzlib=disabled",
         "-Dutf8proc=disabled"]
LIBRARY = "liblockstep.so.0.2"  # as _library.py looks for it
JANSSON = "libjansson.so.4"
LICENSES = {"lockstep": ROOT / "LICENSE",
            "openssl": "/usr/share/doc/libssl-dev/copyright",
            "jansson": "/usr/share/doc/libjansson-dev/copyright"}


def _version():
    values = {}
    exec((HERE / NAME / "_version.py").read_text(), values)
    return values["__version__"]


def _metadata():
    return METADATA.format(version=_version(), readme=(HERE / "README.md").read_text())


def _sources():
    """{path in the package: file}"""
    found = [*(HERE / NAME).rglob("*.py"), *(HERE / NAME).rglob("py.typed")]
    return {p.relative_to(HERE).as_posix(): p for p in sorted(found)}


def _write(folder, files, tag=PURE):
    """The archive of {name: bytes}, with the notes and the list of hashes at its end."""
    info = f"{NAME}-{_version()}.dist-info"
    notes = {"METADATA": _metadata(), "entry_points.txt": ENTRY_POINTS + COMMAND * (tag != PURE),
             "WHEEL": WHEEL.format(pure=str(tag == PURE).lower(), tag=tag)}
    files.update({f"{info}/{name}": text.encode() for name, text in notes.items()})
    lines = []
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(data)}\n")
    files[f"{info}/RECORD"] = ("".join(lines) + f"{info}/RECORD,,\n").encode()
    path = pathlib.Path(folder) / f"{NAME}-{_version()}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name)  # of 1980, so that equal files make equal wheels
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if data[:4] == b"\x7fELF" else 0o100644) << 16
            archive.writestr(entry, data)
    return path.name


# ---- what pip calls -----------------------------------------------------------------------------


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    return _write(wheel_directory, {name: p.read_bytes() for name, p in _sources().items()})


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    """pip install -e: a line that tells Python where these files lie."""
    return _write(wheel_directory, {f"_{NAME}.pth": f"{HERE}\n".encode()})


def build_sdist(sdist_directory, config_settings=None):
    base = f"{NAME}-{_version()}"
    path = pathlib.Path(sdist_directory) / f"{base}.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name in ("pyproject.toml", "make_wheel.py", "README.md"):
            archive.add(HERE / name, f"{base}/{name}")
        for name, file in _sources().items():
            archive.add(file, f"{base}/{name}")
        note = tarfile.TarInfo(f"{base}/PKG-INFO")
        note.size = len(_metadata().encode())
        archive.addfile(note, io.BytesIO(_metadata().encode()))
    return path.name


# ---- the wheel with the library -----------------------------------------------------------------


def _asked(*command):
    return subprocess.run(command, check=True, text=True, capture_output=True).stdout.strip()


def _compile(build):
    """Jansson is named to the linker by its file, or meson would take the static one."""
    if not (build / "build.ninja").exists():
        build.mkdir(parents=True, exist_ok=True)
        version = _asked("pkg-config", "--modversion", "jansson")
        (build / "jansson.pc").write_text(f"Name: jansson\nDescription: shared\nVersion: {version}\n"
                                          f"Libs: -l:{JANSSON}\n")
        subprocess.run(["meson", "setup", build, ROOT, *SETUP], check=True,
                       env=dict(os.environ, PKG_CONFIG_PATH=str(build)))
    subprocess.run(["ninja", "-C", build, f"src/{LIBRARY}.0", "lockstep"], check=True)


def _platform(*files):
    """The tag of the oldest glibc that has every function these files call."""
    names = _asked("objdump", "-T", *files)
    found = {tuple(map(int, v.split("."))) for v in re.findall(r"GLIBC_(\d+\.\d+)", names)}
    major, minor = max(found)
    return f"manylinux_{major}_{minor}_{platform.machine()}"


def _needed(file):
    """The shared libraries that a file asks the dynamic linker for."""
    return set(re.findall(r"NEEDED +(\S+)", _asked("objdump", "-p", file)))


def _check_needed(*files):
    """Every Linux with glibc has these; anything else would be missing on another machine."""
    allowed = re.compile(r"(libc|libm|libpthread|libdl|librt|ld-linux\S*)\.so\.\d+")
    for file in files:
        more = sorted(n for n in _needed(file) - {JANSSON} if not allowed.fullmatch(n))
        if more:
            sys.exit(f"{file} needs {', '.join(more)}, which a wheel cannot take for granted; install "
                     "its static library (Debian: libssl-dev) and build again")


def build_binary_wheel(folder, build):
    """A wheel with the library and the command; its name."""
    _compile(build)
    jansson = pathlib.Path(_asked("pkg-config", "--variable=libdir", "jansson")) / JANSSON
    brought = {LIBRARY: build / "src" / LIBRARY, "lockstep": build / "lockstep", JANSSON: jansson}
    _check_needed(*brought.values())
    files = {name: p.read_bytes() for name, p in _sources().items()}
    files.update({f"{NAME}/{name}": p.read_bytes() for name, p in brought.items()})
    for name, path in LICENSES.items():
        if pathlib.Path(path).exists():
            files[f"{NAME}-{_version()}.dist-info/licenses/{name}"] = pathlib.Path(path).read_bytes()
    return _write(folder, files, f"py3-none-{_platform(*brought.values())}")


if __name__ == "__main__":
    target = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build").resolve()
    print(target / build_binary_wheel(target, target / "wheel"))
