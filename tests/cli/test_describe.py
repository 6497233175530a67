"""`clearhead describe`: what it prints is what `describe` counts, in 80 columns; and wrong questions are told."""

import json
import re

import pytest

from clearhead.cli import run
from clearhead.cli.describe import format_count, format_percent
from clearhead.model import presets
from clearhead.model.describe import describe
from clearhead.model.sizes import KINDS, named, sized


@pytest.fixture
def printed(capsys, plain_terminal):
    """Runs `clearhead describe` with these arguments, and gives what it printed."""

    def ran(*args):
        assert run(["describe", *args]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        return out

    return ran


@pytest.fixture
def refused(capsys, plain_terminal):
    """Runs it with arguments that are wrong, and gives what it said."""

    def ran(*args, code=2):
        assert run(["describe", *args]) == code
        out, err = capsys.readouterr()
        assert out == ""
        assert len(err.splitlines()) == (2 if code == 2 else 1)
        return err

    return ran


def rows(page):
    """The parameters and operations that stand beside each part, in order: (indent, name, parameters, operations)."""
    found = re.findall(
        r"^(  +)(\S.*?) {2,}([\d,]+|shared)(?: +<?[\d.]+ %)? +([\d.]+ ?[kMGTP]?)(?: +<?[\d.]+ %)?$", page, re.MULTILINE
    )
    return [(len(indent), name, parameters, operations.strip()) for indent, name, parameters, operations in found]


@pytest.mark.parametrize("model", ["tiny", "gpt2-medium", "bert", "llama-1b"])
@pytest.mark.slow
def test_the_page_has_every_part_with_its_numbers(printed, model):
    made, page = describe(named(model)), printed(model)
    wanted = []
    for section in made.sections:
        name = section.name if section.count == 1 else f"{section.name} × {section.count}"
        wanted.append((2, name, f"{section.parameters:,}", format_count(section.operations).strip()))
        for part in section.parts:
            parameters = section.count * part.parameters
            shown = "shared" if part.shares and not parameters else f"{parameters:,}"
            wanted.append((4, part.name, shown, format_count(section.count * part.operations).strip()))
    wanted.append((2, "in all", f"{made.parameters:,}", format_count(made.operations).strip()))
    assert rows(page) == wanted


@pytest.mark.parametrize(
    "args", [["base"], ["gpt2-xl", "--target-length", "1024"], ["llama-7b", "--target-length", "100000"]]
)
@pytest.mark.slow
def test_the_page_fits_80_columns_without_escape_codes(printed, args):
    page = printed(*args)
    assert max(len(line) for line in page.splitlines()) <= 80
    assert "\x1b" not in page


@pytest.mark.slow
def test_the_page_says_what_is_shared_and_what_is_counted(printed):
    page = " ".join(printed("base").split())
    assert "encoder.embedding.table is shared with decoder embedding and decoder output, and counted once." in page
    assert "two for a multiply-add" in page
    assert "encoder-decoder · d_model 512 · 6 + 6 blocks · vocabulary 37,000" in page
    assert "batch 1 · source 128 tokens · target 128 tokens" in page
    assert "parameters 252 MB 126 MB" in page
    assert "cache, each source token 24.6 kB 12.3 kB" in page


@pytest.mark.slow
def test_json_holds_the_whole_description(printed):
    answer = json.loads(
        printed(
            "tiny", "--vocabulary", "500", "--source-length", "20", "--target-length", "9", "--batch", "3", "--json"
        )
    )
    made = describe(presets.tiny(500), batch=3, source=20, target=9)
    assert (answer["model"], answer["kind"], answer["vocabulary"]) == ("tiny", "encoder-decoder", 500)
    assert (answer["d_model"], answer["n_layers"]) == (128, [4, 4])
    assert (answer["batch"], answer["source"], answer["target"]) == (3, 20, 9)
    for name in ("parameters", "trainable", "frozen", "operations"):
        assert answer[name] == getattr(made, name)
    for name in ("parameters", "operations", "frozen"):
        assert sum(part[name] for section in answer["sections"] for part in section["parts"]) == getattr(made, name)
        assert sum(section[name] for section in answer["sections"]) == getattr(made, name)
    assert [(section["name"], section["count"]) for section in answer["sections"]] == [
        (section.name, section.count) for section in made.sections
    ]
    assert answer["memory"]["bfloat16"]["parameters"] == 2 * made.parameters
    assert answer["memory"]["float32"]["token"] == made.memory().token


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_a_kind_with_a_size(printed, kind):
    answer = json.loads(printed(kind, "--size", "1.5M", "--vocabulary", "1000", "--json"))
    assert answer["parameters"] == describe(sized(kind, 1_500_000, 1000)).parameters
    assert answer["parameters"] == pytest.approx(1_500_000, rel=0.1)
    assert answer["kind"] == kind


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "Missing MODEL: A run folder"),
        (["gpt3"], "MODEL: there is no 'gpt3'. Did you mean 'gpt2'? There are tiny, base, big, gpt2, gpt2-tiny,"),
        (["base", "--size", "10M"], "--size: 'base' has its own size. With --size there are: encoder-decoder,"),
        (["decoder"], "--size: 'decoder' can have any size: give one, such as --size 10M"),
        (["decoder", "--size", "10X"], "--size: '10X' is no number of parameters; write 300k, 10M"),
        (["decoder", "--size", "10k"], "vocabulary of 32,000: the least is 518,736; raise the size, or lower the voc"),
        (["gpt2", "--source-length", "5"], "--source-length: gpt2 is a decoder, and reads no source: use --target-l"),
        (["bert", "--target-length", "5"], "--target-length: bert is an encoder, and writes no target: use --sour"),
        (["base", "--vocabulary", "0"], "--vocabulary"),
        (["base", "--batch", "none"], "--batch"),
    ],
)  # fmt: skip
def test_what_is_asked_wrongly_is_told_in_two_lines(refused, args, said):
    assert said in refused(*args)


def test_more_tokens_than_there_are_positions_is_told_in_a_line(refused):
    assert "positions 0 to 511, and 0 to 999 were asked for" in refused("bert", "--source-length", "1000", code=1)


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 "), (999, "999 "), (1000, "1.00 k"), (9_994, "9.99 k"), (9_996, "10.0 k"), (99_960, "100 k"),
     (999_499, "999 k"), (999_500, "1.00 M"), (16_628_056_064, "16.6 G"), (3 * 10**18, "3.00 E")],
)  # fmt: skip
def test_large_numbers_have_three_digits(number, text):
    assert format_count(number) == text


def test_shares_are_percents_and_nothing_is_left_blank():
    assert [format_percent(number, 1000) for number in (0, 1, 125, 1000)] == ["", "0.1 %", "12.5 %", "100.0 %"]
    assert format_percent(1, 100_000) == "<0.1 %"
