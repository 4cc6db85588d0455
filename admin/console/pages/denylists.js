import { append } from "../lib/dom.js";
import { pageHead } from "../lib/ui.js";

export default {
  id: "denylists",
  title: "Denylists",
  scopes: ["read"],
  show(main) {
    append(main, pageHead("Denylists"));
  },
};
