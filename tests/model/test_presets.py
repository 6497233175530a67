"""Presets have the sizes of the models they are named after."""

import pytest
import torch

from clearhead.model import presets
from tests.peers import transformers


def counted(make):
    """How many parameters it makes, on the meta device."""
    with torch.device("meta"):
        model = make()
    return sum(parameter.numel() for parameter in model.parameters())


def parameters(spec):
    return counted(spec.build)


# The paper publishes 65 and 213 million for a shared vocabulary of about 37,000 tokens. Its own formulas give what
# stands here: the attention maps have no bias, the feed-forward has, and one table serves three times. No vocabulary
# makes both figures right: base would have 65 million with 40,817 tokens, big 213 million with 35,855.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "exactly", "published"),
    [(presets.base, 63_045_632, 65e6), (presets.big, 214_171_648, 213e6)],
    ids=["base", "big"],
)
def test_the_papers_models_have_the_papers_sizes(make, exactly, published):
    count = parameters(make(37_000))
    assert count == exactly
    assert count == pytest.approx(published, rel=0.035)
    width, n_tokens = make(37_000).decoder.d_model, {65e6: 40_817, 213e6: 35_855}[published]
    assert count + (n_tokens - 37_000) * width == pytest.approx(published, abs=width)


@pytest.mark.parametrize(("make", "size"), [(presets.base, (6, 512, 8, 2048)), (presets.tiny, (4, 128, 4, 256))])
def test_the_paper_counts_by_hand(make, size):
    n_layers, d, n_heads, d_ff = size
    spec = make(1000)
    blocks = [*spec.encoder.blocks, *spec.decoder.blocks]
    assert [block.attention.heads.count for block in blocks] == [n_heads] * 2 * n_layers
    feed_forward, norm = 2 * d * d_ff + d_ff + d, 2 * d
    encoder, decoder = 4 * d * d + feed_forward + 2 * norm, 8 * d * d + feed_forward + 3 * norm
    assert parameters(spec) == 1000 * d + n_layers * (encoder + decoder)


@pytest.mark.parametrize(
    ("size", "published"),
    [
        ("small", 124_439_808),
        ("medium", 354_823_168),
        pytest.param("large", 774_030_080, marks=pytest.mark.thorough),
        pytest.param("xl", 1_557_611_200, marks=pytest.mark.thorough),
    ],
)
@pytest.mark.slow
def test_gpt2_has_its_published_sizes(size, published):
    n_layers, d_model, n_heads, _, d_ff = presets.GPT2[size]
    config = transformers.GPT2Config(n_layer=n_layers, n_embd=d_model, n_head=n_heads, n_inner=d_ff)
    assert parameters(presets.gpt2(size)) == published == counted(lambda: transformers.GPT2LMHeadModel(config))


@pytest.mark.slow
@pytest.mark.parametrize("size", presets.BERT)
def test_bert_has_its_size_but_for_the_second_segment(size):
    n_layers, d_model, n_heads, _, d_ff = presets.BERT[size]
    config = transformers.BertConfig(
        num_hidden_layers=n_layers, hidden_size=d_model, num_attention_heads=n_heads, intermediate_size=d_ff
    )
    two_segments = 2 * d_model  # Ours is for one, and has no vectors that tell two apart.
    assert parameters(presets.bert(size)) + two_segments == counted(lambda: transformers.BertForMaskedLM(config))


def test_bert_base_has_the_size_people_know():
    assert parameters(presets.bert("base")) == 109_514_298 - 2 * 768


@pytest.mark.slow
@pytest.mark.parametrize("size", presets.LLAMA)
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.pairs(1)
def test_llama_has_the_size_of_the_same_config_elsewhere(size, tied):
    n_layers, d_model, n_heads, n_kv_heads, d_ff = presets.LLAMA[size]
    config = transformers.LlamaConfig(
        num_hidden_layers=n_layers,
        hidden_size=d_model,
        num_attention_heads=n_heads,
        num_key_value_heads=n_kv_heads,
        intermediate_size=d_ff,
        tie_word_embeddings=tied,
    )
    assert parameters(presets.llama(size, tied=tied)) == counted(lambda: transformers.LlamaForCausalLM(config))
