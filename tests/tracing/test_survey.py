"""A survey: how much heads say, which says most, and how far what is rebuilt may be off."""

import math
from dataclasses import replace

import pytest
import torch

from clearhead.model import presets
from clearhead.tracing.survey import SiteSurvey, View, clearest, information, survey, views
from clearhead.tracing.trace import trace_model


@pytest.fixture(scope="module")
def made():
    torch.manual_seed(0)
    model = presets.tiny(vocabulary=50).build().eval()
    return trace_model(model, torch.randint(50, (1, 7)), torch.randint(50, (1, 5)))


def test_information_is_between_nothing_and_the_number_of_rows():
    for _ in range(20):
        assert 0 <= information([torch.randn(5, 7).softmax(-1)]) <= math.log2(5)
    assert information([torch.eye(8)]) == pytest.approx(3)
    assert information([]) == 0


def test_information_counts_shares_and_rows_that_look():
    """The rows of sigmoid and of a weighting of one's own need not sum to 1, and a row may see nothing."""
    weight = torch.randn(5, 7).softmax(-1)
    found = information([weight * torch.tensor([[0.1], [0.5], [1], [2], [3]]), torch.zeros(3, 7)])
    assert found == pytest.approx(information([weight]), rel=1e-5)
    assert information([torch.zeros(3, 7)]) == 0


def test_information_is_that_of_rows_about_columns_whole_or_in_blocks():
    weight = torch.randn(6, 9).softmax(-1)
    usual = weight.mean(0)
    wanted = (weight * (weight / usual).log2()).sum(-1).mean().item()
    assert information([weight]) == pytest.approx(wanted, rel=1e-5)
    assert information(weight.split(4)) == pytest.approx(wanted, rel=1e-5)


def test_every_head_of_every_site_is_surveyed_and_is_near_its_kernel(made):
    found = survey(made)
    assert list(found) == list(made.sites)
    for name, one in found.items():
        assert one.information == pytest.approx([information([head.weight]) for head in made[name].head])
        assert 0 < one.off < one.tolerance
        assert one.tolerance == pytest.approx(2e-5 * max(1, made[name].recorded_context.abs().max().item()))


def test_how_far_it_is_off_is_the_largest_difference(made):
    site = made["decoder.1.cross"]
    off = max((head.weight @ head.value - site.recorded_context[head.index]).abs().max().item() for head in site.head)
    assert survey(replace(made, sites={site.name: site}))[site.name].off == pytest.approx(off, rel=0.5)


def test_the_clearest_head_is_the_one_that_says_most():
    found = {
        "encoder.0.attention": SiteSurvey(information=[0.1, 1.5], off=0.0, tolerance=1.0),
        "encoder.1.attention": SiteSurvey(information=[2.5, 0.3], off=0.0, tolerance=1.0),
    }
    assert clearest(found) == View("encoder.1.attention", 0)


def test_a_view_is_a_head_or_the_mean_of_them(made):
    site = made["encoder.0.attention"]
    shown = views([site])
    assert shown == [View(site.name, head) for head in (None, 0, 1, 2, 3)]
    assert torch.equal(shown[2].of(made), site.head[1].weight)
    torch.testing.assert_close(shown[0].of(made), torch.stack([head.weight for head in site.head]).mean(0))
