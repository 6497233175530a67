"""Means over many texts, and the texts that excite a value: held to one text at a time."""

import pytest
import torch

import clearhead as ch
from clearhead.errors import OptionError, PlaceError
from clearhead.experiments import exciting_texts, mean_effects, mean_readings, repeats
from clearhead.experiments.many_texts import effects_in, read_texts
from clearhead.tracing import readings
from tests.training.small_runs import documents, trained, translating

TEXTS = ["the cat eats the plum", "the dog", "the cow eats the pear, größer"]
SITE = "decoder.0.attention"


def test_a_mean_is_over_texts_read_one_by_one(tmp_path_factory, tmp_path):
    run = trained(documents, tmp_path_factory)
    found = mean_readings(run, TEXTS)[SITE]
    for name in ("entropy", "previous", "gain"):
        each = torch.tensor([[getattr(head, name) for head in readings(ch.trace(run, text), SITE)] for text in TEXTS])
        assert found[name].mean.tolist() == pytest.approx(each.mean(0).tolist(), abs=1e-6)
        assert found[name].deviation.tolist() == pytest.approx(each.std(0, correction=0).tolist(), abs=1e-6)
        assert found[name].n_texts.tolist() == [3, 3]
    (tmp_path / "lines.txt").write_text("\n\n".join(TEXTS), encoding="utf-8")
    again = mean_readings(run.folder.path, tmp_path / "lines.txt", sites=[SITE])[SITE]
    assert again["entropy"].mean.tolist() == pytest.approx(found["entropy"].mean.tolist(), abs=1e-6)


def test_what_a_text_does_not_have_is_left_out_of_the_mean(tmp_path_factory):
    """Of a text without a repeated token there is no induction."""
    run = trained(documents, tmp_path_factory)
    found = mean_readings(run, ["the cat", "the cat eats the cat"])[SITE]["induction"]
    assert found.n_texts.tolist() == [1, 1]
    assert found.deviation.tolist() == [0, 0]


def test_effects_are_those_of_each_text(tmp_path_factory):
    run = trained(documents, tmp_path_factory)
    found = mean_effects(run, TEXTS[:2])[SITE]
    each = [[one.change for one in effects_in(run, ch.trace(run, text), SITE)] for text in TEXTS[:2]]
    assert found["change"].mean.tolist() == pytest.approx(torch.tensor(each).mean(0).tolist(), abs=1e-6)
    assert found["divergence"].mean.min() >= 0


def test_repeats_have_the_same_tokens_twice(tmp_path_factory):
    run = trained(documents, tmp_path_factory)
    rows = repeats(run, count=3, length=6, seed=1)
    first = len(rows[0]) - 12
    assert all(row[first : first + 6] == row[first + 6 :] for row in rows)
    assert rows == repeats(run, count=3, length=6, seed=1) != repeats(run, count=3, length=6, seed=2)
    assert not any(token in run.tokenizer.special for row in rows for token in row[first:])
    assert mean_readings(run, rows)[SITE]["induction"].n_texts.tolist() == [3, 3]
    with pytest.raises(OptionError, match="does not read one text of 80 tokens"):
        repeats(run, length=40)
    with pytest.raises(OptionError, match="does not read one text"):
        repeats(trained(translating, tmp_path_factory), length=4)


def test_the_texts_that_excite_a_unit_or_a_head_most_come_first(tmp_path_factory):
    run = trained(documents, tmp_path_factory)
    at = "decoder.0.feed_forward.hidden"
    found = exciting_texts(run, TEXTS, at, 5, most=2)
    each = {text: ch.trace(run, text).value(at)[:, 5] for text in TEXTS}
    order = sorted(TEXTS, key=lambda text: -each[text].max().item())
    assert [one.text for one in found] == order[:2]
    assert found[0].value == pytest.approx(each[order[0]].max().item(), abs=1e-6)
    assert found[0].place == each[order[0]].argmax().item()
    assert found[0].token == ch.trace(run, order[0]).sides["decoder"].tokens[found[0].place]
    head = exciting_texts(run, TEXTS, SITE, 1)
    assert [one.value for one in head] == sorted((one.value for one in head), reverse=True)
    assert len(head) == 3
    with pytest.raises(PlaceError):
        exciting_texts(run, TEXTS, SITE, 9)
    with pytest.raises(OptionError, match="there is no unit 9999"):
        exciting_texts(run, TEXTS, at, 9999)
    with pytest.raises(OptionError, match="there is no file"):
        mean_readings(run, "no-such-file.txt")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected at least one; came none"),
        (b" \n\n", "at least one"),
        ("größe".encode("latin1"), "texts.txt: cannot be read .'utf-8"),
    ],
)
def test_a_file_without_text_is_refused(content, message, tmp_path):
    (tmp_path / "texts.txt").write_bytes(content)
    with pytest.raises(OptionError, match=message):
        read_texts(tmp_path / "texts.txt")
