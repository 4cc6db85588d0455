import { append } from "../lib/dom.js";
import { pageHead } from "../lib/ui.js";

export default {
  id: "tokens",
  title: "Tokens",
  scopes: ["read"],
  show(main) {
    append(main, pageHead("Tokens"));
  },
};
