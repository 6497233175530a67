/** Which view each chapter leads to, and what it points at there: the one table to change when a better view lands. */

import type { ViewName } from "../lib/source";

/** A view a chapter can be told in, and the element it is told of. `{…}` is filled in by the chapter. */
export interface Link {
  view: ViewName;
  spot: string;
}

const id = (name: string): string => `[data-testid="${name}"]`;

/** The first view that the page has is taken; without any the chapter is left out. */
export const LINKS = {
  tokens: [{ view: "model", spot: id("tokens-{side}") }],
  embedding: [
    { view: "meaning", spot: id("spaces-embedding") },
    { view: "model", spot: id("detail") },
  ],
  position: [
    { view: "positions", spot: id("positions-slider") },
    { view: "model", spot: id("detail") },
  ],
  vectors: [{ view: "steps", spot: `${id("steps-query")}, ${id("view-steps")} svg[data-picture]` }],
  score: [{ view: "steps", spot: `${id("view-steps")} svg[data-picture]` }],
  scale: [
    { view: "intervene", spot: id("temperature") },
    { view: "steps", spot: `${id("view-steps")} svg[data-picture]` },
  ],
  mask: [{ view: "head", spot: id("heat-map") }],
  softmax: [{ view: "steps", spot: `${id("steps-query")}, ${id("view-steps")} svg[data-picture]` }],
  sum: [{ view: "steps", spot: `${id("view-steps")} svg[data-picture]` }],
  roles: [{ view: "meaning", spot: id("spaces-query_key") }],
  heads: [{ view: "head", spot: id("head-picker") }],
  cross: [{ view: "head", spot: id("heat-map") }],
  residual: [{ view: "model", spot: id("tokens-{side}") }],
  feedforward: [{ view: "model", spot: id("detail") }],
  layers: [{ view: "model", spot: id("tokens-{side}") }],
  output: [{ view: "model", spot: `[data-testid^="output-"]` }],
  sampling: [{ view: "decoding", spot: id("decoding-candidates") }],
  film: [{ view: "head", spot: id("step-bar") }],
  change: [{ view: "intervene", spot: id("score-input") }],
  summary: [{ view: "model", spot: id("view-model") }],
} satisfies Record<string, readonly Link[]>;

export type ChapterName = keyof typeof LINKS;

/** The chapters in their order. */
export const CHAPTERS = Object.keys(LINKS) as ChapterName[];

/** Return where a chapter is told on a page with these views; null where it cannot be. */
export function linkOf(name: ChapterName, views: readonly ViewName[]): Link | null {
  return (LINKS[name] as readonly Link[]).find((link) => views.includes(link.view)) ?? null;
}
