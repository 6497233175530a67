/** Keys that work everywhere on the page, and what they do. */

import { VIEWS } from "./address";
import type { ViewName } from "./source";

export type Command =
  | { do: "view"; view: ViewName }
  | { do: "help" }
  | { do: "text" }
  | { do: "go" }
  | { do: "theme" }
  | { do: "head"; by: 1 | -1 }
  | { do: "site"; by: 1 | -1 };

export interface Key {
  key: string;
  ctrlKey?: boolean;
  metaKey?: boolean;
  altKey?: boolean;
}

/** What is told in the help: the keys, and in words what they do. */
export const HELP: { where: string; keys: [string[], string][] }[] = [
  {
    where: "Everywhere",
    keys: [
      [["1", "…", "9", "0"], "go to a view"],
      [["/"], "type another text"],
      [["g"], "go to a head, as L12H3"],
      [["[", "]"], "the head before, the next"],
      [["{", "}"], "the layer before, the next"],
      [["t"], "light or dark"],
      [["?"], "this help"],
      [["Esc"], "close what lies on top"],
    ],
  },
  {
    where: "On a heat map",
    keys: [
      [["←", "↑", "↓", "→"], "move the cell that is read; the map follows"],
      [["Shift", "arrows"], "pan"],
      [["+", "−", "0"], "zoom in, zoom out, all of it"],
      [["Enter"], "choose the cell"],
    ],
  },
  {
    where: "On the heads",
    keys: [
      [["←", "↑", "↓", "→"], "the next head in that direction"],
      [["Home", "End"], "the first head, the last"],
      [["Enter"], "open the head"],
    ],
  },
  {
    where: "On tokens and boxes",
    keys: [
      [["Tab"], "go to the next"],
      [["←", "→"], "the token before, the next"],
      [["Enter"], "choose, or go in"],
    ],
  },
];

/** The command of a key, if it is one; `shownViews` are the views there are, in their order. */
export function commandOf(key: Key, shownViews: readonly ViewName[] = VIEWS): Command | null {
  if (key.ctrlKey || key.metaKey || key.altKey) return null;
  if (/^[0-9]$/.test(key.key)) {
    const view = shownViews[(Number(key.key) + 9) % 10];
    return view === undefined ? null : { do: "view", view };
  }
  return SINGLE[key.key] ?? null;
}

/** Whether what has the focus takes letters itself. */
export function takesLetters(element: Pick<Element, "tagName"> | null): boolean {
  return element !== null && ["INPUT", "TEXTAREA", "SELECT"].includes(element.tagName);
}

const SINGLE: Record<string, Command> = {
  "?": { do: "help" },
  "/": { do: "text" },
  g: { do: "go" },
  t: { do: "theme" },
  "[": { do: "head", by: -1 },
  "]": { do: "head", by: 1 },
  "{": { do: "site", by: -1 },
  "}": { do: "site", by: 1 },
};
