/** What is told of a box, a token or an output when it is opened. */

import type { Box } from "../../lib/layout";
import type { Candidate, Lens, Meta, Run, SideName, Stream } from "../../lib/source";
import { piece } from "../../lib/words";

export interface DetailRow {
  name: string;
  norm: number;
  cosine: number;
  guesses?: Candidate[];
}

export interface Details {
  title: string;
  words: string;
  /** What the rows are: tokens, or places along the way. */
  of?: string;
  rows?: DetailRow[];
  candidates?: Candidate[];
}

export interface Known {
  run: Run;
  meta: Meta;
  streams: Partial<Record<SideName, Stream>>;
  lens: Lens | null;
}

/** Of a box: how long every token's vector is after it (`after`: where it is next known), how far it has turned, and
 * what it would say by itself. */
export function boxDetails(box: Box, after: Box, known: Known): Details {
  const tokens = known.meta.sides[box.side]?.tokens ?? [];
  const row = known.streams[box.side]?.rows.find((one) => after.stream !== "" && one.name.startsWith(after.stream));
  const guesses = lensAt(after, known);
  return {
    title:
      box.layer === null ? `${capital(box.side)}: ${box.title}` : `${capital(box.side)} ${box.layer}: ${box.title}`,
    words: sentence(box, known.run),
    of: "token",
    rows:
      row &&
      tokens.map((token, place) => ({
        name: piece(token),
        norm: row.norm[place],
        cosine: row.cosine[place],
        ...(guesses ? { guesses: guesses[place] } : {}),
      })),
  };
}

/** Of a token: its vector at every place along its way. */
export function tokenDetails(side: SideName, token: number, known: Known): Details {
  const meta = known.meta.sides[side];
  const lens = known.lens?.side === side ? known.lens : null;
  return {
    title: `${piece(meta?.tokens[token] ?? "")}`,
    words: `Token ${token} of the ${side}: id ${meta?.ids[token]} of ${known.run.vocabulary}. Its one embedding is looked up by that id; every layer then adds to it what its surroundings say.`,
    of: "place",
    rows: known.streams[side]?.rows.map((row) => ({
      name: placeName(row.name),
      norm: row.norm[token],
      cosine: row.cosine[token],
      guesses: lens?.layers.find((layer) => layer.name === row.name)?.rows[token],
    })),
  };
}

export function outputDetails(place: number, known: Known): Details {
  const single = known.meta.candidates.length === 1;
  const side = known.meta.kind === "encoder" ? "encoder" : "decoder";
  const token = piece(known.meta.sides[side]?.tokens[place] ?? "");
  return {
    title: single ? "What the model answers" : `After ${token}`,
    words: single
      ? "The probability of each answer."
      : "The last vector of this token against every word of the vocabulary, then softmax: the likeliest.",
    candidates: known.meta.candidates[place] ?? [],
  };
}

/** "decoder.0.feed_forward.residual" → "layer 0 feed-forward" */
function placeName(name: string): string {
  const [, where, branch] = name.split(".");
  if (where === "embedding") return { token: "embedding", position: "position" }[branch] ?? "with position";
  return /^\d+$/.test(where) ? `layer ${where} ${branch.replace("_", "-")}` : "last norm";
}

function lensAt(box: Box, known: Known): Candidate[][] | undefined {
  if (known.lens?.side !== box.side || box.stream === "") return undefined;
  return known.lens.layers.find((layer) => layer.name.startsWith(box.stream))?.rows;
}

function sentence(box: Box, run: Run): string {
  const side = run.sides.find((one) => one.side === box.side);
  const layer = box.layer === null ? undefined : side?.layers[box.layer];
  switch (box.kind) {
    case "token":
      return `Every id has one learned vector of ${side?.d_model} numbers${side?.embedding.scaled ? ", here times the root of that" : ""}.`;
    case "position":
      return `${side?.embedding.position}: a vector for each place is added, so that order is not lost.`;
    case "norm":
      return "Each vector is brought to mean 0 and variance 1, then stretched and moved by what was learned.";
    case "add":
      return "What the branch made is added to what came in: the residual connection. The stream only ever gathers.";
    case "feed_forward":
      return `${layer?.feed_forward ?? ""}: every token by itself, with no look at the others.`;
    default:
      return "";
  }
}

function capital(word: string): string {
  return word[0].toUpperCase() + word.slice(1);
}
