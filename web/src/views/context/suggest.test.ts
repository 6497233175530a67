import { describe, expect, it } from "vitest";

import { sharedToken, sharedWord, wordsOf } from "./suggest";

describe("a shared word", () => {
  it("is the one that most texts share, with only the texts that have it", () => {
    const texts = ["the bank of the river", "a bank lends money", "rivers run", "money in the bank"];
    expect(sharedWord(texts)).toEqual({ word: "bank", texts: [texts[0], texts[1], texts[3]] });
  });

  it("is the longer of two that are shared as often", () => {
    expect(sharedWord(["one river bank", "one river boat"])?.word).toBe("river");
  });

  it("is a whole word, and not too short", () => {
    expect(sharedWord(["an art", "an artist"])).toBeNull();
  });

  it("comes with no more texts than asked for", () => {
    const texts = Array.from({ length: 9 }, (_, number) => `word ${number}`);
    expect(sharedWord(texts, 4)?.texts).toHaveLength(4);
  });
});

describe("a shared token", () => {
  const texts = ["zweihundertneun", "achthundertzwei", "elf"];
  const tokens = [["zwei", "hundert", "neun", "</s>"], ["acht", "hundert", "zwei", "</s>"], ["elf", "</s>"]]; // prettier-ignore

  it("is one of the tokens, never a special one", () => {
    expect(sharedToken(texts, tokens)).toEqual({ word: "hundert", texts: texts.slice(0, 2) });
  });

  it("is better once in a text than twice", () => {
    const twice = ["hunderttausendhundert", "hundertzweitausendhundert"];
    const cut = [["hundert", "tausend", "hundert"], ["hundert", "zwei", "tausend", "hundert"]]; // prettier-ignore
    expect(sharedToken(twice, cut)?.word).toBe("tausend");
  });

  it("loses the sign of the space before it", () => {
    expect(sharedToken(["a house", "b house"], [["a", "▁house"], ["b", " house"]])?.word).toBe("house"); // prettier-ignore
  });

  it("gives way to a word in its text and behind a single one, where nothing is shared", () => {
    expect(sharedToken(["in einem Haus"], [["in", "einem", "Haus"]])).toEqual({
      word: "einem",
      texts: ["in einem Haus", "in einem"],
    });
    expect(sharedToken(["Haus"], [["Haus"]])).toEqual({ word: "Haus", texts: ["Haus", "Haus"] });
    expect(sharedToken(["…"], [["…"]])).toBeNull();
    expect(sharedToken([], [])).toBeNull();
  });
});

describe("words of a text", () => {
  it("come without their commas, in any script", () => {
    expect([...wordsOf("Fünf, sechs; семь")]).toEqual(["Fünf", "sechs", "семь"]);
  });

  it("come without the mask of a text with a blank, which is a token that is in no text", () => {
    const texts = ["All<mask>", "Before we <mask> any"];
    expect(sharedWord(texts)).toBeNull();
    expect(sharedToken(texts, [["All", "<mask>"], ["Before", "▁we", "<mask>", "▁any"]])?.word).toBe("All"); // prettier-ignore
  });
});
