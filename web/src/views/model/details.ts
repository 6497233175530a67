/** What is told of a token when it is opened. */

import type { Lens, Meta, RunFacts, SideName, Stream } from "../../lib/source";
import { piece } from "../../lib/words";
import { t } from "../../text";

export type Details = ReturnType<typeof tokenDetails>;

export interface Known {
  run: RunFacts;
  meta: Meta;
  streams: Partial<Record<SideName, Stream>>;
  lens: Lens | null;
}

/** Of a token: its vector at every place along its way. */
export function tokenDetails(side: SideName, token: number, known: Known) {
  const meta = known.meta.sides[side];
  const lens = known.lens?.side === side ? known.lens : null;
  return {
    title: `${piece(meta?.tokens[token] ?? "")}`,
    words: t.model.tokenWords(token, side, meta?.ids[token] ?? 0, known.run.vocabulary),
    of: t.model.place,
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
  if (where === "embedding") return t.model.embeddings[branch] ?? branch;
  return /^\d+$/.test(where) ? t.model.placeLayer(where, branch.replace("_", "-")) : t.model.lastNorm;
}
