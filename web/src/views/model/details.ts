/** What is told of a token when it is opened. */

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
}

export interface Known {
  run: Run;
  meta: Meta;
  streams: Partial<Record<SideName, Stream>>;
  lens: Lens | null;
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

/** "decoder.0.feed_forward.residual" → "layer 0 feed-forward" */
function placeName(name: string): string {
  const [, where, branch] = name.split(".");
  if (where === "embedding") return { token: "embedding", position: "position" }[branch] ?? "with position";
  return /^\d+$/.test(where) ? `layer ${where} ${branch.replace("_", "-")}` : "last norm";
}
