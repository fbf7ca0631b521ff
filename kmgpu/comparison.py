"""A study: one recipe on several backends and numbers of devices, trained in turn, checked and put into one table.

A study directory holds ``study.json`` (what was asked), ``parity`` (a short parity check of the cells, unless it was
proved before), one run directory for each cell and repeat, and ``comparison.json`` and ``comparison.md`` (what came
out).
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kmgpu import backends as table
from kmgpu import environment, recipe_card, training
from kmgpu import proof as proofs
from kmgpu import study as studies
from kmgpu.errors import Interrupted, KmgpuError, NotComparable, UsageError, nearest
from kmgpu.proof import Proof
from kmgpu.report import comparable, runs, statistics, tables
from kmgpu.report import price as pricing
from kmgpu.report.price import Price
from kmgpu.rundir import RunDir, write_json

SCALINGS = ("strong", "weak")


@dataclass(frozen=True)
class Cell:
    """One run of a study."""

    backend: str
    strategy: str
    devices: int
    batch_size: int | None  # global; None is what the recipe says
    repeat: int
    track: str = "same-math"

    @property
    def name(self) -> str:
        track = "" if self.track == "same-math" else f"-{self.track}"
        return f"{self.backend}-{self.strategy}-{self.devices}{track}-r{self.repeat}"


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


def grid(
    backends: Sequence[str], devices: Sequence[int], *, repeats: int = 1, scaling: str = "strong",
    batch_size: int | None = None, tracks: Sequence[str] = ("same-math",),
) -> list[Cell]:  # fmt: skip
    """Return the runs of a study in the order in which they are made.

    Backends alternate, and every other repeat goes backwards, so that a machine that warms up favours nobody. Strong
    scaling holds the global batch; weak scaling multiplies ``batch_size``, which it needs, by the devices.
    """
    cells = []
    for repeat in range(repeats):
        once = [
            Cell(backend, table.find(backend).name, count, batch, repeat, track)
            for count in devices
            for batch in [batch_size * count if scaling == "weak" and batch_size is not None else batch_size]
            for backend in backends
            for track in tracks
        ]
        cells += once if repeat % 2 == 0 else once[::-1]
    return cells


def compare(
    recipe: str | os.PathLike[str],
    *,
    backends: Sequence[str] = table.BACKENDS,
    devices: Sequence[int] = (1, 2),
    scaling: str = "strong",
    repeats: int = 1,
    settings: Mapping[str, Any] | None = None,
    batch_size: int | None = None,
    epochs: int | None = None,
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

    ``batch_size`` is global under strong scaling, and for each device under weak scaling. With ``parity`` a short
    check comes first whether all cells do the same mathematics (under weak scaling at the smallest batch). The first
    run draws the initial weights, and all others get them. A run that fails is kept and shown, and the others are still
    made. With ``price`` each cell runs on the track as-shipped too, for what same math costs beside it; these runs have
    no row in the table. ``progress`` gets what each run says while it goes on. Raises UsageError or MissingEnvironment
    before anything starts, NotComparable when runs turn out to differ.
    """
    path = recipe_card.find_recipe(recipe)
    card = recipe_card.card(path)
    chosen = recipe_card.checked_settings(card, settings or {})
    _check_scaling(scaling)
    studies.check_grid(backends, devices)
    for option, count in (("--repeats", repeats), ("--batch-size", batch_size), ("--epochs", epochs)):
        studies.check_count(option, count)
    if scaling == "weak":
        batch_size = _batch_per_device(card, chosen, batch_size)
    training.check_workers(workers)
    training.check_track(track)
    training.check_randomness(randomness, track)
    training.check_loss_gather(loss_gather)
    training.check_precision(precision)
    interpreters = {backend: environment.interpreter(backend, python) for backend in backends}
    kinds = [environment.resolve_devices(device_kind, count)[0] for count in devices]
    if price and track != "same-math":
        raise UsageError(f"--price measures what same math costs, and --track is {track}; leave --track out")
    tracks = training.TRACKS if price else (track,)
    cells = grid(backends, devices, repeats=repeats, scaling=scaling, batch_size=batch_size, tracks=tracks)
    asked = {
        "recipe": str(path), "backends": list(backends), "devices": list(devices), "scaling": scaling,
        "repeats": repeats, "settings": chosen, "batch_size": batch_size, "epochs": epochs, "seed": seed,
        "precision": precision, "deterministic": deterministic,
        "device_kind": kinds[0], "track": track, "randomness": randomness, "loss_gather": loss_gather,
        "python": interpreters, "parity": parity, "price": price, "workers": workers,
        "runs": [cell.name for cell in cells],
    }  # fmt: skip
    study = studies.create(Path(out) if out else studies.default_path("studies", card.name), asked)
    show(f"{card.name}: {len(cells)} runs, one after the other, into {study}")
    proof = proofs.skipped("--no-parity")
    if parity and track == "as-shipped":
        proof = proofs.skipped("the track is as-shipped, each framework's own habits")
    elif parity:
        smallest = batch_size * min(devices) if scaling == "weak" and batch_size is not None else batch_size
        proof = proofs.prove(
            path, backends=backends, devices=devices, settings=chosen, batch_size=smallest, seed=seed,
            python=dict(python or {}), device_kind=device_kind, loss_gather=loss_gather, randomness=randomness,
            out=study / "parity", show=show,
        )  # fmt: skip

    common = {
        "settings": chosen, "epochs": epochs, "seed": seed, "python": dict(python or {}), "device_kind": device_kind,
        "loss_gather": loss_gather, "workers": workers, "randomness": randomness,
        "precision": precision, "deterministic": deterministic,
    }  # fmt: skip
    done: list[runs.Run] = []
    weights = None
    for number, cell in enumerate(cells, 1):
        kind = "virtual CPU device" if kinds[0] == "cpu" else "GPU"
        where = f"{cell.devices} {kind}{'s' if cell.devices > 1 else ''}"
        shipped = f", {cell.track}" if price else ""
        show(f"[{number}/{len(cells)}] {cell.backend} {cell.strategy} on {where}{shipped}")
        run = _train(
            path, cell, study / cell.name, first=number == 1, initial_weights=weights, show=progress, **common
        )
        progress("")
        show(f"    {_in_short(run)}")
        done.append(run)
        drawn = RunDir(run.path).initial_weights_file
        weights = weights or (str(drawn) if drawn.exists() else None)
    return _report(study, scaling, done, proof, price)


def _train(path: Path, cell: Cell, out: Path, *, first: bool, **arguments: Any) -> runs.Run:
    """Make one run and read it back, failed or not; raises what would be wrong with every other run too."""
    randomness = arguments["randomness"] if cell.track == "same-math" else "native"
    try:
        training.train(
            str(path), backend=cell.backend, strategy=cell.strategy, devices=cell.devices, batch_size=cell.batch_size,
            track=cell.track, checkpoint_every="never", out=str(out), **{**arguments, "randomness": randomness},
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
    shipped = [run for run in made if priced and run.job.track == "as-shipped"]
    done = [run for run in made if run not in shipped]
    try:
        for track in (done, shipped):
            comparable.check([run for run in track if run.ok], scaling)
    except NotComparable as error:
        raise NotComparable(f"{error}; the runs are kept in {study}") from None
    rows = statistics.without_speedup(statistics.rows(done), proof.unproved)
    heading, remarks = tables.heading(done, scaling), tables.remarks(done, rows)
    heading.insert(1, proof.sentence)
    remarks += [
        f"{backend} on {devices}: {why}, so it is given no speed-up, and its speed says nothing beside the others'"
        for (backend, devices), why in proof.unproved.items()
    ]
    prices = tuple(pricing.prices(done, shipped)) if priced else ()
    result = CompareResult(study, scaling, tuple(done), tuple(rows), tuple(heading), tuple(remarks), proof, prices)
    record = {**tables.to_json(done, scaling, heading, rows, remarks), "parity": proof.to_json()}
    priced_json = {"price": [found.to_json() for found in prices]} if priced else {}
    write_json(study / "comparison.json", record | priced_json)
    (study / "comparison.md").write_text(result.markdown(), encoding="utf-8")
    return result


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
