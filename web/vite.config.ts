import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vitest/config";

import { icon, inline } from "./inline.ts";

/** Two builds into one folder: the explorer in parts, and (`--mode live`) the page of one file. */
export default defineConfig(({ mode }) => ({
  base: "./",
  plugins: [svelte(), icon(), ...(mode === "live" ? [inline()] : [])],
  build: {
    outDir: "../clearhead/serve/static",
    emptyOutDir: mode !== "live",
    target: "es2023",
    assetsInlineLimit: 0,
    modulePreload: mode === "live" ? false : { polyfill: false },
    cssCodeSplit: false,
    rolldownOptions: {
      input: mode === "live" ? "live.html" : "index.html",
      output: mode === "live" ? { codeSplitting: false } : {},
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
