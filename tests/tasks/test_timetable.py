"""Timetables: jobs that wait for each other, and JSON records of them."""

from __future__ import annotations

import datetime
import json
import re

import pytest

from unmask.tasks.text_problems import Problem
from unmask.tasks.timetable import JOBS, Timetable

PROBLEM = Problem(
    "paint takes 2, after dig;dig takes 3, from Thu;",
    '[{"job":"paint","after":"dig","days":2,"start":"Sun","end":"TUE","weekend":false},\n '
    '{"job":"dig","after":null,"days":3,"start":"THU","end":"Sunday","weekend":true}]',
    "2 steps",
    "",
)


def test_answers_agree_with_the_calendar() -> None:
    """Every record follows from the sentences alone; Monday, 2 January 2023, is a first Monday."""
    seen = set()
    for problem in Timetable(count=60).corpus:
        lines = re.findall(r"(\w+) takes (\d), (?:after (\w+)|from (\w+));", problem.prompt)
        records = {record["job"]: record for record in json.loads(problem.answer)}
        assert [line[0] for line in lines] == list(records)
        assert lines[0][2] in [line[0] for line in lines[1:]]  # left to right has to guess
        ends: dict[str, datetime.date] = {}
        while len(ends) < len(lines):
            for name, days, before, day in lines:
                if name in ends or (before and before not in ends):
                    continue
                first = ends[before] if before else datetime.datetime.strptime(f"2023 1 {day}", "%G %V %a").date()
                ends[name] = first + datetime.timedelta(int(days))
                record, last = records[name], ends[name]
                assert (record["after"], record["days"]) == (before or None, int(days))
                for key, date in (("start", first), ("end", last)):
                    assert record[key] in (f"{date:%a}", f"{date:%A}", f"{date:%a}".upper())
                assert record["weekend"] is (last.weekday() >= 5)
        seen |= set(records)
        assert problem.stratum in ("2 steps", "3 steps", "4 steps")
    assert seen == set(JOBS)


@pytest.mark.parametrize(
    ("change", "exact", "share"),
    [
        (("", ""), True, 1.0),
        (('"Sun"', '"SUN"'), True, 1.0),
        (('"TUE"', '"Tuesday"'), True, 1.0),
        (('"TUE"', '"WED"'), False, 11 / 12),
        (('"TUE"', '["TUE"]'), False, 11 / 12),
        (("true", "false"), False, 11 / 12),
        (('"days":2', '"days":true'), False, 11 / 12),
        (('"after":null', '"after":"paint"'), False, 11 / 12),
        (('"after":null,', ""), False, 11 / 12),
        (("},\n", "}\n"), False, 0.0),  # no JSON
        (("]", ',{"job":"wire"}]'), False, 0.0),
    ],
)
def test_verdicts(change: tuple[str, str], exact: bool, share: float) -> None:
    assert Timetable.grade(PROBLEM, PROBLEM.answer.replace(*change)) == (exact, pytest.approx(share))


@pytest.mark.parametrize("text", ["", "{}", "[1, 2]", '[{"job":"paint"}]', "[" * 10_000])
def test_texts_that_are_no_timetable(text: str) -> None:
    assert Timetable.grade(PROBLEM, text) == (False, 0.0)


def test_names_order_and_notation_do_not_make_another_problem() -> None:
    problems = Timetable(count=4000).corpus
    same = [one for one in problems if one.form == problems[0].form]
    assert len({one.prompt for one in same}) > 1
    assert Timetable(count=40, split="test").corpus == Timetable(count=40, split="test").corpus
