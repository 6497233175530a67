/** A tokenizer.json in TypeScript: text to ids and back, the same ids as the library's.
 *
 * It knows the components that clearhead/serve/live_text.py lists; its regular expressions are in JavaScript's spelling.
 */

import { Aligned } from "./aligned";
import { bytePairs, type Encode, unigram, wordLevel, wordPiece } from "./merging";
import type { Component, TokenizerPlan } from "./plan";

export const LOST = "\ufffd";
const SPACE = "▁";
const WORDS = /'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\p{White_Space}\p{L}\p{N}]+|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+/gu; // prettier-ignore

/** A token, and from which character of the text to which it stands. */
export interface Span {
  id: number;
  start: number;
  stop: number;
}

export class Tokenizer {
  readonly ids: TokenizerPlan["ids"];
  readonly special: Set<number>;
  private readonly tokens = new Map<number, string>();
  private readonly spoken = new Map<number, string>();
  private readonly encodeWord: Encode;
  private readonly byteLevel: boolean;

  constructor(readonly plan: TokenizerPlan) {
    this.ids = plan.ids;
    this.special = new Set(plan.special);
    for (const [token, id] of vocabulary(plan.model)) this.tokens.set(id, token);
    for (const { id, content } of plan.added) this.tokens.set(id, content);
    for (const [id, token] of this.tokens) this.spoken.set(id, token);
    for (const { id, special } of plan.added) if (special) this.spoken.set(id, "");
    const { pad, unknown, start, end, mask } = plan.ids;
    if (!plan.imported && ![pad, start, end, mask].includes(unknown)) this.spoken.set(unknown, LOST);
    const model = plan.model;
    this.encodeWord =
      model.type === "BPE"
        ? bytePairs(model)
        : model.type === "Unigram"
          ? unigram(model)
          : model.type === "WordLevel"
            ? wordLevel(model)
            : wordPiece(model);
    this.byteLevel = JSON.stringify(plan.decoder).includes('"ByteLevel"');
  }

  encode(text: string): number[] {
    return this.spans(text).flatMap((word) => word.map(({ id }) => id));
  }

  /** The tokens of a text, word by word, each with the characters that it stands for. */
  spans(text: string): Span[][] {
    const words = this.split(text).flatMap((part) =>
      "id" in part
        ? [[part]]
        : this.words(part).map((word) =>
            this.encodeWord(word.text).map(({ id, start, stop }) => ({ id, ...word.range(start, stop) })),
          ),
    );
    this.plan.trims.forEach(({ add_prefix_space }) => trim(words, (id) => this.token(id), add_prefix_space));
    return words.filter((word) => word.length > 0);
  }

  /** A token as the vocabulary has it. */
  token(id: number): string {
    return this.tokens.get(id) ?? "";
  }

  /** The added tokens that a text has, and what is between them. Special ones are text, but in an imported model. */
  private split(text: string): (Span | Aligned)[] {
    const wanted = this.plan.added.filter(({ special, content }) => content !== "" && (this.plan.imported || !special));
    const longest = wanted.toSorted((a, b) => b.content.length - a.content.length);
    const whole = Aligned.of(text);
    const found: (Span | Aligned)[] = [];
    let last = 0;
    for (let place = 0; place < text.length;) {
      const token = longest.find(({ content }) => text.startsWith(content, place));
      if (token === undefined) {
        place++;
        continue;
      }
      if (place > last) found.push(whole.slice(last, place));
      last = place + token.content.length;
      found.push({ id: token.id, ...whole.range(place, last) });
      place = last;
    }
    return last === text.length ? found : [...found, whole.slice(last)];
  }

  private words(text: Aligned): Aligned[] {
    const normal = normalize(this.plan.normalizer, text);
    return normal.text === "" ? [] : preTokenize(this.plan.pre_tokenizer, [normal]);
  }

  decode(ids: readonly number[]): string {
    const lost = this.plan.imported ? "" : LOST;
    const spoken = ids.map((id) => this.spoken.get(id) ?? lost).filter((token) => token !== "");
    return this.plan.decoder === null ? spoken.join(" ") : decodeWith(this.plan.decoder, spoken).join("");
  }

  /** Each token as it is shown to people. */
  piece(id: number): string {
    const token = this.tokens.get(id) ?? `<id:${id}>`;
    return this.shown(token);
  }

  /** A token, or a part of one, as people see it. */
  shown(token: string): string {
    return Array.from(this.byteLevel ? fromByteLevel(token) : token, visible).join("");
  }

  /** The bytes of text that a token stands for. */
  bytesOf(token: string): number[] {
    const own = Array.from(token, (sign) => BYTE_OF.get(sign));
    if (this.byteLevel && own.every((byte) => byte !== undefined)) return own;
    const byte = BYTE.exec(token);
    return byte === null ? [...new TextEncoder().encode(token.replaceAll(SPACE, " "))] : [parseInt(byte[1], 16)];
  }

  /** The pieces that tokens stand for, special ones by their usual names. */
  names(ids: readonly number[]): string[] {
    const { pad, unknown, start, end, mask } = this.ids;
    const ours = new Map([[unknown, "<unk>"], [pad, "<pad>"], [end, "</s>"], [start, "<s>"]]); // prettier-ignore
    return ids.map((id) =>
      id === mask ? "<mask>" : ((this.plan.imported ? undefined : ours.get(id)) ?? this.piece(id)),
    );
  }

  /** What of the text is unknown, each once, in order: characters, or words if the tokens are words. */
  unseen(text: string): string {
    const letters = Array.from(text);
    const unknown = this.spans(text).flatMap((word) => word.filter(({ id }) => id === this.ids.unknown));
    const found = unknown.map(({ start, stop }) => letters.slice(start, stop).join(""));
    if (["WordLevel", "WordPiece"].includes(this.plan.model.type)) return [...new Set(found)].join(" ");
    return [...new Set(found.join(""))].join("");
  }
}

export function vocabulary(model: Component): [string, number][] {
  if (Array.isArray(model.vocab)) return model.vocab.map(([token]: [string, number], id: number) => [token, id]);
  return Object.entries(model.vocab as Record<string, number>);
}

function regexOf(pattern: unknown): RegExp {
  const { String: plain, Regex: regex } = pattern as { String?: string; Regex?: string };
  return new RegExp(regex ?? escape(plain!), "gv");
}

function escape(text: string): string {
  return text.replace(/[\^$\\.*+?()[\]{}|/\-&~#!%,:;<=>@`]/g, (sign) => `\\u{${sign.codePointAt(0)!.toString(16)}}`);
}

function normalize(part: Component | null, text: Aligned): Aligned {
  switch (part?.type) {
    case "Sequence":
      return (part.normalizers as Component[]).reduce((made, one) => normalize(one, made), text);
    case "Replace":
      return text.replace(regexOf(part.pattern), part.content as string);
    case "Prepend":
      return text.prepend(part.prepend as string);
    case "Lowercase":
      return text.map(lower);
    case "NFC":
    case "NFD":
    case "NFKC":
    case "NFKD":
      return text.normalize(part.type);
    case "StripAccents":
      return text.map(withoutAccent);
    case "Strip":
      return stripped(text, Boolean(part.strip_left), Boolean(part.strip_right));
    case "BertNormalizer":
      return bertNormal(part, text);
    default:
      return text;
  }
}

/** Lower case letter by letter: JavaScript alone writes a final sigma in another way. */
function lower(letter: string): string {
  return letter.toLowerCase();
}

function withoutAccent(letter: string): string {
  return /\p{Mn}/u.test(letter) ? "" : letter;
}

function stripped(text: Aligned, left: boolean, right: boolean): Aligned {
  const start = left ? /^\p{White_Space}*/u.exec(text.text)![0].length : 0;
  const stop = right ? text.text.replace(/\p{White_Space}+$/u, "").length : text.text.length;
  return text.slice(start, Math.max(start, stop));
}

const HAN = /[\u{4E00}-\u{9FFF}\u{3400}-\u{4DBF}\u{20000}-\u{2A6DF}\u{2A700}-\u{2B73F}\u{2B740}-\u{2B81F}\u{2B920}-\u{2CEAF}\u{F900}-\u{FAFF}\u{2F800}-\u{2FA1F}]/u; // prettier-ignore

function bertNormal(part: Component, text: Aligned): Aligned {
  if (part.clean_text) text = text.map(cleaned);
  if (part.handle_chinese_chars) text = text.map((letter) => (HAN.test(letter) ? ` ${letter} ` : letter));
  const strips = part.strip_accents ?? part.lowercase;
  if (strips) text = text.normalize("NFD").map(withoutAccent);
  return part.lowercase ? text.map(lower) : text;
}

function cleaned(letter: string): string {
  if (/[\t\n\r]/.test(letter)) return " ";
  if (/[\p{Cc}\p{Cf}\p{Co}\ufffd]/u.test(letter)) return "";
  return /\p{White_Space}/u.test(letter) ? " " : letter;
}

type Behavior = "Isolated" | "Removed" | "MergedWithPrevious" | "MergedWithNext" | "Contiguous";

/** Cuts a text at what a pattern finds. */
function cut(text: Aligned, pattern: RegExp, behavior: Behavior, invert = false): Aligned[] {
  let parts: [start: number, stop: number, found: boolean][] = [];
  let last = 0;
  for (const match of text.text.matchAll(pattern)) {
    if (match[0] === "") continue;
    if (match.index > last) parts.push([last, match.index, false]);
    last = match.index + match[0].length;
    parts.push([match.index, last, true]);
  }
  if (last < text.text.length) parts.push([last, text.text.length, false]);
  if (invert) parts = parts.map(([start, stop, found]) => [start, stop, !found]);
  const made: [start: number, stop: number][] = [];
  let [before, pending]: [boolean, number | null] = [false, null];
  for (const [start, stop, found] of parts) {
    if (behavior === "Removed") {
      if (!found) made.push([start, stop]);
    } else if (behavior === "MergedWithPrevious" && found && !before && made.length > 0) made.at(-1)![1] = stop;
    else if (behavior === "MergedWithNext" && found) {
      if (pending !== null) made.push([pending, start]);
      pending = start;
    } else if (behavior === "MergedWithNext") {
      made.push([pending ?? start, stop]);
      pending = null;
    } else if (behavior === "Contiguous" && found && before) made.at(-1)![1] = stop;
    else made.push([start, stop]);
    before = found;
  }
  if (pending !== null) made.push([pending, text.text.length]);
  return made.map(([start, stop]) => text.slice(start, stop));
}

function preTokenize(part: Component | null, words: Aligned[]): Aligned[] {
  switch (part?.type) {
    case "Sequence":
      return (part.pretokenizers as Component[]).reduce((made, one) => preTokenize(one, made), words);
    case "ByteLevel":
      return words.flatMap((word) => {
        const text = part.add_prefix_space && !word.text.startsWith(" ") ? word.prepend(" ") : word;
        const pieces = part.use_regex === false ? [text] : cut(text, WORDS, "Isolated");
        return pieces.map((piece) => piece.map(toByteLevel));
      });
    case "Digits":
      return words.flatMap((word) => cut(word, /\p{N}/gu, part.individual_digits ? "Isolated" : "Contiguous"));
    case "Metaspace":
      return words.flatMap((word, place) => metaspace(part, word, place === 0));
    case "Split":
      return words.flatMap((word) => cut(word, regexOf(part.pattern), part.behavior as Behavior, Boolean(part.invert)));
    case "WhitespaceSplit":
      return words.flatMap((word) => cut(word, /\p{White_Space}+/gu, "Removed"));
    case "Whitespace":
      return words.flatMap((word) =>
        cut(word, /[\p{L}\p{M}\p{N}\p{Pc}]+|[^\p{L}\p{M}\p{N}\p{Pc}\p{White_Space}]+/gu, "Removed", true),
      );
    case "BertPreTokenizer":
      return words.flatMap((word) =>
        cut(word, /\p{White_Space}+/gu, "Removed").flatMap((one) => cut(one, /[\p{P}!-/:-@[-`{-~]/gu, "Isolated")),
      );
    default:
      return words;
  }
}

function metaspace(part: Component, word: Aligned, first: boolean): Aligned[] {
  const sign = part.replacement as string;
  let text = word.map((letter) => (letter === " " ? sign : letter));
  const scheme = part.prepend_scheme ?? (part.add_prefix_space === false ? "never" : "always");
  if ((scheme === "always" || (scheme === "first" && first)) && !text.text.startsWith(sign)) text = text.prepend(sign);
  return part.split === false ? [text] : cut(text, new RegExp(escape(sign), "gv"), "MergedWithNext");
}

/** Takes the spaces at the ends of tokens out of their ranges, as the post-processors of GPT-2 and RoBERTa do. */
function trim(words: Span[][], token: (id: number) => string, prefixed: boolean): void {
  const isSpace = (sign: string): boolean => sign === SIGNS[32] || /\p{White_Space}/u.test(sign);
  words.flat().forEach((span, place) => {
    const signs = Array.from(token(span.id));
    let leading = signs.findIndex((sign) => !isSpace(sign));
    if (leading < 0) leading = signs.length;
    const trailing = signs.length - 1 - signs.findLastIndex((sign) => !isSpace(sign));
    if (leading > 0 && prefixed && (place === 0 || span.start === 0)) leading--;
    span.start = Math.min(span.start + leading, span.stop);
    if (trailing > 0 && span.stop >= trailing) span.stop = Math.max(span.stop - trailing, span.start);
  });
}

function decodeWith(part: Component, tokens: string[]): string[] {
  switch (part.type) {
    case "Sequence":
      return (part.decoders as Component[]).reduce((made, one) => decodeWith(one, made), tokens);
    case "Replace":
      return tokens.map((token) => token.replace(regexOf(part.pattern), () => part.content as string));
    case "ByteFallback":
      return fromBytes(tokens);
    case "Fuse":
      return [tokens.join("")];
    case "Strip":
      return tokens.map((token) => strip(token, part.content as string, part.start as number, part.stop as number));
    case "ByteLevel":
      return [byteLevelText(tokens)];
    case "Metaspace":
      return tokens.map((token, place) => {
        const text = token.replaceAll(part.replacement as string, " ");
        const leads = part.prepend_scheme !== "never" && part.add_prefix_space !== false;
        return place === 0 && leads && text.startsWith(" ") ? text.slice(1) : text;
      });
    default:
      return wordPieces(part, tokens);
  }
}

function strip(token: string, sign: string, start: number, stop: number): string {
  const letters = Array.from(token);
  let [from, to] = [0, letters.length];
  while (from < start && letters[from] === sign) from++;
  while (letters.length - to < stop && to > from && letters[to - 1] === sign) to--;
  return letters.slice(from, to).join("");
}

const BYTE = /^<0x([0-9A-Fa-f]{2})>$/;

/** Runs of byte tokens as the text they spell; each byte is "\ufffd" where they spell none. */
function fromBytes(tokens: string[]): string[] {
  const made: string[] = [];
  let run: number[] = [];
  const flush = (): void => {
    if (run.length > 0) made.push(...spelled(run));
    run = [];
  };
  for (const token of tokens) {
    const byte = BYTE.exec(token);
    if (byte !== null) run.push(parseInt(byte[1], 16));
    else {
      flush();
      made.push(token);
    }
  }
  flush();
  return made;
}

function spelled(bytes: number[]): string[] {
  try {
    return [new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(Uint8Array.from(bytes))];
  } catch {
    return bytes.map(() => LOST);
  }
}

function wordPieces(part: Component, tokens: string[]): string[] {
  const prefix = part.prefix as string;
  return tokens.map((token, place) => {
    let text = place === 0 ? token : token.startsWith(prefix) ? token.slice(prefix.length) : ` ${token}`;
    if (part.cleanup) for (const [from, to] of CLEANED) text = text.replaceAll(from, to);
    return text;
  });
}

const CLEANED = [[" .", "."], [" ?", "?"], [" !", "!"], [" ,", ","], [" ' ", "'"], [" n't", "n't"], [" 'm", "'m"], [" do not", " don't"], [" 's", "'s"], [" 've", "'ve"], [" 're", "'re"]]; // prettier-ignore

/** The character each byte is written as in byte-level tokens: itself where visible, else one past Latin-1. */
const SIGNS: string[] = (() => {
  const seen = (byte: number): boolean => (byte > 32 && byte < 127) || (byte > 160 && byte < 256 && byte !== 173);
  let more = 256;
  return Array.from({ length: 256 }, (_, byte) => String.fromCodePoint(seen(byte) ? byte : more++));
})();
const BYTE_OF = new Map(SIGNS.map((sign, byte) => [sign, byte]));

function toByteLevel(text: string): string {
  return Array.from(new TextEncoder().encode(text), (byte) => SIGNS[byte]).join("");
}

function byteLevelText(tokens: string[]): string {
  const bytes = tokens.flatMap((token) => {
    const own = Array.from(token, (sign) => BYTE_OF.get(sign));
    return own.every((byte) => byte !== undefined) ? own : [...new TextEncoder().encode(token)];
  });
  return new TextDecoder("utf-8", { ignoreBOM: true }).decode(Uint8Array.from(bytes));
}

/** The text of a byte-level token, bytes that spell nothing as <0xE2>; one not written in bytes stands for itself. */
function fromByteLevel(token: string): string {
  const bytes = Array.from(token, (sign) => BYTE_OF.get(sign));
  if (bytes.some((byte) => byte === undefined)) return token;
  return utf8(bytes as number[]);
}

/** UTF-8, with what is no character byte by byte. */
function utf8(bytes: number[]): string {
  let made = "";
  for (let place = 0; place < bytes.length;) {
    const size = [4, 3, 2, 1].find((long) => {
      const part = bytes.slice(place, place + long);
      return part.length === long && spelled(part).length === 1 && spelled(part)[0] !== LOST && Array.from(spelled(part)[0]).length === 1; // prettier-ignore
    });
    if (size === undefined) made += `<0x${bytes[place++].toString(16).toUpperCase().padStart(2, "0")}>`;
    else {
      made += spelled(bytes.slice(place, place + size))[0];
      place += size;
    }
  }
  return made;
}

/** A character as people see it: a space as ▁, a line end as \n. */
function visible(letter: string): string {
  if (letter === " ") return SPACE;
  if (!/[\p{C}\p{Z}]/u.test(letter)) return letter;
  const short = { "\n": "\\n", "\t": "\\t", "\r": "\\r" }[letter];
  const code = letter.codePointAt(0)!;
  const [sign, width] = code < 256 ? ["x", 2] : code < 65536 ? ["u", 4] : ["U", 8];
  return short ?? `\\${sign}${code.toString(16).padStart(width as number, "0")}`;
}
