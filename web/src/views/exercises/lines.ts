/** A program by menus: lines of what was chosen, as the server reads them, and what may be chosen next. */

import type { PageExercises, Puzzle } from "../../lib/source";

/** One line: its operation, and a choice for each of its slots. */
export interface Line {
  operation: string;
  chosen: string[];
}

export const BETWEEN = " | ";
const BEGINNINGS = ["tokens", "indices"];
const SELECTORS = ["select", "both"];

export type Menus = Pick<PageExercises, "operations"> & { puzzle: Pick<Puzzle, "menus"> };

export function written(line: Line): string {
  return [line.operation, ...line.chosen].join(BETWEEN);
}

/** The last line is the answer, so it has to be a sequence. */
export function givesAnswer(lines: readonly Line[]): boolean {
  const last = lines.at(-1);
  return last !== undefined && !SELECTORS.includes(last.operation);
}

/** The lines of an address; what is no line of this puzzle's menus ends them. */
export function read(text: string | null, menus: Menus, most: number): Line[] {
  const lines: Line[] = [];
  for (const one of text === null || text === "" ? [] : text.split("\n").slice(0, most)) {
    const [operation, ...chosen] = one.split(BETWEEN);
    const slots = Object.hasOwn(menus.operations, operation) ? menus.operations[operation] : null;
    const fits =
      slots?.length === chosen.length && slots.every((slot, at) => choices(slot, lines, menus).includes(chosen[at]));
    if (!fits) break;
    lines.push({ operation, chosen });
  }
  return lines;
}

/** What may stand in a slot after these lines. */
export function choices(slot: string, before: readonly Line[], { puzzle }: Menus): string[] {
  if (slot !== "sequence" && slot !== "selector") return puzzle.menus[slot] ?? [];
  const named = before.flatMap((line, at) =>
    SELECTORS.includes(line.operation) === (slot === "selector") ? [`line ${at + 1}`] : [],
  );
  return slot === "sequence" ? [...BEGINNINGS, ...named] : named;
}

/** The operations that can be written next: those whose slots all have something to choose. */
export function possible(before: readonly Line[], menus: Menus): string[] {
  return Object.entries(menus.operations).flatMap(([name, slots]) =>
    slots.every((slot) => choices(slot, before, menus).length > 0) ? [name] : [],
  );
}

/** A new line with the first of each menu; of lines before, the last, which is mostly what comes next. */
export function fresh(operation: string, before: readonly Line[], menus: Menus): Line {
  const chosen = menus.operations[operation].map((slot) => {
    const all = choices(slot, before, menus);
    return (slot === "selector" ? all.at(-1) : all[0]) ?? "";
  });
  return { operation, chosen };
}

/** The lines without one of them; what named it, or what is no longer there, goes too. */
export function without(lines: readonly Line[], gone: number, menus: Menus): Line[] {
  const kept: Line[] = [];
  const now = new Map<string, string>();
  lines.forEach((line, at) => {
    if (at === gone) return;
    const chosen = line.chosen.map((name) => (/^line \d+$/.test(name) ? now.get(name) : name));
    if (chosen.some((name) => name === undefined)) return;
    const made = { operation: line.operation, chosen: chosen as string[] };
    if (!menus.operations[line.operation].every((slot, i) => choices(slot, kept, menus).includes(made.chosen[i])))
      return;
    kept.push(made);
    now.set(`line ${at + 1}`, `line ${kept.length}`);
  });
  return kept;
}

/** Lines with one changed; later lines that no longer fit (a selector that became a sequence) go. */
export function changed(lines: readonly Line[], at: number, to: Line, menus: Menus): Line[] {
  const next = lines.with(at, to);
  return read(next.map(written).join("\n"), menus, next.length);
}
