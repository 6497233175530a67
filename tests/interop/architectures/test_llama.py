"""The Llama family as `transformers` saves it, of odd configurations drawn at random."""

import json
import random
from dataclasses import replace

import pytest
import torch

from clearhead import masks
from clearhead.errors import OptionError
from clearhead.interop import read_hugging_face
from clearhead.interop.architectures import ARCHITECTURES, find_architecture
from clearhead.interop.tables import Config
from clearhead.interop.tensor_files import read_object
from clearhead.model import LayerNorm, PreNorm, presets
from tests.covering import few
from tests.interop.peers import NO_TOKENS, decoder_is_read, same_greedy, save
from tests.peers import transformers

SCALINGS = [
    {"rope_type": "default"},
    {"rope_type": "linear", "factor": 3.5},
    {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 40,
    },
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 50},
    {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 30, "beta_fast": 8.0, "truncate": False},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "attention_factor": 0.7},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "mscale": 0.7, "mscale_all_dim": 1.3},
]


def qwen_windows(rng, layers):
    kinds = ("sliding_attention", "full_attention")
    return rng.choice(
        [
            {"use_sliding_window": False, "sliding_window": 3},
            {"use_sliding_window": True, "sliding_window": rng.randint(1, 7), "max_window_layers": rng.randint(0, 2)},
            {
                "use_sliding_window": True,
                "sliding_window": rng.randint(1, 7),
                "layer_types": [rng.choice(kinds) for _ in range(layers)],
            },
        ]
    )


def window_types(rng, layers):
    """Windows by the type of each layer, or by the default."""
    kinds = ("sliding_attention", "full_attention")
    types = [rng.choice(kinds) for _ in range(layers)]
    # Not 1: with such a window and its cache, transformers writes another text than without its cache.
    return {"sliding_window": rng.randint(2, 7), **({"layer_types": types} if rng.random() < 0.7 else {})}


def biased(rng, n):
    return {"attention_bias": rng.random() < 0.5}


def smollm3(rng, n):
    said = rng.choice(
        [{}, {"no_rope_layer_interval": 2}, {"no_rope_layers": [1, *(rng.randint(0, 1) for _ in range(n - 1))]}]
    )
    windows = rng.choice([{}, {"use_sliding_window": True, **window_types(rng, n)}])
    return {**biased(rng, n), "mlp_bias": rng.random() < 0.5, **said, **windows}


def gemma2(rng, n):
    caps = {"attn_logit_softcapping": rng.choice([None, 0.5, 3.0]), "final_logit_softcapping": rng.choice([None, 1.5])}
    rope = {"rope_parameters": {"rope_theta": 300.0, **rng.choice(SCALINGS[:3])}}
    return {**biased(rng, n), **window_types(rng, n), **caps, **rope, "query_pre_attn_scalar": rng.choice([3, 10])}


def gemma3(rng, n):
    ropes = {
        "full_attention": {"rope_theta": 5000.0, **rng.choice(SCALINGS[:3])},
        "sliding_attention": {"rope_theta": 77.0, "rope_type": "default"},
    }
    capless = {"attn_logit_softcapping": None, "rope_parameters": ropes}
    return {**gemma2(rng, n), **capless, **rng.choice([{}, {"sliding_window_pattern": 2}])}


KINDS = {
    "llama": ("Llama", lambda rng, n: {**biased(rng, n), "mlp_bias": rng.random() < 0.5}),
    "mistral": ("Mistral", lambda rng, n: {"sliding_window": rng.choice([None, 1, 3, 7])}),
    "qwen2": ("Qwen2", qwen_windows),
    "qwen3": ("Qwen3", lambda rng, n: {**biased(rng, n), **qwen_windows(rng, n)}),
    "gemma": ("Gemma", biased),
    "olmo2": ("Olmo2", biased),
    "smollm3": ("SmolLM3", smollm3),
    "gemma2": ("Gemma2", gemma2),
    "gemma3_text": ("Gemma3", gemma3),
}
CONFIGS = {"gemma3_text": "Gemma3TextConfig"}


def draw(kind, seed):
    torch.manual_seed(seed)
    rng = random.Random(f"{kind} {seed}")
    model, extra = KINDS[kind]
    kv, group, d_head, layers = rng.choice([1, 2, 3]), rng.choice([1, 2, 4]), rng.choice([4, 8, 10]), rng.randint(1, 3)
    free = kind != "qwen2"  # whose heads are always as wide as they must be
    fields = {
        "vocab_size": rng.randint(11, 60),
        "max_position_embeddings": 300,
        "hidden_size": kv * group * (rng.choice([2, d_head]) if free else d_head),
        "num_hidden_layers": layers,
        "num_attention_heads": kv * group,
        "num_key_value_heads": kv,
        "intermediate_size": rng.choice([7, 40]),
        "rms_norm_eps": rng.choice([1e-6, 1e-3]),
        "rope_parameters": {"rope_theta": rng.choice([100.0, 10_000.0, 500_000.0]), **rng.choice(SCALINGS)},
        "tie_word_embeddings": rng.random() < 0.5,
        **({"head_dim": d_head} if free else {}),
        **extra(rng, layers),
        **NO_TOKENS,
    }
    config = getattr(transformers, CONFIGS.get(kind, f"{model}Config"))(**fields)
    return getattr(transformers, f"{model}ForCausalLM")(config)


@pytest.mark.parametrize("seed", few(range(4), 2))
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_read_and_goes_back(kind, seed, tmp_path):
    decoder_is_read(draw(kind, seed), tmp_path)


@pytest.mark.parametrize("scaling", SCALINGS, ids=str)
def test_each_scaling_is_theirs(scaling, tmp_path):
    config = draw("llama", 1).config
    config.rope_parameters = {"rope_theta": 100.0, **scaling}
    decoder_is_read(transformers.LlamaForCausalLM(config), tmp_path, n=150)


@pytest.mark.slow
@pytest.mark.parametrize("kind", few([*KINDS][::-1], 2))
def test_two_hundred_greedy_tokens_are_theirs(kind, tmp_path):
    same_greedy(draw(kind, 9), tmp_path)


def change_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("qwen")
    save(draw("qwen2", 3), folder)
    return folder


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "relu"}, "hidden_act: 'relu' is not supported; there are silu, swish"),
        ({"mlp_bias": True}, "mlp_bias: True is not supported yet; expected False"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type: 'dynamic' is not supported; there"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_parameters: factor: expected a number above 0; came None"),
        ({"rope_parameters": [1]}, r"rope_parameters: expected an object; came \[1\]"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor: 0.5 is not supported yet"),
        ({"layer_types": ["linear_attention"] * 9}, "layer_types: expected"),
        ({"architectures": ["Qwen2ForTokenClassification"]}, "architectures: .*cannot be read; there are Qwen2ForCau"),
        ({"eos_token_id": "end"}, "eos_token_id: expected a token id or a list of ids; came 'end'"),
    ],
    ids=str,
)
def test_a_field_that_is_not_supported_is_named(qwen, changes, message, tmp_path):
    for path in qwen.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "generation_config.json").unlink(missing_ok=True)
    change_config(tmp_path, **changes)
    with pytest.raises(OptionError, match=message):
        read_hugging_face(tmp_path)


def test_older_configurations_say_the_same_in_other_fields(tmp_path):
    peer = draw("llama", 2)
    peer.config.rope_parameters = {"rope_theta": 100.0, "rope_type": "linear", "factor": 2.0}
    save(peer, tmp_path)
    spec = read_hugging_face(tmp_path).spec
    change_config(tmp_path, rope_parameters=None, rope_theta=100.0, rope_scaling={"type": "linear", "factor": 2.0})
    assert read_hugging_face(tmp_path).spec == spec


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("gemma2", {}, "gemma2 cannot say this model: feed_forward is SwiGLU"),
        ("olmo2", {}, r"olmo2 cannot say spec.blocks\[0\].attention.heads.qk_norm = None"),
        ("llama", {"arrangement": PreNorm(LayerNorm())}, "llama cannot say this model: norm is LayerNorm"),
        ("mistral", {}, r"mistral cannot say spec.blocks\[1\].attention.mask.left = 3: its models have 6"),
        ("qwen3", {}, r"qwen3 cannot say spec.blocks\[0\].attention.heads.qk_norm = None: its models have RMSNorm"),
        ("gemma", {}, "gemma cannot say this model: feed_forward is SwiGLU"),
    ],
)
def test_what_a_member_cannot_say_is_named(name, change, message):
    spec = presets.llama("tiny", vocabulary=9)
    blocks = [replace(block, **change) for block in spec.blocks]
    if name == "mistral":
        windows = [masks.window(6), masks.window(3)]
        blocks = [
            replace(block, attention=replace(block.attention, mask=one))
            for block, one in zip(blocks, windows, strict=False)
        ]
    with pytest.raises(OptionError, match=message):
        ARCHITECTURES[name].config_of(replace(spec, blocks=tuple(blocks)))


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("smollm3", {"no_rope_layers": [1]}, "no_rope_layers: expected 3 of 0"),
        ("smollm3", {"layer_types": ["sliding_attention"] * 3}, "there is no sliding_window in use"),
        ("gemma2", {"hidden_activation": "gelu"}, "hidden_activation: 'gelu' is not supported"),
        ("gemma2", {"rope_parameters": {**SCALINGS[3]}, "attn_logit_softcapping": 9.0}, "yarn is not supported yet wh"),
        ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention: True is not supported yet"),
        ("gemma3_text", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping: 50.0 is not supported yet"),
        ("gemma3_text", {"rope_parameters": {"full_attention": 3}}, "expected an object with full_attention"),
        ("olmo2", {"model_type": "olmo"}, "model_type 'olmo' cannot be read"),
    ],
    ids=str,
)
def test_a_field_of_a_later_member_that_is_not_supported_is_named(kind, changes, message, tmp_path):
    peer = draw(kind, 1)
    fields = {**peer.config.to_dict(), "num_hidden_layers": 3, "layer_types": None, "no_rope_layers": None, **changes}
    (tmp_path / "config.json").write_text(json.dumps({**fields, "use_sliding_window": False}))
    with pytest.raises(OptionError, match=message):
        read_spec(tmp_path)


def read_spec(folder):
    config = Config(read_object(folder, "config.json"), "config.json")
    return find_architecture(config).spec(config)


@pytest.mark.parametrize("older", [{}, {"rope_theta": 99.0, "rope_local_base_freq": 7.0}], ids=["default", "older"])
def test_positions_of_an_older_gemma3(older, tmp_path):
    """By `rope_theta`, `rope_local_base_freq` and `rope_scaling`; or by the default of each kind of layer."""
    fields = {**draw("gemma3_text", 1).config.to_dict(), "rope_parameters": None, **older}
    fields |= {"num_hidden_layers": 7, "layer_types": None, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    fields.pop("_sliding_window_pattern", None)
    (tmp_path / "config.json").write_text(json.dumps(fields))
    theirs = transformers.AutoConfig.from_pretrained(tmp_path)
    for block, kind in zip(read_spec(tmp_path).blocks, theirs.layer_types, strict=True):
        rope = theirs.rope_parameters[kind]
        position = block.attention.position
        assert (position.base, getattr(position.scaling, "factor", None)) == (rope["rope_theta"], rope.get("factor"))
        assert (block.attention.mask is None) == (kind == "full_attention")
