# %% [markdown]
# # A method of your own
#
# A method is a client and a server that share no object; only vectors that it declares travel. Here is one, whole: each
# client starts a round between its own model and FedAvg's average. All it needs comes from
# [`orchard.methods`](../python-methods.md).

# %%
from typing import Literal

import torch
from pydantic import Field

import orchard
from orchard.methods import Averaging, ClientContext, Download, FedAvgClient, Federation


class Halfway(Averaging):  # brings FedAvg's server, and lets "model" travel both ways
    """The parameters, checked before anything runs."""

    name: Literal["halfway"] = "halfway"
    keep: float = Field(default=0.5, ge=0, le=1, description="how much of its own model a client keeps")

    def client(self, index: int, federation: Federation) -> "HalfwayClient":
        """Make a client."""
        return HalfwayClient(self, federation)


class HalfwayClient(FedAvgClient):  # selects, trains, uploads and is evaluated as in FedAvg
    """Starts between its own model and the average."""

    def __init__(self, settings: Halfway, federation: Federation) -> None:
        super().__init__(federation)
        self.keep = settings.keep

    def receive(self, context: ClientContext, download: Download) -> None:
        """Go towards the average."""
        self.model = torch.lerp(download.vectors["model"], self.model, self.keep)


# %% [markdown]
# Its parameters are checked like all settings:

# %%
try:
    Halfway(keep=2)
except orchard.UserError as refusal:
    print(refusal)

# %% [markdown]
# It runs as any method does. How much should a client keep?

# %%
federation = {"dataset": "digits", "model": "mlp", "epochs": 2, "rounds": 5}
shares = (0.0, 0.5, 1.0)
results = {keep: orchard.run(method=Halfway(keep=keep), **federation) for keep in shares}

# %%
for keep, result in results.items():
    print(f"keep {keep}: {result.validation_selected.score:.1%}")

# %% [markdown]
# A client that keeps nothing is FedAvg's, one that keeps all trains alone. Such cases make good tests, since they must
# agree bit for bit:

# %%
alone = orchard.run(method="separate", **federation)
bool((results[1.0].scores() == alone.scores()).all())

# %%
axes = results[0.5].plot()

# %% [markdown]
# [Contributing](../../CONTRIBUTING.md#add-a-method-in-one-file) says what else a method can tell of itself, and how one
# in a package of its own is found by name.
