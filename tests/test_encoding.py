"""Rows of a table as numbers: features, moments that can be merged, and scaling."""

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.datasets import load_diabetes
from sklearn.preprocessing import StandardScaler

from orchard.data.tables.encoding import FeatureColumn, Schema, encode, make_schema
from orchard.data.tables.reading import as_table
from orchard.data.tables.scaling import Moments, Scaling, merge
from orchard.data.tables.settings import TableSettings
from orchard.errors import UserError
from orchard.settings import validated

NAN = float("nan")
SETTINGS = TableSettings(target="ill")
PATIENTS = as_table(
    pd.DataFrame(
        {
            "age": [63, 41, 58],
            "sex": ["m", "f", None],
            "pressure": [145.5, None, 120],
            "smoker": [True, False, True],
            "ill": [1, 0, 1],
        }
    ),
    "patients.csv",
)
FEATURES = ["age", "sex = f", "sex = m", "sex is missing", "pressure", "pressure is missing", "smoker"]
ENCODED = [
    [63, 0, 1, 0, 145.5, 0, 1],
    [41, 1, 0, 0, NAN, 1, 0],
    [58, 0, 0, 1, 120, 0, 1],
]


def numbers(*names: str) -> Schema:
    """The schema of a table of numbers."""
    return Schema(columns=tuple(FeatureColumn(name=name, marks_missing=False) for name in names), targets=("y",))


def column(*values: float) -> NDArray[np.float32]:
    """One feature."""
    return np.array(values, np.float32)[:, None]


# --- features


def test_rows_become_numbers() -> None:
    schema = make_schema(PATIENTS, SETTINGS)
    assert schema.features() == FEATURES
    assert schema.are_numbers().tolist() == [True, False, False, False, True, False, True]
    rows = encode(PATIENTS, schema, "patients.csv")
    assert rows.dtype == np.float32
    assert rows.flags.c_contiguous
    np.testing.assert_array_equal(rows, ENCODED)


def test_a_schema_is_kept_as_json() -> None:
    schema = make_schema(PATIENTS, SETTINGS)
    plain = json.loads(json.dumps(schema.model_dump(mode="json")))
    assert plain["columns"][1] == {"name": "sex", "levels": ["f", "m"], "marks_missing": True}
    assert validated(Schema, plain) == schema
    with pytest.raises(UserError, match=r"columns\.0\.level: unknown key; did you mean 'levels'\?"):
        validated(Schema, {"columns": [{"name": "a", "level": []}], "targets": []})


def test_sites_that_write_the_columns_out_have_the_same_features() -> None:
    settings = SETTINGS.changed(columns={"pain": ["3", "1.0", "2"], "age": "number"})
    north = as_table(pd.DataFrame({"age": [63, 41], "pain": [1, 2], "ill": [0, 1]}), "north")
    south = as_table(
        pd.DataFrame({"ill": [1, 1], "pain": ["3", None], "age": [None, " 50 "], "ward": ["x", "x"]}), "south"
    )
    schema = make_schema(north, settings)
    assert schema == make_schema(south, settings)
    assert schema.features() == ["pain = 3", "pain = 1", "pain = 2", "pain is missing", "age", "age is missing"]
    np.testing.assert_array_equal(encode(north, schema, "north"), [[0, 1, 0, 0, 63, 0], [0, 0, 1, 0, 41, 0]])
    np.testing.assert_array_equal(encode(south, schema, "south"), [[1, 0, 0, 0, NAN, 1], [0, 0, 0, 1, 50, 0]])


@pytest.mark.parametrize("values", [[1, 2, 1], [1.0, 2.0, 1.0], ["1", "2.0", "1 "], pd.Categorical([1, 2, 1])])
def test_levels_match_however_numbers_are_written(values: Any) -> None:
    frame = as_table(pd.DataFrame({"pain": values, "ill": [0, 1, 1]}), "table")
    schema = make_schema(frame, SETTINGS.changed(columns={"pain": ["1", "2"]}))
    assert encode(frame, schema, "table").tolist() == [[1, 0, 0], [0, 1, 0], [1, 0, 0]]


def test_truth_values_are_levels_whether_or_not_some_are_missing() -> None:
    settings = SETTINGS.changed(columns={"smoker": ["True", "False"]})
    for values, expected in (([True, False], [[1, 0, 0], [0, 1, 0]]), ([None, False], [[0, 0, 1], [0, 1, 0]])):
        frame = as_table(pd.DataFrame({"smoker": values, "ill": [0, 1]}), "table")
        assert encode(frame, make_schema(frame, settings), "table").tolist() == expected


def test_an_unknown_level_is_refused_in_training_and_nothing_in_prediction() -> None:
    schema = make_schema(PATIENTS, SETTINGS)
    other = PATIENTS.assign(sex=["m", "f", "x"])
    with pytest.raises(UserError) as refusal:
        encode(other, schema, "south")
    assert str(refusal.value) == "south: row 3: 'sex' is 'x', which is none of its levels: f, m"
    assert encode(other, schema, "south", predicting=True)[2, 1:4].tolist() == [0, 0, 0]


def test_rows_to_be_predicted_need_no_target_and_may_lack_values_anywhere() -> None:
    schema = make_schema(PATIENTS, SETTINGS)
    new = as_table(pd.DataFrame({"smoker": [None], "pressure": [None], "age": ["?"], "sex": ["?"]}), "new")
    np.testing.assert_array_equal(encode(new, schema, "new", predicting=True), [[NAN, 0, 0, 1, NAN, 1, NAN]])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"age": ["63", "old", "58"]}, "south: row 2: 'age' is 'old', not a number"),
        ({"age": [63, np.inf, 58]}, "south: row 2: 'age' is infinite or too large"),
        ({"age": [63, 41, -1e39]}, "south: row 3: 'age' is infinite or too large"),
        ({"age": pd.to_datetime(["2024-01-31"] * 3)}, "south: 'age' holds dates"),
        ({"sex": pd.to_datetime(["2024-01-31"] * 3)}, "south: 'sex' holds dates"),
        ({"age": [[1], [2], [3]]}, "south: 'age' holds values of type list"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_its_row(changes: dict[str, Any], message: str) -> None:
    frame = as_table(PATIENTS.assign(**changes), "south")
    with pytest.raises(UserError) as refusal:
        encode(frame, make_schema(PATIENTS, SETTINGS), "south")
    assert str(refusal.value) == message


def test_rows_keep_their_numbers_when_a_table_is_divided() -> None:
    frame = as_table(PATIENTS.assign(age=["63", "41", "old"]), "patients.csv").iloc[[0, 2]]
    with pytest.raises(UserError, match=r"patients\.csv: row 3: 'age' is 'old', not a number"):
        encode(frame, make_schema(PATIENTS, SETTINGS), "patients.csv")


def test_a_column_that_lacks_is_refused_with_the_nearest() -> None:
    with pytest.raises(UserError, match=r"south: there is no column 'pressure'; did you mean 'presure'\?"):
        encode(PATIENTS.rename(columns={"pressure": "presure"}), make_schema(PATIENTS, SETTINGS), "south")


def test_two_features_of_one_name_are_refused() -> None:
    frame = as_table(pd.DataFrame({"a": [1, None, 2], "a is missing": [1, 2, 3], "ill": [0, 1, 0]}), "table")
    with pytest.raises(UserError, match="table: columns: two features are called 'a is missing'; rename a column"):
        make_schema(frame, SETTINGS)


VALUES = st.tuples(
    st.none() | st.floats(-1e6, 1e6) | st.integers(-1000, 1000),
    st.sampled_from(["m", "f", " f ", None, "NA"]),
    st.none() | st.booleans(),
)


@given(st.lists(VALUES, min_size=1, max_size=20))
def test_encoding_one_row_at_a_time_is_encoding_all(values: list[tuple[Any, ...]]) -> None:
    settings = SETTINGS.changed(columns={"age": "number", "sex": ["f", "m"], "smoker": "number"})
    frame = pd.DataFrame(values, columns=["age", "sex", "smoker"]).assign(ill=0)
    schema = make_schema(frame, settings)
    whole = encode(as_table(frame, "table"), schema, "table")
    single = [encode(as_table(frame.iloc[[k]], "table"), schema, "table") for k in range(len(frame))]
    np.testing.assert_array_equal(whole, np.concatenate(single))


# --- scaling


def test_numbers_are_standardised_and_what_is_missing_becomes_the_mean() -> None:
    schema = make_schema(PATIENTS, SETTINGS)
    rows = encode(PATIENTS, schema, "patients.csv")
    before = rows.copy()
    moments = Moments.of(rows, schema)
    assert moments.counts == (3, 2, 3)
    np.testing.assert_allclose(moments.means, [54, 132.75, 2 / 3])
    np.testing.assert_allclose(moments.squares, [9**2 + 13**2 + 4**2, 2 * 12.75**2, 2 / 3])
    scaled = Scaling.of(moments, schema).apply(rows)
    assert scaled.dtype == np.float32
    np.testing.assert_allclose(scaled[:, 0], (np.array([63, 41, 58]) - 54) / np.sqrt(266 / 3), rtol=1e-6)
    np.testing.assert_allclose(scaled[:, 4], [1, 0, -1], rtol=1e-6)
    np.testing.assert_array_equal(scaled[:, [1, 2, 3, 5]], rows[:, [1, 2, 3, 5]])
    np.testing.assert_array_equal(rows, before)


@pytest.mark.parametrize("values", [(NAN, NAN, NAN), (0.1, 0.1, 0.1), (0.1, NAN, 0.1), (1e30,), ()])
def test_a_number_that_is_constant_or_always_missing_becomes_zero(values: tuple[float, ...]) -> None:
    moments = Moments.of(column(*values), numbers("a"))
    for some in (moments, merge([moments] * 3)):
        scaling = Scaling.of(some, numbers("a"))
        assert scaling.deviations == (1,)
        assert scaling.apply(column(*values)).tolist() == [[0]] * len(values)


def test_large_numbers_that_lie_close_together_keep_their_digits() -> None:
    rows = column(*[1e6 + 1, 1e6 - 1] * 500)
    parts = [Moments.of(part, numbers("a")) for part in np.array_split(rows, 7)]
    assert Moments.of(rows, numbers("a")) == Moments(counts=(1000,), means=(1e6,), squares=(1000.0,))
    assert merge(parts).squares[0] == pytest.approx(1000, rel=1e-12)
    assert set(Scaling.of(merge(parts), numbers("a")).apply(rows).flatten().tolist()) == {-1, 1}


def test_own_and_shared_scaling_differ_by_where_moments_come_from() -> None:
    north, south, schema = column(0, 2), column(10, 14), numbers("a")
    own = Scaling.of(Moments.of(south, schema), schema)
    shared = Scaling.of(merge([Moments.of(north, schema), Moments.of(south, schema)]), schema)
    assert (own.means, own.deviations) == ((12,), (2,))
    assert shared.means == (6.5,)
    assert shared.deviations[0] == pytest.approx(np.std([0, 2, 10, 14]))


def test_scaling_agrees_with_scikit_learn() -> None:
    frame = as_table(load_diabetes(as_frame=True, scaled=False).frame, "diabetes")
    schema = make_schema(frame, TableSettings(target="target"))
    rows = encode(frame, schema, "diabetes")
    scaled = Scaling.of(Moments.of(rows, schema), schema).apply(rows)
    np.testing.assert_allclose(scaled, StandardScaler().fit_transform(rows.astype(np.float64)), atol=1e-6)


def test_moments_and_scaling_are_kept_as_json() -> None:
    schema = make_schema(PATIENTS, SETTINGS)
    moments = Moments.of(encode(PATIENTS, schema, "table"), schema)
    scaling = Scaling.of(moments, schema)
    assert validated(Moments, json.loads(moments.model_dump_json())) == moments
    assert validated(Scaling, json.loads(scaling.model_dump_json())) == scaling


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (Moments, {"counts": [-1], "means": [0], "squares": [0]}, "counts.0 = -1: input should be greater than"),
        (Moments, {"counts": [1], "means": [NAN], "squares": [0]}, "means.0 = nan: input should be a finite number"),
        (Moments, {"counts": [1], "means": [0], "squares": [-1]}, "squares.0 = -1: input should be greater than"),
        (Moments, {"counts": [1], "means": [0, 1], "squares": [0]}, "means: 2 for 1 counts and 1 squares"),
        (Scaling, {"means": [0], "deviations": [0]}, "deviations.0 = 0: input should be greater than 0"),
        (Scaling, {"means": [0], "deviations": []}, "means: 1 for 0 deviations"),
    ],
)
def test_moments_that_cannot_be_are_refused(kind: Any, values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as refusal:
        validated(kind, values)
    assert str(refusal.value).startswith(message)


def test_what_belongs_to_another_table_is_refused() -> None:
    one, two = Moments.of(column(1, 2), numbers("a")), Moments.of(np.ones((2, 2), np.float32), numbers("a", "b"))
    with pytest.raises(UserError, match=r"scaling: sites count \[1, 2\] numbers; all need the same columns"):
        merge([one, two])
    with pytest.raises(UserError, match="scaling: 2 moments, but 1 columns are numbers"):
        Scaling.of(two, numbers("a"))
    with pytest.raises(UserError, match="scaling: has 1 features, but rows have 2"):
        Scaling.of(one, numbers("a")).apply(np.ones((2, 2), np.float32))


CELLS = st.floats(-1e4, 1e4, width=32) | st.just(NAN)
TABLES = st.integers(1, 3).flatmap(lambda k: st.lists(st.lists(CELLS, min_size=k, max_size=k), min_size=1, max_size=30))


@given(TABLES, st.lists(st.integers(0, 30), max_size=4))
def test_merged_moments_of_any_split_are_those_of_the_whole(values: list[list[float]], cuts: list[int]) -> None:
    rows = np.array(values, np.float32)
    schema = numbers(*"abc"[: rows.shape[1]])
    whole = Moments.of(rows, schema)
    merged = merge([Moments.of(part, schema) for part in np.split(rows, sorted(min(cut, len(rows)) for cut in cuts))])
    assert merged.counts == whole.counts
    np.testing.assert_allclose(merged.means, whole.means, atol=1e-9)
    np.testing.assert_allclose(merged.squares, whole.squares, rtol=1e-9, atol=1e-9)


@given(TABLES)
def test_standardised_numbers_have_mean_0_and_deviation_1(values: list[list[float]]) -> None:
    rows = np.array(values, np.float32)
    schema = numbers(*"abc"[: rows.shape[1]])
    scaled = Scaling.of(Moments.of(rows, schema), schema).apply(rows).astype(np.float64)
    assert np.isfinite(scaled).all()
    for k in range(rows.shape[1]):
        present = scaled[~np.isnan(rows[:, k]), k]
        if len(set(rows[~np.isnan(rows[:, k]), k].tolist())) > 1:
            assert present.mean() == pytest.approx(0, abs=1e-5)
            assert present.std() == pytest.approx(1, abs=1e-5)
        else:
            assert not present.any()
