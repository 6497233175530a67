/** Numbers as the language of the page writes them: every number that is shown passes through here. */

import { language, type Language } from "../text";

const LOCALES: Record<Language, string> = { en: "en-GB", de: "de-DE" };

/** A number that is written with a point, with the decimal sign of the language: "0.25" → "0,25". */
export function local(text: string, of: Language = language): string {
  return of === "de" ? text.replace(/(\d|^[−-]?|\s)\.(?=\d)/g, "$1,") : text;
}

const COUNTS: Record<Language, Intl.NumberFormat> = {
  en: new Intl.NumberFormat(LOCALES.en),
  de: new Intl.NumberFormat(LOCALES.de),
};

/** Words with commas, and "and" before the last. */
export function listText(words: readonly string[], of: Language = language): string {
  return new Intl.ListFormat(LOCALES[of]).format(words);
}

/** A count with its thousands apart: "12,345", "12.345". */
export function countText(value: number, of: Language = language): string {
  return COUNTS[of].format(value);
}
