/** What a box says of itself when it is opened, and how the numbers in it are written out. */

import type { BoxNumbers, BoxSpec, BoxValue, SideName, SideSpec } from "../../lib/source";
import { BOX_TITLES } from "../../lib/words";
import { figures } from "../steps/working";
import { t } from "../../text";
import { spoken } from "../../text/server";

/** A row of an open box: a value that is made in it, or one (`made` null) that these follow from. */
export interface ValueRow {
  name: string;
  label: string;
  vector: number[];
  /** Which of its numbers are −∞ where they are null. */
  numbers: (number | null)[];
  made: BoxValue | null;
}

/** "Encoder 0 · self-attention · norm" */
export function boxTitle(side: SideName, box: BoxSpec): string {
  const where = side[0].toUpperCase() + side.slice(1);
  if (box.layer === null)
    return `${where} · ${box.name.endsWith(`${side}.norm`) ? t.model.lastNorm : BOX_TITLES[box.kind]}`;
  const branch = box.name.split(".")[2] as "attention" | "cross" | "feed_forward";
  const own = BOX_TITLES[box.kind];
  return [`${where} ${box.layer}`, BOX_TITLES[branch], ...(box.kind === branch ? [] : [own])].join(" · ");
}

export function boxWords(box: BoxSpec, side: SideSpec): string {
  switch (box.kind) {
    case "token":
      return t.model.everyId(side.d_model);
    case "position":
      return t.model.position;
    case "norm":
      return t.model.norm(box.values.some((value) => shortName(value.name) === "beta"));
    case "add":
      return t.model.add;
    case "feed_forward":
      return t.model.feedForward(side.layers[box.layer!].feed_forward ?? "");
    case "output":
      return t.model.output;
    default:
      return t.model.attention;
  }
}

/** The last part of a name: "hidden" of "encoder.0.feed_forward.hidden". */
export function shortName(name: string): string {
  return name.split(".").at(-1)!;
}

/** What comes in, and then every value of the box; those that the source does not have are left out. */
export function rowsOf(box: BoxSpec, numbers: BoxNumbers): ValueRow[] {
  const own = new Set(box.values.map((value) => value.name));
  const read = new Map<string, string>();
  for (const value of box.values) {
    for (const [label, name] of Object.entries(value.operands)) if (!own.has(name)) read.set(name, label);
    if (value.of !== "" && value.rows !== "key" && !own.has(value.of)) read.set(value.of, "x");
  }
  const inputs = [...read].map(([name, label]) => ({ name, label, made: null }));
  const made = box.values.map((value) => ({ name: value.name, label: shortName(value.name), made: value }));
  return [...inputs, ...made].flatMap((row) => {
    const found = numbers.values[row.name];
    return found === undefined ? [] : [{ ...row, numbers: found, vector: found.map((one) => one ?? 0) }];
  });
}

/** The value's number at a place; what has one number only has it everywhere. */
export function numberAt(numbers: (number | null)[], place: number): number | null {
  return numbers.length === 1 ? numbers[0] : numbers[place];
}

/** The formula of a value with the numbers of one place in it: "(0.53 − 0.01) / √(1.02 + 1e-05)". */
export function workedOut(value: BoxValue, numbers: BoxNumbers, place: number): string | null {
  const names = Object.entries(value.operands);
  if (names.length === 0 || names.some(([, name]) => numbers.values[name] === undefined)) return null;
  const known = names.map(([label, name]) => [label, numberAt(numbers.values[name], place)] as const);
  const all = [...known, ...Object.entries(numbers.constants)];
  return all.reduce((text, [label, number]) => {
    const shown = figures(number);
    return text.replaceAll(`{${label}}`, number !== null && number < 0 && names.length > 1 ? `(${shown})` : shown);
  }, value.formula);
}

/** A formula in words: "gamma · normalized + beta". A linear map is its product with what it reads, x where that comes
 * in from another box. */
export function inWords(value: BoxValue, box: BoxSpec): string {
  if (value.map === "") return spoken(value.formula).replace(/[{}]/g, "");
  const own = box.values.some((one) => one.name === value.of);
  if (value.rows === "key") return t.model.ofKey(`${value.map} · ${own ? shortName(value.of) : value.of}`);
  return `${value.map} · ${own ? shortName(value.of) : "x"}`;
}

/** The places of the largest numbers, the largest first: by their size, or as they are where only that counts. */
export function largestPlaces(vector: ArrayLike<number>, most: number, size = Math.abs): number[] {
  const places = Array.from({ length: vector.length }, (_, place) => place);
  return places.sort((a, b) => size(vector[b]) - size(vector[a])).slice(0, most);
}

/** Of each width of vectors in the box, the place to open on: where the last of them is largest. */
export function firstPlaces(rows: ValueRow[]): Map<number, number> {
  const own = rows.filter((row) => row.made?.columns !== "key" && row.vector.length > 0);
  return new Map(own.map((row) => [row.vector.length, largestPlaces(row.vector, 1)[0]]));
}
