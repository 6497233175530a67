"""LoRA: adapters start at nothing, merge to the same outputs, and stand in every place that a plain map does."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from clearhead.attention.heads import Heads, joinable
from clearhead.decoding import Greedy, Rules, generate
from clearhead.errors import OptionError
from clearhead.model import presets
from clearhead.model.lora import MAPS, AdaptedLinear, Lora, add_adapters, is_adapter, merge_adapters
from clearhead.model.presets import Size

SIZE = Size(2, 32, 4, 2, 48)
MODELS = {
    "llama": lambda: presets.llama(SIZE, vocabulary=40),
    "gpt2": lambda: presets.gpt2(SIZE._replace(n_kv_heads=4), vocabulary=40),
    "bert": lambda: presets.bert(SIZE._replace(n_kv_heads=4), vocabulary=40),
    "classic": lambda: presets.classic(40, size=SIZE._replace(n_kv_heads=4)),
}
EVERY = {"llama": MAPS, "gpt2": MAPS[:-1], "bert": MAPS[:-1], "classic": MAPS[:-1]}


def adapted(name, lora, seed=0):
    """A model, and the same with adapters that are no longer zero."""
    torch.manual_seed(seed)
    plain = MODELS[name]().build().eval()
    made = add_adapters(copy.deepcopy(plain), lora)
    return plain, made


def shake(model):
    for one in model.modules():
        if isinstance(one, AdaptedLinear):
            nn.init.normal_(one.adapter_up, std=0.3)


def call(model, name):
    tokens = torch.arange(14).reshape(2, 7) % 40
    with torch.no_grad():
        return model(tokens, tokens[:, :5]) if name == "classic" else model(tokens)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("maps", [("query", "value"), ("all",), ("output", "down")], ids="-".join)
def test_adapters_start_at_nothing_and_merge_to_the_same(name, maps):
    plain, made = adapted(name, Lora(rank=3, maps=maps, alpha=5.0))
    assert torch.equal(call(plain, name), call(made, name))
    shake(made)
    plain, made = plain.double(), made.double()
    apart = call(made, name)
    assert (apart - call(plain, name)).abs().max() > 1e-2
    merged = merge_adapters(made)
    assert not [one for one in merged.modules() if isinstance(one, AdaptedLinear)]
    assert merged.state_dict().keys() == plain.state_dict().keys()
    assert (call(merged, name) - apart).abs().max() < 1e-12


@pytest.mark.parametrize("name", MODELS)
def test_every_map_of_a_block_can_have_one_and_keeps_its_names(name):
    plain, made = adapted(name, Lora(rank=2, maps=("all",)))
    own = {key for key in made.state_dict() if not is_adapter(key)}
    assert own == set(plain.state_dict())
    new = {key for key in made.state_dict() if is_adapter(key)}
    for use in EVERY[name]:
        assert any(f".{use}." in key for key in new)
    assert not any(key.startswith("output.") for key in new)


def test_a_map_with_an_adapter_is_not_joined_with_the_others():
    _, made = adapted("bert", Lora(rank=2))
    attention = made.stack.blocks[0].attention
    assert not joinable((attention.query, attention.key, attention.value))
    assert attention.sdpa_scale() is None
    merge_adapters(made)
    assert joinable((attention.query, attention.key, attention.value))


@pytest.mark.parametrize("name", ["llama", "gpt2", "classic"])
def test_cached_decoding_is_that_of_the_merged_model(name):
    _, made = adapted(name, Lora(rank=3, maps=("all",)))
    shake(made)
    made = made.double()
    merged = merge_adapters(copy.deepcopy(made))
    rules = Rules(max_new=12, end=(39,))
    prefix = [[1]] * 2 if name == "classic" else None
    asked = [[3, 4, 5], [6, 7, 8, 9]]
    one, other = (generate(model, asked, Greedy(), rules=rules, prefix=prefix) for model in (made, merged))
    assert [row[0].tokens for row in one] == [row[0].tokens for row in other]
    assert one[0][0].score == pytest.approx(other[0][0].score, abs=1e-9)


def test_the_scale_is_alpha_over_rank():
    assert (Lora(rank=4, alpha=6.0).scale, Lora(rank=16).scale) == (1.5, 2.0)
    linear = nn.Linear(3, 2)
    made = AdaptedLinear(linear, 1, 0.5)
    nn.init.ones_(made.adapter_up)
    x = torch.randn(4, 3)
    assert torch.allclose(made(x), linear(x) + 0.5 * (x @ made.adapter_down.T))


@pytest.mark.parametrize(
    ("lora", "why"),
    [
        ({"rank": 0}, "rank must be 1 or more; came 0"),
        ({"rank": 2, "alpha": 0.0}, "alpha must be above 0; came 0.0"),
        ({"rank": 2, "maps": ("queries",)}, "no map 'queries'; there are query, key, .*, or all"),
        ({"rank": 2, "maps": ()}, "no map 'none'"),
        ({"rank": 2, "maps": ("gate",)}, "no block .* map for gate; choose from query, key, value, output, up, down"),
        ({"rank": 33}, "a rank of 33 is too large for stack.blocks.0.attention.query.linear, 32 to 32: choose 32"),
    ],
)
def test_what_cannot_be_is_refused_by_name(lora, why):
    with pytest.raises(OptionError, match=why):
        adapted("bert", Lora(**lora))


def test_a_map_that_is_not_one_matrix_is_refused():
    spec = MODELS["bert"]()
    block = replace(spec.blocks[0], attention=replace(spec.blocks[0].attention, heads=Heads(4, value_rank=2)))
    with pytest.raises(OptionError, match="plain linear map for value; choose from query, key, output"):
        add_adapters(replace(spec, blocks=(block,)).build(), Lora(rank=2))
