"""FedBN: all layers are averaged but those that normalise.

X. Li, M. Jiang, X. Zhang, M. Kamp, Q. Dou, "FedBN: Federated Learning on Non-IID Features via Local Batch
    Normalization", ICLR 2021, https://arxiv.org/abs/2102.07623

    (w_i, γ_i, β_i) ← E epochs of SGD from (w, γ_i, β_i);   w ← Σ_i (n_i/n)·w_i

γ_i and β_i are the parameters of all normalisation layers, w is everything else. w_i is uploaded; γ_i, β_i and the
statistics (running means and variances) never leave the client. The paper's FedAvg averages the statistics too. Here
they stay with their client in every method, so FedAvg-local differs from this by γ and β alone, and not at all if the
model has no such layer.
"""

from typing import ClassVar, Literal

from orchard.core.federation import Federation
from orchard.core.vector import Part
from orchard.methods.fedper import Partial


class FedBN(Partial):
    """FedAvg, but normalisation layers stay with their client, parameters and statistics."""

    part: ClassVar[str] = "model"
    travels: ClassVar[str] = "a model without its normalisation layers, each way"
    keeps: ClassVar[str] = "its normalisation layers"
    name: Literal["fedbn"] = "fedbn"

    def shared(self, federation: Federation) -> Part:
        """Return the parameters of all layers that do not normalise."""
        return federation.layout.rest(federation.normalisation)
