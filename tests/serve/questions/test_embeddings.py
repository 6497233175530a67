"""The embedding map: its plane is PCA's, held against numpy's SVD, and neighbours are those of the cosine."""

import numpy as np
import pytest
import torch

import clearhead as ch
from clearhead.serve.budget import AnswerBudget, TooMuchError
from clearhead.serve.explorer import Explorer
from clearhead.serve.questions.embeddings import principal_plane, tables_of
from tests.serve.asking import ask

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_plane_is_that_of_the_svd():
    table = torch.randn(40, 12) @ torch.randn(12, 12)
    points, explained = principal_plane(table)
    centred = (table.double() - table.double().mean(0)).numpy()
    u, s, _ = np.linalg.svd(centred, full_matrices=False)
    wanted = u[:, :2] * s[:2]
    for place in range(2):
        ours = points[:, place].numpy()
        sign = np.sign(ours @ wanted[:, place])
        np.testing.assert_allclose(ours, sign * wanted[:, place], atol=1e-9)
    assert explained == pytest.approx((s[:2] ** 2 / (s**2).sum()).tolist())
    assert torch.equal(points, principal_plane(table)[0])


@pytest.mark.parametrize("shape", [(1, 4), (5, 1), (3, 2), (2, 8)])
def test_few_tokens_or_narrow_vectors_have_a_plane_too(shape):
    points, explained = principal_plane(torch.randn(shape))
    assert points.shape == (shape[0], 2)
    assert 0 <= sum(explained) <= 1 + 1e-9
    assert len(explained) == 2


def test_vectors_that_are_all_alike_or_not_finite():
    points, explained = principal_plane(torch.ones(4, 3))
    assert (points.abs().max().item(), explained) == (0, [0.0, 0.0])
    with pytest.raises(ch.errors.OptionError, match="not finite"):
        principal_plane(torch.full((4, 3), float("nan")))


def test_a_map_has_a_point_and_a_name_for_every_token(documents):
    found = ask(Explorer(documents), "embeddings")
    table = documents.model.embedding.table
    assert (found["table"], found["d_model"]) == ("decoder.embedding", table.shape[1])
    assert len(found["points"]) == len(found["tokens"]) == len(table)
    plane, explained = principal_plane(table)
    assert found["points"][7] == pytest.approx(plane[7].tolist(), abs=1e-6)
    assert found["explained"] == explained
    assert found["tokens"][documents.tokenizer.end] == "</s>"


def test_neighbours_are_those_of_the_cosine(documents):
    token = documents.tokenizer.encode("the cat")[-1]
    found = ask(Explorer(documents), "neighbours", {"table": "decoder.embedding", "token": token, "count": 4})
    table = documents.model.embedding.table.detach()
    cosine = torch.nn.functional.cosine_similarity(table, table[token], dim=-1)
    cosine[token] = -2
    [first, *_] = found["tables"]
    assert [one["id"] for one in first["near"]] == cosine.topk(4).indices.tolist()
    assert [one["cosine"] for one in first["near"]] == pytest.approx(cosine.topk(4).values.tolist(), abs=1e-6)
    assert first["length"] == pytest.approx(table[token].norm().item(), rel=1e-6)


def test_tables_are_listed_once_and_the_unembedding_where_it_is_its_own(translator, documents):
    for run in (translator, documents):
        tables = tables_of(run)
        assert len({id(table) for table in tables.values()}) == len(tables)
        found = ask(Explorer(run), "embeddings")
        assert [one["name"] for one in found["tables"]] == list(tables)
    from dataclasses import replace

    from clearhead.model.outputs import NextToken
    from clearhead.training.run import Run

    spec = replace(documents.model.spec, output=NextToken(tied=False))
    run = Run(documents.folder, documents.task, spec.build(), 0)
    assert list(tables_of(run)) == ["decoder.embedding", "output"]
    both = ask(Explorer(run), "neighbours", {"table": "output", "token": 5})["tables"]
    assert [one["table"] for one in both] == ["output", "decoder.embedding"]
    assert both[0]["near"] != both[1]["near"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [({"table": "x", "token": 1}, "must be one of"), ({"table": "decoder.embedding", "token": 10**6}, "must be 0 to")],
)
def test_what_cannot_be_is_told(documents, wrong, said):
    with pytest.raises(ch.errors.OptionError, match=said):
        ask(Explorer(documents), "neighbours", wrong)


def test_the_cost_is_checked_first(documents):
    with pytest.raises(TooMuchError, match="a map of"):
        ask(Explorer(documents, AnswerBudget(memory=1000)), "embeddings")
