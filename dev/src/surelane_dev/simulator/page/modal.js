// Show the app's modals: the uppermost of up to three.
import { block, showErrors } from "./blocks.js";
import { $, h, toast } from "./dom.js";
import { icon } from "./icons.js";
import { viewForm } from "./form.js";
import { request, store } from "./store.js";
import { plain } from "./text.js";

let shown = null; // the view that the dialog shows: its id, its hash and its user

export function renderModal() {
  const stack = store.views.get(store.user)?.modals || [];
  const view = stack.at(-1);
  const dialog = $("modal");
  const wanted = view ? `${view.id} ${view.hash} ${stack.length}` : null;
  if (wanted === shown) return;
  shown = wanted;
  if (!view) {
    dialog.close();
    return;
  }
  const form = viewForm(view);
  form.keepOnly(view.blocks);
  dialog.replaceChildren(frame(view, form, stack.length > 1));
  dialog.oncancel = (event) => {
    event.preventDefault();
    close(view, form, false);
  };
  if (!dialog.open) dialog.showModal();
  first(view, dialog).focus();
}

function first(view, dialog) {
  const wanted = view.blocks.find((each) => each.element?.focus_on_load);
  const holder = wanted ? dialog.querySelector(`[data-block="${CSS.escape(wanted.block_id)}"]`) : dialog;
  return (
    holder.querySelector(".modal-body :is(input, textarea, select), :is(input, textarea, select)") ||
    dialog.querySelector(".modal-close")
  );
}

function frame(view, form, covers) {
  const trouble = h("p", { class: "trouble", role: "alert", hidden: true });
  const body = h(
    "div",
    { class: "modal-body" },
    trouble,
    view.blocks.map((part) => block(part, form)),
  );
  const submit = view.submit && h("button", { class: "primary" }, plain(view.submit));
  const send = async (event) => {
    event.preventDefault();
    if (!submit || submit.disabled) return;
    submit.disabled = true;
    submit.classList.add("busy");
    trouble.hidden = true;
    try {
      const answer = await request("POST", `/control/views/${view.id}`, { values: form.values });
      showErrors(body, answer.errors || {});
      trouble.textContent = answer.message || "";
      trouble.hidden = !answer.message;
      if (answer.message) body.scrollTop = 0;
    } catch (error) {
      toast(error.message, "bad");
    } finally {
      submit.disabled = false;
      submit.classList.remove("busy");
    }
  };
  return h(
    "form",
    { onsubmit: send, novalidate: true },
    h(
      "header",
      {},
      h("h2", { id: "modal-title" }, plain(view.title)),
      h(
        "button",
        {
          type: "button",
          class: "plain modal-close",
          "aria-label": "Close",
          onclick: () => close(view, form, true),
        },
        icon("close"),
      ),
    ),
    body,
    h(
      "footer",
      {},
      h("span", { class: "note" }, store.bot.real_name),
      h(
        "button",
        { type: "button", class: "small", onclick: () => close(view, form, false) },
        plain(view.close) || (covers ? "Back" : "Cancel"),
      ),
      submit,
    ),
  );
}

async function close(view, form, all) {
  try {
    await request("DELETE", `/control/views/${view.id}`, { values: form.values, all });
  } catch (error) {
    toast(error.message, "bad");
  }
}
