// Selects rows of the events' table, or all that match the filter, and changes them together after a preview.
import { call, confirmed, toast } from "./actions.js";
import { refresh } from "./live.js";

const VERBS = {
  rerun: ["Run", "again? All their attempts begin again. Completed ones begin anew.", "run again"],
  cancel: ["Cancel", "? The handlers of those that run are stopped.", "cancelled"],
  expire: ["Expire", "? No handler will see them.", "expired"],
};
const picked = new Set();
let bar;

function everything() {
  return bar.querySelector("#pick-matching").checked;
}

function show() {
  const boxes = [...document.querySelectorAll("[data-pick]")];
  for (const box of boxes) {
    box.checked = everything() || picked.has(box.dataset.pick);
    box.disabled = everything();
  }
  const all = document.querySelector("[data-pick-all]");
  if (all) {
    const on = boxes.filter((box) => box.checked).length;
    all.checked = on > 0 && on === boxes.length;
    all.indeterminate = on > 0 && on < boxes.length;
    all.disabled = everything();
  }
  bar.hidden = !picked.size && !everything();
  bar.querySelector("#picked").textContent = everything() ? "All that match are" : String(picked.size);
}

async function change(verb) {
  const chosen = everything() ? { filter: JSON.parse(bar.dataset.matching) } : { ids: [...picked].map(Number) };
  const wanted = { action: verb, ...chosen };
  const preview = await call("POST", "/v1/jobs/bulk/preview", wanted);
  if (preview === null) return;
  const [begin, end, done] = VERBS[verb];
  if (!preview.matching && !preview.more) return toast(`None of these events can be ${done}.`, true);
  const number = `${preview.matching.toLocaleString("en")}${preview.more ? " or more" : ""}`;
  const kinds = [...new Set(preview.sample.map((job) => job.kind))].join(", ");
  const looked = preview.looked && preview.more ? `\nOnly the newest ${preview.looked.toLocaleString("en")} were looked at for this preview.` : "";
  const left = preview.unchanged ? `\n${preview.unchanged} of the selected cannot be ${done} and stay as they are.` : "";
  const space = end.startsWith("?") ? "" : " ";
  if (!(await confirmed(`${begin} ${number} event${preview.matching === 1 ? "" : "s"}${space}${end}${kinds && `\nKinds: ${kinds}.`}${looked}${left}`))) return;
  let action = await made(wanted);
  // One change looks at a bounded number of events. A person may let another one look at older ones.
  while (action?.result?.next && !action.result.error && (await confirmed(`${results(action)}. Look at older events, too?`)))
    action = await made({ ...wanted, cursor: action.result.next });
  if (action === null) return;
  toast(`${results(action)}.`, Boolean(action.result?.error));
  picked.clear();
  bar.querySelector("#pick-matching").checked = false;
  await refresh();
  show();
}

// Makes a change and waits for its end, however long it takes; null: it failed.
async function made(wanted) {
  let action = await call("POST", "/v1/jobs/bulk", wanted);
  while (action && !action.finished_at) {
    toast(`Going on: ${results(action)}`);
    await new Promise((resolve) => setTimeout(resolve, 1500));
    action = await call("GET", `/v1/actions/${action.id}`);
  }
  return action;
}

function results(action) {
  const { looked, next, ...counts } = action.result ?? {};
  const told = Object.entries(counts).map(([name, count]) => `${count} ${VERBS[name]?.[2] ?? name}`);
  return (told.join(", ") || "nothing was changed") + (looked ? `, of ${looked.toLocaleString("en")} looked at` : "");
}

export function picking() {
  bar = document.querySelector("#picking");
  if (!bar) return;
  document.addEventListener("change", ({ target }) => {
    if (target.matches("[data-pick]")) {
      if (target.checked) picked.add(target.dataset.pick);
      else picked.delete(target.dataset.pick);
    } else if (target.matches("[data-pick-all]")) {
      for (const box of document.querySelectorAll("[data-pick]")) {
        if (target.checked) picked.add(box.dataset.pick);
        else picked.delete(box.dataset.pick);
      }
    } else if (target.id !== "pick-matching") return;
    show();
  });
  bar.addEventListener("click", ({ target }) => {
    const button = target.closest("[data-bulk]");
    if (!button) return;
    button.disabled = true;
    change(button.dataset.bulk).finally(() => (button.disabled = false));
  });
  document.querySelector("#live").addEventListener("shown", show);
}
