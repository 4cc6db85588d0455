import { append } from "../lib/dom.js";
import { pageHead } from "../lib/ui.js";

export default {
  id: "audit",
  title: "Audit",
  scopes: ["read"],
  show(main) {
    append(main, pageHead("Audit"));
  },
};
