/** Changes to what happens inside the model, as the server takes them: made, put in place of each other, told in words. */

import type { EditJson, HeadChoice, StepEdit, AskTrace, WeightingEdit } from "./source";
import { piece, shown, siteTitle } from "./words";
import { t } from "../text";

export interface Place {
  at: string;
  /** null is every head. */
  head: number | null;
  query: number;
  key: number;
}

/** The tokens that a site's cells stand for, and what the site is called. */
export interface Words {
  title: string;
  queries: string[];
  keys: string[];
}

export function isSwap(edit: EditJson): edit is WeightingEdit {
  return "weighting" in edit;
}

/** Whether one of them takes the other's place: the same value of the same cell, or a weighting of the same site. */
export function sameSpot(one: EditJson, other: EditJson): boolean {
  return spotOf(one) === spotOf(other);
}

/** Whether they are the same in the same order; the order of each one's parts is nothing, as the server has its own. */
export function sameEdits(one: readonly EditJson[], other: readonly EditJson[]): boolean {
  return orderless(one) === orderless(other);
}

function orderless(edits: readonly EditJson[]): string {
  return JSON.stringify(edits.map((edit) => Object.entries(edit).sort(([a], [b]) => (a < b ? -1 : 1))));
}

/** With an edit, in place of the one that was there. */
export function withEdit(edits: readonly EditJson[], edit: EditJson): EditJson[] {
  const place = edits.findIndex((known) => sameSpot(known, edit));
  return place < 0 ? [...edits, edit] : edits.with(place, edit);
}

export function without(edits: readonly EditJson[], edit: EditJson): EditJson[] {
  return edits.filter((known) => !sameSpot(known, edit));
}

export function headOff(at: string, head: number): StepEdit {
  return { at, step: "context", head, times: 0 };
}

/** Whether a head or a unit is off: `off` is the edit that makes it so. */
export function isOff(edits: readonly EditJson[], off: StepEdit): boolean {
  return edits.some((edit) => !isSwap(edit) && sameSpot(edit, off) && edit.times === 0);
}

export function toggled(edits: readonly EditJson[], off: StepEdit): EditJson[] {
  return isOff(edits, off) ? without(edits, off) : withEdit(edits, off);
}

/** A hidden unit of a feed-forward off, at every token. */
export function unitOff(at: string, unit: number): StepEdit {
  return { at, step: "hidden", unit, times: 0 };
}

export function scoreEdit({ at, head, query, key }: Place, to: number): StepEdit {
  return { at, step: "score", ...(head === null ? {} : { head }), query, key, to };
}

export function maskEdit({ at, head, query, key }: Place, to: boolean): StepEdit {
  return { at, step: "allowed", ...(head === null ? {} : { head }), query, key, to };
}

/** Return the temperature at a place of a slider of powers of ten, where half and double are as far from 1. */
export function temperatureAt(slider: string): number {
  const found = 10 ** Number(slider);
  return Math.abs(found - 1) < 0.03 ? 1 : Number(found.toPrecision(2));
}

export function temperatureEdit(at: string, temperature: number): StepEdit {
  return { at, step: "scaled", times: 1 / temperature };
}

/** The temperature of a site: 1 where it is as it was trained. */
export function temperatureOf(edits: readonly EditJson[], at: string): number {
  const found = edits.find((edit) => sameSpot(edit, temperatureEdit(at, 1)));
  return found !== undefined && !isSwap(found) && found.times ? 1 / found.times : 1;
}

export function withTemperature(edits: readonly EditJson[], at: string, temperature: number): EditJson[] {
  const edit = temperatureEdit(at, temperature);
  return temperature === 1 ? without(edits, edit) : withEdit(edits, edit);
}

export function weightingOf(edits: readonly EditJson[], at: string): string | null {
  return edits.filter(isSwap).find((edit) => edit.at === at)?.weighting ?? null;
}

/** With another weighting for a site; null is its own. */
export function withWeighting(edits: readonly EditJson[], at: string, weighting: string | null): EditJson[] {
  return weighting === null ? without(edits, { at, weighting: "" }) : withEdit(edits, { at, weighting });
}

/** The edit in a sentence's place: "head 3 off", "score of two → zwei = 5". */
export function told(edit: EditJson, words: Words): string {
  if (isSwap(edit)) return t.edits.weighting(edit.weighting);
  if (edit.unit != null) return toldUnit(edit, words);
  const head = edit.head == null ? t.edits.allHeads : t.words.head(edit.head);
  if (edit.step === "context" && edit.times === 0) return t.edits.off(head);
  if (edit.step === "context" && edit.query == null && edit.to == null) return `${head} × ${shown(edit.times, 3)}`;
  if (edit.step === "scaled" && edit.times && edit.query == null) return t.edits.temperature(shown(1 / edit.times, 3));
  const cell = `${tokenOf(edit.query, words.queries)} → ${tokenOf(edit.key, words.keys)}`;
  if (edit.step === "allowed") return `${head}, ${cell}: ${edit.to ? t.edits.may : t.edits.mayNot}`;
  const change = edit.to == null ? `× ${shown(edit.times, 3)}` : `= ${shown(Number(edit.to), 4)}`;
  return t.edits.cell(head, edit.step, cell, change);
}

function toldUnit(edit: StepEdit, words: Words): string {
  const where = edit.query == null ? "" : t.edits.unitAt(tokenOf(edit.query, words.queries));
  const change =
    edit.times === 0
      ? t.edits.unitOff
      : edit.to == null
        ? `× ${shown(edit.times, 3)}`
        : `= ${shown(Number(edit.to), 4)}`;
  return `${edit.step === "hidden" ? "" : `${edit.step}, `}${t.edits.unit(edit.unit ?? 0)}${where} ${change}`;
}

/** Past so many cells of one head and step, they are told as one. */
const SINGLY = 3;

/** The edits that are told and taken back together, as a person made them: many cells of one head, as a designed head has them, are one. */
export function groupsOf(edits: readonly EditJson[], words: (at: string) => Words) {
  const groups = new Map<string, EditJson[]>();
  for (const edit of edits) {
    const name = isSwap(edit) ? spotOf(edit) : JSON.stringify([edit.at, edit.step, edit.head ?? null]);
    groups.set(name, [...(groups.get(name) ?? []), edit]);
  }
  return [...groups.values()].flatMap((group) => {
    if (group.length <= SINGLY) return group.map((edit) => groupOf([edit], told(edit, words(edit.at))));
    const { step, head, unit } = group[0] as StepEdit;
    if (unit != null) return [groupOf(group, t.edits.units(group.length))];
    const which = head == null ? t.edits.allHeads : t.words.head(head);
    return [groupOf(group, t.edits.cells(which, step, group.length))];
  });
}

function groupOf(edits: EditJson[], words: string) {
  return { at: edits[0].at, words, edits };
}

/** "decoder.1.cross" → "Decoder 1 · cross-attention", also where no trace has such a site. */
export function titleOf(at: string): string {
  const [side, layer, slot] = at.split(".");
  if (slot === "feed_forward") return `${side === "encoder" ? "Encoder" : "Decoder"} ${layer} · feed-forward`;
  const able = (side === "encoder" || side === "decoder") && (slot === "attention" || slot === "cross");
  return able ? siteTitle({ side, layer: Number(layer), slot }) : at;
}

/** The head that an edit of a cell is for: every one where the mean is looked at. */
export function headOf(head: HeadChoice): number | null {
  return head === "mean" ? null : head;
}

/** The same text, without or with other edits. */
export function requestWith(request: AskTrace, edits: EditJson[]): AskTrace {
  return { ...request, edits };
}

function spotOf(edit: EditJson): string {
  if (isSwap(edit)) return JSON.stringify([edit.at, "weighting"]);
  const place = [edit.head ?? null, edit.query ?? null, edit.key ?? null, edit.unit ?? null];
  return JSON.stringify([edit.at, edit.step, ...place]);
}

function tokenOf(index: number | null | undefined, tokens: string[]): string {
  if (index == null) return t.edits.everyToken;
  return tokens[index] === undefined ? t.edits.token(index) : `“${piece(tokens[index])}”`;
}
