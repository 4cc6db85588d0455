import { append } from "../lib/dom.js";
import { pageHead } from "../lib/ui.js";

export default {
  id: "peers",
  title: "Peers",
  scopes: ["read"],
  show(main) {
    append(main, pageHead("Peers"));
  },
};
