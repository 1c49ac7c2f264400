"""What a discovery method is: a frozen dataclass whose fields are its parameters and whose `search` finds circuits.

Everything that other parts ask about a method is on its class, so that a new method is one file: give an instance to
`discover`, `make_report` or a sweep, or name it `module:Name` where text is wanted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, TypeVar

from torch import Tensor

from gatewise.circuits.circuit import Circuit
from gatewise.circuits.graph import Graph
from gatewise.circuits.selection import Selection, select_each
from gatewise.engine.runs.activations import Direction
from gatewise.engine.setting import SIDES, Batch, Setting
from gatewise.errors import GatewiseError, suggestion
from gatewise.methods.parameters import parameters_of
from gatewise.models.model import Model
from gatewise.statistics import kl_divergence, log_probabilities
from gatewise.store.checkpoints import Checkpoint
from gatewise.tasks.pairs import Pairs

SearchDirection = Literal["ns", "dn", "ns+dn"]
SEARCH_DIRECTIONS: tuple[SearchDirection, ...] = ("ns", "dn", "ns+dn")
_AnyMethod = TypeVar("_AnyMethod", bound="Method")


@dataclass(frozen=True, eq=False)
class Problem:
    """What a method is asked. Either every direction has sizes, or there is a threshold."""

    setting: Setting
    directions: tuple[SearchDirection, ...]
    sizes: Mapping[SearchDirection, tuple[int, ...]] = field(default_factory=dict)  # circuits of exactly so many edges
    threshold: float | None = None  # in the method's own unit
    select: Selection = "top"
    seed: int = 0
    checkpoint: Checkpoint = field(default_factory=Checkpoint)  # where a long search saves its state, if anywhere

    @property
    def model(self) -> Model:
        """The setting's model."""
        return self.setting.model

    @property
    def pairs(self) -> Pairs:
        """The setting's pairs."""
        return self.setting.pairs

    @property
    def graph(self) -> Graph:
        """The model's graph."""
        return self.setting.graph

    @property
    def single_directions(self) -> tuple[Direction, ...]:
        """List the single directions, ns first, that the problem's directions consist of."""
        both: tuple[Direction, ...] = ("ns", "dn")
        needed = {single for direction in self.directions for single in single_directions_of(direction)}
        return tuple(single for single in both if single in needed)

    def only(self, *directions: SearchDirection) -> Problem:
        """Return the same problem for some of its directions.

        Args:
            *directions: Some of the problem's.

        Returns:
            A problem with the sizes of these directions.
        """
        sizes = {direction: self.sizes[direction] for direction in directions} if self.sizes else {}
        return replace(self, directions=directions, sizes=sizes)

    def with_sizes(self, sizes: Mapping[SearchDirection, tuple[int, ...]]) -> Problem:
        """Return the same problem for other sizes.

        Args:
            sizes: For each of its directions.

        Returns:
            A problem without a threshold.
        """
        return replace(self, sizes=sizes, threshold=None)

    def for_part(self, part: object) -> Problem:
        """Return the same problem with the checkpoint of one part of the search.

        Args:
            part: One of `Method.parts`; None is the whole search.

        Returns:
            A problem whose checkpoint no other part uses.
        """
        return self if part is None else replace(self, checkpoint=self.checkpoint.part(str(part)))


def single_directions_of(direction: SearchDirection) -> tuple[Direction, ...]:
    """Return the single directions that a direction consists of: itself, or both."""
    return ("ns", "dn") if direction == "ns+dn" else (direction,)


@dataclass(frozen=True, eq=False)
class Finding:
    """One circuit that a method found, before it gets its provenance."""

    mask: Tensor  # [edge] of bool
    scores: Tensor  # [edge]; the larger |score|, the more important; signed ones are positive where an edge helps
    notes: Mapping[str, Any] = field(default_factory=dict)  # plain data: counts, divergences


Findings = Mapping[SearchDirection, Sequence[Finding]]  # for each direction one per size, or one for the threshold


@dataclass(frozen=True)
class Work:
    """What a search takes besides the weights, for a forecast."""

    runs: int  # bytes of outputs and activations of the examples that are in memory at a time
    buffers: int  # bytes of sums, masks, optimiser state and chains
    operations: float
    moved: float  # bytes
    micro_batch: int
    micro_batches: int
    rough_f: float | None = None  # plain forward passes by a rule of thumb, where operations cannot be counted


@dataclass(frozen=True)
class Method(ABC):
    """A way of finding circuits, bound to its parameters.

    Subclass it as a frozen dataclass: fields are parameters, each with a default, and class attributes say what the
    method is. Only `search` has to be written. The name is that of the class unless the class says another.
    """

    name: ClassVar[str]
    title: ClassVar[str]  # for tables and figures; by default the name
    summary: ClassVar[str] = ""  # one line for `gatewise methods`
    version: ClassVar[str] = "1"  # raise it when results change: it is part of the key under which they are stored
    directed: ClassVar[bool] = True  # False: the method has no direction, and gates cannot be labelled by it
    together: ClassVar[bool] = False  # True: directions share work, so that one search answers for all of them
    # True: one ranking of all edges serves all sizes. It is searched and stored once, whatever sizes are asked for, and
    # circuits are cut from it by |score|.
    ranks_once: ClassVar[bool] = False
    additive: ClassVar[bool] = False  # True: scores are means over examples
    scores_examples: ClassVar[bool] = False  # True: `score_batch` scores edges on each example alone
    seeded: ClassVar[bool] = False  # True: trained from random draws, so that another seed finds another circuit
    threshold_meaning: ClassVar[str] = ""  # unit of `threshold`
    saves_parts: ClassVar[bool] = False  # True: parts save their state in the checkpoint of the problem they are given

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "name" not in vars(cls):
            cls.name = cls.__name__
        if "title" not in vars(cls):
            cls.title = cls.name

    def __post_init__(self) -> None:
        """Check the types of the parameters. A subclass that checks more calls this first."""
        for name, value in self.parse(vars(self)).items():
            object.__setattr__(self, name, value)

    @abstractmethod
    def search(self, problem: Problem) -> Findings:
        """Find the circuits of a problem in this process.

        Args:
            problem: A setting, and the directions and sizes, or the threshold, that are asked for.

        Returns:
            For each direction one finding per size, in the order of `problem.sizes`, or one for the threshold.
        """

    def check(self, problem: Problem) -> None:
        """Refuse what the method cannot do, before the work.

        Args:
            problem: What is asked.

        Raises:
            GatewiseError: It cannot be done.
        """
        return

    def doubts(self, circuit: Circuit) -> Sequence[str]:
        """Say what makes a circuit doubtful that the method found, by its provenance: a sentence for each reason.

        Args:
            circuit: With the notes of its search.

        Returns:
            Sentences that follow "the ns circuit of 100 edges "; they are warned of.
        """
        return ()

    def for_report(self: _AnyMethod, faithfulness: float | None) -> _AnyMethod:
        """Return the method with what is enough for a report, where several searches have to be quick.

        Args:
            faithfulness: What is asked of the circuit; None if its size is.

        Returns:
            By default the method as it is.
        """
        return self

    def forecast(self, problem: Problem) -> Work | None:
        """Count what a search takes.

        Args:
            problem: With a model on the meta device.

        Returns:
            Memory and operations; None if they are not known: then only the two runs are counted.
        """
        return None

    def threshold_for(self, setting: Setting, direction: SearchDirection, share: float) -> tuple[Method, float]:
        """Return the method and the threshold with which an edge counts if it carries this share of the effect.

        Args:
            setting: Model and pairs whose effect is meant: the difference between the two runs.
            direction: Of the search.
            share: Of the effect, from 0 to 1.

        Returns:
            The method to search with, some of whose parameters may differ, and its threshold.
        """
        raise GatewiseError(f"{self.name} does not say which threshold means a share of the effect; give a threshold.")

    def score_batch(self, problem: Problem, batch: Batch) -> Tensor:
        """Score edges on each example of a batch alone: the mean over all examples is the method's score.

        Args:
            problem: With one direction.
            batch: Some of its examples.

        Returns:
            On the CPU. [example, edge]

        Raises:
            GatewiseError: The method has no scores of single examples.
        """
        raise GatewiseError(
            f"{self.name} does not score single examples: it searches on all of them at once. Use 'eap', 'eap-ig' or "
            f"'exact' where scores of examples are needed."
        )

    # One search in parts, which workers do in any order with the result of one process. By default it is one part.

    def parts(self, problem: Problem) -> Sequence[Any]:
        """Name the parts of a search.

        Args:
            problem: What is asked.

        Returns:
            Plain values, the same wherever they are asked for; None is the whole search.
        """
        return (None,)

    def search_part(self, problem: Problem, part: Any) -> Any:
        """Do one part of a search.

        Args:
            problem: What is asked, with a checkpoint of the part's own.
            part: One of `parts`.

        Returns:
            What `join_parts` needs of it.
        """
        return self.search(problem)

    def join_parts(self, problem: Problem, outcomes: Mapping[Any, Any]) -> Findings:
        """Put together what the parts gave.

        Args:
            problem: What is asked.
            outcomes: What each part gave, in any order.

        Returns:
            What `search` returns.
        """
        findings: Findings = outcomes[None]
        return findings

    def parse(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Check values of parameters, or texts that mean them.

        Args:
            values: By the parameter's name, as `--set`, a grid or a preset gives them.

        Returns:
            The values, of the types that the fields have.

        Raises:
            GatewiseError: A name is not that of a parameter, or a value not of its type.
        """
        known = parameters_of(self)
        for name in values:
            if name not in known:
                others = f"its parameters are {', '.join(known)}" if known else "it has none"
                raise GatewiseError(f"{self.name} has no parameter {name!r};{suggestion(name, known)} {others}.")
        return {name: known[name].parse(value) for name, value in values.items()}

    def with_parameters(self: _AnyMethod, values: Mapping[str, Any]) -> _AnyMethod:
        """Return the same method with other values of some parameters.

        Args:
            values: As for `parse`, which checks them.

        Returns:
            A new method; this one does not change.
        """
        return replace(self, **self.parse(values))


def ranked(problem: Problem, scores: Mapping[SearchDirection, Tensor]) -> dict[SearchDirection, list[Finding]]:
    """Make findings of one score per edge, cut by |score| at every size or at the threshold.

    Args:
        problem: What was asked.
        scores: For each of its directions. [edge]

    Returns:
        What `Method.search` returns.
    """
    findings: dict[SearchDirection, list[Finding]] = {}
    for direction in problem.directions:
        strength = scores[direction].abs()
        if problem.threshold is not None:
            masks = [strength >= problem.threshold]
        else:
            masks = select_each(problem.graph, strength, problem.sizes[direction], problem.select)
        findings[direction] = [Finding(mask, scores[direction]) for mask in masks]
    return findings


def metric_of_share(setting: Setting, direction: SearchDirection, share: float) -> float:
    """Return this share of the metric's difference between the runs; of both directions the sum, as their scores."""
    clean, corrupted = (setting.value.value(setting.last_logits(side), setting.pairs).mean() for side in SIDES)
    return share * abs(float(clean - corrupted)) * len(single_directions_of(direction))


def kl_of_share(setting: Setting, direction: SearchDirection, share: float) -> float:
    """Return the KL of an edge that carries this share of the difference between the runs."""
    clean, corrupted = (log_probabilities(setting.last_logits(side)) for side in SIDES)
    between = {"ns": kl_divergence(clean, corrupted), "dn": kl_divergence(corrupted, clean)}
    # KL is quadratic near its reference: half of the difference costs a quarter of the KL.
    return share**2 * sum(float(between[single].mean()) for single in single_directions_of(direction))
