import { append } from "../lib/dom.js";
import { pageHead } from "../lib/ui.js";

export default {
  id: "store",
  title: "Store",
  scopes: ["read"],
  show(main) {
    append(main, pageHead("Store"));
  },
};
