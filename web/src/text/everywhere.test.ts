/** Every sentence of the page stands in its languages' files: none is written into a component. */

import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";

import { parse } from "svelte/compiler";
import { expect, test } from "vitest";

const SOURCES = join(import.meta.dirname, "..");
/** What is said of an element, also to those who do not see it. */
const SAID = new Set(["aria-label", "aria-valuetext", "title", "placeholder", "label", "note", "description", "alt"]);
/** Names of the field and of the program, alike in every language. */
const NAMES =
  /Clearhead|SVG|PNG|softmax|argmax|arccos|\b(query|key|value|score|scaled|masked|weight|context|bias|dimension|position|kernel|temperature|highest|log)\b/gi;

interface Node {
  type: string;
  [part: string]: unknown;
}

/** The words that a component says itself, with what they stand in. */
function* wordsOf(node: Node, within: string): Generator<string> {
  if (node.type === "Text" && says(node.data as string)) yield `${within}: ${(node.data as string).trim()}`;
  if (node.type === "StyleDirective" || (node.type === "Attribute" && !SAID.has(node.name as string))) return;
  if (node.type === "Literal" && typeof node.value === "string" && sentence(node.value))
    yield `${within}: ${node.value}`;
  if (node.type === "TemplateElement") {
    const { raw } = node.value as { raw: string };
    if (sentence(raw)) yield `${within}: ${raw}`;
  }
  const inside = typeof node.name === "string" ? node.name : within;
  for (const [part, child] of Object.entries(node)) {
    if (part === "parent" || part === "metadata") continue;
    for (const one of Array.isArray(child) ? child : [child])
      if (one !== null && typeof one === "object" && typeof (one as Node).type === "string")
        yield* wordsOf(one as Node, inside);
  }
}

function says(text: string): boolean {
  return /[A-Za-z]{3,}/.test(text.replace(NAMES, ""));
}

/** Two words or more: a single one in an expression is a name of the code. */
function sentence(text: string): boolean {
  return /[A-Za-z]{3,}[,:]? [A-Za-z]{3,}/.test(text);
}

const components = readdirSync(SOURCES, { recursive: true, encoding: "utf8" }).filter((name) =>
  name.endsWith(".svelte"),
);

test("there are components, and a sentence in one is found", () => {
  expect(components.length).toBeGreaterThan(80);
  const made = parse('<p title="A word here">{on ? "two words" : "one"}</p>text', { modern: true });
  expect([...wordsOf(made.fragment as unknown as Node, "")]).toEqual(["title: A word here", "p: two words", ": text"]);
});

test("no component has a sentence of its own", () => {
  const found = components.flatMap((name) => {
    const { fragment } = parse(readFileSync(join(SOURCES, name), "utf8"), { modern: true });
    return [...wordsOf(fragment as unknown as Node, "")].map((words) => `${name}: ${words}`);
  });
  expect(found).toEqual([]);
}, 60_000);
