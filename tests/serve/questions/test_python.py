"""Copy as Python: the lines of every question run, use public names, and give the numbers of its answer."""

import ast
import math
import re

import pytest
import torch

import clearhead as ch
from clearhead.errors import OptionError
from clearhead.experiments.rasp_run import compile_to_run
from clearhead.model.presets import Size
from clearhead.rasp import PROGRAMS
from clearhead.serve.explorer import Explorer
from clearhead.serve.question_table import QUESTIONS
from clearhead.serve.questions.circuit import suggest_text
from clearhead.serve.questions.question import TraceQuestion
from clearhead.taps import Tapped
from clearhead.tracing.recording import StoppedError, stopping_when
from clearhead.training.run import load
from clearhead.training.tasks.learning import decoder
from tests.serve.asking import ask
from tests.test_public import is_public
from tests.training.small_runs import classifying, documents, filling, trained, translating


def compiled(factory):
    return load(compile_to_run(PROGRAMS["histogram"], factory.mktemp("compiled") / "histogram").path, device="cpu")


def imported(factory):
    from clearhead.interop.run import import_model
    from tests.interop.saved_models import save  # transformers takes seconds to import

    home = factory.mktemp("imported")
    save("gpt2", home / "model")
    import_model(home / "model", home / "run")
    return load(home / "run", device="cpu")


def deep(folder):
    task, source, tokenizing, _ = documents(folder)
    return task, source, tokenizing, decoder(Size(6, 32, 4, 2, 64), 32, 0.0)


TEXTS = {translating: "zwei drei", documents: "the cat eats the", filling: "the <mask> eats", classifying: "red plum"}
TEXTS |= {deep: "the cat eats the", compiled: "a b c a", imported: "ab abc"}
KINDS = [*[*TEXTS][:-1], pytest.param(imported, marks=pytest.mark.slow)]
OTHERS = {translating: "drei vier", documents: "the dog eats the", filling: "the <mask> the", classifying: "red cow"}
OTHERS |= {deep: "the dog eats the", compiled: "a b c d", imported: "ab abd"}


def near(value, answer):
    """Compare numbers of any shape, null standing for what is not finite."""
    found = torch.as_tensor(value, dtype=torch.float64).flatten().tolist()
    told = torch.tensor(flat(answer), dtype=torch.float64).tolist()
    assert len(found) == len(told)
    for one, other in zip(found, told, strict=True):
        assert one == pytest.approx(other, rel=1e-4, abs=1e-4) or not (math.isfinite(one) or math.isfinite(other))


def flat(answer):
    if isinstance(answer, torch.Tensor):
        return answer.flatten().tolist()
    if isinstance(answer, list | tuple):
        return [number for item in answer for number in flat(item)]
    return [float("nan") if answer is None else float(answer)]


def compare_steps(value, answer):
    for name in ("query", "score", "scaled", "masked", "weight", "context"):
        near(getattr(value, name)[0], answer[name])


def compare_cell(value, answer):
    for name in ("products", "score", "scaled", "masked", "weight", "value", "share", "context"):
        near(getattr(value, name), answer[name])


def compare_thumbs(value, answer):
    for weight, thumb in zip(value, answer, strict=True):
        seen = thumb != 255
        assert ((weight.clamp(0, 1).sqrt() * 254).round() - thumb)[seen].abs().max() <= 1


def compare_box(value, answer):
    for name, numbers in value.items():
        rows = numbers[0] if numbers.ndim == 3 else numbers
        near(rows[0] if rows.ndim == 2 else rows, answer["values"][name])


def compare_lens(value, answer):
    for layer, told in zip(value, answer["layers"], strict=True):
        assert layer.name == told["name"]
        near([row[0].log_prob for row in layer.rows], [math.log(row[0]["p"]) for row in told["rows"]])


def compare_readings(value, answer):
    for site, heads in value.items():
        for name, numbers in answer[site].items():
            near([math.nan if getattr(head, name) is None else getattr(head, name) for head in heads], numbers)


def compare_candidates(value, answer):
    for row, told in zip(value, answer["candidates"], strict=True):
        near([math.exp(one.log_prob) for one in row], [one["p"] for one in told])


def compare_outputs(value, answer):
    told = [output["ids"] for output in answer["outputs"]]
    assert [has_tokens(ids, tokens) for ids, tokens in zip(value, told, strict=True)] == [True] * len(told)


def has_tokens(ids, tokens):
    """Check that a traced output has these tokens, which are cut or go on where the limits differ."""
    tokens = tokens[:-1]  # the last is written, and not read any more
    return any(ids[i : i + len(tokens)] == tokens[: len(ids) - i] for i in range(len(ids)))


def compare_neighbours(value, answer):
    near(value.values[1:], [one["cosine"] for one in answer["tables"][0]["near"]])


def compare_patches(value, answer):
    for row in answer["rows"]:
        near(value[row["name"]], row["recovered"])


def compare_parts(value, answer):
    near([*value.parts.values()], [part["value"] for part in answer["parts"]])
    near(value.total, answer["total"])


def compare_edges(value, answer):
    last = len(answer["sizes"])
    told = {(edge["sender"], edge["receiver"]): edge["score"] for edge in answer["edges"] if edge["first"] < last}
    near(
        [scored.score for scored in value if scored.edge in told],
        [told[scored.edge] for scored in value if scored.edge in told],
    )
    assert set(told) <= {tuple(scored.edge) for scored in value}


def compare_units(value, answer):
    near([value[unit["unit"]] for unit in answer["units"]], [unit["steps"]["hidden"] for unit in answer["units"]])


def compare_spaces(value, answer):
    for name in ("embedding", "query_key", "score", "value"):
        near(getattr(value, name), answer[name])


def compare_stream(value, answer):
    assert list(value) == [row["name"] for row in answer["rows"]]
    near(torch.stack([*value.values()]), [row["norm"] for row in answer["rows"]])


def compare_ids(value, answer):
    assert value == [token["id"] for word in answer["words"] for token in word]


def compare_lines(value, answer):
    near([line["step"] for line in value], [line["step"] for line in answer["lines"]])


def compare_effects(value, answer):
    near([effect.change for effect in value], [effect["change"] for effect in answer["effects"]])


def compare_number(value, answer):
    near(value, answer["value"])


def compare_tokens(value, answer):
    copies, seeks, copying = value
    for found, told in ((copies, answer["copies"]), (seeks, answer["seeks"])):
        near([one.score for one in found], [one["score"] for one in told])
    near(copying, answer["copying"])


def compare_excited(value, answer):
    near([one.value for one in value], [one["value"] for one in answer["texts"]])
    assert [one.token for one in value] == [one["token"] for one in answer["texts"]]


def compare_means(value, answer):
    for name, one in value[answer["site"]].items():
        near(one.mean, answer["metrics"][name]["mean"])
        near(one.deviation, answer["metrics"][name]["deviation"])


def compare_diagram(value, answer):
    assert value == answer["svg"]


def compare_sequence(value, answer):
    """The diagram writes every weight of the row, as a number or in percent."""
    written = [float(number) for number in re.findall(r"\d+\.?\d*", answer["svg"])]
    for weight in value.weight[0].tolist():
        assert min(min(abs(weight - other), abs(weight - other / 100)) for other in written) < 0.006


ROWS = {
    "attribution": ({}, compare_parts),
    "box": ({"box": "SIDE.0.feed_forward", "token": 1}, compare_box),
    "cell": ({"site": "SITE", "head": "HEAD", "query": 1, "key": 0}, compare_cell),
    "circuit": ({"against": "AGAINST", "method": "exact"}, compare_edges),
    "column": ({"site": "SITE", "head": "mean", "key": 0}, lambda value, answer: near(value, answer["weight"])),
    "context": ({"texts": "TWO", "word": "WORD"}, lambda value, answer: near(value, answer["cosine"][-1])),
    "curves": ({}, compare_lines),
    "decode": ({"source": "TEXT", "beam": 2}, compare_outputs),
    "edge": ({"against": "AGAINST", "edge": "EDGE"}, lambda value, answer: near(value, answer["after"])),
    "effects": ({"site": "SITE"}, compare_effects),
    "exercises": ({}, lambda value, answer: near({*value} >= {each["name"] for each in answer["slips"]}, 1)),
    "exciting": ({"at": "SIDE.0.feed_forward.hidden", "index": 3, "texts": "TWO"}, compare_excited),
    "grade": (
        {"name": "slip-1", "at": "decoder.1.attention", "step": "scaled", "formula": "score / d**0.5"},
        lambda value, answer: near(value == answer["state"] == "right", 1),
    ),
    "lens": ({}, compare_lens),
    "means": ({"site": "SITE", "texts": "TWO"}, compare_means),
    "mystery": (
        {"name": "mystery-1"},
        lambda value, answer: near(value == answer["answers"][answer["texts"].index("abc")], 1),
    ),
    "neighbours": ({"table": "TABLE", "token": 3, "count": 4}, compare_neighbours),
    "neurons": ({"at": "SIDE.0.feed_forward", "token": 1, "most": 5}, compare_units),
    "patch": ({"text": "TRACE", "source": "OTHER", "token": 1, "other": 0, "by": "head"}, compare_patches),
    "positions": ({"n": 6}, lambda value, answer: near(value, answer["kinds"][0]["table"])),
    "readings": ({}, compare_readings),
    "row": ({"site": "SITE", "head": 0, "query": 1}, compare_steps),
    "run": ({}, lambda value, answer: near(value, answer["parameters"])),
    "sample": ({"source": "TEXT", "seed": 3}, lambda value, answer: near(has_tokens(value, answer["ids"]), 1)),
    "sentence": ({}, compare_diagram),
    "sequence": ({"site": "SITE", "head": 0, "query": 1}, compare_sequence),
    "slip": ({"name": "slip-3", "text": 1}, lambda value, answer: near(value, answer["logits"])),
    "spaces": ({"site": "SITE", "head": "HEAD", "places": [0, 1]}, compare_spaces),
    "stream": ({"side": "SIDE"}, compare_stream),
    "surprise": ({}, lambda value, answer: near(value, answer["surprise"])),
    "terms": ({"name": "SIDE.0.feed_forward.out", "unit": 2, "row": 1}, compare_number),
    "thumbs": ({"site": "SITE"}, compare_thumbs),
    "tile": ({"site": "SITE", "head": "HEAD", "step": "weighted"}, near),
    "tokenize": ({"text": "TEXT"}, compare_ids),
    "trace": ({"source": "TEXT"}, compare_candidates),
    "vocabulary": ({"site": "SITE", "head": "HEAD", "token": 3, "most": 4}, compare_tokens),
    "vectors": ({"site": "SITE", "head": "HEAD", "role": "key"}, near),
}
"""By question: what is asked, and how the value of the last line is compared with the answer."""


def asked_of(kind, name, explorer, ids):
    """Return what is asked, with the words of this run in place of the capitals, and the id of the trace."""
    side = explorer.find_trace(ids[0]).trace.answer_side
    words = {
        "TEXT": TEXTS[kind],
        "TRACE": ids[0],
        "OTHER": ids[1],
        "AGAINST": another_text(kind, explorer.find_trace(ids[0])),
        "EDGE": str(explorer.find_trace(ids[0]).graph.edges[0]),
        "SIDE": side,
        "SITE": f"{side}.0.attention",
        "HEAD": explorer.find_trace(ids[0]).trace[f"{side}.0.attention"].n_heads - 1,
        "TWO": [TEXTS[kind], TEXTS[kind]],
        "WORD": TEXTS[kind].split()[-1],
        "TABLE": f"{next(iter(explorer.costs.sides))}.embedding",
    }
    asked = {
        field: words.get(value, value.replace("SIDE", side)) if isinstance(value, str) else value
        for field, value in ROWS[name][0].items()
    }
    return asked | ({"trace": ids[0]} if issubclass(QUESTIONS[name], TraceQuestion) else {})


def another_text(kind, traced):
    """Return a text that the run answers otherwise."""
    return suggest_text(traced) or OTHERS[kind]


def last_value(code):
    """Run lines, and return the value of the last."""
    tree = ast.parse(code)
    names = {}
    exec(compile(ast.Module(tree.body[:-1], []), "copied", "exec"), names)
    return eval(compile(ast.Expression(tree.body[-1].value), "copied", "eval"), names)


def test_every_question_has_a_row():
    assert set(ROWS) == set(QUESTIONS) - {"python"}


def made(kind, factory):
    whole = kind in (compiled, imported)
    run = kind(factory) if whole else trained(kind, factory, steps=2 if kind is deep else 60)
    explorer = Explorer(run)
    text = ask(explorer, "trace", {"source": TEXTS[kind]})["id"]
    target = {"target": explorer.find_trace(text).trace.sides["decoder"].ids[1:]} if kind is translating else {}
    return explorer, (text, ask(explorer, "trace", {"source": OTHERS[kind], **target})["id"])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ROWS)
def test_the_lines_give_the_answer(name, kind, tmp_path_factory, capsys):
    explorer, ids = made(kind, tmp_path_factory)
    asked = asked_of(kind, name, explorer, ids)
    as_address = {
        field: ",".join(map(str, value)) if isinstance(value, list) and not QUESTIONS[name].sent else value
        for field, value in asked.items()
    }
    try:
        answer = ask(explorer, name, as_address)
    except OptionError as error:
        pytest.skip(f"this run does not answer it: {error}")
    code = ask(explorer, "python", {"question": name, "asked": asked})["python"]
    assert code.count("import clearhead as ch") <= 1
    ROWS[name][1](last_value(code), answer)


@pytest.mark.parametrize("kind", [translating, documents])
@pytest.mark.parametrize("name", [name for name in ROWS if QUESTIONS[name].turn != "model"])
def test_what_is_answered_beside_the_model_runs_no_part_of_it(name, kind, tmp_path_factory):
    """What is traced meanwhile replaces values in the model, and keeps those it sees: they are of any thread."""
    explorer, ids = made(kind, tmp_path_factory)
    asked, seen = asked_of(kind, name, explorer, ids), set()
    with torch.nn.modules.module.register_module_forward_pre_hook(lambda module, _: seen.add(module)):
        ask(explorer, name, asked)
    assert [module for module in explorer.run.model.modules() if isinstance(module, Tapped) and module in seen] == []


@pytest.mark.parametrize("name", ROWS)
def test_the_lines_use_public_names_alone(name, tmp_path_factory):
    explorer, ids = made(documents, tmp_path_factory)
    asked = asked_of(documents, name, explorer, ids)
    tree = ast.parse(ask(explorer, "python", {"question": name, "asked": asked})["python"])
    paths = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    named = [path.removeprefix("ch.") for path in paths if path.startswith("ch.") and "(" not in path]
    assert [path for path in named if not is_public(path)] == []


def test_edits_are_part_of_the_lines(tmp_path_factory):
    run = trained(documents, tmp_path_factory)
    explorer = Explorer(run)
    edits = [
        {"at": "decoder.0.attention", "step": "context", "head": 1, "times": 0.0},
        {"at": "decoder.0.attention", "weighting": "argmax"},
    ]
    trace = ask(explorer, "trace", {"source": "the cat eats the", "edits": edits})["id"]
    code = ask(explorer, "python", {"question": "surprise", "asked": {"trace": trace}})["python"]
    assert "ch.Edit(at='decoder.0.attention', step='context', head=1, times=0.0)" in code
    assert "ch.Swap(at='decoder.0.attention', weighting=ch.weighting.Argmax(" in code
    near(last_value(code), ask(explorer, "surprise", {}, trace)["surprise"])
    plain = ch.trace(run, "the cat eats the").surprise
    assert (last_value(code) - plain).abs().nan_to_num().max() > 1e-4


def test_a_question_that_is_not_there_is_refused(tmp_path_factory):
    explorer = Explorer(trained(documents, tmp_path_factory))
    with pytest.raises(OptionError, match="there is no question 'rows'; the nearest is row"):
        ask(explorer, "python", {"question": "rows"})


LONG = ("circuit", "effects", "exciting", "lens", "means", "patch", "readings", "surprise", "thumbs", "vocabulary")
"""Questions that take seconds of a long text: each stops soon where nobody waits for its answer any more."""


@pytest.mark.parametrize("name", LONG)
def test_what_nobody_looks_at_any_more_is_not_computed(name, tmp_path_factory):
    explorer, ids = made(documents, tmp_path_factory)
    asked = asked_of(documents, name, explorer, ids)
    with pytest.raises(StoppedError), stopping_when(lambda: True):
        ask(explorer, name, asked)
    assert ask(explorer, name, asked) is not None  # and nothing half made is kept
