// Show the tools: faults, deliveries, and the calls of the Web API.
import { $, clock, h, reconcile, toast } from "./dom.js";
import { changed, request, several, store, workspace } from "./store.js";
import { deliveryLine } from "./delivery.js";
import { plainText } from "./text.js";
import { buildWorkspaces, renderWorkspaces } from "./workspaces.js";

const KINDS = [
  ["rate_limited", "429 with Retry-After", "api"],
  ["server_error", "500", "api"],
  ["slow", "a slow answer", "api"],
  ["invalid_auth", "the token is refused", "api"],
  ["refused", "refused with internal_error", "api"],
  ["answer_lost", "done, but the answer is lost", "api"],
  ["done_but_failed", "done, but the answer is internal_error", "api"],
  ["garbled", "done, but the answer is no JSON", "api"],
  ["duplicate", "an event is delivered twice", "events"],
  ["out_of_order", "an event is overtaken by a later one", "events"],
];
const labelOf = (kind) => KINDS.find(([name]) => name === kind)[1];
const meets = (kind) => KINDS.find(([name]) => name === kind)[2];

let parts;

export function buildTools() {
  const tabs = ["faults", "deliveries", "calls", "workspaces"].map((name) =>
    h(
      "button",
      {
        role: "tab",
        id: `tab-${name}`,
        "aria-controls": `panel-${name}`,
        onclick: () => {
          store.tab = name;
          changed();
        },
      },
      name[0].toUpperCase() + name.slice(1),
    ),
  );
  const faults = h("ul", { class: "faults", "aria-label": "Faults that are on" });
  const deliveries = h("ol", { class: "rows" });
  const calls = h("ol", { class: "rows" });
  const panel = (name, ...children) =>
    h("section", { role: "tabpanel", id: `panel-${name}`, "aria-labelledby": `tab-${name}` }, children);
  const panels = [
    panel("faults", form(), h("h3", {}, "Switched on"), faults),
    panel("deliveries", h("p", { class: "note", id: "ingest-url" }), deliveries),
    panel("calls", h("p", { class: "note" }, "Calls of the Web API, latest first."), calls),
    panel("workspaces", buildWorkspaces()),
  ];
  $("tools-body").replaceChildren(h("div", { role: "tablist", class: "tabs" }, tabs), ...panels);
  parts = { tabs, panels, faults, deliveries, calls };
}

function form() {
  const kind = h(
    "select",
    { id: "fault-kind", "aria-label": "What goes wrong" },
    h(
      "optgroup",
      { label: "Web API" },
      KINDS.filter((k) => k[2] === "api").map(([name, label]) => h("option", { value: name }, label)),
    ),
    h(
      "optgroup",
      { label: "Delivery of events" },
      KINDS.filter((k) => k[2] === "events").map(([name, label]) => h("option", { value: name }, label)),
    ),
  );
  const method = h(
    "select",
    { id: "fault-method", "aria-label": "Method" },
    h("option", { value: "" }, "every method"),
  );
  const count = h("input", {
    id: "fault-count-input",
    type: "number",
    min: "1",
    value: "1",
    inputmode: "numeric",
  });
  const always = h("input", {
    type: "checkbox",
    id: "fault-always",
    onchange: () => {
      count.disabled = always.checked;
    },
  });
  const seconds = h("input", {
    id: "fault-seconds",
    type: "number",
    min: "0",
    value: "2",
    inputmode: "numeric",
  });
  const methodRow = h("label", {}, "Method", method);
  const secondsRow = h("label", {}, "Seconds", seconds);
  const shape = () => {
    methodRow.hidden = meets(kind.value) !== "api";
    secondsRow.hidden = !["rate_limited", "slow"].includes(kind.value);
  };
  const submit = async (event) => {
    event.preventDefault();
    const body = { kind: kind.value, count: always.checked ? null : Number(count.value) };
    if (method.value && meets(kind.value) === "api") body.methods = [method.value];
    if (kind.value === "rate_limited") body.retry_after = Number(seconds.value);
    if (kind.value === "slow") body.delay = `${seconds.value}s`;
    try {
      await request("POST", "/control/faults", body);
    } catch (error) {
      toast(error.message, "bad");
    }
  };
  kind.addEventListener("change", shape);
  shape();
  return h(
    "form",
    { class: "fault-form", onsubmit: submit, "aria-label": "Switch a fault on" },
    h("label", {}, "What goes wrong", kind),
    methodRow,
    secondsRow,
    h("label", {}, "How often", count),
    h("label", { class: "check" }, always, "until switched off"),
    h("button", { class: "primary" }, "Switch on"),
  );
}

export function renderTools() {
  const method = $("fault-method");
  if (method.length === 1) method.append(...store.methods.map((name) => h("option", { value: name }, name)));
  parts.tabs.forEach((tab) => tab.setAttribute("aria-selected", String(tab.id === `tab-${store.tab}`)));
  parts.panels.forEach((panel) => {
    panel.hidden = panel.id !== `panel-${store.tab}`;
  });
  $("ingest-url").textContent =
    `Events go to ${store.ingestUrl}${store.hasQueue ? "" : " · no database given, so the queue's status is not shown"}`;
  reconcile(
    parts.faults,
    store.faults.map((fault) => ({ key: String(fault.id), signature: JSON.stringify(fault), fault })),
    faultItem,
  );
  if (store.pane !== "tools") return;
  renderWorkspaces();
  const deliveries = [...store.deliveries.values()].reverse().slice(0, 200);
  reconcile(
    parts.deliveries,
    deliveries.map((delivery) => ({ key: delivery.id, signature: JSON.stringify([delivery, several()]), delivery })),
    deliveryItem,
  );
  const calls = store.calls.slice(-200).reverse();
  reconcile(
    parts.calls,
    calls.map((call) => ({ key: `${call.at}${call.method}`, signature: String(several()), call })),
    callItem,
  );
}

// The workspace, if there are several.
const within = (team) => several() && team && h("b", {}, workspace(team).name);

function deliveryItem({ delivery }) {
  const message = store.messages.get(`${delivery.channel}/${delivery.ts}`);
  const about = delivery.own_message
    ? "the bot's own message, to be passed over"
    : message
      ? plainText(message)
      : "";
  const at = delivery.attempts.length ? clock(delivery.attempts[0].at) : "";
  return h(
    "li",
    {},
    h("p", { class: "about note" }, h("time", {}, at), within(delivery.team_id), h("span", {}, about)),
    deliveryLine(delivery),
  );
}

function faultItem({ fault }) {
  const where = meets(fault.kind) === "api" ? fault.methods.join(", ") || "every method" : "events";
  const often = fault.count === null ? "until switched off" : `${fault.count} more`;
  const off = async () => {
    try {
      await request("DELETE", `/control/faults/${fault.id}`);
    } catch (error) {
      toast(error.message, "bad");
    }
  };
  return h(
    "li",
    {},
    h("div", {}, h("strong", {}, labelOf(fault.kind)), h("span", { class: "note" }, `${where} · ${often}`)),
    h(
      "button",
      { class: "small", "aria-label": `Switch off: ${labelOf(fault.kind)}`, onclick: off },
      "Switch off",
    ),
  );
}

function callItem({ call }) {
  const bad = call.status >= 400 || call.error;
  return h(
    "li",
    { class: bad ? "call bad" : "call" },
    h("time", {}, clock(call.at)),
    h("code", {}, call.method),
    within(call.team_id),
    h("span", {}, call.error || (call.status === 200 ? "ok" : String(call.status))),
  );
}
