/** The feed-forward view of a live page: the units of a layer at a token, as clearhead/tracing/neurons.py has them. */

import { type Neurons, type AskNeurons, type NeuronUnit, type SideName, SourceError } from "../lib/source";
import type { Model } from "./model";
import type { NormPlan } from "./plan";
import { erf, largest, type Norm } from "./tensor";
import { boxesOf, type Trace } from "./trace";

type Vector = ArrayLike<number>;
/** What a small change of the vectors becomes behind a part of the model, and the vector that it is a change of. */
interface Moving {
  x: Float64Array;
  changes: Float64Array[];
}

const ANSWERS = 5;
const MOST_UNITS = 64;

/** Return the units that add most at a token, and one that is asked for wherever it ranks. */
export function unitsOf(
  trace: Trace,
  { at, token = 0, most = 20, unit = null }: AskNeurons,
  named: (ids: number[]) => string[],
): Neurons {
  const { model, live } = trace;
  const box = boxesOf(live.run).find((one) => one.name === at && one.kind === "feed_forward");
  if (box === undefined) throw new SourceError(`there is no feed-forward with units called ${at}`);
  const side = at.split(".")[0] as SideName;
  const { plan } = trace.branchOf(at);
  const hidden = trace.vector(`${at}.hidden`, token, 0);
  const out = trace.vector(`${at}.out`, token, 0);
  if (unit !== null && unit >= hidden.length)
    throw new SourceError(`${at}: there is no unit ${unit}; there are ${hidden.length}, counted from 0`);
  const down = model.tensor(plan.network!.down.weight).data;
  const added = (one: number): Float64Array =>
    Float64Array.from(out, (_, column) => hidden[one] * down[column * hidden.length + one]);
  const size = dot(out, out);
  const [norms, shares] = [new Float64Array(hidden.length), new Float64Array(hidden.length)];
  for (let one = 0; one < hidden.length; one++) {
    const vector = added(one);
    norms[one] = Math.fround(Math.sqrt(dot(vector, vector)));
    shares[one] = size === 0 ? 0 : dot(vector, out) / size;
  }
  const order = largest(norms, hidden.length);
  const chosen = [...new Set([...order.slice(0, Math.min(most, MOST_UNITS)), ...(unit === null ? [] : [unit])])];
  const silent = whySilent(model, side);
  const changes = silent === "" ? logitChanges(trace, at, token, out, chosen.map(added)) : null;
  const steps = box.values
    .map((value) => ({ name: value.name, vector: trace.vector(value.name, token, 0) }))
    .filter(({ name, vector }) => vector.length === hidden.length && name !== `${at}.out`);
  return {
    at,
    token,
    d_ff: hidden.length,
    active: Array.from(hidden).filter((value) => value > 0).length,
    half: fewestForHalf(order.map((one) => norms[one])),
    bias: size === 0 ? 0 : 1 - shares.reduce((sum, share) => sum + share, 0),
    units: chosen.map((one, place): NeuronUnit => ({
      unit: one,
      steps: Object.fromEntries(steps.map(({ name, vector }) => [name.split(".").at(-1)!, vector[one]])),
      norm: norms[one],
      share: shares[one],
      promotes: extremes(changes?.[place], 1, named),
      suppresses: extremes(changes?.[place], -1, named),
    })),
    formula: box.values.find((value) => value.name === `${at}.hidden`)!.formula.replaceAll(/[{}]/g, ""),
    silent,
  };
}

function whySilent(model: Model, side: SideName): string {
  if (side !== model.sides.at(-1)) return "the output reads the decoder, and this is the encoder";
  return model.side(side).output?.kind === "vocabulary" ? "" : "the output does not give every token its own logits";
}

/** The fewest of the norms, the largest first, that sum to half of them all. */
function fewestForHalf(norms: number[]): number {
  const whole = norms.reduce((sum, one) => sum + one, 0);
  let [sum, count] = [0, 0];
  while (whole > 0 && sum < whole / 2) sum += norms[count++];
  return count;
}

/** How much each of some vectors, added to a feed-forward's output, adds to every logit: the later layers left out, the
 * parts between as the linear maps that they are near this token. */
function logitChanges(trace: Trace, at: string, token: number, out: Vector, added: Float64Array[]): Float64Array[] {
  const { model } = trace;
  const side = model.side(at.split(".")[0] as SideName);
  const { plan, came } = trace.branchOf(at);
  const from = came.data.subarray(token * came.columns, (token + 1) * came.columns);
  let now: Moving = { x: Float64Array.from(out), changes: added };
  for (const { box } of plan.places.slice(plan.places.findIndex((place) => place.box === "branch") + 1))
    now =
      box === "add"
        ? { ...now, x: now.x.map((value, k) => value + from[k]) }
        : throughNorm(model.norm(plan.norm!), now);
  if (side.norm !== null) now = throughNorm(model.norm(side.norm), now);
  const output = side.output!;
  if (output.kind !== "vocabulary") return [];
  if (output.transform !== null) now = throughTransform(model, output.transform, now);
  const table = model.tensor(output.table);
  return now.changes.map((change) => times(table.data, change, table.shape[0]).map((one) => one * output.factor));
}

function throughNorm(norm: Norm, { x, changes }: Moving): Moving {
  const mean = norm.kind === "layer" ? average(x) : 0;
  const centred = x.map((value) => value - mean);
  const factor = 1 / Math.sqrt(dot(centred, centred) / x.length + norm.epsilon);
  const normalized = centred.map((value) => value * factor);
  const moved = changes.map((change) => {
    const shift = norm.kind === "layer" ? average(change) : 0;
    const along = dot(normalized, change) / x.length;
    return change.map((value, k) => norm.gamma[k] * factor * (value - shift - normalized[k] * along));
  });
  return { x: normalized.map((value, k) => value * norm.gamma[k] + (norm.beta?.[k] ?? 0)), changes: moved };
}

/** A linear map, GELU and a norm, as BERT has them before its logits. */
function throughTransform(
  model: Model,
  { weight, bias, norm }: { weight: string; bias: string | null; norm: NormPlan },
  { x, changes }: Moving,
): Moving {
  const { data, shape } = model.tensor(weight);
  const before = times(data, x, shape[0]).map((value, k) => value + (bias === null ? 0 : model.tensor(bias).data[k]));
  const below = before.map((value) => 0.5 * (1 + erf(value / Math.SQRT2)));
  const slope = before.map((value, k) => below[k] + (value * Math.exp((-value * value) / 2)) / Math.sqrt(2 * Math.PI));
  const moved = changes.map((change) => times(data, change, shape[0]).map((value, k) => value * slope[k]));
  return throughNorm(model.norm(norm), { x: before.map((value, k) => value * below[k]), changes: moved });
}

/** The answers whose logits change most in one direction; none that do not change in it. */
function extremes(
  changes: Float64Array | undefined,
  sign: 1 | -1,
  named: (ids: number[]) => string[],
): NeuronUnit["promotes"] {
  if (changes === undefined) return [];
  const signed = changes.map((change) => change * sign);
  const ids = largest(signed, Math.min(ANSWERS, changes.length)).filter((id) => signed[id] > 0);
  const texts = named(ids);
  return ids.map((id, place) => ({ id, text: texts[place], change: changes[id] }));
}

function times(weight: Float32Array, x: Vector, rows: number): Float64Array {
  const made = new Float64Array(rows);
  for (let row = 0; row < rows; row++) {
    let sum = 0;
    for (let k = 0; k < x.length; k++) sum += weight[row * x.length + k] * x[k];
    made[row] = sum;
  }
  return made;
}

function dot(a: Vector, b: Vector): number {
  let sum = 0;
  for (let k = 0; k < a.length; k++) sum += a[k] * b[k];
  return sum;
}

function average(x: Float64Array): number {
  return x.reduce((sum, value) => sum + value, 0) / x.length;
}
