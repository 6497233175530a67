/** softmax(QKᵀ/√d)V in pieces: those a chapter speaks of are lit, those told before are inked, the others faint. */

import type { SiteMeta } from "../lib/source";
import type { ChapterName } from "./links";

export type PieceName = "residual" | "weighting" | "query" | "key" | "scale" | "mask" | "value" | "output";

export interface Piece {
  name: PieceName;
  text: string;
  /** Whether it stands below the fraction's line, or above it. */
  at: "line" | "over" | "under";
}

/** The pieces that each chapter tells of. */
const TOLD: Partial<Record<string, readonly PieceName[]>> = {
  vectors: ["query", "key", "value"],
  score: ["query", "key"],
  scale: ["scale"],
  mask: ["mask"],
  softmax: ["weighting"],
  sum: ["value"],
  heads: ["output"],
  cross: ["query", "key", "value"],
  residual: ["residual"],
};

/** The formula of a site: without what it has not, and with the name of its own weighting. */
export function piecesOf(site: SiteMeta, path: readonly string[]): Piece[] {
  const { kind, masks } = site.arithmetic;
  const weighting = { softmax: "softmax", argmax: "argmax", kernelized: "share", rows: "weights" }[kind];
  const factor = site.scale[0] ?? 1;
  const root = Math.abs(factor * Math.sqrt(site.d_head) - 1) < 1e-6;
  const scaled = path.includes("scale");
  const fraction = scaled && root;
  const line = fraction ? "over" : "line";
  const pieces: (Piece | null)[] = [
    path.includes("residual") ? { name: "residual", text: "x +", at: "line" } : null,
    { name: "weighting", text: `${weighting}(`, at: "line" },
    { name: "query", text: "Q", at: line },
    { name: "key", text: "Kᵀ", at: line },
    fraction ? { name: "scale", text: "√d", at: "under" } : null,
    scaled && !root ? { name: "scale", text: "· s", at: "line" } : null,
    masks && path.includes("mask") ? { name: "mask", text: "+ M", at: "line" } : null,
    { name: "weighting", text: ")", at: "line" },
    { name: "value", text: "V", at: "line" },
    path.includes("heads") ? { name: "output", text: "W_O", at: "line" } : null,
  ];
  return pieces.filter((piece) => piece !== null);
}

/** How a piece is drawn while a chapter is told. */
export function stateOf(piece: PieceName, chapter: ChapterName, path: readonly string[]): "lit" | "inked" | "faint" {
  if (TOLD[chapter]?.includes(piece)) return "lit";
  const before = path.slice(0, path.indexOf(chapter));
  return before.some((one) => TOLD[one]?.includes(piece)) ? "inked" : "faint";
}

/** The formula in one line, for those who hear it. */
export function spoken(pieces: readonly Piece[]): string {
  const part = (at: Piece["at"]): string[] => pieces.filter((piece) => piece.at === at).map((piece) => piece.text);
  const under = part("under");
  return pieces
    .filter((piece) => piece.at !== "under")
    .map((piece, index, all) => {
      const last = piece.at === "over" && all[index + 1]?.at !== "over";
      return piece.text + (last && under.length > 0 ? ` / ${under.join(" ")}` : "");
    })
    .join(" ");
}
