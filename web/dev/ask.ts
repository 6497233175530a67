/** Asks the engine of a live page under node: `node ask.mjs PAGE REQUESTS`, both files.
 *
 * PAGE has the page's JSON in its first line, its weights in the second and its film in those after it. REQUESTS has a JSON array of
 * [name, what is asked] a line; the id of a trace stands for the last one; "tokens" is for the tokeniser alone. The answers are printed, one a line.
 * A PAGE that is an answer key alone has no weights, and is asked about exercises.
 */

import { readFileSync } from "node:fs";

import { Engine } from "../src/live/engine";
import { Film } from "../src/live/film";
import { Grader } from "../src/live/exercises/grading";
import type { QuestionName } from "../src/lib/source";
import type { Live } from "../src/live/plan";
import { Tokenizer } from "../src/live/tokenizer";
import { unpackWeights } from "../src/live/weights";

const [page, requests] = process.argv.slice(2).map((path) => readFileSync(path, "utf-8").trimEnd().split("\n"));
const live = JSON.parse(page[0]) as ConstructorParameters<typeof Engine>[0] & Live & { key?: string };
const engine =
  live.key === undefined
    ? new Engine(live, await unpackWeights(page[1], live.tensors), live.film && new Film(live.film, page.slice(2)))
    : await Grader.unpack(live.key);
const said: string[] = [];
let last = "";

for (const line of requests) {
  const [method, given] = JSON.parse(line) as [string, object | string];
  const started = performance.now();
  try {
    const answer = method === "tokens" ? tokens(given as string) : await ask(method as QuestionName, given as object);
    if (method === "trace") last = (answer as { id: string }).id;
    const ms = performance.now() - started;
    said.push(JSON.stringify({ answer: listed(answer), ms }));
  } catch (error) {
    said.push(JSON.stringify({ error: error instanceof Error ? `${error.message}\n${error.stack}` : String(error) }));
  }
}
process.stdout.write(`${said.join("\n")}\n`);

function ask(name: QuestionName, asked: object): unknown {
  const method = engine[name as keyof typeof engine] as (asked: object) => unknown;
  return method.call(engine, "trace" in asked ? { ...asked, trace: last } : asked);
}

/** What the first tokeniser makes of a text. */
function tokens(text: string): unknown {
  const tokenizer = new Tokenizer(live.tokenizers[0]);
  const ids = tokenizer.encode(text);
  return {
    ids,
    text: tokenizer.decode(ids),
    pieces: ids.map((id) => tokenizer.piece(id)),
    unseen: tokenizer.unseen(text),
  };
}

/** Typed arrays as lists, wherever they stand. */
function listed(value: unknown): unknown {
  if (ArrayBuffer.isView(value)) return Array.from(value as Float32Array, (one) => (Number.isFinite(one) ? one : null));
  if (Array.isArray(value)) return value.map(listed);
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([name, inner]) => [name, listed(inner)]));
}
