import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vitest/config";

import { icon, inline } from "./inline.ts";

/** Pages that are one file: a saved trace, and a model that runs in the browser. */
const SINGLE: Record<string, string> = { page: "page.html", live: "live.html" };

/** Three builds into one folder: the explorer in parts, and (`--mode page`, `--mode live`) the pages of one file. */
export default defineConfig(({ mode }) => ({
  base: "./",
  plugins: [svelte(), icon(), ...(mode in SINGLE ? [inline()] : [])],
  build: {
    outDir: "../clearhead/serve/static",
    emptyOutDir: !(mode in SINGLE),
    target: "es2023",
    assetsInlineLimit: 0,
    modulePreload: mode in SINGLE ? false : { polyfill: false },
    cssCodeSplit: false,
    rolldownOptions: {
      input: SINGLE[mode] ?? "index.html",
      output: mode in SINGLE ? { codeSplitting: false } : {},
    },
  },
  resolve: mode === "test" ? { conditions: ["browser"] } : {},
  // One thread for all files: to start another process for each took two thirds of the time, and each one would load every
  // module again. A test leaves nothing behind.
  test: {
    environment: "./vitest.client.ts",
    include: ["src/**/*.test.ts"],
    isolate: false,
    pool: "threads",
    maxWorkers: 1,
  },
}));
