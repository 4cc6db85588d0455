// Modules of the console that need no page, as they are in admin/console/lib.

import { readFile } from "node:fs/promises";

const lib = new URL("../../../../admin/console/lib/", import.meta.url);

/** Imports a module without imports of its own. Node.js reads a .js file as CommonJS, unlike a browser. */
export async function consoleModule(name) {
  const source = await readFile(new URL(name, lib), "utf8");
  return import(`data:text/javascript,${encodeURIComponent(source)}`);
}
