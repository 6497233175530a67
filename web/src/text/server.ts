/** What the server says, in the language of the page: it speaks English, and the page translates what it knows. */

import { language, type Language } from "./index";
import { server as de } from "./server.de";

type Phrase = { whole: RegExp; said: string };

const PHRASES: Partial<Record<Language, Record<string, string>>> = { de };
const made = new Map<Language, Phrase[]>();

/** Return a phrase of the server in the page's language, or as it is where it is not known. */
export function spoken(text: string, of: Language = language): string {
  const known = PHRASES[of];
  if (known === undefined) return text;
  if (Object.hasOwn(known, text)) return known[text];
  for (const { whole, said } of patternsOf(of)) {
    const parts = whole.exec(text)?.slice(1);
    if (parts !== undefined) return parts.reduce((whole, part) => whole.replace("{}", () => spoken(part, of)), said);
  }
  return text;
}

/** Phrases with a place for something else, the longest first. */
function patternsOf(of: Language): Phrase[] {
  const found =
    made.get(of) ??
    Object.entries(PHRASES[of] ?? {})
      .filter(([english]) => english.includes("{}"))
      .sort(([one], [other]) => other.length - one.length)
      .map(([english, said]) => ({ whole: patternOf(english), said }));
  made.set(of, found);
  return found;
}

function patternOf(english: string): RegExp {
  const fixed = english.split("{}").map((part) => part.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  return new RegExp(`^${fixed.join("(.+?)").replace(/^\(\.\+\?\)/, "(\\S+)")}$`, "s");
}
