// Ask before an action, if the app wants that.
import { $, h } from "./dom.js";
import { plain, textOf } from "./text.js";

export function confirmed(asked) {
  if (!asked) return Promise.resolve(true);
  return new Promise((resolve) => {
    const dialog = $("confirm");
    const answer = (yes) => () => {
      dialog.close();
      resolve(yes);
    };
    dialog.replaceChildren(
      h("h2", { id: "confirm-title" }, plain(asked.title)),
      h("div", { class: "text modal-body" }, textOf(asked.text)),
      h(
        "footer",
        {},
        h(
          "button",
          { type: "button", class: "small", onclick: answer(false) },
          plain(asked.deny) || "Cancel",
        ),
        h(
          "button",
          { type: "button", class: `primary ${asked.style || ""}`, onclick: answer(true) },
          plain(asked.confirm) || "OK",
        ),
      ),
    );
    dialog.oncancel = answer(false);
    dialog.showModal();
  });
}
