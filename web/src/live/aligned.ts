/** A text on its way to tokens: of every UTF-16 unit it says which characters of the original it comes from.
 *
 * It follows the library's NormalizedString (tokenizers 0.23): a character that a rule writes anew has the place of the one
 * it stands for, an inserted one that of its neighbour before it.
 */

export class Aligned {
  private constructor(
    readonly text: string,
    /** From which character of the original, by unit. */
    private readonly from: readonly number[],
    /** To which; not itself a part of it. */
    private readonly to: readonly number[],
  ) {}

  /** A text as it was written, whose first character has this number. */
  static of(text: string, first = 0): Aligned {
    const places: number[] = [];
    let place = first;
    for (const letter of text) {
      for (let unit = 0; unit < letter.length; unit++) places.push(place);
      place++;
    }
    return new Aligned(
      text,
      places,
      places.map((one) => one + 1),
    );
  }

  /** The characters of the original behind these units. */
  range(start: number, stop: number): { start: number; stop: number } {
    return { start: this.from[start], stop: this.to[stop - 1] };
  }

  slice(start: number, stop = this.text.length): Aligned {
    return new Aligned(this.text.slice(start, stop), this.from.slice(start, stop), this.to.slice(start, stop));
  }

  /** Another text in which each part has the place of a unit of this one; null: the very beginning. */
  private rewritten(parts: Iterable<readonly [string, number | null]>): Aligned {
    const [texts, from, to]: [string[], number[], number[]] = [[], [], []];
    for (const [part, unit] of parts) {
      texts.push(part);
      for (let each = 0; each < part.length; each++) {
        from.push(unit === null ? 0 : this.from[unit]);
        to.push(unit === null ? 0 : this.to[unit]);
      }
    }
    return new Aligned(texts.join(""), from, to);
  }

  /** Each character as what a rule makes of it, which may be nothing. */
  map(rule: (letter: string) => string): Aligned {
    let unit = 0;
    return this.rewritten(
      Array.from(this.text, (letter) => {
        const at = unit;
        unit += letter.length;
        return [rule(letter), at] as const;
      }),
    );
  }

  /** With other text in the place of every match, which has the place of the match's last character. */
  replace(pattern: RegExp, content: string): Aligned {
    const parts: [string, number][] = [];
    const keep = (start: number, stop: number): void => {
      for (let unit = start; unit < stop; unit++) parts.push([this.text[unit], unit]);
    };
    let last = 0;
    for (const match of this.text.matchAll(pattern)) {
      if (match[0] === "") continue;
      keep(last, match.index);
      last = match.index + match[0].length;
      parts.push([content, last - 1]);
    }
    keep(last, this.text.length);
    return this.rewritten(parts);
  }

  prepend(sign: string): Aligned {
    if (this.text === "") return this;
    const own = Array.from(this.from, (_, unit) => [this.text[unit], unit] as const);
    return this.rewritten([[sign, 0], ...own]);
  }

  /** One of Unicode's normal forms. */
  normalize(form: "NFC" | "NFD" | "NFKC" | "NFKD"): Aligned {
    if (this.text.normalize(form) === this.text) return this;
    const apart = form.startsWith("NFK") ? "NFKD" : "NFD";
    const signs = Array.from(this.text).flatMap((letter) =>
      Array.from(letter.normalize(apart), (sign, place): Sign => ({ sign, change: place === 0 ? 0 : 1 })),
    );
    sortMarks(signs);
    const ends: number[] = [];
    let reached = 0;
    for (const letter of this.text) ends.push((reached += letter.length));
    let letter = 0;
    return this.rewritten(
      (form.endsWith("C") ? composed(signs) : signs).map(({ sign, change }) => {
        if (change > 0) return [sign, letter === 0 ? null : ends[letter - 1] - 1] as const;
        const at = ends[letter] - 1;
        letter += 1 - change;
        return [sign, at] as const;
      }),
    );
  }
}

/** A character of a normal form: 1 where it is inserted, else minus how many characters after its own it stands for. */
interface Sign {
  sign: string;
  change: number;
}

/** Whether Unicode puts the second of two characters first: the combining class of the first is the higher one. */
function swaps(first: string, second: string): boolean {
  return first !== second && (first + second).normalize("NFD") === second + first;
}

/** Marks of the lowest and of the highest combining class, beside which every other one shows that it has a class. */
const [LOWEST, HIGHEST] = ["\u0334", "\u0345"];

function isMark(sign: string): boolean {
  return swaps(sign, LOWEST) || swaps(HIGHEST, sign);
}

function sortMarks(signs: Sign[]): void {
  for (let end = 1; end < signs.length; end++)
    for (let at = end; at > 0 && swaps(signs[at - 1].sign, signs[at].sign); at--)
      [signs[at - 1], signs[at]] = [signs[at], signs[at - 1]];
}

/** Signs put together where Unicode has one character for two. */
function composed(signs: Sign[]): Sign[] {
  const made: Sign[] = [];
  let base: Sign | null = null;
  let marks: Sign[] = [];
  for (const one of signs) {
    if (base === null) {
      if (isMark(one.sign)) made.push(one);
      else base = one;
      continue;
    }
    const before = marks.at(-1);
    const both: string =
      before === undefined || swaps(one.sign, before.sign) ? (base.sign + one.sign).normalize("NFC") : "";
    if (Array.from(both).length === 1) base = { sign: both, change: base.change + one.change - 1 };
    else if (isMark(one.sign)) marks.push(one);
    else {
      made.push(base, ...marks);
      [base, marks] = [one, []];
    }
  }
  return base === null ? made : [...made, base, ...marks];
}
