"""What a method is: its parameters, the vectors that travel, and the client and server made from them.

What clients and servers do is in `orchard.core.contract`. Nothing here needs PyTorch, so that naming a method is quick.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from orchard.settings import Settings

if TYPE_CHECKING:
    from orchard.core.contract import Client, Server
    from orchard.core.federation import Federation
    from orchard.experiment import Experiment

Moment = Literal["after_training", "after_aggregation", "after_finetuning"]
"""When a client's model is evaluated: after its local training; after the round's uploads have reached everyone; after
that and a fine-tuning on local data."""


@dataclass(frozen=True)
class Traffic:
    """The vectors that may travel, to the clients and to the server: name → length."""

    down: Mapping[str, int] = field(default_factory=dict)
    up: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Queries:
    """What a client asks of its own data under privacy, in a round or in a whole run."""

    batches: int
    """Of the training data, as `run_epochs` yields them."""
    gradients: int = 1
    """Of each batch, at most."""
    train_losses: int = 0
    """Mean losses on the training data, by `context.loss`."""
    validation_losses: int = 0


class MethodSettings(Settings):
    """A method: its parameters, and the client and server made from them.

    `orchard methods` shows a subclass's docstring as what the method does, and its file's as paper and equations.
    """

    moment: ClassVar[Moment] = "after_training"
    """The evaluation that counts."""

    also_reports: ClassVar[Mapping[str, Moment]] = {}
    """Other methods whose figures a run of this one contains, and at which moment."""

    momentum: ClassVar[float] = 0.9
    """β of the local SGD, unless the experiment sets another."""

    travels: ClassVar[str] = "nothing"
    """What reaches a client and leaves it each round, in a few words."""

    keeps: ClassVar[str] = "nothing"
    """What a client remembers from round to round and never gives away, beside its data."""

    grid: ClassVar[Mapping[str, Sequence[Any]]] = {}
    """Values worth trying, by parameter: what `orchard tune` searches beside the learning rate."""

    reveals: ClassVar[str] = ""
    """What others can work out of a client's model and relationships, for `orchard site check`; empty: nothing."""

    withstands: ClassVar[bool] = False
    """Whether it has a defence against dishonest clients, for `robust = true`."""

    name: str

    def check(self, experiment: "Experiment") -> None:
        """Raise ValueError if a parameter does not fit the rest of the experiment."""

    def traffic(self, federation: "Federation") -> Traffic:
        """Declare the vectors that travel; by default nothing does."""
        return Traffic()

    def queries(self, experiment: "Experiment", samples: int, round: int) -> Queries:
        """Say what a client with so many training samples asks of its data in a round, under privacy.

        In the round after the last one it receives and fine-tunes, but does not train. A client that asks more fails.
        """
        return Queries(experiment.batches(samples) if round < experiment.rounds else 0)

    def client(self, index: int, federation: "Federation") -> "Client":
        """Make client `index`."""
        raise NotImplementedError(f"{type(self).__name__} has no method client(index, federation)")

    def server(self, federation: "Federation") -> "Server":
        """Make the server."""
        raise NotImplementedError(f"{type(self).__name__} has no method server(federation)")
