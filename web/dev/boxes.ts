/** Boxes as the server describes them, for the fake source and for tests. */

import type { BoxKind, BoxSpec, BoxValue, SideName } from "../src/lib/source";

/** What a branch passes: its norm before or after, the branch itself, the sum with what came in. */
export type Place = "norm" | "branch" | "add";
export const PRE: Place[] = ["norm", "branch", "add"];
export const ALONE: Place[] = ["branch"];
export const POST: Place[] = ["branch", "add", "norm"];

export interface Branch {
  kind: "attention" | "cross" | "feed_forward";
  places: Place[];
}

function value(name: string, more: Partial<BoxValue> = {}): BoxValue {
  return {
    name,
    formula: "",
    operands: {},
    map: "",
    of: "",
    rows: "query",
    columns: "unit",
    per_head: false,
    neutral: 0,
    ...more,
  };
}

function box(name: string, kind: BoxKind, layer: number | null, values: BoxValue[]): BoxSpec {
  return { name, kind, layer, values };
}

function norm(name: string, layer: number | null, came: string, out: string): BoxSpec {
  const inner = (part: string): string => `${name}.${part}`;
  return box(name, "norm", layer, [
    value(inner("mean"), { formula: "the mean of x" }),
    value(inner("variance"), { formula: "the mean of (x − mean)²" }),
    value(inner("normalized"), {
      formula: "({x} − {mean}) / √({variance} + 1e-05)",
      operands: { x: came, mean: inner("mean"), variance: inner("variance") },
    }),
    value(inner("gamma"), { formula: "learned", rows: "none" }),
    value(inner("beta"), { formula: "learned", rows: "none" }),
    value(out, {
      formula: "{gamma} · {normalized} + {beta}",
      operands: { gamma: inner("gamma"), normalized: inner("normalized"), beta: inner("beta") },
    }),
  ]);
}

function attention(at: string): BoxValue[] {
  const heads = { per_head: true };
  const steps = ["score", "scaled", "masked", "weight"].map((step) =>
    value(`${at}.${step}`, { ...heads, columns: "key" as const, formula: step }),
  );
  return [
    value(`${at}.query`, { ...heads, map: "W_Q", of: `${at}.normed` }),
    value(`${at}.key`, { ...heads, rows: "key", map: "W_K", of: `${at}.normed` }),
    value(`${at}.value`, { ...heads, rows: "key", map: "W_V", of: `${at}.normed` }),
    ...steps,
    value(`${at}.context`, { ...heads, formula: "the sum of weight · value over the keys" }),
    value(`${at}.concat`, { formula: "the contexts of all heads, side by side" }),
    value(`${at}.out`, { map: "W_O", of: `${at}.concat` }),
  ];
}

function feedForward(at: string, came: string): BoxValue[] {
  return [
    value(`${at}.pre_activation`, { map: "W_up", of: came }),
    value(`${at}.hidden`, { formula: "ReLU({pre_activation})", operands: { pre_activation: `${at}.pre_activation` } }),
    value(`${at}.out`, { map: "W_down", of: `${at}.hidden` }),
  ];
}

/** The boxes of a side with these branches in every layer; `last`: with a norm at the end of the stack. */
export function boxesOfSide(side: SideName, layers: number, branches: Branch[], last: boolean): BoxSpec[] {
  const [token, position, out] = ["token", "position", "out"].map((part) => `${side}.embedding.${part}`);
  const boxes = [
    box(token, "token", null, [value(token, { formula: "row of the table × √64" })]),
    box(position, "position", null, [
      value(position, { formula: "Sinusoidal position" }),
      value(out, { formula: "{token} + {position}", operands: { token, position } }),
    ]),
  ];
  let stream = out;
  for (let layer = 0; layer < layers; layer++)
    for (const { kind, places } of branches) {
      const at = `${side}.${layer}.${kind}`;
      let came = stream;
      for (const place of places) {
        if (place === "norm") boxes.push(norm(`${at}.norm`, layer, came, `${at}.normed`));
        else if (place === "add") {
          const operands = { x: stream, branch: came };
          boxes.push(
            box(`${at}.add`, "add", layer, [value(`${at}.residual`, { formula: "{x} + {branch}", operands })]),
          );
        } else boxes.push(box(at, kind, layer, kind === "feed_forward" ? feedForward(at, came) : attention(at)));
        came = boxes.at(-1)!.values.at(-1)!.name;
      }
      stream = came;
    }
  if (last) boxes.push(norm(`${side}.norm`, null, stream, `${side}.normed`));
  if (side === "encoder") return boxes;
  const logits = value(`${side}.output.logits`, { map: "table", of: `${side}.normed` });
  const probability = value(`${side}.output.probability`, { formula: "softmax of the logits" });
  return [...boxes, box(`${side}.output`, "output", null, [logits, probability])];
}
