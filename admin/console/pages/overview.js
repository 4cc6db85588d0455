import { append } from "../lib/dom.js";
import { pageHead } from "../lib/ui.js";

export default {
  id: "overview",
  title: "Overview",
  scopes: ["read"],
  show(main) {
    append(main, pageHead("Overview"));
  },
};
