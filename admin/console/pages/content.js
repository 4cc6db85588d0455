import { append } from "../lib/dom.js";
import { pageHead } from "../lib/ui.js";

export default {
  id: "content",
  title: "Content",
  scopes: ["read"],
  show(main) {
    append(main, pageHead("Content"));
  },
};
