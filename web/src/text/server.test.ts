import { expect, test } from "vitest";

import { spoken } from "./server";

test("what the server says is told in German where it is known, and stays as it is elsewhere", () => {
  expect(spoken("causal mask", "de")).toBe("kausale Maske");
  expect(spoken("it is no text and has no position", "de")).toBe("it is no text and has no position");
  expect(spoken("causal mask", "en")).toBe("causal mask");
  expect(spoken("my own weighting", "de")).toBe("my own weighting");
  expect(spoken("toString", "de")).toBe("toString");
});

test("what stands in a phrase goes along, and is itself told in German where it is known", () => {
  expect(
    spoken("encoder.0.attention ran the reference: an edit changes score, which only the reference computes", "de"),
  ).toBe("encoder.0.attention lief mit der Referenz: eine Änderung ändert score, was nur die Referenz berechnet");
  expect(spoken("the word '$&' does not stand in 'a.b'; write it in every text", "de")).toBe(
    "das Wort '$&' steht nicht in 'a.b'; schreibe es in jeden Text",
  );
  expect(spoken("the source has 130 tokens, and the model reads 63; shorten it", "de")).toBe(
    "die Quelle hat 130 Tokens, und das Modell liest 63; kürze sie",
  );
  expect(spoken("row of the table × √64", "de")).toBe("Zeile der Tabelle × √64");
});
