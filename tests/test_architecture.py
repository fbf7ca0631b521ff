"""Who may import whom: by the source text of every file, and by what processes have loaded."""

from __future__ import annotations

import ast
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import cells
import pytest

import kmgpu
from kmgpu import recipe_card
from kmgpu.backends import BACKENDS, STRATEGIES

PACKAGE = Path(kmgpu.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
FRAMEWORKS = {"torch", "tensorflow", "jax"}
HEAVY = {*FRAMEWORKS, "jaxlib", "keras", "sklearn", "scipy", "matplotlib", "pandas"}

WORDS = {"kmgpu.checkpoints", "kmgpu.errors", "kmgpu.job", "kmgpu.records", "kmgpu.rundir"}
DATA = {"kmgpu.data"}
RECIPE = {"kmgpu", "kmgpu.recipe"}  # kmgpu itself brings the recipe and nothing else
TABLE = {"kmgpu.backends", "kmgpu.backends.adapter"}
ADAPTERS = {strategy.adapter: strategy.module for strategy in STRATEGIES}
COMMON = {"kmgpu.backends.common"}
PARTS = {  # the files of each adapter beside its own
    "torch": {"kmgpu.backends.torch_devices", "kmgpu.backends.torch_random", "kmgpu.backends.torch_threefry"},
    "tensorflow": {"kmgpu.backends.tf_devices", "kmgpu.backends.tf_programs", "kmgpu.backends.tf_random"},
    "jax": {"kmgpu.backends.jax_devices", "kmgpu.backends.jax_programs", "kmgpu.backends.jax_random"},
}
REPLACEMENTS = {"kmgpu.backends.replacements"}  # one file of functions for each framework, imported where it is used
REPORT = {"kmgpu.report"}
ORCHESTRATOR = {
    f"kmgpu.{name}"
    for name in (
        *("checking", "cli", "comparison", "environment", "exporting", "follow", "grid", "keeper", "launch", "live"),
        *("monitor", "pacing", "proof", "proving", "recipe_card", "reporting", "resumption", "scaffold"),
        *("screens", "sinks"),
        *("study", "studyfile", "training", "using"),
    )
}


@dataclass(frozen=True)
class Group:
    """Modules, by name or by package, and what they may import of kmgpu and of others (all of the standard library)."""

    name: str
    modules: set[str]
    kmgpu: set[str]
    others: set[str]


GROUPS = [
    Group("words", WORDS, WORDS, set()),
    Group("public", {"kmgpu"}, RECIPE, set()),
    Group("recipe", {"kmgpu.recipe"}, WORDS | DATA, set()),
    Group("random", {"kmgpu.random"}, WORDS | TABLE, {"keras"}),
    Group("data", DATA, WORDS | DATA, {"numpy"}),
    Group("table", TABLE, WORDS | DATA | RECIPE, {"numpy"}),
    Group("common", COMMON, WORDS | DATA | RECIPE | TABLE | COMMON | REPLACEMENTS, {"numpy", "keras"}),
    Group("replacements", REPLACEMENTS, WORDS, {"numpy", "keras", *FRAMEWORKS}),
    *(
        Group(
            "adapter", {module, *PARTS[framework]}, WORDS | DATA | RECIPE | TABLE | COMMON | PARTS[framework],
            {"numpy", "keras", framework},
        )
        for module, framework in ADAPTERS.items()
    ),
    Group(
        "worker", {"kmgpu.worker"}, WORDS | DATA | RECIPE | TABLE | {"kmgpu.worker"}, {"numpy", "safetensors"},
    ),
    Group("report", REPORT, WORDS | REPORT | {"kmgpu"}, {"numpy", "jinja2", "markupsafe", "rich"}),
    Group("keeper", {"kmgpu.keeper"}, set(), set()),
    Group(
        "orchestrator", ORCHESTRATOR - {"kmgpu.keeper"}, WORDS | RECIPE | TABLE | REPORT | ORCHESTRATOR,
        {"numpy", "safetensors", "rich", "typer", "psutil", "pynvml"},
    ),
]  # fmt: skip
EXCEPTIONS = {
    ("kmgpu.data.datasets", "keras"),  # imported by the function that downloads
    ("kmgpu.data.files", "keras"),  # by what reads an image
    ("kmgpu.data.files", "pandas"),  # by what reads Parquet
    *((f"kmgpu.sinks.{name}", module) for name, module in (("tensorboard", "tensorboard"), ("mlflow", "mlflow"))),
    ("kmgpu.sinks.wandb", "wandb"),
}


def module_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def belongs(module: str, names: set[str]) -> bool:
    """Whether a module is one of these; "kmgpu.data" stands for all in it, "kmgpu" and "kmgpu.backends" do not."""
    return any(
        module == name or (name not in ("kmgpu", "kmgpu.backends") and module.startswith(name + ".")) for name in names
    )


def group_of(module: str) -> Group:
    found = [group for group in GROUPS if belongs(module, group.modules)]
    assert len(found) == 1, f"{module} belongs to {[group.name for group in found]}: give it one place in this test"
    return found[0]


def imports_of(path: Path) -> set[str]:
    """The modules that a file imports anywhere in it, by name; ``from package import module`` is the module."""
    modules = {module_of(file) for file in FILES}
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}, line {node.lineno}: imports are absolute"
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in modules else str(node.module) for name in inner}
    return found


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_a_module_imports_only_what_its_place_allows(path):
    module = module_of(path)
    group = group_of(module)
    for name in sorted(imports_of(path)):
        top = name.partition(".")[0]
        if top == "kmgpu":
            allowed = belongs(name, group.kmgpu)
        else:
            allowed = top in sys.stdlib_module_names or top in group.others or (module, top) in EXCEPTIONS
        assert allowed, f"{module} ({group.name}) imports {name}"


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_frameworks_are_imported_at_the_top_of_an_adapter_and_nowhere_else(path):
    if module_of(path) in REPLACEMENTS:
        return
    of_adapters = {*ADAPTERS, *(part for parts in PARTS.values() for part in parts)}
    tree = ast.parse(path.read_text(encoding="utf-8"))
    top = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [str(node.module)]
            for name in names:
                if name.partition(".")[0] in FRAMEWORKS:
                    assert module_of(path) in of_adapters and id(node) in top, f"{path}, line {node.lineno}: {name}"


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_no_code_outside_the_backends_asks_which_backend_it_is(path):
    if "backends" in path.parts:
        return
    names = {*BACKENDS, *(strategy.name for strategy in STRATEGIES)}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        compared: list[ast.expr] = []
        if isinstance(node, ast.Compare):
            compared = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            compared = [node.value]
        constants = [part.value for part in compared for part in ast.walk(part) if isinstance(part, ast.Constant)]
        guilty = [value for value in constants if isinstance(value, str) and value in names]
        assert not guilty, f"{path}, line {node.lineno}: a field of the table or a verb of the adapter is missing"


def test_a_shipped_recipe_imports_keras_and_the_public_interface():
    for path in recipe_card.recipe_directory().glob("*.py"):
        for name in imports_of(path):
            top = name.partition(".")[0]
            of_kmgpu = name in ("kmgpu", "kmgpu.data.datasets", "kmgpu.data.files", "kmgpu.data.texts")
            assert of_kmgpu or top in {"keras", "numpy", *sys.stdlib_module_names}, path


@pytest.mark.parametrize("module", ADAPTERS)
def test_an_adapter_has_every_verb_of_the_protocol_in_its_order(module):
    def methods(path: Path, name: str) -> list[str]:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        (body,) = [node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
        return [node.name for node in body if isinstance(node, ast.FunctionDef)]

    verbs = methods(PACKAGE / "backends" / "adapter.py", "Adapter")
    found = methods(PACKAGE.parent / f"{module.replace('.', '/')}.py", "Adapter")
    assert [name for name in found if name in verbs] == verbs


def loaded_by(statement: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after a statement."""
    script = f"{statement}\nimport sys\nprint(*sorted(sys.modules))"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(answer.stdout.split())


@pytest.mark.parametrize("module", sorted(ORCHESTRATOR))
def test_the_orchestrator_loads_no_framework(module):
    loaded = loaded_by(f"import {module}")
    assert not loaded & HEAVY
    assert not {name for name in loaded if name.startswith("kmgpu.worker") or name in ADAPTERS or name in COMMON}


def test_the_public_package_loads_neither_frameworks_nor_the_orchestrator():
    loaded = loaded_by("import kmgpu; kmgpu.Recipe")
    assert not loaded & {*HEAVY, *ORCHESTRATOR, "numpy", "rich", "typer"}


def test_the_words_load_nothing_but_the_standard_library():
    loaded = loaded_by(f"import {', '.join(sorted(WORDS))}")
    assert not loaded & {*HEAVY, *ORCHESTRATOR, "numpy"}


def test_reading_data_does_not_load_keras():
    assert not loaded_by("from kmgpu.data import datasets; datasets.digits('test')") & HEAVY


@pytest.mark.workers
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_worker_loads_its_own_framework_and_no_other(ran, backend):
    run = ran(backend, cells.LOADED_MODULES, 4)
    (own,) = {strategy.module for strategy in STRATEGIES if strategy.backend == backend}
    files = sorted(run.rundir.path.glob("modules-*.txt"))
    assert len(files) == run.outcome["start"]["processes"]
    for file in files:
        loaded = set(file.read_text().split())
        assert loaded & FRAMEWORKS == {own}, file
        assert not loaded & ORCHESTRATOR
        assert not {name for name in ADAPTERS if name in loaded and ADAPTERS[name] != own}
