/** A number in a field that somebody may be typing over while numbers arrive. */

interface Arrived {
  /** What the number is of; another one has a field of its own, so to speak. */
  of: string | null;
  value: number | null;
  /** The answer that it stands in: a new object for each. */
  answer: unknown;
}

interface Typed {
  of: string | null;
  value: number | null;
  /** The answer that was there when it was sent; undefined while it is being typed. */
  sentAt: unknown;
}

/** Shows what has arrived until another number is typed; that one stays until the answer to it comes, whatever else
 * arrives before it is sent. */
export class Draft {
  private typed = $state.raw<Typed | null>(null);

  constructor(private readonly arrived: () => Arrived) {}

  get value(): number | null {
    const { of, value, answer } = this.arrived();
    const typed = this.typed;
    if (typed === null || typed.of !== of) return value;
    return typed.sentAt === undefined || typed.sentAt === answer ? typed.value : value;
  }

  set value(value: number | null) {
    this.typed = { of: this.arrived().of, value: value ?? null, sentAt: undefined };
  }

  /** What is in the field goes to the model: the next answer takes its place. */
  send(): void {
    if (this.typed !== null) this.typed = { ...this.typed, sentAt: this.arrived().answer };
  }

  /** Back to what has arrived. */
  forget(): void {
    this.typed = null;
  }
}
