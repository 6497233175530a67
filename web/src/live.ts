import "./app.css";

import { mount } from "svelte";

import { SourceError } from "./lib/source";
import { LiveSource } from "./live/source";
import EngineWorker from "./live/worker?worker&inline";
import type { Setup } from "./live/worker";
import LivePage from "./LivePage.svelte";
import ErrorNote from "./parts/ErrorNote.svelte";

const target = document.getElementById("app")!;
const held = (id: string): string => document.getElementById(id)?.textContent.trim() ?? "";
try {
  const [data, weights] = [held("clearhead-data"), held("clearhead-weights")];
  if (data === "") throw new SourceError("This page holds no model. Write one with: clearhead page RUN -o FILE.html");
  const setup: Setup = { data: JSON.parse(data) as Setup["data"], weights };
  mount(LivePage, { target, props: { source: LiveSource.open(new EngineWorker(), setup), dtype: setup.data.dtype } });
} catch (error) {
  mount(ErrorNote, { target, props: { message: error instanceof Error ? error.message : String(error) } });
}
