/** A word to begin with, and texts it stands in, found among the run's own examples. */

export interface Suggestion {
  word: string;
  texts: string[];
}

const SHORTEST = 3;
const WORD = /^[\p{L}\p{N}_]+$/u;

/** A word that several of the texts share; null where they share none. */
export function sharedWord(texts: readonly string[], most = 4): Suggestion | null {
  return suggestion(texts, texts.map(wordsOf), most);
}

/** A token that several of the texts share, for languages that write many words as one; else a word beside its text. */
export function sharedToken(
  texts: readonly string[],
  tokens: readonly (readonly string[])[],
  most = 4,
): Suggestion | null {
  const pieces = tokens.map((row) => new Set(row.map(bare).filter((piece) => WORD.test(piece))));
  return suggestion(texts, pieces, most) ?? alone(texts);
}

function suggestion(texts: readonly string[], parts: readonly Set<string>[], most: number): Suggestion | null {
  const [word] = shared(texts, parts);
  if (word === undefined) return null;
  return { word, texts: texts.filter((_, place) => parts[place].has(word)).slice(0, most) };
}

/** The longest word of a text, there and after only what stands before it: so it is cut into the same tokens. */
function alone([text]: readonly string[]): Suggestion | null {
  if (text === undefined) return null;
  const pieces = text.trim().split(/\s+/);
  const later = pieces.slice(1).filter((piece) => WORD.test(piece));
  const [word] = (later.length > 0 ? later : [...wordsOf(text)]).toSorted(longer);
  const place = pieces.indexOf(word, 1);
  return word === undefined ? null : { word, texts: [text, place < 0 ? word : `${pieces[place - 1]} ${word}`] };
}

/** A token without the sign or the blank that stands for a space before it. */
function bare(token: string): string {
  return token.replace(/^[ \u2581]/, "");
}

/** The words of a text as the server tells them apart: letters and digits, nothing else; `<mask>` is a token, no word. */
export function wordsOf(text: string): Set<string> {
  return new Set(text.replace(/<\w+>/g, " ").match(/[\p{L}\p{N}_]+/gu) ?? []);
}

/** Parts that more than one text has: most texts first, then those that stand once in a text, then the longer ones. */
function shared(texts: readonly string[], parts: readonly Set<string>[]): string[] {
  const counts = new Map<string, number>();
  for (const found of parts) for (const part of found) counts.set(part, (counts.get(part) ?? 0) + 1);
  const able = [...counts].filter(([part, count]) => count > 1 && part.length >= SHORTEST);
  return able
    .map(([part, count]) => ({ part, count, times: times(texts, part) }))
    .sort((one, other) => other.count - one.count || one.times - other.times || longer(one.part, other.part))
    .map(({ part }) => part);
}

function times(texts: readonly string[], part: string): number {
  return texts.reduce((sum, text) => sum + text.split(part).length - 1, 0);
}

function longer(one: string, other: string): number {
  return other.length - one.length || (one < other ? -1 : 1);
}
