/** Bars with a token before each: the room that the tokens take. */

import { piece } from "./words";

/** In pixels: between a name and its bar, and a letter of 13 px. */
const [GAP, LETTER] = [8, 8];

/** What a name has room for, the bar's gap left out. */
export function shortened(token: string, room: number): string {
  const letters = [...piece(token)];
  const most = Math.max(2, Math.floor((room - GAP) / LETTER));
  return letters.length <= most ? letters.join("") : `${letters.slice(0, most - 1).join("")}…`;
}

/** As wide as the longest token, and at most a share of the whole. */
export function nameRoom(tokens: readonly string[], width: number, share: number): number {
  return Math.min(share * width, 22 + 8 * Math.max(3, ...tokens.map((token) => [...piece(token)].length)));
}
