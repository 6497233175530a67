/** What a pupil did on this page: tries, hints, guesses and minutes, kept in this browser alone; and the line to hand in. */

export interface Kept {
  begun: number;
  last: number;
  tries: number;
  hints: number;
  /** By chapter, the choice that was made first. */
  guesses: Record<string, number>;
  solved: string[];
  /** By chapter, the words of the address that are an answer. */
  answers: Record<string, Record<string, string>>;
  /** Chapters that turned out to have nothing to solve. */
  without: string[];
}

const NOTHING: Kept = { begun: 0, last: 0, tries: 0, hints: 0, guesses: {}, solved: [], answers: {}, without: [] };

export class PupilRecord {
  kept = $state.raw<Kept>(NOTHING);
  private readonly key: string;

  constructor(
    lesson: string,
    private readonly now: () => number = Date.now,
  ) {
    this.key = `clearhead-lesson: ${lesson}`;
    try {
      const found = JSON.parse(localStorage.getItem(this.key) ?? "null") as Partial<Kept> | null;
      this.kept = { ...NOTHING, ...found };
    } catch {
      // A browser may refuse to keep anything: the page works all the same, until it is closed.
    }
    if (this.kept.begun === 0) this.change({ begun: this.now() });
  }

  tried(): void {
    this.change({ tries: this.kept.tries + 1 });
  }

  hinted(): void {
    this.change({ hints: this.kept.hints + 1 });
  }

  /** A guess counts once: to load the page again gives no second one. */
  guessed(chapter: string, choice: number): void {
    if (this.kept.guesses[chapter] === undefined)
      this.change({ guesses: { ...this.kept.guesses, [chapter]: choice }, tries: this.kept.tries + 1 });
  }

  solve(chapter: string): void {
    if (!this.kept.solved.includes(chapter)) this.change({ solved: [...this.kept.solved, chapter] });
  }

  /** Keep an answer as it is by now. */
  answered(chapter: string, own: Record<string, string>): void {
    if (JSON.stringify(this.kept.answers[chapter]) !== JSON.stringify(own))
      this.change({ answers: { ...this.kept.answers, [chapter]: own } });
  }

  /** A chapter without a task is not open. */
  skipped(chapter: string): void {
    if (!this.kept.without.includes(chapter)) this.change({ without: [...this.kept.without, chapter] });
  }

  private change(to: Partial<Kept>): void {
    this.kept = { ...this.kept, ...to, last: this.now() };
    try {
      localStorage.setItem(this.key, JSON.stringify(this.kept));
    } catch {
      // As above.
    }
  }
}

/** The line that a pupil hands in, as `clearhead learn class` reads it. */
export function handIn(name: string, lesson: string, solved: string[], open: string[], kept: Kept): string {
  const plain = (text: string): string => text.replaceAll(";", ",").split(/\s+/).filter(Boolean).join(" ");
  const minutes = Math.round((kept.last - kept.begun) / 60_000);
  const counts = [kept.tries, kept.hints, minutes].map(String);
  const facts = ["clearhead-2", plain(name), plain(lesson), solved.join(" "), open.join(" "), ...counts].join("; ");
  return `${facts}; ${crc32(facts)}`;
}

/** CRC-32 of a text in UTF-8, as eight hexadecimal digits. */
export function crc32(text: string): string {
  let sum = 0xffffffff;
  for (const byte of new TextEncoder().encode(text)) {
    sum ^= byte;
    for (let bit = 0; bit < 8; bit++) sum = (sum >>> 1) ^ (sum & 1 ? 0xedb88320 : 0);
  }
  return ((sum ^ 0xffffffff) >>> 0).toString(16).padStart(8, "0");
}
