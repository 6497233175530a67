import { expect, test } from "vitest";

import { en } from "./en";
import { glossaryEn } from "./glossary.en";
import { explained } from "./terms";

function terms(sentence: string, language: "en" | "de" = "en"): string[] {
  return explained(sentence, language).flatMap(({ text, term }) => (term === null ? [] : [`${text}: ${term}`]));
}

test("a sentence stays what it was", () => {
  for (const sentence of ["", "no such word", "Tokens and tokens.", "Where a head looks"])
    expect(
      explained(sentence, "en")
        .map((part) => part.text)
        .join(""),
    ).toBe(sentence);
});

test("a term is explained where it comes first, in any of its forms", () => {
  expect(terms("Vectors, scores, weights: one query at a time, vectors")).toEqual([
    "Vectors: vector",
    "scores: score",
    "weights: weight",
    "query: query",
  ]);
  expect(terms("Wie Köpfe Gewichte verteilen", "de")).toEqual(["Köpfe: head", "Gewichte: weight"]);
});

test("the longer term wins, and a part of a word is none", () => {
  expect(terms("the weighted sum of cross-attention")).toEqual(["weighted sum: sum", "cross-attention: cross"]);
  expect(terms("keyboard, tokeniser, subtoken, self-attention, ahead")).toEqual([]);
});

test("a word that means something else is not explained as the term", () => {
  expect(terms("its activation times its output weights, and the weights of a head")).toEqual([
    "weights: weight",
    "head: head",
  ]);
  expect(terms(en.training.about)).toEqual(["head: head"]);
  expect(terms(en.neurons.about)).not.toContain("weights: weight");
});

test("every term has a definition", () => {
  const words = Object.keys(glossaryEn);
  for (const { term } of explained("token embedding feed-forward hidden units logits beam search", "en"))
    if (term !== null) expect(words).toContain(term);
});
