"""How models start, as `arrangements.py` states it: variances, gradients by depth, and the first loss."""

import itertools
import math

import pytest
import torch
from torch.nn import functional as F

from clearhead.model import presets
from clearhead.model.arrangements import NoNorm, PreNorm
from clearhead.model.blocks import AttentionSpec, BlockSpec, Stack
from clearhead.model.feedforward import GELU, ReLU, SiLU, SwiGLU
from clearhead.model.presets import Size
from clearhead.taps import watching

pytestmark = pytest.mark.slow

DEPTH, WORDS = 24, 1000
DEEP = {
    "classic": lambda: presets.classic(WORDS, size=Size(DEPTH, 256, 4, 4, 1024), arrangement=PreNorm(), dropout=0.0),
    "gpt2": lambda: presets.gpt2(Size(DEPTH, 256, 4, 4, 1024), vocabulary=WORDS, dropout=0.0),
    "llama": lambda: presets.llama(Size(DEPTH, 256, 4, 4, 688), vocabulary=WORDS),
}


class Start:
    """A model as it starts: one forward and backward of random tokens, and every inner value by name."""

    def __init__(self, spec, words=WORDS):
        self.model, self.seen = spec.build(), {}
        self.stacks = ["encoder.", "decoder."] if len(self.model.stacks) > 1 else [""]
        tokens = [torch.randint(words, (2, 32)) for _ in self.stacks]
        with watching(self.model, self.seen.setdefault):
            logits = self.model(*tokens)
        self.loss = F.cross_entropy(logits.flatten(0, 1), torch.randint(words, (64,)))
        self.loss.backward()
        self.gradients = {name: value.grad.norm().item() for name, value in self.model.named_parameters()}

    def variance(self, name):
        return self.seen[name].var().item()


@pytest.fixture(scope="module")
def deep():
    """Each deep model, made once."""
    torch.manual_seed(0)
    return {name: Start(make()) for name, make in DEEP.items()}


@pytest.mark.parametrize("name", DEEP)
def test_pre_norm_keeps_the_stream_small_over_24_layers(deep, name):
    for stack in deep[name].stacks:
        first = deep[name].variance(f"{stack}embedding.out")
        variances = [deep[name].variance(f"{stack}stack.blocks.{layer}.out") / first for layer in range(DEPTH)]
        assert max(variances) <= 24
        assert variances[-1] > 1.1  # and the blocks do add something


MAPS = ["query.linear", "key.linear", "value.linear", "output"]
LEARNED = {
    "classic": [
        *(f"{slot}.{name}.weight" for slot in ("attention", "cross") for name in MAPS),
        *(f"feed_forward.{name}" for name in ("up.weight", "up.bias", "down.weight", "down.bias")),
        *(f"around_{slot}.norm.gamma" for slot in ("attention", "cross", "feed_forward")),
    ],
    "gpt2": [
        *(f"attention.{name}.weight" for name in MAPS),
        *(f"attention.{name}.bias" for name in MAPS if name != "key.linear"),  # softmax takes no notice of that one
        *(f"feed_forward.{name}" for name in ("up.weight", "up.bias", "down.weight", "down.bias")),
        *(f"around_{slot}.norm.{name}" for slot in ("attention", "feed_forward") for name in ("gamma", "beta")),
    ],
    "llama": [
        *(f"attention.{name}.weight" for name in MAPS),
        *(f"feed_forward.{name}.weight" for name in ("gate", "up", "down")),
        *(f"around_{slot}.norm.gamma" for slot in ("attention", "feed_forward")),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", DEEP)
def test_gradients_reach_the_first_layer_as_they_reach_the_last(deep, name):
    for stack in deep[name].stacks:
        for parameter in LEARNED[name]:
            if stack == "encoder." and "cross" in parameter:
                continue
            first, last = (deep[name].gradients[f"{stack}stack.blocks.{layer}.{parameter}"] for layer in (0, DEPTH - 1))
            assert 0.1 < first / last < 10, f"{stack}{parameter}: {first / last:.2g}"


@pytest.mark.parametrize("name", DEEP)
def test_every_branch_starts_with_its_share(deep, name):
    """Attention is an average and the feed-forward bends, so a branch gives less than its share, but not nothing."""
    started = deep[name]
    for stack in started.stacks:
        spec = (started.model.get_submodule(stack.rstrip(".")) if stack else started.model).spec
        slots = (
            ["attention", "feed_forward"] if spec.blocks[0].cross is None else ["attention", "cross", "feed_forward"]
        )
        gain = spec.blocks[0].arrangement.gain(DEPTH * len(slots), spec.embedding.stream(spec.d_model))
        for layer, slot in itertools.product((0, DEPTH - 1), slots):
            share = started.variance(f"{stack}stack.blocks.{layer}.{slot}.out") / gain**2
            assert 0.005 < share < 1.3, f"{stack}{layer} {slot}: {share:.3f}"


@pytest.mark.parametrize("feed_forward", [ReLU(2048), GELU(2048), SiLU(2048), SwiGLU(2048)], ids=str)
def test_maps_keep_unit_variance(feed_forward):
    network, x = feed_forward.build(512), torch.randn(4, 64, 512)
    seen = {}
    with watching(network, seen.setdefault):
        network(x)
    for name in seen.keys() & {"pre_activation", "gate", "up"}:
        assert seen[name].var().item() == pytest.approx(1, rel=0.05)
    assert seen["out"].var().item() == pytest.approx(seen["hidden"].square().mean().item(), rel=0.1)


@pytest.mark.parametrize("arrangement", [PreNorm(), NoNorm()], ids=["pre", "none"])
def test_the_last_map_of_each_branch_starts_with_the_gain(arrangement):
    block = BlockSpec(attention=AttentionSpec(heads=4), feed_forward=ReLU(512), arrangement=arrangement)
    stack = Stack((block,) * 8, 128, stream=0.5)
    gain = arrangement.gain(16, 0.5)
    for built in stack.blocks:
        for weight, n_inputs in ((built.attention.output.weight, 128), (built.feed_forward.down.weight, 512)):
            assert weight.std().item() == pytest.approx(gain * n_inputs**-0.5, rel=0.05)
        for weight, n_inputs in ((built.attention.value.linear.weight, 128), (built.feed_forward.up.weight, 128)):
            assert weight.std().item() == pytest.approx(n_inputs**-0.5, rel=0.05)


def test_biases_start_at_0_and_norms_at_1():
    model = presets.gpt2("tiny", vocabulary=50).build()
    for name, parameter in model.named_parameters():
        if name.endswith(("bias", "beta")):
            assert parameter.abs().max() == 0
        if name.endswith("gamma"):
            assert torch.equal(parameter, torch.ones_like(parameter))


# Where the output is tied, the danger is that a model ends near the embedding of the token it has just read, and starts
# sure that it comes again: the wider the model, the surer.
FIRST_LOSS = [
    pytest.param(lambda: presets.tiny(WORDS), WORDS, id="tiny"),
    pytest.param(lambda: presets.bert("tiny"), 30_522, id="bert"),
    pytest.param(lambda: presets.llama("15m"), 32_000, id="llama untied"),
    pytest.param(lambda: presets.gpt2(Size(4, 256, 4, 4, 1024)), 50_257, id="gpt2"),
    pytest.param(DEEP["gpt2"], WORDS, id="deep gpt2"),
    pytest.param(lambda: presets.gpt2(Size(4, 768, 12, 12, 1024), vocabulary=WORDS), WORDS, id="wide gpt2"),
    pytest.param(DEEP["classic"], WORDS, id="deep classic"),
    pytest.param(lambda: presets.llama("15m", tied=True), 32_000, id="llama tied"),
]


@pytest.mark.parametrize(("make", "words"), FIRST_LOSS)
def test_the_first_loss_is_that_of_knowing_nothing(make, words):
    model = make().build().eval()
    tokens = [torch.randint(words, (2, 32)) for _ in range(2 if len(model.stacks) > 1 else 1)]
    with torch.no_grad():
        loss = F.cross_entropy(model(*tokens).flatten(0, 1), torch.randint(words, (64,))).item()
    assert loss == pytest.approx(math.log(words), rel=0.2)


@pytest.mark.parametrize(
    "spec",
    [
        presets.classic(WORDS, size=Size(6, 128, 4, 4, 512), dropout=0.0),
        presets.bert(Size(12, 128, 4, 4, 512), vocabulary=WORDS, dropout=0.0),
    ],
    ids=["classic", "bert"],
)
def test_post_norm_does_not_forget_its_tokens(spec):
    """After the last block a good share of the variance still lies between the tokens of a sequence."""
    torch.manual_seed(0)
    start = Start(spec)
    last = [name for name in start.seen if name.endswith("out") and name.count(".") >= 3 and "blocks" in name][-1]
    vectors = start.seen[last]
    between = (vectors - vectors.mean(1, keepdim=True)).var() / vectors.var()
    assert between > 0.1
