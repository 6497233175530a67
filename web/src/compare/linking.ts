/** Links two explorers: what is chosen in one is chosen in the other, where it has it. */

import type { Cursor } from "../lib/address";
import type { SiteMeta } from "../lib/source";
import type { Selection } from "../lib/state.svelte";

/** What the other one has of it. */
export interface Reach {
  sites: readonly Pick<SiteMeta, "name" | "n_heads" | "n_query" | "n_key">[];
  /** Views with nothing to show, each with the reason. */
  absent?: Readonly<Record<string, string>>;
}

export type Missing =
  | { what: "view"; why: string }
  | { what: "site"; name: string }
  | { what: "head"; head: number; heads: number }
  | { what: "query" | "key"; place: number; count: number };

/** What to select in the other, so that it shows what the cursor says; and what it does not have, so that it stays where
 * it was. */
export function followedBy(cursor: Cursor, other: Reach): { selection: Selection; missing: Missing[] } {
  const missing: Missing[] = [];
  const selection: Selection = { view: cursor.view };
  const why = other.absent?.[cursor.view];
  if (why !== undefined) missing.push({ what: "view", why });
  const site = other.sites.find((one) => one.name === cursor.site);
  if (site === undefined) {
    if (cursor.site !== null && other.sites.length > 0) missing.push({ what: "site", name: cursor.site });
    return { selection, missing };
  }
  selection.site = site.name;
  if (cursor.head === "mean" || cursor.head < site.n_heads) selection.head = cursor.head;
  else missing.push({ what: "head", head: cursor.head, heads: site.n_heads });
  for (const [what, count] of [
    ["query", site.n_query],
    ["key", site.n_key],
  ] as const) {
    const place = cursor[what];
    if (place === null || place < count) selection[what] = place;
    else missing.push({ what, place, count });
  }
  return { selection, missing };
}

export function sameCursor(one: Cursor, other: Cursor): boolean {
  return (["view", "site", "head", "query", "key"] as const).every((name) => one[name] === other[name]);
}
