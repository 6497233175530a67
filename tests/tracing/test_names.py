"""Names kept with a model: made once, and anew where a part of it is another."""

import copy

import torch

import clearhead as ch
from clearhead.model import presets
from clearhead.tracing.names import names_of
from clearhead.tracing.recording import recording


def test_names_are_made_once_for_a_model_that_stays_as_it_is():
    model = presets.gpt2("tiny", vocabulary=20).build().eval()
    first = names_of(model)
    with recording(model):
        model(torch.randint(20, (1, 5)))
    assert names_of(model) is first


def test_another_position_or_block_makes_them_anew():
    model = presets.gpt2("tiny", vocabulary=20).build().eval()
    first = names_of(model)
    layer = first.sites["decoder.0.attention"]
    layer.position = ch.positions.Rotary()
    turned = names_of(model)
    assert "decoder.0.attention.projected_query" in turned.all
    assert "decoder.0.attention.projected_query" not in first.all
    del model.stack.blocks[-1]
    assert len(names_of(model).sites) == len(first.sites) - 1


def test_a_copy_of_the_model_has_names_of_its_own():
    model = presets.gpt2("tiny", vocabulary=20).build().eval()
    own = names_of(model).sites["decoder.0.attention"]
    twin = copy.deepcopy(model)
    with recording(twin) as record:
        twin(torch.randint(20, (1, 5)))
    assert names_of(twin).sites["decoder.0.attention"] is not own
    assert list(record.sites) == list(names_of(model).sites)
    assert own.runner is names_of(model).sites["decoder.0.attention"].runner


def test_what_stands_for_a_hidden_key_is_what_the_weighting_has_there():
    for weighting, said in ((ch.weighting.Softmax(), "−∞"), (ch.weighting.Kernelized("elu"), "0")):
        attention = presets.AttentionSpec(heads=4, weighting=weighting)
        names = names_of(presets.gpt2("tiny", vocabulary=20, attention=attention).build())
        values = {value.name: value.formula for value in names.boxes["decoder.0.attention"].values}
        wanted = f"scaled, plus the position's bias; {said} where the query may not attend"
        assert values["decoder.0.attention.masked"] == wanted


def test_values_of_low_rank_are_made_by_two_maps():
    for heads, said in ((ch.Heads(4, value_rank=2), ["V_down", "V_up"]), (ch.Heads(4), ["W_V"])):
        attention = presets.AttentionSpec(heads=heads)
        names = names_of(presets.gpt2("tiny", vocabulary=20, attention=attention).build())
        maps = {value.name: value.map for value in names.boxes["decoder.0.attention"].values}
        assert [label for name, label in maps.items() if name.endswith("value")] == said
        assert maps["decoder.0.attention.key"] == "W_K"
