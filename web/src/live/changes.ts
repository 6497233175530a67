/** Edits inside the model, as clearhead/tracing/edits.py makes them: of a step, a value of the stream, or a weighting. */

import { type EditJson, type Matrix, SourceError, type StepEdit } from "../lib/source";
import type { HeadVectors } from "./tensor";

export const OUTSIDE = ["query", "key", "value", "context"];
/** Steps between the keys and the weights. */
export const INSIDE = ["allowed", "score", "scaled", "masked", "weight"];

type Edit = StepEdit & { unit?: number | null };

export function isSwap(edit: EditJson): edit is Exclude<EditJson, StepEdit> {
  return "weighting" in edit;
}

/** What the model has that an edit may name. */
export interface Editable {
  sites: Map<string, { n_heads: number; n_kv_heads: number }>;
  /** The values that can be changed by themselves. */
  taps: Set<string>;
  names: string[];
  weightings: string[];
}

/** Raises for an edit that names what this model does not have, or says nothing. */
export function checkEdits(edits: EditJson[], model: Editable): void {
  for (const edit of edits) {
    if (isSwap(edit)) {
      if (!model.weightings.includes(edit.weighting))
        throw new SourceError(`weighting: there is no ${edit.weighting}; there are ${model.weightings.join(", ")}`);
      checkSite(edit.at, model);
      continue;
    }
    const name = nameOf(edit);
    if (((edit.to ?? null) === null) === ((edit.times ?? null) === null))
      throw new SourceError(`${name}: an edit has either \`to\`, a new value, or \`times\`, a factor; give one`);
    if (edit.step === "allowed" && typeof edit.to !== "boolean")
      throw new SourceError(`${name}: what is allowed is set \`to\` true or false; came ${String(edit.to)}`);
    if (model.taps.has(name)) continue;
    if (model.names.includes(name) && !model.sites.has(edit.at))
      throw new SourceError(
        `${name} cannot be changed: it is worked out, or learned, and nothing is made of it by itself; change what goes in there, or what comes out`,
      );
    const site = checkSite(edit.at, model);
    if (![...OUTSIDE, ...INSIDE].includes(edit.step))
      throw new SourceError(`there is no ${name}; its steps are ${[...OUTSIDE, ...INSIDE].join(", ")}`);
    const heads = edit.step === "key" || edit.step === "value" ? site.n_kv_heads : site.n_heads;
    checkPlace(edit, edit.head, heads, "head");
  }
}

function checkSite(at: string, model: Editable): { n_heads: number; n_kv_heads: number } {
  const site = model.sites.get(at);
  if (site === undefined)
    throw new SourceError(
      `there is no attention called ${at} in this model; there are ${[...model.sites.keys()].join(", ")}`,
    );
  return site;
}

export function nameOf(edit: StepEdit): string {
  return `${edit.at}.${edit.step}`;
}

function checkPlace(edit: StepEdit, place: number | null | undefined, size: number, what: string): void {
  if (place !== null && place !== undefined && !(place >= 0 && place < size))
    throw new SourceError(`${nameOf(edit)}: ${what} ${place} is changed, and there are ${size}, counted from 0`);
}

/** The edits of one trace. */
export class Changes {
  readonly steps: Edit[];

  constructor(readonly edits: EditJson[]) {
    this.steps = edits.filter((edit): edit is StepEdit => !isSwap(edit));
  }

  /** Those that a target of so many tokens has the places for. */
  reaching(n: number): Changes {
    return new Changes(
      this.edits.filter((edit) => {
        if (isSwap(edit) || !edit.at.startsWith("decoder.")) return true;
        const own = edit.at.endsWith(".attention") ? edit.key : null;
        return [edit.query, own].every((place) => place === null || place === undefined || place < n);
      }),
    );
  }

  at(site: string): EditJson[] {
    return this.edits.filter((edit) => edit.at === site);
  }

  /** A value of the stream after its edits; `whole`: one row for all tokens. */
  matrix(name: string, value: Matrix, whole = false): Matrix {
    for (const edit of this.steps) {
      if (nameOf(edit) !== name) continue;
      if (!whole) checkPlace(edit, edit.query, value.rows, "position");
      checkPlace(edit, edit.unit, value.columns, "unit");
      value = { ...value, data: value.data.slice() };
      for (const row of span(whole ? null : edit.query, value.rows))
        for (const unit of span(edit.unit, value.columns)) put(edit, value.data, row * value.columns + unit);
    }
    return value;
  }

  /** Queries, keys, values or contexts of the heads after their edits. */
  heads(name: string, value: HeadVectors): HeadVectors {
    for (const edit of this.steps) {
      if (nameOf(edit) !== name) continue;
      const byKey = edit.step === "key" || edit.step === "value";
      const row = byKey ? edit.key : edit.query;
      checkPlace(edit, edit.head, value.heads, "head");
      checkPlace(edit, row, value.rows, byKey ? "key" : "query");
      checkPlace(edit, edit.unit, value.columns, "unit");
      value = { ...value, data: value.data.slice() };
      for (const head of span(edit.head, value.heads))
        for (const place of span(row, value.rows))
          for (const unit of span(edit.unit, value.columns))
            put(edit, value.data, (head * value.rows + place) * value.columns + unit);
    }
    return value;
  }
}

/** Changes one row of a step between keys and weights. */
export function editRow(edits: EditJson[], step: string, head: number, query: number, row: Float64Array): void {
  for (const edit of edits) {
    if (isSwap(edit) || edit.step !== step) continue;
    if ((edit.head ?? head) !== head || (edit.query ?? query) !== query) continue;
    checkPlace(edit, edit.key, row.length, "key");
    for (const key of span(edit.key, row.length)) put(edit, row, key);
  }
}

function put(edit: Edit, data: Float32Array | Float64Array, place: number): void {
  data[place] = edit.times === null || edit.times === undefined ? Number(edit.to) : data[place] * edit.times;
}

function span(place: number | null | undefined, size: number): number[] {
  return place === null || place === undefined ? Array.from({ length: size }, (_, each) => each) : [place];
}
