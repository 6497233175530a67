/** Which exercises were solved here: kept in this browser alone. */

const KEY = "clearhead-exercises";

function held(): string[] {
  try {
    const found = JSON.parse(localStorage.getItem(KEY) ?? "[]") as unknown;
    return Array.isArray(found) ? found.filter((name) => typeof name === "string") : [];
  } catch {
    return []; // a browser may refuse to keep anything
  }
}

class Solved {
  private names = $state.raw(held());

  has(name: string): boolean {
    return this.names.includes(name);
  }

  add(name: string): void {
    if (this.has(name)) return;
    this.names = [...this.names, name];
    try {
      localStorage.setItem(KEY, JSON.stringify(this.names));
    } catch {
      // As above: it counts until the page is closed.
    }
  }
}

export const solved = new Solved();
