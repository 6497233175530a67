/** What was done, one list of edits after another, to go back and forth in. */

import type { EditJson } from "./source";

export interface History {
  past: EditJson[][];
  now: EditJson[];
  future: EditJson[][];
}

const LONGEST = 100;

export function begun(now: EditJson[] = []): History {
  return { past: [], now, future: [] };
}

/** A new list; what had been undone is gone. */
export function did(history: History, now: EditJson[]): History {
  return { past: [...history.past, history.now].slice(-LONGEST), now, future: [] };
}

/** One step back; the same history where there is none. */
export function undone(history: History): History {
  const now = history.past.at(-1);
  if (now === undefined) return history;
  return { past: history.past.slice(0, -1), now, future: [history.now, ...history.future] };
}

export function redone(history: History): History {
  const [now, ...future] = history.future;
  return now === undefined ? history : { past: [...history.past, history.now], now, future };
}
