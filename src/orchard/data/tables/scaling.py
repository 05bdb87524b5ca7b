"""Standardise the numbers of a table: mean 0 and deviation 1 in the training part of one site, or of all together.

For all together, each site tells the count, mean and squares of every number, and no row.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, model_validator

from orchard.data.tables.encoding import Rows, Schema, encode
from orchard.data.tables.settings import Finite, Positive, Scale
from orchard.errors import UserError
from orchard.settings import Settings

if TYPE_CHECKING:
    from pandas import DataFrame

NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Moments(Settings):
    """The count, mean and sum of squared deviations from the mean of each number, without missing values.

    Sums of squares themselves would lose digits where numbers are large and close together, as years are.
    """

    model_config = ConfigDict(strict=False)  # read from JSON, which has no tuples

    counts: tuple[Annotated[int, Field(ge=0)], ...]
    means: tuple[Finite, ...]
    squares: tuple[NotNegative, ...]

    @model_validator(mode="after")
    def _same_length(self) -> Self:
        if not len(self.counts) == len(self.means) == len(self.squares):
            raise ValueError(f"means: {len(self.means)} for {len(self.counts)} counts and {len(self.squares)} squares")
        return self

    @classmethod
    def of(cls, x: Rows, schema: Schema) -> "Moments":
        """Return the moments of encoded rows."""
        numbers = x[:, schema.are_numbers()].astype(np.float64)
        present = ~np.isnan(numbers)
        counts = present.sum(0)
        # Deviations from one of the values: if all are the same, the mean is exactly that and the squares are 0.
        some = np.take_along_axis(numbers, present.argmax(0)[None], 0)[0] if len(numbers) else np.zeros(len(counts))
        some = np.nan_to_num(some)
        means = some + np.nan_to_num(numbers - some).sum(0) / counts.clip(min=1)
        squares = np.square(np.nan_to_num(numbers - means)).sum(0)
        return cls(counts=counts.tolist(), means=means.tolist(), squares=squares.tolist())


def merge(moments: Sequence[Moments]) -> Moments:
    """Return the moments of several sites' rows together, by Chan, Golub and LeVeque's formula."""
    if len({len(one.counts) for one in moments}) != 1:
        raise UserError(
            f"scaling: sites count {[len(one.counts) for one in moments]} numbers; all need the same columns"
        )
    first, *others = (np.array([one.counts, one.means, one.squares], np.float64) for one in moments)
    counts, means, squares = first
    for more, their_means, their_squares in others:
        total = (counts + more).clip(min=1)
        away = their_means - means
        means = means + away * more / total
        squares = squares + their_squares + np.square(away) * counts * more / total
        counts = counts + more
    return Moments(counts=counts.astype(np.int64).tolist(), means=means.tolist(), squares=squares.tolist())


class Scaling(Settings):
    """The mean and deviation by which each feature is standardised; 0 and 1 for features that are 0 or 1."""

    model_config = ConfigDict(strict=False)

    means: tuple[Finite, ...]
    deviations: tuple[Positive, ...]

    @model_validator(mode="after")
    def _same_length(self) -> Self:
        if len(self.means) != len(self.deviations):
            raise ValueError(f"means: {len(self.means)} for {len(self.deviations)} deviations")
        return self

    @classmethod
    def of(cls, moments: Moments, schema: Schema) -> "Scaling":
        """Return the scaling by one site's moments, or by the merged ones of all."""
        numbers = schema.are_numbers()
        if len(moments.counts) != numbers.sum():
            raise UserError(f"scaling: {len(moments.counts)} moments, but {numbers.sum()} columns are numbers")
        means, deviations = np.zeros(len(numbers)), np.ones(len(numbers))
        found = np.sqrt(np.array(moments.squares) / np.array(moments.counts).clip(min=1))
        means[numbers] = np.where(np.array(moments.counts) > 0, moments.means, 0.0)
        deviations[numbers] = np.where(found > 0, found, 1.0)
        return cls(means=tuple(means.tolist()), deviations=tuple(deviations.tolist()))

    @classmethod
    def known(cls, scale: Scale, schema: Schema) -> "Scaling":
        """Return the scaling by means and deviations that are known beforehand, by their columns' names."""
        each = [
            scale[column.name] if k == 0 and column.levels is None else (0.0, 1.0)
            for column in schema.columns
            for k, _ in enumerate(column.features)
        ]
        return cls(means=tuple(mean for mean, _ in each), deviations=tuple(deviation for _, deviation in each))

    def apply(self, x: Rows) -> Rows:
        """Return a copy of encoded rows, standardised; a missing value becomes 0, the mean."""
        if x.shape[1:] != (len(self.means),):
            raise UserError(f"scaling: has {len(self.means)} features, but rows have {x.shape[1]}")
        scaled: NDArray[np.float64] = (x.astype(np.float64) - self.means) / self.deviations
        return np.nan_to_num(scaled).astype(np.float32)


class Preparation(Settings):
    """All that it takes to turn a row of a table into what a client's model was trained on."""

    model_config = ConfigDict(strict=False)

    table: Schema
    scaling: Scaling

    def features(self, frame: "DataFrame", place: str) -> Rows:
        """Return the rows of a table as features for prediction."""
        return self.scaling.apply(encode(frame, self.table, place, predicting=True))
