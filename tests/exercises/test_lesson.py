"""Lessons: what a teacher may write, and what is said where it cannot be."""

import json
import re
from importlib.resources import files

import pytest

from clearhead.errors import DataError
from clearhead.exercises.lesson import find_lesson, lesson_tags, read_lesson


def test_the_lessons_that_come_with_it_are_alike_in_both_languages():
    english, german = find_lesson("attention"), find_lesson("attention-de")
    assert {file.name for file in (files("clearhead.exercises") / "lessons").iterdir()} == {
        "attention.md",
        "attention-de.md",
    }
    assert [step["chapter"] for step in english["steps"]] == [step["chapter"] for step in german["steps"]]
    assert [len(step["choices"]) for step in english["steps"]] == [len(step["choices"]) for step in german["steps"]]


def test_chapters_texts_tasks_questions_and_exercises_are_read(tmp_path):
    path = tmp_path / "mine.md"
    path.write_text(
        "# Mine\nlanguage: de\nsentence: vier\n\n## softmax\nLook *here*.\n\nAnd here.\n## Own\nsentence: neun\n"
        "answer: five\nTry [[softmax]].\n## Ask\nchoice: * a\nchoice: b\n## exercise addition\nIn pairs.\n"
        "## exercise reverse\n## exercise look-back\nAlone.\n## exercise scale\n",
        encoding="utf-8-sig",  # as editors of Windows write it
    )
    lesson = find_lesson(str(path))
    assert (lesson["title"], lesson["language"], lesson["sentence"]) == ("Mine", "de", "vier")
    chapter, own, ask, exercise, *others = lesson["steps"]
    assert (chapter["chapter"], chapter["said"]) == ("softmax", ["Look **here**.", "And here."])
    assert (own["name"], own["sentence"], own["answer"], own["said"]) == ("own-2", "neun", "five", ["Try [softmax]."])
    assert ask["choices"] == [{"text": "a", "right": True}, {"text": "b", "right": False}]
    assert exercise["title"] == "Addition"
    assert (exercise["exercise"], exercise["code"]) == (None, "$ clearhead learn solve addition")
    assert exercise["said"][:1] == ["In pairs."]
    assert exercise["said"][1].startswith("Der Text ist eine Summe")
    assert [(one["name"], one["exercise"], one["view"], one["said"]) for one in others[:2]] == [
        ("reverse", "reverse", "exercises", []),
        ("look-back", "look-back", "design", ["Alone."]),
    ]
    assert others[2]["code"] == "def scale(scores, d):\n    ...\n\n$ clearhead learn write attention.py"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("## softmax\n", "expected one title"),
        ("# A\n# B\n## softmax\n", "came 2"),
        ("# A\n", "expected 1 to 64 steps"),
        ("# A\nlanguage: fr\n## softmax\n", "expected en or de; came 'fr'"),
        ("# A\n## softmaxx\n", "Did you mean 'softmax'"),
        ("# A\n## softmax\nanswer: five\n", "has a task already"),
        ("# A\n## Own\nchoice: a\nchoice: b\n", "a right one begins with"),
        ("# A\n## Own\nchoice: * a\n", "two choices or more"),
        ("# A\n## exercise revers\n", "Did you mean 'reverse'"),
        ("# A\n" + "## softmax\n" * 65, "came 65"),
    ],
)
def test_what_cannot_be_is_told_in_a_sentence(text, message):
    with pytest.raises(DataError, match=re.escape(message)):
        read_lesson(text, where="mine.md")


def test_a_name_that_is_none_lists_those_there_are():
    with pytest.raises(DataError, match="there are attention, attention-de"):
        find_lesson("attenton")


def test_nothing_in_a_lesson_ends_its_tag():
    lesson = read_lesson("# </script><b>\nsentence: <!--\n## Own\n</script>\n", where="mine.md")
    tags = lesson_tags(lesson)
    assert tags.count("</script>") == 2
    assert "<!--" not in tags
    content = tags.partition(">")[2].partition("</script>")[0]
    assert json.loads(content) == lesson
