"""Reading tables: .csv and .parquet files, data frames, and everything that can be wrong with them."""

import sys
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path
from time import process_time

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet

from orchard.data.tables.encoding import encode, make_schema
from orchard.data.tables.kinds import describe_columns
from orchard.data.tables.reading import as_table, join_tables, read_table
from orchard.data.tables.settings import TableSettings
from orchard.errors import UserError

Write = Callable[[str | bytes], Path]

PATIENTS = "age,sex,pressure,ill\n63,male,145.5,yes\n41,female,,no\n"


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_file(content: str | bytes) -> Path:
        path = tmp_path / "patients.csv"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write_file


def rows(frame: pd.DataFrame) -> list[list[object]]:
    """The rows of a table, None where a value is missing."""
    return frame.astype(object).where(frame.notna(), None).to_numpy().tolist()


@pytest.mark.parametrize(
    "content",
    [
        PATIENTS,
        PATIENTS.replace(",", ";"),
        PATIENTS.replace(",", ";").replace("145.5", "145,5"),
        PATIENTS.replace(",", "\t"),
        PATIENTS.replace("\n", "\r\n"),
        PATIENTS.replace("\n", "\r"),
        PATIENTS.replace("\n", "\n\n") + "   \n",
        PATIENTS.replace(",", " , "),
        PATIENTS.replace("female", '"female"').replace("age", '"age"').replace("145.5", '"145.5"'),
        b"\xef\xbb\xbf" + PATIENTS.encode(),
        PATIENTS.encode("utf-16"),
        b"\xfe\xff" + PATIENTS.encode("utf-16-be"),
        *(PATIENTS.replace(",,", f",{word},") for word in ("NA", "NaN", "null", "None", "?", "  ", " NA ")),
    ],
)
def test_one_table_written_in_many_ways(write: Write, content: str | bytes) -> None:
    table = read_table(write(content))
    assert list(table.columns) == ["age", "sex", "pressure", "ill"]
    assert rows(table) == [[63, "male", 145.5, "yes"], [41, "female", None, "no"]]


def test_decimal_commas_need_semicolons(write: Write) -> None:
    assert rows(read_table(write("a;b;c\n1,5;2;x\n3;-0,5;y\n"))) == [[1.5, 2, "x"], [3, -0.5, "y"]]
    assert rows(read_table(write('a,b\n"1,5",2\n'))) == [["1,5", 2]]
    assert rows(read_table(write("a;b\n1,5;2\n3.5;4\n"))) == [["1,5", 2], ["3.5", 4]]  # which of them is decimal?


def test_commas_in_text_do_not_separate(write: Write) -> None:
    table = read_table(write('weight, kg;note\n70,5;"a; b"\n80,5;two\n'))
    assert list(table.columns) == ["weight, kg", "note"]
    assert rows(table) == [[70.5, "a; b"], [80.5, "two"]]


def test_a_value_stays_in_its_column_after_a_blank_line(write: Write) -> None:
    assert rows(read_table(write("a,b\r1,2\r \r,3\r"))) == [[1, 2], [None, 3]]


def test_truth_values_and_missing_ones(write: Write) -> None:
    table = read_table(write("smoker,treated\nTrue,false\nFalse,TRUE\n,true\n"))
    assert rows(table) == [[True, False], [False, True], [None, True]]


def test_nothing_is_executed(write: Write) -> None:
    assert rows(read_table(write("a,b\n=1+1,=cmd|' /C calc'!A0\n2,3\n")))[0] == ["=1+1", "=cmd|' /C calc'!A0"]


def test_a_name_is_on_one_line(write: Write) -> None:
    assert list(read_table(write('"blood\n pressure ",b\n1,2\n')).columns) == ["blood pressure", "b"]


def test_a_column_without_a_name_gets_one(write: Write) -> None:
    assert list(read_table(write('"","a"\n"1",2\n"2",4\n')).columns) == ["Unnamed: 0", "a"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        ("\n  \n", "is empty"),
        ("a,b\n", "has names of columns but no rows"),
        ("a,b\n1,2\n3\n", "line 3: the number of values is 1, not 2 as in the first line"),
        ("a,b\n1,2\n\n3,4,5\n", "line 4: the number of values is 3, not 2 as in the first line"),
        ("a,b\n" + "1,2\n" * 100 + "1,2,3\n", "line 102: the number of values is 3, not 2 as in the first line"),
        ('a,b\n"1\n1",2\n3\n', "line 4: the number of values is 1, not 2 as in the first line"),
        ("a,b, a\n1,2,3\n", "2 columns have the name 'a'; rename them"),
        ("a\n1\n2\n", "has only the column 'a'; separate columns with commas, semicolons or tabs"),
        ("a|b\n1|2\n", "has only the column 'a|b'; separate columns with commas, semicolons or tabs"),
        (
            "63.0,1.0,?\n67.0,0.0,3\n",
            "its first line holds numbers, not the names of columns; add a line of names above",
        ),
        ("1,1,0\n2,2,0\n", "its first line holds numbers, not the names of columns; add a line of names above"),
        ('a,b\n"1,2\n3,4\n', "line 3: a quotation mark is not closed or is misplaced (unexpected end of data)"),
        ("a,b\n1,\0\n", "line 2: holds a NUL byte, so it is no text; save the file as CSV in UTF-8"),
        ("a,b\n1,ü\n".encode("utf-16-le"), "line 2: is not UTF-8; save the file as CSV in UTF-8"),
        ("a,b\n1,x\n2,ü\n".encode("latin-1"), "line 3: is not UTF-8; save the file as CSV in UTF-8"),
        (b"\xff\xfea\0,\0b\0\n\0\x01", "line 2: is not UTF-16; save the file as CSV in UTF-8"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "line 1: is not UTF-8; save the file as CSV in UTF-8"),
        (b"PK\x03\x04\x14\0\x06\0", "is no CSV file but a zip archive or an Excel workbook"),
        (b"PAR1\x15\x04", "is no CSV file but a Parquet file; call it .parquet"),
    ],
)
def test_a_bad_csv_is_refused(write: Write, content: str | bytes, message: str) -> None:
    path = write(content)
    with pytest.raises(UserError) as refusal:
        read_table(path)
    assert str(refusal.value) == f"{path}: {message}"


def test_a_file_that_is_not_there_or_no_table(tmp_path: Path) -> None:
    (tmp_path / "scan.png").write_bytes(b"\x89PNG")
    (tmp_path / "folder.csv").mkdir()
    for name, message in [
        ("none.csv", "no such file"),
        ("scan.png", r"is not a table; expected a file that ends in \.csv or \.parquet"),
        ("folder.csv", "cannot be read: Is a directory"),
    ]:
        with pytest.raises(UserError, match=rf"{name}: {message}"):
            read_table(tmp_path / name)


@pytest.mark.parametrize("name", ["pandas", "pyarrow"])
def test_without_pandas_people_learn_what_to_install(write: Write, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match=r"install them with: pip install 'orchard\[tables\]'"):
        read_table(write(PATIENTS))


def test_a_parquet_is_read_as_the_same_table(tmp_path: Path) -> None:
    columns = {
        "age": pa.array([63, 41, None], pa.int64()),
        "sex": pa.array(["male", " female", ""]).dictionary_encode(),
        "dose": pa.array([Decimal("1.50"), None, Decimal("2.25")], pa.decimal128(5, 2)),
        "smoker": pa.array([True, None, False]),
        "code": pa.array(["1", "2.0", "NA"]),
        "empty": pa.nulls(3),
    }
    parquet.write_table(pa.table(columns), tmp_path / "patients.parquet")
    assert rows(read_table(tmp_path / "patients.parquet")) == [
        [63, "male", 1.5, True, 1, None],
        [41, "female", None, None, 2, None],
        [None, None, 2.25, False, None, None],
    ]


def test_the_index_of_a_data_frame_is_no_column(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": [1, 2], "b": [3.5, 4.5]}, index=[17, 18])
    frame.to_parquet(tmp_path / "indexed.parquet")
    read, given = read_table(tmp_path / "indexed.parquet"), as_table(frame, "given")
    pd.testing.assert_frame_equal(read, given)
    assert list(given.index) == [0, 1]


@pytest.mark.parametrize(
    ("values", "kind"),
    [([[1, 2], [3]], "list<"), ([{"x": 1}, {"x": 2}], "struct<x: int64>")],
)
def test_nested_columns_are_refused_by_name(tmp_path: Path, values: list[object], kind: str) -> None:
    parquet.write_table(pa.table({"a": [1, 2], "scans": values}), tmp_path / "nested.parquet")
    with pytest.raises(UserError, match=rf"nested\.parquet: the column 'scans' holds {kind}.*; a table holds plain"):
        read_table(tmp_path / "nested.parquet")


def test_a_bad_parquet_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.parquet"
    parquet.write_table(pa.table({"a": [1, 2], "b": [3, 4]}), path)
    whole = path.read_bytes()
    for content in (b"not parquet at all", whole[:-20], whole[:40] + b"\0" * 40 + whole[80:]):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"bad\.parquet: is damaged or not a Parquet file"):
            read_table(path)
    parquet.write_table(pa.table([[1], [2]], names=["a", "a"]), path)
    with pytest.raises(UserError, match=r"bad\.parquet: 2 columns have the name 'a'"):
        read_table(path)
    parquet.write_table(pa.table({"a": pa.array([], pa.int64()), "b": pa.array([], pa.int64())}), path)
    with pytest.raises(UserError, match=r"bad\.parquet: has names of columns but no rows"):
        read_table(path)


def test_a_data_frame_becomes_plain_and_stays_as_it_was() -> None:
    frame = pd.DataFrame(
        {
            "number": ["1", " 2.5", "NA"],
            "nullable": pd.array([1, None, 3], "Int64"),
            "truth": pd.array([True, None, False], "boolean"),
            "stage": pd.Categorical([1, 2, 1]),
            "mixed": [12, 13.0, "high "],
            "when": pd.to_datetime(["2024-01-01"] * 3),
            7: [date(2024, 1, 1)] * 3,
        },
        index=["x", "y", "z"],
    )
    before = frame.copy(deep=True)
    table = as_table(frame, "given")
    pd.testing.assert_frame_equal(frame, before)
    assert list(table.columns) == ["number", "nullable", "truth", "stage", "mixed", "when", "7"]
    assert rows(table[["number", "nullable", "truth", "mixed"]]) == [
        [1, 1, True, "12"],
        [2.5, None, None, "13"],
        [None, 3, False, "high"],
    ]
    assert table["stage"].dtype == "category"


def test_names_of_columns_with_two_levels_are_refused() -> None:
    frame = pd.DataFrame([[1, 2]], columns=pd.MultiIndex.from_tuples([("a", "x"), ("a", "y")]))
    with pytest.raises(UserError, match="given: names of columns have 2 levels; give each column one name"):
        as_table(frame, "given")


def test_tables_of_several_sites_are_joined_by_name() -> None:
    north = as_table(pd.DataFrame({"age": [63, 41], "sex": ["m", "f"]}), "north.csv")
    south = as_table(pd.DataFrame({"sex": [None, None], "age": ["70", "NA"]}), "south.csv")
    joined = join_tables({"north.csv": north, "south.csv": south})
    assert rows(joined) == [[63, "m"], [41, "f"], [70, None], [None, None]]
    with pytest.raises(UserError, match=r"west\.csv: has no column 'sex', but north\.csv has; all sites need"):
        join_tables({"north.csv": north, "west.csv": north.drop(columns="sex")})


@pytest.mark.slow  # not because it is, but to measure without the tracing of lines
def test_ten_thousand_columns_take_less_than_two_seconds(tmp_path: Path) -> None:
    names = [f"gene{k}" for k in range(10_001)]
    values = np.arange(20 * 10_001).reshape(20, -1) * 7 % 1000 / 10
    np.savetxt(tmp_path / "wide.csv", values, "%.1f", ",", header=",".join(names), comments="")
    start = process_time()  # of this process: other tests may run at the same time
    table = read_table(tmp_path / "wide.csv")
    settings = TableSettings(target="gene0")
    assert encode(table, make_schema(table, settings, "wide"), "wide").shape == (20, 10_000)
    assert process_time() - start < 2
    assert [column.name for column in describe_columns(table, settings)] == names


def test_more_than_ten_thousand_features_are_refused() -> None:
    table = pd.DataFrame(np.arange(20_004.0).reshape(2, -1), columns=[f"gene{k}" for k in range(10_002)])
    with pytest.raises(UserError, match=r"wide: columns: make 10001 features, at most 10,000 are allowed; drop some"):
        make_schema(table, TableSettings(target="gene0"), "wide")
