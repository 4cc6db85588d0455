import { append } from "../lib/dom.js";
import { pageHead } from "../lib/ui.js";

export default {
  id: "uploads",
  title: "Uploads",
  scopes: ["read"],
  show(main) {
    append(main, pageHead("Uploads"));
  },
};
