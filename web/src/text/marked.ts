/** Sentences with marks in them: the order of words differs between languages, so a sentence stays in one piece. */

export interface Marked {
  /** "plain", "strong", "code", or the role whose colour it has: "query", "key". */
  kind: string;
  text: string;
}

/** Return the parts of a sentence: "[query|Query]" has a role's colour, "*x*" is strong and "`x`" is code. */
export function marked(sentence: string): Marked[] {
  return sentence
    .split(/(\[\w+\|[^\]]*\]|\*[^*]+\*|`[^`]+`)/)
    .filter(Boolean)
    .map((part) => {
      const role = /^\[(\w+)\|(.*)\]$/s.exec(part);
      if (role) return { kind: role[1], text: role[2] };
      if (/^\*.+\*$/s.test(part)) return { kind: "strong", text: part.slice(1, -1) };
      return /^`.+`$/s.test(part) ? { kind: "code", text: part.slice(1, -1) } : { kind: "plain", text: part };
    });
}
