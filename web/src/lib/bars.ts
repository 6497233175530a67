/** Bars with a token before each: the room that the tokens take. */

import { piece } from "./words";

/** As wide as the longest token, and at most a share of the whole. */
export function nameRoom(tokens: readonly string[], width: number, share: number): number {
  return Math.min(share * width, 22 + 8 * Math.max(3, ...tokens.map((token) => [...piece(token)].length)));
}
