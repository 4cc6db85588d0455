import { append } from "../lib/dom.js";
import { pageHead } from "../lib/ui.js";

export default {
  id: "names",
  title: "Names",
  scopes: ["read"],
  show(main) {
    append(main, pageHead("Names"));
  },
};
