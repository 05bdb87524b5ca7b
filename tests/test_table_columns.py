"""What the columns of a table are: features and their kinds, targets, and sites."""

import subprocess
import sys
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_diabetes, load_iris

from orchard.data.tables.kinds import ColumnDescription, describe_columns, find_columns
from orchard.data.tables.reading import as_table
from orchard.data.tables.settings import TableSettings, level_name
from orchard.data.tables.targets import read_targets, rows_by_site
from orchard.errors import DataWarning, UserError
from orchard.settings import validated

PATIENTS = {
    "age": [63, 41, 58, 70],
    "sex": ["m", "f", "f", None],
    "pressure": [145.5, None, 120, 130],
    "smoker": [True, False, None, True],
    "hospital": ["north", "south", "north", "south"],
    "ill": [1, 0, 1, 1],
}


def table(**columns: Any) -> pd.DataFrame:
    """A table with these columns after x, a number, and y, a class."""
    rows = np.arange(len(next(iter(columns.values()))))
    return as_table(pd.DataFrame({"x": rows / 2, "y": rows % 2, **columns}), "table")


# --- settings


def test_settings_need_neither_pandas_nor_pytorch() -> None:
    modules = ("settings", "reading", "columns", "kinds", "targets", "encoding", "scaling")
    imports = "; ".join(f"import orchard.data.tables.{module}" for module in modules)
    code = f"import sys; {imports}; print([name for name in ('pandas', 'pyarrow', 'torch') if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


def test_settings_as_people_write_them() -> None:
    written = {
        "target": ["ill", "dead"],
        "site": "hospital",
        "drop": ["id"],
        "scaling": "shared",
        "columns": {"age": "number", "sex": ["f", "m"]},
    }
    settings = validated(TableSettings, written)
    assert settings.targets == ["ill", "dead"]
    assert settings.model_dump(mode="json") == written
    assert TableSettings(target="ill").model_dump() == {
        "target": "ill",
        "site": None,
        "drop": [],
        "scaling": "own",
        "columns": None,
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": 3}, "target = 3: expected the name of a column, or a list of names"),
        ({"target": ["ill", 3]}, "target = ['ill', 3]: expected the name of a column, or a list of names"),
        ({"target": []}, "target = []: name at least one column"),
        ({"target": " "}, "target = ' ': the name of a column is empty"),
        ({"target": ["ill", "ill"]}, "target: names 'ill' twice"),
        ({"drop": ["id", "id"]}, "drop: names 'id' twice"),
        ({"drop": ["ill"]}, "drop: 'ill' is also in target; a column has one use"),
        ({"site": "ill"}, "site: 'ill' is also in target; a column has one use"),
        ({"site": "ward", "drop": ["ward"]}, "drop: 'ward' is also in site; a column has one use"),
        ({"columns": {"ill": "number"}}, "columns.ill: is also in target; a column has one use"),
        ({"site": "ward", "columns": {"ward": ["a"]}}, "columns.ward: is also in site; a column has one use"),
        ({"drop": ["id"], "columns": {"id": "number"}}, "columns.id: is also in drop; a column has one use"),
        ({"columns": {}}, "columns = {}: name at least one, or leave it out to find them from the data"),
        ({"columns": {"sex": []}}, 'columns.sex = []: name the levels, or write "number"'),
        ({"columns": {"sex": "text"}}, """columns.sex = 'text': expected "number", or a list of levels as text"""),
        ({"columns": {"sex": [0, 1]}}, """columns.sex = [0, 1]: expected "number", or a list of levels as text"""),
        ({"columns": {"sex": ["m", "f", "m"]}}, "columns.sex: names the level 'm' twice"),
        ({"columns": {"pain": ["1", "2", "1.0"]}}, "columns.pain: names the level '1' twice"),
        ({"columns": {"pain": ["1", "?"]}}, "columns.pain: the level '?' stands for a missing value; leave it out"),
        (
            {"columns": {"code": [str(k) for k in range(101)]}},
            "columns.code: has 101 levels, at most 100 are allowed; drop the column",
        ),
        ({"scaling": "none"}, "scaling = 'none': input should be 'own' or 'shared'"),
        ({"targets": "ill"}, "targets: unknown key; did you mean 'target'?"),
    ],
)
def test_contradictions_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as refusal:
        validated(TableSettings, {"target": "ill", **changes})
    assert str(refusal.value) == message


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ((1, 1.0, "1", " 1.0", "01", "1e0", np.float32(1), np.int8(1)), "1"),
        ((0.1, "0.1", np.float32(0.1), ".1"), "0.1"),
        ((0, -0.0, "-0"), "0"),
        ((True, np.bool_(True)), "True"),
        ((" 3+ ",), "3+"),
        (("1" * 50,), "1" * 50),
    ],
)
def test_a_level_has_one_name_however_it_is_written(values: tuple[object, ...], name: str) -> None:
    assert {level_name(value) for value in values} == {name}


# --- features


def test_numbers_and_categories_are_found() -> None:
    settings = TableSettings(target="ill", site="hospital", drop=["smoker"])
    found = find_columns(as_table(pd.DataFrame(PATIENTS), "table"), settings)
    assert found == {"age": "number", "sex": ["f", "m"], "pressure": "number"}
    # What is found can be written into the settings of all sites.
    assert find_columns(pd.DataFrame(PATIENTS), settings.changed(columns=found)) == found


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 2, 3], "number"),
        ([0.5, None, 2], "number"),
        ([True, False, None], "number"),
        (["1", "2.5", "NA"], "number"),
        (["1e3", "-2", ".5"], "number"),
        ([1, 1, None], "number"),  # a box that is ticked or not
        (["yes", None, "yes"], ["yes"]),
        (["b", "a", "b"], ["a", "b"]),
        (["none", "1", "3+"], ["1", "3+", "none"]),
        (pd.Categorical([2, 10, 2]), ["2", "10"]),  # somebody said that these numbers are categories
    ],
)
def test_the_kind_of_a_column(values: Any, kind: Any) -> None:
    assert find_columns(table(column=values), TableSettings(target="y"))["column"] == kind


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([None, "", "?"], "all values are missing"),
        ([4, 4.0, "4"], "every row holds 4"),
        (["a", "a ", "a"], "every row holds 'a'"),
        (
            ["12", "13", "high"],
            "most values are numbers, but row 3 holds 'high'; correct it, or list the levels in columns",
        ),
        (
            ["<1", "13", "14"],
            "most values are numbers, but row 1 holds '<1'; correct it, or list the levels in columns",
        ),
        (["2024-01-31", "2024-02-01", None], "it holds dates"),
        (["31.1.2024", "1.2.24 10:30", "1/2/2024"], "it holds dates"),
        (pd.to_datetime(["2024-01-31", "2024-02-01", "NaT"]), "it holds dates"),
        (pd.to_timedelta([1, 2, 3], "h"), "it holds durations"),
        ([[1], [2], [3]], "it holds values of type list"),
        ([1j, 2j, 3j], "it holds complex numbers"),
        ([f"P{k}" for k in range(50)], "its text is different in nearly every row, as that of identifiers"),
        ([f"code {k % 101}" for k in range(300)], "it has 101 levels, at most 100 are allowed"),
    ],
)
def test_a_column_that_cannot_be_used_is_refused(values: Any, reason: str) -> None:
    frame = table(column=values)
    with pytest.raises(UserError) as refusal:
        find_columns(frame, TableSettings(target="y"), "patients.csv")
    assert str(refusal.value) == (
        f"patients.csv: columns cannot be used: 'column': {reason}. To leave them out: drop = ['column']"
    )
    assert find_columns(frame, TableSettings(target="y", drop=["column"])) == {"x": "number"}
    assert describe_columns(frame, TableSettings(target="y"))[2].problem == reason


def test_all_columns_that_cannot_be_used_are_said_at_once() -> None:
    frame = table(**{f"c{k}": [k] * 3 for k in range(7)})
    with pytest.raises(UserError, match=r"'c4': every row holds 4; and 2 more\. To leave.* drop = \['c0', .*'c6'\]"):
        find_columns(frame, TableSettings(target="y"))


@pytest.mark.parametrize("name", ["id", "patient_id", "PatientID", "MRN", "Unnamed: 0", "Nr.", "record key"])
def test_whole_numbers_named_like_identifiers_are_worth_a_warning(name: str) -> None:
    with pytest.warns(DataWarning, match=f"table: {name!r} looks like an identifier; if it is one, drop it"):
        find_columns(table(**{name: [101, 102, 103]}), TableSettings(target="y"))
    assert describe_columns(table(**{name: [101, 102, 103]}), TableSettings(target="y"))[2].problem


@pytest.mark.parametrize(("name", "values"), [("idea", [1, 2, 3]), ("id", [1, 2, 2]), ("id", [0.5, 1.5, 2])])
def test_other_numbers_are_worth_no_warning(name: str, values: list[float]) -> None:
    assert find_columns(table(**{name: values}), TableSettings(target="y"))[name] == "number"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": "Ill"}, "table: target: there is no column 'Ill'; did you mean 'ill'?"),
        ({"site": "hospitals"}, "table: site: there is no column 'hospitals'; did you mean 'hospital'?"),
        ({"drop": ["zzz"]}, "table: drop: there is no column 'zzz'; known: age, sex, pressure, smoker, hospital, ill"),
        ({"columns": {"agee": "number"}}, "table: columns: there is no column 'agee'; did you mean 'age'?"),
        ({"drop": ["age", "sex", "pressure", "smoker", "hospital"]}, "table: has no column to learn from besides"),
    ],
)
def test_a_column_that_does_not_exist_is_refused_with_the_nearest(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as refusal:
        find_columns(as_table(pd.DataFrame(PATIENTS), "table"), TableSettings(**{"target": "ill", **changes}))
    assert str(refusal.value).startswith(message)


def test_the_columns_are_described() -> None:
    frame = as_table(pd.DataFrame({**PATIENTS, "seen": ["2024-01-31"] * 4, "ward": [1, 1, 2, 2]}), "table")
    settings = TableSettings(target="ill", site="hospital", drop=["ward"])
    assert describe_columns(frame, settings) == [
        ColumnDescription("age", "number", 0, "41 to 70"),
        ColumnDescription("sex", "category", 1, "f, m"),
        ColumnDescription("pressure", "number", 1, "120 to 145.5"),
        ColumnDescription("smoker", "number", 1, "0 to 1"),
        ColumnDescription("hospital", "site", 0, "north, south"),
        ColumnDescription("ill", "target", 0, "0 to 1"),
        ColumnDescription("seen", "cannot be used", 0, "2024-01-31", "it holds dates"),
        ColumnDescription("ward", "dropped", 0, "1 to 2"),
    ]
    listed = settings.changed(columns={"age": ["41.0", "63", "70"], "sex": "number"}, drop=[])
    described = {column.name: column for column in describe_columns(frame, listed)}
    assert described["age"].problem == "row 3: 'age' is '58', which is none of its levels: 41, 63, 70"
    assert described["sex"].problem == "row 1: 'sex' is 'm', not a number"
    assert described["ward"].kind == "not listed"


# --- targets


@pytest.mark.parametrize(
    ("values", "kind", "classes"),
    [
        (["ill", "well", "ill"], "classes", ("ill", "well")),
        ([True, False, True], "classes", ("False", "True")),
        ([10, 2, 2], "classes", ("2", "10")),
        ([1.0, 0.0, 1.0], "classes", ("0", "1")),
        (["1", "0", "1"], "classes", ("0", "1")),
        ([0.5, 1, 2], "numbers", ()),
    ],
)
def test_what_one_target_looks_like(values: Any, kind: str, classes: tuple[str, ...]) -> None:
    targets = read_targets(table(target=values), TableSettings(target="target"), "table")
    assert (targets.kind, targets.classes, targets.ambiguous) == (kind, classes, False)


def test_labels_are_positions_in_the_classes() -> None:
    targets = read_targets(table(target=[10, 2, 5]), TableSettings(target="target"), "north")
    assert targets.labels().tolist() == [2, 0, 1]
    assert targets.labels(["5", "10", "1", "2"]).tolist() == [1, 3, 0]
    with pytest.raises(
        UserError, match="north: row 3: the target 'target' is '5', which is none of the classes: 2, 10"
    ):
        targets.labels(["2", "10"])


def test_many_whole_numbers_are_ambiguous() -> None:
    few, many = list(range(20)) * 3, list(range(21)) * 3
    assert read_targets(table(target=few), TableSettings(target="target"), "t").kind == "classes"
    targets = read_targets(table(target=many), TableSettings(target="target"), "t")
    assert (targets.kind, targets.ambiguous, len(targets.classes)) == ("numbers", True, 21)
    assert targets.numbers()[:, 0].tolist() == many == targets.labels().tolist()


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
        ([0, 1, 1], [True, False, True], "findings"),
        ([0, 1, 1], [0, 0, 0], "findings"),
        ([0, 1, 1], [0, 1, 2], "numbers"),
        ([0.5, 1, 1], [0, 1, 1], "numbers"),
    ],
)
def test_what_several_targets_look_like(first: Any, second: Any, kind: str) -> None:
    targets = read_targets(table(a=first, b=second), TableSettings(target=["b", "a"]), "table")
    assert targets.kind == kind
    assert np.array_equal(targets.numbers(), np.array([second, first], np.float32).T)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"a": [1, None, 0, None]}, "the target 'a' is missing in 2 of 4 rows (rows 2, 4); fill it in or remove them"),
        ({"a": [None] * 6 + ["x"]}, "the target 'a' is missing in 6 of 7 rows (rows 1, 2, 3, 4, 5, …); fill it in or"),
        ({"a": [12, "high", 13]}, "row 2: the target 'a' is 'high', but most are numbers; correct it"),
        ({"a": [1, np.inf, 2]}, "row 2: 'a' is infinite or too large"),
        ({"a": pd.to_datetime(["2024-01-31"] * 3)}, "the target 'a' holds dates; they cannot be predicted"),
        ({"a": ["2024-01-31"] * 3}, "the target 'a' holds dates; they cannot be predicted"),
        ({"a": [f"P{k}" for k in range(30)]}, "the target 'a' is different in nearly every row; these are no classes"),
        ({"a": [0, 1, 1], "b": ["x", "y", "y"]}, "row 1: 'b' is 'x', not a number; several targets are all 0 or 1, or"),
    ],
)
def test_a_target_that_cannot_be_predicted_is_refused(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as refusal:
        read_targets(table(**columns), TableSettings(target=list(columns)), "patients.csv")
    assert str(refusal.value).startswith(f"patients.csv: {message}")


def test_text_is_no_number_to_predict() -> None:
    targets = read_targets(table(a=["ill", "well", "ill"]), TableSettings(target="a"), "patients.csv")
    with pytest.raises(UserError, match=r"patients\.csv: row 1: 'a' is 'ill', not a number"):
        targets.numbers()


def test_real_tables() -> None:
    iris, diabetes = load_iris(as_frame=True), load_diabetes(as_frame=True, scaled=False)
    flowers = iris.frame.assign(target=iris.target_names[iris.target])
    targets = read_targets(as_table(flowers, "iris"), TableSettings(target="target"), "iris")
    assert (targets.kind, targets.classes) == ("classes", ("setosa", "versicolor", "virginica"))
    assert targets.labels().tolist() == iris.target.tolist()
    targets = read_targets(as_table(diabetes.frame, "diabetes"), TableSettings(target="target"), "diabetes")
    assert (targets.kind, targets.ambiguous, len(targets.classes)) == ("numbers", True, 214)
    assert find_columns(as_table(diabetes.frame, "diabetes"), TableSettings(target="target")) == dict.fromkeys(
        diabetes.feature_names, "number"
    )


# --- sites


def test_rows_belong_to_sites_sorted_by_name() -> None:
    found = rows_by_site(table(site=["b", "a ", "b", "a", "a", "b"]), "site")
    assert {name: rows.tolist() for name, rows in found.items()} == {"a": [1, 3, 4], "b": [0, 2, 5]}
    found = rows_by_site(table(site=[10.0, 9, 10, 9, 10, 9]), "site")
    assert {name: rows.tolist() for name, rows in found.items()} == {"9": [1, 3, 5], "10": [0, 2, 4]}
    assert list(found) == ["9", "10"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["a", None, "a", ""], "row 2: the site 'site' is missing, as in 2 of 4 rows; fill it in or remove the rows"),
        (
            ["a", "b", "a", "a"],
            "the site 'b' has 1 row; a site needs at least 3, to train, validate and test; is 'site'",
        ),
        (pd.to_datetime(["2024-01-31"] * 3), "the column of sites 'site' holds dates, not names"),
    ],
)
def test_a_bad_column_of_sites_is_refused(values: Any, message: str) -> None:
    with pytest.raises(UserError) as refusal:
        rows_by_site(table(site=values), "site", "patients.csv")
    assert str(refusal.value).startswith(f"patients.csv: {message}")


def test_the_column_of_sites_must_exist() -> None:
    with pytest.raises(UserError, match=r"table: site: there is no column 'sites'; did you mean 'site'\?"):
        rows_by_site(table(site=["a"] * 3), "sites")
