"""The harness of the benchmarks, and what is drawn from results: with made-up ones, for nothing is measured here."""

import dataclasses
import functools
import io
import itertools
import re
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console

from bench import __main__ as command
from bench import machine, report
from bench.compare import CannotMeasure, Floor, Result, calls_in_turn, in_turn, p99, rounded
from bench.curves import curves, facts
from bench.document import Document, Measured
from bench.formatting import goal_of, ratio_of, shown, total
from bench.pages import MAIN, PAGES, PEERS
from bench.plot import charts, plot
from bench.questions import MODULES, NOT_IN_OUR_FAVOUR, PROSE, QUESTIONS
from bench.report import page, show, table
from bench.rival import Rival, RivalFailed, rivals
from bench.spent import Spent


def result(ours: float | Sequence[float], theirs: float | Sequence[float], **more: Any) -> Result:
    sides = [[each] if isinstance(each, int | float) else each for each in (ours, theirs)]
    return Result(
        **{"question": "path", "name": "our thing", "against": "their thing", **more}, ours=sides[0], theirs=sides[1]
    )


# --- comparing -------------------------------------------------------------------------------------------------------


def test_the_ratio_is_that_of_the_medians_or_of_the_best() -> None:
    ours, theirs = [3.0, 1.0, 9.0], [2.0, 1.5, 40.0]
    assert result(ours, theirs).ratio == 1.5
    assert result(ours, theirs, best=True).ratio == 1 / 1.5
    assert result(ours, theirs, best=True, unit="rows/s").ratio == 9 / 40


@pytest.mark.parametrize(
    ("unit", "goal", "ratio", "met", "behind"),
    [
        ("s", 1.5, 1.5, True, True),
        ("s", 1.5, 1.51, False, True),
        ("s", 0.5, 0.75, False, False),
        ("s", None, 9.0, None, True),
        ("rows/s", 1.5, 1.5, True, False),
        ("rows/s", 1.5, 1.49, False, False),
        ("rows/s", 0.5, 0.75, True, True),
        ("rows/s", None, 1.0, None, False),
        ("B", 1.0, 0.9, True, False),
        ("B", 1.0, 1.1, False, True),
    ],
)
def test_a_goal_of_seconds_is_met_below_it_and_one_of_rows_above(
    unit: str, goal: float | None, ratio: float, met: bool | None, behind: bool
) -> None:
    found = result(ratio, 1.0, unit=unit, goal=goal)
    assert (found.met, found.behind) == (met, behind)


def test_a_hundredth_of_the_samples_exceeds_their_p99() -> None:
    assert p99([3.0, 1.0, 2.0]) == 3.0
    assert p99([float(each) for each in range(1, 101)]) == 99.0
    assert p99([float(each) for each in range(1, 301)]) == 297.0


def test_a_p99_is_the_slow_end_and_needs_enough_samples() -> None:
    samples = [float(each) for each in range(1, 21)]
    assert result(samples, 1.0).p99(samples) == 20.0
    assert result(samples, 1.0, unit="rows/s").p99(samples) == 1.0
    assert result(samples, 1.0).p99(samples[1:]) is None


def test_the_order_of_the_sides_alternates_and_the_warm_up_does_not_count() -> None:
    asked: list[str] = []

    def side(name: str) -> float:
        asked.append(name)
        return float(len(asked))

    found = in_turn(3, {"a": lambda: side("a"), "b": lambda: side("b")}, warm_up=2)
    pairs = ["".join(asked[at : at + 2]) for at in range(0, len(asked), 2)]
    assert pairs in (["ab", "ba"] * 2 + ["ab"], ["ba", "ab"] * 2 + ["ba"])
    assert sorted(found["a"] + found["b"]) == [5.0, 6.0, 7.0, 8.0, 9.0, 10.0]  # the first four are warm-up


def test_a_side_may_tell_several_samples_at_once() -> None:
    assert in_turn(2, {"a": lambda: [1.0, 2.0], "b": lambda: 3}) == {"a": [1.0, 2.0, 1.0, 2.0], "b": [3, 3]}


def test_calls_are_timed_by_the_round() -> None:
    calls: list[str] = []
    ours, theirs = calls_in_turn(4, lambda: calls.append("ours"), lambda: calls.append("theirs"))
    assert (len(ours), len(theirs), calls.count("ours")) == (4, 4, 5)
    assert all(each >= 0 for each in ours + theirs)


def test_figures_are_kept_with_few_digits_and_verdicts_follow_from_these() -> None:
    assert [rounded(each) for each in (1.2345678, 0.000012345678, 123456.7, 0.0)] == [1.2346, 1.2346e-05, 123460.0, 0.0]
    kept = result(1.000001, 1.0, goal=1.0, details={"a": 1.2345678}).rounded()
    assert (kept.ours, kept.details, kept.met) == ([1.0], {"a": 1.2346}, True)


def test_a_floor_is_compared_with_the_same_side_or_with_its_own() -> None:
    found = result([3.0, 3.0], 2.0, goal=1.1, floor=Floor("the least", [2.500001, 2.5])).rounded()
    floor = found.of_floor
    assert floor is not None
    assert (floor.name, floor.against, floor.ours, floor.ratio, floor.met) == (
        "floor: the least",
        "their thing",
        [2.5, 2.5],
        1.25,
        None,
    )
    other = result(3.0, 2.0, floor=Floor("the least", [8.0], [4.0])).of_floor
    assert other is not None
    assert other.ratio == 2.0
    assert result(3.0, 2.0).of_floor is None
    assert found.plain()["floor_ratio"] == 1.25


def test_the_parts_of_a_trigger_cover_the_same_epochs_as_its_samples() -> None:
    """Not the warm-up, not the first epoch of a turn, and not only the last ones."""
    spent, epochs = Spent(), itertools.count()

    def turn() -> list[float]:
        ran = [{"triggerExecution": 10 * n, "addBatch": 9 * n, "walCommit": n} for n in itertools.islice(epochs, 4)]
        return spent.samples([{"durationMs": each} for each in ran[1:]])

    found = in_turn(3, {"a": turn}, warm_up=2)["a"]
    assert found == [each / 100 for each in (9, 10, 11, 13, 14, 15, 17, 18, 19)]
    parts = spent.parts(len(found))
    assert parts == {"addBatch": 0.126, "walCommit": 0.014}
    assert sum(parts.values()) == pytest.approx(result(found, 1.0).figure(found))
    with pytest.raises(ValueError, match="16 samples are not among the 15 that were returned"):
        spent.parts(16)


# --- a rival ---------------------------------------------------------------------------------------------------------


def await_stop(rival: Rival) -> None:
    """A signal takes a moment to arrive."""
    until = time.monotonic() + 60
    while Path(f"/proc/{rival._process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "T":
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_rival_answers_from_another_process_and_stands_still_in_between() -> None:
    with Rival(functools.partial, int) as rival:
        for number in (7, 8):
            await_stop(rival)
            assert rival(str(number)) == number
        await_stop(rival)
    assert not rival._process.is_alive()


def test_the_traceback_of_a_rival_that_fails_arrives() -> None:
    with (
        Rival(functools.partial, int) as rival,
        pytest.raises(RivalFailed, match=r"Traceback(.|\n)*invalid literal.*'x'"),
    ):
        rival("x")
    with pytest.raises(RivalFailed, match="TypeError"), Rival(functools.partial, 7):
        pytest.fail("what is made there fails before the first question")


def test_a_rival_that_is_still_being_made_can_be_closed() -> None:
    """It may not have a group of its own yet: there was nobody to signal, and it was waited for without end."""
    rival = Rival(functools.partial, int)
    process = rival._process
    rival.close()
    assert process.exitcode == -signal.SIGKILL


def test_a_rival_ends_with_whoever_made_it_though_it_stands_still() -> None:
    program = "import functools, os, time; from bench.rival import Rival\nrival = Rival(functools.partial, int)\n"
    program += "rival.get_ready(); print(rival._process.pid, flush=True); time.sleep(600)"
    maker = subprocess.Popen(
        [sys.executable, "-c", "if __name__ == '__main__':\n    " + program.replace("\n", "\n    ")],
        cwd=Path(command.__file__).parents[1],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert maker.stdout is not None
    pid = int(maker.stdout.readline())
    maker.kill()
    maker.communicate()
    until = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_rivals_are_made_side_by_side_and_all_end() -> None:
    with rivals({"a": (functools.partial, int), "b": (functools.partial, str)}) as both:
        assert (both["a"]("7"), both["b"](7)) == (7, "7")
    assert not any(each._process.is_alive() for each in both.values())


JAVA = {"Python": "3", "Java": "17", "Spark": "4"}


def test_a_run_of_some_modules_renews_their_part_of_an_older_one() -> None:
    def run(figure: float, *names: str, processor: str = "this") -> Document:
        results = [Result("path", "a", "b", [figure], [1.0])]
        modules = [Measured(name, "", 1.0, results) for name in names]
        left_out = [name for name in ("one", "two", "three") if name not in names]
        about = {"machine": {"processor": processor}, "versions": {**JAVA, "Holdfast": f"commit {figure:.0f}"}}
        return Document("today", False, 1.0, **about, modules=modules, left_out=left_out)

    found = run(2.0, "two").renewing(run(1.0, "one", "two"))
    assert [(each.module, each.results[0].ours) for each in found.modules] == [("one", [1.0]), ("two", [2.0])]
    assert (found.seconds, found.left_out) == (2.0, ["three"])
    assert found.versions["Holdfast"] == "commit 1; two: commit 2"
    found = run(2.0, "three").renewing(Document.from_json(found.to_json()))
    assert found.versions["Holdfast"] == "commit 2; one: commit 1"
    found = run(2.0, "one").renewing(found)
    assert (found.versions["Holdfast"], found.left_out) == ("commit 2", [])
    older = run(1.0, "one", "two")
    assert run(2.0, "two").fits(older)
    assert not run(2.0, "two", processor="another").fits(older)


# --- words and curves ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (2.5, "s", "2.5 s"),
        (123.4, "s", "123 s"),
        (0.0123, "s", "12.3 ms"),
        (4.56e-5, "s", "45.6 µs"),
        (3e-8, "s", "30 ns"),
        (0.0, "s", "0 ns"),
        (1234567.8, "rows/s", "1,234,568 rows/s"),
        (12.34, "rows/s", "12.3 rows/s"),
        (1.5e6, "B", "1.5 MB"),
        (999, "B", "999 B"),
        (12, "files", "12 files"),
        (3, "", "3"),
    ],
)
def test_a_figure_has_a_unit_that_fits_its_size(value: float, unit: str, text: str) -> None:
    assert shown(value, unit) == text


def test_ratios_and_goals_are_written_with_their_direction() -> None:
    assert (ratio_of(result(1.234, 1.0)), ratio_of(result(0.0123, 1.0))) == ("1.23x", "0.012x")
    assert ratio_of(result(0.4012, 1.0, goal=0.4)) == "0.4012x"  # "0.40x" would look as if the goal were met
    goals = [goal_of(result(1.0, 1.0, goal=goal, unit=unit)) for goal, unit in ((1.1, "s"), (2, "rows/s"), (None, "s"))]
    assert goals == ["≤ 1.10x", "≥ 2.00x", ""]


def test_names_that_differ_by_one_number_are_a_curve() -> None:
    told = {"1,000 epochs": 2.0, "100 epochs": 1.0, "100 epochs, state (B)": 5.0, "1000 epochs, state (B)": 6.0}
    told |= {"p99": 7.0, "p50": 8.0, "1 gap (files)": 9.0, "idle (B)": 3.0, "ours 10": 1.0, "ours 20": 1.5}
    found = result(1.0, 1.0, details=told)
    assert [(each.label, each.by, each.unit, each.points) for each in curves(found)] == [
        ("", "epochs", "s", {100: 1.0, 1000: 2.0}),
        ("state", "epochs", "B", {100: 5.0, 1000: 6.0}),
        ("ours", "", "s", {10: 1.0, 20: 1.5}),
    ]
    assert [(each.name, each.unit, each.value) for each in facts(found)] == [
        ("p99", "s", 7.0),
        ("p50", "s", 8.0),
        ("1 gap", "files", 9.0),
        ("idle", "B", 3.0),
    ]


# --- what is drawn ---------------------------------------------------------------------------------------------------

MET = result(1.0, 2.0, name="good thing", goal=1.0)
MISSED = result([3.0] * 20, [2.0] * 20, name="bad thing", against="plain <Spark> & | co", goal=1.1, question="stateful")
SLOWER = result(100.0, 200.0, name="rows without a goal", unit="rows/s", question="postgres")
FAR = result(1.0, 9000.0, name="far away", goal=1.0, best=True)
CURVE = result(
    2.0,
    1.0,
    name="restart",
    goal=2.0,
    question="growth",
    details={"10 epochs": 1.0, "1_000_000 epochs": 2.0, "quartile": 0.5},
)
MADE = [
    Measured("triggers", "How it was measured.\n\nWhat is unfair.", 1.0, [MISSED]),
    Measured("postgres", "", 0.1, [], "there is no server"),
    Measured("growth", "By size.", 1.0, [CURVE, SLOWER]),
    Measured("durable", "Writes.", 1.0, [MET, FAR]),
]
RATE = Measured("large", "", 1.0, [result(2.0, 1.0, unit="rows/s", goal=1.0)])
RUN = Document("2030-02-01", True, 90.0, {"cores": "2"}, {"Spark": "4"}, MADE, left_out=["large"])


def test_a_run_goes_through_json_unchanged_and_samples_stay_on_a_line() -> None:
    text = RUN.to_json()
    assert Document.from_json(text) == RUN
    assert f'"ours": [{", ".join(["3.0"] * 20)}],' in text
    assert Document.from_json(text).to_json() == text


def test_the_page_and_the_plot_follow_from_the_json_alone() -> None:
    again = Document.from_json(RUN.to_json())
    assert report.drawn(RUN) == report.drawn(again) == report.drawn(RUN)


def test_the_page_has_every_result_with_its_verdict() -> None:
    text = page(RUN)
    missed = "| bad thing | plain <Spark> & \\| co | 3 s | 2 s | 3 s | 2 s | 1.50x | ≤ 1.10x | **missed** | 20 : 20 |"
    missed += " 0% : 0% |\n"
    assert missed in text
    assert "| good thing | their thing | 1 s | 2 s | 0.50x | ≤ 1.00x | met | 1 : 1 |  |\n" in text
    assert "| rows without a goal | their thing | 100 rows/s | 200 rows/s | 0.50x |  |  | 1 : 1 |  |\n" in text
    assert "| far away | their thing | 1 s, best | 9,000 s, best |" in text
    assert "**4 goals, 3 met. Missed: bad thing (1.50x, ≤ 1.10x)**" in text
    assert "*`bench/triggers.py`*: How it was measured.\n\nWhat is unfair.\n" in text
    assert "| took | 1.5 minutes, quick: few rounds, small sizes |" in text


def test_a_missed_goal_is_shown_with_its_floor_and_a_floor_has_a_row() -> None:
    floor = Floor("a bare commit", [2.5] * 20)
    missed = dataclasses.replace(MISSED, floor=floor)
    run = dataclasses.replace(RUN, modules=[Measured("one", "", 1.0, [missed, dataclasses.replace(MET, floor=floor)])])
    text = page(run)
    assert "| 1.50x | ≤ 1.10x | **missed**; floor 1.25x | 20 : 20 |" in text
    assert "| floor: a bare commit | plain <Spark> & \\| co | 2.5 s | 2 s |" in text
    assert "| 0.50x | ≤ 1.00x | met | 1 : 1 |" in text  # its floor has a row too
    assert text.count("| floor: a bare commit |") == 2
    assert "2 goals, 1 met. Missed: bad thing (1.50x, ≤ 1.10x, floor 1.25x)" in text
    assert "; the goal was ≤ 1.10x, the floor 1.25x: a bare commit.\n" in text
    assert plot(run).count("floor 1.25x") == 2  # in the summary and beside the bar
    assert "floor: a bare commit" in table(run.results)
    assert Document.from_json(run.to_json()) == run


def test_a_curve_is_a_table_by_size_and_a_lone_figure_a_line() -> None:
    assert "### Restart\n\n| epochs | time |\n| --: | --: |\n| 10 | 1 s |\n| 1,000,000 | 2 s |\n" in page(RUN)
    assert "Also measured, restart:\n\n- quartile: 500 ms\n" in page(RUN)


def test_what_is_left_with_the_same_settings_is_told_first_and_drawn() -> None:
    alike = Result("large", "a thing", "theirs, set alike", [1.25], [1.0], alike=True)
    bare = Result("large", "a thing", "plain Spark", [1.25], [2.5])
    run = dataclasses.replace(RUN, modules=[Measured("one", "", 1.0, [alike, bare])])
    row = "| Large batches to Parquet | a thing | theirs, set alike | 1.25x | 0.50x | less |\n\n!["
    assert "| with the same settings | plain Spark with its defaults | better is |\n" in page(run)
    assert row in page(run)
    assert "1.25x   same settings" in plot(run)
    assert "with the same settings" not in page(RUN) + plot(RUN)


def test_what_is_told_of_both_sides_is_a_table() -> None:
    told = {"planning, ours": 0.5, "writing, ours": 1.0, "planning, theirs": 2.0}
    module = Measured("one", "", 1.0, [Result("path", "a", "b", [1.0], [1.0], details=told)])
    table = "|  | ours | theirs |\n| --- | --: | --: |\n| planning | 500 ms | 2 s |\n| writing | 1 s |  |\n"
    assert table in page(dataclasses.replace(RUN, modules=[module]))


def test_what_is_not_in_our_favour_is_listed_and_nothing_else() -> None:
    text = page(RUN).split("## What is not in our favour\n")[1].replace(NOT_IN_OUR_FAVOUR, "")
    assert text.strip().splitlines() == [
        "**Goals that were missed**",
        "",
        f"- {QUESTIONS['stateful']}: bad thing, 3 s against 2 s, 1.50x (plain <Spark> & | co); the goal was ≤ 1.10x.",
        "",
        "**Slower than others**",
        "",
        f"- {QUESTIONS['postgres']}: rows without a goal, 100 rows/s against 200 rows/s, 0.50x (their thing).",
        "",
        "**Slower than a floor, or growing with size**",
        "",
        "- Growth: restart, 2 s against 1 s, 2.00x (their thing); the goal was ≤ 2.00x.",
        "",
        "- `postgres` could not run: there is no server.",
        "- Left out of this run: `large`.",
    ]


def test_the_prose_has_no_figures_of_its_own() -> None:
    for text in (*(each.opening + each.not_in_our_favour for each in PAGES), *PROSE.values()):
        assert not re.search(r"\d", text.replace("p99", ""))
    assert PROSE.keys() == QUESTIONS.keys()


def texts(svg: str) -> list[str]:
    return ["".join(each.itertext()) for each in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]  # noqa: S314 - ours


def test_the_plot_says_in_words_what_it_says_in_colours() -> None:
    found = texts(plot(RUN))
    assert "1.50x   goal ≤ 1.10x   missed" in found
    assert "0.50x   goal ≤ 1.00x   met" in found
    assert "against plain <Spark> & | co" in found
    assert "rows without a goal" not in found  # a bar is for a goal
    assert "ours: 2 s at 1,000,000 epochs" in texts(charts(RUN))
    assert "against their thing; rows per second, more is better" in texts(
        plot(dataclasses.replace(RUN, modules=[RATE]))
    )
    assert "1.0x" in found


@pytest.mark.parametrize("draw", [plot, charts])
def test_nothing_in_the_plot_stands_outside_of_it(draw: Callable[[Document], str]) -> None:
    svg = draw(RUN)
    width, height = map(float, re.findall(r'viewBox="0 0 (\d+) (\d+)"', svg)[0])
    for x, y in re.findall(r' x="([-\d.]+)" y="([-\d.]+)"', svg):
        assert 0 <= float(x) <= width
        assert 0 <= float(y) <= height


@pytest.mark.parametrize(
    "told", [{"10 a": 0.0, "20 a": 1.0}, {"10 a": 1.0, "20 a": 1.0}, {"0 a": 1.0, "20 a": 1.0, "30 a": 3.0}]
)
def test_curves_with_nothing_or_little_in_them_are_drawn_as_far_as_they_go(told: dict[str, float]) -> None:
    drawn = Document("", False, 0.0, {}, {}, [Measured("growth", "", 0.0, [result(1.0, 1.0, details=told)])])
    assert "</svg>" in charts(drawn)
    assert "| a | time |" in page(drawn)


def test_a_question_that_nobody_asked_is_refused() -> None:
    """Else its results would be in no table."""
    with pytest.raises(ValueError, match="no such question: 'mine'"):
        result(1.0, 1.0, question="mine")


def test_the_spread_is_that_of_the_quartiles() -> None:
    found = result([8.0, 9.0, 10.0, 11.0, 12.0], [1.0])
    assert found.spread(found.ours) == pytest.approx(0.3)
    assert found.spread(found.theirs) is None


def test_an_empty_run_is_drawn_too() -> None:
    empty = Document("", False, 0.0, {}, {}, [])
    assert "**no goals**" in page(empty)
    assert "</svg>" in plot(empty)
    assert "</svg>" in charts(empty)


def test_the_table_fits_a_terminal_and_ends_with_the_sum() -> None:
    text = table(RUN.results)
    assert max(map(len, text.splitlines())) <= report.WIDTH
    assert text.rstrip().splitlines()[-1] == "4 goals, 3 met. Missed: bad thing (1.50x, ≤ 1.10x)"
    at = {line.rindex("x") for line in text.splitlines() if re.search(r"≤ \S+x (met|missed)", line)}
    assert len(at) == 1  # goals are aligned over all questions
    assert re.search(r"10 epochs: 1 s · 1,000,000 epochs: 2 s · quartile: 500 ms", text)


def test_on_a_narrow_screen_no_name_is_cut_inside_a_word() -> None:
    long = result(1.0, 2.0, name="a name of several long-winded words", against="another of considerable length")
    text = table([long], 80)
    assert max(map(len, text.splitlines())) <= 80
    for word in f"{long.name} {long.against}".split():
        assert word in text


def test_the_table_names_what_could_not_be_measured() -> None:
    text = io.StringIO()
    show([MET], RUN.failed, Console(file=text, width=80))
    assert "postgres could not run: there is no server" in text.getvalue()
    assert total([MET]) == "1 goal, 1 met"


# --- running ---------------------------------------------------------------------------------------------------------


def pretend(monkeypatch: pytest.MonkeyPatch, name: str, found: Any) -> None:
    module = types.ModuleType(f"bench.{name}", "How it is done.")

    def run(quick: bool) -> list[Result]:
        if isinstance(found, Exception):
            raise found
        return [found]

    module.run = run  # type: ignore[attr-defined]
    module.VERSIONS = {"Their server": "1"}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, f"bench.{name}", module)


def test_one_that_fails_or_cannot_run_is_told_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pretend(monkeypatch, "triggers", CannotMeasure("there is no server\nNext: install one"))
    pretend(monkeypatch, "large", ValueError("in /a/path"))
    pretend(monkeypatch, "sinks", MET)
    assert command.main(["triggers", "large", "sinks", "--json", str(tmp_path / "out.json")]) == 1
    printed, told = capsys.readouterr()
    assert "Next: install one" in told and "ValueError: in /a/path" in told
    assert re.search(r"^sinks \(3 of 3\) took 0 s, 0.0 min in total$", told, re.MULTILINE)
    assert "1 goal, 1 met" in printed
    found = Document.from_json((tmp_path / "out.json").read_text())
    assert found.failed == {"triggers": "there is no server", "large": "it failed with ValueError"}
    assert found.versions["Their server"] == "1"
    others = [name for name in MODULES if name not in ("triggers", "large", "sinks")]
    assert (found.modules[2].method, found.left_out) == ("How it is done.", others)


def test_the_exit_code_says_whether_all_goals_are_met_and_nothing_is_written_unasked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(command, "FOLDER", tmp_path)
    pretend(monkeypatch, "large", MISSED)
    pretend(monkeypatch, "sinks", MET)
    assert command.main(["large", "--quick"]) == 1
    assert list(tmp_path.iterdir()) == []
    assert command.main(["sinks", "--write"]) == 0
    assert {each.name for each in tmp_path.iterdir()} == {MAIN.json, MAIN.page, MAIN.plot, MAIN.charts}
    written = Document.from_json((tmp_path / MAIN.json).read_text())
    drawn = report.drawn(written)
    assert drawn == {name: (tmp_path / name).read_text() for name in (MAIN.page, MAIN.plot, MAIN.charts)}


def test_json_on_the_screen_is_json_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pretend(monkeypatch, "large", MISSED)
    assert command.main(["large", "--quick", "--json", "-"]) == 1
    found = capsys.readouterr()
    assert Document.from_json(found.out).results == [MISSED]
    assert "1 goal, 0 met" in found.err
    assert "quick: few samples" in found.err
    assert "exit code 1: all benchmarks ran, but a goal was missed" in found.err
    with pytest.raises(SystemExit) as ended:
        command.main(["large", "--json", str(tmp_path)])
    assert ended.value.code == 2
    assert "is a folder" in capsys.readouterr().err


def test_an_unknown_benchmark_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["trigers"])
    assert "no such benchmark: trigers" in capsys.readouterr().err


def test_a_part_of_a_page_is_refused_before_it_is_measured_if_the_rest_is_of_another_machine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Otherwise, the results of all other modules would be dropped from the page."""
    monkeypatch.setattr(command, "FOLDER", tmp_path)
    (tmp_path / MAIN.json).write_text(RUN.to_json())
    with pytest.raises(SystemExit):
        command.main(["large", "--write"])
    assert "measure all modules" in capsys.readouterr().err
    assert [each.name for each in tmp_path.iterdir()] == [MAIN.json]
    assert (tmp_path / MAIN.json).read_text() == RUN.to_json()


def test_a_page_that_is_out_of_date_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(report, "FOLDER", tmp_path)
    monkeypatch.setattr(sys, "argv", ["report"])
    assert report.main() == 1  # there is nothing to draw from
    for each in PAGES:
        (tmp_path / each.json).write_text(RUN.to_json())
    assert report.main() == 0
    assert not (tmp_path / PEERS.charts).exists()  # it has no curves
    (tmp_path / MAIN.page).write_text("# Something else\n")
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["report", "--check"])
    assert (report.main(), capsys.readouterr().err) == (1, "out of date: benchmarks.md. Next: make docs\n")


def test_machine_and_versions_are_told_without_paths() -> None:
    found = machine.machine() | machine.versions()
    assert {"cores", "processor", "system", "Holdfast", "Python"} <= found.keys()
    assert not any(re.search(r"/\w+/|/tmp|/root", value) for value in found.values())
    assert re.fullmatch(r"Linux [\d.]+", found["system"])  # not that of one build of the kernel
