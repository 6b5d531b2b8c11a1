// Show the modals that an app opens with views.open.
import { $, h, toast } from "./dom.js";
import { rich } from "./text.js";
import { request, store } from "./store.js";

export function listenForModals() {
  document.addEventListener("view", ({ detail }) => {
    if (detail.user === store.user) show(detail.view);
  });
}

const plain = (object) => object?.text || "";

function show(view) {
  const dialog = $("modal");
  const fields = [];
  const finish = async (method, values) => {
    dialog.close();
    try {
      const answer = await request(method, `/control/views/${view.id}`, { values });
      if (answer.problem) toast(`The app did not take it: ${answer.problem} ${answer.status || ""}`, "bad");
    } catch (error) {
      toast(error.message, "bad");
    }
  };
  const submit = (event) => {
    event.preventDefault();
    finish("POST", valuesOf(fields));
  };
  dialog.replaceChildren(
    h(
      "form",
      { onsubmit: submit },
      h("h2", {}, plain(view.title)),
      view.blocks.map((block) => part(block, fields)),
      h(
        "footer",
        {},
        h(
          "button",
          { type: "button", class: "small", onclick: () => finish("DELETE", {}) },
          plain(view.close) || "Cancel",
        ),
        (view.submit || fields.length > 0) &&
          h("button", { class: "primary" }, plain(view.submit) || "Submit"),
      ),
    ),
  );
  dialog.oncancel = (event) => {
    event.preventDefault();
    finish("DELETE", {});
  };
  if (!dialog.open) dialog.showModal();
}

function part(block, fields) {
  if (block.type !== "input") return h("div", { class: "text" }, block.text ? rich(block.text.text) : "");
  const input = block.element.multiline ? h("textarea", { rows: 4 }) : h("input", {});
  input.required = !block.optional;
  input.value = block.element.initial_value || "";
  input.placeholder = plain(block.element.placeholder);
  fields.push({ block, input });
  return h("label", {}, plain(block.label), input);
}

function valuesOf(fields) {
  const entry = ({ block, input }) => [
    block.block_id || "",
    { [block.element.action_id || ""]: { type: block.element.type, value: input.value } },
  ];
  return Object.fromEntries(fields.map(entry));
}
