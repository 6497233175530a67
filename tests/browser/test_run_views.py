"""The views of what a run does: decoding, interventions, training. Their numbers are the trace's, or the log's."""

import json
import math
import re
import shutil

import pytest
import torch
from playwright.sync_api import expect

import clearhead as ch
from clearhead.training.folder import RunFolder
from clearhead.training.run import load
from tests.browser.looking import serving
from tests.browser.watching import SITE, SOURCE, Tabs, comes_to, eventually, point_at, rests, says, state, tab_to

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def traced(demo):
    return ch.trace(demo, SOURCE)


def bars(part):
    """Candidates as they are drawn: token, and probability in full; None if only a bound of it is known."""
    drawn = [
        (int(one.get_attribute("data-candidate")), re.search(r"\(([^()]+)\)$", one.locator("title").text_content()))
        for one in part.locator("[data-candidate]").all()
    ]
    return [(token, number and float(number.group(1))) for token, number in drawn]


class TestDecoding:
    def test_candidates_are_the_traces_at_every_step(self, tabs, traced):
        page = tabs.open("decoding", beam=1)
        for step, row in enumerate(traced.candidates[:5], start=1):
            expect(page.get_by_test_id("decoding-slider")).to_have_attribute(
                "aria-valuetext", re.compile(f"Step {step} ")
            )
            rests(page)
            found = bars(page.get_by_test_id("decoding-candidates"))
            assert [token for token, _ in found] == [one.id for one in row[:8]]
            assert [p for _, p in found] == pytest.approx([math.exp(one.log_prob) for one in row[:8]], abs=1e-5)
            page.get_by_test_id("decoding-next").click()

    def test_the_trees_best_path_adds_up_the_traces_log_probabilities(self, tabs, traced):
        page = tabs.open("decoding", beam=1)
        path = page.get_by_test_id("decoding-tree").locator("[data-state=best]")
        expect(path).to_have_count(len(traced.candidates) + 1)
        page.get_by_test_id("decoding-slider").press("End")
        rests(page)
        total = 0.0
        for row, node in zip(traced.candidates, path.all()[1:], strict=True):
            total += row[0].log_prob
            told = node.get_attribute("aria-label")
            assert says(re.search(r"probability ([^,]+),", told).group(1), math.exp(row[0].log_prob))
            assert says(re.search(r"total log-probability ([^,]+),", told).group(1), total)
            assert "on the best path" in told

    def test_a_wider_beam_gives_the_outputs_and_scores_of_the_search(self, tabs, demo):
        page = tabs.open("decoding", beam=1)
        page.get_by_test_id("beam-3").click()
        comes_to(page, beam=3)
        writes, reads = demo.task.tokenizers["target"], demo.task.tokenizers["source"]
        method = ch.Beam(width=3, n_best=3)
        [found] = demo.task.search(demo.model, [reads.encode(SOURCE)], method)
        rows = page.get_by_role("list", name="Outputs, the best first").get_by_role("listitem")
        expect(rows).to_have_count(3)
        rests(page)
        for row, one in zip(rows.all(), found, strict=True):
            assert row.locator(".words").inner_text() == writes.decode(one.tokens)
            assert says(row.locator(".number").inner_text(), one.score)
        tree = page.get_by_test_id("decoding-tree")
        rests(page)
        assert tree.locator("[data-state=pruned]").count() > 0
        first = [node.get_attribute("aria-label") for node in tree.locator("[data-node]").all()[1:]]
        expected = ch.trace(demo, SOURCE, []).candidates[0]
        for told, one in zip([told for told in first if "at step 1," in told], expected, strict=False):
            assert says(re.search(r"total log-probability ([^,]+),", told).group(1), one.log_prob)

    def test_cross_attention_follows_the_output(self, tabs, traced):
        page = tabs.open("decoding", beam=1, at=3)
        layers = [torch.stack([head.weight for head in traced[f"decoder.{i}.cross"].head]).mean(0)[2] for i in (0, 1)]
        assert source_weights(page) == pytest.approx(((layers[0] + layers[1]) / 2).tolist(), rel=5e-3)
        page.get_by_test_id("decoding-layer").select_option("1")
        comes_to(page, layer=1)
        assert source_weights(page) == pytest.approx(layers[1].tolist(), rel=5e-3)

    def test_a_dropped_branch_is_looked_at(self, tabs):
        page = tabs.open("decoding", beam=2)
        node = page.get_by_test_id("decoding-tree").locator("[data-state=pruned]").first
        node.hover()
        expect(page.locator(".told")).to_contain_text("not kept by the beam")
        node.click()
        expect(node).to_have_attribute("aria-pressed", "true")
        token = node.get_attribute("aria-label").split(",")[0]
        expect(page.get_by_test_id("decoding-candidates").locator(".chosen title")).to_contain_text("taken")
        expect(page.get_by_text("on another branch")).to_contain_text(token.replace("▁", "·"))

    def test_by_keyboard(self, tabs, traced):
        page = tabs.open("decoding", beam=2)
        tab_to(page, page.get_by_test_id("decoding-slider"))
        page.keyboard.press("ArrowRight")
        comes_to(page, at=2)
        tab_to(page, page.get_by_test_id("decoding-tree").locator("[data-node][tabindex='0']"))
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Enter")
        comes_to(page, at=3)

    def test_it_plays(self, tabs):
        page = tabs.open("decoding", beam=1, at=1)
        page.get_by_test_id("decoding-play").click()
        eventually(page, lambda: int(state(page)["at"]) > 1)


def source_weights(page):
    """What is said of every token of the source: its weight, to three digits of a percentage."""
    titles = page.get_by_role("img", name=re.compile("^Source token")).locator("title")
    titles.first.wait_for(state="attached")
    rests(page)
    return [float(told.split()[-2].replace("−", "-")) / 100 for told in titles.all_text_contents()]


def answer(demo, made):
    return demo.task.tokenizers["target"].decode([row[0].id for row in made.candidates])


class TestIntervene:
    def test_a_head_is_switched_off_and_on(self, tabs, demo, traced):
        page = tabs.open("intervene", site=SITE, head=0)
        expect(page.get_by_test_id("answer-unchanged")).to_have_text(answer(demo, traced))
        off = [ch.Edit(at=SITE, step="context", head=1, times=0.0)]
        page.get_by_test_id(f"head-toggle-{SITE}-1").click()
        expect(page.get_by_test_id("edit-list")).to_contain_text("head 1 off")
        expect(page.get_by_test_id("off-stays")).to_contain_text("these weights stay")
        held_to(page, demo, ch.trace(demo, SOURCE, edits=off))
        page.get_by_test_id("undo").click()
        expect(page.get_by_test_id("edit-list")).to_contain_text("Nothing is changed yet")
        expect(page.get_by_test_id("answer-changed")).to_have_text(answer(demo, traced))
        page.get_by_test_id("redo").click()
        expect(page.get_by_test_id(f"head-toggle-{SITE}-1")).to_have_attribute("aria-checked", "false")
        held_to(page, demo, ch.trace(demo, SOURCE, edits=off))

    def test_an_edit_has_a_slider(self, tabs, demo):
        edits = [{"at": SITE, "step": "context", "head": 1, "times": 0}]
        page = tabs.open("intervene", site=SITE, head=1, edits=json.dumps(edits))
        page.get_by_test_id("edit-list").get_by_role("slider").fill("0.5")
        expect(page.get_by_test_id("edit-list")).to_contain_text("head 1 × 0.5")
        held_to(page, demo, ch.trace(demo, SOURCE, edits=[ch.Edit(at=SITE, step="context", head=1, times=0.5)]))

    def test_a_score_is_set(self, tabs, demo):
        page = tabs.open("intervene", site=SITE, head=2, query=1, key=3)
        before = ch.trace(demo, SOURCE)[SITE].head[2].cell(1, 3)
        for name in ("score", "scaled", "weight"):
            assert says(page.get_by_test_id(f"before-{name}").inner_text(), getattr(before, name)), name
        page.get_by_test_id("score-input").fill("40")
        page.get_by_test_id("score-set").click()
        expect(page.get_by_test_id("after-score")).to_have_text("40.00")
        rests(page)
        made = ch.trace(demo, SOURCE, edits=[ch.Edit(at=SITE, step="score", head=2, query=1, key=3, to=40.0)])
        for name in ("scaled", "weight"):
            assert says(page.get_by_test_id(f"after-{name}").inner_text(), getattr(made[SITE].head[2].cell(1, 3), name))
        held_to(page, demo, made)
        assert made[SITE].why in page.get_by_test_id("reference").inner_text()

    def test_a_cell_is_forbidden(self, tabs, demo):
        page = tabs.open("intervene", site=SITE, head=2, query=1, key=3)
        page.get_by_test_id("mask-toggle").click()
        expect(page.get_by_test_id("after-weight")).to_have_text("0")
        expect(page.get_by_test_id("after-masked")).to_have_text("−∞")
        held_to(
            page,
            demo,
            ch.trace(demo, SOURCE, edits=[ch.Edit(at=SITE, step="allowed", head=2, query=1, key=3, to=False)]),
        )
        page.get_by_role("button", name="As trained").click()
        expect(page.get_by_test_id("edit-list")).to_contain_text("Nothing is changed yet")

    def test_temperature_and_weighting(self, tabs, demo):
        page = tabs.open("intervene", site=SITE, head=2, query=1, key=3)
        page.get_by_test_id("temperature").fill("0.6")
        expect(page.get_by_test_id("edit-list")).to_contain_text("temperature")
        rests(page)
        [edit] = json.loads(state(page)["edits"])
        made = ch.trace(demo, SOURCE, edits=[ch.Edit(**edit)])
        expect(page.get_by_test_id("after-weight")).not_to_have_text(page.get_by_test_id("before-weight").inner_text())
        assert edit["times"] == pytest.approx(1 / 4)
        assert says(page.get_by_test_id("after-weight").inner_text(), made[SITE].head[2].weight[1, 3].item())
        page.get_by_test_id("clear-edits").click()
        expect(page.get_by_test_id("edit-list")).to_contain_text("Nothing is changed yet")
        rests(page)
        page.get_by_test_id("weighting").select_option("argmax")
        expect(page.get_by_test_id("edit-list")).to_contain_text("weighting argmax")
        made = ch.trace(demo, SOURCE, edits=[ch.Swap(at=SITE, weighting=ch.weighting.Argmax())])
        held_to(page, demo, made)
        expect(page.get_by_test_id("after-weight")).to_have_text(re.compile(r"^[01]"))
        rests(page)
        assert says(page.get_by_test_id("after-weight").inner_text(), made[SITE].head[2].weight[1, 3].item())

    def test_both_read_the_same_target(self, tabs, demo, traced):
        edits = [{"at": SITE, "step": "context", "head": head, "times": 0} for head in range(4)]
        page = tabs.open("intervene", site=SITE, head=0, edits=json.dumps(edits))
        page.get_by_test_id("feed-same").click()
        expect(page.get_by_test_id("feed-same")).to_have_attribute("aria-pressed", "true")
        page.get_by_test_id("map-difference").click()
        comes_to(page, map="difference")
        expect(page.get_by_test_id("heat-map")).to_have_count(1)
        off = [ch.Edit(at=SITE, step="context", head=head, times=0.0) for head in range(4)]
        held_to(page, demo, ch.trace(demo, SOURCE, traced.sides["decoder"].ids[1:], edits=off))

    def test_four_heads_of_a_layer_are_in_one_row_on_a_phone(self, tabs):
        page = tabs.open("intervene", site=SITE, head=0, window={"width": 360, "height": 780})
        tiles = [page.get_by_test_id(f"head-toggle-{SITE}-{head}").bounding_box() for head in range(4)]
        assert len({tile["y"] for tile in tiles}) == 1

    def test_a_cell_of_the_map_is_chosen(self, tabs):
        page = tabs.open("intervene", site=SITE, head=0)
        canvas = page.get_by_test_id("heat-map").locator("canvas")
        canvas.focus()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Enter")
        comes_to(page, query=1, key=1)
        expect(page.get_by_test_id("score-input")).to_be_visible()

    def test_by_keyboard(self, tabs):
        page = tabs.open("intervene", site=SITE, head=0)
        tab_to(page, page.get_by_test_id(f"head-toggle-{SITE}-0"))
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Enter")
        expect(page.get_by_test_id(f"head-toggle-{SITE}-1")).to_have_attribute("aria-checked", "false")
        page.keyboard.press("Control+z")
        expect(page.get_by_test_id(f"head-toggle-{SITE}-1")).to_have_attribute("aria-checked", "true")
        page.keyboard.press("Control+Shift+Z")
        expect(page.get_by_test_id(f"head-toggle-{SITE}-1")).to_have_attribute("aria-checked", "false")

    def test_an_edit_stays_on_while_other_views_are_looked_at(self, tabs, demo):
        edits = [{"at": SITE, "step": "context", "head": head, "times": 0} for head in range(4)]
        page = tabs.open("intervene", site=SITE, head=0, edits=json.dumps(edits))
        page.get_by_test_id("nav-model").click()
        off = [ch.Edit(at=SITE, step="context", head=head, times=0.0) for head in range(4)]
        expect(page.get_by_test_id("answer")).to_have_text(answer(demo, ch.trace(demo, SOURCE, edits=off)))


def held_to(page, demo, made):
    """The changed run says what the changed trace says: its answer, and the candidates at the place that is shown."""
    expect(page.get_by_test_id("answer-changed")).to_have_text(answer(demo, made))
    expect(page.locator("main")).to_have_attribute("aria-busy", "false")
    rests(page)
    changed = page.get_by_test_id("run-changed")
    place = int(re.search(r"\d+", changed.locator("h4").inner_text()).group())
    expected = {one.id: math.exp(one.log_prob) for one in made.candidates[place]}
    found = dict(bars(changed))
    assert made.candidates[place][0].id in found
    assert {token for token in found if found[token] is not None} == found.keys() & expected.keys()
    assert all(found[token] == pytest.approx(expected[token], abs=1e-5) for token in found if token in expected)


def log_of(demo):
    return [json.loads(line) for line in demo.folder.metrics.read_text().splitlines()]


class TestTraining:
    def test_curves_are_the_logs(self, tabs, demo):
        page = tabs.open("training")
        curves = page.get_by_test_id("training-curves")
        tab_to(page, curves)
        page.keyboard.press("Home")
        for _ in range(8):
            rests(page)
            told = curves.get_attribute("aria-valuetext")
            step = int(curves.get_attribute("aria-valuenow"))
            at = {line["kind"]: line for line in log_of(demo) if line["step"] == step}
            assert says(re.search(r"training ([^,]+)", told).group(1), at["step"]["loss"])
            assert says(re.search(r"learning rate ([^,]+)", told).group(1), at["step"]["lr"])
            if "evaluation" in at:
                assert says(re.search(r"dev ([^,]+)", told).group(1), at["evaluation"]["loss"])
                assert says(re.search(r"BLEU ([^,]+)", told).group(1), at["evaluation"]["scores"]["bleu"])
            page.keyboard.press("ArrowRight")
        assert step > 30

    def test_a_step_pointed_at_is_read(self, tabs, demo):
        page = tabs.open("training")
        curves = page.get_by_test_id("training-curves")
        point_at(page, curves, 0.4, 0.3, until=curves.locator("text.at"))
        expect(curves.locator("text.at")).to_have_text(re.compile(r"Step \d+"))
        step = int(page.get_by_test_id("training-curves").locator("text.at").text_content().split()[1])
        line = next(one for one in log_of(demo) if one["step"] == step)
        assert says(page.get_by_test_id("training-curves").locator("tspan.value").first.text_content(), line["loss"])

    def test_a_head_at_an_earlier_checkpoint(self, tabs, demo, traced):
        page = tabs.open("training", site=SITE, head=0)
        tab_to(page, page.get_by_test_id("training-slider"))
        page.keyboard.press("Home")
        comes_to(page, checkpoint=0)  # the first frame of the film
        expect(page.get_by_role("heading", name="at step 0", exact=False).first).to_be_visible()
        then = load(demo.folder.path, device="cpu", step=0)
        weight = ch.trace(then, SOURCE, traced.sides["decoder"].ids[1:])[SITE].head[0].weight
        page.get_by_test_id("heat-map").locator("canvas").focus()
        page.keyboard.press("ArrowDown")
        expect(page.get_by_test_id("reading-value")).to_have_text(re.compile(r"\d"))
        rests(page)
        assert says(page.get_by_test_id("reading-value").inner_text(), weight[1, 0].item())

    def test_the_checkpoints_play(self, tabs):
        page = tabs.open("training", site=SITE, head=0, checkpoint=30)
        page.get_by_test_id("training-play").click()
        comes_to(page, checkpoint=90)

    def test_curves_follow_a_run_that_trains(self, chromium, demo_folder, tmp_path):
        folder = RunFolder(shutil.copytree(demo_folder, tmp_path / "growing"))
        with folder.lock(), serving(folder.path) as home:
            tabs = Tabs(chromium, home)
            page = tabs.open("training")
            expect(page.get_by_test_id("live")).to_be_visible()
            expect(page.get_by_test_id("training-curves")).to_have_attribute("aria-valuenow", "90")
            with folder.metrics.open("a") as log:
                log.write(json.dumps({"kind": "step", "step": 95, "loss": 0.321, "lr": 0.0001}) + "\n")
            expect(page.get_by_test_id("training-curves")).to_have_attribute("aria-valuenow", "95")
            expect(page.get_by_test_id("training-curves")).to_have_attribute("aria-valuetext", re.compile("0.321"))
            tabs.check()
            tabs.close()
