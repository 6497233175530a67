/** Sampling as clearhead/decoding/sampling.py does it: the same tokens for the same seed, and what each was drawn from. */

import type { AskSample } from "../lib/source";
import type { Session } from "./decode";
import type { Decoding } from "./task";
import { logSoftmax, rowOf } from "./tensor";

/** A token that was drawn, its probability before and after the cuts, and the likeliest tokens beside it. */
export interface DrawnToken {
  token: number;
  p: number;
  after: number;
  drawn: number | null;
  begins: number;
  left: number;
  candidates: { id: number; p: number; after: number; cut: "" | "top_k" | "top_p" | "never" }[];
}

const TEMPERATURE = 0.8;
const SHOWN = 10;

/** The Mersenne Twister, from which torch draws on a CPU. */
export class Twister {
  private readonly state = new Uint32Array(624);
  private place = 624;

  constructor(seed: number) {
    this.state[0] = seed;
    for (let n = 1; n < 624; n++) {
      const last = this.state[n - 1] ^ (this.state[n - 1] >>> 30);
      this.state[n] = Math.imul(1812433253, last) + n;
    }
  }

  private next(): number {
    if (this.place === 624) this.turn();
    let y = this.state[this.place++];
    y ^= y >>> 11;
    y ^= (y << 7) & 0x9d2c5680;
    y ^= (y << 15) & 0xefc60000;
    return (y ^ (y >>> 18)) >>> 0;
  }

  private turn(): void {
    for (let n = 0; n < 624; n++) {
      const y = (this.state[n] & 0x80000000) | (this.state[(n + 1) % 624] & 0x7fffffff);
      this.state[n] = this.state[(n + 397) % 624] ^ (y >>> 1) ^ (y & 1 ? 0x9908b0df : 0);
    }
    this.place = 0;
  }

  /** A number in [0, 1), as `torch.rand(())` gives it: of 24 bits. */
  uniform(): number {
    return (this.next() & 0xffffff) / 0x1000000;
  }
}

/** Draws tokens one after another, until one ends the output. */
export function sample(session: Session, decoding: Decoding, request: AskSample): DrawnToken[] {
  const twister = request.mode === "greedy" ? null : new Twister(request.seed ?? 0);
  const made: DrawnToken[] = [];
  while (made.length < decoding.max_new) {
    const plain = logSoftmax(rowOf(session.logits, 0));
    const step = drawn(plain, new Set(decoding.never), twister, request);
    if (step === null) break;
    made.push(step);
    if (decoding.end.includes(step.token) || made.length === decoding.max_new) break;
    session.extend([0], [step.token]);
  }
  return made;
}

/** One token; null where none may come. */
function drawn(
  plain: Float64Array,
  never: Set<number>,
  twister: Twister | null,
  request: AskSample,
): DrawnToken | null {
  const ranked = Array.from(plain, (_, token) => token).sort((a, b) => plain[b] - plain[a] || a - b);
  const able = ranked.filter((token) => !never.has(token));
  if (able.length === 0) return null;
  const cutAt = twister === null ? 1 : Math.min(able.length, request.top_k ?? able.length);
  const kept = able.slice(0, cutAt);
  const shares = kept.map((token) => plain[token] / (request.temperature ?? TEMPERATURE));
  const before = Array.from(logSoftmax(shares), Math.exp);
  const stays = nucleus(before, request.top_p ?? 1);
  const total = before.slice(0, stays).reduce((sum, one) => sum + one, 0);
  const after = before.map((one, place) => (place < stays ? one / total : 0));
  const number = twister === null ? null : twister.uniform();
  const { place, begins } = number === null ? { place: 0, begins: 0 } : stretch(after, number, stays);
  const token = kept[place];
  const shareOf = new Map(kept.map((one, rank) => [one, rank]));
  const likeliest = ranked.slice(0, request.candidates ?? SHOWN);
  const shown = likeliest.includes(token) ? likeliest : [...likeliest.slice(0, -1), token];
  return {
    token,
    p: Math.exp(plain[token]),
    after: after[place],
    drawn: number,
    begins,
    left: stays,
    candidates: shown.map((id) => {
      const rank = shareOf.get(id);
      const cut = rank === undefined ? (twister === null ? "" : "top_k") : rank < stays ? "" : "top_p";
      const own = rank === undefined ? 0 : after[rank];
      return { id, p: Math.exp(plain[id]), after: own, cut: never.has(id) ? "never" : cut };
    }),
  };
}

/** How many of the likeliest tokens it takes for their probabilities to sum to `most`. */
function nucleus(shares: number[], most: number): number {
  if (most >= 1) return shares.length;
  let before = 0;
  let count = 0;
  while (count < shares.length && before < most) before += shares[count++];
  return count;
}

/** The token in whose stretch of the probabilities a number lies, and where that begins. */
function stretch(shares: number[], number: number, stays: number): { place: number; begins: number } {
  let begins = 0;
  for (let place = 0; place < stays; place++) {
    if (number < begins + shares[place] || place === stays - 1) return { place, begins };
    begins += shares[place];
  }
  return { place: 0, begins: 0 };
}
