import { append } from "../lib/dom.js";
import { pageHead } from "../lib/ui.js";

export default {
  id: "pins",
  title: "Pins",
  scopes: ["read"],
  show(main) {
    append(main, pageHead("Pins"));
  },
};
