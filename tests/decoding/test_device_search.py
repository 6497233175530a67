"""Recorded steps give what unrecorded ones give. On a CPU the work is called where a GPU would replay it."""

import contextlib

import pytest
import torch

import clearhead as ch
from clearhead.decoding import (
    Beam,
    Greedy,
    Rules,
    Sample,
    device_search,
    generate,
    generating,
    on_device,
    recorded,
    session,
)
from clearhead.model import presets
from tests.decoding.laws import broken_laws, case_of
from tests.decoding.models import build, models


@pytest.fixture
def recording(monkeypatch):
    """Record soon, in little memory, so that short outputs outgrow it; count what is recorded."""
    counts = {"recorded": 0, "replayed": 0}

    def record(work):
        counts["recorded"] += 1

        def replay():
            counts["replayed"] += 1
            work()

        return replay

    for part in (session, generating):
        monkeypatch.setattr(part, "can_record_on", lambda device: True)
    monkeypatch.setattr(recorded, "record", record)
    monkeypatch.setattr(device_search, "FIRST_COLUMNS", 4)
    monkeypatch.setattr(recorded, "FEWEST", 1)
    monkeypatch.setattr(on_device, "AT_ONCE", 3)
    return counts


@pytest.mark.slow
def test_the_laws_of_decoding_hold(recording):
    tried = set()
    for choices in models():
        kind = dict(choices.parts)["kind"]
        case = None if kind in tried else case_of(build(choices))
        if case is not None and case.session().session.recordable:
            assert broken_laws(case) == {}, choices
            tried.add(kind)
        if len(tried) == 2:
            break
    assert "decoder" in tried
    assert recording["replayed"] > 30


def translator(**options):
    torch.manual_seed(0)
    return presets.tiny(vocabulary=20, **options).build().eval().double()


def decoder():
    torch.manual_seed(0)
    return presets.llama(presets.Size(2, 32, 4, 2, 64), vocabulary=20).build().eval().double()


SOURCES = [[5, 6, 7], [8, 9], [3] * 6, [4, 4], [2, 3, 4, 5, 6, 7, 8]]
METHODS = {
    "greedy": Greedy(),
    "beam": Beam(width=4, n_best=2),
    "sample": Sample(temperature=0.9, top_k=5, seeds=3),
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("kind", ["translator", "decoder"])
@pytest.mark.parametrize("end", [(), (1, 2, 3)], ids=["all to the last", "ending"])
def test_outputs_are_those_of_unrecorded_steps(name, kind, end, recording, request):
    model, prefix = (translator(), [[1]] * len(SOURCES)) if kind == "translator" else (decoder(), None)
    rules = Rules(max_new=23, end=end)
    got = generate(model, SOURCES, METHODS[name], rules=rules, prefix=prefix)
    assert recording["recorded"] > 0
    assert recording["replayed"] > recording["recorded"]
    request.getfixturevalue("monkeypatch").undo()
    wanted = generate(model, SOURCES, METHODS[name], rules=rules, prefix=prefix)
    assert [[one.tokens for one in found] for found in got] == [[one.tokens for one in found] for found in wanted]
    for one, other in zip([h for found in got for h in found], [h for found in wanted for h in found], strict=True):
        assert one.ended == other.ended
        assert one.log_probs == pytest.approx(other.log_probs, abs=1e-9)
        assert one.score == pytest.approx(other.score, abs=1e-9)


def test_prompts_of_different_lengths_are_padded_in_recorded_steps(recording):
    model = decoder()
    rules = Rules(max_new=19)
    together = generate(model, SOURCES, rules=rules)
    assert recording["replayed"] > 0
    for row, source in enumerate(SOURCES):
        assert generate(model, [source], rules=rules)[0][0].tokens == together[row][0].tokens


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(
    "rules",
    [Rules(max_new=12, never=(3, 7)), Rules(max_new=12, min_new=9, end=(1, 2, 3)), Rules(max_new=12, no_repeat=2)],
)
@pytest.mark.pairs(1)
@pytest.mark.slow
def test_rules_hold_in_recorded_steps(name, rules, recording, request):
    got = generate(translator(), SOURCES, METHODS[name], rules=rules, prefix=[[1]])
    request.getfixturevalue("monkeypatch").undo()
    wanted = generate(translator(), SOURCES, METHODS[name], rules=rules, prefix=[[1]])
    assert [[one.tokens for one in found] for found in got] == [[one.tokens for one in found] for found in wanted]


@pytest.mark.slow
@pytest.mark.parametrize("what", ["rules", "candidates", "a module of the user's own", "a window"])
def test_what_cannot_be_recorded_is_decoded_step_by_step(what, recording):
    model, rules, candidates = decoder(), Rules(max_new=12), 0
    if what == "rules":
        rules = Rules(max_new=12, no_repeat=2)
    if what == "candidates":
        candidates = 3
    if what == "a module of the user's own":

        class Own(torch.nn.Module):
            def __init__(self, inner):
                super().__init__()
                self.inner = inner

            def forward(self, x):
                return self.inner(x)

        model.stack.blocks[0].register_module("feed_forward", Own(model.stack.blocks[0].feed_forward))
    if what == "a window":
        attention = presets.AttentionSpec(heads=4, mask=ch.masks.causal() & ch.masks.window(3))
        model = presets.gpt2(presets.Size(2, 32, 4, 4, 64), vocabulary=20, length=64, attention=attention).build()
    own = what == "a module of the user's own"
    with pytest.warns(UserWarning, match="recordable = True") if own else contextlib.nullcontext():
        found = generate(model, SOURCES, rules=rules, candidates=candidates)
    assert len(found[0][0].tokens) == 12
    if what in ("a module of the user's own", "a window"):
        assert recording["recorded"] == 0


@pytest.mark.gpu
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("kind", ["translator", "decoder"])
def test_a_gpu_writes_what_a_cpu_writes_in_float64(name, kind):
    model, prefix = (translator(), [[1]] * len(SOURCES)) if kind == "translator" else (decoder(), None)
    for end in ((), (1, 2, 3)):
        rules = Rules(max_new=90, end=end)
        wanted = generate(model.cpu(), SOURCES, METHODS[name], rules=rules, prefix=prefix)
        got = generate(model.cuda(), SOURCES, METHODS[name], rules=rules, prefix=prefix)
        assert [[one.tokens for one in found] for found in got] == [[one.tokens for one in found] for found in wanted]


@pytest.mark.slow
def test_sentences_may_leave_one_by_one_a_search_that_is_looked_at(recording, request):
    """Their rows stay in memory until half of them are gone; the others go on after each leaving."""
    rules, sources = Rules(max_new=40, no_repeat=2, end=(1,)), [*SOURCES, [9] * 3, [7, 3], [6]]
    got = generate(translator(), sources, METHODS["beam"], rules=rules, prefix=[[1]])
    assert len({max(len(one.tokens) for one in found) for found in got}) > 2
    assert recording["replayed"] > 10
    request.getfixturevalue("monkeypatch").undo()
    wanted = generate(translator(), sources, METHODS["beam"], rules=rules, prefix=[[1]])
    assert [[one.tokens for one in found] for found in got] == [[one.tokens for one in found] for found in wanted]


@pytest.mark.slow
def test_sentences_leave_one_by_one(recording, monkeypatch):
    """Memory of the recorded step still holds sentences that have left when the next step is chosen."""
    model, generator = translator(), torch.Generator().manual_seed(1)
    lengths = torch.randint(1, 9, (12,), generator=generator).tolist()
    sources = [torch.randint(4, 20, (n,), generator=generator).tolist() for n in lengths]
    method = Beam(width=3, n_best=2, stop="early")
    options = {"rules": Rules(max_new=40, end=(1, 2)), "prefix": [[3]] * len(sources)}
    got = generate(model, sources, method, **options)
    assert recording["replayed"] > 3
    for part in (session, generating):
        monkeypatch.setattr(part, "can_record_on", lambda device: False)
    wanted = generate(model, sources, method, **options)
    assert len({len(found[0].tokens) for found in wanted}) > 1, "they all end at the same step"
    for one, other in zip(got, wanted, strict=True):
        assert [made.tokens for made in one] == [made.tokens for made in other]
