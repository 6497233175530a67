/** Which feed-forwards a run has, and how long the bars of units are. */

import type { NeuronUnit, RunFacts } from "../../lib/source";
import { percent } from "../../lib/words";

/** The feed-forwards whose output is a linear map of hidden units, in order. */
export function boxesOf(run: RunFacts | null): string[] {
  const boxes = (run?.sides ?? []).flatMap((side) => side.boxes);
  return boxes
    .filter(({ kind, name, values }) => {
      const out = values.find((value) => value.name === `${name}.out`);
      return kind === "feed_forward" && out?.map !== "" && out?.of === `${name}.hidden`;
    })
    .map((box) => box.name);
}

/** The units that add something, and those that are looked at or switched off; the first where none is. */
export function listed(units: readonly NeuronUnit[], looked: (unit: number) => boolean): NeuronUnit[] {
  const some = units.filter((one) => one.norm > 0 || looked(one.unit));
  return some.length > 0 ? some : units.slice(0, 1);
}

/** The place of the last token that stands for text: at a marker such as </s> units may all be off. */
export function lastWord(tokens: readonly string[]): number {
  const found = tokens.findLastIndex((token) => !/^<(?!0x)[^>]+>$/.test(token));
  return Math.max(0, found < 0 ? tokens.length - 1 : found);
}

/** The length of each bar, the longest 1. */
export function widthsOf(units: readonly NeuronUnit[]): number[] {
  const most = Math.max(0, ...units.map((one) => one.norm));
  return units.map((one) => (most === 0 ? 0 : one.norm / most));
}

/** A share that may be negative: "−3.1 %". */
export function signedPercent(share: number): string {
  return share < 0 ? `−${percent(-share)}` : percent(share);
}

/** What a unit promotes, the most first, then what it suppresses, the most last; the longest bar of both is 1 long. */
export function effectBars(unit: Pick<NeuronUnit, "promotes" | "suppresses">) {
  const all = [...unit.promotes, ...unit.suppresses.toReversed()];
  const most = Math.max(1e-30, ...all.map((one) => Math.abs(one.change)));
  return all.map((one) => ({ ...one, length: one.change / most }));
}
