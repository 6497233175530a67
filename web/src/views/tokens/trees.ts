/** Where the parts of a token's tree are drawn: leaves in a row at the bottom, each merge above what it merged. */

import type { MergePart } from "../../lib/source";

export interface TreeNode {
  text: string;
  rank: number | null;
  x: number;
  /** Levels above the leaves. */
  level: number;
  left: number | null;
  right: number | null;
}

const LETTER = 8;
const GAP = 10;

function wide(text: string): number {
  return Math.max(18, [...text].length * LETTER + 8);
}

/** The tree, its leaves side by side with room for their text and for a rank between two, and each merge wide enough for
 * its own. */
export function treeOf(parts: readonly MergePart[]) {
  const leaves = parts.filter((part) => part.left === null).length;
  const total = parts.at(-1)?.text ?? "";
  const least = wide(total);
  const between = Math.max(0, ...parts.map(({ rank }) => (rank === null ? 0 : `${rank}`.length * LETTER + GAP)));
  const own = parts.slice(0, leaves).map((part) => Math.max(between, wide(part.text) + GAP));
  const sum = own.reduce((all, one) => all + one, 0);
  const stretch = Math.max(1, (least + GAP) / Math.max(1, sum));
  let reached = 0;
  const nodes: TreeNode[] = [];
  for (const [place, { text, left, right, rank }] of parts.entries()) {
    if (left === null || right === null) {
      const room = own[place] * stretch;
      nodes.push({ text, rank, left: null, right: null, level: 0, x: reached + room / 2 });
      reached += room;
    } else {
      const [one, other] = [nodes[left], nodes[right]];
      nodes.push({ text, rank, left, right, level: Math.max(one.level, other.level) + 1, x: (one.x + other.x) / 2 });
    }
  }
  return { nodes, width: Math.max(reached, least), levels: Math.max(0, ...nodes.map((node) => node.level)) };
}

/** Bytes as people write them: "e2 82 ac". */
export function hexOf(bytes: readonly number[]): string {
  return bytes.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
}

/** What is said of how a tokeniser works: of BPE without merges something else. */
export function kindOf(model: string, merges: number, known: Record<string, string>): string {
  if (model === "BPE" && merges === 0) return known.plain;
  return known[model] ?? known.other;
}
