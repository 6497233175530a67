import type { Environment } from "vitest/runtime";

/** Node, with modules compiled as for the browser: on the server Svelte has no effects. */
export default {
  name: "client",
  viteEnvironment: "client",
  setup: () => ({ teardown: () => {} }),
} satisfies Environment;
