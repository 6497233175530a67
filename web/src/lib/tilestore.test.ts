import { expect, it } from "vitest";

import { TileStore } from "./tilestore";

it("a store whose matrix is no longer shown asks for nothing: the map may have the next one's size already", async () => {
  const asked: string[] = [];
  const load = (...place: number[]): Promise<never> => {
    asked.push(place.join("/"));
    return new Promise(() => {});
  };
  const store = new TileStore(load, Number, () => {}, () => {}); // prettier-ignore
  store.want([{ level: 0, row: 0, column: 0 }]);
  store.close();
  store.want([{ level: 1, row: 0, column: 1 }]);
  expect(asked).toEqual(["0/0/0"]);
});
