"""The report, read in a real browser with the network cut."""

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, stdev

import pytest
from PIL import Image
from playwright.sync_api import Browser

from browser import Reader, browser, needs_chromium, reading
from orchard.report.page import write_report
from orchard.runs.folder import RunFolder
from orchard.runs.uncertainty import wilson
from synthetic import NINE, SyntheticRun

pytestmark = needs_chromium
__all__ = ["browser"]

METHODS = ("separate", "fedavg-local", "fedfomo", "apple")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    write_report([SyntheticRun(root / method, method).finish() for method in METHODS], root / "report.html")
    return root / "report.html"


@pytest.fixture
def reader(browser: Browser, report: Path) -> Iterator[Reader]:
    with reading(browser, report) as opened:
        yield opened
        assert opened.troubles == []


def test_it_opens_without_network_and_says_in_words_what_came_out(reader: Reader, report: Path) -> None:
    assert [url for url in reader.requests if not url.startswith("data:")] == [report.as_uri()]
    assert reader.text("h1") == "digits, iid split"
    assert "methods compared here" in reader.text("#story")
    assert "4 silos with 510 training samples between them" in reader.text("#story")
    assert "best round is picked by looking at the test data" in reader.text("main")
    rows = reader.page.locator("#headline tbody tr").all_inner_texts()
    assert [row.split()[0] for row in rows] == list(METHODS)
    for chart in [
        "score",
        "loss",
        "clients",
        "confusion",
        "matrix",
        "graph",
        "trajectories",
        "selves",
        "held",
        "dealt",
        "traffic",
    ]:
        assert reader.page.locator(f"#{chart} svg").bounding_box()


def test_the_slider_moves_the_matrix_and_the_graph(reader: Reader) -> None:
    assert reader.text("#round-text") == "after round 5 of 5"
    last = reader.cells("#matrix")
    assert len(last) == 16
    arrows = reader.page.inner_html("#graph svg")
    reader.page.locator("#round").fill("0")
    assert reader.text("#round-text") == "before the first round"
    first = reader.cells("#matrix")
    assert first != last
    assert len(set(first)) == 1  # every client begins with the same weight for all
    assert reader.page.locator("#graph .help").count() == 4 * 3, "so none of the helpers is left out"
    assert reader.page.inner_html("#graph svg") != arrows


def test_playing_goes_through_the_rounds(reader: Reader) -> None:
    # Noted by the page itself: from here, a round may pass between two looks.
    reader.page.evaluate(
        "seen = []; new MutationObserver(() => seen.push(document.querySelector('#round-text').textContent))"
        ".observe(document.querySelector('#round-text'), { childList: true, characterData: true, subtree: true })"
    )
    reader.page.click("#play")
    reader.page.locator("#round-text", has_text="after round 5 of 5").wait_for()
    reader.page.locator("#play", has_text="Play").wait_for()
    rounds = [f"after round {k} of 5" for k in range(1, 6)]
    assert list(dict.fromkeys(reader.page.evaluate("seen"))) == ["before the first round", *rounds]


def test_choosing_a_client_changes_the_trajectories(reader: Reader) -> None:
    before, selves = reader.lines("#trajectories"), reader.lines("#selves")
    reader.page.select_option("#client", label="east")
    after = reader.lines("#trajectories")
    assert before.keys() == after.keys() == {"north", "south", "east", "west"}
    assert all(before[name] != after[name] for name in before)
    assert reader.text("#whose") == "east"
    assert reader.lines("#selves") == selves
    reader.page.locator("#graph text", has_text="west").click()
    assert reader.text("#whose") == "west"
    assert reader.page.input_value("#client") == "3"


def test_methods_and_clients_are_switched_on_and_off(reader: Reader) -> None:
    for chart in ("#score", "#loss", "#clients", "#traffic"):
        assert "fedfomo" in reader.lines(chart)
    reader.choose("#methods", "fedfomo")
    for chart in ("#score", "#loss", "#clients", "#traffic"):
        assert "fedfomo" not in reader.lines(chart)
        assert "apple" in reader.lines(chart)
    reader.choose("#methods", "fedfomo")
    assert "fedfomo" in reader.lines("#score")
    reader.choose("#peers", "south")
    for chart in ("#trajectories", "#selves"):
        assert reader.lines(chart).keys() == {"north", "east", "west"}
    assert "south" not in reader.text("#clients")


def test_all_can_be_switched_off(reader: Reader) -> None:
    for method in METHODS:
        reader.choose("#methods", method)
    assert reader.text("#score") == "choose a method above"
    assert reader.lines("#clients") == {}


def test_another_method_has_another_story_and_command(reader: Reader) -> None:
    for method in ("apple", "separate"):
        reader.page.select_option("#method", method)
        assert ("trained together by apple" in reader.text("#story")) == (method == "apple")
        assert f"--method {method} --rounds 5" in reader.text("#command")
        assert reader.page.locator("#headline tr.chosen").inner_text().split()[0] == method
    assert "separate learns no relationships; these are of apple" in reader.text("#helping-note")


def test_what_a_model_does_class_by_class_is_shown_for_the_chosen_silo(browser: Browser, tmp_path: Path) -> None:
    runs = [SyntheticRun(tmp_path / f"ditto{seed}", "ditto", seed=seed).finish() for seed in (1, 2)]
    write_report([*runs, SyntheticRun(tmp_path / "graft", "graft").finish()], tmp_path / "report.html")
    with reading(browser, tmp_path / "report.html") as reader:
        reader.page.select_option("#method", "ditto")
        reader.page.select_option("#client", label="east")  # 12, 13 and 14 test cases; 3 of each taken for the next
        rows = reader.page.locator("#classes-table tbody tr").all_inner_texts()
        assert [row.split("\t") for row in rows] == [
            ["class 0", "24", "75 %", "75 %", "class 1 (6)"],  # of both seeds; 18 of 24 named so are right
            ["class 1", "26", "77 %", "77 %", "class 2 (6)"],
            ["class 2", "28", "79 %", "79 %", "class 0 (6)"],
        ]
        assert "the cases of 2 seeds together" in reader.text("#classes-note")
        reader.page.select_option("#seed", "2")
        assert reader.text("#classes-table tbody tr >> nth=0").split("\t")[1:3] == ["12", "75 %"]
        reader.page.select_option("#client", label="north")
        assert reader.text("#classes-table tbody tr >> nth=0").split("\t")[1:3] == ["10", "90 %"]
        assert reader.page.evaluate("csvOf(byId('confusion'))").splitlines()[1] == "class 0,9,1,0"
        reader.page.locator("#classes-table .hint", has_text="Recognised").focus()
        assert "recall: of the test cases of this class" in reader.text("#classes")
        assert reader.troubles == []


def test_a_run_that_kept_nothing_by_class_has_no_section_about_it(browser: Browser, tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "run").finish()
    (run / "by_class.json").unlink()
    write_report([run], tmp_path / "report.html")
    with reading(browser, tmp_path / "report.html") as reader:
        assert not reader.page.locator("#classes").is_visible()
        assert reader.troubles == []


def test_runs_on_several_data_sets_are_shown_one_set_at_a_time(browser: Browser, tmp_path: Path) -> None:
    runs = [SyntheticRun(tmp_path / m, m).finish() for m in ("separate", "apple")]
    SyntheticRun(tmp_path / "other", "ditto", names=["up", "down"], dataset="mnist").finish()
    write_report([tmp_path], tmp_path / "report.html")
    with reading(browser, tmp_path / "report.html") as reader:
        titles = reader.page.locator("#data-set option").all_inner_texts()
        assert titles == ["digits, iid split (2 runs)", "mnist, iid split (1 run)"]
        assert reader.text("h1") == "digits, iid split"
        reader.page.select_option("#client", label="west")
        reader.page.select_option("#data-set", index=1)
        assert reader.text("h1") == "mnist, iid split"
        assert reader.lines("#score").keys() == {"ditto", "ditto: up"}
        assert reader.page.locator("#client option").all_inner_texts() == ["up", "down"]
        assert "2 silos" in reader.text("#story")
        reader.page.select_option("#data-set", index=0)
        assert {"separate", "apple"} < reader.lines("#score").keys()
        assert reader.page.locator("#peers input").count() == 4
        assert reader.page.locator("#modes input").count() == 2
        assert reader.troubles == []
    write_report([*runs, runs[0]], tmp_path / "one.html")
    with reading(browser, tmp_path / "one.html") as reader:
        assert not reader.page.locator("#choose-data").is_visible()


def test_without_javascript_there_are_sentences_and_tables(browser: Browser, report: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(report.as_uri())
    text = page.inner_text("body")
    assert "please allow it here" in text
    assert " methods compared here, " in text
    result = RunFolder(report.parent / "apple").result()
    assert f"{100 * result.bmcta:.1f} %" in text
    assert all(name in text for name in ("north", "south", "east", "west"))
    page.locator("summary", has_text="south").click()
    assert page.locator("details[open] tr").nth(1).inner_text().split("\t") == ["class 0", "9", "2", ""]
    context.close()


def test_a_method_with_several_seeds_is_one_line_and_each_seed_can_be_opened(browser: Browser, tmp_path: Path) -> None:
    runs = [
        SyntheticRun(tmp_path / f"{method}{seed}", method, seed=seed).finish()
        for method in ("separate", "apple")
        for seed in (1, 2, 3)
    ]
    results = [RunFolder(run).result() for run in runs[3:]]
    write_report(runs, tmp_path / "report.html")
    with reading(browser, tmp_path / "report.html") as reader:
        rows = reader.page.locator("#headline tbody tr").all_inner_texts()
        assert [row.split("\t")[0].split("\n")[:2] for row in rows] == [[m, "3 seeds"] for m in ("separate", "apple")]
        assert reader.text("#headline th").startswith("Method, mean ± sd of its seeds")
        bests = [result.bmcta for result in results]
        assert f"{100 * mean(bests):.1f} ± {100 * stdev(bests):.1f} %" in rows[1]
        assert reader.lines("#score").keys() == {"separate", "apple", f"{reader.page.input_value('#method')}: north"}
        assert reader.page.locator("#score .band").count() == 2
        reader.page.select_option("#method", "apple")
        assert len(reader.text("#command").splitlines()) == 3
        reader.page.locator("details summary").first.click()
        for seed, result in zip((1, 2, 3), results, strict=True):
            reader.page.select_option("#seed", str(seed))
            cell = reader.page.locator("#clients-table tbody tr").first.locator("td").last.inner_text()
            assert cell.startswith(f"{100 * result.figures().clients[0]:.1f} %")
            assert f"--seed {seed}" in reader.text("#command")
        assert reader.troubles == []


def test_the_number_of_test_cases_and_noise_are_shown(browser: Browser, tmp_path: Path) -> None:
    levels = {"separate": [20 / 33, 20 / 36], "ditto": [22 / 33, 36 / 36]}
    runs = [SyntheticRun(tmp_path / m, m, names=["a", "b"], accuracy=v).finish() for m, v in levels.items()]
    write_report([*runs, tmp_path], tmp_path / "report.html")
    with reading(browser, tmp_path / "report.html") as reader:
        reader.page.locator("details summary").first.click()
        first, second = reader.page.locator("#clients-table tbody tr").all_inner_texts()
        assert first.split()[:3] == ["a", "123", "33"]
        low, high = wilson(22 / 33, 33)
        assert f"66.7 %\n{100 * low:.0f} % to {100 * high:.0f} %" in first
        assert "(+6.1)\n2 of 33 test cases: within noise" in first
        assert "16 of 36 test cases" in second
        assert "within noise" not in second
        assert "repeats" in reader.text("#left-out")


def test_axes_do_not_magnify_less_than_test_cases(browser: Browser, tmp_path: Path) -> None:
    levels = {"separate": [0.9, 0.9], "ditto": [0.901, 0.9]}
    runs = [SyntheticRun(tmp_path / m, m, names=["a", "b"], accuracy=v).finish() for m, v in levels.items()]
    write_report(runs, tmp_path / "report.html")
    with reading(browser, tmp_path / "report.html") as reader:
        for chart in ("#score", "#clients"):
            texts = reader.page.locator(f"{chart} .tick").all_text_contents()
            ticks = [float(text.rstrip(" %")) for text in texts if text.endswith("%")]
            assert max(ticks) - min(ticks) > 100 * 1 / 34.5, chart  # a test case of the average client


def test_models_hardly_better_than_the_commonest_class_are_pointed_out(browser: Browser, tmp_path: Path) -> None:
    run = SyntheticRun(
        tmp_path / "run", "ditto", names=["a", "b"], accuracy=[0.7, 0.9], tests=[[34, 8, 8], [25, 20, 5]]
    )
    write_report([run.finish()], tmp_path / "report.html")
    with reading(browser, tmp_path / "report.html") as reader:
        said = "At a the model is right in 70.0 %; always naming the commonest class is right in 68.0 %."
        assert said in reader.text("#story")
        assert "At b" not in reader.text("#story")
        assert "Balanced accuracy" in reader.text("#headline")
        reader.page.locator("details summary").first.click()
        first = reader.page.locator("#clients-table tbody tr").first.inner_text()
        assert first.split("\t")[:4] == ["a", "123", "50", "68.0 %"]
        assert "balanced 60.0 %" in first


def test_even_classes_need_no_balanced_accuracy(reader: Reader) -> None:
    assert "Balanced" not in reader.text("#headline")
    assert "commonest class" not in reader.text("#story")


def test_a_run_between_institutions_is_repeated_by_deploying_it(browser: Browser, tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "run", dataset="sites").finish()
    (run / "plan.json").write_text("{}")
    write_report([run], tmp_path / "report.html")
    with reading(browser, tmp_path / "report.html") as reader:
        assert reader.text("#command") == "orchard deploy run experiment.toml --kit KIT"
        assert "[deploy]" in reader.text("#again-note")
        assert reader.text("h1") == "sites, iid split"
        assert reader.troubles == []


def test_a_failed_run_beside_good_ones_is_named_and_spoils_nothing(browser: Browser, tmp_path: Path) -> None:
    for method in ("separate", "ditto"):
        SyntheticRun(tmp_path / method, method).finish()
    failed = SyntheticRun(tmp_path / "lost", "fedprox").run(3)
    failed.folder.write_failed(failed.result, "out of memory")
    write_report([tmp_path], tmp_path / "report.html")
    with reading(browser, tmp_path / "report.html") as reader:
        assert reader.text("#left-out") == f"Left out: {tmp_path / 'lost'}: the run failed."
        assert reader.lines("#score").keys() >= {"separate", "ditto"}
        assert "fedprox" not in reader.text("main")
        assert reader.troubles == []


def test_small_traffic_is_told_in_a_unit_that_fits(reader: Reader) -> None:
    reader.page.evaluate("drawn = [4230, 12, 0, 4.23e6, 5e9].map(bytesText)")
    assert reader.page.evaluate("drawn") == ["4.23 kB", "12 bytes", "0 bytes", "4.23 MB", "5 GB"]


def test_gains_over_training_alone(reader: Reader) -> None:
    accuracies = reader.lines("#clients")
    reader.choose("#modes", "gain over training alone")
    assert "percentage points over training alone" in reader.text("#clients")
    assert reader.lines("#clients").keys() == accuracies.keys() - {"separate"}


def test_values_are_shown_under_the_pointer(reader: Reader) -> None:
    reader.page.locator("#score svg").hover(position={"x": 300, "y": 100})
    tip = reader.text("#score .tip")
    assert tip.startswith("after round")
    assert all(method in tip for method in METHODS)
    assert tip.count("%") == 5  # the methods, and the chosen client
    reader.page.locator("#matrix [data-cell='0,1']").hover(force=True)
    assert reader.text("#matrix .tip").startswith("north takes from south")
    reader.page.locator("h1").hover()
    assert not reader.page.locator("#matrix .tip").is_visible()


def test_everything_is_within_reach_of_the_keyboard(reader: Reader) -> None:
    reached = set()
    for _ in range(100):
        reader.page.keyboard.press("Tab")
        reached.add(reader.page.evaluate("document.activeElement.closest('[id]')?.id"))
    assert {"method", "client", "methods", "modes", "play", "round", "peers", "matrix", "score", "copy"} <= reached
    reader.page.focus("#round")
    reader.page.keyboard.press("ArrowLeft")
    assert reader.text("#round-text") == "after round 4 of 5"
    reader.page.focus("#matrix svg")
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        reader.page.keyboard.press(key)
    assert reader.text("#matrix .tip").startswith("south, of its own")
    unnamed = "all => all.filter(e => !e.labels?.length && !e.textContent && !e.ariaLabel).map(e => e.outerHTML)"
    assert reader.page.eval_on_selector_all("input, select, button, svg[tabindex]", unnamed) == []


@pytest.mark.parametrize("width", [375, 768])
def test_a_small_screen_needs_no_scrolling_sideways(browser: Browser, report: Path, width: int) -> None:
    with reading(browser, report, width=width) as reader:
        assert reader.sideways() == 0
        assert reader.page.locator("#matrix svg").bounding_box()["width"] < width  # type: ignore[index]
        assert reader.troubles == []


def test_a_table_that_is_wider_than_the_screen_says_so(browser: Browser, report: Path) -> None:
    with reading(browser, report, width=375) as reader:
        hint, table = reader.page.locator(".sideways").first, reader.page.locator(".scroll").first
        assert hint.is_visible()
        table.evaluate("box => box.scrollLeft = box.scrollWidth")
        hint.wait_for(state="hidden")
    with reading(browser, report, width=1600) as reader:
        assert not reader.page.locator(".sideways").first.is_visible()


def test_a_term_is_explained_when_it_is_tapped_or_reached_by_keyboard(reader: Reader) -> None:
    reader.page.locator("#headline .hint", has_text="best round").focus()
    assert "BMCTA: the mean over silos" in reader.text(".explained >> nth=0")
    reader.page.locator("#headline .hint", has_text="Beside").focus()
    assert "paired t-test" in reader.text(".explained >> nth=0")


def saved(reader: Reader, chart: str, kind: str) -> bytes:
    with reader.page.expect_download() as download:
        reader.page.click(f"[data-saves={chart}] >> text={kind}")
    assert download.value.suggested_filename == f"{chart}.{kind.lower()}"
    return Path(download.value.path()).read_bytes()


def test_every_figure_can_be_saved_with_its_data(reader: Reader, report: Path) -> None:
    charts = reader.page.eval_on_selector_all("figure div[id]", "all => all.map(e => e.id)")
    assert len(charts) == 11
    for chart in charts:
        picture = reader.page.evaluate(f"svgOf(byId('{chart}'))")
        whole = f"new DOMParser().parseFromString(svgOf(byId('{chart}')), 'image/svg+xml').documentElement.tagName"
        assert reader.page.evaluate(whole) == "svg"
        assert "var(" not in picture
        rows = list(csv.reader(io.StringIO(reader.page.evaluate(f"csvOf(byId('{chart}'))"))))
        assert len(rows) > 2
        assert len({len(row) for row in rows}) == 1, chart
    for chart in ("score", "loss", "clients", "traffic"):  # the page names the methods elsewhere
        picture = reader.page.evaluate(f"svgOf(byId('{chart}'))")
        assert all(f">{method}<" in picture for method in METHODS if chart != "traffic" or method != "separate")
    assert saved(reader, "score", "SVG").decode() == reader.page.evaluate("svgOf(byId('score'))")
    rounds = list(csv.DictReader(io.StringIO(saved(reader, "score", "CSV").decode())))
    assert [row["round"] for row in rounds] == ["1", "2", "3", "4", "5"]
    results = [RunFolder(report.parent / method).result() for method in METHODS]
    for method, result in zip(METHODS, results, strict=True):
        means = result.scores().mean(axis=1)
        assert [float(row[method]) for row in rounds] == pytest.approx(means.tolist(), abs=1e-5)
    held = list(csv.reader(io.StringIO(saved(reader, "held", "CSV").decode())))
    assert held[1] == ["north", *(str(n) for n in results[0].distribution.totals()[0])]


def test_every_figure_can_be_saved_as_a_picture_three_times_as_sharp(reader: Reader) -> None:
    for chart in reader.page.eval_on_selector_all("figure div[id]", "all => all.map(e => e.id)"):
        picture = Image.open(io.BytesIO(saved(reader, chart, "PNG")))
        shown = reader.page.locator(f"#{chart} svg").bounding_box()
        assert shown
        assert picture.width == pytest.approx(3 * shown["width"], abs=3), chart
        assert picture.height >= 3 * shown["height"] - 3, chart  # names of series are below
        colours = picture.convert("RGB").getcolors(1 << 24)
        assert colours
        assert len(colours) > 20, f"{chart}: is hardly more than a blank"


def test_light_and_dark(browser: Browser, report: Path) -> None:
    paper = []
    for dark in (False, True):
        with reading(browser, report, dark=dark) as reader:
            colour = reader.page.evaluate("getComputedStyle(document.body).backgroundColor")
            paper.append(sum(map(int, colour[4:-1].split(","))))
    assert paper[0] > 700
    assert paper[1] < 100


HOSTILE = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(2)>",
    "\"'`<!--",
    "&lt;b&gt; {{7*7}} $data ${alert(3)}",
    "a hospital whose name is longer than any table can bear " * 4,
    "x" * 300,
]


def test_no_name_does_any_harm(browser: Browser, tmp_path: Path) -> None:
    dataset = "<b>data <script>alert(4); " + "y" * 200
    run = SyntheticRun(tmp_path / "<i>'run'", names=HOSTILE, dataset=dataset).finish()
    write_report([run], tmp_path / "report.html")
    for width in (1280, 375):
        with reading(browser, tmp_path / "report.html", width=width) as reader:
            reader.page.click("summary >> nth=0")
            named = reader.page.locator("#clients-table tbody th").all_text_contents()
            assert named == HOSTILE
            assert reader.text("h1") == f"{dataset}, iid split"
            assert dataset in reader.text("#command")
            assert "<i>'run'" in reader.text("#again-note")
            assert reader.page.locator("main img, main b b, main script").count() == 0
            assert reader.sideways() == 0
            assert reader.troubles == []


def test_nine_methods_fit_on_a_page(browser: Browser, tmp_path: Path) -> None:
    names = [f"hospital {i}" for i in range(12)]
    runs = [SyntheticRun(tmp_path / m, m, names=names, classes=10, rounds=160).finish() for m in NINE]
    file = tmp_path / "report.html"
    write_report(runs, file)
    assert file.stat().st_size < 8e6
    with reading(browser, file) as reader:
        assert set(NINE) <= reader.lines("#score").keys()
        assert len(reader.cells("#matrix")) == 144
        assert reader.troubles == []


def test_a_run_without_relationships_has_no_section_about_them(browser: Browser, tmp_path: Path) -> None:
    write_report([SyntheticRun(tmp_path / "run", "fedavg").finish()], tmp_path / "report.html")
    with reading(browser, tmp_path / "report.html") as reader:
        assert not reader.page.locator("#helping").is_visible()
        assert not reader.page.locator("#method").is_visible()
        assert reader.lines("#score").keys() == {"fedavg", "fedavg: north"}
        assert reader.troubles == []
