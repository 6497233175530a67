/** The views of the page, in their order and in the four groups that the page names. */

export const GROUPS = {
  see: ["model", "heads", "head", "steps", "sequence"],
  understand: ["similarity", "meaning", "context", "positions", "neurons", "circuit"],
  use: ["decoding", "tokens", "training"],
  change: ["intervene", "design", "exercises"],
} as const;

export type GroupName = keyof typeof GROUPS;
export type ViewName = (typeof GROUPS)[GroupName][number];
export const VIEWS: readonly ViewName[] = Object.values(GROUPS).flat();
