import { append } from "../lib/dom.js";
import { pageHead } from "../lib/ui.js";

export default {
  id: "requests",
  title: "Requests",
  scopes: ["read"],
  show(main) {
    append(main, pageHead("Requests"));
  },
};
