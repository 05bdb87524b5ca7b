"""What every party knows before the first round, and the initial models that anyone can rebuild from it."""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median_low

from torch import Tensor

from orchard.core.models import build, normalisation
from orchard.core.vector import Layout, Network, Part
from orchard.data.tables.scaling import Moments
from orchard.experiment import Experiment
from orchard.method import Traffic
from orchard.randomness import derived_seed
from orchard.tasks.task import Task


@dataclass(frozen=True)
class Federation:
    """The experiment, and what the clients bring to it."""

    experiment: Experiment
    samples: tuple[int, ...]
    """n_j, the training samples of each client."""
    shape: tuple[int, ...]
    """Of one sample."""
    task: Task
    device: str = "cpu"
    moments: Moments | None = None
    """Count, mean and squares of all sites' numbers together, if separate sites standardise tables by these."""
    # Initial models are built once and shared by all who hold them.
    _initial_models: "weakref.WeakValueDictionary[tuple[str, *tuple[int, ...]], Tensor]" = field(
        default_factory=weakref.WeakValueDictionary, init=False, repr=False, compare=False
    )

    @property
    def clients(self) -> int:
        """N."""
        return len(self.samples)

    @property
    def shares(self) -> list[float]:
        """n_j / n: each client's share of all training samples."""
        counted = capped(self.samples) if self.experiment.robust else self.samples
        return [n / sum(counted) for n in counted]

    @cached_property
    def layout(self) -> Layout:
        """Where each parameter lies in a model's vector."""
        return self.network().layout

    @cached_property
    def normalisation(self) -> Part:
        """The parameters of normalisation layers."""
        return normalisation(self.network())

    @property
    def parameters(self) -> int:
        """The length of a model's vector."""
        return len(self.layout)

    @cached_property
    def traffic(self) -> Traffic:
        """The vectors that the method lets travel."""
        traffic = self.experiment.method.traffic(self)
        if not isinstance(traffic, Traffic):
            kind = type(self.experiment.method).__name__
            raise TypeError(f"{kind}.traffic() must return Traffic(down={{…}}, up={{…}}), not {type(traffic).__name__}")
        return traffic

    def network(self) -> Network:
        """Build a network to run models through; all but its vector is the same at all clients."""
        return self._built("network")

    def initial_model(self) -> Tensor:
        """Return the first model of methods in which all clients start from the same one."""
        return self._initial("model")

    def initial_core(self, client: int) -> Tensor:
        """Return the first core model of a client, a function of (seed, client)."""
        return self._initial("core", client)

    def _initial(self, purpose: str, *numbers: int) -> Tensor:
        vector = self._initial_models.get((purpose, *numbers))
        if vector is None:
            vector = self._initial_models[purpose, *numbers] = self._built(purpose, *numbers).vector
        return vector

    def _built(self, purpose: str, *numbers: int) -> Network:
        seed = derived_seed(self.experiment.seed, purpose, *numbers)
        return Network(build(self.experiment.model, self.shape, self.task, seed), self.device, self.task)


def capped(samples: Sequence[int]) -> list[int]:
    """Return numbers of samples, which clients only claim: none counts for more than the lower median of all."""
    most = median_low(samples)
    return [min(n, most) for n in samples]
