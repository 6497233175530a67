import { describe, expect, it } from "vitest";

import type { Row, SiteMeta } from "../../lib/source";
import { sentences, word } from "./narration";

const SITE = {
  slot: "attention",
  n_heads: 4,
  d_head: 16,
  words: { weighting: "softmax" },
  arithmetic: { kind: "softmax", formula: "query · key", blocked: null, turns: false, scale_reason: "" },
} as SiteMeta;
const of = (arithmetic: Partial<SiteMeta["arithmetic"]>): Partial<SiteMeta> => ({
  arithmetic: { ...SITE.arithmetic, ...arithmetic },
});
const ROW: Row = { score: [4, 8], scaled: [1, 2], masked: [1, null], weight: [1, 0], allowed: [true, false] };

function plain(site: Partial<SiteMeta> = {}, row: Partial<Row> = {}): string[] {
  return sentences({ ...SITE, ...site }, { ...ROW, ...row }, 0, [" cat", " sat"]).map((sentence) => sentence.plain);
}

describe("sentences", () => {
  it("say the scale, the mask and the weighting of this row", () => {
    const [, scores, weights, sum] = plain();
    expect(scores).toContain("“cat” is compared with every key: their 16 numbers");
    expect(weights).toBe(
      "Every score ÷ √16; 1 key masked, set to −∞; then softmax makes shares of them, the weights, which sum to 1.",
    );
    expect(sum).toContain("the other 3 heads");
  });

  it("differ for cross-attention, a choice and a kernel", () => {
    expect(plain({ slot: "cross" })[0]).toContain("text being read");
    expect(plain(of({ kind: "argmax" }))[2]).toContain("the highest takes all the weight");
    expect(plain(of({ kind: "kernelized", blocked: 0 }), { scaled: [4, 8] })[2]).toContain("set to 0");
    expect(plain({ n_heads: 1 })[3]).not.toContain("other");
    expect(plain({ n_heads: 6, n_kv_heads: 2 })[0]).toContain("shared by 3 heads");
    expect(plain({ n_heads: 6, n_kv_heads: 6 })[0]).not.toContain("shared");
  });

  it("say of a weighting and a similarity of the user's own what the parts say of themselves", () => {
    const own = of({ kind: "rows", rule: "The square root of each positive score", formula: "a score of the pair" });
    const [, scores, weights] = plain({ ...own, words: { ...SITE.words, weighting: "rooted" } });
    expect(scores).toBe("The query of “cat” is compared with every key: the score is a score of the pair.");
    expect(weights).toContain("then rooted makes the weights: The square root of each positive score.");
    expect(weights).not.toContain("softmax");
  });

  it("say that queries and keys are turned only where they are", () => {
    expect(plain(of({ turns: true }))[0]).toContain("turned by its position");
    expect(plain(of({ turns: true }))[1]).toContain("The turned query of “cat” is compared with every turned key");
    expect(plain().join(" ")).not.toContain("turned");
  });

  it("colour the words of the roles", () => {
    const [first] = sentences(SITE, ROW, 0, ["cat"]);
    expect(first.parts.filter(({ role }) => role).map(({ text }) => text)).toEqual(["query", "key", "value"]);
  });
});

it("word leaves the mark of a space out, and a lone dot in", () => {
  expect([" cat", "·", "cat"].map(word)).toEqual(["cat", "·", "cat"]);
});
