/** How things are called on the page. */

import type { BoxKind, Meta, RunFacts, SiteMeta, ViewName } from "./source";
import { local } from "./local";
import { t } from "../text";
import { spoken } from "../text/server";

/** Views in which no head is looked at. */
export const PLACELESS: readonly ViewName[] = [
  "context",
  "positions",
  "decoding",
  "neurons",
  "tokens",
  "circuit",
  "exercises",
];

/** Views that show the changed model beside the unchanged one. */
export const COMPARING: readonly ViewName[] = ["intervene", "design"];

/** Views that edits do not reach, and why. */
export const UNREACHED: Partial<Record<ViewName, string>> = {
  context: t.words.contextUnreached,
  positions: t.words.positionsUnreached,
  tokens: t.words.tokensUnreached,
};

/** What of a view the edits reach, where it is not plain. */
export const EDITS_REACH: Partial<Record<ViewName, string>> = {
  training: t.words.trainingReach,
  decoding: t.words.decodingReach,
  intervene: t.words.interveneReach,
  design: t.words.designReach,
};

export const BOX_TITLES: Record<BoxKind, string> = t.words.boxes;

/** What the server calls a part ("scaled dot product"), in the page's language where it is one of the usual ones. */
export function partWords(words: string): string {
  return words
    .split(" and ")
    .map((one) => spoken(one))
    .join(t.words.and);
}

/** "Decoder 1 · cross-attention" */
export function siteTitle(site: Pick<SiteMeta, "side" | "layer" | "slot">): string {
  const side = site.side === "encoder" ? "Encoder" : "Decoder";
  return `${side} ${site.layer} · ${t.words.boxes[site.slot]}`;
}

/** What training has made the weights that are shown: "step 360", "imported", "compiled from the program sort". */
export function stageOf(run: RunFacts | null, meta: Pick<Meta, "step"> | null): string {
  if (run === null) return "";
  if (run.program?.exact) return t.page.compiled(run.program.name);
  return run.imported ? t.page.imported : t.film.step(String(meta?.step ?? run.step));
}

/** Whether a head does anything: those that a compiled program has no use for write nothing, wherever they look. */
export function hasJob(run: RunFacts | null, site: string, head: number): boolean {
  if (!run?.program?.exact) return true;
  return run.program.layers.some((layer) => layer.heads.some((one) => one.site === site && one.head === head));
}

/** What is said of a head beside its name: nothing, unless it does nothing. */
export function idleWords(run: RunFacts | null, site: string, head: number): string {
  return hasJob(run, site, head) ? "" : `: ${t.program.noHead}`;
}

/** How strongly the picture of a head is drawn that does nothing. */
export const IDLE = 0.15;

/** A number to read: four digits that matter, no exponents where they can be avoided; null is −∞. */
export function shown(value: number | null | undefined, digits = 4): string {
  if (value === null || value === undefined || value === -Infinity) return "−∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  const text =
    size >= Math.max(1e-4, 0.5 * 10 ** -digits) && size < 1e6
      ? fixed(value, size, digits)
      : value.toExponential(digits - 1);
  return local(text.replace(/^-/, "−").replace("e-", "e−"));
}

/** Two decimals, and no minus sign before what is written as nought: 0.5 → "0.50", −0.001 → "0.00". */
export function hundredths(value: number): string {
  return local((Math.abs(value) < 0.005 ? 0 : value).toFixed(2).replace("-", "−"));
}

/** A sentence with a capital at its beginning. */
export function capital(words: string): string {
  return words[0].toUpperCase() + words.slice(1);
}

/** 0.042 → "4.2 %"; "100 %" is only said of what is, but for rounding. */
export function percent(share: number): string {
  const value = share * 100;
  if (value > 0 && value < 0.1) return local("<0.1 %");
  return local(`${value >= 99.95 ? "100" : value.toFixed(value < 10 || value >= 99.5 ? 1 : 0)} %`);
}

/** A share with three digits that matter: 0.62314 → "62.3 %", 0.0000132 → "0.00132 %". */
export function finePercent(share: number): string {
  const value = Number((share * 100).toPrecision(3));
  const digits = value === 0 ? 0 : Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value))));
  return local(`${digits > 8 ? value.toExponential(1) : value.toFixed(digits)} %`.replace("-", "−"));
}

/** What a decoder writes at each of its tokens: the likeliest next one. Null where the queries are not a decoder's. */
export function writtenAt(
  meta: Pick<Meta, "candidates"> | null,
  site: Pick<SiteMeta, "query_side" | "n_query"> | null,
): string[] | null {
  if (meta === null || site?.query_side !== "decoder" || meta.candidates.length !== site.n_query) return null;
  const written = meta.candidates.map((row) => row[0]?.text);
  return site.n_query > 0 && written.every((text) => text !== undefined) ? (written as string[]) : null;
}

/** How likely the model holds its whole answer: the product over the tokens it writes; null where it answers at one place
 * of many. */
export function surenessOf(run: RunFacts | null, { candidates }: Pick<Meta, "candidates">): number | null {
  if (run?.target !== "writes" && candidates.length !== 1) return null;
  return candidates.reduce((product, row) => product * (row[0]?.p ?? 1), 1);
}

/** A token between marks that keep its direction to itself: "⁨ثلاثة⁩ → ⁨ألف⁩" reads from left to right. */
export function isolated(token: string): string {
  return `\u2068${token}\u2069`;
}

/** 1 234 567 → "1.2 M" */
export function size(count: number): string {
  if (count >= 1e9) return local(`${(count / 1e9).toFixed(1)} B`);
  if (count >= 1e6) return local(`${(count / 1e6).toFixed(1)} M`);
  return count >= 1e4 ? `${Math.round(count / 1e3)} k` : String(count);
}

/** A token as it is shown: a space made visible, nothing empty. */
export function piece(token: string): string {
  return token === "" ? "∅" : token.replace(/\n/g, "⏎").replace(/^[ \u2581]/, "·");
}

/** The room that tokens before bars take: as wide as the longest, and at most a share of the whole. */
export function nameRoom(tokens: readonly string[], width: number, share: number): number {
  return Math.min(share * width, 22 + 8 * Math.max(3, ...tokens.map((token) => [...piece(token)].length)));
}

/** What a name has room for, the gap between it and its bar left out; a letter of 13 px takes 8. */
export function shortened(token: string, room: number): string {
  const letters = [...piece(token)];
  const most = Math.max(2, Math.floor(room / 8) - 1);
  return letters.length <= most ? letters.join("") : `${letters.slice(0, most - 1).join("")}…`;
}

/** Notes as sentences, each by itself: a capital at the beginning, a full stop at the end. */
export function sentences(notes: readonly string[]): string {
  return notes
    .map((note) => spoken(note.trim()))
    .filter(Boolean)
    .map((note) => capital(note) + (/[.!?…]$/.test(note) ? "" : "."))
    .join(" ");
}

function fixed(value: number, size: number, digits: number): string {
  const whole = Math.max(1, Math.floor(Math.log10(size)) + 1);
  return value.toFixed(Math.max(0, size < 1 ? digits : digits - whole));
}
