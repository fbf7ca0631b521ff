"""A study: one recipe on several backends and numbers of devices, trained in turn, checked and put into one table.

A study directory holds ``study.json`` (what was asked), ``parity`` (a short parity check of the cells, unless it was
proved before), ``pilot`` (runs that measured how many repeats a budget allows, and do not count), one run directory for
each cell and repeat, ``stopped`` (what there was of runs that an interruption cut), and ``comparison.json`` and
``comparison.md`` (what came out).
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kmgpu import backends as table
from kmgpu import environment, pacing, recipe_card, reporting, training
from kmgpu import proof as proofs
from kmgpu import study as studies
from kmgpu.errors import Interrupted, KmgpuError, NotComparable, UsageError, nearest
from kmgpu.grid import KERAS_FIT, Cell, grid
from kmgpu.proof import Proof
from kmgpu.report import comparable, runs, statistics, tables
from kmgpu.report import price as pricing
from kmgpu.report.findings import TableFound
from kmgpu.report.price import Price
from kmgpu.rundir import RunDir, write_json

SCALINGS = ("strong", "weak")
FEW = 5  # processes of a cell; with fewer an interval says little


@dataclass(frozen=True)
class Asked:
    """What a study is asked for, checked; ``study.json`` holds it."""

    recipe: str  # absolute path
    backends: tuple[str, ...]
    devices: tuple[int, ...]
    scaling: str
    repeats: int | None  # None until a pilot has measured what the budget allows
    budget_seconds: float | None
    settings: dict[str, Any]
    batch_size: int | None
    epochs: int | None
    max_steps: int | None
    seed: int
    precision: str
    deterministic: bool
    device_kind: str  # "cpu" or "gpu"
    track: str
    randomness: str
    loss_gather: str
    python: dict[str, str]  # interpreters by backend
    parity: bool
    price: bool
    workers: int | None
    sources: str  # hash of the recipe's files

    @property
    def tracks(self) -> tuple[str, ...]:
        return (*training.TRACKS, KERAS_FIT) if self.price else (self.track,)

    def grid(self, repeats: int) -> list[Cell]:
        """Return the runs in the order in which they are made."""
        return grid(
            self.backends, self.devices, repeats=repeats, scaling=self.scaling, batch_size=self.batch_size,
            tracks=self.tracks,
        )  # fmt: skip

    @classmethod
    def from_json(cls, path: Path, record: Mapping[str, Any]) -> Asked:
        """Read what a study.json says; raises UsageError for one that another kmgpu has written."""
        names = [field.name for field in dataclasses.fields(cls)]
        missing = [name for name in names if name not in record]
        if missing:
            raise UsageError(f"{path}/study.json does not say {missing[0]}; another kmgpu wrote it, start a new study")
        fields = {name: record[name] for name in names}
        return cls(**{**fields, "backends": tuple(fields["backends"]), "devices": tuple(fields["devices"])})


@dataclass(frozen=True)
class CompareResult:
    """What a study found: its runs, failed ones too, and one row for each backend and number of devices."""

    path: Path
    scaling: str
    runs: tuple[runs.Run, ...]
    rows: tuple[statistics.Row, ...]
    heading: tuple[str, ...]  # sentences above the table
    remarks: tuple[str, ...]  # sentences below it
    proof: Proof  # whether all cells do the same mathematics
    prices: tuple[Price, ...] = ()  # of same math, where that was asked for

    @property
    def ok(self) -> bool:
        return all(run.ok for run in self.runs)

    def markdown(self) -> str:
        table = tables.markdown(self.heading, self.rows, self.remarks)
        return table + ("\n" + pricing.markdown(self.prices) if self.prices else "")

    def _repr_markdown_(self) -> str:  # a notebook shows the table
        return self.markdown()


def compare(
    recipe: str | os.PathLike[str],
    *,
    backends: Sequence[str] = table.BACKENDS,
    devices: Sequence[int] = (1, 2),
    scaling: str = "strong",
    repeats: int | None = None,
    budget: str | float | None = None,
    settings: Mapping[str, Any] | None = None,
    batch_size: int | None = None,
    epochs: int | None = None,
    max_steps: int | None = None,
    seed: int = 0,
    precision: str = "float32",
    deterministic: bool = False,
    python: Mapping[str, str] | None = None,
    device_kind: str = "auto",
    track: str = "same-math",
    randomness: str = "native",
    loss_gather: str = "auto",
    price: bool = False,
    workers: int | None = None,
    parity: bool = True,
    out: str | os.PathLike[str] | None = None,
    show: Callable[[str], None] = lambda line: None,
    progress: Callable[[str], None] = lambda line: None,
) -> CompareResult:
    """Train every cell of the grid, one run at a time, and return one row for each backend and number of devices.

    ``batch_size`` is global under strong scaling, and for each device under weak scaling. ``repeats`` are fresh
    processes for each cell, 1 if left out; with ``budget``, a text such as "30m" or seconds for the whole study, a
    pilot that does not count finds how many it allows. With ``parity`` a short check comes first whether all cells do
    the same mathematics (under weak scaling at the smallest batch). The first run draws the initial weights, and all
    others get them. A run that fails is kept and shown, and the others are still made. With ``price`` each cell runs on
    the track as-shipped too, and by Keras's own fit where that uses as many devices, for what same math costs beside
    them; these runs have no row in the table. ``progress`` gets
    what each run says while it goes on. Raises UsageError or MissingEnvironment before anything starts, NotComparable
    when runs turn out to differ.
    """
    wishes = {name: value for name, value in locals().items() if name not in ("recipe", "out", "show", "progress")}
    asked = ask(recipe, **wishes)
    study = create(asked, Path(out) if out else studies.default_path("studies", Path(asked.recipe).stem))
    return make(study, asked, show, progress)


def go_on(
    study: str | os.PathLike[str],
    *,
    show: Callable[[str], None] = lambda line: None,
    progress: Callable[[str], None] = lambda line: None,
) -> CompareResult:
    """Make the runs that an interrupted study still lacks, and return what ``compare`` would have returned.

    Runs that ended, well or not, are kept as they are. Raises UsageError where the recipe has changed since.
    """
    path = Path(study)
    asked = Asked.from_json(path, studies.read(path))
    if _digest(recipe_card.find_recipe(asked.recipe)) != asked.sources:
        raise UsageError(f"{asked.recipe} has changed since {path} was begun; start a new study")
    return make(path, asked, show, progress)


def ask(
    recipe: str | os.PathLike[str], *, repeats: int | None, budget: str | float | None,
    settings: Mapping[str, Any] | None, python: Mapping[str, str] | None, device_kind: str, backends: Sequence[str],
    devices: Sequence[int], scaling: str, track: str, price: bool, batch_size: int | None, **rest: Any,
) -> Asked:  # fmt: skip
    """Check the wishes of ``compare`` before anything starts. Raises UsageError or MissingEnvironment."""
    path = recipe_card.find_recipe(recipe)
    card = recipe_card.card(path)
    chosen = recipe_card.checked_settings(card, settings or {})
    _check_scaling(scaling)
    studies.check_grid(backends, devices)
    counts = {"repeats": repeats, "batch-size": batch_size, "epochs": rest["epochs"], "max-steps": rest["max_steps"]}
    for option, count in counts.items():
        studies.check_count(f"--{option}", count)
    switches = {"price": price, "parity": rest["parity"], "deterministic": rest["deterministic"]}
    for option, switch in switches.items():
        if not isinstance(switch, bool):
            raise UsageError(f"{option} is {switch!r}; it is true or false")
    if repeats is not None and budget is not None:
        raise UsageError(f"--repeats is {repeats} and --budget is {budget}, which finds the repeats; choose one")
    if scaling == "weak":
        batch_size = _batch_per_device(card, chosen, batch_size)
    training.check_workers(rest["workers"])
    training.check_track(track)
    training.check_randomness(rest["randomness"], track)
    training.check_loss_gather(rest["loss_gather"])
    interpreters = {backend: environment.interpreter(backend, python) for backend in backends}
    training.check_seed(rest["seed"])
    kinds = [environment.resolve_devices(device_kind, count)[0] for count in devices]
    training.check_precision(rest["precision"], kinds[0])
    if price and track != "same-math":
        raise UsageError(f"--price measures what same math costs, and --track is {track}; leave --track out")
    return Asked(
        recipe=str(path), backends=tuple(backends), devices=tuple(devices), scaling=scaling,
        repeats=repeats or (1 if budget is None else None),
        budget_seconds=None if budget is None else pacing.seconds(budget, "--budget"), settings=chosen,
        batch_size=batch_size, device_kind=kinds[0], track=track, price=price, python=interpreters,
        sources=_digest(path), **rest,
    )  # fmt: skip


def create(asked: Asked, path: Path) -> Path:
    """Make the directory of a study."""
    runs = None if asked.repeats is None else [cell.name for cell in asked.grid(asked.repeats)]
    return studies.create(path, {**dataclasses.asdict(asked), "runs": runs})


def make(
    study: Path, asked: Asked, show: Callable[[str], None], progress: Callable[[str], None]
) -> CompareResult:
    """Prove the mathematics, make the runs that are not there yet, and report."""
    began = time.monotonic()
    rounds = "runs" if asked.repeats is None else f"{len(asked.grid(asked.repeats))} runs"
    show(f"{Path(asked.recipe).stem}: {rounds}, one after the other, into {study}")
    proof = _prove(study, asked, show)
    write_json(study / "proof.json", {"format": 1, **proof.to_json()})
    shutil.copyfile(asked.recipe, study / "recipe.py")
    repeats = asked.repeats or _pilot(study, asked, began, show, progress)
    cells = asked.grid(repeats)
    done: list[runs.Run] = []
    weights = None
    for number, cell in enumerate(cells, 1):
        out = study / cell.name
        show(f"[{number}/{len(cells)}] {_in_words(cell, asked)}")
        run = _made(out)
        if run is None:
            _put_aside(out, study)
            run = _train(asked, cell, out, first=number == 1, initial_weights=weights, show=progress)
            progress("")
            show(f"    {_in_short(run)}")
        else:
            show(f"    made before: {_in_short(run)}")
        done.append(run)
        drawn = RunDir(run.path).initial_weights_file
        weights = weights or (str(drawn) if drawn.exists() else None)
    return _report(study, asked.scaling, done, proof, asked.price)


def _prove(study: Path, asked: Asked, show: Callable[[str], None]) -> Proof:
    if not asked.parity:
        return proofs.skipped("--no-parity")
    if asked.track == "as-shipped":
        return proofs.skipped("the track is as-shipped, each framework's own habits")
    smallest = asked.batch_size
    if asked.scaling == "weak" and smallest is not None:
        smallest *= min(asked.devices)
    return proofs.prove(
        Path(asked.recipe), backends=asked.backends, devices=asked.devices, settings=asked.settings,
        batch_size=smallest, seed=asked.seed, python=asked.python, device_kind=asked.device_kind,
        loss_gather=asked.loss_gather, randomness=asked.randomness, out=studies.unused(study / "parity"), show=show,
    )  # fmt: skip


def _pilot(
    study: Path, asked: Asked, began: float, show: Callable[[str], None], progress: Callable[[str], None]
) -> int:
    """Make each run once, discard them, and return how often the budget allows all of them; at least once."""
    assert asked.budget_seconds is not None
    cells, folder = asked.grid(1), studies.unused(study / "pilot")
    show(f"a pilot that does not count: {len(cells)} runs, for how many repeats the budget allows")
    started = time.monotonic()
    for number, cell in enumerate(cells, 1):
        _train(asked, cell, folder / cell.name, first=number == 1, initial_weights=None, show=progress)
        progress("")
    now = time.monotonic()
    left, once = asked.budget_seconds - (now - began), now - started
    repeats = max(1, int(left / once))
    show(f"    {once:.0f} s for each cell once, {max(left, 0):.0f} s are left: {repeats} repeats")
    if repeats < FEW:
        show(f"    fewer than {FEW} processes for each cell leave wide intervals; a larger --budget narrows them")
    studies.update(study, repeats=repeats, runs=[cell.name for cell in asked.grid(repeats)])
    return repeats


def _made(out: Path) -> runs.Run | None:
    """Return a run that ended in an earlier attempt, well or not; None for one that is to be made."""
    if not RunDir(out).outcome_file.exists():
        return None
    run = runs.load(out)
    return run if run.status in ("ok", "failed") else None


def _put_aside(out: Path, study: Path) -> None:
    """Move what an interruption has left of a run to where it does not count."""
    if out.exists():
        (study / "stopped").mkdir(exist_ok=True)
        out.rename(studies.unused(study / "stopped" / out.name))


def _in_words(cell: Cell, asked: Asked) -> str:
    kind = "virtual CPU device" if asked.device_kind == "cpu" else "GPU"
    where = f"{cell.devices} {kind}{'s' if cell.devices > 1 else ''}"
    return f"{cell.backend} {cell.strategy} on {where}{f', {cell.track}' if asked.price else ''}"


def _train(asked: Asked, cell: Cell, out: Path, *, first: bool, **arguments: Any) -> runs.Run:
    """Make one run and read it back, failed or not; raises what would be wrong with every other run too."""
    fields = {
        "backend": cell.backend, "strategy": cell.strategy, "devices": cell.devices, "batch_size": cell.batch_size,
        "settings": asked.settings, "epochs": asked.epochs, "max_steps": asked.max_steps, "seed": asked.seed,
        "python": asked.python, "device_kind": asked.device_kind, "precision": asked.precision,
        "deterministic": asked.deterministic, "out": str(out), **arguments,
    }  # fmt: skip
    try:
        if cell.track == KERAS_FIT:
            training.fit(asked.recipe, **fields)
        else:
            training.train(
                asked.recipe, track=cell.track, loss_gather=asked.loss_gather, workers=asked.workers,
                randomness=asked.randomness if cell.track == "same-math" else "native", checkpoint_every="never",
                **fields,
            )  # fmt: skip
    except Interrupted:
        raise
    except KmgpuError as error:
        if not RunDir(out).job_file.exists() or (first and isinstance(error, UsageError)):
            raise
        run = runs.load(out)
        if run.status != runs.UNFINISHED:
            return run
        return dataclasses.replace(run, outcome={**run.outcome, "status": "failed", "reason": str(error)})
    return runs.load(out)


def _report(study: Path, scaling: str, made: Sequence[runs.Run], proof: Proof, priced: bool = False) -> CompareResult:
    done = [run for run in made if not priced or run.job.track == "same-math"]
    shipped = [run for run in made if priced and run.job.track == "as-shipped"]
    try:
        for track in (done, shipped):
            comparable.check([run for run in track if run.ok], scaling)
    except NotComparable as error:
        reporting.report([study])
        raise NotComparable(f"{error}; the runs are kept in {study}") from None
    found = _found(study, done[0].job.track)
    doubts = {(each.backend, each.devices): each.doubt for each in found.agreement if each.doubt}
    unproved = {**proof.unproved, **doubts}
    rows = statistics.without_speedup(statistics.rows(done), unproved)
    heading, remarks = tables.heading(done, scaling), tables.remarks(done, rows)
    heading.insert(1, proof.sentence)
    if len({run.job.backend for run in done}) > 1:
        heading += found.ranking or [f"Not ranked: {found.unranked or 'parity backs no two backends'}."]
    remarks += [
        f"{backend} on {devices}: {why}, so it is given no speed-up, and its speed says nothing beside the others'"
        for (backend, devices), why in unproved.items()
    ]
    prices = tuple(pricing.prices(made)) if priced else ()
    result = CompareResult(study, scaling, tuple(done), tuple(rows), tuple(heading), tuple(remarks), proof, prices)
    record = {**tables.to_json(done, scaling, heading, rows, remarks), "parity": proof.to_json()}
    priced_json = {"price": [found.to_json() for found in prices]} if priced else {}
    write_json(study / "comparison.json", record | priced_json)
    (study / "comparison.md").write_text(result.markdown(), encoding="utf-8")
    return result


def _digest(recipe: Path) -> str:
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in proofs.sources(recipe))).hexdigest()


def _found(study: Path, track: str) -> TableFound:
    """Write the report of a study, and return what it finds of a track: the table says the same."""
    (read,) = reporting.report([study]).found.studies
    return next(table for table in read.tables if table.track == track)


def _check_scaling(scaling: str) -> None:
    if scaling not in SCALINGS:
        raise UsageError(f"--scaling is {scaling!r}{nearest(scaling, list(SCALINGS))}; it is strong or weak")


def _batch_per_device(card: Any, settings: Mapping[str, Any], batch_size: int | None) -> int:
    size = batch_size if batch_size is not None else settings.get("batch_size", card.settings.get("batch_size"))
    if size is None:
        raise UsageError(f"--scaling weak needs --batch-size (for each device); {card.name} has no such setting")
    studies.check_count("--batch-size", size)
    return size


def _in_short(run: runs.Run) -> str:
    """One line for the impatient: how the run went."""
    if not run.ok:
        return f"{run.status}: {(run.reason or 'nobody knows why').splitlines()[0]}"
    row = statistics.rows([run])[0]
    step = "no steady step" if row.step_seconds is None else f"{row.step_seconds * 1000:.2f} ms per step"
    loss = "" if row.final_loss is None else f", final loss {row.final_loss:.4f}"
    first = "" if row.first_step_seconds is None else f", first step after {row.first_step_seconds:.1f} s"
    return step + loss + first
