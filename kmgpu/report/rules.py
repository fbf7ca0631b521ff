"""The rules that a comparison of frameworks must keep to be believed, and how a study kept each of them.

A rule is enforced (kmgpu refuses or prevents anything else), recorded (the facts are in the report, and the reader
judges), or not met. What nobody measured is not met: there is no fourth word.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kmgpu.errors import counted
from kmgpu.report import flags, ratios, statistics, tables
from kmgpu.report.machines import device_kind
from kmgpu.report.runs import Run
from kmgpu.report.studies import Study, Table
from kmgpu.report.trace import Trace

if TYPE_CHECKING:
    from kmgpu.report.findings import TableFound

ENFORCED, RECORDED, NOT_MET = "enforced", "recorded", "not met"
PARITY_STEPS = 10
STEADY_SECONDS = 10.0  # of a run at least, to mean something
STEADY_WINDOWS = 20
SEEDS = 5  # for times to a target


@dataclass(frozen=True)
class Kept:
    """How a study kept a rule."""

    number: int
    group: str
    rule: str
    status: str  # ENFORCED, RECORDED or NOT_MET
    how: str


@dataclass(frozen=True)
class Ground:
    """All that a rule is judged by."""

    study: Study
    tables: Sequence[Table]
    traces: Mapping[Any, Trace]
    found: Sequence[TableFound]

    @property
    def ok(self) -> list[Run]:
        return [run for run in self.study.runs if run.ok]

    @property
    def on_gpus(self) -> bool:
        return any(device_kind(run) == "gpu" for run in self.study.runs)

    @property
    def cells(self) -> list[list[Run]]:
        return [cell for table in self.tables for cell in statistics.cells(table.runs).values()]

    @property
    def same_math(self) -> bool:
        return all(run.job.track == "same-math" for run in self.study.runs)

    def words(self, *names: str) -> set[str]:
        """Whether these conditions were equal, in all tables."""
        return {each.word for table in self.found for each in table.conditions if each.name in names}


Answer = tuple[str, str]


def judge(ground: Ground) -> list[Kept]:
    """Return how a study kept each rule, in their order."""
    return [
        Kept(number, group, rule, *(answer(ground) if ground.ok else (NOT_MET, "no run ended well")))
        for number, (group, rule, answer) in enumerate(RULES, 1)
    ]


def _parity(ground: Ground) -> Answer:
    proof, check = ground.study.proof, ground.study.check
    if proof.ok is not True:
        return NOT_MET, proof.sentence
    steps = check.asked["steps"] if check is not None else None
    if steps is None:
        return RECORDED, f"{proof.sentence} The check itself was made before this study, and is not in its records."
    if steps < PARITY_STEPS:
        return RECORDED, f"{proof.sentence} The rule asks for {PARITY_STEPS} steps; `kmgpu parity` takes 20."
    return ENFORCED, proof.sentence


def _noise_floor(ground: Ground) -> Answer:
    if ground.study.check is None:
        if ground.study.proof.ok is None:
            return NOT_MET, "nobody has checked the mathematics of this study"
        return NOT_MET, "the noise floor of a check made before is not in the records"
    return ENFORCED, "the reference is compared with itself, inputs off by one rounding; parity.md has both"


def _mean(ground: Ground) -> Answer:
    if not ground.same_math:
        return RECORDED, "as shipped, each framework reduces in its own way; such runs are in tables of their own"
    return ENFORCED, "on the track same-math, for every loss, mask and weight"


def _stated(ground: Ground) -> Answer:
    return RECORDED, "BatchNorm, accumulation, reduction and loss scaling are among the conditions; one Keras optimizer"


def _batches(ground: Ground) -> Answer:
    return ENFORCED, "the batch is global; each device's share and the accumulation are among the conditions"


def _order(ground: Ground) -> Answer:
    if any(table.problem for table in ground.tables):
        return NOT_MET, next(table.problem for table in ground.tables if table.problem)
    return ENFORCED, "one order for all, a function of seed, epoch and step; its hash is equal in all runs of a table"


def _seeds(ground: Ground) -> Answer:
    seeds = len({run.job.seed for run in ground.ok})
    return NOT_MET, f"{counted(seeds, 'seed')}; time to accuracy needs at least {SEEDS}, and is not given here"


def _precision(ground: Ground) -> Answer:
    words = ground.words("dtype", "TF32 in matrix products", "bits that a matrix product keeps")
    if "differs" in words:
        return NOT_MET, "runs of one table differ in precision; the conditions say where"
    if "not recorded" in words:
        return RECORDED, "set and read back; the bits that a product keeps were not measured in all runs"
    return ENFORCED, "set, read back, and measured by the bits that a product keeps"


def _compiled(ground: Ground) -> Answer:
    if "differs" in ground.words("compiled"):
        return RECORDED, "the frameworks differ: each as its strategy has it; the conditions say which. Graph breaks "\
            "and recompilations are not counted"  # fmt: skip
    return RECORDED, "the same for all and on every number of devices; graph breaks and recompilations are not counted"


def _nothing(why: str) -> Callable[[Ground], Answer]:
    return lambda ground: (NOT_MET, why)


def _versions(ground: Ground) -> Answer:
    return RECORDED, "frameworks, Keras, system, driver and the variables that change a run are among the conditions"


def _alone(ground: Ground) -> Answer:
    pairs = flags.overlapping(ground.study.runs)
    if pairs:
        return NOT_MET, f"{pairs[0][1].name} began before {pairs[0][0].name} was over"
    first = min(ground.study.runs, key=lambda run: run.outcome.get("launched_time") or 0.0)
    load = tables.busy(first)
    if load is not None:
        return NOT_MET, f"the machine was busy with something else before the first run (load {load:.1f})"
    threads = ground.words("CPU threads, all processes")
    if "differs" in threads:
        return RECORDED, "one framework in a process, one run at a time; the threads that frameworks took differ"
    return ENFORCED, "one framework in a process, one run at a time, with the same cores for each"


def _clocks(ground: Ground) -> Answer:
    counts = [clocks for clocks in map(flags.throttled, ground.traces.values()) if clocks is not None]
    if not counts:
        return NOT_MET, "clocks and temperatures were not measured" + ("" if ground.on_gpus else ": there is no GPU")
    return RECORDED, f"{sum(count for count, _ in counts)} windows of all runs saw a throttled device"


def _warm(ground: Ground) -> Answer:
    moved = [run.name for run in ground.ok if flags.unsteady(ground.traces[run.path]) is not None]
    if moved:
        return NOT_MET, f"the steps of {counted(len(moved), 'run')} were not steady, as {moved[0]}; the runs say which"
    return (
        RECORDED,
        "first steps of each batch size stand apart as compilation, and the time to the first step is given",
    )


def _long(ground: Ground) -> Answer:
    shortest = min(sum(window["seconds"] for window in ground.traces[run.path].steady) for run in ground.ok)
    fewest = min(len(ground.traces[run.path].steady) for run in ground.ok)
    said = f"the shortest run has {counted(fewest, 'steady window')} in {shortest:.1f} s"
    if shortest < STEADY_SECONDS or fewest < STEADY_WINDOWS:
        return NOT_MET, f"{said}; {STEADY_WINDOWS} windows and {STEADY_SECONDS:g} s are the least that means something"
    return RECORDED, f"{said}; median, p5 and p95 are given"


def _repeats(ground: Ground) -> Answer:
    fewest = min(len([run for run in cell if run.ok]) for cell in ground.cells)
    said = f"{counted(fewest, 'process').replace('processs', 'processes')} for each cell"
    if fewest < ratios.FEW_BLOCKS:
        return NOT_MET, f"{said}; a full study has at least {ratios.FEW_BLOCKS}"
    if not _interleaved(ground.study.runs):
        return NOT_MET, f"{said}, but all runs of a cell were made after one another"
    return ENFORCED, f"{said}, interleaved over the frameworks; the process is the unit"


def _interleaved(runs: Sequence[Run]) -> bool:
    order = sorted(runs, key=lambda run: run.outcome.get("launched_time") or 0.0)
    cells = [(run.job.backend, run.job.strategy, run.job.devices, run.job.track) for run in order]
    changes = sum(mine != after for mine, after in zip(cells, cells[1:], strict=False))
    return len(set(cells)) < 2 or changes > len(set(cells)) - 1


def _intervals(ground: Ground) -> Answer:
    blocks = min(len([run for run in cell if run.ok]) for cell in ground.cells)
    if blocks < 2:
        return NOT_MET, "one process for each cell has no interval"
    return ENFORCED, "95 % intervals of ratios within repeats (log-t: a bootstrap of five covers 84 %), corrected for "\
        "their number (Holm); what may be under 2 % is a tie"  # fmt: skip


def _all_kept(ground: Ground) -> Answer:
    missing = [problem for problem in ground.study.problems if "holds no run" in problem]
    if missing:
        return NOT_MET, missing[0]
    failed = len(ground.study.runs) - len(ground.ok)
    return ENFORCED, f"all {len(ground.study.runs)} runs that were started are here, {failed} of them failed"


def _data(ground: Ground) -> Answer:
    stalls = [stall for run in ground.ok for stall in [statistics.stall(run)] if stall is not None]
    most = f"at most {max(stalls):.1%} of the steady time was spent waiting" if stalls else "the stall is not known"
    return RECORDED, f"one shared pipeline, kmgpu's own; {most}"


def _scaling(ground: Ground) -> Answer:
    superb = [each for table in ground.found for each in table.scaled if each.word == "error"]
    several = any(run.job.devices > 1 for run in ground.ok)
    if superb:
        return (
            NOT_MET,
            f"{superb[0].backend} on {superb[0].devices} has {superb[0].efficiency:.0%}: an error until explained",
        )
    if several and not any(table.scaled for table in ground.found):
        return NOT_MET, "there is no run on one device of the same backend that parity backs"
    return ENFORCED, f"{ground.study.scaling} scaling; the baseline is one device of the same backend"


def _memory(ground: Ground) -> Answer:
    if ground.on_gpus:
        return NOT_MET, "peaks of the framework's allocator, but of the timed runs, not of runs of their own"
    return RECORDED, "resident memory of all processes, in the timed runs: on CPU nothing is preallocated"


def _energy(ground: Ground) -> Answer:
    return NOT_MET, "not measured" + ("" if ground.on_gpus else ": there is no GPU")


def _untimed(ground: Ground) -> Answer:
    return ENFORCED, "windows hold steps alone; evaluation, callbacks and checkpoints are timed apart"


def _tracks(ground: Ground) -> Answer:
    tracks = ", ".join(dict.fromkeys(run.job.track for run in ground.study.runs))
    return RECORDED, f"tracks are never in one table ({tracks}); nothing was tuned for any framework"


def _scope(ground: Ground) -> Answer:
    return ENFORCED, "written from the records, at the head of the study"


def _published(ground: Ground) -> Answer:
    if not (ground.study.path / "recipe.py").is_file():
        return RECORDED, "raw records and versions are in this file; the recipe's text is not. "\
            "`kmgpu report --check` computes every number again"  # fmt: skip
    return (
        ENFORCED,
        "raw records, recipe and versions are in this file; `kmgpu report --check` computes every number again",
    )


MATH, CONDITIONS, MEASUREMENT, HONESTY = "same math", "same conditions", "same measurement", "same honesty"
RULES: tuple[tuple[str, str, Callable[[Ground], Answer]], ...] = (
    (MATH, "Same mathematics are proved, over at least 10 steps, on 1 and on N devices", _parity),
    (MATH, "The tolerance is calibrated by the noise of one framework with itself", _noise_floor),
    (MATH, "The gradient is the mean over the samples of the global batch", _mean),
    (MATH, "BatchNorm, dropout, regularisers, epsilon, clipping, loss scaling are stated", _stated),
    (MATH, "The global batch is held; the batch of a device is derived", _batches),
    (MATH, "The order of samples is the same everywhere; each counts once", _order),
    (MATH, "Time to accuracy: at least 5 seeds and a test of convergence", _seeds),
    (CONDITIONS, "One precision for all: set, read back, and measured", _precision),
    (CONDITIONS, "The compile mode is stated; the same on 1 and on N devices", _compiled),
    (CONDITIONS, "The layout is stated", _nothing("the layout of images is Keras's for all, and is not recorded")),
    (CONDITIONS, "Autotuning is on, warmed up and recorded", _nothing("not recorded")),
    (CONDITIONS, "Versions as loaded, flags and variables", _versions),
    (CONDITIONS, "One framework in a process, alone on its devices, the same cores", _alone),
    (CONDITIONS, "Clocks, temperature and throttling are logged and flagged", _clocks),
    (CONDITIONS, "Topology, and the raw bandwidth of an all-reduce", _nothing("not measured")),
    (MEASUREMENT, "Times are taken around blocks of steps, after the device is waited for",
     lambda ground: (ENFORCED, "windows of up to ten steps, from asking for the batch to the losses on the host")),
    (MEASUREMENT, "Warmed up until stable; compilation and first step apart", _warm),
    (MEASUREMENT, "Steady for long enough; median, p5 and p95", _long),
    (MEASUREMENT, "Interleaved, at least 5 fresh processes for each cell", _repeats),
    (MEASUREMENT, "95 % intervals of ratios; ties are ties; corrected for many comparisons", _intervals),
    (MEASUREMENT, "No best of N: every run that was started is kept", _all_kept),
    (MEASUREMENT, "The data path is stated, and the stall as a share", _data),
    (MEASUREMENT, "Scaling is named; its baseline is one device of the same backend; over 103 % is an error", _scaling),
    (MEASUREMENT, "The share of communication, by a twin that does not synchronise",
     _nothing("not measured: no such twin was run")),
    (MEASUREMENT, "Memory by the framework's allocator, without preallocation", _memory),
    (MEASUREMENT, "Use of the hardware's arithmetic (MFU) from one count of the model", _nothing("not measured")),
    (MEASUREMENT, "Energy from the device's counter", _energy),
    (MEASUREMENT, "Checkpoints, evaluation and logging are not in the timed part", _untimed),
    (HONESTY, "Out of the box and tuned are separate", _tracks),
    (HONESTY, "A sentence says what the numbers are about", _scope),
    (HONESTY, "Raw records, recipe and versions are published; one command computes all again", _published),
)  # fmt: skip
