/** Names of heads, short and long, and the way from what somebody types to the head that is meant. */

import type { SiteMeta } from "./source";
import { t } from "../text";

/** The kinds of attention: within the encoder, within the decoder, and from the decoder to the encoder. */
export type Kind = "encoder" | "decoder" | "cross";

/** All attentions of one kind, by layer. */
export interface Group {
  kind: Kind;
  title: string;
  sites: SiteMeta[];
}

const TITLES: Record<Kind, string> = {
  encoder: t.words.encoderSelf,
  decoder: t.words.decoderSelf,
  cross: t.words.crossSelf,
};
const LETTERS: Record<Kind, string> = { encoder: "E", decoder: "D", cross: "C" };
/** `L` is the layer of whatever kind is looked at; `H` a head of the layer that is looked at. */
const TYPED =
  /^\s*(?:(e|enc|encoder|d|dec|decoder|c|x|cross|l|layer)[\s.]*)?(\d+)(?:[\s.,:/-]*(?:h|head)?[\s.]*(\d+))?\s*$/i;
const HEAD_ONLY = /^\s*(?:h|head)[\s.]*(\d+)\s*$/i;

export function kindOf(site: Pick<SiteMeta, "side" | "slot">): Kind {
  return site.slot === "cross" ? "cross" : site.side;
}

/** The attentions of a trace, one group a kind. */
export function groupsOf(sites: readonly SiteMeta[]): Group[] {
  const kinds: Kind[] = ["encoder", "decoder", "cross"];
  return kinds.flatMap((kind) => {
    const own = sites.filter((site) => kindOf(site) === kind);
    return own.length === 0 ? [] : [{ kind, title: TITLES[kind], sites: own }];
  });
}

/** "L12H3"; of a model with several kinds of attention "E0H1", "D0H1" and "C0H1". */
export function shortName(site: SiteMeta, head: number | "mean", groups: readonly Group[]): string {
  const letter = groups.length > 1 ? LETTERS[kindOf(site)] : "L";
  return `${letter}${site.layer}${head === "mean" ? "" : `H${head}`}`;
}

/** The head that is meant by "L12H3", "12.3", "layer 12 head 3", "C1H0", "12" or "H3"; else what is wrong. */
export function placeOf(
  typed: string,
  groups: readonly Group[],
  now: { site: SiteMeta; head: number },
): { site: SiteMeta; head: number } | { problem: string } {
  const only = HEAD_ONLY.exec(typed);
  if (only) return headOf(now.site, Number(only[1]));
  const found = TYPED.exec(typed);
  if (!found) return { problem: t.words.typeHead(shortName(now.site, now.head, groups)) };
  const kind = kindFrom(found[1]) ?? kindOf(now.site);
  const group = groups.find((one) => one.kind === kind);
  if (group === undefined) return { problem: t.words.noKind(TITLES[kind]) };
  const site = group.sites.find((one) => one.layer === Number(found[2]));
  if (site === undefined) return { problem: t.words.noLayer(found[2], group.sites.length) };
  return headOf(site, found[3] === undefined ? Math.min(now.head, site.n_heads - 1) : Number(found[3]));
}

function headOf(site: SiteMeta, head: number): { site: SiteMeta; head: number } | { problem: string } {
  if (head < site.n_heads) return { site, head };
  return { problem: t.words.noHead(head, site.n_heads) };
}

function kindFrom(letters: string | undefined): Kind | null {
  const first = letters?.[0].toLowerCase();
  if (first === "e") return "encoder";
  if (first === "d") return "decoder";
  return first === "c" || first === "x" ? "cross" : null;
}
