import { append } from "../lib/dom.js";
import { pageHead } from "../lib/ui.js";

export default {
  id: "settings",
  title: "Settings",
  scopes: ["read"],
  show(main) {
    append(main, pageHead("Settings"));
  },
};
