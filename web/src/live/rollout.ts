/** What follows from the weights of whole layers: attention rollout, and how long a vector each key adds to the stream. */

import type { Matrix } from "../lib/source";
import type { Site } from "./site";
import { matrix, rowOf } from "./tensor";
import type { Trace } from "./trace";

/** The rollout up to a site (Abnar and Zuidema, 2020), as clearhead/tracing/inner.py has it; `weight` gives a head's weights. */
export function rollOut(trace: Trace, site: Site, weight: (site: Site, head: number) => Matrix): Matrix {
  const [side, layer, slot] = site.name.split(".");
  const cross = slot === "cross";
  const before = cross ? "encoder" : side;
  const layers = [...trace.sites.values()].filter((one) => {
    const [itsSide, number, itsSlot] = one.name.split(".");
    return itsSide === before && itsSlot === "attention" && (cross || Number(number) <= Number(layer));
  });
  const means = layers.map((one) => halfway(meanWeight(one, weight)));
  if (cross) means.push(meanWeight(site, weight));
  return means.reduce((reached, one) => product(one, reached));
}

function meanWeight(site: Site, weight: (site: Site, head: number) => Matrix): Matrix {
  const mean = matrix(site.n_query, site.n_key);
  for (let head = 0; head < site.n_heads; head++)
    weight(site, head).data.forEach((one, cell) => (mean.data[cell] += one / site.n_heads));
  return mean;
}

/** The mean of a layer's weights and of the residual stream, in which each token stays where it is. */
function halfway(weights: Matrix): Matrix {
  const made = { ...weights, data: weights.data.map((one) => one / 2) };
  for (let place = 0; place < made.rows; place++) made.data[place * made.columns + place] += 0.5;
  return made;
}

function product(left: Matrix, right: Matrix): Matrix {
  const made = matrix(left.rows, right.columns);
  for (let row = 0; row < left.rows; row++) {
    const sum = rowOf(made, row);
    for (let inner = 0; inner < left.columns; inner++) {
      const share = left.data[row * left.columns + inner];
      if (share !== 0) rowOf(right, inner).forEach((one, column) => (sum[column] += share * one));
    }
  }
  return made;
}

/** ‖v · W_O‖ of each key's value in a head: the length of what it adds at weight 1. */
export function valueNorms(trace: Trace, site: Site, head: number): number[] {
  const { output, d_value } = site.rows.plan;
  const values = site.values(head);
  if (output === null) return values.map((value) => Math.hypot(...value));
  const { data, shape } = trace.model.tensor(output.weight);
  return values.map((value) => {
    let squares = 0;
    for (let unit = 0; unit < shape[0]; unit++) {
      let sum = 0;
      const start = unit * shape[1] + head * d_value;
      for (let place = 0; place < d_value; place++) sum += data[start + place] * value[place];
      squares += sum * sum;
    }
    return Math.sqrt(squares);
  });
}
