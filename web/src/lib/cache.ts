/** Keeps the values used last, up to a total size; the ones not used for longest go first. */
export class Cache<Value> {
  private readonly kept = new Map<string, { value: Value; size: number }>();
  private total = 0;

  constructor(private readonly limit: number) {}

  get(name: string): Value | undefined {
    const found = this.kept.get(name);
    if (found === undefined) return undefined;
    this.kept.delete(name);
    this.kept.set(name, found);
    return found.value;
  }

  set(name: string, value: Value, size = 1): void {
    this.delete(name);
    this.kept.set(name, { value, size });
    this.total += size;
    for (const oldest of this.kept.keys()) {
      if (this.total <= this.limit || this.kept.size === 1) break;
      this.delete(oldest);
    }
  }

  delete(name: string): void {
    const found = this.kept.get(name);
    if (found === undefined) return;
    this.total -= found.size;
    this.kept.delete(name);
  }

  clear(): void {
    this.kept.clear();
    this.total = 0;
  }
}
