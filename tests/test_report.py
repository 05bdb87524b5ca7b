"""What the report says of runs, the command that repeats one, the figures for print and TensorBoard's events."""

import json
import re
import shlex
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from typer.testing import CliRunner

from helpers import ROOT
from orchard.cli import app
from orchard.errors import UserError
from orchard.experiment import load_experiment
from orchard.report.command import command_of
from orchard.report.content import content_of
from orchard.report.page import page, page_data
from orchard.report.ranking import gain_in_cases, intervals, ranking
from orchard.report.story import overview, story
from orchard.report.views import Content, Relationships, Values
from orchard.runs.comparison import Spread
from orchard.runs.folder import RunFolder
from orchard.runs.uncertainty import wilson
from synthetic import SyntheticRun


def shown(*runs: Path, live: bool = False) -> Content:
    return content_of([RunFolder(run) for run in runs], live=live)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("runs")
    return [SyntheticRun(root / method, method).finish() for method in ("apple", "fedavg-ft", "separate")]


def test_content_is_what_the_results_say(compared: list[Path]) -> None:
    result, run = RunFolder(compared[0]).result(), shown(*compared).methods[0]
    assert np.array(run.scores) == pytest.approx(result.scores(), abs=1e-5)
    figures = result.figures()
    chosen = (figures.best.score, figures.last.score, figures.validation_selected.score, min(figures.clients))
    assert tuple(one and one.mean for one in (run.best, run.last, run.validation, run.worst)) == chosen
    assert run.helpers == [client.strongest_helper for client in result.clients]
    assert run.relationships is not None
    assert run.relationships.rounds == [0, 1, 2, 3, 4, 5]
    assert np.array(run.relationships.matrices) == pytest.approx(result.relationships, abs=1e-4)
    assert run.traffic == [4e6, 8e6, 12e6, 16e6, 20e6]


def test_training_loss_is_of_all_samples_each_by_its_own_clients_model(compared: list[Path]) -> None:
    samples = [123, 126, 129, 132]  # 40 + i + k of class k
    first = sum(n * (2 + i / 10) for i, n in enumerate(samples)) / sum(samples)
    assert shown(compared[0]).methods[0].loss[0] == pytest.approx(first, abs=1e-6)


@pytest.fixture
def seeded(tmp_path: Path) -> list[Path]:
    """Runs of two methods with three seeds each."""
    return [
        SyntheticRun(tmp_path / f"{method}{seed}", method, seed=seed).finish()
        for method in ("separate", "apple")
        for seed in (1, 2, 3)
    ]


def test_runs_that_differ_in_the_seed_alone_are_one_method_with_mean_and_deviation(seeded: list[Path]) -> None:
    content, results = shown(*seeded), [RunFolder(run).result() for run in seeded[3:]]
    assert [(view.label, view.seeds) for view in content.methods] == [("separate", [1, 2, 3]), ("apple", [1, 2, 3])]
    apple = content.methods[1]
    bests = [result.bmcta for result in results]
    assert apple.best == Spread.of(bests)
    assert np.array(apple.scores) == pytest.approx(np.mean([result.scores() for result in results], axis=0), abs=1e-5)
    means = [result.scores().mean(axis=1) for result in results]
    assert apple.score_deviations == pytest.approx(np.std(means, axis=0, ddof=1).tolist(), abs=1e-4)
    assert apple.clients == pytest.approx(np.mean([r.figures().clients for r in results], axis=0).tolist(), abs=1e-5)
    assert apple.relationships is not None
    assert np.array(apple.relationships.matrices) == pytest.approx(results[0].relationships, abs=1e-3)
    assert [(run.label, run.seeds, run.best) for run in apple.runs] == [
        ("apple", [seed], Spread(best, None)) for seed, best in zip((1, 2, 3), bests, strict=True)
    ]
    assert len(apple.commands) == 3
    assert story(content, apple)[0].endswith("trained together by apple for 5 rounds, with 3 seeds.")


def test_the_best_seed_of_a_method_does_not_win_the_headline(tmp_path: Path) -> None:
    levels = {("fedavg", 1): 0.70, ("fedavg", 2): 0.95, ("ditto", 1): 0.85, ("ditto", 2): 0.87}
    runs = [
        SyntheticRun(tmp_path / f"{method}{seed}", method, seed=seed, accuracy=[level] * 4).finish()
        for (method, seed), level in levels.items()
    ]
    content = shown(*runs)
    assert overview(content)[0] == (
        "Of the 3 methods compared here, ditto has the best mean: 86.0 % (mean of 2 seeds)."
    )


def difference(one: Values, other: Values) -> list[float]:
    gains: list[float] = (np.array(one, dtype=np.float64) - np.array(other, dtype=np.float64)).tolist()
    return gains


def test_gains_are_over_training_alone_with_the_same_seed(seeded: list[Path]) -> None:
    alone, apple = shown(*seeded).methods
    assert alone.gains is None
    for one, other in zip(apple.runs, alone.runs, strict=True):
        assert one.gains == pytest.approx(difference(one.clients, other.clients))
        assert other.best is not None
        assert one.alone == other.best.mean
    assert apple.gains == pytest.approx(difference(apple.clients, alone.clients), abs=2e-5)


def test_methods_that_anothers_run_gives_are_shown_too(compared: list[Path]) -> None:
    assert [run.label for run in shown(*compared).methods] == [
        "apple",
        "fedavg-ft",
        "separate",
        "fedavg",
        "fedavg-local",
    ]
    assert [run.label for run in shown(compared[1]).methods] == ["fedavg-ft"]


def test_a_label_tells_runs_of_one_method_apart(tmp_path: Path) -> None:
    methods: list[str | dict[str, object]] = ["apple", {"name": "apple", "mu": 0.5}]
    runs = [SyntheticRun(tmp_path / str(k), method).finish() for k, method in enumerate(methods)]
    slower = SyntheticRun(tmp_path / "slower", rounds=6).finish()
    stopped = SyntheticRun(tmp_path / "stopped", rounds=6).run(4).folder.path
    assert [view.label for view in shown(*runs, slower, stopped).methods] == [
        "apple, rounds=5",
        "apple:mu=0.5",
        "apple, rounds=6",
        "apple, rounds=6, 4 of 6 rounds",
    ]


def test_a_run_that_is_there_twice_counts_once(tmp_path: Path) -> None:
    runs = [SyntheticRun(tmp_path / name, "apple", seed=seed).finish() for name, seed in (("a", 1), ("b", 2), ("c", 1))]
    content = shown(*runs)
    assert [view.seeds for view in content.methods] == [[1, 2]]
    assert content.left_out == [f"{runs[2]}: repeats {runs[0]}"]


# --- Runs that cannot be shown ---


def test_runs_that_failed_or_have_no_figures_are_left_out_and_said_to_be(compared: list[Path], tmp_path: Path) -> None:
    failed = SyntheticRun(tmp_path / "failed", "fedprox").run(3)
    failed.folder.write_failed(failed.result, "out of memory")
    begun = SyntheticRun(tmp_path / "begun", "fedavg").folder.path
    (tmp_path / "nothing").mkdir()
    left_out = [failed.folder.path, begun, tmp_path / "nothing"]
    content = shown(compared[0], *left_out)
    assert [view.label for view in content.methods] == ["apple"]
    assert content.left_out == [
        f"{begun}: no round has been measured yet; orchard watch shows it while it goes on",
        f"{tmp_path / 'nothing'}: is not the folder of a run: it has no experiment.toml",
        f"{failed.folder.path}: the run failed",
    ]
    alone = shown(failed.folder.path)  # there is nothing else to look at
    assert "the run failed after 3 of 5 rounds" in story(alone, alone.methods[0])[0]


def test_a_folder_of_runs_stands_for_the_runs_in_it(seeded: list[Path], tmp_path: Path) -> None:
    SyntheticRun(tmp_path / "zoo", "fedavg")
    file = tmp_path / "all.html"
    made = CliRunner().invoke(app, ["report", str(tmp_path), "-o", str(file)], catch_exceptions=False)
    assert made.stdout == f"written to {file}\n"
    note = f"{tmp_path / 'zoo'}: no round has been measured yet; orchard watch shows it while it goes on"
    assert made.stderr == f"left out: {note}\n"
    assert note in file.read_text("utf-8")
    made = CliRunner().invoke(app, ["figures", str(tmp_path), "-o", str(tmp_path / "drawn")], catch_exceptions=False)
    assert (made.exit_code, made.stderr) == (0, f"left out: {note}\n")


# --- What is chance ---


def of_levels(tmp_path: Path, levels: dict[str, list[float]]) -> Content:
    """Runs whose clients have these accuracies, with 12, 15, 18, … test cases."""
    names = [f"client {i}" for i in range(len(next(iter(levels.values()))))]
    return shown(
        *[SyntheticRun(tmp_path / m, m, names=names, accuracy=values).finish() for m, values in levels.items()]
    )


def test_a_method_is_ahead_only_of_those_it_is_really_apart_from(tmp_path: Path) -> None:
    best = [0.9, 0.8, 0.9, 0.7, 0.9, 0.8]
    clearly = [v - d for v, d in zip(best, [0.2, 0.22, 0.19, 0.21, 0.2, 0.2], strict=True)]
    hardly = [v + d for v, d in zip(best, [0.1, -0.2, 0.05, -0.1, 0.1, 0.0], strict=True)]
    content = of_levels(tmp_path, {"ditto": best, "separate": clearly, "fedfomo": hardly})
    ranks = ranking(content)
    assert ranks is not None
    assert (ranks.best, ranks.ahead, ranks.level) == ("ditto", ["separate"], ["fedfomo"])
    assert overview(content) == [
        "Of the 3 methods compared here, ditto has the best mean: 83.3 %.",
        "It is ahead of separate.",
        "It is level with fedfomo: the difference is within noise.",
    ]
    alone = "training alone it is right in 63.0 %"
    assert f"{alone}." in " ".join(story(content, content.methods[0]))


def test_gains_within_noise_are_said_to_be(tmp_path: Path) -> None:
    content = of_levels(tmp_path, {"separate": [20 / 33, 20 / 36], "ditto": [22 / 33, 36 / 36]})
    ditto = content.methods[1]
    assert content.distribution.samples["test"] == [33, 36]
    assert gain_in_cases(content, ditto, 0) == "2 of 33 test cases: within noise"
    assert gain_in_cases(content, ditto, 1) == "16 of 36 test cases"
    found = intervals(content, ditto)
    assert found is not None
    assert found[0] == pytest.approx(wilson(22 / 33, 33), abs=1e-4)
    assert "level: the difference is within noise" in " ".join(story(content, ditto))


def test_many_clients_do_not_make_the_page_large(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "many", names=[f"hospital {i}" for i in range(120)], rounds=60).finish()
    content = shown(run)
    relationships = content.methods[0].relationships
    assert relationships is not None
    assert relationships.rounds[0] == 0
    assert relationships.rounds[-1] == 60
    assert 30 < len(relationships.rounds) < 60
    assert len(page(page_data(content))) < 8e6


# --- Sentences ---


@pytest.mark.parametrize(
    ("matrix", "said"),
    [
        ([[1, 0.2, 0, 0], [0, 1, 0, 0], [0, 0, 1, -0.1], [0, 0, 0, 1]], "north, south; east, west."),
        ([[1, 0.2, 0, 0], [0.2, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]], "north, south."),
        ([[1, 0.2, 0, 0], [0, 1, 0.1, 0], [0, 0, 1, 0.1], [0, 0, 0, 1]], ""),
        ([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]], ""),
    ],
)
def test_groups_that_learn_among_themselves_are_named(
    compared: list[Path], matrix: list[list[float]], said: str
) -> None:
    content = shown(*compared)
    content = replace(content, distribution=replace(content.distribution, clients=["north", "south", "east", "west"]))
    told = story(content, replace(content.methods[0], relationships=Relationships([5], [matrix])))
    assert (f"These learn only from one another: {said}" in told) == bool(said)
    assert any("only from one another" in sentence for sentence in told) == bool(said)


def test_the_story_of_a_run_beside_training_alone(compared: list[Path]) -> None:
    content = shown(*compared)
    run = replace(content.methods[0], clients=[0.9] * 4, gains=[3 / 33, -1 / 36, 0.0, 0.01], alone=0.875)
    run = replace(run, helpers=["east", None, None, None], best=Spread(0.9, None))
    assert " ".join(story(content, run)) == (
        "4 silos with 510 training samples between them (and 90 for validation, 150 test cases) trained together by "
        "apple for 5 rounds. "
        "On average a silo's model is right in 90.0 % of its own test cases; "
        "training alone it is right in 87.5 %, which is level: the difference is within noise. "
        "The most is gained by north (+9.1 points, 3 of 33 test cases: within noise; helped most by east). "
        "Worse than alone: south (−2.8 points, 1 of 36 test cases: within noise)."
    )
    assert story(content, replace(run, gains=[0.1, 0, 0, 0]))[-1] == "No silo does worse than alone."
    many = story(content, replace(run, clients=[0.7] * 4, gains=[-0.1, -2 / 9, -0.1, -0.1]))
    assert many[-1] == "4 silos do worse than alone, south most (−22.2 points, 8 of 36 test cases)."


def test_the_story_of_a_run_by_itself(compared: list[Path]) -> None:
    content = shown(compared[0])
    run = replace(content.methods[0], clients=[0.5, 0.9, 0.7, 0.8], helpers=["west", None, None, None])
    assert story(content, run)[-1] == "From 50.0 % (north, helped most by west) to 90.0 % (south)."
    assert overview(content) == []


def test_a_run_that_has_only_begun_can_be_watched_but_not_reported(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "new").folder.path
    content = shown(run, live=True)
    assert story(content, content.methods[0])[-1] == (
        "There are no figures yet: the first come when the second round has ended."
    )
    assert '"best":null' in page(page_data(content))
    with pytest.raises(UserError, match="new: no round has been measured yet; orchard watch shows it while it goes on"):
        shown(run)


def test_a_round_whose_exchange_is_not_measured_yet_has_no_figures(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "run", "fedavg").run(3)
    lines = (run.folder.path / "metrics.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    last["after_aggregation"] = {
        part: {m: [None] * 4 for m in values} for part, values in last["after_aggregation"].items()
    }
    (run.folder.path / "metrics.jsonl").write_text("\n".join([*lines[:-1], json.dumps(last)]) + "\n")
    content = shown(run.folder.path)
    (entry,) = content.methods
    assert entry.scores[2] == [None] * 4
    assert entry.last is None
    assert entry.best is not None
    assert entry.best.mean == pytest.approx(np.mean([v for v in entry.scores[1] if v is not None]), abs=1e-5)
    assert "was interrupted after 3 of 5 rounds" in story(content, entry)[0]
    page(page_data(content))  # it is valid JSON, without NaN


# --- The command that repeats a run ---


@pytest.mark.parametrize(
    "assignments",
    [
        [],
        ["dataset=mnist", "partition.name=practical", "rounds=160", "method.mu=0.25", "method.budget=3"],
        ["dataset=my file's.npz", "partition.name=column", "partition.key=the hospital", "clients=3", "lr=0.5"],
        ["method.name=fedprox-ft", "partition.alpha=0.1", "partition.seed=7", "batch_size=8", "data_dir=/a b"],
        ["workers=2", "checkpoint_every=3", "out=somewhere"],
    ],
)
def test_the_command_repeats_the_experiment(assignments: list[str]) -> None:
    experiment = load_experiment(assignments=assignments)
    command = command_of(experiment)
    assert command is not None
    words = shlex.split(command)
    assert words[:2] == ["orchard", "run"]
    options = dict(zip(words[2::2], words[3::2], strict=True))
    plain = {key.removeprefix("--"): value for key, value in options.items() if key != "--set"}
    numbers = {key: int(plain.pop(key)) for key in ("clients", "rounds", "seed")}
    settings = [value for key, value in zip(words[2::2], words[3::2], strict=True) if key == "--set"]
    assert load_experiment(overrides={**plain, **numbers}, assignments=settings).identity() == experiment.identity()


def test_only_what_is_not_a_default_is_in_the_command() -> None:
    assert command_of(load_experiment(assignments=["method.mu=0.25"])) == (
        "orchard run --dataset digits --partition dirichlet --clients 8 --method apple --rounds 25 --seed 42 "
        "--set method.mu=0.25"
    )
    assert command_of(load_experiment(overrides={"dataset": "arrays"})) is None


# --- On the command line ---


def test_a_report_of_several_runs_is_one_file(compared: list[Path], tmp_path: Path) -> None:
    file = tmp_path / "all.html"
    made = CliRunner().invoke(app, ["report", *map(str, compared), "-o", str(file)], catch_exceptions=False)
    assert (made.exit_code, made.stdout, made.stderr) == (0, f"written to {file}\n", "")
    text = file.read_text("utf-8")
    assert text.startswith("<!doctype html>")
    assert not re.findall(r"""(?:src|href)=["'](?!data:,|#)""", text.split("<script")[0])
    assert list(tmp_path.iterdir()) == [file]


def refusal(*arguments: str) -> str:
    with pytest.raises(UserError) as caught:
        CliRunner().invoke(app, arguments, catch_exceptions=False)
    return str(caught.value)


def test_what_cannot_be_shown_is_refused(compared: list[Path], tmp_path: Path) -> None:
    other = SyntheticRun(tmp_path / "other", names=["up", "down"]).finish()
    apple = str(compared[0])
    (tmp_path / "empty").mkdir()
    assert refusal("report", str(tmp_path / "empty")) == (
        f"{tmp_path / 'empty'}: is neither the folder of a run (it has no experiment.toml) nor a folder of runs; "
        "name a run, several, or the folder that they are in"
    )
    assert refusal("watch", str(tmp_path)) == f"{tmp_path}: is not the folder of a run: it has no experiment.toml"
    assert refusal("report", apple, str(other)) == f"{other}: is on other data than {apple}; show them one by one"
    nowhere = str(tmp_path / "missing" / "report.html")
    assert refusal("report", apple, "-o", nowhere) == f"{nowhere}: cannot be written: No such file or directory"
    assert refusal("figures", apple, "-o", f"{other}/summary.json").endswith("cannot be written: File exists")


def test_the_pages_files_are_in_the_wheel(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    names = zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist()
    here = {file.name for file in (ROOT / "src/orchard/report").iterdir() if file.suffix in (".html", ".css", ".js")}
    assert {Path(name).name for name in names if name.startswith("orchard/report/")} >= here
    assert len(here) == 9
    modules = {str(file.relative_to(ROOT / "src")) for file in (ROOT / "src/orchard").rglob("*.py")}
    assert modules <= set(names), "a module that the wheel lacks: does .gitignore name it?"


# --- Figures for print ---


@pytest.mark.parametrize(("kind", "magic"), [("pdf", b"%PDF"), ("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_the_papers_figures_are_drawn(compared: list[Path], tmp_path: Path, kind: str, magic: bytes) -> None:
    arguments = ["figures", *map(str, compared), "--format", kind, "-o", str(tmp_path / "drawn")]
    made = CliRunner().invoke(app, arguments, catch_exceptions=False)
    names = [f"{name}.{kind}" for name in ("convergence", "clients", "relationships-apple", "data")]
    assert made.stdout.splitlines() == [f"drawn in {tmp_path / 'drawn' / name}" for name in names]
    for name in names:
        assert (tmp_path / "drawn" / name).read_bytes().startswith(magic)
    if kind == "svg":
        for name, words in (
            ("convergence", ["training loss", "mean client test accuracy", "fedavg-local"]),
            ("clients", ["north", "separate"]),
            ("relationships-apple", ["self-relationships", "of north", "of west"]),
        ):
            text = (tmp_path / "drawn" / f"{name}.svg").read_text("utf-8")
            assert all(f">{word}<" in text for word in words)
    if kind == "pdf":
        content = (tmp_path / "drawn/convergence.pdf").read_bytes()
        assert b"/Subtype /Image" not in content
        assert b"/FontFile2" in content  # TrueType, which publishers' tools can read
        width = re.search(rb"/MediaBox \[ 0 0 ([\d.]+) ", content)
        assert width is not None
        assert float(width[1]) == pytest.approx(7 * 72)


def test_odd_names_are_drawn_as_they_are(tmp_path: Path) -> None:
    names = ["$a_b$", "日本医院", "<b>", "x" * 200, "{0}", r"\frac"]
    run = SyntheticRun(tmp_path / "run", names=names).finish()
    CliRunner().invoke(app, ["figures", str(run), "--format", "svg", "-o", str(tmp_path)], catch_exceptions=False)
    text = (tmp_path / "clients.svg").read_text("utf-8")
    assert all(f">{name}<" in text for name in ("$a_b$", "&lt;b&gt;", "{0}", r"\frac", "x" * 17 + "…"))


# --- TensorBoard ---


def test_tensorboard_reads_the_runs_figures_back(tmp_path: Path) -> None:
    quick = ["--rounds", "2", "--set", "epochs=1", "--set", "model=mlp", "--out", str(tmp_path / "a")]
    CliRunner().invoke(app, ["run", *quick, "--tensorboard"], catch_exceptions=False)
    events = EventAccumulator(str(tmp_path / "a/tensorboard")).Reload()
    result = RunFolder(tmp_path / "a").result()
    accuracy = result.scores()
    means = [(event.step, event.value) for event in events.Scalars("mean test accuracy")]
    assert means == [(r + 1, pytest.approx(accuracy[r].mean())) for r in range(2)]
    third = [event.value for event in events.Scalars("test accuracy/client 3")]
    assert third == pytest.approx(accuracy[:, 3].tolist())
    losses = [event.value for event in events.Scalars("training loss/client 7")]
    assert losses == pytest.approx([entry.loss[7] for entry in result.rounds])
    pictures = events.Images("relationships")
    assert [picture.step for picture in pictures] == [0, 1, 2]
    assert (pictures[0].width, pictures[0].height) == (8 * 16, 8 * 16)


def test_without_tensorboard_its_option_is_refused_before_training(tmp_path: Path) -> None:
    without = "import sys; sys.modules['tensorboard'] = None; from orchard.cli import main; main()"
    command = [sys.executable, "-c", without, "run", "--tensorboard"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert run.stderr == (
        "orchard: --tensorboard: TensorBoard is not installed; install it with: pip install 'orchard[tensorboard]'\n"
    )
    assert not list(tmp_path.iterdir())
