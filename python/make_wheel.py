"""Builds the package (PEP 517): a wheel is a zip archive of the files and three notes about them.

Nothing is compiled and nothing is needed, so `pip install ./python` works without a network.
"""

import base64
import hashlib
import pathlib
import tarfile
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
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
WHEEL = "Wheel-Version: 1.0\nGenerator: make_wheel\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
# PyTorch from 2.5 on calls it at `import torch`, so that it knows the backend's name.
ENTRY_POINTS = "[torch.backends]\nlockstep = lockstep.torch:register\n"


def _version():
    values = {}
    exec((HERE / NAME / "_version.py").read_text(), values)
    return values["__version__"]


def _notes():
    """The notes that stand in the .dist-info folder: {name: text}."""
    text = METADATA.format(version=_version(), readme=(HERE / "README.md").read_text())
    return {"METADATA": text, "WHEEL": WHEEL, "entry_points.txt": ENTRY_POINTS}


def _write(folder, files):
    """The archive of {name: bytes}, with the list of hashes at its end."""
    info = f"{NAME}-{_version()}.dist-info"
    files.update({f"{info}/{name}": text.encode() for name, text in _notes().items()})
    lines = []
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(data)}\n")
    lines.append(f"{info}/RECORD,,\n")
    path = pathlib.Path(folder) / f"{NAME}-{_version()}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
        archive.writestr(f"{info}/RECORD", "".join(lines))
    return path.name


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    return _write(wheel_directory, {p.relative_to(HERE).as_posix(): p.read_bytes()
                                    for p in sorted((HERE / NAME).rglob("*.py"))})


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    """pip install -e: a line that tells Python where these files lie."""
    return _write(wheel_directory, {f"_{NAME}.pth": f"{HERE}\n".encode()})


def build_sdist(sdist_directory, config_settings=None):
    base = f"{NAME}-{_version()}"
    path = pathlib.Path(sdist_directory) / f"{base}.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name in ("pyproject.toml", "make_wheel.py", "README.md"):
            archive.add(HERE / name, f"{base}/{name}")
        for file in sorted((HERE / NAME).rglob("*.py")):
            archive.add(file, f"{base}/{file.relative_to(HERE).as_posix()}")
    return path.name
