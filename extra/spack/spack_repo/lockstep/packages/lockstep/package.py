# SPDX-License-Identifier: Apache-2.0
# `spack repo add extra/spack/spack_repo/lockstep`, then `spack install lockstep`: the head of this repository's main.

import pathlib

from spack_repo.builtin.build_systems.meson import MesonPackage

from spack.package import *


class Lockstep(MesonPackage):
    """Distributed deep-learning training in C: collectives over shared memory and TCP, data, pipeline
    and tensor parallelism, automatic differentiation, optimizers, checkpoints, and the command that
    starts the processes of a job."""

    homepage = git = pathlib.Path(__file__).resolve().parents[6].as_uri()

    license("Apache-2.0")

    version("0.2.0", branch="main")

    # Features of meson_options.txt, by the same names.
    variant("onednn", default=True, description="Products and convolutions through oneDNN")
    variant("openmp", default=True, description="Threads within one rank")
    variant("tls", default=True, description="Encrypted links between hosts")
    variant("pcre2", default=True, description="Byte-pair encoding of texts")
    variant("zlib", default=True, description="Data files that gzip has compressed")
    variant("utf8proc", default=True, description="The normal form NFC of texts")
    variant("mpi", default=False, description="Plug-in that moves data over MPI")
    variant("cuda", default=False, description="Kernels of the device cuda")

    depends_on("c", type="build")
    depends_on("cxx", type="build", when="+cuda")  # of nvcc
    depends_on("meson@0.61:", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("python@3.8:", type="build")

    depends_on("jansson@2.10:")
    depends_on("openssl@1.1.0:")
    depends_on("openssl@3:", when="+tls")
    depends_on("onednn@2: cpu_runtime=omp", when="+onednn")
    depends_on("pcre2@10.30:", when="+pcre2")
    depends_on("zlib-api", when="+zlib")
    # Built by CMake, as Spack does, it has a file for pkg-config from 2.7 on. Its default is static.
    depends_on("utf8proc@2.7: +shared", when="+utf8proc")
    depends_on("mpi", when="+mpi")
    depends_on("cuda@12:", when="+cuda", type=("build", "run"))

    # oneDNN's threads are those of OpenMP.
    conflicts("+onednn", when="~openmp")
    # The command contains the static library, the training programs link the shared one.
    requires("default_library=shared,static")
    requires("^[virtuals=mpi] openmpi", "^[virtuals=mpi] mpich", policy="one_of", when="+mpi")

    def meson_args(self):
        def given(name, value):
            return f"-D{name}={value if self.spec.satisfies('+' + name) else 'disabled'}"

        features = ("onednn", "openmp", "tls", "pcre2", "zlib", "utf8proc", "cuda")
        # mpi=enabled asks for Open MPI and MPICH; here one of them is there.
        return [*(given(name, "enabled") for name in features), given("mpi", "auto"), "-Dtests=false"]

    def setup_run_environment(self, env: EnvironmentModifications) -> None:
        # The plug-in loads cuBLASLt when the device is used.
        if self.spec.satisfies("+cuda"):
            env.prepend_path("LD_LIBRARY_PATH", self.spec["cuda"].prefix.lib64)
