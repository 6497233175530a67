"""The model card: what the model is, what it scored, how it is opened."""

from clearhead.interop.export.huggingface_check import model_card
from tests.interop.export.random_runs import draw_spec, run_of


def test_a_trained_run_tells_its_scores(documents, tmp_path):
    card = model_card(documents, "GPT2LMHeadModel")
    assert card.startswith("---\nlibrary_name: transformers\npipeline_tag: text-generation\n")
    assert "- measured in training: `{" in card
    assert '"loss"' in card
    assert "AutoModelForCausalLM.from_pretrained" in card
    assert "measured" not in model_card(run_of(draw_spec("decoder", 0), tmp_path), "X")
