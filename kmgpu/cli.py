"""The command line: one function per command, each a few lines that call the library.

Nothing heavy is imported before a command needs it, so that ``kmgpu --help`` answers at once.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from kmgpu import __version__
from kmgpu.errors import KmgpuError, ParityFailed, UsageError

DEFAULT_RECIPE = "digits_cnn"
RUN_FOLDERS = (Path("runs"), Path("studies"), Path("parity"))
INTERRUPTED = 130

app = typer.Typer(
    name="kmgpu",
    help="Train one Keras 3 recipe on torch, TensorFlow and JAX, on several devices, and compare them honestly.",
    rich_markup_mode=None,  # plain help: at once, and as it is when piped
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)

BatchSize = Annotated[int | None, typer.Option(metavar="B", help="Global batch: samples of one update on all devices.")]
Backend = Annotated[str | None, typer.Option(metavar="NAME", help="Any backend; the run's if left out.")]
EachBatch = Annotated[int | None, typer.Option(metavar="B", help="Rows at a time over all devices; the run's batch.")]
OfCheckpoint = Annotated[
    str | None,
    typer.Option(
        metavar="last|best|NAME", help="Weights of this checkpoint of the run, not those of its end.",
        show_default="the run's end",
    ),
]
Devices = Annotated[int, typer.Option(metavar="N", help="How many devices.")]
DeviceKind = Annotated[str, typer.Option(metavar="auto|cpu|gpu", help="auto: GPUs, or else virtual CPU devices.")]
DeviceKindOrNone = Annotated[
    str | None,
    typer.Option(metavar="auto|cpu|gpu", help="auto: GPUs, or else virtual CPU devices.", show_default="auto"),
]
Epochs = Annotated[int | None, typer.Option(metavar="E", help="Passes over the data; the recipe's if left out.")]
Deterministic = Annotated[
    bool, typer.Option("--deterministic", help="Only what gives the same bits in every run; slower on GPUs.")
]
PrecisionOrNone = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="float32, tf32 (GPUs), bfloat16, float16 (with loss scaling) or float64.",
        show_default="float32",
    ),
]
Precision = Annotated[
    str, typer.Option(metavar="NAME", help="float32, tf32 (GPUs), bfloat16, float16 (with loss scaling) or float64.")
]
LossGather = Annotated[
    str,
    typer.Option(metavar="auto|on|off", help="Exchange outputs for a loss: where it may look at several rows; always."),
]
LossGatherOrNone = Annotated[
    str | None,
    typer.Option(
        metavar="auto|on|off", show_default="auto",
        help="Exchange outputs for a loss: where it may look at several rows; always.",
    ),
]
Pythons = Annotated[
    list[str] | None,
    typer.Option("--python", metavar="BACKEND=PATH", help="Interpreter of a backend, if not this one. Repeatable."),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print the result and errors only.")]
Seed = Annotated[int, typer.Option(metavar="S", help="Of initial weights, sample order and dropout.")]
SeedOrNone = Annotated[
    int | None, typer.Option(metavar="S", help="Of initial weights, sample order and dropout.", show_default="0")
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of the recipe. Repeatable.")
]
Sinks = Annotated[
    list[str] | None,
    typer.Option("--sink", metavar="NAME", help="console, csv, tensorboard, mlflow or wandb. Repeatable."),
]
Track = Annotated[
    str,
    typer.Option(
        metavar="same-math|as-shipped",
        help="same-math: one mathematics everywhere. as-shipped: each framework's own habits on several devices.",
    ),
]

TrackOrNone = Annotated[
    str | None,
    typer.Option(
        metavar="same-math|as-shipped", show_default="same-math",
        help="same-math: one mathematics everywhere. as-shipped: each framework's own habits on several devices.",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(metavar="N", help="Threads, over all processes, that read rows.", show_default="one in each process"),
]


Randomness = Annotated[
    str,
    typer.Option(
        metavar="native|portable",
        help="native: each framework's own random numbers. portable: the same numbers on all, for each sample.",
    ),
]


RandomnessOrNone = Annotated[
    str | None,
    typer.Option(
        metavar="native|portable", show_default="native",
        help="native: each framework's own random numbers. portable: the same numbers on all, for each sample.",
    ),
]


@app.callback(invoke_without_command=True)
def _kmgpu(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    if version:
        print(f"kmgpu {__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def train(
    recipe: Annotated[
        str | None, typer.Argument(metavar="RECIPE", help="Name or file.", show_default=DEFAULT_RECIPE)
    ] = None,
    backend: Annotated[str | None, typer.Option(metavar="NAME", help="torch, tensorflow or jax.")] = None,
    strategy: Annotated[
        str | None, typer.Option(metavar="NAME", help="Way to use several devices; the backend's first if left out.")
    ] = None,
    devices: Annotated[int | None, typer.Option(metavar="N", help="How many devices.", show_default="1")] = None,
    device_ids: Annotated[
        str | None, typer.Option(metavar="LIST", help="Which of the visible GPUs, such as 0,2.")
    ] = None,
    device_kind: DeviceKindOrNone = None,
    track: TrackOrNone = None,
    randomness: RandomnessOrNone = None,
    loss_gather: LossGatherOrNone = None,
    batch_size: BatchSize = None,
    epochs: Epochs = None,
    steps_per_epoch: Annotated[int | None, typer.Option(metavar="N", help="End each epoch after N updates.")] = None,
    max_steps: Annotated[int | None, typer.Option(metavar="N", help="End the run after N updates.")] = None,
    max_time: Annotated[str | None, typer.Option(metavar="TIME", help="End the run after 30m, 2h, 1h30m.")] = None,
    validate_every: Annotated[
        int | None, typer.Option(metavar="N", help="Validate every N epochs, and after the last.", show_default="1")
    ] = None,
    scale_lr: Annotated[
        str | None,
        typer.Option(
            metavar="none|linear|sqrt", help="Rate for another batch size than the recipe's.", show_default="none"
        ),
    ] = None,
    warmup_epochs: Annotated[
        int | None, typer.Option(metavar="N", help="Let the learning rate rise over N epochs.", show_default="0")
    ] = None,
    on_nan: Annotated[
        str | None,
        typer.Option(metavar="stop|continue", help="What follows a loss that is not a number.", show_default="stop"),
    ] = None,
    seed: SeedOrNone = None,
    workers: Workers = None,
    precision: PrecisionOrNone = None,
    deterministic: Deterministic = False,
    settings: Settings = None,
    python: Pythons = None,
    initial_weights: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Start from the weights of this file or checkpoint.")
    ] = None,
    checkpoint_every: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN", help="500steps, 1epoch, 10min, 2h, or never.", show_default="when the run is stopped"
        ),
    ] = None,
    keep: Annotated[
        int | None, typer.Option(metavar="K", help="How many checkpoints to keep, the last ones.", show_default="3")
    ] = None,
    keep_best: Annotated[
        str | None, typer.Option(metavar="METRIC", help="Keep the best epoch too: val_accuracy, or val_score:max.")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Go on with a run, or with one of its checkpoints.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Run directory; a new one in ./runs if left out.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the run that is in --out.")] = False,
    sinks: Sinks = None,
    quiet: Quiet = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print each record as a line of JSON, nothing else.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print job and command lines; start nothing.")] = False,
) -> int:
    """Train a recipe on one backend.

    \b
    kmgpu train --backend torch
    kmgpu train digits_cnn --backend jax --devices 2 --set learning_rate=0.01
    kmgpu train my_recipe.py --backend tensorflow --epochs 3 --out runs/first --checkpoint-every 10min
    kmgpu train --resume runs/first --backend jax --devices 2
    """
    from kmgpu import screens, training

    if backend is None and resume is None:
        raise UsageError("Missing option '--backend'; it is torch, tensorflow or jax")
    named = recipe if recipe is not None or resume is not None else DEFAULT_RECIPE
    ids = None if device_ids is None else _numbers("--device-ids", device_ids)
    given = _parsed(settings, named, resume)
    with screens.choose(quiet=quiet, as_json=as_json, dry_run=dry_run) as screen:
        show = screen.show
        if named is not None and recipe is None:
            show = _after(f"No recipe was named: this trains {DEFAULT_RECIPE} (`kmgpu recipes` lists all).", show)
        result = training.train(
            named,
            backend=backend,
            strategy=strategy,
            devices=devices if devices is not None else len(ids) if ids else None if resume else 1,
            device_ids=ids,
            device_kind=device_kind,
            track=track,
            randomness=randomness,
            loss_gather=loss_gather,
            batch_size=batch_size,
            epochs=epochs,
            steps_per_epoch=steps_per_epoch,
            max_steps=max_steps,
            max_time=max_time,
            validate_every=validate_every,
            scale_lr=scale_lr,
            warmup_epochs=warmup_epochs,
            on_nan=on_nan,
            seed=seed,
            workers=workers,
            precision=precision,
            deterministic=deterministic,
            settings=given,
            python=_pythons(python),
            initial_weights=initial_weights,
            checkpoint_every=checkpoint_every,
            keep=keep,
            keep_best=keep_best,
            resume=resume,
            out=out,
            force=force,
            dry_run=dry_run,
            sinks=[*(sinks or ()), *screen.sinks],
            show=show,
        )
    if quiet and result is not None:
        print(screens.result_line(result.path, result.outcome))
    return 0


@app.command()
def replay(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Directory of a run, over or not.")],
    sinks: Sinks = None,
) -> int:
    """Hand the records of a run to sinks, as when it was trained; to the console if none is named.

    \b
    kmgpu replay runs/first
    kmgpu replay runs/first --sink tensorboard --sink csv
    """
    from kmgpu import follow
    from kmgpu import sinks as table
    from kmgpu.report import runs as known
    from kmgpu.rundir import RunDir

    made = table.make(sinks or ["console"])
    found = known.load(run)
    follow.replay(RunDir(found.path), made)
    if found.status != "ok":
        print(": ".join([found.status, *found.reason.splitlines()[:1]]))
    return 0


@app.command()
def compare(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="Name or file.")],
    backends: Annotated[str, typer.Option(metavar="LIST", help="Which backends.")] = "torch,tensorflow,jax",
    devices: Annotated[str, typer.Option(metavar="LIST", help="Which numbers of devices.")] = "1,2",
    scaling: Annotated[
        str, typer.Option(metavar="strong|weak", help="strong: one global batch; weak: one batch for each device.")
    ] = "strong",
    repeats: Annotated[
        int | None, typer.Option(metavar="R", help="Fresh processes for each cell of the grid.", show_default="1")
    ] = None,
    budget: Annotated[
        str | None, typer.Option(metavar="TIME", help="Repeat as often as 30m or 2h allow; a pilot measures it first.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A first look: --repeats 3 --max-steps 100.")] = False,
    full: Annotated[bool, typer.Option("--full", help="For a study that is published: --repeats 8.")] = False,
    device_kind: DeviceKind = "auto",
    track: Track = "same-math",
    randomness: Randomness = "native",
    loss_gather: LossGather = "auto",
    batch_size: Annotated[
        int | None, typer.Option(metavar="B", help="Global batch; under weak scaling the batch of each device.")
    ] = None,
    epochs: Epochs = None,
    max_steps: Annotated[int | None, typer.Option(metavar="N", help="End each run after N updates.")] = None,
    seed: Seed = 0,
    workers: Workers = None,
    precision: Precision = "float32",
    deterministic: Deterministic = False,
    settings: Settings = None,
    python: Pythons = None,
    price: Annotated[
        bool, typer.Option("--price", help="Run as shipped too, and print what same math costs beside that.")
    ] = False,
    no_parity: Annotated[
        bool, typer.Option("--no-parity", help="Do not check first whether all do the same mathematics.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Study directory; a new one in ./studies if left out.")
    ] = None,
    quiet: Quiet = False,
) -> int:
    """Train a recipe on several backends and numbers of devices, and print one table.

    Runs are made one at a time and interleaved. Runs that differ in more than what is compared are refused. A short
    parity check comes first, unless nothing has changed since the last one; where it fails, no speeds are ranked.

    \b
    kmgpu compare digits_cnn
    kmgpu compare digits_cnn --backends torch,jax --devices 1,2,4 --repeats 3
    kmgpu compare digits_mlp --scaling weak --batch-size 32 --out studies/weak
    kmgpu compare digits_cnn --budget 30m
    kmgpu study studies/weak          (goes on where it was interrupted)
    """
    from rich.console import Console

    from kmgpu import comparison, recipe_card

    console = Console(highlight=False)
    if quick or full:
        repeats, max_steps = _preset(quick, full, repeats, budget, max_steps)
    with _one_line(console) as progress:
        result = comparison.compare(
            recipe,
            backends=[name.strip() for name in backends.split(",")],
            devices=_numbers("--devices", devices),
            scaling=scaling,
            repeats=repeats,
            budget=budget,
            settings=recipe_card.parse_settings(recipe_card.card(recipe_card.find_recipe(recipe)), settings or []),
            batch_size=batch_size,
            epochs=epochs,
            max_steps=max_steps,
            seed=seed,
            workers=workers,
            precision=precision,
            deterministic=deterministic,
            python=_pythons(python),
            device_kind=device_kind,
            track=track,
            randomness=randomness,
            loss_gather=loss_gather,
            price=price,
            parity=not no_parity,
            out=out,
            show=_show(quiet),
            progress=_show(True) if quiet else progress,
        )
    _print_comparison(console, result)
    _check_proved([result])
    return 0 if result.ok else 1


@app.command()
def study(
    path: Annotated[Path, typer.Argument(metavar="FILE|STUDY", help="A study file, or a study that is to go on.")],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Directory of a new study; one in ./studies if left out.")
    ] = None,
    quiet: Quiet = False,
) -> int:
    """Make the comparisons that a file asks for, or what an interrupted study still lacks.

    A study file is TOML. Its keys are the options of `compare`; a list of recipes, batch sizes, precisions or seeds
    makes a comparison for each. A study that was interrupted, this or one of `compare`, goes on when its directory is
    given: runs that ended are not repeated, and those that failed are kept and shown.

    \b
    kmgpu study study.toml
    kmgpu study studies/20261201-101500-study
    """
    from rich.console import Console

    from kmgpu import comparison, reporting, studyfile

    console = Console(highlight=False)
    with _one_line(console) as progress:
        listening: dict[str, Any] = {"show": _show(quiet), "progress": _show(True) if quiet else progress}
        if path.is_dir() and out is not None:
            raise UsageError(f"{path} goes on where it is; leave out --out {out}")
        if path.is_dir() and not (path / studyfile.PARTS).exists():
            results, failed = [comparison.go_on(path, **listening)], False
            _print_comparison(console, results[0])
        else:
            folder = path if path.is_dir() else studyfile.create(path, out)
            made = studyfile.go_on(folder, **listening, made=lambda part: _print_part(console, part))
            results = [part.result for part in made if part.result is not None]
            failed = len(results) < len(made)
            console.print(f"A report over all of them is in {reporting.report([folder]).paths[0]}", soft_wrap=True)
    _check_proved(results)
    return 0 if not failed and all(result.ok for result in results) else 1


@app.command()
def report(
    sources: Annotated[
        list[Path] | None, typer.Argument(metavar="DIR...", help="Studies, runs, folders of them, or other reports.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="File (.html, .md, .csv, .json), or a directory for all of these and the figures.",
            show_default="report.html in the study",
        ),
    ] = None,
    check: Annotated[
        Path | None, typer.Option(metavar="REPORT", help="Compute all that a report says from the records inside it.")
    ] = None,
) -> int:
    """Render a report of studies: one HTML file that works offline, with its raw records inside.

    Several studies, also of several machines, become one report; each is ranked within itself alone. A report may
    stand for its study. With --check nothing is written; exit code 1 if something in the report is not what its
    records give.

    \b
    kmgpu report studies/20261201-101500-digits_cnn
    kmgpu report studies/here there.html --out both.html
    kmgpu report studies/here --out paper/
    kmgpu report --check report.html
    """
    from kmgpu import reporting

    if check is not None:
        if sources or out is not None:
            raise UsageError(f"--check {check} looks at a report and writes none; leave the other arguments out")
        apart = reporting.check(check)
        for sentence in apart:
            print(sentence)
        print(f"{check}: {'NOT' if apart else 'every number and figure is'} what its records give")
        return 1 if apart else 0
    if not sources:
        raise UsageError("Missing argument 'DIR...'; name a study, such as studies/20261201-101500-digits_cnn")
    written = reporting.report(sources, out)
    for sentence in written.remarks:
        print(f"kmgpu: {sentence}", file=sys.stderr)
    others = len(written.paths) - 1
    print(f"the report is in {written.paths[0]}" + (f" and {others} files beside it" if others else ""))
    return 0


@app.command()
def parity(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="Name or file.")],
    backends: Annotated[
        str, typer.Option(metavar="LIST", help="Which backends; the first, on one device, is the reference.")
    ] = "torch,tensorflow,jax",
    devices: Annotated[str, typer.Option(metavar="LIST", help="Which numbers of devices.")] = "1,2,4",
    steps: Annotated[int, typer.Option(metavar="N", help="How many steps are compared.")] = 20,
    dtype: Annotated[
        str,
        typer.Option("--dtype", "--precision", metavar="float32|float64", help="Of weights and computations."),
    ] = "float32",
    keep_random: Annotated[
        bool, typer.Option("--keep-random", help="Let dropout and noise draw, and compare what they give.")
    ] = False,
    device_kind: DeviceKind = "auto",
    track: Track = "same-math",
    randomness: Randomness = "native",
    loss_gather: LossGather = "auto",
    batch_size: BatchSize = None,
    seed: Seed = 0,
    settings: Settings = None,
    python: Pythons = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where all goes; a new directory in ./parity if left out.")
    ] = None,
    quiet: Quiet = False,
) -> int:
    """Prove that backends and numbers of devices do the same mathematics, or say where they part.

    Every cell takes the steps of the reference, each from the reference's state, and is compared with it: loss,
    metrics, every gradient, every state, every update; and once it runs free. Exit code 5 if a cell parts or fails.

    \b
    kmgpu parity digits_cnn
    kmgpu parity digits_cnn --backends jax,torch --devices 1,2,3 --dtype float64
    kmgpu parity my_recipe.py --steps 50 --set learning_rate=0.01 --batch-size 30
    """
    from rich.console import Console

    from kmgpu import proving, recipe_card
    from kmgpu.report import matrix

    result = proving.parity(
        recipe,
        backends=[name.strip() for name in backends.split(",")],
        devices=_numbers("--devices", devices),
        steps=steps,
        dtype=dtype,
        settings=recipe_card.parse_settings(recipe_card.card(recipe_card.find_recipe(recipe)), settings or []),
        batch_size=batch_size,
        seed=seed,
        python=_pythons(python),
        device_kind=device_kind,
        keep_random=keep_random,
        track=track,
        randomness=randomness,
        loss_gather=loss_gather,
        out=out,
        show=_show(quiet),
    )
    console = Console(highlight=False)
    console.print()
    console.print(matrix.terminal(result))
    console.print(f"\nAlso in {result.path}/parity.md and parity.json", soft_wrap=True)
    if not result.ok:
        raise ParityFailed(result.sentence)
    console.print(f"\nSame mathematics: {result.sentence}.")
    return 0


@app.command()
def check(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="Name or file.")],
    backends: Annotated[str, typer.Option(metavar="LIST", help="Which backends.")] = "torch,tensorflow,jax",
    devices: Annotated[int, typer.Option(metavar="N", help="How many devices, beside one.")] = 2,
    device_kind: DeviceKind = "auto",
    batch_size: BatchSize = None,
    precision: Precision = "float32",
    settings: Settings = None,
    python: Pythons = None,
) -> int:
    """Look at a recipe before a run: its size, its operations, its memory, and what differs between backends.

    It is built on each backend and takes two steps there, on one device and on N. Nothing is kept. Exit code 1 if it
    does not run somewhere; `kmgpu parity` proves that what runs is the same mathematics.

    \b
    kmgpu check digits_cnn
    kmgpu check my_recipe.py --backends torch,jax --devices 4 --set units=32
    """
    import shutil

    from kmgpu import checking, recipe_card
    from kmgpu.report import check as report

    result = checking.check(
        recipe,
        backends=[name.strip() for name in backends.split(",")],
        devices=devices,
        settings=recipe_card.parse_settings(recipe_card.card(recipe_card.find_recipe(recipe)), settings or []),
        batch_size=batch_size,
        precision=precision,
        python=_pythons(python),
        device_kind=device_kind,
        show=_print_now,
    )
    print("\n".join(["", *report.lines(result, min(shutil.get_terminal_size().columns, 120))]))
    return 0 if result.ok else 1


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Directory of a trained run.")],
    data: Annotated[str, typer.Option(metavar="train|validation", help="Which of the recipe's data.")] = "validation",
    backend: Backend = None,
    devices: Devices = 1,
    device_kind: DeviceKind = "auto",
    batch_size: EachBatch = None,
    checkpoint: OfCheckpoint = None,
    python: Pythons = None,
) -> int:
    """Print loss and metrics of a trained run over its recipe's data, on any backend and number of devices.

    The result is kept in the run, as evaluations/<date>-<time>-.../evaluation.json.

    \b
    kmgpu evaluate runs/first
    kmgpu evaluate runs/first --backend jax --devices 4
    kmgpu evaluate runs/first --data train
    kmgpu evaluate runs/first --checkpoint best
    """
    from kmgpu import using

    result = using.evaluate(
        run, data=data, backend=backend, devices=devices, device_kind=device_kind, batch_size=batch_size,
        checkpoint=checkpoint, python=_pythons(python), show=_print_now,
    )  # fmt: skip
    print("  ".join(f"{name} {value:.6g}" for name, value in result.metrics.items()))
    print(f"in {result.path}/evaluation.json")
    return 0


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Directory of a trained run.")],
    input: Annotated[Path, typer.Option(metavar="FILE", help="Rows, .npy; or .npz with each input by its name.")],
    output: Annotated[Path, typer.Option(metavar="FILE", help="Where the outputs go: .npy, or .npz by name.")],
    force: Annotated[bool, typer.Option("--force", help="Replace the output if it exists.")] = False,
    backend: Backend = None,
    devices: Devices = 1,
    device_kind: DeviceKind = "auto",
    batch_size: EachBatch = None,
    checkpoint: OfCheckpoint = None,
    python: Pythons = None,
) -> int:
    """Write what a trained run gives for each row of a file, in order, on any backend and number of devices.

    \b
    kmgpu predict runs/first --input x.npy --output y.npy
    kmgpu predict runs/first --input x.npz --output y.npz --backend jax --devices 4 --force
    """
    from kmgpu import using

    using.predict(
        run, input, output=output, force=force, backend=backend, devices=devices, device_kind=device_kind,
        batch_size=batch_size, checkpoint=checkpoint, python=_pythons(python), show=_print_now,
    )  # fmt: skip
    print(f"the outputs are in {output}")
    return 0


@app.command()
def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Directory of a trained run.")],
    format: Annotated[str, typer.Option(metavar="keras|weights|savedmodel|onnx", help="For what it is.")],
    output: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Where it goes; into the run's exports if left out.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the output if it exists.")] = False,
    checkpoint: OfCheckpoint = None,
    python: Pythons = None,
) -> int:
    """Write a trained run's model for other programs, by Keras's own exporters.

    \b
    kmgpu export runs/first --format keras --output model.keras
    kmgpu export runs/first --format weights --checkpoint best
    kmgpu export runs/first --format savedmodel --output served/1
    """
    from kmgpu import exporting

    path = exporting.export(
        run, format, output=output, force=force, checkpoint=checkpoint, python=_pythons(python), show=_print_now
    )
    print(f"the model is in {path}")
    return 0


@app.command()
def recipes(name: Annotated[str | None, typer.Argument(metavar="NAME", help="Show this one.")] = None) -> None:
    """List the recipes with their settings, or show one. They are read, not run.

    \b
    kmgpu recipes
    kmgpu recipes digits_cnn
    """
    import shutil
    import textwrap

    from kmgpu import recipe_card

    if name is None:
        width = min(shutil.get_terminal_size().columns, 120)
        for card in recipe_card.shipped():
            print(textwrap.fill(f"{card.name}: {card.summary}", width, subsequent_indent="    "))
            print(textwrap.indent(textwrap.fill(_settings(card), width - 4), "    "))
        return
    card = recipe_card.card(recipe_card.find_recipe(name))
    print(f"{card.name}: {card.doc}\n\nsettings: {_settings(card)}\nfile: {card.path}")


@app.command()
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the recipe; NAME.py is written.")],
    origin: Annotated[
        str,
        typer.Option(
            "--from", metavar="KIND",
            help="mlp, cnn, resnet, vit, transformer, bert, gpt, lstm, table, vae, or a shipped recipe.",
        ),
    ] = "cnn",
) -> None:
    """Begin a recipe of your own: a file that runs at once, as a copy of a shipped one.

    \b
    kmgpu new my_recipe
    kmgpu new my_recipe --from transformer
    """
    from kmgpu import scaffold

    path, shipped = scaffold.new(name, origin)
    print(f"{path} is a copy of {shipped}, and runs as it is. Change its data, then its model. To look at it:")
    for command in ("check", "parity", "train"):
        print(f"    kmgpu {command} {path}" + (" --backend jax" if command == "train" else ""))


@app.command()
def runs(
    names: Annotated[list[str] | None, typer.Argument(metavar="RUN", help="Only these, by name or path.")] = None,
    clean: Annotated[
        bool,
        typer.Option(
            "--clean", help="Remove the named runs, or else all that failed or were stopped without a checkpoint."
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """List the runs in ./runs, ./studies and ./parity, or remove some.

    \b
    kmgpu runs
    kmgpu runs --clean
    kmgpu runs --clean runs/first --yes
    """
    import shutil

    from kmgpu import checkpoints
    from kmgpu.report import listing
    from kmgpu.report.runs import find, load_all, named

    known, sentences = load_all(find(RUN_FOLDERS))
    chosen = named(known, names) if names else known
    if clean:
        over = [run for run in chosen if run.status in ("failed", "interrupted")]
        chosen = chosen if names else [run for run in over if not checkpoints.listed(run.path)]
    print("\n".join(listing.lines(chosen)) if chosen else "There are no such runs in ./runs, ./studies and ./parity.")
    for sentence in sentences:
        print(f"kmgpu: {sentence}", file=sys.stderr)
    if not clean or not chosen:
        return
    if not yes and not sys.stdin.isatty():
        raise UsageError(
            "--clean asks before it removes runs, and standard input is no terminal; add --yes to remove them"
        )
    if not yes and not typer.confirm(f"Remove {len(chosen)} of {len(known)} runs with all their files?"):
        print("Nothing was removed.")
        return
    for run in chosen:
        shutil.rmtree(run.path)
        study = run.path.parent
        if (study / "study.json").exists() and not list(study.glob("*/job.json")):
            shutil.rmtree(study)  # without runs; its parity check goes with it
    print(f"Removed {len(chosen)}.")


def main() -> None:
    """Run the command line; every error is one sentence and an exit code."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Return the exit code of one command line, having printed what there is to say."""
    try:
        return app(arguments, prog_name="kmgpu", standalone_mode=False) or 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # of `kmgpu runs | head`; point stdout away from it, or the exit complains again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if os.environ.get("KMGPU_DEBUG"):
            raise
        code, message = _explain(error)
        sys.stdout.flush()
        print(f"kmgpu: {message}", file=sys.stderr)
        return code


def _explain(error: Any) -> tuple[int, str]:
    if isinstance(error, KmgpuError):
        return error.exit_code, str(error)
    if hasattr(error, "format_message"):  # click's, which typer carries inside or not, depending on its version
        command = error.ctx.command_path if getattr(error, "ctx", None) else "kmgpu"
        return error.exit_code, f"{_click_says(error)}; see `{command} --help`"
    if type(error).__name__ == "Abort":  # click's word for Ctrl-C, and for the end of input at a question
        return INTERRUPTED, "stopped"
    return 1, f"unexpected {type(error).__name__}: {error} (KMGPU_DEBUG=1 shows where)"


def _click_says(error: Any) -> str:
    """Return click's message, with what the option is for where it is missing or has a word for a number."""
    said, parameter = error.format_message().rstrip("."), getattr(error, "param", None)
    if type(error).__name__ == "MissingParameter" and parameter is not None:
        return f"{said} ({parameter.help.rstrip('.')})"
    if "a valid int" in said and parameter is not None:  # the value is in typer's own words, or in those of pydantic
        given = re.search(r"'[^']*'(?= is not a valid int)|(?<=input_value=)'[^']*'", f"{said} {error.__cause__}")
        return f"{parameter.opts[0]} is {given[0] if given else 'something else'}; it is a whole number"
    return said


def _numbers(option: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError:
        raise UsageError(f"{option} is {text!r}; it is a list of whole numbers such as 1,2") from None


def _parsed(words: list[str] | None, recipe: str | None, resume: Path | None) -> dict[str, Any] | None:
    """Return settings by name; those of a run to go on with are its own unless some are given."""
    from kmgpu import recipe_card, resumption

    if resume is not None and not words:
        return None
    if recipe is None and resume is not None:
        recipe = str(resumption.recipe_of(resumption.find(resume)[0], None))
    return recipe_card.parse_settings(recipe_card.card(recipe_card.find_recipe(recipe or DEFAULT_RECIPE)), words or [])


def _pythons(words: list[str] | None) -> dict[str, str]:
    pairs = [word.partition("=") for word in words or []]
    for word, (backend, _, path) in zip(words or [], pairs, strict=True):
        if not backend or not path:
            raise UsageError(f"--python is {word!r}; it is BACKEND=PATH, such as jax=/opt/jax/bin/python")
    return {backend: path for backend, _, path in pairs}


def _settings(card: Any) -> str:
    def shown(name: str, value: Any) -> str:
        others = [repr(choice) for choice in card.choices.get(name, ()) if choice != value]
        return f"{name}={value!r}" + (f" (or {', '.join(others)})" if others else "")

    return ", ".join(shown(name, value) for name, value in card.settings.items()) or "none"


def _preset(
    quick: bool, full: bool, repeats: int | None, budget: str | None, max_steps: int | None
) -> tuple[int, int | None]:
    """Return repeats and steps of --quick or --full."""
    given = {"--repeats": repeats, "--budget": budget, "--max-steps": max_steps if quick else None}
    others = [option for option, value in given.items() if value is not None]
    if quick and full or others:
        with_what = "--full" if quick and full else others[0]
        raise UsageError(f"{'--quick' if quick else '--full'} says by itself what {with_what} says; choose one")
    return (3, 100) if quick else (8, max_steps)


def _print_part(console: Any, part: Any) -> None:
    if part.result is not None:
        _print_comparison(console, part.result)
        console.print()


def _print_comparison(console: Any, result: Any) -> None:
    from kmgpu.report import price as pricing
    from kmgpu.report import tables

    console.print()
    console.print(tables.terminal(result.heading, result.rows, result.remarks, console.width))
    if result.prices:
        console.print()
        console.print(pricing.terminal(result.prices))
    console.print(f"\nAlso in {result.path}/report.html, comparison.md and comparison.json", soft_wrap=True)


def _check_proved(results: list[Any]) -> None:
    """Raise ParityFailed if the runs of a comparison are known not to do the same mathematics, or could not be."""
    if any(result.proof.parted or (result.ok and result.proof.ok is False) for result in results):
        raise ParityFailed("these runs are not proved to do the same mathematics; the lines above say which and where")


def _print_now(line: str) -> None:
    print(line, flush=True)


def _show(quiet: bool) -> Callable[[str], None]:
    return (lambda line: None) if quiet else _print_now


def _after(text: str, show: Callable[[str], None]) -> Callable[[str], None]:
    """Return ``show``, which shows a text first: not before there is something to say."""
    waiting = [text]

    def both(line: str) -> None:
        while waiting:
            show(waiting.pop())
        show(line)

    return both


@contextlib.contextmanager
def _one_line(console: Any) -> Iterator[Callable[[str], None]]:
    """Give a function that shows a text below all others, in place of the text before; in a terminal alone."""
    from rich.live import Live
    from rich.text import Text

    with Live(console=console, auto_refresh=False, transient=True) as live:  # its thread would cost what is measured
        yield lambda line: live.update(Text(line, no_wrap=True, overflow="ellipsis"), refresh=True)
