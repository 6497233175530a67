import { readFileSync } from "node:fs";
import { join } from "node:path";

import { describe, expect, it } from "vitest";

import { de } from "./de";
import { en } from "./en";
import { chooseLanguage } from "./index";

/** Every path to a sentence, as "views.model.title". */
function paths(node: unknown, at: string): string[] {
  if (typeof node !== "object" || node === null) return [at];
  return Object.entries(node).flatMap(([name, value]) => paths(value, `${at}.${name}`));
}

describe("the language", () => {
  it("is the address's, then the browser's, then English", () => {
    expect(chooseLanguage("#/head?site=a&lang=de", ["en-GB"])).toBe("de");
    expect(chooseLanguage("#/head", ["fr", "de-AT", "en"])).toBe("de");
    expect(chooseLanguage("", ["fr"])).toBe("en");
    expect(chooseLanguage("#/head?lang=xx", ["en-US"])).toBe("en");
  });

  it("has every sentence in both", () => {
    expect(paths(de, "")).toEqual(paths(en, ""));
    for (const path of paths(de, "")) expect(path).not.toBe("");
  });

  it("calls the lines of a calculation by its own words, but for Score", () => {
    const { lines: german } = de.steps;
    const same = Object.entries(en.steps.lines).filter(
      ([name, words]) => german[name as keyof typeof german] === words,
    );
    expect(same).toEqual([]);
    const components = ["steps/Ledger.svelte", "intervene/CellEditor.svelte"].map((name) =>
      readFileSync(join(import.meta.dirname, "../views", name), "utf8"),
    );
    for (const text of components) expect(text).not.toMatch(/line\("|<th scope="row">{number.name}|<Terms [^>]*name="/);
  });
});
