/** What nothing uses any longer goes: sentences, classes of app.css, and what modules export. */

import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";

import { expect, test } from "vitest";

import { en } from "./text/en";

const files = readdirSync(import.meta.dirname, { recursive: true, encoding: "utf8" }).filter(
  (name) => /\.(ts|svelte)$/.test(name) && !name.endsWith(".test.ts") && name !== "learn/fakes.ts",
);
const sources = new Map(files.map((name) => [name, readFileSync(join(import.meta.dirname, name), "utf8")]));
/** Generated from the questions of the server, all of them. */
const GENERATED = "lib/messages.ts";

function within(names: (name: string) => boolean): string {
  return [...sources].flatMap(([name, text]) => (names(name) ? [text] : [])).join("\n");
}

/** The sentences that no code names: neither by themselves nor, below the sections, by a table that they are a row of. */
function unnamed(node: object, path: string[], code: string): string[] {
  return Object.entries(node).flatMap(([name, value]: [string, unknown]) => {
    const inner = typeof value === "object" && value !== null;
    if (new RegExp(`\\.${name}\\b`).test(code) && !inner) return [];
    if (inner && new RegExp(`\\.${name}${path.length > 0 ? "(?![\\w.])" : "\\["}`).test(code)) return [];
    return inner ? unnamed(value, [...path, name], code) : [[...path, name].join(".")];
  });
}

test("every sentence is said somewhere", () => {
  expect(unnamed({ one: { said: "", unsaid: "", rows: { a: "" } } }, [], "t.one.said t.one.rows[x]")).toEqual([
    "one.unsaid",
  ]);
  const outside = within((name) => !name.startsWith("text/"));
  expect(unnamed({ ...en, learn: {} }, [], outside)).toEqual([]); // chapters are named by their place
});

test("every class of app.css is some element's", () => {
  const sheet = readFileSync(join(import.meta.dirname, "app.css"), "utf8").replaceAll(/\/\*[\s\S]*?\*\//g, "");
  const markup = within((name) => name.endsWith(".svelte")).replaceAll(/<style>[\s\S]*?<\/style>/g, "");
  const classes = new Set([...sheet.matchAll(/\.([a-z][\w-]*)/gi)].map((found) => found[1]));
  expect(classes.size).toBeGreaterThan(30);
  expect([...classes].filter((one) => !new RegExp(`(?<![\\w-])${one}(?![\\w-])`).test(markup))).toEqual([]);
});

test("what a module exports is used, and not by tests alone", () => {
  const all = within(() => true);
  const exported = [...sources].flatMap(([name, text]) =>
    name === GENERATED
      ? []
      : [...text.matchAll(/^\s*export (?:async )?(?:function|const|class|interface|type) (\w+)/gm)].map(
          ([, one]) => one,
        ),
  );
  expect(exported.length).toBeGreaterThan(300);
  expect(exported.filter((one) => all.match(new RegExp(`\\b${one}\\b`, "g"))!.length < 2)).toEqual([]);
});
