"""A policy training as a run directory, from a preset."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from unmask.decoding.protocols import Canvas
from unmask.denoisers.loading import describe_source, load_denoiser
from unmask.denoisers.placement import SPREAD, Placement, find_device, parse_dtype
from unmask.runs.presets import load_preset
from unmask.runs.processes import ProcessGroup, start_accelerator
from unmask.runs.run import Run
from unmask.schedulers.config import PolicyConfig
from unmask.schedulers.loading import describe_policy, load_scheduler
from unmask.schedulers.policy import OrderPolicy, build_policy, choose_network
from unmask.tasks.kinds import Data, GeneratedKind, Problems, find_kind, find_preset, require_kind
from unmask.tasks.sudoku.source import SudokuData
from unmask.training.cost.preflight import Needs, preflight
from unmask.training.policy.config import PolicyTraining
from unmask.training.policy.trainer import PolicyJob, share_prompts, train_policy
from unmask.training.policy.trials import FOLDER, Choice, Race, Recipe, Trial, read_choice, write_choice


@dataclass(frozen=True)
class PolicyRun(Placement):
    """A frozen denoiser, the policy's configuration, the problems and the training.

    Attributes:
        denoiser: A shipped denoiser, a folder, a safetensors file or a hub id; empty where it is still to be named.
        policy: The policy to train.
        start: A policy (shipped, or a folder) to initialise the weights from; its configuration must be the same.
        data: The problems to train on.
        validation: Which problems are held out: the clues of puzzles, a file of text, a split of a dataset.
        training: How it is trained.
        candidates: Presets, or TOML files, with another policy and another way to train it, which are tried beside this one. What
            is best on the held-out problems after its trial is trained.
        trial_steps: Training steps of each trial; a candidate's file has its own.
        trial_rounds: Rounds of trials, at most, while no candidate is clearly ahead.
    """

    denoiser: str = "sudoku-9x9-imperfect"
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    start: str = ""
    data: Data = field(default_factory=SudokuData)
    validation: str | None = None
    training: PolicyTraining = field(default_factory=PolicyTraining)
    candidates: tuple[str, ...] = ()
    trial_steps: int = 15
    trial_rounds: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        for option in ("trial_steps", "trial_rounds"):
            if getattr(self, option) < 1:
                raise ValueError(f"{option} must be at least 1, got {getattr(self, option)}")
        names = [self.policy.kind, *(Path(name).stem for name in self.candidates)]
        if len(set(names)) < len(names):
            raise ValueError(
                f"candidates are called after their files, and the run's own recipe {self.policy.kind} after its policy: expected "
                f"different names, got {', '.join(names)}; rename a file, or set candidates = []"
            )
        if self.start and self.candidates:
            raise ValueError(f"start = {self.start!r} has the weights of one policy: set candidates = []")
        if self.policy.purpose != self.training.purpose:
            raise ValueError(
                f"training.objective {self.training.objective!r} learns the purpose {self.training.purpose}: "
                f"set policy.purpose to it, got {self.policy.purpose!r}"
            )
        if choose_network(self.policy).predicts != (self.training.objective == "tokens"):
            raise ValueError(
                "objective tokens is how a policy of kind opinion learns, and no other: "
                f"got kind {self.policy.kind!r} and objective {self.training.objective!r}"
            )
        if self.training.label == "tokens" and not (self.policy.residual and self.policy.base == "confidence"):
            raise ValueError(
                "label tokens adds to each token's own probability: leave policy.residual at true and policy.base at "
                f"confidence, got {self.policy.residual} and {self.policy.base!r}"
            )


def load_run(task: str | None = None, preset: str | None = None, denoiser: str | None = None) -> PolicyRun:
    """A preset, or the task's own. One that names no data, such as ``default``, is for every task, with problems that fit the
    ``denoiser``. Without a name, boards get the preset's own denoiser, and other tasks none: it is still to be named."""
    config = load_preset(preset or find_preset(task), PolicyRun, "train")
    if config.data == SudokuData():
        kind = find_kind(task or config.data.kind)
        named = denoiser or (config.denoiser if kind is SudokuData else "")
        return dataclasses.replace(config, denoiser=named, data=kind.for_training(named))
    if task is not None:
        require_kind(config.data, task)
    return config


def sample_problems(config: PolicyRun, count: int) -> Canvas:
    """Some problems of a training. Generated ones need no denoiser; text needs the denoiser's tokenizer."""
    if isinstance(config.data, GeneratedKind):
        return config.data.first(count)(0, count)
    return config.data.problems(load_denoiser(config.denoiser), config.denoiser)(0, count)


def _copy_weights(policy: OrderPolicy, name: str, denoiser: Any) -> None:
    """Copy the weights of another policy of the same shape."""
    other = load_scheduler(name, denoiser)
    weights = other.state_dict() if isinstance(other, OrderPolicy) else {}
    own = {key: tuple(tensor.shape) for key, tensor in policy.state_dict().items()}
    if own != {key: tuple(tensor.shape) for key, tensor in weights.items()}:
        raise ValueError(
            f"cannot start from {name}: expected a policy of kind {policy.config.kind}, width {policy.config.width}"
        )
    policy.load_state_dict(weights)


@dataclass(frozen=True)
class LoadedRun:
    """What the recipes of a run have in common: the loaded denoiser, the problems, the processes."""

    config: PolicyRun
    denoiser: Any
    source: Problems
    processes: ProcessGroup

    def candidates(self) -> dict[str, Recipe]:
        """The run's own recipe, by the kind of its policy, and those of its candidates that are worth trying here."""
        own = Recipe(self.config.policy, self.config.training, self.config.trial_steps)
        found = {own.policy.kind: own}
        for name in self.config.candidates:
            preset = load_preset(name, PolicyRun, "train")
            if choose_network(preset.policy).is_worth_trying(self.denoiser):
                recipe = Recipe(preset.policy, preset.training, preset.trial_steps)
                found[Path(name).stem] = recipe.adopt(own.training)
        return found

    def train(
        self, recipe: Recipe, run: Run, stop: Callable[[], bool], needs: Callable[[Needs], None] = lambda found: None
    ) -> Iterator[dict[str, Any]]:
        """Train a policy in the folder of ``run``."""
        config, training = self.config, recipe.training
        torch.manual_seed(training.seed)
        policy = build_policy(recipe.policy, self.denoiser, config.denoiser)
        if config.start:
            _copy_weights(policy, config.start, self.denoiser)
        held_out = self.source.held_out(training.validate, config.validation)
        mine = self.source(0, training.prompts).rows(share_prompts(training, self.processes)[0])
        found = preflight(self.denoiser, policy, mine, training)
        needs(dataclasses.replace(found, processes=self.processes.size))
        found.require()
        job = PolicyJob(
            self.denoiser,
            policy,
            self.source,
            training,
            held_out.canvas(range(len(held_out))),
            run,
            stop,
            load_scheduler(training.teacher, self.denoiser, config.denoiser) if training.teacher else None,
            self.processes.accelerator,
            held_out.verify,
            self.source.judge,
        )
        yield from train_policy(job)

    def choose(
        self,
        run: Run,
        stop: Callable[[], bool],
        needs: Callable[[Needs], None],
        on_trial: Callable[[Trial | Choice], None],
    ) -> Recipe | None:
        """The recipe that the trials find, or have found before, to be the best; None if ``stop`` has ended them."""
        candidates = self.candidates()
        if len(candidates) == 1:
            return next(iter(candidates.values()))

        def attempt(recipe: Recipe, place: Run, last: Callable[[], bool]) -> Iterator[dict[str, Any]]:
            self._create(recipe, place)
            with _clear_empty(place), place.work() if self.processes.is_first else contextlib.nullcontext():
                yield from self.train(recipe, place, lambda: last() or stop(), needs)

        race = self._race()
        if (choice := read_choice(run)) is None:
            choice = race.run(candidates, run, attempt, on_trial)
            if choice is None:
                return None
            if self.processes.is_first:
                write_choice(run, choice)
        elif choice.name not in candidates:
            raise ValueError(
                f"cannot resume {run.folder}: its trials chose {choice.name!r}, which is not among its candidates: "
                f"{', '.join(candidates)}; name another folder"
            )
        else:
            self._create(candidates[choice.name].shorten(), Run(run.folder / FOLDER / choice.name))
        on_trial(choice)
        return candidates[choice.name].select_by(choice.measure)

    def _race(self) -> Race:
        """No more rounds than fit into the run's own training."""
        training = self.config.training
        rounds = min(self.config.trial_rounds, max(1, training.steps // self.config.trial_steps))
        return Race(rounds, len(self.source.held_out(training.validate, self.config.validation)))

    def _create(self, recipe: Recipe, place: Run) -> None:
        """The folder of a trial, or the refusal to resume it with another recipe."""
        config = dataclasses.replace(self.config, policy=recipe.policy, training=recipe.training, candidates=())
        if self.processes.is_first:
            Run.create(place.folder, config, resume=True, may_differ=("device", "training.select"))
        self.processes.wait()


@contextlib.contextmanager
def _clear_empty(trial: Run) -> Iterator[None]:
    """Leave no empty folder of a trial that failed before it has produced anything, so that the run can begin otherwise."""
    try:
        yield
    except Exception:
        with contextlib.suppress(OSError):
            trial.folder.rmdir()
            trial.folder.parent.rmdir()
        raise


def run_policy_training(
    config: PolicyRun,
    folder: str | Path,
    resume: bool = False,
    stop: Callable[[], bool] = lambda: False,
    needs: Callable[[Needs], None] = lambda found: None,
    on_trial: Callable[[Trial | Choice], None] = lambda trial: None,
) -> Iterator[dict[str, Any]]:
    """Train in ``folder``, yielding a record per step; at the end the best policy is in ``folder/policy``.

    Under ``accelerate launch`` every process calls this; the first one owns the folder. ``needs`` is called with the cost of a step
    before the first one; a run that does not fit into memory is refused then. ``on_trial`` hears of the trials of candidates,
    which come before the first record, and of what they chose.
    """
    if not config.denoiser:
        task = config.data.kind
        raise ValueError(f"which denoiser is to learn an order for the task {task}? Name it with --denoiser")
    if config.device == SPREAD:
        raise ValueError(
            "a policy is trained beside the denoiser on one device: expected auto, cpu, cuda or mps, got spread"
        )
    if (chosen := find_device(config.device)).type == "cuda":
        torch.cuda.set_device(chosen)
    processes = ProcessGroup(start_accelerator(config.training.mixed_precision, cpu=config.on_cpu))
    if config.training.replay and processes.size > 1:
        raise ValueError(
            f"a checkpoint keeps the replayed decisions of one process, and {processes.size} share this training: set "
            "training.replay = 0"
        )
    denoiser = load_denoiser(config.denoiser, parse_dtype(config.dtype)).to(processes.accelerator.device)
    loaded = LoadedRun(config, denoiser, config.data.problems(denoiser, config.denoiser), processes)
    if name := config.training.teacher:  # before anything is written
        load_scheduler(name, denoiser, config.denoiser)
    if processes.is_first:
        policies = {key: one for key, one in (("start", config.start), ("teacher", name)) if one}
        inputs = {key: describe_policy(one, config.denoiser) for key, one in policies.items()}
        inputs["denoiser"] = describe_source(config.denoiser)
        Run.create(folder, config, resume=resume, may_differ=("device",), inputs=inputs)
    processes.wait()
    run = Run(Path(folder))
    with run.work() if processes.is_first else contextlib.nullcontext():
        recipe = loaded.choose(run, stop, needs, on_trial)
        if recipe is not None:
            yield from loaded.train(recipe, run, stop, needs)


def train(
    denoiser: str,
    data: str | Path,
    out: str | Path,
    *,
    task: str = "text",
    dtype: str = "float32",
    resume: bool = False,
    on_step: Callable[[dict[str, Any]], None] = lambda record: None,
) -> OrderPolicy:
    """Learn an order for the frozen ``denoiser`` on a file of problems, and return the best policy.

    The same as ``unmask train --task TASK --denoiser DENOISER --data DATA --out OUT``. ``out`` is the run's folder, by which
    ``generate`` and ``load_scheduler`` find the policy; ``on_step`` gets each step's record.
    """
    config = load_run(task, denoiser=denoiser)
    config = dataclasses.replace(config, denoiser=denoiser, data=config.data.with_file(str(data)), dtype=dtype)
    for record in run_policy_training(config, out, resume):
        on_step(record)
    policy = load_scheduler(str(out))
    assert isinstance(policy, OrderPolicy)
    return policy
