# SPDX-License-Identifier: Apache-2.0
"""The recipe for Spack has the versions and options of the build. Spack itself is not needed: its directives take notes."""

import pathlib
import re
import sys
import types
import unittest.mock

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / "harness")]
from tap import SOURCE, none_of, run, test
from trees import VERSION, build_options

RECIPE = SOURCE / "extra/spack/spack_repo/lockstep/packages/lockstep/package.py"


class Spec:
    """What the recipe asks of a concrete spec."""

    def __init__(self, *variants):
        self.variants = variants

    def satisfies(self, text):
        return text.removeprefix("+") in self.variants


def recipe():
    """What its directives say, and the class."""
    notes = types.SimpleNamespace(versions=[], variants={}, depends=[])
    directives = {
        "license": lambda *names: None, "conflicts": lambda *specs, **more: None, "requires": lambda *specs, **more: None,
        "version": lambda name, **more: notes.versions.append(name),
        "variant": lambda name, default, description: notes.variants.update({name: default}),
        "depends_on": lambda spec, **more: notes.depends.append((spec, more.get("when")))}
    modules = {"spack": types.ModuleType("spack"), "spack.package": types.ModuleType("spack.package")}
    vars(modules["spack.package"]).update(directives, EnvironmentModifications=object)
    name = ""
    for part in ("spack_repo", "builtin", "build_systems", "meson"):
        name += f".{part}" if name else part
        modules[name] = types.ModuleType(name)
    modules[name].MesonPackage = type("MesonPackage", (), {})
    values = {"__file__": str(RECIPE)}
    with unittest.mock.patch.dict(sys.modules, modules):
        exec(compile(RECIPE.read_text(), RECIPE, "exec"), values)
    notes.package = values["Lockstep"]
    return notes


def arguments(*variants):
    package = recipe().package()
    package.spec = Spec(*variants)
    return dict(argument.removeprefix("-D").split("=") for argument in package.meson_args())


@test
def the_recipe_has_the_options_of_the_build():
    features = {name for name, kind in build_options().items() if kind == "feature"}
    none_of(features ^ set(recipe().variants), "a feature of meson_options.txt or a variant of the recipe, not both")
    none_of(set(arguments()) - set(build_options()), "not in meson_options.txt")
    assert {value for name, value in arguments().items() if name in features} == {"disabled"}
    assert {value for name, value in arguments(*features).items() if name in features} == {"enabled", "auto"}


@test
def the_recipe_asks_for_the_versions_of_the_build():
    assert recipe().versions == [VERSION], recipe().versions
    build = (SOURCE / "meson.build").read_text()
    wanted = {"meson": re.search(r"meson_version: '>=([\d.]+)'", build)[1]}
    for name, least in re.findall(r"dependency\('([\w-]+)', version: '>=([\d.]+)'", build):
        wanted[{"libcrypto": "openssl", "libpcre2-8": "pcre2", "libutf8proc": "utf8proc"}.get(name, name)] = least
    wanted["utf8proc"] = "2.7"  # earlier ones have no file for pkg-config where CMake builds them, as Spack does
    # openssl is both, hashes and, for TLS, a later one.
    asked = [spec.split(" ")[0].rstrip(":") for spec, _ in recipe().depends]
    none_of((f"{name}@{least}:" for name, least in wanted.items() if f"{name}@{least}" not in asked), "not in the recipe")
    assert "openssl@1.1.0" in asked, asked
    assert ("utf8proc@2.7: +shared", "+utf8proc") in recipe().depends, recipe().depends  # else its symbols are exported by ours


@test
def the_recipe_takes_this_repository():
    package = recipe().package
    assert package.git == SOURCE.as_uri(), package.git
    assert package.homepage == package.git, package.homepage  # `spack audit packages-https` fails without one
    assert "namespace: lockstep" in (RECIPE.parents[2] / "repo.yaml").read_text()


run()
