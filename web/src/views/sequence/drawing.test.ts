import { expect, it } from "vitest";

import { inPageWords } from "./drawing";

const DRAWN = [
  '<svg class="sequence" viewBox="0 0 900 400" width="900" height="400" role="img">',
  '<text class="said" x="1" y="2" xml:space="preserve">Followed: ▁seven.</text>',
  '<text class="phase" x="1" y="2">2  Scores: each query meets each key, score = query · key</text>',
  '<text class="phase" x="1" y="2">3  Weights: softmax of score × 0.177 + bias, for “▁seven”</text>',
  '<text class="name" x="1" y="2">q: ▁seven</text>',
  '<text class="name" x="1" y="2">k: 1.5</text>',
  '<text class="name" x="1" y="2">3 more</text>',
  '<text class="name" x="1" y="2">sum</text>',
  '<text class="name" x="1" y="2">k: sum</text>',
  '<text class="number" x="1" y="2">−0.123</text>',
  '<text class="label" x="1" y="2">bias −0.5: × 0.250</text>',
  "</svg>",
].join("");

it("marks the start of a word as every other view does", () => {
  const drawn = inPageWords(DRAWN, "en");
  expect(drawn).toContain(">q: ·seven<");
  expect(drawn).toContain("for “·seven”<");
  expect(drawn).toContain(">Followed: ·seven.<");
  expect(drawn).not.toContain("▁");
  expect(drawn).toContain(">−0.123<");
});

it("speaks German on a German page, and leaves tokens as they are", () => {
  const drawn = inPageWords(DRAWN, "de");
  expect(drawn).toContain(">2  Scores: jede Query trifft jeden Key, Score = query · key<");
  expect(drawn).toContain(">3  Gewichte: softmax von Score × 0,177 + Bias, für „·seven“<");
  expect(drawn).toContain(">Verfolgt: ·seven.<");
  expect(drawn).toContain(">k: 1.5<");
  expect(drawn).toContain(">3 weitere<");
  expect(drawn).toContain(">Summe<");
  expect(drawn).toContain(">k: sum<");
  expect(drawn).toContain(">−0,123<");
  expect(drawn).toContain(">Bias −0,5: × 0,250<");
});
