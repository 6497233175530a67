/** Keys that work everywhere on the page, and what they do. */

import { VIEWS, type ViewName } from "./views";

export type Command =
  | { do: "view"; view: ViewName }
  | { do: "help" }
  | { do: "text" }
  | { do: "go" }
  | { do: "theme" }
  | { do: "learn" }
  | { do: "projector" }
  | { do: "leave" }
  | { do: "head"; by: 1 | -1 }
  | { do: "site"; by: 1 | -1 };

export interface Key {
  key: string;
  ctrlKey?: boolean;
  metaKey?: boolean;
  altKey?: boolean;
}

/** The command of a key, if it is one; `shownViews` are the views there are, in their order. */
export function commandOf(key: Key, shownViews: readonly ViewName[] = VIEWS): Command | null {
  if (key.ctrlKey || key.metaKey || key.altKey) return null;
  if (/^[0-9]$/.test(key.key)) {
    const view = shownViews[(Number(key.key) + 9) % 10];
    return view === undefined ? null : { do: "view", view };
  }
  return SINGLE[key.key] ?? null;
}

/** Inputs that letters mean nothing to. */
const LETTERLESS = ["range", "checkbox", "radio", "button", "color"];

/** Whether what has the focus takes letters itself. */
export function takesLetters(element: (Pick<Element, "tagName"> & { type?: string }) | null): boolean {
  if (element === null || !["INPUT", "TEXTAREA", "SELECT"].includes(element.tagName)) return false;
  return !LETTERLESS.includes(element.type ?? "");
}

const SINGLE: Record<string, Command> = {
  "?": { do: "help" },
  "/": { do: "text" },
  g: { do: "go" },
  t: { do: "theme" },
  l: { do: "learn" },
  f: { do: "projector" },
  Escape: { do: "leave" },
  "[": { do: "head", by: -1 },
  "]": { do: "head", by: 1 },
  "{": { do: "site", by: -1 },
  "}": { do: "site", by: 1 },
};
