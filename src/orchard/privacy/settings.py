"""The table `[privacy]` of an experiment."""

from pydantic import Field, model_validator

from orchard.settings import Settings


class Privacy(Settings):
    """Record-level differential privacy: what is uploaded says little about any one record of a client.

    Either ε is given, and each client's noise follows from its own number of samples; or the noise is, and ε follows.
    """

    epsilon: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, description="ε of every client over the whole run, at most"
    )
    delta: float = Field(default=1e-5, gt=0, lt=1, description="δ; far below 1/n of the smallest client")
    noise_multiplier: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, description="σ: the noise on a batch's gradient, in units of clip"
    )
    clip: float = Field(
        default=1.0, gt=0, allow_inf_nan=False, description="C, the largest norm of one sample's gradient"
    )

    def __str__(self) -> str:
        """Return what was set, in a few words."""
        if self.epsilon is not None:
            return f"ε = {self.epsilon:g} at δ = {self.delta:g} for every client"
        return f"noise of {self.noise_multiplier:g} times the clipping norm"

    @model_validator(mode="after")
    def _one_of_two(self) -> "Privacy":
        if (self.epsilon is None) == (self.noise_multiplier is None):
            raise ValueError("epsilon: set either this, with delta, or noise_multiplier")
        return self
