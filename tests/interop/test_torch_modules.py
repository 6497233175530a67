"""State dicts of torch's own modules are read: what the model answers is what torch's modules answer."""

import random

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from clearhead import Heads, masks
from clearhead.attention.positions import Learned
from clearhead.errors import OptionError
from clearhead.interop import read_torch_state_dict
from clearhead.interop.tables import gather
from clearhead.interop.torch_modules import torch_rows
from clearhead.model import (
    GELU,
    AttentionSpec,
    BlockSpec,
    DecoderSpec,
    Embedding,
    EncoderDecoderSpec,
    EncoderSpec,
    LayerNorm,
    NextToken,
    PostNorm,
    PreNorm,
    ReLU,
    presets,
)
from tests.model.copying import randomised
from tests.rounding import assert_equal_but_rounding

pytestmark = [
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning"),
]
VOCABULARY, LENGTH = 17, 9


def draw(seed):
    """Options of torch's modules, and the block of ours that they are."""
    rng = random.Random(seed)
    heads = rng.choice([1, 2, 3])
    options = {
        "d_model": heads * rng.choice([4, 6]),
        "nhead": heads,
        "dim_feedforward": rng.choice([7, 20]),
        "dropout": 0.0,
        "activation": rng.choice(["relu", "gelu"]),
        "layer_norm_eps": rng.choice([1e-5, 1e-3]),
        "norm_first": rng.random() < 0.5,
        "bias": rng.random() < 0.5,
        "batch_first": True,
    }
    return rng, options


def block(options, *, cross=False, last=False):
    norm = LayerNorm(options["layer_norm_eps"], bias=options["bias"])
    layer = AttentionSpec(heads=Heads(options["nhead"], bias=options["bias"]))
    network = {"relu": ReLU, "gelu": GELU}[options["activation"]]
    return BlockSpec(
        attention=layer,
        cross=layer if cross else None,
        feed_forward=network(options["dim_feedforward"], bias=options["bias"]),
        arrangement=PreNorm(norm) if options["norm_first"] else PostNorm(norm, last=last),
    )


EMBEDDING = Embedding(position=Learned(LENGTH), scaled=False)


class Translator(nn.Module):
    """nn.Transformer with tables of its own, as users write it."""

    def __init__(self, options, layers):
        super().__init__()
        d_model = options["d_model"]
        self.source, self.target = nn.Embedding(VOCABULARY, d_model), nn.Embedding(VOCABULARY, d_model)
        self.places = nn.Parameter(torch.zeros(1, LENGTH, d_model))
        self.transformer = nn.Transformer(**options, num_encoder_layers=layers[0], num_decoder_layers=layers[1])
        self.generator = nn.Linear(d_model, VOCABULARY)

    def forward(self, source, target):
        ahead = nn.Transformer.generate_square_subsequent_mask(target.shape[1], dtype=torch.float32)
        made = self.transformer(
            self.source(source) + self.places[:, : source.shape[1]],
            self.target(target) + self.places[:, : target.shape[1]],
            tgt_mask=ahead,
        )
        return self.generator(made)


NAMES = {
    "source.weight": "encoder.embedding.table",
    "target.weight": "decoder.embedding.table",
    "places": "encoder.embedding.position.table",
    "generator.weight": "decoder.output.table",
    "generator.bias": "decoder.output.bias",
}


@pytest.mark.parametrize("seed", range(5))
@torch.no_grad()
def test_a_transformer_of_torch(seed):
    torch.manual_seed(seed)
    rng, options = draw(seed)
    layers = rng.randint(1, 3), rng.randint(1, 3)
    theirs = randomised(Translator(options, layers), torch.float32)
    sides = {"vocabulary": VOCABULARY, "d_model": options["d_model"], "embedding": EMBEDDING}
    spec = EncoderDecoderSpec(
        encoder=EncoderSpec(blocks=(block(options, last=True),) * layers[0], output=None, **sides),
        decoder=DecoderSpec(
            blocks=(block(options, cross=True, last=True),) * layers[1], output=NextToken(bias=True), **sides
        ),
        tied="none",
    )
    held = {**theirs.state_dict(), "places too": theirs.places}
    model = read_torch_state_dict(
        held, spec, module="transformer", names={**NAMES, "places too": "decoder.embedding.position.table"}
    )
    source, target = torch.randint(VOCABULARY, (2, 7)), torch.randint(VOCABULARY, (2, 5))
    assert_equal_but_rounding(model(source, target), theirs(source, target))
    again = gather(dict(model.named_parameters()), torch_rows(spec, ""))
    assert all(torch.equal(again[name], tensor) for name, tensor in theirs.transformer.state_dict().items())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
@torch.no_grad()
def test_an_encoder_of_torch_from_a_file_also_as_a_decoder(seed, suffix, tmp_path):
    torch.manual_seed(seed)
    rng, options = draw(seed)
    count, ends = rng.randint(1, 3), options["norm_first"] or rng.random() < 0.5
    last = nn.LayerNorm(options["d_model"], eps=options["layer_norm_eps"], bias=options["bias"]) if ends else None
    body = nn.TransformerEncoder(nn.TransformerEncoderLayer(**options), count, norm=last)
    theirs = randomised(
        nn.ModuleDict({"tokens": nn.Embedding(VOCABULARY, options["d_model"]), "body": body}), torch.float32
    )
    write = torch.save if suffix == ".pt" else save_file
    write(theirs.state_dict(), tmp_path / f"x{suffix}")
    sides = {
        "vocabulary": VOCABULARY,
        "d_model": options["d_model"],
        "embedding": Embedding(position=None, scaled=False),
    }
    blocks, tokens = (block(options, last=ends),) * count, torch.randint(VOCABULARY, (2, 7))
    names = {"tokens.weight": "embedding.table"}
    encoder = EncoderSpec(blocks=blocks, output=None, **sides)
    model = read_torch_state_dict(tmp_path / f"x{suffix}", encoder, module="body", names=names)
    vectors = theirs["tokens"](tokens)
    assert_equal_but_rounding(model(tokens), body(vectors))
    assert_equal_but_rounding(
        model(tokens, mask=masks.causal()), body(vectors, mask=nn.Transformer.generate_square_subsequent_mask(7))
    )
    decoder = read_torch_state_dict(
        tmp_path / f"x{suffix}", DecoderSpec(blocks=blocks, **sides), module="body", names=names
    )
    ahead = nn.Transformer.generate_square_subsequent_mask(7)
    assert_equal_but_rounding(decoder(tokens), body(vectors, mask=ahead) @ theirs["tokens"].weight.T)


def test_what_does_not_fit_is_named(tmp_path):
    _, options = draw(0)
    body = nn.TransformerEncoder(nn.TransformerEncoderLayer(**options), 1)
    sides = {"vocabulary": VOCABULARY, "d_model": options["d_model"], "embedding": Embedding(position=None)}
    spec = EncoderSpec(blocks=(block(options),), output=None, **sides)
    table = {"tokens": torch.zeros(VOCABULARY, options["d_model"])}
    held = {**body.state_dict(), **table}
    if options["norm_first"]:
        held |= {
            f"norm.{name}": one
            for name, one in nn.LayerNorm(options["d_model"], bias=options["bias"]).state_dict().items()
        }
    names = {"tokens": "embedding.table"}
    with pytest.raises(OptionError, match=r"nothing in it is our embedding\.table"):
        read_torch_state_dict({name: one for name, one in held.items() if name != "tokens"}, spec, module="", names={})
    with pytest.raises(OptionError, match="1 tensors have no place in this model: extra"):
        read_torch_state_dict({**held, "extra": torch.zeros(1)}, spec, module="", names=names)
    with pytest.raises(OptionError, match=r"'embeddings' is no tensor of this model; there are embedding\.table"):
        read_torch_state_dict(held, spec, module="", names={"tokens": "embeddings"})
    with pytest.raises(OptionError, match="the tensor words is missing; there are layers"):
        read_torch_state_dict(held, spec, module="", names={"words": "embedding.table"})
    with pytest.raises(OptionError, match=r"feed_forward is SwiGLU.*models have"):
        read_torch_state_dict(held, presets.llama("tiny", vocabulary=9), module="", names={})
    (tmp_path / "x.safetensors").write_bytes(b"no")
    with pytest.raises(OptionError, match=r"x\.safetensors: cannot be read"):
        read_torch_state_dict(tmp_path / "x.safetensors", spec, module="", names=names)
