import "./app.css";

import { mount } from "svelte";

import { RecordedSource } from "./lib/recorded";
import { type RunFacts, type Source, SourceError } from "./lib/source";
import { LiveSource } from "./live/source";
import EngineWorker from "./live/worker?worker&inline";
import type { Setup } from "./live/worker";
import LivePage from "./LivePage.svelte";
import ErrorNote from "./parts/ErrorNote.svelte";

/** What a page holds where the model is not in it: answers about one text. */
interface Recorded {
  dtype: "uint8";
  run: RunFacts;
  answers: Record<string, unknown>;
}

const target = document.getElementById("app")!;
const held = (id: string): string => document.getElementById(id)?.textContent.trim() ?? "";
try {
  const [data, weights] = [held("clearhead-data"), held("clearhead-weights")];
  if (data === "") throw new SourceError("This page holds no model. Write one with: clearhead page RUN -o FILE.html");
  const read = JSON.parse(data) as Setup["data"] | Recorded;
  const source: Source =
    "answers" in read
      ? new RecordedSource({ run: read.run, ...read.answers })
      : LiveSource.open(new EngineWorker(), { data: read, weights });
  mount(LivePage, { target, props: { source, dtype: read.dtype, film: "film" in read ? read.film : null } });
} catch (error) {
  mount(ErrorNote, { target, props: { message: error instanceof Error ? error.message : String(error) } });
}
