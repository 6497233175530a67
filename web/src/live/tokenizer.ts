/** A tokenizer.json in TypeScript: text to ids and back, the same ids as the library's.
 *
 * It knows the components that clearhead/serve/live_text.py lists; its regular expressions are in JavaScript's spelling.
 */

import { bytePairs, type Encode, unigram, wordLevel, wordPiece } from "./merging";
import type { Component, TokenizerPlan } from "./plan";

export const LOST = "\ufffd";
const SPACE = "▁";
const WORDS = /'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\p{White_Space}\p{L}\p{N}]+|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+/gu; // prettier-ignore

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
    return this.split(text).flatMap((part) => (typeof part === "number" ? [part] : this.encodePlain(part)));
  }

  /** The added tokens that a text has, and what is between them. Special ones are text, but in an imported model. */
  private split(text: string): (number | string)[] {
    const wanted = this.plan.added.filter(({ special, content }) => content !== "" && (this.plan.imported || !special));
    if (wanted.length === 0) return [text];
    const longest = wanted.toSorted((a, b) => b.content.length - a.content.length);
    const found: (number | string)[] = [];
    let rest = text;
    for (let place = 0; place < rest.length;) {
      const token = longest.find(({ content }) => rest.startsWith(content, place));
      if (token === undefined) {
        place++;
        continue;
      }
      if (place > 0) found.push(rest.slice(0, place));
      found.push(token.id);
      [rest, place] = [rest.slice(place + token.content.length), 0];
    }
    return rest === "" ? found : [...found, rest];
  }

  private encodePlain(text: string): number[] {
    return this.words(text).flatMap((word) => this.encodeWord(word));
  }

  private words(text: string): string[] {
    const normal = normalize(this.plan.normalizer, text);
    return normal === "" ? [] : preTokenize(this.plan.pre_tokenizer, [normal]);
  }

  decode(ids: readonly number[]): string {
    const lost = this.plan.imported ? "" : LOST;
    const spoken = ids.map((id) => this.spoken.get(id) ?? lost).filter((token) => token !== "");
    return this.plan.decoder === null ? spoken.join(" ") : decodeWith(this.plan.decoder, spoken).join("");
  }

  /** Each token as it is shown to people. */
  piece(id: number): string {
    const token = this.tokens.get(id) ?? `<id:${id}>`;
    return Array.from(this.byteLevel ? fromByteLevel(token) : token, visible).join("");
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
    const words = ["WordLevel", "WordPiece"].includes(this.plan.model.type);
    const whole = words ? this.words(text) : Array.from(normalize(this.plan.normalizer, text));
    const found = words
      ? whole.filter((word) => this.encodeWord(word).includes(this.ids.unknown))
      : whole.filter((letter) =>
          preTokenize(this.plan.pre_tokenizer, [letter]).some((one) => this.encodeWord(one).includes(this.ids.unknown)),
        );
    return [...new Set(found)].join(words ? " " : "");
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

function normalize(part: Component | null, text: string): string {
  switch (part?.type) {
    case "Sequence":
      return (part.normalizers as Component[]).reduce((made, one) => normalize(one, made), text);
    case "Replace":
      return text.replace(regexOf(part.pattern), () => part.content as string);
    case "Prepend":
      return text === "" ? "" : (part.prepend as string) + text;
    case "Lowercase":
      return lower(text);
    case "NFC":
    case "NFD":
    case "NFKC":
    case "NFKD":
      return text.normalize(part.type);
    case "StripAccents":
      return text.replace(/\p{Mn}/gu, "");
    case "Strip":
      return stripped(text, Boolean(part.strip_left), Boolean(part.strip_right));
    case "BertNormalizer":
      return bertNormal(part, text);
    default:
      return text;
  }
}

/** Lower case letter by letter: JavaScript alone writes a final sigma in another way. */
function lower(text: string): string {
  return Array.from(text, (letter) => letter.toLowerCase()).join("");
}

function stripped(text: string, left: boolean, right: boolean): string {
  if (left) text = text.replace(/^\p{White_Space}+/u, "");
  return right ? text.replace(/\p{White_Space}+$/u, "") : text;
}

const HAN = /[\u{4E00}-\u{9FFF}\u{3400}-\u{4DBF}\u{20000}-\u{2A6DF}\u{2A700}-\u{2B73F}\u{2B740}-\u{2B81F}\u{2B920}-\u{2CEAF}\u{F900}-\u{FAFF}\u{2F800}-\u{2FA1F}]/gu; // prettier-ignore

function bertNormal(part: Component, text: string): string {
  if (part.clean_text)
    text = text.replace(/[\p{Cc}\p{Cf}\p{Co}\ufffd]/gu, (sign) => (/[\t\n\r]/.test(sign) ? " " : "")).replace(/\p{White_Space}/gu, " "); // prettier-ignore
  if (part.handle_chinese_chars) text = text.replace(HAN, " $& ");
  const strips = part.strip_accents ?? part.lowercase;
  if (strips) text = text.normalize("NFD").replace(/\p{Mn}/gu, "");
  return part.lowercase ? lower(text) : text;
}

type Behavior = "Isolated" | "Removed" | "MergedWithPrevious" | "MergedWithNext" | "Contiguous";

/** Cuts a text at what a pattern finds. */
function cut(text: string, pattern: RegExp, behavior: Behavior, invert = false): string[] {
  let parts: [string, boolean][] = [];
  let last = 0;
  for (const match of text.matchAll(pattern)) {
    if (match[0] === "") continue;
    if (match.index > last) parts.push([text.slice(last, match.index), false]);
    parts.push([match[0], true]);
    last = match.index + match[0].length;
  }
  if (last < text.length) parts.push([text.slice(last), false]);
  if (invert) parts = parts.map(([part, found]) => [part, !found]);
  const made: string[] = [];
  let [before, pending] = [false, ""];
  for (const [part, found] of parts) {
    if (behavior === "Removed") {
      if (!found) made.push(part);
    } else if (behavior === "MergedWithPrevious" && found && !before && made.length > 0) made[made.length - 1] += part;
    else if (behavior === "MergedWithNext" && found) {
      if (pending) made.push(pending);
      pending = part;
    } else if (behavior === "MergedWithNext") {
      made.push(pending + part);
      pending = "";
    } else if (behavior === "Contiguous" && found && before) made[made.length - 1] += part;
    else made.push(part);
    before = found;
  }
  return pending ? [...made, pending] : made;
}

function preTokenize(part: Component | null, words: string[]): string[] {
  switch (part?.type) {
    case "Sequence":
      return (part.pretokenizers as Component[]).reduce((made, one) => preTokenize(one, made), words);
    case "ByteLevel":
      return words.flatMap((word) => {
        const text = part.add_prefix_space && !word.startsWith(" ") ? ` ${word}` : word;
        return (part.use_regex === false ? [text] : cut(text, WORDS, "Isolated")).map(toByteLevel);
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
      return words.flatMap(
        (word) => word.match(/[\p{L}\p{M}\p{N}\p{Pc}]+|[^\p{L}\p{M}\p{N}\p{Pc}\p{White_Space}]+/gu) ?? [],
      );
    case "BertPreTokenizer":
      return words.flatMap((word) =>
        cut(word, /\p{White_Space}+/gu, "Removed").flatMap((one) => cut(one, /[\p{P}!-/:-@[-`{-~]/gu, "Isolated")),
      );
    default:
      return words;
  }
}

function metaspace(part: Component, word: string, first: boolean): string[] {
  const sign = part.replacement as string;
  let text = word.replaceAll(" ", sign);
  const scheme = part.prepend_scheme ?? (part.add_prefix_space === false ? "never" : "always");
  if ((scheme === "always" || (scheme === "first" && first)) && !text.startsWith(sign)) text = sign + text;
  return part.split === false ? [text] : cut(text, new RegExp(escape(sign), "gv"), "MergedWithNext");
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
